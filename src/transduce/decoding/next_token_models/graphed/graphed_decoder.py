"""An incremental decoder whose steps are CUDA graphs while no tensor moves."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.decoding.next_token_models.fused_step import FusedStep
from transduce.decoding.next_token_models.graphed.static_step import (
    Recorder,
    StaticStep,
)
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.model.transformer import Memory, Transformer


class GraphedDecoder(IncrementalDecoder):
    """A decoder that drops finished sentences only when they are half of all.

    Dropping a sentence moves the keys and values of all others, which makes the
    recorded graph useless.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Transformer, memory: Memory, step: FusedStep, recorder: Recorder
    ) -> None:
        super().__init__(model, memory, step)
        self._model = model
        self._fused = step
        self._recorder = recorder
        self._live = np.arange(len(memory.mask))
        """Places of unfinished sentences, in the order of the search."""
        self._static: StaticStep | None = None

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
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
        if rows.shape[1] != before:
            self._static = None
        all_rows = np.repeat(np.arange(num_places)[:, None] * before, rows.shape[1], 1)
        all_rows[self._live] = live_rows
        super().reorder(all_rows)

    @torch.inference_mode()
    def join(self, other: IncrementalDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, GraphedDecoder)
        for each in (self, other):
            group = np.arange(each._state.group_size)
            each._keep(each._live[:, None] * len(group) + group)
        super().join(other)
        self._live = np.arange(len(self._state.memory_mask))

    def _keep(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Drop all other hypotheses."""
        self._static = None  # frees its memory before keys and values move
        super().reorder(rows)
        self._live = np.arange(len(rows))

    def _step_of_all(
        self, last_ids: Int64[Tensor, "places group"]
    ) -> Float[Tensor, "places group vocab"]:
        """Step all places, those of finished sentences too."""
        if not self._state.has_room:
            self._static = None  # as in `_keep`
        if self._fused.is_watched:  # hooks do not run in a replay
            return self._fused(last_ids, self._state)
        x, seen = self._model.enter(last_ids, self._state)
        if self._static is None:
            self._static = StaticStep(self._fused, x, self._state, self._recorder)
        return self._static(x, seen)
