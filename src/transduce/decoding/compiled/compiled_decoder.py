"""The decoder of a compiled model, step by step or several at once."""

import ctypes
from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Float64, Int64

from transduce.decoding.compiled.compiled_model import CompiledModel
from transduce.decoding.compiled.decoder_state import DecoderState
from transduce.decoding.kernels.library import NO_ROOM, OTHER_GROUPS, require_done
from transduce.kernels.loading import address, room_for
from transduce.kernels.openmp import num_threads


class CompiledDecoder:
    """A model that has read sources, and reads their translations token by token."""

    def __init__(self, model: CompiledModel, state: DecoderState) -> None:
        self._model = model
        self._state = state

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float32[np.ndarray, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        assert last_ids.shape == self._groups
        last_ids = np.ascontiguousarray(last_ids)
        logits = room_for(*last_ids.shape, self._vocab_size)
        status = self._with_room(
            lambda state: self._model.library.transduce_step(
                ctypes.byref(self._model.fields),
                ctypes.byref(state.fields),
                address(last_ids, np.int64),
                address(state.positions),
                address(logits),
                num_threads(),
            )
        )
        require_done(status)
        return logits

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        fields = self._state.fields
        if rows.shape[1] == fields.group:
            rows = np.ascontiguousarray(rows)
            status = self._model.library.transduce_reorder(
                ctypes.byref(fields), address(rows, np.int64), len(rows)
            )
            require_done(status)
            if status != OTHER_GROUPS:
                return
        self._state.regroup(rows)

    def join(self, other: "CompiledDecoder") -> None:
        """Put the sentences of another behind one's own."""
        self._state = self._model.gathered([self._state, other._state])

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Sum of log(min(attention, 1)) over the source tokens, end included.

        The state must be watched. Attention is the mean over the last layer's heads.
        """
        assert self._state.is_watched
        coverages = np.empty(self._groups)
        self._model.library.transduce_coverage(
            ctypes.byref(self._state.fields), address(coverages, np.float64)
        )
        return coverages

    def _with_room(self, step: Callable[[DecoderState], int]) -> int:
        """What a kernel says that takes steps, after more room was made if it must."""
        status = step(self._state)
        if status == NO_ROOM:
            self._state = self._model.gathered([self._state])
            status = step(self._state)
            assert status != NO_ROOM
        return status

    @property
    def _groups(self) -> tuple[int, int]:
        """Sentences, and hypotheses of each."""
        return self._state.fields.sentences, self._state.fields.group

    @property
    def _vocab_size(self) -> int:
        return int(self._model.fields.output.outputs)
