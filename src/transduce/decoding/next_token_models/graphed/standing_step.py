"""A step whose numbers are in the same places of memory each time."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decoding.next_token_models.flat_step import FlatStep
from transduce.decoding.next_token_models.graphed.cuda_graphs import Run
from transduce.model.attention import additive_mask
from transduce.model.cache import DecodingState, LayerCache


@runtime_checkable
class Recorder(Protocol):
    """`CudaGraphs`, or what does the same."""

    def record(self, run: Run) -> Run:
        """What does the same again, in the same places of memory."""
        ...


class StandingStep:
    """A step for stores that stay in place: run, then recorded, then run again."""

    def __init__(
        self,
        step: FlatStep,
        x: Float[Tensor, "sentences group d_model"],
        state: DecodingState,
        recorder: Recorder,
    ) -> None:
        sentences, group, _ = x.shape
        self._recorder = recorder
        self._x = torch.empty_like(x)
        self._slots = torch.zeros(group, dtype=torch.int64, device=x.device)
        self._stores = [StandingStore.of(each, self._slots) for each in state.layers]
        # Slots that are not in use are nobody's past.
        least, room = torch.finfo(x.dtype).min, state.past.size(-1)
        self._others = x.new_full((sentences, 1, group, room), least)
        padding = additive_mask(state.memory_mask, x.dtype)
        # Not a method: what refers to itself would keep its memory for a while.
        self._run = partial(step.logits, self._x, self._stores, self._others, padding)
        self._has_run = False
        self._replay: Run | None = None

    def is_for(
        self, x: Float[Tensor, "sentences group d_model"], state: DecodingState
    ) -> bool:
        """Whether that is read, and kept, in the same places as before."""
        return x.shape == self._x.shape and all(
            store.is_of(cache)
            for store, cache in zip(self._stores, state.layers, strict=True)
        )

    def __call__(
        self,
        x: Float[Tensor, "sentences group d_model"],
        seen: Bool[Tensor, "sentences 1 group slots"],
    ) -> Float[Tensor, "sentences group vocab"]:
        """Of what the first layer reads, and of which slots each sees now."""
        group, num_slots = seen.shape[2:]
        self._x.copy_(x)
        self._others[..., :num_slots] = additive_mask(seen, x.dtype)
        torch.arange(num_slots - group, num_slots, out=self._slots)
        if self._replay is not None:
            return self._replay()
        if self._has_run:
            self._replay = self._recorder.record(self._run)
            return self._replay()
        self._has_run = True
        return self._run()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingStore:
    """What a layer's cache has, all slots of it; the newest are where `slots` says.

    That is a tensor, and so told anew to what is recorded.
    """

    key: Float[Tensor, "sentences heads slots d_k"]
    value: Float[Tensor, "sentences heads slots d_v"]
    memory_key: Float[Tensor, "sentences heads source d_k"]
    memory_value: Float[Tensor, "sentences heads source d_v"]
    slots: Int[Tensor, " group"]

    @classmethod
    def of(cls, cache: LayerCache, slots: Int[Tensor, " group"]) -> "StandingStore":
        """What that has now."""
        return cls(
            key=cache.key,
            value=cache.value,
            memory_key=cache.memory_key,
            memory_value=cache.memory_value,
            slots=slots,
        )

    def is_of(self, cache: LayerCache) -> bool:
        """Whether that has them still."""
        return (
            self.key is cache.key
            and self.value is cache.value
            and self.memory_key is cache.memory_key
            and self.memory_value is cache.memory_value
        )

    def write(
        self,
        key: Float[Tensor, "sentences heads new d_k"],
        value: Float[Tensor, "sentences heads new d_v"],
        num_slots: int,
    ) -> tuple[
        Float[Tensor, "sentences heads slots d_k"],
        Float[Tensor, "sentences heads slots d_v"],
    ]:
        """Put the newest into their slots, and return all slots."""
        assert num_slots == self.key.size(2)
        self.key.index_copy_(2, self.slots, key)
        self.value.index_copy_(2, self.slots, value)
        return self.key, self.value
