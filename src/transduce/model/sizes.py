"""The names and shapes of what a model learns, which its weights are stored by."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from transduce.model.config import ModelConfig

Shape = tuple[int, ...]
Parameters = Iterator[tuple[str, Shape]]


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Of all that `Transformer` of this config learns, by their names there."""
    return dict(_all(config))


def _all(config: ModelConfig) -> Parameters:
    own = config.target_vocab_size
    yield from _embedding("embedding", config.vocab_size, config, is_output=own is None)
    if own is not None:
        yield from _embedding("target_embedding", own, config, is_output=True)
    if config.positions == "learned":
        yield "positions.weight", (config.max_positions, config.d_model)
    for number in range(config.num_layers):
        yield from _layer(f"encoder_layers.{number}", config, is_decoder=False)
    for number in range(config.num_decoder_layers):
        yield from _layer(f"decoder_layers.{number}", config, is_decoder=True)
    if config.norm == "pre":
        yield from _affine("encoder_norm", (config.d_model,))
        yield from _affine("decoder_norm", (config.d_model,))


def _embedding(
    name: str, vocab_size: int, config: ModelConfig, *, is_output: bool
) -> Parameters:
    yield f"{name}.weight", (vocab_size, config.d_model)
    if config.output_bias and is_output:
        yield f"{name}.bias", (vocab_size,)


def _layer(name: str, config: ModelConfig, *, is_decoder: bool) -> Parameters:
    yield from _attention(f"{name}.self_attention", config)
    yield from _affine(f"{name}.after_self_attention.norm", (config.d_model,))
    if is_decoder:
        yield from _attention(f"{name}.cross_attention", config)
        yield from _affine(f"{name}.after_cross_attention.norm", (config.d_model,))
    inner, outer = (config.d_ff, config.d_model), (config.d_model, config.d_ff)
    yield from _affine(f"{name}.feed_forward.inner", inner)
    yield from _affine(f"{name}.feed_forward.outer", outer)
    yield from _affine(f"{name}.after_feed_forward.norm", (config.d_model,))


def _attention(name: str, config: ModelConfig) -> Parameters:
    heads, width = config.num_heads, config.d_model
    key_value = heads * (config.d_k + config.d_v)
    yield from _affine(f"{name}.project_query", (heads * config.d_k, width))
    yield from _affine(f"{name}.project_key_value", (key_value, width))
    yield from _affine(f"{name}.project_output", (width, heads * config.d_v))
    if config.scores == "additive":
        yield f"{name}.additive_weight", (heads, config.d_k)


def _affine(name: str, weight: Shape) -> Parameters:
    """A weight and a bias, which has a number for each of its outputs."""
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]


def sinusoid_array(
    length: int, d_model: int
) -> Float[np.ndarray, "{length} {d_model}"]:
    """The encodings of the positions 0, 1, 2, ... (section 3.5).

    The even dimension 2i holds sin(pos / 10000^(2i / d_model)), the odd one after it
    the cosine. Worked out in double precision: far positions stay exact.
    """
    even = np.arange(0, d_model, 2, dtype=np.float64)
    position = np.arange(length, dtype=np.float64)
    angle = position[:, None] / 10_000 ** (even / d_model)
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return pairs.reshape(length, d_model).astype(np.float32)
