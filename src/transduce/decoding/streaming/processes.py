"""Sentences shared out among processes, each with one thread and its own batches.

Two such processes do more than one with two threads: while one is in Python, the other
multiplies, and no thread waits for another one at each product.
"""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import torch

from transduce.decoding.search import Decoding, Hypothesis
from transduce.decoding.streaming.refilled_batch import search_all
from transduce.errors import ConfigError, RequestError, TransduceError

Searcher = TypeVar("Searcher")
Sentence = TypeVar("Sentence")

MIN_SHARE = 8
"""Sentences for which a process of their own pays."""
MAX_PROCESSES = 16
"""By default: each has some hundred megabytes of its own."""

Found = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses."""


Begin = Callable[[Searcher, list[Sentence]], Decoding]
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
    begin: Begin[Searcher, Sentence]

    def found(self, searcher: Searcher) -> Iterator[Found]:
        """Of each sentence, as soon as it is done."""
        return search_all(
            self.lengths,
            self.room,
            lambda numbers: self.begin(searcher, [self.sentences[i] for i in numbers]),
        )

    def of(self, numbers: Sequence[int]) -> "SearchTask[Searcher, Sentence]":
        """The same with some of the sentences."""
        return SearchTask(
            sentences=[self.sentences[i] for i in numbers],
            lengths=[self.lengths[i] for i in numbers],
            room=self.room,
            begin=self.begin,
        )

    def shares(self, most: int) -> list[list[int]]:
        """The sentences' numbers in equal shares, each with short and long ones."""
        count = max(min(most, len(self.sentences) // MIN_SHARE), 1)
        order = sorted(range(len(self.sentences)), key=self.lengths.__getitem__)
        return [order[i::count] for i in range(count)]


def default_processes(device: torch.device) -> int:
    """One for each thread that PyTorch would use, where that is possible."""
    if not _can_fork(device):
        return 1
    return min(torch.get_num_threads(), MAX_PROCESSES)


def _can_fork(device: torch.device) -> bool:
    """A process with a GPU, or with macOS's libraries, cannot be copied."""
    return sys.platform == "linux" and device.type == "cpu"


class SearchProcesses(Generic[Searcher]):
    """A searcher and copies of this process, which share out what is searched for.

    The copies have the searcher's models in the same memory, and end with this process.
    """

    def __init__(self, searcher: Searcher, number: int, device: torch.device) -> None:
        """`ConfigError` if there are to be none, `RequestError` if copies cannot be."""
        if number < 1:
            raise ConfigError(
                f"The number of processes must be at least 1, but is {number}."
            )
        if number > 1 and not _can_fork(device):
            raise RequestError(
                "Only under Linux and on a CPU can several processes search, but "
                f"{number} are asked for on {sys.platform} and {device.type}."
            )
        self._searcher = searcher
        self._number = number
        self._idle: list[_Copy] = []
        self._is_free = Lock()
        self._fill(number if number > 1 else 0)

    def found(self, task: SearchTask[Searcher, Any]) -> Iterator[Found]:
        """Of each sentence, as soon as it is done.

        `TransduceError` if one of the processes is killed; a later call has another.
        Here alone if there are few sentences, or while the copies are at another task.
        """
        shares = task.shares(self._number)
        if len(shares) == 1 or not self._is_free.acquire(blocking=False):
            yield from task.found(self._searcher)
            return
        try:
            yield from self._found(task, shares)
        finally:
            self._is_free.release()

    def close(self) -> None:
        """End the copies; a later call that needs some has others."""
        while self._idle:
            self._idle.pop().end()

    def _found(
        self, task: SearchTask[Searcher, Any], shares: list[list[int]]
    ) -> Iterator[Found]:
        self._fill(len(shares))
        busy: dict[Connection, _Copy] = {}
        try:
            for share in shares:
                copy = self._idle.pop()
                busy[copy.connection] = copy
                copy.begin(share, task.of(share))
            while busy:
                for connection in cast(list[Connection], wait(list(busy))):
                    found = busy[connection].receive()
                    # Before it is put out, as nobody may ask for what comes after.
                    if busy[connection].is_done:
                        self._idle.append(busy.pop(connection))
                    yield found
        finally:
            # One that is still at it, since nobody wants the rest, would be in the way.
            for copy in busy.values():
                copy.end()

    def _fill(self, number: int) -> None:
        while len(self._idle) < number:
            self._idle.append(_Copy(self._searcher))


class _Copy:
    """A copy of this process that searches when it is told to."""

    def __init__(self, searcher: object) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_search, args=(searcher, self.connection, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._numbers: list[int] = []
        self._missing = 0

    @property
    def is_done(self) -> bool:
        return not self._missing

    def begin(self, numbers: list[int], task: SearchTask[Any, Any]) -> None:
        """Have it search for sentences, which have these numbers here."""
        self._numbers, self._missing = numbers, len(numbers)
        with suppress(OSError):  # it was killed, and `receive` says so
            self.connection.send(task)

    def receive(self) -> Found:
        """The next that is found."""
        try:
            found: Found | Exception = self.connection.recv()
        except (EOFError, OSError):
            self.end()
            raise TransduceError(
                "A process that searches must not end by itself, but did, with exit "
                f"code {self._process.exitcode}; if memory ran out, ask for fewer "
                "processes."
            ) from None
        if isinstance(found, Exception):
            raise found
        self._missing -= 1
        number, hypotheses = found
        return self._numbers[number], hypotheses

    def end(self) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.join()
        self.connection.close()


def _search(searcher: object, parents: Connection, connection: Connection) -> None:
    parents.close()  # else the line would not end with the parent
    # Ctrl-C reaches all processes; the parent is the one to end them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):  # the parent has gone
        while True:
            task = connection.recv()
            try:
                for found in task.found(searcher):
                    connection.send(found)
            except OSError:
                raise
            except Exception as error:  # for the parent, that waits
                connection.send(error)
