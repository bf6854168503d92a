"""Several models that decode together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from transduce.decoding.probabilities import log_mean, log_softmax
from transduce.decoding.search import JoinableModel


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
        from transduce.decoding.probabilities_by_torch import log_mean_by_torch

        return log_mean_by_torch(logits)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        for member in self._members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Append the sentences of another ensemble."""
        for mine, theirs in zip(self._members, other._members, strict=True):
            mine.join(theirs)
