"""The page of departures lists every comment about a departure from the paper."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "departures.py"
PAGE = (ROOT / "docs" / "paper" / "departures.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]
MODULES = sorted((ROOT / "src" / "transduce").rglob("*.py"))


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    )
    assert done.stdout == PAGE, f"Run python {SCRIPT} > docs/paper/departures.md"


def test_every_departure_has_its_row() -> None:
    for module in MODULES:
        name = module.relative_to(ROOT / "src" / "transduce").with_suffix("").as_posix()
        rows = [row for row in ROWS if row.startswith(f"| [`{name}`]")]
        # Count comments in any spelling: the script would miss a misspelt one.
        written = module.read_text(encoding="utf-8").lower().count("unlike the paper")
        assert len(rows) == written, name


def test_a_row_links_to_its_module_and_names_the_place() -> None:
    assert ROWS
    for row in ROWS:
        address = row.split("](../../")[1].split(")")[0]
        assert (ROOT / address).is_file()
        name = row.split("), `")[1].split("`")[0].split(".")[-1]
        assert name in (ROOT / address).read_text(encoding="utf-8")
