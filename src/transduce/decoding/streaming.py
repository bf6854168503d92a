"""A stream of lines, window by window, and what is found for them in their order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from queue import Empty, Queue
from threading import Thread
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from transduce.decoding.search import Decoding, Hypothesis, Sentence

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


MIN_SHARE = 8
"""Sentences for which a process of their own pays."""


class StepRows(NamedTuple):
    """What a step takes, counted in rows of its matrix products."""

    of_sentence: int
    """One for each of its hypotheses."""
    in_any_case: int
    """To read weights, and to begin."""

    def cost(self, steps: int, *, is_first: bool) -> int:
        """Of a sentence: the first, the longest, bears what all steps take."""
        return steps * (self.of_sentence + self.in_any_case * is_first)


def num_shares(num_sentences: int, most: int) -> int:
    """One at least, and none that is too small."""
    return max(min(most, num_sentences // MIN_SHARE), 1)


def mixed(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Shares of long and short sentences, by their number, from the steps of each.

    That is for many, as it does not matter if all long ones take longer than was
    thought.
    """
    shares: list[list[int]] = [[] for _ in range(number)]
    costs = [(0, i) for i in range(number)]
    for sentence in _longest_first(steps):
        cost, i = heappop(costs)
        shares[i].append(sentence)
        cost += rows.cost(steps[sentence], is_first=len(shares[i]) == 1)
        heappush(costs, (cost, i))
    return shares


def alike(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Shares of sentences that are about as long, by their number, from their steps.

    That is for those that are searched for in one batch each: as it takes as many steps
    as its longest, only one of them takes as many as the longest of all.
    """
    order = _longest_first(steps)
    lengths = [steps[sentence] for sentence in order]
    # The least that no share needs to cost more than.
    low, high = 0, sum(rows.cost(each, is_first=True) for each in lengths)
    while low < high:
        middle = (low + high) // 2
        if len(list(_cut(lengths, rows, middle))) <= number:
            high = middle
        else:
            low = middle + 1
    return [order[share] for share in _cut(lengths, rows, high)]


def _longest_first(steps: Sequence[int]) -> list[int]:
    return sorted(range(len(steps)), key=steps.__getitem__, reverse=True)


def _cut(lengths: Sequence[int], rows: StepRows, most: int) -> Iterator[slice]:
    """Shares one after another, each as large as it can be for so much."""
    begin, cost = 0, 0
    for i, steps in enumerate(lengths):
        cost += rows.cost(steps, is_first=i == begin)
        if cost > most and i > begin:
            yield slice(begin, i)
            begin, cost = i, rows.cost(steps, is_first=True)
    yield slice(begin, len(lengths))


BATCH_POSITIONS = 2_048
"""Source positions of a batch times its hypotheses, padding included: enough for the
matrix products, and what passes between them stays in a processor's caches."""
POSITION_BYTES = 2**20
"""Of a GPU's memory for each such position, logits and all: what is there for most
models several times over."""
REFILL_SHARE = 0.5
"""Of a batch's room that must be free before others join, all of it being copied."""

Begin = Callable[[list[int]], Decoding]
"""Reads the sentences of some numbers."""


def batch_positions(device: str) -> int:
    """As many as keep the device busy and have room in its memory."""
    if not device.startswith("cuda"):
        return BATCH_POSITIONS
    import torch  # which is loaded then, and is not needed otherwise

    memory = torch.cuda.get_device_properties(device).total_memory
    return max(memory // POSITION_BYTES, BATCH_POSITIONS)


def search_in_steps(
    lengths: Sequence[int],
    room: int,
    begin: Begin,
    on_step: Callable[[], object] | None = None,
) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
    """The number and the hypotheses of each sentence, soon after it is done.

    Those are together that are done by the same steps, of which some do none. The batch
    has `room` for so many positions, padding included, or for one sentence that is
    longer. The longest come first, so that few are padded much. `on_step` is called
    between steps, and what it raises ends the search.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    waiting = deque(order)
    batch = _Batch(lengths, room)
    while waiting or batch.is_live:
        if waiting and batch.has_room_for(waiting[0]):
            batch.add(batch.take(waiting), begin)
        else:
            batch.advance(batch.num_to_go_on(waiting), on_step)
        yield batch.take_done()


class _Batch:
    """What is decoded together."""

    def __init__(self, lengths: Sequence[int], room: int) -> None:
        self._lengths = lengths
        self._room = room
        self._running: Decoding | None = None
        self._numbers: dict[Sentence, int] = {}
        """Of those that have not been taken."""

    @property
    def is_live(self) -> bool:
        return bool(self._live)

    def has_room_for(self, number: int) -> bool:
        """Whether it is time for this sentence, and others after it, to join."""
        if not self.is_live:
            return True
        capacity, num_live = self._capacity(number), len(self._live)
        return num_live < capacity and num_live <= self._few(capacity)

    def num_to_go_on(self, waiting: Sequence[int]) -> int:
        """Of the sentences, before others may join; none if none waits."""
        return self._few(self._capacity(waiting[0])) if waiting else 0

    def take(self, waiting: deque[int]) -> list[int]:
        """As many as there is room for, but one at least."""
        count = max(self._capacity(waiting[0]) - len(self._live), 1)
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def add(self, numbers: list[int], begin: Begin) -> None:
        """Begin with sentences and, once they have grown, let them join."""
        newcomers = begin(numbers)
        self._numbers.update(zip(newcomers.search.live, numbers, strict=True))
        newcomers.step()
        if self._running is None or not self.is_live:
            self._running = newcomers
        elif newcomers.search.live:
            self._running.join(newcomers)

    def advance(self, few: int, on_step: Callable[[], object] | None) -> None:
        """Until some of the sentences are done; no more steps once so few go on."""
        assert self._running is not None
        self._running.step_until_some_are_done(few, on_step)

    def take_done(self) -> list[tuple[int, list[Hypothesis]]]:
        """Those that are done and have not been taken, by number."""
        live = set(self._live)
        done = [each for each in self._numbers if each not in live]
        return [(self._numbers.pop(each), each.hypotheses) for each in done]

    @property
    def _live(self) -> Sequence[Sentence]:
        return [] if self._running is None else self._running.search.live

    def _few(self, capacity: int) -> int:
        """Live ones of that capacity, at most, that others may join."""
        return int((1 - REFILL_SHARE) * capacity)

    def _capacity(self, number: int) -> int:
        """Sentences that there is room for once this one is in, all padded alike."""
        lengths = [self._lengths[self._numbers[each]] for each in self._live]
        return self._room // max(self._lengths[number], *lengths, 1)
