"""Encoder and decoder, each as one call of a kernel, in fp32 or in 8 bits."""

import ctypes
import math
from itertools import accumulate

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from transduce.decoding.candidates import GrowingSearch
from transduce.decoding.kernels.compiled_beams import CompiledBeams
from transduce.decoding.kernels.compiled_candidates import CompiledCandidates
from transduce.decoding.kernels.fields import (
    DecoderFields,
    LayerFields,
    LinearFields,
    NeedsFields,
    NormFields,
    SourceFields,
    StackFields,
    StateFields,
    StepsFields,
)
from transduce.decoding.kernels.lent_state import LentState, stores
from transduce.decoding.kernels.library import (
    OTHER_GROUPS,
    loaded_kernels,
    require_done,
)
from transduce.decoding.kernels.packed_linear import PackedLinear
from transduce.decoding.next_token_models.flat_step import (
    FlatDecoderLayer,
    FlatLayer,
    FlatResidual,
    FlatStep,
    LinearMap,
)
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.search import Search
from transduce.kernels.loading import address
from transduce.model.attention import padding_mask
from transduce.model.cache import (
    DecodingState,
    LayerCache,
    first_room,
    new_state,
    room_ahead,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Memory, Transformer
from transduce.special_ids import PAD

FAR = 2**62
"""A neighbourhood that is everything."""
MOST_ROWS = 1_024
"""Of all steps that one call takes: who wants to stop it waits until then."""


class CompiledEncoder:
    """`Transformer.encode` with packed linear maps; what it says of padding is zero.

    Nobody can look at what it attends to.
    """

    def __init__(self, model: Transformer, layers: list[FlatLayer]) -> None:
        self._library = loaded_kernels()
        self._model = model
        self._numbers = [layers, _storage(model)]  # which must stay
        fields = (LayerFields * len(layers))(*map(_layer_fields, layers))
        self._stack = _stack_fields(model.config, fields, model.encoder_norm)

    def __call__(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Read the sources."""
        mask = padding_mask(source, PAD).contiguous()
        x = self._model.embed(source, self._model.embedding).contiguous()
        # A neighbourhood as wide as that is everything.
        near = self._model.config.neighbourhood or source.size(1)
        sources = SourceFields(*source.shape, near, address(mask, torch.bool))
        status = self._library.transduce_encode(
            ctypes.byref(self._stack),
            ctypes.byref(sources),
            address(x),
            torch.get_num_threads(),
        )
        require_done(status)
        return Memory(states=x, mask=mask)


class CompiledDecoder(IncrementalDecoder):
    """A model that has read sources; its steps are calls of a kernel.

    Whose past a slot is, how far each sentence is and which are still there, the kernel
    keeps up itself, in the tensors of the state. Of sentences that have left, keys and
    values are still there until room is made for others.
    """

    def __init__(self, stack: "CompiledStack", memory: Memory) -> None:
        super().__init__(stack.model, memory, stack.flat, stack.start)
        self._stack = stack
        self._lent: LentState | None = LentState(self._state, stack.model)
        """The state while the kernel keeps it up."""

    def step(
        self, last_ids: Int64[Tensor, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        if self._stack.flat.is_watched:
            self._taken_back()
            return super().step(last_ids)
        lent = self._lend()
        if not self._state.has_room:
            lent = self._gather([lent])
        logits = self._stack.step(last_ids, lent.fields, lent.positions)
        self._state.num_slots = lent.fields.num_slots
        self._state.max_length += 1
        return logits

    def take_steps(
        self, last_ids: Int64[Tensor, "sentences group"], search: Search
    ) -> Int64[Tensor, "kept grown"] | None:
        """Some, none after one by which a sentence is done; what is read next.

        None if not all of it is done by kernels, or groups are yet to get larger.
        """
        if self._stack.flat.is_watched or not isinstance(search, GrowingSearch):
            return None
        if search.find.is_masked or type(search).grow is not GrowingSearch.grow:
            return None
        beams, candidates = search.growing, search.find.compiled
        if not isinstance(beams, CompiledBeams) or candidates is None:
            return None
        lent = self._lend()
        if lent.fields.group != beams.size:
            return None
        if not self._state.has_room:
            lent = self._gather([lent])
        return self._stack.take_steps(last_ids, lent, beams, candidates)

    def reorder(self, rows: Int64[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        if self._lent is None:
            self._state.reorder(rows)
        elif not self._stack.reorder(rows, self._lent.fields):
            self._lent.regroup(rows)

    def join(self, other: IncrementalDecoder) -> None:
        """Put the sentences of another behind one's own."""
        assert isinstance(other, CompiledDecoder)
        self._gather([self._lend(), other._lend()])

    def _lend(self) -> LentState:
        if self._lent is None:
            self._lent = LentState(self._state, self._stack.model)
        return self._lent

    def _gather(self, lent: list[LentState]) -> LentState:
        """Go on with all of their sentences, with room for more slots."""
        self._lent = self._stack.gathered(lent)
        self._state = self._lent.state
        return self._lent

    def _taken_back(self) -> DecodingState:
        if self._lent is not None:
            self._lent.give_back()
            self._lent = None
        return self._state


class CompiledStack:
    """What a flat step of packed linear maps does, without an operator between them."""

    def __init__(
        self, model: Transformer, flat: FlatStep, output: PackedLinear
    ) -> None:
        self.model = model
        self.flat = flat
        self._numbers = _storage(model)  # which must stay
        self._library = loaded_kernels()
        fields = map(_decoder_layer_fields, flat.layers)
        layers = (LayerFields * len(flat.layers))(*fields)
        neighbourhood = model.config.neighbourhood
        self._decoder = DecoderFields(
            stack=_stack_fields(model.config, layers, model.decoder_norm),
            embedding=address(model.output_weight),
            embedding_scale=math.sqrt(model.config.d_model),
            neighbourhood=FAR if neighbourhood is None else neighbourhood,
            output=output.fields,
        )

    def start(self, memory: Memory) -> DecodingState:
        """`Transformer.start`."""
        states = memory.states.contiguous()
        sentences, source, _ = states.shape
        layers = self._new_caches(sentences, source, first_room(sentences))
        status = self._library.transduce_start(
            ctypes.byref(self._decoder),
            address(states),
            sentences,
            source,
            stores(layers),
            torch.get_num_threads(),
        )
        require_done(status)
        return new_state(layers, memory.mask)

    def gathered(self, lent: list[LentState]) -> LentState:
        """The sentences of all, in groups of one size, in stores of their own.

        There is room for more slots, as those that are nobody's past are gone.
        """
        assert len({each.fields.group for each in lent}) == 1
        needs, measure = NeedsFields(), self._library.transduce_measure
        for each in lent:
            require_done(measure(ctypes.byref(each.fields), ctypes.byref(needs)))
        counts = [each.fields.sentences for each in lent]
        into = LentState(self._room_for(needs, sum(counts), lent[0]), self.model)
        for each, first in zip(lent, accumulate(counts, initial=0), strict=False):
            status = self._library.transduce_gather(
                ctypes.byref(self._decoder),
                ctypes.byref(each.fields),
                ctypes.byref(into.fields),
                first,
            )
            require_done(status)
        return into

    def _room_for(
        self, needs: NeedsFields, sentences: int, like: LentState
    ) -> DecodingState:
        group, source = like.fields.group, needs.source
        room = room_ahead(needs.slots, group)
        mask = like.state.memory_mask
        return DecodingState(
            layers=self._new_caches(sentences, source, room),
            memory_mask=mask.new_empty(sentences, 1, 1, source),
            past=mask.new_empty(sentences, group, room),
            positions=mask.new_empty(sentences, room, dtype=torch.int64),
            lengths=mask.new_empty(sentences, dtype=torch.int64),
            num_slots=needs.slots,
            max_length=needs.length,
        )

    def _new_caches(self, sentences: int, source: int, room: int) -> list[LayerCache]:
        """Of all layers, without numbers."""
        config, number = self.model.config, len(self.flat.layers)
        first, heads = (number, sentences), config.num_heads
        # All heads of a slot side by side, as those of a hypothesis lie far apart.
        own = [
            torch.empty(*first, room, heads, width, dtype=torch.float32).transpose(2, 3)
            for width in (config.d_k, config.d_v)
        ]
        far = [
            torch.empty(*first, heads, source, width, dtype=torch.float32)
            for width in (config.d_k, config.d_v)
        ]
        stores = [*own, *far]
        return [
            LayerCache(key=key, value=value, memory_key=far_key, memory_value=far_value)
            for key, value, far_key, far_value in zip(*stores, strict=True)
        ]

    def step(
        self,
        last_ids: Int64[Tensor, "sentences group"],
        state: StateFields,
        positions: Float[Tensor, "positions d_model"],
    ) -> Float[Tensor, "sentences group vocab"]:
        """The logits after one more token of each; there are positions enough."""
        assert last_ids.shape == (state.sentences, state.group)
        last_ids = last_ids.contiguous()
        logits = positions.new_empty(*last_ids.shape, self._decoder.output.outputs)
        status = self._library.transduce_step(
            ctypes.byref(self._decoder),
            ctypes.byref(state),
            address(last_ids, torch.int64),
            address(positions),
            address(logits),
            torch.get_num_threads(),
        )
        require_done(status)
        return logits

    def take_steps(
        self,
        last_ids: Int64[Tensor, "sentences group"],
        lent: LentState,
        beams: CompiledBeams,
        candidates: CompiledCandidates,
    ) -> Int64[Tensor, "kept beam"]:
        """Some for which there is room, none after one by which a sentence leaves.

        What is read next.
        """
        state, vocab = lent.fields, self._decoder.output.outputs
        assert last_ids.shape == (state.sentences, state.group)
        assert last_ids.shape == (len(beams.live), beams.size)
        logits = lent.positions.new_empty(state.sentences, state.group, vocab)
        asked = candidates.asked_of(*logits.shape)
        room = (state.room - state.num_slots) // state.group
        steps = StepsFields(
            decoder=ctypes.addressof(self._decoder),
            state=ctypes.addressof(state),
            positions=address(lent.positions),
            candidates=ctypes.addressof(asked),
            logits=address(logits),
            most=max(min(room, MOST_ROWS // last_ids.numel()), 1),
        )
        beams.fill_in(steps, last_ids)
        status = self._library.transduce_steps(
            ctypes.byref(steps), torch.get_num_threads()
        )
        # Also if one has failed: those before it were taken.
        read_next = beams.grown(steps)
        lent.state.num_slots = state.num_slots
        lent.state.max_length += steps.taken + bool(status)
        require_done(status)
        assert status != OTHER_GROUPS
        return read_next

    def reorder(self, rows: Int64[Tensor, "kept group"], state: StateFields) -> bool:
        """Whether groups stay as large and sentences in order; if so, it is done."""
        if rows.size(1) != state.group:
            return False
        rows = rows.contiguous()
        status = self._library.transduce_reorder(
            ctypes.byref(state), address(rows, torch.int64), len(rows)
        )
        require_done(status)
        return bool(status != OTHER_GROUPS)


def _storage(model: Transformer) -> list[Tensor]:
    """What the model's numbers stand in now, though it may be cast afterwards."""
    return [each.detach() for each in model.parameters()]


def _stack_fields(
    config: ModelConfig, layers: ctypes.Array[LayerFields], final: nn.Module
) -> StackFields:
    return StackFields(
        num_layers=len(layers),
        d_model=config.d_model,
        d_ff=config.d_ff,
        num_heads=config.num_heads,
        d_k=config.d_k,
        d_v=config.d_v,
        is_pre_norm=config.norm == "pre",
        is_silu=config.activation == "silu",
        norm_epsilon=config.norm_epsilon,
        layers=layers,
        final=(
            _norm_fields(final)
            if isinstance(final, nn.LayerNorm)
            else NormFields(None, None)
        ),
    )


def _layer_fields(layer: FlatLayer) -> LayerFields:
    """Those of an encoder's layer; what makes it a decoder's is left empty."""
    return LayerFields(
        query_key_value=_linear_fields(layer.query_key_value),
        own_output=_linear_fields(layer.own.output),
        inner=_linear_fields(layer.inner),
        outer=_linear_fields(layer.outer),
        after_own=_norm_fields(layer.after_own),
        after_feed_forward=_norm_fields(layer.after_feed_forward),
    )


def _decoder_layer_fields(layer: FlatDecoderLayer) -> LayerFields:
    fields = _layer_fields(layer)
    fields.memory_query = _linear_fields(layer.memory_query)
    fields.memory_key_value = _linear_fields(layer.memory_key_value)
    fields.memory_output = _linear_fields(layer.memory.output)
    fields.after_memory = _norm_fields(layer.after_memory)
    return fields


def _linear_fields(linear: LinearMap) -> LinearFields:
    assert isinstance(linear, PackedLinear)
    return linear.fields


def _norm_fields(norm: FlatResidual | nn.LayerNorm) -> NormFields:
    return NormFields(address(norm.weight), address(norm.bias))
