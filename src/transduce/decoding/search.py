"""The loop that all searches share, and what it expects of a search and of a decoder.

A search chooses tokens from logits. It uses a decoder through `step`, `reorder` and
`join`; the native search runs in C with its decoder (`take_steps`). A batch holds
several sentences with a group of hypotheses each; all groups have the same size.
Finished sentences leave the batch and new ones can join it. Token ids and row numbers
are numpy arrays; logits are an array or a tensor on any device."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int64

from transduce.decoding.candidates import log_mean, log_softmax
from transduce.errors import CheckpointError
from transduce.metrics.perplexity import TargetScore


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

    Groups have one hypothesis each at the start, and from then on as many as the last
    call of `reorder` gave them.
    """

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        ...

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order.

        Rows are numbered through all groups. Each new group must come from one
        sentence.
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


@runtime_checkable
class DecodingModel(Protocol):
    """A model prepared for decoding: in the native library, or in PyTorch."""

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
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
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, few: int
    ) -> Int64[np.ndarray, "kept group"] | None:
        """Take steps until at most `few` sentences are live, or some number of steps.

        Returns the last tokens of the remaining hypotheses. Returns None, and changes
        nothing, if it cannot take steps with such a search.
        """
        ...


@runtime_checkable
class Search(Protocol):
    """A search for several sentences, all of which grow by one token a step."""

    @property
    def live(self) -> Sequence[Sentence]:
        """Sentences that are not done, in the order of the batch."""
        ...

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept group"], Int64[np.ndarray, "kept group"]]:
        """Choose the next tokens.

        Returns the rows that continue, for `Decoder.reorder`, and the token of each.
        Groups have one size after the first step, whatever their size before it.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another search; both must have taken a step."""
        ...


class Decoding:
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
        self, few: int = 0, on_step: Callable[[], object] | None = None
    ) -> None:
        """Grow all live sentences until at least one of them is done.

        A decoder that takes several steps in one call may continue until at most `few`
        sentences are live. `on_step` is called between steps; an exception that it
        raises ends the search.
        """
        num_live = len(self.search.live)
        assert num_live
        few = min(few, num_live - 1)
        while len(self.search.live) == num_live:
            if on_step is not None:
                on_step()
            last_ids = None
            if self._multi_step is not None:
                last_ids = self._multi_step.take_steps(self._last_ids, self.search, few)
            if last_ids is None:
                self.step()
            else:
                self._last_ids = last_ids

    def join(self, other: "Decoding") -> None:
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
    decoding = Decoding(decoder, search, bos)
    while search.live:
        decoding.step_until_some_are_done()
    return [each.hypotheses for each in sentences]


def require_numbers(log_probabilities: Sequence[float]) -> None:
    """Raise `CheckpointError` if there is no result because the logits were NaN."""
    if not log_probabilities or math.isnan(log_probabilities[0]):
        raise CheckpointError(
            "The model must put out numbers, but puts out NaN; its weights are "
            "damaged, or too large for the precision: try fp32, or another "
            "checkpoint."
        )


class Ensemble:
    """Decoders of several models with one vocabulary; averages their probabilities."""

    def __init__(self, members: Sequence[JoinableDecoder]) -> None:
        self._members = members

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last tokens and return the log-probabilities of the next.

        The result is an array if all members return arrays, otherwise a tensor.
        """
        logits = [each.step(last_ids) for each in self._members]
        if all(isinstance(each, np.ndarray) for each in logits):
            return log_mean(list(map(log_softmax, logits)))
        from transduce.decoding.torch_model import log_mean_by_torch

        return log_mean_by_torch(logits)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        for member in self._members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Append the sentences of another ensemble."""
        for mine, theirs in zip(self._members, other._members, strict=True):
            mine.join(theirs)
