"""The student's notebook runs, trains its model, and equals its page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "student.py"
FOLDER = ROOT / "docs" / "student"
CELLS = json.loads((FOLDER / "transformer.ipynb").read_text(encoding="utf-8"))["cells"]


def without_output(page: str) -> str:
    return re.sub(r"```text\n.*?```\n", "", page, flags=re.DOTALL)


@pytest.mark.slow
def test_the_notebook_teaches_its_model_to_reverse_words(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path)], check=True)
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    [accuracy] = re.findall(r"tokens predicted correctly: ([\d.]+)%", page)
    assert float(accuracy) > 90
    committed = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert without_output(page) == without_output(committed), f"Run python {SCRIPT}"


def test_the_committed_notebook_has_no_output() -> None:
    for cell in CELLS:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_notebook_imports_only_the_model_torch_and_matplotlib() -> None:
    code = "\n".join("".join(cell["source"]) for cell in CELLS)
    imported = re.findall(r"^(?:from|import) ([\w.]+)", code, flags=re.MULTILINE)
    others = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert others == {"transduce", "torch", "matplotlib"}
    ours = {name for name in imported if name.startswith("transduce")}
    assert all(name.startswith("transduce.model") for name in ours)
