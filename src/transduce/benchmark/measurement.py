"""Comparison of systems in turns: while one works, the others sleep.

Load of the machine then affects all systems alike. Each has a process of its own, so
that its peak memory is its own.
"""

import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

import transduce
from transduce.device import Hardware, peak_memory, used_memory
from transduce.errors import TransduceError, counted
from transduce.machine import (
    BUSY_LOAD,
    describe_processor,
    memory_of_children,
    respect_cpu_quota,
    threads_limit,
)
from transduce.signals import end_with_parent

Outcome = TypeVar("Outcome")
Name = TypeVar("Name")

OPENMP_SPINS = "300000"
"""Number of spins of GCC's OpenMP if no variable sets another."""
MAX_ROUNDS = 10_000
"""Largest number of rounds, far more than a median needs."""
NAME_WIDTH = 34
"""Width of the column of names in a table, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Generic[Outcome]):
    """Result, time and memory of one turn."""

    outcome: Outcome
    seconds: float
    peak_bytes: int
    """Peak memory of the process until now."""


class Turns(Generic[Outcome]):
    """Turns of a worker process, given by the parent process through a pipe."""

    def __init__(self, connection: Connection, device: torch.device) -> None:
        self._connection = connection
        self._device = device
        self._started = 0.0
        self._used_before = used_memory(device)
        self._grown = 0
        """Growth of the GPU's memory use during this process's turns; PyTorch counts
        only its own allocations."""
        self._child_bytes = 0
        """Peak of the private memory of this process's child processes."""

    def begin(self) -> None:
        """Report that the system is ready, and wait for the first turn."""
        self._count_memory()
        self._connection.send(None)
        self._wait()

    def done(self, outcome: Outcome) -> None:
        """Report the result of this turn, and wait for the next."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._started
        self._count_memory()
        turn = Turn(
            outcome=outcome,
            seconds=seconds,
            peak_bytes=max(peak_memory(self._device), self._grown) + self._child_bytes,
        )
        self._connection.send(turn)
        self._wait()

    def _wait(self) -> None:
        """Wait for the next turn; `EOFError` if there is none."""
        self._connection.recv()
        self._used_before = used_memory(self._device)
        self._started = time.perf_counter()

    def _count_memory(self) -> None:
        self._grown += used_memory(self._device) - self._used_before
        if self._device.type == "cpu":  # child processes do not use the GPU
            self._child_bytes = max(self._child_bytes, memory_of_children())


def order_of_turns(names: Sequence[Name], round_number: int) -> list[Name]:
    """Rotate the order with each round, so that each system is first as often."""
    first = round_number % len(names)
    return [*names[first:], *names[:first]]


def within_quota(work: Callable[[Turns[Outcome]], None], turns: Turns[Outcome]) -> None:
    """Work on as many threads as the CPU quota allows, as `transduce` does.

    A process does not inherit the number from one that has loaded PyTorch before.
    """
    respect_cpu_quota()
    work(turns)


def peer_environment() -> dict[str, str]:
    """Return variables that undo what `import transduce` sets for OpenMP.

    With them, other libraries run with the settings that they have without us.
    """
    return {"GOMP_SPINCOUNT": OPENMP_SPINS} if transduce.SHORTENS_SPINS else {}


@contextmanager
def _with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, which processes started in the block inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Worker(Generic[Outcome]):
    """Worker process of one system; it ends with the `with` block."""

    def __init__(
        self,
        name: str,
        work: Callable[[Turns[Outcome]], None],
        device: torch.device,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process, with the variables of `environment` set."""
        self._name = name
        # Spawned, as the memory of a forked process includes this one's.
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, work, device, os.getpid()), daemon=True
        )
        with _with_environment(environment or {}):
            self._process.start()
        theirs.close()

    def __enter__(self) -> "Worker[Outcome]":
        """Wait until it is ready, so that workers prepare one after the other."""
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
        """Give the process one turn; `TransduceError` if it ends."""
        with suppress(OSError):  # the process has ended; `_receive` raises
            self._connection.send(None)
        turn: Turn[Outcome] = self._receive()
        return turn

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._end()
            raise TransduceError(
                f"The process of {self._name} ended with exit code "
                f"{self._process.exitcode} during the comparison; its output above "
                "has the reason, or memory ran out if there is none."
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
    # Ctrl-C reaches all processes, but only the parent reports it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)  # nothing to save
    with suppress(EOFError, BrokenPipeError):
        try:
            work(Turns(connection, device))
        except TransduceError as error:
            raise SystemExit(str(error)) from None  # one sentence, and exit code 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and software of a measurement."""

    processor: str
    accelerator: str | None
    num_threads: int
    """Threads of a matrix product on the processor."""
    versions: dict[str, str]
    """Versions of Python and of the installed packages."""
    threads_limit: str | None = None
    """Limit of the threads, such as a CPU quota; None: the machine's cores."""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items())
        accelerator = f", {self.accelerator}" if self.accelerator else ""
        limit = f" ({self.threads_limit})" if self.threads_limit else ""
        threads = counted(self.num_threads, "thread") + limit
        return f"{self.processor}, {threads}{accelerator}; {versions}"


def describe_machine(packages: tuple[str, ...], device: torch.device) -> Machine:
    """Describe this machine, with the versions of those packages that are installed."""
    versions = {"Python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    is_cuda = device.type == "cuda"
    return Machine(
        processor=describe_processor(),
        accelerator=torch.cuda.get_device_name(device) if is_cuda else None,
        num_threads=torch.get_num_threads(),
        threads_limit=threads_limit(),
        versions=versions,
    )


def load_warning(load: float) -> Iterator[str]:
    """Lines about a machine that was busy during a comparison, if it was."""
    if load > BUSY_LOAD:
        yield ""
        yield (
            f"Other programs were running (load {load:.1f}): the speeds are too low, "
            "and the ratios approximate."
        )


SIZES = (1024, 2048, 4096, 8192, 16_384)
"""Sizes of square matrices for the matrix rate."""
LONG_S = 0.1
"""Seconds of a product that keeps every core busy; larger ones are no faster."""
REPEATS = 3


def measure_matrix_rates(hardware: Hardware, turns: Turns[float]) -> None:
    """Measure the matrix rate in every turn."""
    turns.begin()
    while True:
        turns.done(matrix_rate(hardware))


def matrix_rate(
    hardware: Hardware, sizes: Sequence[int] = SIZES, long_s: float = LONG_S
) -> float:
    """Best FLOP/s of square matrix products, in the device's type.

    Sizes after a product of more than `long_s` seconds are left out.
    """
    best = 0.0
    for size in sizes:
        seconds = _fastest_product(size, hardware)
        best = max(best, 2 * size**3 / seconds)
        if seconds > long_s:
            break
    return best


def _fastest_product(size: int, hardware: Hardware) -> float:
    """Seconds of the fastest of several products."""
    left, right = (
        torch.randn(size, size, dtype=hardware.dtype, device=hardware.device)
        for _ in range(2)
    )

    def finished_at() -> float:
        if hardware.device.type == "cuda":  # products run behind the Python code
            torch.cuda.synchronize(hardware.device)
        return time.perf_counter()

    fastest = math.inf
    for _ in range(REPEATS):
        started = finished_at()
        torch.mm(left, right)
        fastest = min(fastest, finished_at() - started)
    return fastest
