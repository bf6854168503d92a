"""A PyTorch model with its cache as a decoder for search."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.model.cache import DecodingState
from transduce.model.transformer import Memory, Transformer

Step = Callable[[Tensor, DecodingState], Tensor]
"""`Transformer.step`, or a function that does the same."""


class IncrementalDecoder:
    """A decoder of encoded sources."""

    @torch.inference_mode()
    def __init__(
        self, model: Transformer, memory: Memory, step: Step | None = None
    ) -> None:
        """Begin; `step` replaces the model's own if it is given."""
        self._step = step or model.step
        self._state = model.start(memory)

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        return self._step(self._as_tensor(last_ids), self._state)

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        self._state.reorder(self._as_tensor(rows))

    @torch.inference_mode()
    def join(self, other: "IncrementalDecoder") -> None:
        """Append the sentences of another decoder."""
        self._state.join(other._state)

    def _as_tensor(
        self, numbers: Int64[np.ndarray, "rows columns"]
    ) -> Int64[Tensor, "rows columns"]:
        """Return numbers on the model's device."""
        return torch.from_numpy(numbers).to(self._state.memory_mask.device)
