"""Streams of lines, cut into windows whose sentences are searched for in batches.

A window is read ahead and sorted by length, so that a batch holds similar sentences. A
batch takes new sentences as others finish. Several processes share a window's
sentences.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from queue import Empty, Queue
from threading import Thread
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from transduce.decoding.search import (
    Decoding,
    DecodingModel,
    Hypothesis,
    Sentence,
)
from transduce.metrics.perplexity import TargetScore
from transduce.text.vocabulary import EOS

Line = TypeVar("Line")
Result = TypeVar("Result")
Searcher = TypeVar("Searcher")
Input = TypeVar("Input")

WINDOW_LINES = 2_048
"""Lines read ahead and sorted by length."""
PAUSE_S = 0.02
"""Seconds without a new line after which an incomplete window is used."""


@runtime_checkable
class Windows(Protocol):
    """Function that cuts a stream into non-empty windows."""

    def __call__(self, lines: Iterable[Line], /) -> Iterator[list[Line]]: ...


def full_windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Cut a stream into windows of `WINDOW_LINES`, however long it takes to read one.

    Only the last window may be shorter.
    """
    stream = iter(lines)
    while window := list(islice(stream, WINDOW_LINES)):
        yield window


def arriving_windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Cut a stream that is still being written into windows of the lines available.

    A separate thread reads up to `WINDOW_LINES` ahead.
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
    """End of a stream, and the exception that ended it, if any."""

    error: Exception | None


def _read(lines: Iterable[Line], arrived: Queue[Line | _End]) -> None:
    try:
        for line in lines:
            arrived.put(line)
    except Exception as error:  # raised again in the thread that waits for lines
        arrived.put(_End(error))
    else:
        arrived.put(_End(None))


def _next_window(arrived: Queue[Line | _End]) -> tuple[list[Line], _End | None]:
    """Return the lines available, after waiting for one line or the end."""
    window: list[Line] = []
    with suppress(Empty):
        while len(window) < WINDOW_LINES:
            line = arrived.get(timeout=PAUSE_S if window else None)
            if isinstance(line, _End):
                return window, line
            window.append(line)
    return window, None


def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a stream is read, with callbacks for its progress."""

    windows: Windows = full_windows
    on_line: Callable[[], Any] = _do_nothing
    """Called once for each line that is done, even if earlier lines are not."""
    on_step: Callable[[], Any] | None = None
    """Called between steps of search; an exception that it raises ends the stream."""
    first_line: int = 0
    """Number of the stream's first line, if earlier lines are done already."""


def in_order(numbered: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Yield results by their number, from 0, each once all before it are there."""
    early: dict[int, Result] = {}
    number = 0
    for each, result in numbered:
        early[each] = result
        while number in early:
            yield early.pop(number)
            number += 1


MIN_SHARE = 8
"""Sentences below which another process does not pay."""


class StepRows(NamedTuple):
    """Cost of a decoding step, in rows of its matrix products."""

    per_sentence: int
    """One row for each hypothesis."""
    overhead: int
    """Fixed cost of a step: to read the weights, and to call it."""

    def cost(self, steps: int, *, is_first: bool) -> int:
        """Return the cost of a sentence; the first, the longest, bears the overhead."""
        return steps * (self.per_sentence + self.overhead * is_first)


SearchResult = tuple[int, list[Hypothesis]]
"""Number of a sentence, and its hypotheses, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(Generic[Searcher, Input]):
    """Sentences to search for, and how."""

    sentences: Sequence[Input]
    lengths: Sequence[int]
    """Source tokens of each sentence, the end token included."""
    capacity: int
    """Source positions of a batch, padding included; a longer sentence is alone."""
    start: Callable[[Searcher, list[Input]], Decoding]
    """Function that encodes sentences and starts their search.

    A function of a module, or a partial one: it is sent to other processes, which have
    a searcher of their own.
    """
    step_rows: StepRows = StepRows(1, 0)
    min_steps: int = 0
    """Minimum number of steps of a sentence, whose estimate is otherwise the length of
    its source."""

    def subset(self, numbers: Sequence[int]) -> "SearchTask[Searcher, Input]":
        """Return the same task for some of the sentences."""
        return replace(
            self,
            sentences=[self.sentences[i] for i in numbers],
            lengths=[self.lengths[i] for i in numbers],
        )

    def shares(self, most: int) -> list[list[int]]:
        """Return sentences' numbers in at most that many shares of about equal cost."""
        number = max(min(most, len(self.sentences) // MIN_SHARE), 1)
        if number == 1:
            return [list(range(len(self.sentences)))]
        steps = [max(length, self.min_steps, 1) for length in self.lengths]
        if sum(self.lengths) <= self.capacity * number:
            shares = similar_shares(steps, self.step_rows, number)
            if all(map(self._is_one_batch, shares)):
                return shares
        return mixed_shares(steps, self.step_rows, number)

    def _is_one_batch(self, numbers: Sequence[int]) -> bool:
        return len(numbers) * max(self.lengths[i] for i in numbers) <= self.capacity


def mixed_shares(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Return shares of long and short sentences, from the steps of each.

    This suits many sentences: the shares stay balanced if all long sentences take
    longer than estimated. Each next longest sentence goes to the cheapest share.
    """
    shares: list[list[int]] = [[] for _ in range(number)]
    costs = [(0, i) for i in range(number)]
    for sentence in _longest_first(steps):
        cost, i = heappop(costs)
        shares[i].append(sentence)
        cost += rows.cost(steps[sentence], is_first=len(shares[i]) == 1)
        heappush(costs, (cost, i))
    return shares


def similar_shares(
    steps: Sequence[int], rows: StepRows, number: int
) -> list[list[int]]:
    """Return shares of sentences of similar length, from the steps of each.

    This suits shares of one batch each: a batch takes as many steps as its longest
    sentence, so only one share takes as many as the longest of all. The costliest share
    costs as little as possible.
    """
    order = _longest_first(steps)
    lengths = [steps[sentence] for sentence in order]
    # Binary search for the least cost that no share needs to exceed.
    low, high = 0, sum(rows.cost(each, is_first=True) for each in lengths)
    while low < high:
        middle = (low + high) // 2
        if len(list(_cut(lengths, rows, middle))) <= number:
            high = middle
        else:
            low = middle + 1
    return [order[share] for share in _cut(lengths, rows, high)]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


def _cut(lengths: Sequence[int], rows: StepRows, most: int) -> Iterator[slice]:
    """Yield consecutive shares, each as large as a cost of `most` allows."""
    begin, cost = 0, 0
    for i, steps in enumerate(lengths):
        cost += rows.cost(steps, is_first=i == begin)
        if cost > most and i > begin:
            yield slice(begin, i)
            begin, cost = i, rows.cost(steps, is_first=True)
    yield slice(begin, len(lengths))


BATCH_POSITIONS = 2_048
"""Source positions of a batch times hypotheses, padding included: enough for efficient
matrix products, and small enough that activations stay in a processor's caches."""
POSITION_BYTES = 2**20
"""Bytes of a GPU's memory for each such position, logits included: several times what
most models need."""
REFILL_SHARE = 0.5
"""Share of a batch that must be free before new sentences join: joining copies all."""


def batch_positions(device: str) -> int:
    """Return how many positions keep a device busy and fit into its memory."""
    if not device.startswith("cuda"):
        return BATCH_POSITIONS
    import torch  # loaded already on such a device

    memory = torch.cuda.get_device_properties(device).total_memory
    return max(memory // POSITION_BYTES, BATCH_POSITIONS)


def search_in_batches(
    task: SearchTask[Searcher, Input],
    searcher: Searcher,
    on_step: Callable[[], object] | None = None,
) -> Iterator[list[SearchResult]]:
    """Yield the sentences that the last steps have finished, which may be none.

    Long sentences come first, so that padding stays small. `on_step` is called between
    steps; an exception that it raises ends the search.
    """
    waiting = deque(_longest_first(task.lengths))
    running: Decoding | None = None
    numbers: dict[Sentence, int] = {}
    while waiting or numbers:
        live = [] if running is None else running.search.live
        size = _batch_size(task, [numbers[each] for each in live], waiting)
        few = int((1 - REFILL_SHARE) * size)
        if running is None or not live or (len(live) < size and len(live) <= few):
            joining = [
                waiting.popleft()
                for _ in range(min(max(size - len(live), 1), len(waiting)))
            ]
            new = task.start(searcher, [task.sentences[i] for i in joining])
            numbers.update(zip(new.search.live, joining, strict=True))
            new.step()
            if running is None or not live:
                running = new
            elif new.search.live:
                running.join(new)
        else:
            running.step_until_some_are_done(few, on_step)
        going_on = set(running.search.live)
        done = [each for each in numbers if each not in going_on]
        yield [(numbers.pop(each), each.hypotheses) for each in done]


def _batch_size(
    task: SearchTask[Any, Any], live: Sequence[int], waiting: Sequence[int]
) -> int:
    """Return how many sentences fit into a batch with the next one; 0 if none waits."""
    if not waiting:
        return 0
    longest = max(task.lengths[i] for i in (waiting[0], *live))
    return task.capacity // max(longest, 1)


def similar_lengths(lengths: Sequence[int], positions: int) -> Iterator[list[int]]:
    """Yield numbers of sentences in batches of limited positions, longest first."""
    order = _longest_first(lengths)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows


def score_pairs(
    model: DecodingModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    positions: int,
) -> Iterator[tuple[int, TargetScore]]:
    """Score pairs in batches of similar lengths; yield each pair's number and score.

    The ids of sources and targets are without end tokens. The scores of a batch come
    together. The caller may stop between batches.
    """
    pairs = zip(sources, targets, strict=True)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    for batch in similar_lengths(lengths, positions):
        numbers = sorted(batch, key=lambda i: -len(targets[i]))
        scores = model.score(
            [[*sources[i], EOS] for i in numbers], [targets[i] for i in numbers]
        )
        yield from zip(numbers, scores, strict=True)
