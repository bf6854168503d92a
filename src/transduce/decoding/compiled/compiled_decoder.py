"""The decoder of a compiled model, step by step or several at once."""

import ctypes

import numpy as np
from jaxtyping import Float32, Int64

from transduce.decoding.compiled.compiled_model import CompiledModel
from transduce.decoding.compiled.decoder_state import DecoderState
from transduce.decoding.growing_search import GrowingSearch
from transduce.decoding.kernels.compiled_beams import CompiledBeams
from transduce.decoding.kernels.compiled_candidates import CompiledCandidates
from transduce.decoding.kernels.fields import StepsFields
from transduce.decoding.kernels.library import OTHER_GROUPS, require_done
from transduce.decoding.search import Search
from transduce.kernels.loading import address, room_for
from transduce.kernels.openmp import num_threads

MOST_ROWS = 1_024
"""Of all steps that one call takes: who wants to stop it waits until then."""


class CompiledDecoder:
    """A model that has read sources, and reads their translations token by token."""

    def __init__(self, model: CompiledModel, state: DecoderState) -> None:
        self._model = model
        self._state = state

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float32[np.ndarray, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        state = self._with_room()
        fields = state.fields
        assert last_ids.shape == (fields.sentences, fields.group)
        last_ids = np.ascontiguousarray(last_ids)
        logits = room_for(*last_ids.shape, self._vocab_size)
        status = self._model.library.transduce_step(
            ctypes.byref(self._model.fields),
            ctypes.byref(fields),
            address(last_ids, np.int64),
            address(state.positions),
            address(logits),
            num_threads(),
        )
        require_done(status)
        state.max_length += 1
        return logits

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Search, few: int
    ) -> Int64[np.ndarray, "kept grown"] | None:
        """Some, none after one that leaves `few` sentences or fewer; what is read next.

        None if not all of it is done by kernels, or groups are yet to get larger.
        """
        if not isinstance(search, GrowingSearch) or search.find.is_masked:
            return None
        if type(search).grow is not GrowingSearch.grow:
            return None
        beams, candidates = search.growing, search.find.compiled
        if not isinstance(beams, CompiledBeams) or candidates is None:
            return None
        if self._state.fields.group != beams.size:
            return None
        return self._steps_taken(last_ids, beams, candidates, few)

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

    def _with_room(self) -> DecoderState:
        """Where it stands, with room for a step."""
        if not self._state.has_room:
            self._state = self._model.gathered([self._state])
        return self._state

    @property
    def _vocab_size(self) -> int:
        return int(self._model.fields.output.outputs)

    def _steps_taken(
        self,
        last_ids: Int64[np.ndarray, "sentences group"],
        beams: CompiledBeams,
        candidates: CompiledCandidates,
        few: int,
    ) -> Int64[np.ndarray, "kept beam"]:
        """Some for which there is room."""
        state = self._with_room()
        fields = state.fields
        assert last_ids.shape == (fields.sentences, fields.group)
        assert last_ids.shape == (len(beams.live), beams.size)
        asked = candidates.asked_of(*last_ids.shape, self._vocab_size)
        steps = StepsFields(
            decoder=ctypes.addressof(self._model.fields),
            state=ctypes.addressof(fields),
            positions=address(state.positions),
            candidates=ctypes.addressof(asked),
            most=max(min(state.steps_left, MOST_ROWS // last_ids.size), 1),
            few=few,
        )
        beams.fill_in(steps, last_ids)
        status = self._model.library.transduce_steps(ctypes.byref(steps), num_threads())
        # Also if one has failed: those before it were taken.
        read_next = beams.grown(steps)
        state.max_length += steps.taken + bool(status)
        require_done(status)
        assert status != OTHER_GROUPS
        return read_next
