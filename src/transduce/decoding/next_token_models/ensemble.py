"""Several models that decide together, token by token."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.decoding.search import JoinableModel


class Ensemble:
    """The mean of the probabilities of models with one vocabulary."""

    def __init__(self, members: Sequence[JoinableModel]) -> None:
        self._members = members

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the log-probabilities of the next."""
        logits = [torch.as_tensor(each.step(last_ids)) for each in self._members]
        each = [of_member.float().log_softmax(dim=-1) for of_member in logits]
        return torch.stack(each).logsumexp(dim=0) - math.log(len(each))

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        for member in self._members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Put the sentences of another behind one's own."""
        for mine, theirs in zip(self._members, other._members, strict=True):
            mine.join(theirs)
