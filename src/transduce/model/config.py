"""Settings and sizes of a Transformer (section 3; Table 3), without PyTorch.

The sizes follow from the settings: shapes and number of parameters, FLOPs of training,
and the table of sinusoids.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from math import prod
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float, Integer

from transduce.errors import ConfigError
from transduce.settings import Bounds, Rate, convert_and_check

Positions = Literal["sinusoidal", "learned"]
Norm = Literal["post", "pre"]
Scores = Literal["scaled", "unscaled", "additive"]
Activation = Literal["relu", "silu"]
DecoderSelfAttention = Literal["attention", "ssru"]
AttentionKind = Literal["encoder", "decoder", "encoder-decoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""The three uses of attention (section 3.2.3): self-attention in the encoder and in the
decoder, and cross-attention, named "encoder-decoder" as in the paper."""

MAX_VOCAB_SIZE = 2**24
"""Largest vocabulary; like all sizes below, within the integers of the native
library."""
MAX_LAYERS = 1_000
MAX_WIDTH = 2**16
VocabSize = Annotated[int, Bounds(1, MAX_VOCAB_SIZE)]
NumLayers = Annotated[int, Bounds(1, MAX_LAYERS)]
Width = Annotated[int, Bounds(1, MAX_WIDTH)]
InnerWidth = Annotated[int, Bounds(1, 2**18)]
NumHeads = Annotated[int, Bounds(1, 2**10)]
NumPositions = Annotated[int, Bounds(1, 2**20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings of a Transformer; the defaults are the paper's base model (Table 3)."""

    has_cross_attention: ClassVar[bool] = True

    vocab_size: VocabSize = 37_000
    """Size of the vocabulary, as the tokenizer has learned it. It is shared by
    source and target, as is their embedding."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary with an embedding of its own: the symbols of
    a parser's trees (section 6.3), or the first pieces of an imported translator's
    vocabulary. None for a shared vocabulary."""
    num_layers: NumLayers = 6
    """Number of layers N of the encoder and of the decoder."""
    decoder_layers: NumLayers | None = None
    """Number of layers of the decoder. None for as many as the encoder."""
    d_model: Width = 512
    """Dimension of the embeddings and of the outputs of all sub-layers."""
    d_ff: InnerWidth = 2048
    """Inner dimension of the feed-forward networks."""
    num_heads: NumHeads = 8
    """Number of attention heads h."""
    d_k: Width = 64
    """Dimension of the queries and keys of one head."""
    d_v: Width = 64
    """Dimension of the values of one head."""
    dropout: Rate = 0.1
    """Dropout rate P_drop of sub-layer outputs and of embeddings (section 5.4)."""
    attention_dropout: Rate = 0.0
    """Dropout rate of attention weights. The paper mentions it for parsing only
    (section 6.3), without a rate."""
    relu_dropout: Rate = 0.0
    """Dropout rate after the activation of the feed-forward networks. The paper has
    none."""
    positions: Positions = "sinusoidal"
    """Positional encoding: sinusoids (section 3.5) or learned embeddings (Table 3, row
    E)."""
    max_positions: NumPositions = 1024
    """Number of learned positional embeddings; later positions share the last one.
    Sinusoids have no limit."""
    norm: Norm = "post"
    """Place of layer normalization: after the residual sum (post), as in the paper, or
    before the sub-layer (pre)."""
    scores: Scores = "scaled"
    """Attention scores (section 3.2.1): scaled dot product, unscaled dot product, or
    additive."""
    activation: Activation = "relu"
    """Activation of the feed-forward networks: relu, as in the paper, or silu."""
    position_base: Annotated[float, Bounds(1, 10**12, above=True)] = 10_000.0
    """Base b of the wavelengths of sinusoids, 2 pi b^(2i / d_model) (section 3.5).
    Marian's own models have 10,000^(d_model / (d_model - 2)), with which the longest
    wavelength is exactly 10,000 times the shortest, as in tensor2tensor."""
    neighbourhood: NumPositions | None = None
    """Neighbourhood r of restricted self-attention, in positions to either side
    (section 4), for long sequences: time and memory then grow with their length, not
    with its square. None for all positions, as in the paper's models."""
    decoder_self_attention: DecoderSelfAttention = "attention"
    """Self-attention of the decoder: attention, as in the paper, or ssru, a recurrent
    unit in its place, with which a step of decoding costs the same at every position.
    Kim et al. (2019) report fast students with it."""
    norm_epsilon: Annotated[float, Bounds(0, 1, above=True, below=True)] = 1e-6
    """Constant in the denominator of layer normalization. The paper does not give it;
    the default is that of its code, tensor2tensor."""
    output_bias: bool = False
    """Whether the output layer has biases. The paper's has none; imported models may
    have them."""
    tied_output: bool = True
    """Whether the output layer has the matrix of the target's embedding, as in the
    paper (section 3.4). Imported models may have a matrix of its own."""
    learned_start: bool = True
    """Whether the start token of a target has a learned embedding. The paper does not
    say. Marian's own models start with zeros, as does tensor2tensor."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        # A sine and a cosine form a pair.
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(
                "`model.d_model` must be even for sinusoidal positions, but is "
                f"{self.d_model}."
            )

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder, by default that of the encoder."""
        return self.decoder_layers or self.num_layers


Shape = tuple[int, ...]
Parameters = Iterator[tuple[str, Shape]]

FORWARDS_PER_UPDATE = 3
"""Cost of an update in forward passes: each matrix product, and the gradients of its
two factors."""
MIN_BLOCK = 32
"""Fewest queries of a block of restricted attention: products of few rows are slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Blocks of queries of restricted self-attention, and the keys that they reach.

    The window of a block begins `before` positions before it and ends `after` positions
    after it (section 4; `model.attention.RestrictedSelfAttention`).
    """

    block: int
    """Queries of a block."""
    before: int
    """Keys of the window before the block."""
    after: int
    """Keys of the window after the block."""

    @staticmethod
    def of(neighbourhood: int, *, is_causal: bool) -> "Band":
        """Return the blocks for positions that reach `neighbourhood` to either side.

        If `is_causal`, positions reach back only.
        """
        return Band(
            # Blocks of r queries are a compromise: queries of smaller blocks share
            # fewer keys, and larger blocks compute more scores that are masked.
            block=max(neighbourhood, MIN_BLOCK),
            before=neighbourhood,
            after=0 if is_causal else neighbourhood,
        )

    @property
    def is_causal(self) -> bool:
        """Whether positions reach back only."""
        return self.after == 0

    @property
    def window(self) -> int:
        """Keys of a block's window."""
        return self.before + self.block + self.after

    def covers(self, length: int) -> bool:
        """Whether blocks save nothing, as the sequence is no longer than a window."""
        return length <= self.window

    def num_scores(self, lengths: Integer[np.ndarray, " pairs"]) -> int:
        """Number of scores that are computed for sequences of these lengths."""
        lengths = lengths.astype(np.int64)
        in_blocks = -(-lengths // self.block) * self.block * self.window
        return int(np.where(lengths <= self.window, lengths**2, in_blocks).sum())


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the names and shapes of the parameters of a `Transformer`."""
    return dict(_parameters(config))


def _parameters(config: ModelConfig) -> Parameters:
    """Yield the parameters of a `Transformer` in its order."""
    target_size, is_tied = config.target_vocab_size, config.tied_output
    is_output = is_tied and target_size is None
    yield from _embedding("embedding", config.vocab_size, config, is_output=is_output)
    if target_size is not None:
        yield from _embedding(
            "target_embedding", target_size, config, is_output=is_tied
        )
    if not is_tied:
        num_outputs = target_size or config.vocab_size
        yield from _embedding("output", num_outputs, config, is_output=True)
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
    """Yield an embedding and, if it is the output, the bias of the logits."""
    yield f"{name}.weight", (vocab_size, config.d_model)
    if config.output_bias and is_output:
        yield f"{name}.bias", (vocab_size,)


def _layer(name: str, config: ModelConfig, *, is_decoder: bool) -> Parameters:
    """Yield the parameters of a layer."""
    if is_decoder and config.decoder_self_attention == "ssru":
        square = (config.d_model, config.d_model)
        yield from _affine(f"{name}.recurrence.forget_gate", square)
        yield f"{name}.recurrence.candidate.weight", square
        yield from _affine(f"{name}.after_recurrence.norm", (config.d_model,))
    else:
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
    """Yield the parameters of an attention."""
    heads, width = config.num_heads, config.d_model
    key_value = heads * (config.d_k + config.d_v)
    yield from _affine(f"{name}.project_query", (heads * config.d_k, width))
    yield from _affine(f"{name}.project_key_value", (key_value, width))
    yield from _affine(f"{name}.project_output", (width, heads * config.d_v))
    if config.scores == "additive":
        yield f"{name}.additive_weight", (heads, config.d_k)


def _affine(name: str, weight: Shape) -> Parameters:
    """Yield a weight and a bias of as many elements as the weight has rows."""
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Number of parameters by purpose."""

    embedding: int
    """Matrices of source, target and output, and the bias of the output."""
    positions: int
    self_attention: int
    """Self-attention of encoder and decoder."""
    recurrence: int
    """Recurrent units in place of the decoder's self-attention."""
    cross_attention: int
    feed_forward: int
    norms: int

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(astuple(self))


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of a `Transformer`."""
    sizes = {name: prod(shape) for name, shape in parameter_shapes(config).items()}

    def count(part: str) -> int:
        return sum(size for name, size in sizes.items() if part in name)

    matrices = ("embedding.", "target_embedding.", "output.")
    return ParameterCounts(
        embedding=sum(n for name, n in sizes.items() if name.startswith(matrices)),
        positions=count("positions."),
        self_attention=count(".self_attention."),
        recurrence=count(".recurrence."),
        cross_attention=count(".cross_attention."),
        feed_forward=count(".feed_forward."),
        norms=count("norm."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """FLOPs of one forward pass by purpose.

    A multiply-add is two FLOPs. Only matrix products are counted: norms, softmax,
    dropout and sums are a small part. Masked scores count if they are computed;
    restricted attention computes those within its windows (`Band`).
    """

    projections: int
    """Projections of queries, keys, values and outputs of attention, and the matrices
    of recurrent units in its place."""
    attention: int
    """Scores, and sums of values weighted by them."""
    feed_forward: int
    output: int
    """Logits of all target tokens."""

    @property
    def total(self) -> int:
        """Sum of all FLOPs."""
        return sum(astuple(self))


def forward_flops(
    config: ModelConfig,
    source_lengths: Integer[np.ndarray, " pairs"],
    target_lengths: Integer[np.ndarray, " pairs"],
) -> ForwardFlops:
    """Count the FLOPs for sentence pairs of these lengths, including end tokens.

    For a padded batch, pass its widths as the lengths of all pairs.
    """
    num_source, num_target = int(source_lengths.sum()), int(target_lengths.sum())
    encoder, decoder = config.num_layers, config.num_decoder_layers
    d_model, heads_width = config.d_model, config.num_heads * (config.d_k + config.d_v)
    num_outputs = config.target_vocab_size or config.vocab_size
    num_scores = decoder * _num_scores(target_lengths, source_lengths)
    num_scores += encoder * _self_attention_scores(
        config, source_lengths, is_causal=False
    )
    # Tokens that self-attention projects, counted once for each layer.
    self_attended, recurrences = encoder * num_source, 0
    if config.decoder_self_attention == "ssru":
        # Two square matrices, of two FLOPs an element.
        recurrences = 4 * decoder * num_target * d_model**2
    else:
        self_attended += decoder * num_target
        num_scores += decoder * _self_attention_scores(
            config, target_lengths, is_causal=True
        )
    # The four projections have 2 * d_model * heads_width elements, of two FLOPs a token
    # each. In cross-attention half of them are for source tokens (keys and values), and
    # half for target tokens (queries and outputs).
    self_projections = 4 * self_attended * d_model * heads_width
    cross_projections = 2 * decoder * (num_source + num_target) * d_model * heads_width
    return ForwardFlops(
        projections=self_projections + cross_projections + recurrences,
        attention=2 * num_scores * heads_width,
        feed_forward=4
        * (encoder * num_source + decoder * num_target)
        * (d_model * config.d_ff),
        output=2 * num_target * d_model * num_outputs,
    )


def update_flops(
    config: ModelConfig,
    source_lengths: Integer[np.ndarray, " pairs"],
    target_lengths: Integer[np.ndarray, " pairs"],
) -> int:
    """Count the FLOPs of one training update, lengths as in `forward_flops`.

    Adam has no matrix products. Those of Muon are left out: about a sixth of the total
    in the preset `multi30k`, negligible for large updates.
    """
    return (
        FORWARDS_PER_UPDATE
        * forward_flops(config, source_lengths, target_lengths).total
    )


def _self_attention_scores(
    config: ModelConfig, lengths: Integer[np.ndarray, " pairs"], *, is_causal: bool
) -> int:
    """Return the number of scores of self-attention in one layer and head."""
    if config.neighbourhood is None:
        return _num_scores(lengths, lengths)
    return Band.of(config.neighbourhood, is_causal=is_causal).num_scores(lengths)


def _num_scores(
    queries: Integer[np.ndarray, " pairs"], keys: Integer[np.ndarray, " pairs"]
) -> int:
    """Return the number of scores of all queries for all keys of their pair."""
    return int((queries.astype(np.int64) * keys).sum())


def sinusoid_array(
    length: int, d_model: int, base: float = 10_000.0
) -> Float[np.ndarray, "{length} {d_model}"]:
    """Return the encodings of positions 0, 1, 2, ... (section 3.5).

        PE(pos, 2i)     = sin(pos / base^(2i / d_model))
        PE(pos, 2i + 1) = cos(pos / base^(2i / d_model))

    The paper's base is 10,000. Computed in double precision, so that far positions are
    exact.
    """
    even = np.arange(0, d_model, 2, dtype=np.float64)
    position = np.arange(length, dtype=np.float64)
    angle = position[:, None] / base ** (even / d_model)
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return pairs.reshape(length, d_model).astype(np.float32)
