"""A decoding state while a kernel keeps it up."""

import ctypes

import torch
from jaxtyping import Int64
from torch import Tensor

from transduce.decoding.kernels.fields import StateFields
from transduce.kernels.loading import address
from transduce.model.cache import DecodingState, LayerCache
from transduce.model.transformer import Transformer


class LentState:
    """A decoding state that a kernel keeps up, until it is given back."""

    def __init__(self, state: DecodingState, model: Transformer) -> None:
        # What has been cut is not in one piece.
        state.past = state.past.contiguous()
        state.positions = state.positions.contiguous()
        state.memory_mask = state.memory_mask.contiguous()
        self.state = state
        self._places = torch.arange(len(state.lengths))
        # Of each step, though groups get smaller.
        steps = state.past.size(2) - state.num_slots
        self.positions = model.positions(
            0, state.max_length + steps, state.past.device
        ).contiguous()
        """Of the model: all that there is room for."""
        self.fields = StateFields(
            sentences=state.past.size(0),
            group=state.group_size,
            num_slots=state.num_slots,
            room=state.past.size(2),
            source=state.memory_mask.size(3),
            past=address(state.past, torch.bool),
            lengths=address(state.lengths, torch.int64),
            places=address(self._places, torch.int64),
            slot_positions=address(state.positions, torch.int64),
            memory_mask=address(state.memory_mask, torch.bool),
            layers=stores(state.layers),
        )

    def regroup(self, rows: Int64[Tensor, "kept group"]) -> None:
        """Keep these, in groups of another size, or sentences in another order."""
        state, fields = self.state, self.fields
        sentences, parents = rows[:, 0] // fields.group, rows % fields.group
        state.past = state.past[sentences[:, None], parents]
        state.lengths = state.lengths[sentences]
        self._places = self._places[sentences]
        fields.sentences, fields.group = rows.shape
        fields.past = address(state.past, torch.bool)
        fields.lengths = address(state.lengths, torch.int64)
        fields.places = address(self._places, torch.int64)

    def give_back(self) -> None:
        """Let those sentences go that have left; what no kernel has written is zero.

        For what a mask hides is to be numbers.
        """
        state, left = self.state, self.fields.sentences
        for layer in state.layers:
            layer.key[:, :, state.num_slots :] = 0.0
            layer.value[:, :, state.num_slots :] = 0.0
        state.past, state.lengths = state.past[:left], state.lengths[:left]
        places = self._places[:left]
        if not torch.equal(places, torch.arange(len(state.memory_mask))):
            state.keep_stores(places)


def stores(layers: list[LayerCache]) -> ctypes.Array[ctypes.c_int64]:
    """`LayerCache` of decoder.h for each: four times `Store`, all of 64 bits."""
    numbers: list[int] = []
    for layer in layers:
        for store in (layer.key, layer.value, layer.memory_key, layer.memory_value):
            *strides, between_numbers = store.stride()
            assert (store.dtype, between_numbers) == (torch.float32, 1)
            numbers += [store.data_ptr(), *strides]
    return (ctypes.c_int64 * len(numbers))(*numbers)
