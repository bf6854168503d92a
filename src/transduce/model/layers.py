"""Layers of encoder and decoder, and their stacks (sections 3.1 and 3.3).

`SSRU` is a recurrence in place of the decoder's self-attention (Kim et al., 2019).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.attention import MultiHeadAttention, RestrictedSelfAttention
from transduce.model.config import Activation, Band, ModelConfig, Norm


class FeedForward(nn.Module):
    """Position-wise feed-forward network (section 3.3).

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2      (equation 2)
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.inner = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(d_ff, d_model)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.outer(self.dropout(self.activate(self.inner(x))))

    def activate(
        self, x: Float[Tensor, "batch length d_ff"]
    ) -> Float[Tensor, "batch length d_ff"]:
        """Apply the activation between the two linear maps."""
        match self.activation:
            case "relu":
                return x.relu()
            case "silu":
                # Unlike the paper: x * sigmoid(x), which many models of Marian have
                # under the name swish (Elfwing et al., 2018). Off by default:
                # `model.activation`.
                return functional.silu(x)


class ResidualConnection(nn.Module):
    """Residual connection around a sub-layer, with its norm (sections 3.1 and 5.4).

    LayerNorm(x + Dropout(Sublayer(x)))
    """

    def __init__(
        self, d_model: int, dropout: float, norm: Norm, norm_epsilon: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.is_pre_norm = norm == "pre"

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "batch length d_model"]:
        if self.is_pre_norm:
            # Unlike the paper: the norm before the sub-layer lets deep stacks train
            # without warm-up (Nguyen and Salazar, 2019). Off by default: `model.norm`.
            return x + self.dropout(sublayer(self.norm(x)))
        return self.add_and_norm(x, sublayer(x))

    def add_and_norm(
        self,
        x: Float[Tensor, "batch length d_model"],
        addend: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return LayerNorm(x + Dropout(addend))."""
        return self.norm(x + self.dropout(addend))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network (Figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _self_attention(config, is_causal=False)
        self.feed_forward = _feed_forward(config)
        self.after_self_attention = residual_of(config)
        self.after_feed_forward = residual_of(config)

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "#batch 1 #queries source"],
    ) -> Float[Tensor, "batch source d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, mask))
        return self.after_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward network (Figure 1, right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _self_attention(config, is_causal=True)
        self.cross_attention = attention_of(config)
        self.feed_forward = _feed_forward(config)
        self.after_self_attention = residual_of(config)
        self.after_cross_attention = residual_of(config)
        self.after_feed_forward = residual_of(config)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "1 1 target target"] | None,
        memory_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, self_mask))
        x = self.after_cross_attention(
            x, lambda x: self.cross_attention(x, memory, memory_mask)
        )
        return self.after_feed_forward(x, self.feed_forward)


class RecurrentDecoderLayer(nn.Module):
    """Recurrent unit, cross-attention, feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Unlike the paper: a recurrent unit in place of the decoder's self-attention,
        # with which a step of decoding costs the same at every position. Kim et al.
        # (2019) report faster decoding on CPUs at little loss of quality. Off by
        # default: `model.decoder_self_attention`.
        self.recurrence = SSRU(config.d_model)
        self.cross_attention = attention_of(config)
        self.feed_forward = _feed_forward(config)
        self.after_recurrence = residual_of(config)
        self.after_cross_attention = residual_of(config)
        self.after_feed_forward = residual_of(config)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: None,
        memory_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target d_model"]:
        """Compute all positions; there is no mask, as the recurrence is causal."""
        x = self.after_recurrence(x, self.recurrence)
        x = self.after_cross_attention(
            x, lambda x: self.cross_attention(x, memory, memory_mask)
        )
        return self.after_feed_forward(x, self.feed_forward)


class EncoderStack(nn.ModuleList):
    """N encoder layers, each reading the output of the one before (section 3.1)."""

    def __init__(self, layers: Iterable[EncoderLayer]) -> None:
        super().__init__(layers)

    def __iter__(self) -> Iterator[EncoderLayer]:
        return cast(Iterator[EncoderLayer], super().__iter__())

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "#batch 1 #queries source"],
    ) -> Float[Tensor, "batch source d_model"]:
        for layer in self:
            x = layer(x, mask)
        return x


class DecoderStack(nn.ModuleList):
    """N decoder layers, each reading the output of the one before (section 3.1)."""

    def __init__(self, layers: Iterable[DecoderLayer | RecurrentDecoderLayer]) -> None:
        super().__init__(layers)

    def __iter__(self) -> Iterator[DecoderLayer | RecurrentDecoderLayer]:
        return cast(Iterator[DecoderLayer | RecurrentDecoderLayer], super().__iter__())

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "1 1 target target"] | None,
        memory_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target d_model"]:
        for layer in self:
            x = layer(x, memory, self_mask, memory_mask)
        return x


class SSRU(nn.Module):
    """Simpler simple recurrent unit (Kim et al., 2019).

        f_t = sigmoid(W_f x_t + b_f)
        c_t = f_t * c_(t-1) + (1 - f_t) * W x_t,    c_0 = 0
        o_t = max(0, c_t)

    Both matrices read the input alone, so in training each is one product over all
    positions; only the sum of cells goes from position to position. A step of decoding
    reads and writes the d_model numbers of one cell, however many tokens came before.
    Cells are computed in fp32 at least.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.forget_gate = nn.Linear(d_model, d_model)
        self.candidate = nn.Linear(d_model, d_model, bias=False)
        for layer in (self.forget_gate, self.candidate):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.forget_gate.bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs of all positions; none depends on a later one."""
        return self.outputs(self.forget_gate(x), self.candidate(x)).to(x.dtype)

    def outputs(
        self,
        gate: Float[Tensor, "batch length d_model"],
        candidate: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs, given W_f x + b_f and W x of all positions."""
        if gate.size(1) == 0:
            return gate
        cell = initial_cell(gate[:, 0])
        cells = []
        for position in range(gate.size(1)):
            cell = self.step(gate[:, position], candidate[:, position], cell)
            cells.append(cell)
        return torch.stack(cells, dim=1).relu()

    def step(
        self,
        gate: Float[Tensor, "*rows d_model"],
        candidate: Float[Tensor, "*rows d_model"],
        cell: Float[Tensor, "*rows d_model"],
    ) -> Float[Tensor, "*rows d_model"]:
        """Return the cell of the next position."""
        forget = gate.to(cell.dtype).sigmoid()
        return forget * cell + (1 - forget) * candidate.to(cell.dtype)


def initial_cell(
    gate: Float[Tensor, "*rows d_model"],
) -> Float[Tensor, "*rows d_model"]:
    """Return the cell before the first position: zeros, in fp32 at least."""
    dtype = torch.promote_types(gate.dtype, torch.float32)
    return torch.zeros_like(gate, dtype=dtype)


def _self_attention(config: ModelConfig, *, is_causal: bool) -> MultiHeadAttention:
    """Return the self-attention of a layer, restricted if that is set."""
    if config.neighbourhood is None:
        return attention_of(config)
    return RestrictedSelfAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        config.scores,
        config.attention_dropout,
        Band.of(config.neighbourhood, is_causal=is_causal),
    )


def attention_of(config: ModelConfig) -> MultiHeadAttention:
    """Return an attention with the settings of a model."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        config.scores,
        config.attention_dropout,
    )


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.activation, config.relu_dropout
    )


def residual_of(config: ModelConfig) -> ResidualConnection:
    """Return a residual connection with the settings of a model."""
    return ResidualConnection(
        config.d_model, config.dropout, config.norm, config.norm_epsilon
    )
