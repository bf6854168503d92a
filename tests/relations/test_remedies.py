"""Errors name a remedy by words in Python, and by an option in a command."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import transduce
from transduce.cli import OPTIONS_OF_REMEDIES, error_sentence, main
from transduce.cli.train import train
from transduce.errors import TransduceError

FILES = ("--source", "s.en", "--target", "s.de", "--out", "run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a small corpus."""
    monkeypatch.chdir(tmp_path)
    for name in ("s.en", "s.de"):
        Path(name).write_text("one two\n" * 4, encoding="utf-8")
    return tmp_path


def record_a_run() -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps({"settings": {}}), encoding="utf-8")


def begin_a_run() -> None:
    record_a_run()
    Path("run/corpus/training").mkdir(parents=True)


def train_in_python(**options: object) -> object:
    return transduce.train("s.en", "s.de", "run", **{"preset": "tiny"} | options)


@pytest.mark.parametrize(
    ("prepare", "in_python", "in_a_command", "ends"),
    [
        (
            record_a_run,
            lambda: transduce.resume("run"),
            ("train", "--out", "run", "--resume"),
            (
                "or start another run from the run's model.",
                "or start another run from the run's model by `transduce train "
                "--from`.",
            ),
        ),
        (
            begin_a_run,
            train_in_python,
            ("train", "--preset", "tiny", *FILES),
            (
                "; resume that run, choose another folder, or overwrite it.",
                "; resume that run by `transduce train --resume`, choose another "
                "folder, or overwrite it with --force.",
            ),
        ),
        (
            lambda: None,
            lambda: train_in_python(preset="adapt"),
            ("train", "--preset", "adapt", *FILES),
            (
                "; name the model to start from, or choose another preset.",
                "; name the model to start from (`transduce train --from`), or choose "
                "another preset.",
            ),
        ),
        (
            lambda: None,
            lambda: train_in_python(settings={"stages": [{}]}),
            ("train", "--preset", "tiny", "--set", "stages=[{}]", *FILES),
            (
                "; list the corpora with their names in `corpora`.",
                "; list the corpora with their names in `corpora`, or by `transduce "
                "train --corpus`.",
            ),
        ),
    ],
    ids=["a run without text", "a folder that is used", "no start", "no corpora"],
)
def test_an_error_reads_right_in_python_and_in_a_command(
    prepare: Callable[[], None],
    in_python: Callable[[], object],
    in_a_command: tuple[str, ...],
    ends: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare()
    with pytest.raises(TransduceError) as raised:
        in_python()
    assert "--" not in str(raised.value)
    with pytest.raises(SystemExit):
        main(in_a_command)
    printed = " ".join(capsys.readouterr().err.split())
    assert str(raised.value).endswith(ends[0])
    assert printed.endswith(ends[1])


def test_an_option_in_the_quoted_message_of_another_command_is_not_repeated() -> None:
    for remedy, option in OPTIONS_OF_REMEDIES.items():
        error = TransduceError(f"base-seed1 failed: {remedy}. Or {remedy}{option}.")
        expected = f"base-seed1 failed: {remedy}{option}. Or {remedy}{option}."
        assert error_sentence(error) == expected


def test_each_remedy_names_an_option_of_training() -> None:
    parameters = {name.strip("_") for name in inspect.signature(train).parameters}
    for remedy, option in OPTIONS_OF_REMEDIES.items():
        [name] = re.findall(r"--([a-z]+)", option)
        assert name in parameters
        # An option is added once, whatever the others are.
        assert [remedy in other for other in OPTIONS_OF_REMEDIES].count(True) == 1
