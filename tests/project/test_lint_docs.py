"""The script that refuses documentation that does not stand alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "lint-docs"


def lint(path: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True
    )
    return done.returncode, done.stdout.splitlines()


def test_the_lint_passes_sentences_and_noun_phrases(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Sizes of a model."""\n\nHEADS = 8\n"""By default, eight."""\n'
    )
    assert lint(module) == (0, [])


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ('"""Of a model. Or two."""\n', 1, "Of a model."),
        (
            '"""Sizes."""\n\nHEADS = 8\n"""Those of a layer."""\n',
            4,
            "Those of a layer.",
        ),
        ("HEADS = 8\n", 1, "this module has no docstring"),
        ('"""Sizes."""\n\ndef f() -> None: ...\n', 3, "f has no docstring"),
        ('"""Sizes."""\n\nclass C:\n    x = 1\n', 3, "C has no docstring"),
        ('"""Sizes."""\n\ndef f() -> None:\n    """ """\n', 3, "f has no docstring"),
    ],
)
def test_the_lint_names_place_and_sentence(
    tmp_path: Path, source: str, line: int, said: str
) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert lint(module) == (1, [f"{module}:{line}: {said}"])


def test_the_lint_reads_the_help_of_commands(tmp_path: Path) -> None:
    folder = tmp_path / "transduce" / "cli"
    folder.mkdir(parents=True)
    (folder / "command.py").write_text(
        '''"""A command."""

def command(size: int, rate: float) -> None:
    """Do it.

    So it is done.

    Parameters
    ----------
    size
        Which size it is.
    rate
        Rate of
        Those.
    """
'''
    )
    assert lint(tmp_path) == (
        1,
        [
            f"{folder}/command.py:6: So it is done.",
            f"{folder}/command.py:11: Which size it is.",
        ],
    )


def test_the_lint_reads_paragraphs_of_pages_but_no_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What it is\n\nA page. As it\nis.\n\n```sh\nWhat is code\n```\n\n"
        "- So is an item\n- What is a question?\n\nWho wrote\nit.\n"
    )
    assert lint(page) == (1, [f"{page}:10: So is an item", f"{page}:13: Who wrote it."])


@pytest.mark.parametrize(
    ("message", "is_refused"),
    [
        ('"Ask for fewer: --processes 1"', True),
        ('f"{out}: overwrite it "\n    "with --force."', True),
        ('"Name a host (`--host`)."', True),
        ('f"Name a host by `transduce serve --host {name}`."', False),
        ('["--host", "--port=5000"]', False),
        ('"export --to onnx"', False),
        ('"1 -- 2"', False),
    ],
)
def test_the_lint_refuses_options_in_messages_outside_the_commands(
    tmp_path: Path, message: str, is_refused: bool
) -> None:
    for name in ("data", "cli"):
        folder = tmp_path / "src" / "transduce" / name
        folder.mkdir(parents=True)
        (folder / "module.py").write_text(f'"""A module."""\n\nMESSAGE = ({message})\n')
    code, said = lint(tmp_path)
    place = tmp_path / "src/transduce/data/module.py"
    assert code == is_refused
    assert len(said) == is_refused
    assert all(line.startswith(f"{place}:3: an option in") for line in said)


def test_the_folders_above_a_checkout_do_not_matter(tmp_path: Path) -> None:
    checkout = tmp_path / "cli"
    module = checkout / "src" / "transduce" / "module.py"
    for folder in (module.parent, checkout / "scripts"):
        folder.mkdir(parents=True)
    script = shutil.copy(SCRIPT, checkout / "scripts")
    module.write_text('"""Sizes.\n\nOf equal ones, the first counts.\n"""\n')
    done = subprocess.run([sys.executable, script, module], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
