"""Fixtures: turns without processes, and a small task."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
import torch

from transduce.benchmark.measurement import Turn, Turns
from transduce.benchmark.training import TrainingTask
from transduce.device import Hardware
from transduce.experiments.presets import PRESETS


class Line(Connection):
    """Connection that gives a number of turns and then closes."""

    _handle = None  # no open file

    def __init__(self, num_turns: int) -> None:
        self.turns_left = num_turns
        self.received: list[object] = []

    def recv(self) -> None:
        if self.turns_left == 0:
            raise EOFError
        self.turns_left -= 1

    def send(self, message: object) -> None:
        self.received.append(message)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of systems, which would take most of their time to import.

    Tests of `Worker`, and of the command, spawn them.
    """
    monkeypatch.setattr(
        "transduce.benchmark.measurement.get_context", lambda _: get_context("fork")
    )


@pytest.fixture(scope="session")
def take_all_turns() -> Callable[..., list[Turn]]:
    """Results of a number of turns, all in this process."""

    def take(work: Callable[[Turns], None], num_turns: int) -> list[Turn]:
        line = Line(num_turns)
        with suppress(EOFError):
            work(Turns(line, torch.device("cpu")))
        ready, *turns = line.received
        assert ready is None
        return turns

    return take


@pytest.fixture(scope="session")
def task(cpu: Hardware) -> TrainingTask:
    """Task of three updates of the tiny preset, without dropout."""
    tiny = PRESETS["tiny"]
    run = replace(
        tiny,
        tokenizer=replace(tiny.tokenizer, vocab_size=300),
        model=replace(tiny.model, num_layers=2, dropout=0.0),
        batching=replace(tiny.batching, batch_tokens=256),
    )
    return TrainingTask(run=run, hardware=cpu, steps=3)
