"""Finds the likeliest tokens, by a kernel of ours where that can."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from transduce.decoding.kernels.compiled_candidates import (
    CompiledCandidates,
    for_kernel,
)

Excluded = Sequence[int] | Callable[[], Bool[np.ndarray, "sentences group vocab"]]
"""Ids that are never put out, or what says which may not come next, after what the
model has read of each hypothesis."""


class Candidates(NamedTuple):
    """The likeliest ways to go on of each sentence, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Of the whole sequence; minus infinity where there is no further candidate."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """The hypothesis of the group that each goes on from."""
    tokens: Int64[np.ndarray, "sentences candidates"]


class CandidateSearch:
    """Finds the likeliest `count` tokens after the hypotheses of each sentence."""

    def __init__(
        self, count: int, excluded: Excluded = (), diversity: float = 0.0
    ) -> None:
        self._count = count
        self._mask = excluded if callable(excluded) else None
        self._never = () if callable(excluded) else tuple(excluded)
        self._diversity = diversity
        self.compiled: CompiledCandidates | None = None
        """What has found them by a kernel, if one has."""

    @property
    def is_masked(self) -> bool:
        """Whether it changes from step to step what is excluded."""
        return self._mask is not None

    def __call__(
        self,
        logits: Float[Any, "sentences group vocab"],
        log_probabilities: Float64[np.ndarray, "sentences group"],
        forced: Int64[np.ndarray, " sentences"] | None = None,
    ) -> Candidates:
        """What is found is good until the next call.

        `log_probabilities` are those of the hypotheses so far. `forced` has the only
        token that a sentence may go on with, or `NOT_FORCED`.
        """
        mask = None if self._mask is None else self._mask()
        if (numbers := for_kernel(logits)) is None:
            return self._by_torch(logits, log_probabilities, mask, forced)
        if self.compiled is None:
            self.compiled = CompiledCandidates(
                self._count, self._never, self._diversity
            )
        return Candidates(*self.compiled(numbers, log_probabilities, mask, forced))

    def _by_torch(
        self,
        logits: Float[Any, "sentences group vocab"],
        log_probabilities: Float64[np.ndarray, "sentences group"],
        mask: Bool[np.ndarray, "sentences group vocab"] | None,
        forced: Int64[np.ndarray, " sentences"] | None,
    ) -> Candidates:
        # Not before: PyTorch takes a second to load, and kernels do without it.
        from transduce.decoding.candidates.by_torch import found_by_torch

        excluded = self._never if mask is None else mask
        found = found_by_torch(
            logits, log_probabilities, self._count, excluded, forced, self._diversity
        )
        return Candidates(*found)
