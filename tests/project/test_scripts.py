"""Scripts name tests that exist, and versions of all packages and actions."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from mutation import GROUPS

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ROOT / name
    for name in (
        *(".ci/run", "scripts/check", "scripts/lint"),
        *("scripts/test", "scripts/test-newest"),
    )
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_tests_that_a_script_runs_exist(script: Path) -> None:
    names = re.findall(r"(?<!\S)tests/[\w./]+", script.read_text(encoding="utf-8"))
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_modules_and_the_tests_of_the_mutation_test_exist() -> None:
    for group in GROUPS.values():
        modules = [ROOT / "src" / "transduce" / each for each in group.modules]
        tests = [ROOT / "tests" / each for each in group.tests]
        assert [path for path in (*modules, *tests) if not path.exists()] == []


def test_the_tested_versions_include_all_packages_for_development() -> None:
    """Otherwise `scripts/test` installs any version of the missing one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {
        *project["dependencies"],
        *(each for one in extras.values() for each in one),
    }
    names = {plain(re.split(r"[\[<>=]", each)[0]) for each in needed}
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    known = {plain(line.partition("==")[0]) for line in constraints}
    assert names - known == {"transduce"}


def test_the_workflows_pin_their_actions_by_commit() -> None:
    """A tag or a branch may lead to other code tomorrow."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    text = "\n".join(each.read_text("utf-8") for each in workflows)
    actions = re.findall(r"uses: (.+)", text)
    assert actions
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [each for each in actions if not pinned.fullmatch(each)] == []


@pytest.mark.parametrize(("with_pip", "made"), [(True, []), (False, ["-m venv .venv"])])
@pytest.mark.parametrize("script", ["quickstart", "test", "docs"])
def test_an_environment_without_pip_is_made_anew(
    script: str, with_pip: bool, made: list[str], tmp_path: Path
) -> None:
    """On Debian, `python3 -m venv` leaves one if python3-venv is not installed."""
    folder = tmp_path / "scripts"
    shutil.copytree(ROOT / "scripts", folder)
    does_nothing, records = "#!/bin/sh\nexit 0\n", '#!/bin/sh\necho "$@" >> calls\n'
    lacks_packages = '#!/bin/sh\ntest "$1" != -c\n'
    programs = {
        "python": lacks_packages,
        "transduce": does_nothing,
        "pip": does_nothing,
    }
    if not with_pip:
        del programs["pip"]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, text in programs.items():
        (tmp_path / ".venv" / "bin" / name).write_text(text)
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    (tmp_path / "python").write_text(records)
    (tmp_path / "python").chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    subprocess.run(
        ["sh", folder / script],
        env={"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "python")},
        check=True,
    )
    assert calls.read_text().splitlines() == made


def plain(name: str) -> str:
    """Name of a package in the spelling of indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()
