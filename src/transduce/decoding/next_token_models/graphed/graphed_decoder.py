"""An incremental decoder whose steps a GPU does by one call, while nothing moves."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.decoding.next_token_models.flat_step import FlatStep
from transduce.decoding.next_token_models.graphed.standing_step import (
    Recorder,
    StandingStep,
)
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.model.transformer import Memory, Transformer


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
        if rows.shape[1] != before:
            self._standing = None
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
        self._standing = None  # keys and values are to move: first free its memory
        super().reorder(rows)
        self._live = np.arange(len(rows))

    def _step_of_all(
        self, last_ids: Int64[Tensor, "places group"]
    ) -> Float[Tensor, "places group vocab"]:
        """With those that are done."""
        if not self._state.has_room:
            self._standing = None  # as in `_keep`
        if self._flat.is_watched:  # by what a record would not tell
            return self._flat(last_ids, self._state)
        x, seen = self._model.enter(last_ids, self._state)
        if self._standing is None:
            self._standing = StandingStep(self._flat, x, self._state, self._recorder)
        return self._standing(x, seen)
