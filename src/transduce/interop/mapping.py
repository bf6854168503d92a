"""Weights of a model by their role, for export to other libraries."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.errors import RequestError
from transduce.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Linear map, or scale and shift of a layer norm."""

    weight: Tensor
    bias: Tensor

    def __add__(self, other: "Affine") -> "Affine":
        """Concatenate the outputs of two maps, which then are one product."""
        return Affine(
            weight=torch.cat([self.weight, other.weight]),
            bias=torch.cat([self.bias, other.bias]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Weights of a multi-head attention."""

    query: Affine
    """For unscaled scores, multiplied by sqrt(d_k), by which the other library
    divides."""
    key: Affine
    value: Affine
    output: Affine
    norm: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of a layer."""

    self_attention: Attention
    cross_attention: Attention | None
    """Cross-attention of a decoder layer; None in an encoder."""
    inner: Affine
    outer: Affine
    feed_forward_norm: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Weights of an encoder or a decoder."""

    layers: tuple[Layer, ...]
    final_norm: Affine | None
    """Norm after the last layer of a pre-norm model; None for post-norm."""


def encoder(checkpoint: Checkpoint) -> Stack:
    """Return the encoder's weights."""
    return _stack(checkpoint, "encoder")


def decoder(checkpoint: Checkpoint) -> Stack:
    """Return the decoder's weights."""
    return _stack(checkpoint, "decoder")


def require(target: str, config: ModelConfig, **settings: object) -> None:
    """Raise `RequestError` unless the model has the settings that the target
    supports."""
    for name, value in settings.items():
        if (actual := getattr(config, name)) != value:
            raise RequestError(
                f"A model for {target} must have `model.{name}` = {_shown(value)}, but "
                f"has {_shown(actual)}; it cannot be exported there."
            )


def require_one_vocabulary(target: str, config: ModelConfig) -> None:
    """Raise `RequestError` if the target side has its own vocabulary."""
    if config.target_vocab_size is not None:
        raise RequestError(
            f"A model for {target} must have one vocabulary for source and target, but "
            "this one parses, and has two; it cannot be exported there."
        )


def require_plain_attention(target: str, config: ModelConfig) -> None:
    """Raise `RequestError` unless attention is a dot product with d_k = d_v =
    d_model/h.

    It must have no neighbourhood. Unscaled dot products are supported: the scale goes
    into the queries.
    """
    width = config.d_model / config.num_heads
    require(target, config, d_k=width, d_v=width, neighbourhood=None)
    if config.scores == "additive":
        require(target, config, scores="scaled")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _stack(checkpoint: Checkpoint, name: str) -> Stack:
    weights, config = checkpoint.weights, checkpoint.transformer_config
    return Stack(
        layers=tuple(
            _layer(weights, config, f"{name}_layers.{i}", name == "decoder")
            for i in range(
                config.num_layers if name == "encoder" else config.num_decoder_layers
            )
        ),
        final_norm=_affine(weights, f"{name}_norm") if config.norm == "pre" else None,
    )


def _layer(
    weights: Mapping[str, Tensor], config: ModelConfig, name: str, has_memory: bool
) -> Layer:
    return Layer(
        self_attention=_attention(weights, config, name, "self_attention"),
        cross_attention=_attention(weights, config, name, "cross_attention")
        if has_memory
        else None,
        inner=_affine(weights, f"{name}.feed_forward.inner"),
        outer=_affine(weights, f"{name}.feed_forward.outer"),
        feed_forward_norm=_affine(weights, f"{name}.after_feed_forward.norm"),
    )


def _attention(
    weights: Mapping[str, Tensor], config: ModelConfig, layer: str, kind: str
) -> Attention:
    query = _affine(weights, f"{layer}.{kind}.project_query")
    key_value = _affine(weights, f"{layer}.{kind}.project_key_value")
    num_keys = config.num_heads * config.d_k
    # Other libraries always divide by sqrt(d_k).
    scale = math.sqrt(config.d_k) if config.scores == "unscaled" else 1.0
    return Attention(
        query=Affine(weight=query.weight * scale, bias=query.bias * scale),
        key=Affine(weight=key_value.weight[:num_keys], bias=key_value.bias[:num_keys]),
        value=Affine(
            weight=key_value.weight[num_keys:], bias=key_value.bias[num_keys:]
        ),
        output=_affine(weights, f"{layer}.{kind}.project_output"),
        norm=_affine(weights, f"{layer}.after_{kind}.norm"),
    )


def _affine(weights: Mapping[str, Tensor], name: str) -> Affine:
    return Affine(weight=weights[f"{name}.weight"], bias=weights[f"{name}.bias"])
