"""Sentences shared out among processes, each with one thread and batches of its own.

Two such processes do more than one with two threads: no product waits for another
thread, and while one runs Python, the other multiplies.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import cast

import torch

from transduce.decoding.search import Hypothesis
from transduce.decoding.streaming.refilled_batch import Begin, search_all
from transduce.errors import TransduceError

MIN_SHARE = 8
"""Sentences for which a process of their own pays."""

Found = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses."""


def search_shared(
    lengths: Sequence[int], room: int, begin: Begin, num_processes: int
) -> Iterator[Found]:
    """As `search_all`, by at most so many processes, each with as much room.

    They are copies of this one, made for this call, so that they have its models at no
    cost. `TransduceError` if one of them is killed.
    """
    num_shares = min(num_processes, len(lengths) // MIN_SHARE)
    if num_shares < 2:
        yield from search_all(lengths, room, begin)
        return
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(
                _Process(
                    partial(_search_share, order[i::num_shares], lengths, room, begin)
                )
            )
            for i in range(num_shares)
        ]
        yield from _received(connections)


def _search_share(
    share: list[int], lengths: Sequence[int], room: int, begin: Begin
) -> Iterator[Found]:
    found = search_all(
        [lengths[i] for i in share],
        room,
        lambda numbers: begin([share[n] for n in numbers]),
    )
    for n, hypotheses in found:
        yield share[n], hypotheses


class _Process:
    """A copy of this process that searches until the `with` block ends."""

    def __init__(self, search: Callable[[], Iterator[Found]]) -> None:
        self._search = search

    def __enter__(self) -> Connection:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_send_all, args=(self._search, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._connection.close()


def _send_all(search: Callable[[], Iterator[Found]], connection: Connection) -> None:
    # Ctrl-C reaches all processes; the parent is the one to end them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with suppress(BrokenPipeError):  # the parent was killed
        try:
            for found in search():
                connection.send(found)
            connection.send(None)
        except Exception as error:  # for the parent, that waits
            connection.send(error)


def _received(connections: list[Connection]) -> Iterator[Found]:
    busy = list(connections)
    while busy:
        for connection in cast(list[Connection], wait(busy)):
            try:
                found = connection.recv()
            except EOFError:
                raise TransduceError("killed") from None
            if isinstance(found, Exception):
                raise found
            if found is None:
                busy.remove(connection)
            else:
                yield found
