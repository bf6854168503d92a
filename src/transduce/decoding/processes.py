"""Search in several processes, each with one thread and its own batches.

Two such processes are faster than one with two threads: while one runs Python code, the
other multiplies matrices, and no thread waits for another after each product. Workers
are forks, so they share the memory of the weights.
"""

import gc
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar, cast

from transduce.decoding.translations import SearchResult, SearchTask, search_in_batches
from transduce.errors import ConfigError, RequestError
from transduce.machine import num_cores, num_threads, use_threads
from transduce.processes import end_with_parent, signals_held, terminations

Searcher = TypeVar("Searcher")

MAX_PROCESSES = 16
"""Default limit of the number of processes, which take some hundred megabytes each. A
number that the user gives may be as large as the number of cores."""
MESSAGE_INTERVAL_S = 0.02
"""Least time between two messages of a worker: each interrupts another process."""
POLL_S = 0.05
"""Time between two calls of `on_step` while workers search."""
FIRST_FILE = 3
"""Number of the first file after standard input, output and error."""


def default_processes(device: str) -> int:
    """Return one process for each thread of PyTorch's default, at most 16.

    Returns 1 where processes cannot be forked: on a GPU, and except under Linux.
    """
    if not _can_fork(device):
        return 1
    return min(num_threads(), MAX_PROCESSES)


def _can_fork(device: str) -> bool:
    """Return whether forks work: not with CUDA, nor with macOS's libraries."""
    return sys.platform == "linux" and device == "cpu"


class WorkerPool(Generic[Searcher]):
    """A searcher and forks of this process, which search for shares of a task.

    Workers have one thread each, since threads do not survive a fork. They end with
    this object, or with this process.
    """

    def __init__(self, searcher: Searcher, number: int, device: str) -> None:
        """Start `number` workers, or none for 1.

        Raises `ConfigError` if the number is below 1 or too large for the machine, and
        `RequestError` if this process cannot be forked.
        """
        if number < 1:
            raise ConfigError(
                f"The number of processes must be at least 1, but is {number}."
            )
        if number > (most := max(num_cores(), MAX_PROCESSES)):
            raise ConfigError(
                f"The number of processes must be at most {most} on this machine, but "
                f"is {number:,}; more processes than cores slow each other down."
            )
        if number > 1 and not _can_fork(device):
            raise RequestError(
                "Only under Linux and on a CPU can several processes search, but "
                f"{number} are requested on {sys.platform} and {device}."
            )
        self._searcher = searcher
        self._number = number
        self._idle: list[_Worker] = []
        self._is_free = Lock()
        self._is_closed = False
        self._fill(number if number > 1 else 0)

    def search(
        self,
        task: SearchTask[Searcher, Any],
        on_step: Callable[[], object] | None = None,
    ) -> Iterator[list[SearchResult]]:
        """Yield finished sentences soon after they are done, as `search_in_batches`.

        This process searches alone if there are few sentences or the workers are busy
        with another task. It also searches for what a killed worker leaves undone, with
        a `RuntimeWarning`. An exception of `on_step` or of a worker ends the search.
        """
        shares = task.shares(self._number)
        if len(shares) == 1 or not self._is_free.acquire(blocking=False):
            yield from search_in_batches(task, self._searcher, on_step)
            return
        yield from self._search_by_workers(task, shares, on_step)

    def close(self) -> None:
        """End the workers, once they are idle; a later search starts new ones."""
        self._is_closed = True
        self._end_if_free()

    def _end_if_free(self) -> None:
        """End the workers if the pool is closed; a task in progress does it later."""
        if self._is_closed and self._is_free.acquire(blocking=False):
            try:
                self._end_if_closed()
            finally:
                self._is_free.release()

    def _end_if_closed(self) -> None:
        if self._is_closed:
            self._is_closed = False
            while self._idle:
                self._idle.pop().end()

    def _search_by_workers(
        self,
        task: SearchTask[Searcher, Any],
        shares: list[list[int]],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        busy: dict[Connection, _Worker] = {}
        try:
            self._end_if_closed()
            number = min(len(shares), self._number)
            self._fill(number)
            for share in shares[:number]:
                worker = self._idle.pop()
                busy[worker.connection] = worker
                worker.start(task, share)
            yield from self._received(task, busy, deque(shares[number:]), on_step)
        finally:
            # Workers that are still searching, for results that nobody reads, end.
            try:
                for worker in busy.values():
                    worker.end()
            finally:
                self._is_free.release()
            self._end_if_free()

    def _received(
        self,
        task: SearchTask[Searcher, Any],
        busy: dict[Connection, "_Worker"],
        waiting: deque[list[int]],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        """Yield what busy workers find; give those that are done a waiting share."""
        while busy:
            for connection in _ready(busy, on_step):
                worker = busy[connection]
                try:
                    found = worker.receive()
                except EOFError:
                    del busy[connection]
                    yield from self._undone(task, worker, on_step)
                    continue
                # Before the yield, as the caller may never ask for more.
                if worker.is_done and waiting:
                    worker.start(task, waiting.popleft())
                elif worker.is_done:
                    self._idle.append(busy.pop(connection))
                yield found
        for share in waiting:  # all workers were killed
            yield from self._search_alone(task, share, on_step)

    def _undone(
        self,
        task: SearchTask[Searcher, Any],
        killed: "_Worker",
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        killed.end()
        warnings.warn(
            "A process that searches was killed, as happens when memory runs out; its "
            "sentences are searched for by the first process.",
            RuntimeWarning,
            stacklevel=2,
        )
        yield from self._search_alone(task, sorted(killed.missing), on_step)

    def _search_alone(
        self,
        task: SearchTask[Searcher, Any],
        numbers: list[int],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        """Search for some sentences of the task in this process."""
        for found in search_in_batches(task.subset(numbers), self._searcher, on_step):
            yield [(numbers[i], hypotheses) for i, hypotheses in found]

    def _fill(self, number: int) -> None:
        for worker in [each for each in self._idle if not each.is_alive]:
            # Killed while it was idle, or started before this process was forked.
            self._idle.remove(worker)
            worker.end()
        while len(self._idle) < number:
            self._idle.append(_Worker(self._searcher))


def _ready(
    busy: Iterable[Connection], on_step: Callable[[], object] | None
) -> list[Connection]:
    """Return connections with a message; with `on_step`, none after `POLL_S`."""
    if on_step is not None:
        on_step()
    return cast(list[Connection], wait(list(busy), None if on_step is None else POLL_S))


class _Worker:
    """A fork of this process that searches for what it is sent."""

    def __init__(self, searcher: object) -> None:
        """Fork; raise `RequestError` if the system allows no further process."""
        self.connection, theirs = Pipe()
        self._parent = os.getpid()
        with signals_held():  # one that ends this process must also end the worker
            try:
                self._pid = os.fork()
            except OSError as error:
                raise RequestError(
                    "A process that searches must be started, but the system allows "
                    f"none ({error.strerror}); ask for fewer: --processes 1"
                ) from None
            if self._pid == 0:
                _run_worker(searcher, theirs, self._parent)
            self.end = weakref.finalize(
                self, _end, self._parent, self._pid, self.connection
            )
            """Ends the worker, once; also called when this object is collected."""
        theirs.close()
        self.missing: set[int] = set()
        """Numbers of the sentences without a result."""

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs and is a child of this process."""
        if os.getpid() != self._parent:
            return False
        return (
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        )

    @property
    def is_done(self) -> bool:
        return not self.missing

    def start(self, task: SearchTask[Any, Any], numbers: list[int]) -> None:
        """Send some of the sentences to the worker."""
        self._numbers, self.missing = numbers, set(numbers)
        with suppress(OSError):  # it was killed; `receive` raises then
            self.connection.send(task.subset(numbers))

    def receive(self) -> list[SearchResult]:
        """Return the next results; raise `EOFError` if the worker was killed."""
        try:
            found: list[SearchResult] | Exception = self.connection.recv()
        except OSError:
            raise EOFError from None
        if isinstance(found, Exception):
            raise found
        numbered = [(self._numbers[i], hypotheses) for i, hypotheses in found]
        self.missing.difference_update(number for number, _ in numbered)
        return numbered


def _end(parent: int, pid: int, connection: Connection) -> None:
    connection.close()
    if os.getpid() == parent:  # otherwise it is a child of another process
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # a worker has no state to save
            os.waitpid(pid, 0)


def _run_worker(searcher: object, connection: Connection, parent: int) -> NoReturn:
    """Search in the worker until the first process closes the connection."""
    try:
        # Signals reach all processes of a group; only the first one handles them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in terminations():
            signal.signal(number, signal.SIG_IGN)
        # The kernel's parent-death signal would also come when only the thread that
        # started this process ends.
        end_with_parent(parent, signal.SIGKILL)
        # Otherwise a worker that receives its task may occupy the processor at once,
        # before the first process has sent the next worker its task.
        with suppress(OSError):  # where the system forbids it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not as the user chose
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _close_files(connection.fileno())
        use_threads(1)
        gc.freeze()  # inherited objects stay, so collections need not visit them
        with suppress(EOFError, OSError):  # the first process has ended
            while True:
                task = connection.recv()
                for message in batch_messages(search_in_batches(task, searcher)):
                    connection.send(message)
    finally:
        os._exit(0)  # buffers and exit handlers belong to the first process


def _close_files(kept: int) -> None:
    """Close inherited files, so that what the first process closes is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(2):
        os.dup2(null, standard)
    os.closerange(FIRST_FILE, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def batch_messages(
    found: Iterator[list[SearchResult]], interval_s: float = MESSAGE_INTERVAL_S
) -> Iterator[list[SearchResult] | Exception]:
    """Yield results, collected for `interval_s` seconds, and the exception, if any."""
    held: list[SearchResult] = []
    sent = time.monotonic()
    try:
        for each in found:
            held += each
            if held and time.monotonic() - sent >= interval_s:
                yield held
                held, sent = [], time.monotonic()
    except Exception as error:  # raised again in the first process
        if held:
            yield held
        error.add_note(traceback.format_exc())
        yield error
        return
    if held:
        yield held
