"""A PyTorch model as a decoder for search."""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from transduce.architectures.models import DecoderState, Stepper
from transduce.decoding.cache import resized
from transduce.decoding.fused_step import FusedStep
from transduce.model.transformer import Memory


class IncrementalDecoder:
    """A decoder of encoded sources."""

    @torch.inference_mode()
    def __init__(self, stepper: Stepper, memory: Memory) -> None:
        self._stepper = stepper
        self._state: DecoderState = stepper.start(memory)

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        return self._stepper.step(self._as_tensor(last_ids), self._state)

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


class CoverageDecoder(IncrementalDecoder):
    """An incremental decoder that sums the attention of its hypotheses to the source.

    Attention is that of the last layer, the mean of its heads.
    """

    @torch.inference_mode()
    def __init__(self, stepper: FusedStep, memory: Memory) -> None:
        super().__init__(stepper, memory)
        self._tap = stepper.model.cross_attention_taps[-1]
        mask = memory.mask[:, 0]  # sentences 1 source
        self._attention = torch.zeros(mask.shape, device=mask.device)
        """Attention of each hypothesis to each source token, summed over steps."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        tap = self._tap.register_forward_hook(self._watch)
        try:
            return super().step(last_ids)
        finally:
            tap.remove()

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        numbers, group_size = self._as_tensor(rows), self._attention.size(1)
        sentences, parents = numbers[:, :1] // group_size, numbers % group_size
        self._attention = self._attention[sentences, parents]
        super().reorder(rows)

    @torch.inference_mode()
    def join(self, other: IncrementalDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, CoverageDecoder)
        super().join(other)
        width = self._state.memory_mask.size(-1)
        both = (self._attention, other._attention)
        self._attention = torch.cat([resized(each, width, dim=2) for each in both])

    @torch.inference_mode()
    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source tokens."""
        # Clamp: weights may underflow, and log(0) is -inf.
        least = torch.finfo(self._attention.dtype).tiny
        logs = self._attention.clamp(min=least, max=1).log()
        logs = logs.masked_fill(~self._state.memory_mask[:, 0], 0.0)
        sums: Float64[np.ndarray, "sentences group"] = (
            logs.double().sum(-1).cpu().numpy()
        )
        return sums

    def _watch(
        self,
        _: nn.Module,
        __: object,
        weights: Float[Tensor, "sentences heads group source"],
    ) -> None:
        self._attention = self._attention + weights.float().mean(dim=1)
