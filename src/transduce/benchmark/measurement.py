"""Processes that work by turns: while one does its piece of work, the others sleep.

By turns, all meet the same machine, whatever else it does meanwhile. Each in its own
process, all have their memory to themselves, and its peak is their own.
"""

import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from transduce.device import Hardware, peak_memory, used_memory
from transduce.errors import TransduceError
from transduce.interruption import end_with_parent
from transduce.machine import describe_processor, memory_of_children

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where something was measured, and with what."""

    processor: str
    accelerator: str | None
    num_threads: int
    """Of one matrix product on the processor."""
    versions: dict[str, str]
    """Of Python and of the packages that are installed."""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items())
        accelerator = f", {self.accelerator}" if self.accelerator else ""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{self.processor}, {threads}{accelerator}; {versions}"


def describe_machine(packages: tuple[str, ...], device: torch.device) -> Machine:
    """This machine, and those of the packages that it has."""
    versions = {"Python": platform.python_version()}
    for package in packages:
        if (found := installed_version(package)) is not None:
            versions[package] = found
    is_cuda = device.type == "cuda"
    return Machine(
        processor=describe_processor(),
        accelerator=torch.cuda.get_device_name(device) if is_cuda else None,
        num_threads=torch.get_num_threads(),
        versions=versions,
    )


def installed_version(package: str) -> str | None:
    """The version of a package, or none if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


FIRST_SIZE, LAST_SIZE = 1024, 16_384
LONG_S = 0.1
"""A product that takes this long keeps every core busy; larger ones gain nothing."""
REPEATS = 3


def take_turns(hardware: Hardware, turns: Turns[float]) -> None:
    """Measure the rate at every turn."""
    turns.begin()
    while True:
        turns.done(matrix_rate(hardware))


def matrix_rate(hardware: Hardware) -> float:
    """FLOP/s of square products, the best of several sizes, in the hardware's type."""
    size, best = FIRST_SIZE, 0.0
    while True:
        seconds = _fastest_product(size, hardware)
        best = max(best, 2 * size**3 / seconds)
        if seconds > LONG_S or size >= LAST_SIZE:
            return best
        size *= 2


def _fastest_product(size: int, hardware: Hardware) -> float:
    """Seconds of the fastest of several."""
    left, right = (
        torch.randn(size, size, dtype=hardware.dtype, device=hardware.device)
        for _ in range(2)
    )
    return min(_product_seconds(left, right) for _ in range(REPEATS))


def _product_seconds(left: Tensor, right: Tensor) -> float:
    _finish(left)
    started = time.perf_counter()
    torch.mm(left, right)
    _finish(left)
    return time.perf_counter() - started


def _finish(x: Tensor) -> None:
    """Wait for what a device was told to do and is still doing."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
