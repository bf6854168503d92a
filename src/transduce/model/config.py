"""The sizes and choices of a Transformer (section 3; Table 3)."""

from dataclasses import dataclass
from typing import Literal, get_args

from transduce.errors import ConfigError
from transduce.settings import require_between

Positions = Literal["sinusoidal", "learned"]
Norm = Literal["post", "pre"]
Scores = Literal["scaled", "unscaled", "additive"]
Activation = Literal["relu", "silu"]
AttentionKind = Literal["encoder", "decoder", "encoder-decoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""The three uses of attention (section 3.2.3)."""

MOST = {
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
"""Largest value of each size: beyond any model's, and within the kernels' integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Transformer's sizes; the defaults are the paper's base model."""

    vocab_size: int = 37_000
    """Rows of the one embedding of source, target and output; the tokenizer's size."""
    target_vocab_size: int | None = None
    """Rows of another one for target and output, if these have symbols of their own, as
    a parser's trees do (section 6.3)."""
    num_layers: int = 6
    """N: layers of the encoder, and of the decoder."""
    decoder_layers: int | None = None
    """Layers of the decoder, if it has not as many."""
    d_model: int = 512
    """Width of what passes between layers."""
    d_ff: int = 2048
    """Width inside the feed-forward networks."""
    num_heads: int = 8
    """h: attentions side by side."""
    d_k: int = 64
    """Width of one head's queries and keys."""
    d_v: int = 64
    """Width of one head's values."""
    dropout: float = 0.1
    """P_drop: the share of activations set to zero in training."""
    attention_dropout: float = 0.0
    """Dropout rate of attention's weights (section 6.3); the paper's base has none."""
    relu_dropout: float = 0.0
    """Dropout rate after the feed-forward networks' ReLU; 0 in the paper's models."""
    positions: Positions = "sinusoidal"
    """How a position is told: the sinusoids of section 3.5, or learned (row E)."""
    max_positions: int = 1024
    """Rows of the table of learned positions; sinusoids know no limit."""
    norm: Norm = "post"
    """Where a sub-layer is normalised: after its residual sum, as in the paper."""
    scores: Scores = "scaled"
    """How a query is held against a key (section 3.2.1)."""
    activation: Activation = "relu"
    """What stands between the two maps of a feed-forward network."""
    neighbourhood: int | None = None
    """r: how far to either side self-attention sees (section 4); all if not given."""
    norm_epsilon: float = 1e-6
    """Keeps a norm from dividing by zero: that of the paper's own code."""
    output_bias: bool = False
    """Whether each logit has a bias; in the paper none has."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_choice("positions", get_args(Positions))
        self._check_choice("norm", get_args(Norm))
        self._check_choice("scores", get_args(Scores))
        self._check_choice("activation", get_args(Activation))
        for name in ("dropout", "attention_dropout", "relu_dropout"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ConfigError(
                    f"`model.{name}` must be at least 0 and below 1, but is {rate}."
                )
        if not 0 < self.norm_epsilon < 1:
            raise ConfigError(
                "`model.norm_epsilon` must be above 0 and below 1, but is "
                f"{self.norm_epsilon}."
            )
        for name in ("d_model", "d_k"):
            # A sine and a cosine make a pair, and a head should not part it.
            if self.positions == "sinusoidal" and (width := getattr(self, name)) % 2:
                raise ConfigError(
                    f"`model.{name}` must be even for sinusoidal positions, but is "
                    f"{width}."
                )

    @property
    def num_decoder_layers(self) -> int:
        """As many as the encoder has, unless told otherwise."""
        return self.decoder_layers or self.num_layers

    def _check_sizes(self) -> None:
        for name, most in MOST.items():
            require_between(f"model.{name}", getattr(self, name), 1, most)

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if (value := getattr(self, name)) not in choices:
            known = ", ".join(f'"{choice}"' for choice in choices)
            raise ConfigError(
                f'`model.{name}` must be one of {known}, but is "{value}".'
            )
