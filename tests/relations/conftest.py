import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace
from typing import IO

import pytest
import torch
from torch import nn

from transduce.cli import main
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

IN_ONE_CALL = {"d_model": 32, "d_ff": 32, "d_k": 16, "d_v": 16}
"""Model widths that the kernel of whole stacks supports."""
VARIANTS = {
    "the paper's": {},
    "widths of heads apart": {"num_heads": 3, "d_k": 5, "d_v": 7},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "fewer positions than tokens": {"positions": "learned", "max_positions": 3},
    "unscaled": {"scores": "unscaled"},
    "additive": {"scores": "additive"},
    "neighbourhood": {"neighbourhood": 1},
    "two vocabularies": {"target_vocab_size": 29},
    "a deep decoder": {"decoder_layers": 3, "activation": "silu"},
    "an output bias": {"output_bias": True},
    "layers in one call": IN_ONE_CALL,
}


@pytest.fixture(autouse=True)
def little_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small initial capacity, so that caches grow even with few short sentences."""
    monkeypatch.setattr("transduce.decoding.cache.FIRST_SLOTS", 1)
    monkeypatch.setattr("transduce.decoding.cache.STEPS_AHEAD", 4)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def model(request: pytest.FixtureRequest, tiny: ModelConfig) -> Iterator[Transformer]:
    """Model of every kind, with weights so large that errors are visible."""
    model = Transformer(replace(tiny, **request.param))
    for name, parameter in model.named_parameters():
        if not name.endswith(("embedding.weight", "positions.weight")):
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        yield model.eval()


@pytest.fixture(scope="module")
def quick_runs(no_learning_curves: None, no_type_checks: None) -> None:
    """Draw no learning curves and check no types, which takes longer than training."""


class ForkedProcess:
    """Process of a command line of `transduce` that need not import PyTorch."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stderr: IO[bytes] | None,
    ) -> None:
        self._command = command
        self._process = get_context("fork").Process(
            target=run_as_new, args=(command, env, stderr)
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if timeout is not None and self._process.is_alive():
            raise subprocess.TimeoutExpired(self._command, timeout)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run_as_new(
    command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes] | None
) -> None:
    """Run a command line with the environment, signals and streams of a new process."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if errors is not None:
        os.dup2(errors.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    main(command[command.index("transduce") + 1 :])


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a training, which import for longer than they train.

    Other tests start new ones: where they clip, are killed or belong to `torchrun`.
    """
    monkeypatch.setattr(
        "transduce.cli.launching.subprocess",
        SimpleNamespace(Popen=ForkedProcess, TimeoutExpired=subprocess.TimeoutExpired),
    )
