"""A decoding step whose tensors stay in the same places of memory."""

from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.decoding.next_token_models.fused_step import FusedStep
from transduce.decoding.next_token_models.graphed.cuda_graphs import Run
from transduce.model.attention import additive_mask
from transduce.model.cache import DecodingState


@runtime_checkable
class Recorder(Protocol):
    """`CudaGraphs`, or a stand-in for tests."""

    def record(self, run: Run) -> Run:
        """Return a function that does the same, in the same places of memory."""
        ...


class StaticStep:
    """A step of a state that is run once, then recorded, then replayed.

    It is valid until keys and values move or groups change their size.
    """

    def __init__(
        self,
        step: FusedStep,
        x: Float[Tensor, "sentences group d_model"],
        state: DecodingState,
        recorder: Recorder,
    ) -> None:
        sentences, group, _ = x.shape
        self._recorder = recorder
        self._x = torch.empty_like(x)
        self._newest = torch.zeros(group, dtype=torch.int64, device=x.device)
        # Unused slots belong to no hypothesis.
        least, room = torch.finfo(x.dtype).min, state.past.size(-1)
        self._others = x.new_full((sentences, 1, group, room), least)
        padding = additive_mask(state.memory_mask, x.dtype)
        # Not a method: a reference cycle would keep the memory until a collection.
        masks = self._others, padding
        self._run = partial(step.logits, self._x, state.layers, *masks, self._newest)
        self._has_run = False
        self._replay: Run | None = None

    def __call__(
        self,
        x: Float[Tensor, "sentences group d_model"],
        seen: Bool[Tensor, "sentences 1 group slots"],
    ) -> Float[Tensor, "sentences group vocab"]:
        """Return logits from embedded tokens and the mask of slots."""
        group, num_slots = seen.shape[2:]
        self._x.copy_(x)
        self._others[..., :num_slots] = additive_mask(seen, x.dtype)
        torch.arange(num_slots - group, num_slots, out=self._newest)
        if self._replay is not None:
            return self._replay()
        if self._has_run:
            self._replay = self._recorder.record(self._run)
            return self._replay()
        self._has_run = True
        return self._run()
