"""A model and its cache as what search needs."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.model.cache import DecodingState
from transduce.model.transformer import Memory, Transformer

Step = Callable[[Tensor, DecodingState], Tensor]
"""`Transformer.step`, or what does the same."""


class IncrementalDecoder:
    """A model that has read sources, and reads their translations token by token."""

    @torch.inference_mode()
    def __init__(
        self, model: Transformer, memory: Memory, step: Step | None = None
    ) -> None:
        """`step` does what the model's own does, if it is given."""
        self._step = step or model.step
        self._state = model.start(memory)

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        return self._step(self._as_tensor(last_ids), self._state)

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        self._state.reorder(self._as_tensor(rows))

    @torch.inference_mode()
    def join(self, other: "IncrementalDecoder") -> None:
        """Put the sentences of another behind one's own."""
        self._state.join(other._state)

    def _as_tensor(
        self, numbers: Int64[np.ndarray, "rows columns"]
    ) -> Int64[Tensor, "rows columns"]:
        """On the model's device."""
        return torch.from_numpy(numbers).to(self._state.memory_mask.device)
