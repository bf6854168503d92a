"""Search in batches, which take new sentences as others finish.

Sentences are sorted by length, so that a batch holds similar ones. `worker_pool` shares
them among processes, each of which has batches of its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from transduce.decoding.search import DecodingModel, Hypothesis, RunningSearch, Sentence
from transduce.metrics.scores import TargetScore
from transduce.text.vocabulary import EOS

Searcher = TypeVar("Searcher")
Input = TypeVar("Input")


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
    """Source positions of a batch, padding included; a longer sentence is alone.

    It is 0 if the hypotheses of one position are more than a batch holds.
    """
    start: Callable[[Searcher, list[Input]], RunningSearch]
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


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return the numbers of sentences, the longest first."""
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


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

    Long sentences come first, so that padding stays small. New ones join the batch once
    `REFILL_SHARE` of it is free. `on_step` is called between steps; an exception that
    it raises ends the search.
    """
    waiting = deque(longest_first(task.lengths))
    running: RunningSearch | None = None
    live: dict[Sentence, int] = {}  # sentences of `running`, with their numbers
    while waiting or running is not None:
        size = _batch_size(task, live.values(), waiting)
        refill_at = int((1 - REFILL_SHARE) * size)  # number of live sentences
        may_join = len(live) < size and len(live) <= refill_at
        if running is None or may_join:
            count = min(max(size - len(live), 1), len(waiting))
            joining = [waiting.popleft() for _ in range(count)]
            new = task.start(searcher, [task.sentences[i] for i in joining])
            live |= zip(new.search.live, joining, strict=True)
            new.step()  # as `join` needs
            if running is None:
                running = new
            elif new.search.live:
                running.join(new)
        else:
            running.step_until_some_are_done(refill_at, on_step)
        still_live = set(running.search.live)
        done = [each for each in live if each not in still_live]
        yield [(live.pop(each), each.hypotheses) for each in done]
        if not live:
            running = None


def _batch_size(
    task: SearchTask[Any, Any], live: Iterable[int], waiting: Sequence[int]
) -> int:
    """Return how many sentences fit into a batch with the next one; 0 if none waits."""
    if not waiting:
        return 0
    longest = max(task.lengths[i] for i in (waiting[0], *live))
    return task.capacity // max(longest, 1)


def similar_lengths(lengths: Sequence[int], positions: int) -> Iterator[list[int]]:
    """Yield numbers of sentences in batches of limited positions, longest first."""
    order = longest_first(lengths)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows


def score_pairs(
    models: Sequence[DecodingModel],
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    positions: int,
) -> Iterator[tuple[int, TargetScore]]:
    """Score pairs in batches of similar lengths; yield each pair's number and score.

    Several models score as an ensemble. Sources and targets have no end tokens. The
    scores of a batch come together. The caller may stop between batches.
    """
    pairs = zip(sources, targets, strict=True)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    for batch in similar_lengths(lengths, positions):
        numbers = sorted(batch, key=lambda i: -len(targets[i]))
        given = [[*sources[i], EOS] for i in numbers], [targets[i] for i in numbers]
        members = zip(*(model.score(*given) for model in models), strict=True)
        yield from zip(numbers, map(_mean_score, members), strict=True)


def _mean_score(members: Sequence[TargetScore]) -> TargetScore:
    """Return the score under the mean of the models' probabilities at each step.

    All models have read the same target, so this is the mean that the search of an
    `Ensemble` takes of all tokens, at the tokens of the target.
    """
    if len(members) == 1:
        return members[0]
    log_probabilities = np.array([each.token_log_probabilities for each in members])
    with np.errstate(invalid="ignore"):  # the caller refuses NaN
        mean = np.logaddexp.reduce(log_probabilities, axis=0) - np.log(len(members))
    return TargetScore(token_log_probabilities=tuple(mean.tolist()))
