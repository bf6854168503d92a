"""Attention (section 3.2). A mask is True where a query may attend to a key."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.config import Scores
from transduce.nn.dropout import InnerDropout
from transduce.nn.linear import Linear
from transduce.nn.short_attention import (
    Heads,
    has_short_attention,
    short_attention,
)


def padding_mask(
    ids: Int[Tensor, "batch keys"], pad: int
) -> Bool[Tensor, "batch 1 1 keys"]:
    """All may attend to what is no padding."""
    return (ids != pad)[:, None, None, :]


def causal_mask(
    queries: int, keys: int, device: torch.device
) -> Bool[Tensor, "1 1 queries keys"]:
    """A position may attend to itself and those before it (section 3.2.3).

    The queries are the last of the keys' positions.
    """
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return mask.tril(keys - queries)[None, None]


def neighbourhood_mask(
    queries: int, keys: int, neighbourhood: int, device: torch.device
) -> Bool[Tensor, "1 1 queries keys"]:
    """A position may attend to those at most r away (section 4)."""
    # Unlike the paper: r counts to either side, so that a position is in the middle of
    # what it sees whatever r is; the paper's neighbourhood has r positions in all.
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    return ((query - key).abs() <= neighbourhood)[None, None]


def attention_weights(
    scores: Float[Tensor, "batch heads queries keys"],
    mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Scores to weights that sum to one over the keys (equation 1).

    A query that may attend to no key attends to all alike.
    """
    if mask is not None:
        # Added, as then the gradient need not be masked.
        scores = scores + additive_mask(mask, scores.dtype)
    return scores.softmax(dim=-1)


def additive_mask(
    mask: Bool[Tensor, "#batch 1 #queries keys"], dtype: torch.dtype
) -> Float[Tensor, "#batch 1 #queries keys"]:
    """What takes a score out of the running where the mask is not True."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)


FEW_QUERIES, FEW_KEYS = 16, 64
"""Up to so many queries, as in decoding, or keys, as in training for which there is no
kernel of ours, a CPU is done sooner without the fused kernel."""


def split_heads(
    x: Float[Tensor, "batch length width"], num_heads: int
) -> Float[Tensor, "batch heads length head_width"]:
    """The heads side by side; on a CPU in fp32.

    There PyTorch's kernels for attention in bf16 take up to ten times as long, as they
    are compiled for each length, or written for fp32.
    """
    heads = x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    if x.is_cuda or x.dtype != torch.bfloat16:
        return heads
    return heads.to(torch.float32, memory_format=torch.contiguous_format)


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each on its own projections (section 3.2.2).

    The weights of all heads pass through `weights_tap` while a forward hook listens
    there; otherwise they may not be formed at all.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        scores: Scores,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v
        self.scores = scores
        self.project_query = Linear(d_model, num_heads * d_k)
        # One product for both, as the keys and the values come from one place.
        self.project_key_value = Linear(d_model, num_heads * (d_k + d_v))
        self.project_output = Linear(num_heads * d_v, d_model)
        if scores == "additive":
            self.additive_weight = nn.Parameter(torch.empty(num_heads, d_k))
        self.weights_tap = nn.Identity()
        self.dropout = InnerDropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot and Bengio (2010), as if Q, K and V were one matrix.

        The paper's own code projects all three at once, which makes their limit
        smaller by the root of two than that of separate square matrices.
        """
        matrices = [self.project_query.weight]
        matrices += self.project_key_value.weight.split(
            [self.num_heads * self.d_k, self.num_heads * self.d_v]
        )
        for matrix in matrices:
            nn.init.xavier_uniform_(matrix, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.project_output.weight)
        for layer in (self.project_query, self.project_key_value, self.project_output):
            nn.init.zeros_(layer.bias)
        if self.scores == "additive":
            nn.init.xavier_uniform_(self.additive_weight)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        if self._has_short_attention(query, memory):
            queries = self.project_query(query)
            key_value = self.project_key_value(memory)
            with torch.autocast("cpu", enabled=False):  # it is in fp32
                heads = short_attention(
                    queries, key_value, mask, self.heads, self.dropout.rate_in_use
                )
            return self.project_output(heads)
        key, value = self.keys_and_values(memory)
        return self.attend(query, key, value, mask)

    def keys_and_values(
        self, memory: Float[Tensor, "batch keys d_model"]
    ) -> tuple[
        Float[Tensor, "batch heads keys d_k"], Float[Tensor, "batch heads keys d_v"]
    ]:
        """What can be kept between decoding steps."""
        key, value = self.project_key_value(memory).split(
            [self.num_heads * self.d_k, self.num_heads * self.d_v], dim=-1
        )
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def attend(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Average the values by how well each query matches their keys."""
        queries = split_heads(self.project_query(query), self.num_heads)
        with torch.autocast("cpu", enabled=False):  # it is in fp32 already
            heads = self._average(queries, key, value, mask)
        return self.project_output(heads.transpose(1, 2).flatten(2))

    def _average(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries d_v"]:
        if self._forms_weights or self._is_sooner_done_plainly(query, key):
            weights = attention_weights(self._scores(query, key), mask)
            return self.dropout(self.weights_tap(weights)) @ value
        return functional.scaled_dot_product_attention(
            query, key, value, mask, self.dropout.rate_in_use, scale=self.scale
        )

    @property
    def _forms_weights(self) -> bool:
        """Whether they are asked for, or there are no others."""
        return len(self.weights_tap._forward_hooks) > 0 or self.scores == "additive"

    def _is_sooner_done_plainly(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
    ) -> bool:
        """Whether forming the weights is faster than PyTorch's fused attention."""
        if query.is_cuda:
            return False
        if self.dropout.is_on:
            # With dropout PyTorch forms them, too, and draws its masks more slowly.
            return True
        if torch.is_grad_enabled():
            return key.size(2) <= FEW_KEYS
        return query.size(2) <= FEW_QUERIES

    def _has_short_attention(
        self,
        query: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_model"],
    ) -> bool:
        if self._forms_weights or not torch.is_grad_enabled():
            return False
        return has_short_attention(query, memory, self.heads, self.dropout.rate_in_use)

    @property
    def maps(self) -> tuple[Linear, Linear, Linear]:
        """The linear maps, in their order."""
        return self.project_query, self.project_key_value, self.project_output

    @property
    def heads(self) -> Heads:
        """How many there are, and of which width."""
        return Heads(count=self.num_heads, d_k=self.d_k, d_v=self.d_v, scale=self.scale)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.d_k) if self.scores == "scaled" else 1.0

    def _scores(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
    ) -> Float[Tensor, "batch heads queries keys"]:
        if self.scores == "additive":
            # Bahdanau et al. (2015); the two matrices are the projections.
            weight = self.additive_weight.to(query.dtype)
            hidden = torch.tanh(query[..., :, None, :] + key[..., None, :, :])
            return torch.einsum("bhqkd,hd->bhqk", hidden, weight)
        return query @ key.transpose(-2, -1) * self.scale
