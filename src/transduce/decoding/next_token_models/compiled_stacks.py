"""Encoder and decoder, each as one call of a kernel, in 8 bits."""

import ctypes
import math

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from transduce.decoding.kernels.fields import (
    DecoderFields,
    LayerFields,
    LinearFields,
    NormFields,
    SourceFields,
    StackFields,
    StateFields,
)
from transduce.decoding.kernels.library import (
    address,
    loaded_kernels,
    require_done,
)
from transduce.decoding.kernels.packed_linear import PackedLinear
from transduce.decoding.next_token_models.flat_step import (
    FlatEncoderLayer,
    FlatLayer,
    FlatResidual,
    FlatStep,
    Linear,
)
from transduce.model.attention import padding_mask
from transduce.model.cache import DecodingState
from transduce.model.config import ModelConfig
from transduce.model.transformer import Memory, Transformer
from transduce.special_ids import PAD


class CompiledEncoder:
    """`Transformer.encode` with packed linear maps; what it says of padding is zero.

    Nobody can look at what it attends to.
    """

    def __init__(self, model: Transformer, layers: list[FlatEncoderLayer]) -> None:
        self._library = loaded_kernels()
        self._model = model
        self._layers = layers  # whose numbers must stay
        fields = (LayerFields * len(layers))(*map(_encoder_layer_fields, layers))
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


class CompiledStep:
    """What a flat step of packed linear maps does, without an operator between them."""

    def __init__(
        self, model: Transformer, flat: FlatStep, output: PackedLinear
    ) -> None:
        self._library = loaded_kernels()
        self._model = model
        self._flat = flat
        layers = (LayerFields * len(flat.layers))(*map(_layer_fields, flat.layers))
        self._decoder = DecoderFields(
            stack=_stack_fields(model.config, layers, model.decoder_norm),
            embedding=address(model.output_weight),
            embedding_scale=math.sqrt(model.config.d_model),
            output=output.fields,
        )

    def __call__(
        self, last_ids: Int64[Tensor, "sentences group"], state: DecodingState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        if self._flat.is_watched:
            return self._flat(last_ids, state)
        positions = self._model.positions.at(state.lengths, state.max_length)
        seen = self._model.see(state).contiguous()
        mask = state.memory_mask.contiguous()
        last_ids = last_ids.contiguous()
        fields = StateFields(
            *last_ids.shape,
            seen.size(-1),
            mask.size(-1),
            address(last_ids, torch.int64),
            address(positions),
            address(seen, torch.bool),
            address(mask, torch.bool),
            ctypes.cast(_stores(state), ctypes.c_void_p),
        )
        logits = positions.new_empty(*last_ids.shape, self._decoder.output.outputs)
        status = self._library.transduce_step(
            ctypes.byref(self._decoder),
            ctypes.byref(fields),
            address(logits),
            torch.get_num_threads(),
        )
        require_done(status)
        return logits


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


def _encoder_layer_fields(layer: FlatEncoderLayer) -> LayerFields:
    return LayerFields(
        query_key_value=_linear_fields(layer.query_key_value),
        own_output=_linear_fields(layer.own_output),
        inner=_linear_fields(layer.inner),
        outer=_linear_fields(layer.outer),
        after_own=_norm_fields(layer.after_own),
        after_feed_forward=_norm_fields(layer.after_feed_forward),
    )


def _layer_fields(layer: FlatLayer) -> LayerFields:
    return LayerFields(
        query_key_value=_linear_fields(layer.query_key_value),
        own_output=_linear_fields(layer.own.output),
        memory_query=_linear_fields(layer.memory_query),
        memory_output=_linear_fields(layer.memory.output),
        inner=_linear_fields(layer.inner),
        outer=_linear_fields(layer.outer),
        after_own=_norm_fields(layer.after_own),
        after_memory=_norm_fields(layer.after_memory),
        after_feed_forward=_norm_fields(layer.after_feed_forward),
    )


def _linear_fields(linear: Linear) -> LinearFields:
    assert isinstance(linear, PackedLinear)
    return linear.fields


def _norm_fields(norm: FlatResidual | nn.LayerNorm) -> NormFields:
    return NormFields(address(norm.weight), address(norm.bias))


def _stores(state: DecodingState) -> ctypes.Array[ctypes.c_int64]:
    """`LayerCache` of decoder.c for each layer: four times `Store`, all of 64 bits."""
    numbers: list[int] = []
    for layer in state.layers:
        for store in (layer.key, layer.value, layer.memory_key, layer.memory_value):
            *strides, between_numbers = store.stride()
            assert between_numbers == 1
            numbers += [store.data_ptr(), *strides]
    return (ctypes.c_int64 * len(numbers))(*numbers)
