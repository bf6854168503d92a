"""An incremental decoder whose steps a GPU does by one call, while nothing moves."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from transduce.decoding.next_token_models.cuda_graphs import Run
from transduce.decoding.next_token_models.flat_step import FlatStep
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.model.attention import additive_mask
from transduce.model.cache import DecodingState, LayerCache
from transduce.model.transformer import Memory, Transformer


@runtime_checkable
class Recorder(Protocol):
    """`CudaGraphs`, or what does the same."""

    def record(self, run: Run) -> Run:
        """What does the same again, in the same places of memory."""
        ...


class GraphedDecoder(IncrementalDecoder):
    """One whose sentences that are done stay, unasked for, until half of all are.

    For when one leaves, the keys and values of all others move, and what was recorded
    is of no use.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Transformer, memory: Memory, step: FlatStep, recorder: Recorder
    ) -> None:
        super().__init__(model, memory, step)
        self._model = model
        self._flat = step
        self._recorder = recorder
        self._live = np.arange(len(memory.mask))
        """Places of the sentences that are not done, in the order that search has."""
        self._standing: StandingStep | None = None

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        num_places = len(self._state.memory_mask)
        ids = np.zeros((num_places, last_ids.shape[1]), dtype=np.int64)
        ids[self._live] = last_ids
        logits = self._step_of_all(self._as_tensor(ids))
        if np.array_equal(self._live, np.arange(num_places)):
            return logits
        return logits[torch.from_numpy(self._live).to(logits.device)]

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        before = self._state.group_size
        sentences, parents = rows[:, :1] // before, rows % before
        self._live = self._live[sentences[:, 0]]
        live_rows = self._live[:, None] * before + parents
        num_places = len(self._state.memory_mask)
        if 2 * len(self._live) <= num_places:
            self._keep(live_rows)
            return
        all_rows = np.repeat(np.arange(num_places)[:, None] * before, rows.shape[1], 1)
        all_rows[self._live] = live_rows
        super().reorder(all_rows)

    @torch.inference_mode()
    def join(self, other: IncrementalDecoder) -> None:
        """Put the sentences of another behind one's own."""
        assert isinstance(other, GraphedDecoder)
        for each in (self, other):
            group = np.arange(each._state.group_size)
            each._keep(each._live[:, None] * len(group) + group)
        super().join(other)
        self._live = np.arange(len(self._state.memory_mask))

    def _keep(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """These hypotheses alone."""
        super().reorder(rows)
        self._live = np.arange(len(rows))

    def _step_of_all(
        self, last_ids: Int64[Tensor, "places group"]
    ) -> Float[Tensor, "places group vocab"]:
        """With those that are done."""
        if self._flat.is_watched:  # by what a record would not tell
            return self._flat(last_ids, self._state)
        x, seen = self._model.enter(last_ids, self._state)
        if self._standing is None or not self._standing.is_for(x, self._state):
            self._standing = StandingStep(self._flat, x, self._state, self._recorder)
        return self._standing(x, seen)


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
