"""Sentences shared out among processes, each with one thread and its own batches.

Two such processes do more than one with two threads: while one is in Python, the other
multiplies, and no thread waits for another one at each product.
"""

import gc
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, Pipe, wait
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar, cast

from transduce.decoding.search import Decoding, Hypothesis
from transduce.decoding.streaming import (
    StepRows,
    alike,
    mixed,
    num_shares,
    search_in_steps,
)
from transduce.errors import ConfigError, RequestError
from transduce.interruption import end_with_parent, terminations
from transduce.machine import num_cores, num_threads, use_threads

Searcher = TypeVar("Searcher")
Sentence = TypeVar("Sentence")

MAX_PROCESSES = 16
"""Processes at most by default, as each takes some hundred megabytes; a greater number
must not exceed the cores."""
MOMENT_S = 0.02
"""Between two messages of a copy, as each interrupts the search of another."""
WATCH_S = 0.05
"""Seconds between two calls of `on_step` while processes search."""
FIRST_FILE = 3
"""After those of standard input, output and error."""

Found = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses."""


Beginning = Callable[[Searcher, list[Sentence]], Decoding]
"""Reads sentences, and begins to search.

A function of a module or class, or a partial one: so it can be told to another process,
which has a searcher of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(Generic[Searcher, Sentence]):
    """What is searched for, and how."""

    sentences: Sequence[Sentence]
    lengths: Sequence[int]
    """Of the sources, in tokens."""
    room: int
    """Source positions of a batch."""
    step_rows: StepRows
    begin: Beginning[Searcher, Sentence]
    least_steps: int = 0
    """That any sentence takes; else it is likely to take as many as its source."""

    def found(
        self, searcher: Searcher, on_step: Callable[[], object] | None = None
    ) -> Iterator[list[Found]]:
        """Yield the results of sentences soon after they are done, in groups.

        `on_step` is called between steps, and what it raises ends the search.
        """
        return search_in_steps(
            self.lengths,
            self.room,
            lambda numbers: self.begin(searcher, [self.sentences[i] for i in numbers]),
            on_step,
        )

    def of(self, numbers: Sequence[int]) -> "SearchTask[Searcher, Sentence]":
        """The same with some of the sentences."""
        return SearchTask(
            sentences=[self.sentences[i] for i in numbers],
            lengths=[self.lengths[i] for i in numbers],
            room=self.room,
            step_rows=self.step_rows,
            begin=self.begin,
            least_steps=self.least_steps,
        )

    def shares(self, most: int) -> list[list[int]]:
        """The sentences' numbers in shares that take about as long."""
        number = num_shares(len(self.sentences), most)
        if number == 1:
            return [list(range(len(self.sentences)))]
        steps = [max(length, self.least_steps, 1) for length in self.lengths]
        if sum(self.lengths) <= self.room * number:
            shares = alike(steps, self.step_rows, number)
            if all(map(self._is_one_batch, shares)):
                return shares
        return mixed(steps, self.step_rows, number)

    def _is_one_batch(self, numbers: Sequence[int]) -> bool:
        return len(numbers) * max(self.lengths[i] for i in numbers) <= self.room


def default_processes(device: str) -> int:
    """One for each thread that PyTorch would use, sixteen at most; else one alone."""
    if not _can_fork(device):
        return 1
    return min(num_threads(), MAX_PROCESSES)


def _can_fork(device: str) -> bool:
    """A process with a GPU, or with macOS's libraries, cannot be copied."""
    return sys.platform == "linux" and device == "cpu"


class SearchProcesses(Generic[Searcher]):
    """A searcher and copies of this process, which share out what is searched for.

    The copies have the searcher's models in the same memory, and one thread each, since
    after a fork there can be no more. They end with this object, or with this process.
    """

    def __init__(self, searcher: Searcher, number: int, device: str) -> None:
        """`ConfigError` if there are to be none, `RequestError` if copies cannot be."""
        if number < 1:
            raise ConfigError(
                f"The number of processes must be at least 1, but is {number}."
            )
        if number > (most := max(num_cores() or 1, MAX_PROCESSES)):
            raise ConfigError(
                f"The number of processes must be at most {most} on this machine, but "
                f"is {number:,}; more processes than cores slow each other down."
            )
        if number > 1 and not _can_fork(device):
            raise RequestError(
                "Only under Linux and on a CPU can several processes search, but "
                f"{number} are asked for on {sys.platform} and {device}."
            )
        self._searcher = searcher
        self._number = number
        self._idle: list[_Copy] = []
        self._is_free = Lock()
        self._are_outdated = False
        self._fill(number if number > 1 else 0)

    def found(
        self,
        task: SearchTask[Searcher, Any],
        on_step: Callable[[], object] | None = None,
    ) -> Iterator[Found]:
        """Of each sentence, as soon as it is done.

        Here alone if there are few sentences, or while the copies are at another task.
        What a copy leaves undone because it is killed is done here, with a warning.
        `on_step` is called between steps, and what it raises ends the search.
        """
        shares = task.shares(self._number)
        if len(shares) == 1 or not self._is_free.acquire(blocking=False):
            yield from chain.from_iterable(task.found(self._searcher, on_step))
            return
        yield from self._found(task, shares, on_step)

    def close(self) -> None:
        """End the copies, once they are idle; a later call that needs some has others.

        These have what this process has by then.
        """
        self._are_outdated = True
        self._end_if_free()

    def _end_if_free(self) -> None:
        """End outdated copies, unless they are at a task; that does it when it ends."""
        if self._are_outdated and self._is_free.acquire(blocking=False):
            try:
                self._end_outdated()
            finally:
                self._is_free.release()

    def _end_outdated(self) -> None:
        if self._are_outdated:
            self._are_outdated = False
            while self._idle:
                self._idle.pop().end()

    def _found(
        self,
        task: SearchTask[Searcher, Any],
        shares: list[list[int]],
        on_step: Callable[[], object] | None,
    ) -> Iterator[Found]:
        busy: dict[Connection, _Copy] = {}
        try:
            self._end_outdated()
            self._fill(len(shares))
            for share in shares:
                copy = self._idle.pop()
                busy[copy.connection] = copy
                copy.begin(task, share)
            while busy:
                for connection in _ready(busy, on_step):
                    try:
                        found = busy[connection].receive()
                    except EOFError:
                        yield from self._undone(task, busy.pop(connection))
                        continue
                    # Before it is put out, as nobody may ask for what comes after.
                    if busy[connection].is_done:
                        self._idle.append(busy.pop(connection))
                    yield from found
        finally:
            # One that is still at it, since nobody wants the rest, would be in the way.
            try:
                for copy in busy.values():
                    copy.end()
            finally:
                self._is_free.release()
            self._end_if_free()

    def _undone(
        self, task: SearchTask[Searcher, Any], killed: "_Copy"
    ) -> Iterator[Found]:
        killed.end()
        warnings.warn(
            "A process that searches was killed, as happens when memory runs out; its "
            "sentences are searched for by the first process.",
            RuntimeWarning,
            stacklevel=2,
        )
        undone = sorted(killed.missing)
        for found in task.of(undone).found(self._searcher):
            yield from ((undone[i], hypotheses) for i, hypotheses in found)

    def _fill(self, number: int) -> None:
        for copy in [each for each in self._idle if not each.is_there]:
            # Killed while it was idle, or of a process that this one is a fork of.
            self._idle.remove(copy)
            copy.end()
        while len(self._idle) < number:
            self._idle.append(_Copy(self._searcher))


def _ready(
    busy: Iterable[Connection], on_step: Callable[[], object] | None
) -> list[Connection]:
    """Connections with something to receive; with `on_step` none after a while."""
    if on_step is not None:
        on_step()
    return cast(
        list[Connection], wait(list(busy), None if on_step is None else WATCH_S)
    )


class _Copy:
    """A copy of this process that searches when it is told to."""

    def __init__(self, searcher: object) -> None:
        """`RequestError` if the system allows no further process."""
        self.connection, theirs = Pipe()
        self._parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError as error:
            raise RequestError(
                "A process that searches must be started, but the system allows none "
                f"({error.strerror}); ask for fewer: --processes 1"
            ) from None
        if self._pid == 0:
            _be_copy(searcher, theirs, self._parent)
        theirs.close()
        self.end = weakref.finalize(
            self, _end, self._parent, self._pid, self.connection
        )
        """Has it end, once; also when this is forgotten."""
        self.missing: set[int] = set()
        """Sentences that it was told of and has not found anything for."""

    @property
    def is_there(self) -> bool:
        """Whether it lives, and is one of this process."""
        if os.getpid() != self._parent:
            return False
        return (
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        )

    @property
    def is_done(self) -> bool:
        return not self.missing

    def begin(self, task: SearchTask[Any, Any], numbers: list[int]) -> None:
        """Have it search for some of the sentences."""
        self._numbers, self.missing = numbers, set(numbers)
        with suppress(OSError):  # it was killed, and `receive` says so
            self.connection.send(task.of(numbers))

    def receive(self) -> list[Found]:
        """The next that are found; `EOFError` if it was killed."""
        try:
            found: list[Found] | Exception = self.connection.recv()
        except OSError:
            raise EOFError from None
        if isinstance(found, Exception):
            raise found
        numbered = [(self._numbers[i], hypotheses) for i, hypotheses in found]
        self.missing.difference_update(number for number, _ in numbered)
        return numbered


def _end(parent: int, pid: int, connection: Connection) -> None:
    connection.close()
    if os.getpid() == parent:  # else it is the copy of another
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # it has nothing to lose
            os.waitpid(pid, 0)


def _be_copy(searcher: object, connection: Connection, parent: int) -> NoReturn:
    """What the copy does instead of what this process goes on with."""
    try:
        # Signals reach all processes of a group; the first one is to end the others.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in terminations():
            signal.signal(number, signal.SIG_IGN)
        # The kernel's parent-death signal would also come when only the thread that
        # began this process ends.
        end_with_parent(parent, signal.SIGKILL)
        # Else one that is given a task may have the processor at once, and keep it,
        # while the first process is about to give the next one its task.
        with suppress(OSError):  # where the system forbids it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not as the user chose
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _let_go_of_files(connection.fileno())
        use_threads(1)
        gc.freeze()  # what there is stays, and need not be looked through again
        with suppress(EOFError, OSError):  # the first process has gone
            _search(searcher, connection)
    finally:
        os._exit(0)  # neither flush nor tidy up what is that of the first process


def _let_go_of_files(kept: int) -> None:
    """Close sockets, pipes and files: what the first process closes is to be closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(2):
        os.dup2(null, standard)
    os.closerange(FIRST_FILE, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _search(searcher: object, connection: Connection) -> None:
    while True:
        for each in _messages(connection.recv().found(searcher)):
            connection.send(each)


def _messages(found: Iterator[list[Found]]) -> Iterator[list[Found] | Exception]:
    """What is found, as much together as comes in a moment; what it fails by."""
    held: list[Found] = []
    told = time.monotonic()
    try:
        for each in found:
            held += each
            if held and time.monotonic() - told >= MOMENT_S:
                yield held
                held, told = [], time.monotonic()
    except Exception as error:  # for the process that waits
        if held:
            yield held
        error.add_note(traceback.format_exc())
        yield error
        return
    if held:
        yield held
