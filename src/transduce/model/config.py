"""Sizes and variants of a Transformer (section 3; Table 3)."""

from dataclasses import dataclass
from typing import Literal, get_args

from transduce.errors import ConfigError
from transduce.settings import require_between

Positions = Literal["sinusoidal", "learned"]
Norm = Literal["post", "pre"]
Scores = Literal["scaled", "unscaled", "additive"]
Activation = Literal["relu", "silu"]
DecoderSelfAttention = Literal["attention", "ssru"]
AttentionKind = Literal["encoder", "decoder", "encoder-decoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""The three uses of attention (section 3.2.3): self-attention in the encoder and in the
decoder, and cross-attention, named "encoder-decoder" as in the paper."""

MAX = {
    "vocab_size": 2**24,
    "target_vocab_size": 2**24,
    "num_layers": 1_000,
    "decoder_layers": 1_000,
    "d_model": 2**16,
    "d_ff": 2**18,
    "num_heads": 2**10,
    "d_k": 2**16,
    "d_v": 2**16,
    "max_positions": 2**20,
    "neighbourhood": 2**20,
}
"""Largest value of each size, within the integers of the native library."""

MAX_POSITION_BASE = 1e12
"""Largest base of the wavelengths of sinusoids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings of a Transformer; the defaults are the paper's base model (Table 3)."""

    vocab_size: int = 37_000
    """Size of the vocabulary, which is that of the learned tokenizer. It is shared by
    source and target, as is their embedding."""
    target_vocab_size: int | None = None
    """Size of a separate target vocabulary with an embedding of its own: the symbols of
    a parser's trees (section 6.3), or the first pieces of an imported translator's
    vocabulary. None for a shared vocabulary."""
    num_layers: int = 6
    """Number of layers N of the encoder and of the decoder."""
    decoder_layers: int | None = None
    """Number of layers of the decoder. None for as many as the encoder."""
    d_model: int = 512
    """Dimension of the embeddings and of the outputs of all sub-layers."""
    d_ff: int = 2048
    """Inner dimension of the feed-forward networks."""
    num_heads: int = 8
    """Number of attention heads h."""
    d_k: int = 64
    """Dimension of the queries and keys of one head."""
    d_v: int = 64
    """Dimension of the values of one head."""
    dropout: float = 0.1
    """Dropout rate P_drop of sub-layer outputs and of embeddings (section 5.4)."""
    attention_dropout: float = 0.0
    """Dropout rate of attention weights. The paper mentions it for parsing only
    (section 6.3), without a rate."""
    relu_dropout: float = 0.0
    """Dropout rate after the activation of the feed-forward networks. The paper has
    none."""
    positions: Positions = "sinusoidal"
    """Positional encoding: sinusoids (section 3.5) or learned embeddings (Table 3, row
    E)."""
    max_positions: int = 1024
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
    position_base: float = 10_000.0
    """Base b of the wavelengths of sinusoids, 2 pi b^(2i / d_model) (section 3.5).
    Marian's own models have 10,000^(d_model / (d_model - 2)), with which the longest
    wavelength is exactly 10,000 times the shortest, as in tensor2tensor."""
    neighbourhood: int | None = None
    """Neighbourhood r of restricted self-attention, in positions to either side
    (section 4), for long sequences: time and memory then grow with their length, not
    with its square. None for all positions, as in the paper's models."""
    decoder_self_attention: DecoderSelfAttention = "attention"
    """Self-attention of the decoder: attention, as in the paper, or ssru, a recurrent
    unit in its place, with which a step of decoding costs the same at every position.
    Kim et al. (2019) report fast students with it."""
    norm_epsilon: float = 1e-6
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
        self._check_sizes()
        self._check_choice("positions", get_args(Positions))
        self._check_choice("norm", get_args(Norm))
        self._check_choice("scores", get_args(Scores))
        self._check_choice("activation", get_args(Activation))
        self._check_choice("decoder_self_attention", get_args(DecoderSelfAttention))
        for name in ("dropout", "attention_dropout", "relu_dropout"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ConfigError(
                    f"`model.{name}` must be at least 0 and below 1, but is {rate}."
                )
        if not 1 < self.position_base <= MAX_POSITION_BASE:
            raise ConfigError(
                "`model.position_base` must be above 1 and at most "
                f"{MAX_POSITION_BASE:g}, but is {self.position_base}."
            )
        if not 0 < self.norm_epsilon < 1:
            raise ConfigError(
                "`model.norm_epsilon` must be above 0 and below 1, but is "
                f"{self.norm_epsilon}."
            )
        for name in ("d_model", "d_k"):
            # A sine and a cosine form a pair, which should be in the same head.
            if self.positions == "sinusoidal" and (width := getattr(self, name)) % 2:
                raise ConfigError(
                    f"`model.{name}` must be even for sinusoidal positions, but is "
                    f"{width}."
                )

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder, by default that of the encoder."""
        return self.decoder_layers or self.num_layers

    def _check_sizes(self) -> None:
        for name, largest in MAX.items():
            require_between(f"model.{name}", getattr(self, name), 1, largest)

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if (value := getattr(self, name)) not in choices:
            known = ", ".join(f'"{choice}"' for choice in choices)
            raise ConfigError(
                f'`model.{name}` must be one of {known}, but is "{value}".'
            )
