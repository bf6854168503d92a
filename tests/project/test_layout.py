"""The rules of the house that a machine can hold."""

import re
from pathlib import Path

import pytest

from transduce.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "transduce"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES} - {PACKAGE, PACKAGE / "cli"})


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_a_folder_says_what_it_is_for_and_exports_nothing(folder: Path) -> None:
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    assert re.fullmatch(r'"""[^"]+"""\n', text)


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_a_module_says_what_it_is_for(module: Path) -> None:
    assert module.read_text(encoding="utf-8").startswith('"""')


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_what_is_still_to_be_done_is_not_written_into_code(module: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", module.read_text(encoding="utf-8"))


def test_every_command_is_a_module_of_its_name() -> None:
    # Python's own words have a line after them.
    modules = {path.stem.rstrip("_") for path in (PACKAGE / "cli").glob("*.py")}
    assert {name.replace("-", "_") for name in COMMANDS} - modules == set()


def test_the_readme_names_only_commands_that_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL))
    named = set(re.findall(r"(?<![\w./-])transduce ([a-z][a-z-]+)\b", code))
    assert named
    assert named - set(COMMANDS) == set()


@pytest.mark.parametrize(
    "script",
    [
        "scripts/check",
        "scripts/on-gpu",
        "scripts/test",
        "scripts/test-newest",
        ".ci/run",
    ],
)
def test_a_script_can_be_run(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111


def test_the_map_in_the_readme_has_every_module_and_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(
        r"^src/transduce/\n(.*?)^```", readme, re.DOTALL | re.MULTILINE
    )
    mapped = set(re.findall(r"[\w.]+(?:/|\b)", block))
    modules = {
        path.stem
        for folder in FOLDERS
        if folder.parent == PACKAGE
        for path in folder.glob("*.py")
    } - {"__init__"}
    of_package = {path.name for path in PACKAGE.glob("[!_]*.py")}
    folders = {f"{folder.name}/" for folder in FOLDERS}
    assert modules | of_package | folders <= mapped
