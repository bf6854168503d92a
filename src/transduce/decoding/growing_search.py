"""Searches whose sentences grow by their likeliest candidates."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int64

from transduce.decoding.candidates.candidate_search import Candidates, CandidateSearch
from transduce.decoding.kernels.compiled_candidates import NOT_FORCED
from transduce.decoding.search import SentenceSearch


@runtime_checkable
class Growing(Protocol):
    """Sentences that candidates are found for."""

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Those that are not done."""
        ...

    @property
    def log_probabilities(self) -> Float64[np.ndarray, "sentences group"]:
        """Of their hypotheses, as far as they bear on what goes on."""
        ...

    @property
    def forced(self) -> Int64[np.ndarray, " sentences"] | None:
        """The only token that may come next in each, or `NOT_FORCED`."""
        ...

    def grow(
        self, found: Candidates, group: int
    ) -> tuple[Int64[np.ndarray, "kept grown"], Int64[np.ndarray, "kept grown"]]:
        """Take of the candidates; the rows that go on, and what they read next."""
        ...

    def join(self, other: Any) -> None:
        """Put others of its kind, which have grown too, behind these."""
        ...


@runtime_checkable
class ListedSentence(SentenceSearch, Protocol):
    """One whose hypotheses stand in lists."""

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether it goes on no more."""
        ...


Sentence = TypeVar("Sentence", bound=ListedSentence)


class ListedSentences(Generic[Sentence]):
    """Those that are live, in lists: where no kernel lets them grow."""

    def __init__(self, live: list[Sentence]) -> None:
        self.live = live

    @property
    def forced(self) -> Int64[np.ndarray, " sentences"] | None:
        """The only token that may come next in each, if there is such."""
        each = [sentence.forced for sentence in self.live]
        if max(each, default=NOT_FORCED) == NOT_FORCED:
            return None
        return np.array(each, dtype=np.int64)

    def join(self, other: "ListedSentences[Sentence]") -> None:
        """Put others, which have grown too, behind these."""
        self.live = [*self.live, *other.live]

    def _leave(self) -> list[int]:
        """Let those go that are done; the numbers that the others had."""
        kept = [i for i, sentence in enumerate(self.live) if not sentence.is_done]
        self.live = [self.live[i] for i in kept]
        return kept


class GrowingSearch:
    """A search whose sentences grow by their likeliest candidates."""

    def __init__(self, growing: Growing, find: CandidateSearch) -> None:
        self.growing = growing
        self.find = find

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Those that are not done."""
        return self.growing.live

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept grown"], Int64[np.ndarray, "kept grown"]]:
        """Take the best candidates; the rows that go on, and what they read next.

        Both are good until the next call.
        """
        growing = self.growing
        found = self.find(logits, growing.log_probabilities, growing.forced)
        return growing.grow(found, logits.shape[1])

    def join(self, other: "GrowingSearch") -> None:
        """Put the sentences of another, which has grown too, behind one's own."""
        self.growing.join(other.growing)
