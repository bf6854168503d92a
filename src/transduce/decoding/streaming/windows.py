"""A stream of lines, window by window, and what is found for them in their order."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from queue import Empty, Queue
from threading import Thread
from typing import Any, Protocol, TypeVar, runtime_checkable

Line = TypeVar("Line")
Found = TypeVar("Found")

WINDOW_LINES = 2_048
"""Lines read ahead and sorted by length, so that a batch holds similar ones."""
PAUSE_S = 0.02
"""Once no line has come for so long, those that are there wait for no others."""


@runtime_checkable
class Windows(Protocol):
    """Cuts a stream into windows, none of them empty."""

    def __call__(self, lines: Iterable[Line], /) -> Iterator[list[Line]]: ...


def full_windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """As many lines as a window holds, whatever it takes to get them."""
    stream = iter(lines)
    while window := list(islice(stream, WINDOW_LINES)):
        yield window


def arriving_windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines that are there, of a stream that is still being written.

    It is read a window ahead, in a thread of its own.
    """
    arrived: Queue[Line | _End] = Queue(WINDOW_LINES)
    Thread(target=_read, args=(lines, arrived), daemon=True).start()
    while True:
        window, end = _next_window(arrived)
        if end is not None and end.error is not None:
            raise end.error
        if window:
            yield window
        if end is not None:
            return


@dataclass(frozen=True, slots=True)
class _End:
    """Of a stream, by itself or by an error."""

    error: Exception | None


def _read(lines: Iterable[Line], arrived: Queue[Line | _End]) -> None:
    try:
        for line in lines:
            arrived.put(line)
    except Exception as error:  # for the thread that waits for lines
        arrived.put(_End(error))
    else:
        arrived.put(_End(None))


def _next_window(arrived: Queue[Line | _End]) -> tuple[list[Line], _End | None]:
    """What is there, at least a line or the end."""
    window: list[Line] = []
    with suppress(Empty):
        while len(window) < WINDOW_LINES:
            line = arrived.get(timeout=PAUSE_S if window else None)
            if isinstance(line, _End):
                return window, line
            window.append(line)
    return window, None


def _not_told() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a stream is read, and who is told of how far it is."""

    windows: Windows = full_windows
    on_line: Callable[[], Any] = _not_told
    """Called for each line that is done, though others before it may not be."""
    on_step: Callable[[], Any] | None = None
    """Callback between steps of search; an exception from it ends the stream."""
    first_line: int = 0
    """Number of the stream's first line, if lines before it are done already."""

    def told(self, found: Iterable[Found]) -> Iterator[Found]:
        """The same, of lines, each told of."""
        for each in found:
            self.on_line()
            yield each


def in_order(numbered: Iterable[tuple[int, Found]]) -> Iterator[Found]:
    """What comes with its number, from 0, as soon as all before it have come."""
    early: dict[int, Found] = {}
    number = 0
    for each, found in numbered:
        early[each] = found
        while number in early:
            yield early.pop(number)
            number += 1
