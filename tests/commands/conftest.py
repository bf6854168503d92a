"""Fixtures that call commands in this process and capture output and exit code."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Protocol

import pytest
import torch

from fork_server import MODULES, ForkServer, fork_server
from transduce.analysis import figures
from transduce.analysis.figures import draw_learning_curve
from transduce.checkpoint import Checkpoint, save_model
from transduce.cli import main
from transduce.model.transformer import Transformer
from transduce.training import trainer
from transduce.training.memory import find_micro_batch


@pytest.fixture(scope="module", autouse=True)
def _no_learning_curves(no_learning_curves: None) -> None:
    """Draw no learning curves in this process; tests of figures draw each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str


class Command(Protocol):
    def __call__(self, *arguments: object, stdin: bytes = b"") -> Outcome: ...


def call(*arguments: object, stdin: bytes = b"") -> Outcome:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    err, code, before = io.StringIO(), 0, sys.stdin
    with tempfile.TemporaryFile("w+") as file:
        file.buffer.write(stdin)
        file.seek(0)
        sys.stdin = file
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            sys.stdin = before
    out.flush()
    written = out.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined] # BytesIO
    return Outcome(code=code, out=written, err=without_emulation(err.getvalue()))


def without_emulation(said: str) -> str:
    """Leave out the warning of emulated bf16, so that tests pass on all processors."""
    emulates = "Warning: The processor has no instructions for bf16"
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(emulates))


@pytest.fixture
def command() -> Command:
    """Call `transduce` with any outcome."""
    return call


@pytest.fixture
def succeeds() -> Callable[..., str]:
    """Call `transduce`, which must succeed; return its standard output."""

    def run(*arguments: object, stdin: bytes = b"") -> str:
        outcome = call(*arguments, stdin=stdin)
        assert outcome.err == ""
        assert outcome.code == 0
        return outcome.out

    return run


@pytest.fixture
def refuses() -> Callable[..., str]:
    """Call `transduce`, which must refuse in one sentence; return the sentence."""

    def run(*arguments: object, stdin: bytes = b"") -> str:
        outcome = call(*arguments, stdin=stdin)
        assert outcome.code == 2
        assert re.fullmatch(r"transduce: [^\n]+\n", outcome.err), outcome.err
        return outcome.err.removeprefix("transduce: ").removesuffix("\n")

    return run


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Process that has imported what most commands need, and forks for each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    modules = (*MODULES, "transduce.cli.train", "transduce.analysis.figures")
    with fork_server(environment, modules) as server:
        yield server


@pytest.fixture
def forked_runs(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an experiment fork for its runs, which come one after the other.

    Each would import its modules anew otherwise, which takes longer than its training.
    """

    class Ended(subprocess.Popen[bytes]):
        """Stand-in for a process, which has ended."""

        def __init__(self, command: list[str], *, stdout: IO[bytes], **_: Any) -> None:
            words = command[command.index("transduce") + 1 :]
            log = Path(stdout.name)
            done = forks.command(*words, output=log, errors=log)
            self.returncode = done.returncode

        def poll(self) -> int:
            return self.returncode

    replaced = SimpleNamespace(**{**vars(subprocess), "Popen": Ended})
    monkeypatch.setattr("transduce.experiments.experiment.subprocess", replaced)


SLOW = "training.learning_rate_scale=0.001"


@pytest.fixture(scope="session")
def run(
    corpus_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Run of the tiny preset with a dev corpus. Copy it before changing it.

    Its learning rate is so low that all checkpoints and their average translate alike.
    Its trial is made and its learning curve drawn, whichever module is the first to use
    it.
    """
    source, target = corpus_files
    out = tmp_path_factory.mktemp("commands") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_learning_curve", draw_learning_curve)
        patch.setattr(trainer, "find_micro_batch", find_micro_batch)
        outcome = call(
            *("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu"),
            *("--source", source, "--target", target),
            *("--dev-source", source, "--dev-target", target, "--out", out),
            *("--set", SLOW),
        )
    assert outcome.code == 0, outcome.err
    return out


@pytest.fixture(scope="session")
def model(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Model that has learned some of its corpus. Copy the folder before changing it."""
    folder = tmp_path_factory.mktemp("model") / "model"
    save_model(trained_checkpoint, folder)
    return folder


@pytest.fixture(scope="session")
def other_model(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Untrained model with the vocabulary of `model`, for ensembles of both."""
    folder = tmp_path_factory.mktemp("other_model") / "model"
    torch.manual_seed(1)
    weights = Transformer(trained_checkpoint.config).state_dict()
    save_model(replace(trained_checkpoint, weights=weights), folder)
    return folder


@pytest.fixture(scope="session")
def parsing_model(
    parsing_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder of an untrained parser."""
    folder = tmp_path_factory.mktemp("parsing_model") / "model"
    save_model(parsing_checkpoint, folder)
    return folder
