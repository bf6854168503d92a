"""The documentation names only commands that exist."""

import re
from pathlib import Path

import pytest

from transduce.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"```bibtex.*?```", "", text, flags=re.DOTALL)
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL))
    called = r"(?:^|[`$|;&(])\s*(?:\.venv/bin/)?transduce ([a-z][a-z-]+)\b"
    named = set(re.findall(called, code, flags=re.MULTILINE))
    assert named - set(COMMANDS) == set()


def test_the_readme_names_commands() -> None:
    assert "transduce train" in (ROOT / "README.md").read_text(encoding="utf-8")
