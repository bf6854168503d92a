"""The loop of all searches: read a token, grow by a token, until no sentence is left.

Sentences that are done leave the batch, and others can join. What is read and kept is
told in arrays of numpy; logits may also be a tensor, on any device. Knows no torch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int64

from transduce.decoding.hypotheses import Hypothesis
from transduce.errors import CheckpointError

Coverage = Callable[[], Float64[np.ndarray, "sentences group"]]
"""Function for the sum of log(min(attention, 1)) over the source tokens of each current
hypothesis, its last step included."""


@runtime_checkable
class NextTokenModel(Protocol):
    """What search needs of a model.

    Each sentence has a group of hypotheses, all groups being equally large: one at the
    start, and from then on as many as `reorder` was given.
    """

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        ...

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        They are numbered through all groups.
        """
        ...


@runtime_checkable
class JoinableModel(NextTokenModel, Protocol):
    """One that others of its kind can join while it decodes."""

    def join(self, other: Any) -> None:
        """Put the sentences of another of its kind behind one's own.

        Its groups are as large, and it is of no use any more.
        """
        ...


@runtime_checkable
class WatchedModel(JoinableModel, Protocol):
    """Model that sums the attention of its hypotheses to the source."""

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Sum of log(min(attention, 1)) over the source tokens, end included."""
        ...


@runtime_checkable
class SearchingModel(NextTokenModel, Protocol):
    """One that can take steps with a search by itself."""

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, few: int
    ) -> Int64[np.ndarray, "kept grown"] | None:
        """Some, none after one that leaves `few` sentences or fewer; what is read next.

        The search's `grow` is not called. None if there is more to it than it can do:
        then no step was taken.
        """
        ...


def require_numbers(log_probabilities: Sequence[float]) -> None:
    """`CheckpointError` if a model has put out NaN, and so search found nothing."""
    if not log_probabilities or math.isnan(log_probabilities[0]):
        raise CheckpointError(
            "The model must put out numbers, but puts out NaN; its weights are "
            "damaged, or too large for the precision: try fp32, or another "
            "checkpoint."
        )


@runtime_checkable
class SentenceSearch(Protocol):
    """What has been found for one sentence."""

    def hypotheses(self) -> list[Hypothesis]:
        """Best first, once the sentence is done."""
        ...


@runtime_checkable
class Search(Protocol):
    """Sentences that grow together, a token at a time."""

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Those that are not done."""
        ...

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept grown"], Int64[np.ndarray, "kept grown"]]:
        """Choose next tokens; the hypotheses that go on, and what each reads next.

        After its first token each sentence has the same number of hypotheses.
        """
        ...

    def join(self, other: Any) -> None:
        """Put the sentences of another of its kind, grown too, behind one's own."""
        ...


class Decoding:
    """A search and the model that it asks."""

    def __init__(self, model: NextTokenModel, search: Search, bos: int) -> None:
        self.search = search
        self._model = model
        self._searching = model if isinstance(model, SearchingModel) else None
        self._last_ids = np.full((len(search.live), 1), bos, dtype=np.int64)

    def advance(self) -> None:
        """Grow all that is live by a token."""
        logits = self._model.step(self._last_ids)
        rows, last_ids = self.search.grow(logits)
        if self.search.live:
            self._model.reorder(rows)
            self._last_ids = last_ids

    def advance_until_some_are_done(
        self, few: int, on_step: Callable[[], object] | None = None
    ) -> None:
        """Grow all that is live, token by token, until a sentence at least is done.

        A model that takes several steps at once may go on until no more than `few` are
        left. `on_step` is called between steps, and what it raises ends the search.
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
        """Go on until all is done."""
        while self.search.live:
            self.advance_until_some_are_done(few=0)

    def join(self, other: "Decoding") -> None:
        """Take in what another has begun; both have grown at least once."""
        mine, theirs = self._model, other._model
        assert isinstance(mine, JoinableModel)
        assert isinstance(theirs, JoinableModel)
        mine.join(theirs)
        self.search.join(other.search)
        self._last_ids = np.concatenate([self._last_ids, other._last_ids])
