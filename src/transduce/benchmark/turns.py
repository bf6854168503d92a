"""Processes that work by turns: while one does its piece of work, the others sleep.

By turns, all meet the same machine, whatever else it does meanwhile. Each in its own
process, all have their memory to themselves, and its peak is their own.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from transduce.device import peak_memory, used_memory
from transduce.errors import TransduceError
from transduce.interruption import end_with_parent
from transduce.machine import memory_of_children

Outcome = TypeVar("Outcome")

MOST_ROUNDS = 10_000
"""Turns of each contestant: far more than a median needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Generic[Outcome]):
    """One piece of work."""

    outcome: Outcome
    seconds: float
    peak_bytes: int
    """The most memory that its process has held until now."""


class Turns(Generic[Outcome]):
    """A working process's end of the line to the one that gives out the turns."""

    def __init__(self, connection: Connection, device: torch.device) -> None:
        self._connection = connection
        self._device = device
        self._started = 0.0
        self._used_before = used_memory(device)
        self._grown = 0
        """By what the use of a GPU has grown while this process was at work: PyTorch
        knows only of what it has allotted itself."""
        self._copies = 0
        """The most bytes that processes begun by this one have had for themselves."""

    def begin(self) -> None:
        """Say that all is ready, and sleep until the first turn."""
        self._count_memory()
        self._connection.send(None)
        self._sleep()

    def done(self, outcome: Outcome) -> None:
        """Say what came of this turn, and sleep until the next."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._started
        self._count_memory()
        turn = Turn(
            outcome=outcome,
            seconds=seconds,
            peak_bytes=max(peak_memory(self._device), self._grown) + self._copies,
        )
        self._connection.send(turn)
        self._sleep()

    def _sleep(self) -> None:
        """`EOFError` if there will be no more turns."""
        self._connection.recv()
        self._used_before = used_memory(self._device)
        self._started = time.perf_counter()

    def _count_memory(self) -> None:
        self._grown += used_memory(self._device) - self._used_before
        if self._device.type == "cpu":  # else they have none of the GPU's
            self._copies = max(self._copies, memory_of_children())


def order_of_turns(names: Sequence[str], round_number: int) -> list[str]:
    """Each comes first, and after each other one, about as often."""
    first = round_number % len(names)
    return [*names[first:], *names[:first]]


class Worker(Generic[Outcome]):
    """A process that works when it is told to, and ends with the `with` block."""

    def __init__(
        self, name: str, work: Callable[[Turns[Outcome]], None], device: torch.device
    ) -> None:
        self._name = name
        # A fresh interpreter, since a copy of this one would count its memory as well.
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, work, device, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Worker[Outcome]":
        """Wait until it is ready, so that no two workers prepare at the same time."""
        self._receive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def take_turn(self) -> Turn[Outcome]:
        """Have it do one piece of work; `TransduceError` if its process ends."""
        with suppress(OSError):  # it has ended, and `_receive` says so
            self._connection.send(None)
        turn: Turn[Outcome] = self._receive()
        return turn

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._end()
            raise TransduceError(
                f"{self._name} must take its turns, but its process ended with exit "
                f"code {self._process.exitcode}; what it wrote before says why, and if "
                "it wrote nothing, memory may have run out."
            ) from None

    def _end(self) -> None:
        self._connection.close()
        self._process.join(timeout=10)
        self._process.terminate()
        self._process.join()


def _work(
    connection: Connection,
    work: Callable[[Turns[Outcome]], None],
    device: torch.device,
    parent: int,
) -> None:
    # Ctrl-C reaches all processes; the parent is the one to say so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)  # there is nothing to save
    with suppress(EOFError, BrokenPipeError):
        work(Turns(connection, device))
