"""The loop of all searches: read a token, append a token, until no sentence is live.

Sentences that are done leave the batch, and others can join it. Ids and rows are numpy
arrays; logits may also be a tensor, on any device.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int64

from transduce.decoding.candidates import log_mean, log_softmax
from transduce.errors import CheckpointError


class Hypothesis(NamedTuple):
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Sum over all tokens, the end token included; natural logarithm."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each id and, if finished, of the end token."""
    score: float
    """Log-probability divided by the length penalty, plus the weighted coverage: what
    search maximizes."""
    is_finished: bool = True
    """Whether it ended with the end token, not at the length limit."""


class Step(NamedTuple):
    """Live hypotheses of a beam after one step, by the tokens that it appended."""

    parents: list[int]
    """Number of the hypothesis of the step before that each one extends."""
    tokens: list[int]
    log_probabilities: list[float]
    """Sum over all tokens so far."""


class End(NamedTuple):
    """A hypothesis that ended or was cut short."""

    score: float
    log_probability: float
    num_steps: int
    """Steps that appended its tokens, the end token not counted."""
    last: int
    """Its number among the hypotheses of the last of these steps."""
    is_finished: bool


def traced(end: End, steps: Sequence[Step]) -> Hypothesis:
    """Follow a hypothesis from its last token to its first."""
    ids, totals, number = [], [end.log_probability], end.last
    if not end.is_finished:
        totals.clear()
    for step in reversed(steps[: end.num_steps]):
        ids.append(step.tokens[number])
        totals.append(step.log_probabilities[number])
        number = step.parents[number]
    gains = (now - before for before, now in pairwise([0.0, *reversed(totals)]))
    return Hypothesis(
        ids=tuple(reversed(ids)),
        log_probability=end.log_probability,
        token_log_probabilities=tuple(gains),
        score=end.score,
        is_finished=end.is_finished,
    )


Coverage = Callable[[], Float64[np.ndarray, "sentences group"]]
"""Function for the sum of log(min(attention, 1)) over the source tokens of each current
hypothesis, its last step included."""


@runtime_checkable
class NextTokenModel(Protocol):
    """A model that search asks for the next token.

    Each sentence has a group of hypotheses, and all groups are equally large: one
    hypothesis at the start, and from then on as many as `reorder` was given.
    """

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read one more token of each hypothesis, and return the logits of the next."""
        ...

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order, numbered through all groups.

        Those of a new group must be of one sentence.
        """
        ...


@runtime_checkable
class JoinableModel(NextTokenModel, Protocol):
    """A model that others of its kind can join while it decodes."""

    def join(self, other: Any) -> None:
        """Append the sentences of another, which must not be used any more.

        Its groups must be as large.
        """
        ...


@runtime_checkable
class WatchedModel(JoinableModel, Protocol):
    """A model that sums the attention of its hypotheses to the source."""

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        ...


@runtime_checkable
class SearchingModel(NextTokenModel, Protocol):
    """A model that can take several steps together with a search."""

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, few: int
    ) -> Int64[np.ndarray, "kept grown"] | None:
        """Take steps, none after one that leaves `few` live sentences or fewer.

        Returns the tokens that hypotheses read next. None if the model cannot take
        steps with such a search: then nothing has changed.
        """
        ...


def require_numbers(log_probabilities: Sequence[float]) -> None:
    """Raise `CheckpointError` if the model has put out NaN, so nothing was found."""
    if not log_probabilities or math.isnan(log_probabilities[0]):
        raise CheckpointError(
            "The model must put out numbers, but puts out NaN; its weights are "
            "damaged, or too large for the precision: try fp32, or another "
            "checkpoint."
        )


@runtime_checkable
class SentenceSearch(Protocol):
    """The search for one sentence."""

    def hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses, best first, once the sentence is done."""
        ...


@runtime_checkable
class Search(Protocol):
    """A search whose sentences grow together, one token at a time."""

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Sentences that are not done."""
        ...

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept grown"], Int64[np.ndarray, "kept grown"]]:
        """Choose next tokens; return the rows that go on, and what they read next.

        After its first token each sentence has the same number of hypotheses.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another of its kind; both must have grown."""
        ...


class Decoding:
    """A search together with its model."""

    def __init__(self, model: NextTokenModel, search: Search, bos: int) -> None:
        self.search = search
        self._model = model
        self._searching = model if isinstance(model, SearchingModel) else None
        self._last_ids = np.full((len(search.live), 1), bos, dtype=np.int64)

    def advance(self) -> None:
        """Grow all live sentences by one token."""
        logits = self._model.step(self._last_ids)
        rows, last_ids = self.search.grow(logits)
        if self.search.live:
            self._model.reorder(rows)
            self._last_ids = last_ids

    def advance_until_some_are_done(
        self, few: int, on_step: Callable[[], object] | None = None
    ) -> None:
        """Grow all live sentences until at least one of them is done.

        A model that takes several steps at once may go on until no more than `few` are
        live. `on_step` is called between steps; what it raises ends the search.
        """
        num_live = len(self.search.live)
        assert num_live
        few = min(few, num_live - 1)
        while len(self.search.live) == num_live:
            if on_step is not None:
                on_step()
            if self._searching is None:
                last_ids = None
            else:
                last_ids = self._searching.take_steps(self._last_ids, self.search, few)
            if last_ids is None:
                self.advance()
            else:
                self._last_ids = last_ids

    def finish(self) -> None:
        """Grow until all sentences are done."""
        while self.search.live:
            self.advance_until_some_are_done(few=0)

    def join(self, other: "Decoding") -> None:
        """Append the sentences of another; both must have grown."""
        mine, theirs = self._model, other._model
        assert isinstance(mine, JoinableModel)
        assert isinstance(theirs, JoinableModel)
        mine.join(theirs)
        self.search.join(other.search)
        self._last_ids = np.concatenate([self._last_ids, other._last_ids])


class Ensemble:
    """The mean of the probabilities of models with one vocabulary."""

    def __init__(self, members: Sequence[JoinableModel]) -> None:
        self._members = members

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read one more token of each hypothesis; the log-probabilities of the next.

        They are an array if all members compute in numpy, otherwise a tensor.
        """
        logits = [each.step(last_ids) for each in self._members]
        if all(isinstance(each, np.ndarray) for each in logits):
            return log_mean(list(map(log_softmax, logits)))
        from transduce.decoding.torch_logits import log_mean_by_torch

        return log_mean_by_torch(logits)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        for member in self._members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Append the sentences of another ensemble."""
        for mine, theirs in zip(self._members, other._members, strict=True):
            mine.join(theirs)
