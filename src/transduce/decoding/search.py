"""The loop that all searches share, its batches and its interfaces.

A search chooses tokens from logits. It uses a decoder through `step`, `reorder` and
`join`; the native search runs in C with its decoder (`take_steps`). A batch holds
several sentences with a group of hypotheses each; all groups have the same size. Token
ids and row numbers are numpy arrays; logits are an array or a tensor on any device.

`search_in_batches` searches for any number of sentences. They are sorted by length, so
that a batch holds similar ones; finished sentences leave it and new ones join it.
`worker_pool` shares sentences among processes, each of which has batches of its own.
`score_pairs` scores given targets in batches.

Two decoders change the logits of others: `Ensemble` averages the probabilities of
several models, and `with_shortlists` restricts each sentence to its shortlist.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32, Int64

from transduce.errors import CheckpointError, RequestError
from transduce.metrics.scores import TargetScore
from transduce.search_config import SearchConfig
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import EOS

AllowedTokens = Int32[np.ndarray, " _"] | None
"""Tokens that may come next, by rising id; None for the whole vocabulary."""


class Hypothesis(NamedTuple):
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Sum over all tokens, the end token included; natural logarithm."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each id and, if finished, of the end token."""
    score: float
    """Log-probability divided by the length penalty, plus the weighted coverage: what
    beam search maximizes."""
    is_finished: bool = True
    """Whether it ended with the end token, not at the length limit."""


class Sentence:
    """A sentence of a search, from its first step until it is done."""

    __slots__ = ("hypotheses",)

    def __init__(self) -> None:
        self.hypotheses: list[Hypothesis] = []
        """Hypotheses, best first; empty until the sentence is done."""


@runtime_checkable
class Decoder(Protocol):
    """A decoder that has read sources and reads target tokens step by step.

    Each group has one hypothesis at the start, and later as many as the last call of
    `reorder` has kept.
    """

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        ...

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep `rows` of the flattened [sentences, group] of hypotheses, in this order.

        Each new group must come from one sentence.
        """
        ...


@runtime_checkable
class JoinableDecoder(Decoder, Protocol):
    """A decoder that another decoder of its kind can join."""

    def join(self, other: Any) -> None:
        """Append the sentences of another decoder, which must not be used afterwards.

        Both must have groups of the same size.
        """
        ...


Coverage = Callable[[], Float64[np.ndarray, "sentences group"]]
"""Function that returns, for each current hypothesis, the sum of log(min(attention, 1))
over the source tokens."""


@runtime_checkable
class CoverageDecoder(JoinableDecoder, Protocol):
    """A decoder that sums the attention of its hypotheses over all steps."""

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        ...


def coverage_of(decoder: Decoder, config: SearchConfig) -> Coverage | None:
    """Return the coverage of a decoder's hypotheses; None if a search needs none.

    Raises `RequestError` if the decoder has no coverage.
    """
    if not config.coverage_penalty:
        return None
    if not isinstance(decoder, CoverageDecoder):
        raise RequestError(
            "A coverage penalty must have a decoder that sums its attention, but this "
            "one has no `coverage`; set `search.coverage_penalty` to 0."
        )
    return decoder.coverage


@runtime_checkable
class DecodingModel(Protocol):
    """A model prepared for decoding: in the native library, or in PyTorch."""

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
        ...

    @property
    def shortlist(self) -> Shortlist | None:
        """Shortlist of target pieces; None if the model has none."""
        ...

    def encode(self, sources: Sequence[Sequence[int]]) -> Any:
        """Encode sources, which include their end tokens, for `start`."""
        ...

    def start(self, encoded: Any, *, sum_attention: bool = False) -> JoinableDecoder:
        """Return a decoder of encoded sources.

        With `sum_attention` it is a `CoverageDecoder`.
        """
        ...

    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens.

        The longest targets come first.
        """
        ...


@runtime_checkable
class MultiStepDecoder(Decoder, Protocol):
    """A decoder that can take several steps together with a search in one call."""

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, max_live: int
    ) -> Int64[np.ndarray, "kept group"] | None:
        """Take some steps, and none once at most `max_live` sentences are live.

        Returns the last tokens of the remaining hypotheses. Returns None, and changes
        nothing, if it cannot take steps with such a search.
        """
        ...


@runtime_checkable
class ShortlistDecoder(JoinableDecoder, Protocol):
    """A decoder that computes the logits of each sentence's shortlist only."""

    def set_shortlists(self, shortlists: Sequence[AllowedTokens]) -> None:
        """Restrict each sentence to the tokens of its shortlist."""
        ...


@runtime_checkable
class Search(Protocol):
    """A search for several sentences, each of which grows by one token a step."""

    @property
    def live(self) -> Sequence[Sentence]:
        """Sentences that are not done, in the order of the batch."""
        ...

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept group"], Int64[np.ndarray, "kept group"]]:
        """Choose the next tokens.

        Returns the rows that continue, for `Decoder.reorder`, and the token of each.
        All steps return groups of the same size.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another search; both must have taken a step."""
        ...


class RunningSearch:
    """A search and its decoder, which take steps together."""

    def __init__(self, decoder: Decoder, search: Search, bos: int) -> None:
        self.search = search
        self._decoder = decoder
        self._multi_step = decoder if isinstance(decoder, MultiStepDecoder) else None
        self._last_ids = np.full((len(search.live), 1), bos, dtype=np.int64)

    def step(self) -> None:
        """Grow all live sentences by one token."""
        logits = self._decoder.step(self._last_ids)
        rows, last_ids = self.search.grow(logits)
        if self.search.live:
            self._decoder.reorder(rows)
            self._last_ids = last_ids

    def step_until_some_are_done(
        self, max_live: int = 0, on_step: Callable[[], object] | None = None
    ) -> None:
        """Grow all live sentences until at least one of them is done.

        A decoder that takes several steps in one call may continue until at most
        `max_live` sentences are live. `on_step` is called between steps; an exception
        that it raises ends the search.
        """
        num_live = len(self.search.live)
        assert num_live
        max_live = min(max_live, num_live - 1)
        while len(self.search.live) == num_live:
            if on_step is not None:
                on_step()
            last_ids = None
            if (decoder := self._multi_step) is not None:
                last_ids = decoder.take_steps(self._last_ids, self.search, max_live)
            if last_ids is None:
                self.step()
            else:
                self._last_ids = last_ids

    def join(self, other: "RunningSearch") -> None:
        """Append the sentences of another; both must have taken a step."""
        mine, theirs = self._decoder, other._decoder
        assert isinstance(mine, JoinableDecoder)
        assert isinstance(theirs, JoinableDecoder)
        mine.join(theirs)
        self.search.join(other.search)
        self._last_ids = np.concatenate([self._last_ids, other._last_ids])


def run_search(decoder: Decoder, search: Search, bos: int) -> list[list[Hypothesis]]:
    """Run a search to its end; return the hypotheses of each sentence, best first."""
    sentences = list(search.live)
    running = RunningSearch(decoder, search, bos)
    while search.live:
        running.step_until_some_are_done()
    return [each.hypotheses for each in sentences]


def require_numbers(log_probabilities: Sequence[float]) -> None:
    """Raise `CheckpointError` if a result is NaN or missing, as the logits were NaN."""
    if not log_probabilities or any(map(math.isnan, log_probabilities)):
        raise CheckpointError(
            "The model must output numbers, but outputs NaN; its weights are "
            "damaged, or too large for the precision: try fp32, or another "
            "checkpoint."
        )


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


def log_softmax(logits: Float[np.ndarray, "*rows vocab"]) -> Float32[np.ndarray, "..."]:
    """Return log-probabilities as a new array."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted.astype(np.float32, copy=False)


def log_likelihoods(
    logits: Float[np.ndarray, "rows vocab"], tokens: Int64[np.ndarray, " rows"]
) -> Float64[np.ndarray, " rows"]:
    """Return the log-probability of one token in each row."""
    largest = logits.max(axis=-1)
    totals = np.exp(logits - largest[:, None]).sum(axis=-1)
    chosen = logits[np.arange(len(tokens)), tokens]
    return chosen.astype(np.float64) - largest - np.log(totals)


def log_mean(
    log_probs: Sequence[Float32[np.ndarray, "*rows vocab"]],
) -> Float32[np.ndarray, "..."]:
    """Return the logarithm of the mean probability over several models."""
    largest = np.maximum.reduce(log_probs)
    # Outside a shortlist, all are minus infinity.
    offset = np.where(largest == -np.inf, np.float32(0), largest)
    total = np.zeros_like(largest)
    for each in log_probs:
        total += np.exp(each - offset)
    with np.errstate(divide="ignore"):
        return offset + np.log(total / len(log_probs))


class Ensemble:
    """Decoders of several models with one vocabulary; averages their probabilities."""

    def __init__(self, members: Sequence[JoinableDecoder]) -> None:
        self.members = members
        """Decoder of each model."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last tokens and return the log-probabilities of the next.

        The result is an array if all members return arrays, otherwise a tensor.
        """
        logits = [each.step(last_ids) for each in self.members]
        if all(isinstance(each, np.ndarray) for each in logits):
            return log_mean(list(map(log_softmax, logits)))
        from transduce.decoding.torch_candidates import log_mean_by_torch

        return log_mean_by_torch(logits)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        for member in self.members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Append the sentences of another ensemble."""
        for mine, theirs in zip(self.members, other.members, strict=True):
            mine.join(theirs)

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the mean of the members' coverages."""
        return np.mean([_coverage(member) for member in self.members], axis=0)


def _coverage(decoder: Decoder) -> Float64[np.ndarray, "sentences group"]:
    assert isinstance(decoder, CoverageDecoder)
    return decoder.coverage()


def start_decoder(
    models: Sequence[DecodingModel],
    sources: Sequence[Sequence[int]],
    config: SearchConfig | None = None,
) -> JoinableDecoder:
    """Encode sources, which include their end tokens, and return their decoder.

    Several models form an `Ensemble`. The decoder has `coverage` if a search by the
    config needs it.
    """
    sum_attention = config is not None and config.coverage_penalty > 0
    decoders = [
        each.start(each.encode(sources), sum_attention=sum_attention) for each in models
    ]
    return decoders[0] if len(decoders) == 1 else Ensemble(decoders)


def with_shortlists(
    decoder: JoinableDecoder, shortlists: Sequence[AllowedTokens]
) -> JoinableDecoder:
    """Let each sentence of a decoder choose among the tokens of its shortlist.

    Log-probabilities are then normalized over these tokens. A shortlist depends on its
    source alone, so translations do not depend on the batch. The native library
    computes only the logits of the tokens; elsewhere the logits of all others are set
    to minus infinity. The models of an ensemble have the same shortlists.
    """
    if isinstance(decoder, Ensemble):
        return Ensemble([with_shortlists(each, shortlists) for each in decoder.members])
    if isinstance(decoder, ShortlistDecoder):
        decoder.set_shortlists(shortlists)
        return decoder
    return MaskedDecoder(decoder, shortlists)


class MaskedDecoder:
    """A decoder whose logits are minus infinity except for each sentence's shortlist.

    It wraps a decoder that is no `ShortlistDecoder`.
    """

    def __init__(
        self, decoder: JoinableDecoder, shortlists: Sequence[AllowedTokens]
    ) -> None:
        self._decoder = decoder
        self.shortlists = list(shortlists)
        """Tokens of each sentence that may come next."""
        self._group = 1

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        self._group = last_ids.shape[1]
        logits = self._decoder.step(last_ids)
        if isinstance(logits, np.ndarray):
            masked = np.full_like(logits, -np.inf)
            sentences = zip(masked, logits, self.shortlists, strict=True)
            for kept, all_logits, shortlist in sentences:
                allowed = slice(None) if shortlist is None else shortlist
                kept[:, allowed] = all_logits[:, allowed]
            return masked
        from transduce.decoding.torch_candidates import keep_shortlists

        return keep_shortlists(logits, self.shortlists)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        sentences = (rows[:, 0] // self._group).tolist()
        self.shortlists = [self.shortlists[each] for each in sentences]
        self._decoder.reorder(rows)

    def join(self, other: "MaskedDecoder") -> None:
        """Append the sentences of another decoder."""
        self._decoder.join(other._decoder)
        self.shortlists += other.shortlists

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        return _coverage(self._decoder)
