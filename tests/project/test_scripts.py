"""Scripts name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ROOT / name
    for name in (".ci/run", "scripts/check", "scripts/test", "scripts/test-newest")
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_tests_that_a_script_runs_exist(script: Path) -> None:
    names = re.findall(r"(?<!\S)tests/[\w./]+", script.read_text(encoding="utf-8"))
    assert [name for name in names if not (ROOT / name).exists()] == []
