"""The layers of a model as kernels read them, packed from its weights."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from transduce.decoding.kernels.fields import (
    LayerFields,
    LinearFields,
    NormFields,
    StackFields,
)
from transduce.decoding.kernels.packed_linear import PackedLinear
from transduce.kernels.loading import address
from transduce.model.config import ModelConfig

Array = Float[np.ndarray, "..."]
Affine = tuple[Array, Array]
"""A weight and a bias."""
Pack = Callable[[Array, Array | None], PackedLinear]
"""Packs a weight and a bias, if there is one."""


class PackedLayers:
    """Those of encoder and decoder."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Array],
        pack: Pack,
    ) -> None:
        self._config = config
        self._weights = weights
        self._pack = pack
        self.kept: list[object] = []
        """What it all points to, and must stay."""
        encoder = partial(self._layer, is_decoder=False)
        self.encoder = self._stack("encoder", config.num_layers, encoder)
        decoder = partial(self._layer, is_decoder=True)
        self.decoder = self._stack("decoder", config.num_decoder_layers, decoder)

    def linear(self, weight: Array, bias: Array | None) -> LinearFields:
        """A map, packed."""
        packed = self._pack(weight, bias)
        self.kept.append(packed)
        return packed.fields

    def _stack(
        self, name: str, number: int, make_layer: "partial[LayerFields]"
    ) -> StackFields:
        config = self._config
        each = [make_layer(f"{name}_layers.{i}") for i in range(number)]
        layers = (LayerFields * number)(*each)
        self.kept.append(layers)
        is_pre_norm = config.norm == "pre"
        final = self._norm(f"{name}_norm") if is_pre_norm else NormFields(None, None)
        return StackFields(
            num_layers=number,
            d_model=config.d_model,
            d_ff=config.d_ff,
            num_heads=config.num_heads,
            d_k=config.d_k,
            d_v=config.d_v,
            is_pre_norm=is_pre_norm,
            is_silu=config.activation == "silu",
            norm_epsilon=config.norm_epsilon,
            layers=layers,
            final=final,
        )

    def _layer(self, name: str, *, is_decoder: bool) -> LayerFields:
        """An encoder's has nothing in the places of what is the decoder's."""
        own, memory = f"{name}.self_attention", f"{name}.memory_attention"
        fields = LayerFields(
            query_key_value=self.linear(*self._query_key_value(own)),
            own_output=self._linear(f"{own}.project_output"),
            inner=self._linear(f"{name}.feed_forward.inner"),
            outer=self._linear(f"{name}.feed_forward.outer"),
            after_own=self._norm(f"{name}.after_self_attention.norm"),
            after_feed_forward=self._norm(f"{name}.after_feed_forward.norm"),
        )
        if is_decoder:
            fields.memory_query = self.linear(*self._query(memory))
            fields.memory_key_value = self._linear(f"{memory}.project_key_value")
            fields.memory_output = self._linear(f"{memory}.project_output")
            fields.after_memory = self._norm(f"{name}.after_memory_attention.norm")
        return fields

    def _linear(self, name: str) -> LinearFields:
        return self.linear(*self._affine(name))

    def _query(self, attention: str) -> Affine:
        """What makes queries, scaled as their scores are to be (equation 1)."""
        weight, bias = self._affine(f"{attention}.project_query")
        if self._config.scores == "unscaled":
            return weight, bias
        scale = 1 / math.sqrt(self._config.d_k)
        return weight * scale, bias * scale

    def _query_key_value(self, attention: str) -> Affine:
        both = self._query(attention), self._affine(f"{attention}.project_key_value")
        weight, bias = map(np.concatenate, zip(*both, strict=True))
        return weight, bias

    def _norm(self, name: str) -> NormFields:
        kept = [np.array(each, np.float32, order="C") for each in self._affine(name)]
        self.kept.append(kept)
        return NormFields(*map(address, kept))

    def _affine(self, name: str) -> Affine:
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]


def has_kernels_for(config: ModelConfig) -> bool:
    """Whether they compute its layers: additive scores are no product."""
    return config.scores != "additive"
