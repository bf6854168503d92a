"""Attention (section 3.2).

A mask is True where a query may attend to a key. Its axes are the batch, the heads, the
queries and the keys; axes of size 1 are shared.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.config import Band, Scores


def padding_mask(
    ids: Int[Tensor, "batch keys"], pad: int
) -> Bool[Tensor, "batch 1 1 keys"]:
    """Mask that lets every query attend to all keys but padding."""
    return (ids != pad)[:, None, None, :]


def causal_mask(
    queries: int, keys: int, device: torch.device
) -> Bool[Tensor, "1 1 queries keys"]:
    """Mask that lets a position attend to itself and earlier ones (section 3.2.3).

    The queries are the last of the keys' positions.
    """
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return mask.tril(keys - queries)[None, None]


def neighbourhood_mask(
    queries: int, keys: int, neighbourhood: int, device: torch.device
) -> Bool[Tensor, "1 1 queries keys"]:
    """Mask that lets a position attend to those at most r away (section 4).

    The queries are the last of the keys' positions.
    """
    # Unlike the paper: restricted self-attention reaches r positions to either side, so
    # that a position is always in the middle of its neighbourhood; the paper's
    # neighbourhood (section 4) has r positions in all. Off by default:
    # `model.neighbourhood`.
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    return ((query - key).abs() <= neighbourhood)[None, None]


def additive_mask(
    mask: Bool[Tensor, "#batch 1 #queries keys"], dtype: torch.dtype
) -> Float[Tensor, "#batch 1 #queries keys"]:
    """Mask to add to scores: 0 where it is True, elsewhere the lowest finite number."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)


def attention_weights(
    scores: Float[Tensor, "batch heads queries keys"],
    mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Softmax of the scores over the keys (equation 1).

    A query that may attend to no key attends to all equally.
    """
    if mask is not None:
        # A sum, unlike `masked_fill`, needs no masking of the gradient.
        scores = scores + additive_mask(mask, scores.dtype)
    return scores.softmax(dim=-1)


def split_heads(
    x: Float[Tensor, "batch length width"], num_heads: int
) -> Float[Tensor, "batch heads length head_width"]:
    """Split the width into the heads, whose axis comes before the positions."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    """Several attentions in parallel, each on its own projections (section 3.2.2).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O
        head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)
        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V      (equation 1)

    The weights of all heads, [batch, heads, queries, keys], pass through `weights_tap`,
    where forward hooks can read or change them.
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
        self.project_query = nn.Linear(d_model, num_heads * d_k)
        # One product for both, because keys and values have the same input.
        self.project_key_value = nn.Linear(d_model, num_heads * (d_k + d_v))
        self.project_output = nn.Linear(num_heads * d_v, d_model)
        if scores == "additive":
            self.additive_weight = nn.Parameter(torch.empty(num_heads, d_k))
        self.weights_tap = nn.Identity()
        # Unlike the paper: any model can have dropout of attention weights, and after
        # the ReLU. The paper has the first for parsing only (section 6.3); its code has
        # both. Off by default: `model.attention_dropout`, `model.relu_dropout`.
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as Glorot and Bengio (2010), Q, K and V at smaller weights.

        In self-attention the paper's own code has one matrix for all three. If each is
        square, its uniform distribution has a bound that is smaller by a factor of
        sqrt(2). That factor is applied here whatever the widths, and in cross-attention
        too, as in fairseq.
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
        attended: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attend from each query to the positions of `attended`.

        Keys and values are projections of the same sequence.
        """
        key, value = self.keys_and_values(attended)
        return self.attend(query, key, value, mask)

    def keys_and_values(
        self, attended: Float[Tensor, "batch keys d_model"]
    ) -> tuple[
        Float[Tensor, "batch heads keys d_k"], Float[Tensor, "batch heads keys d_v"]
    ]:
        """Project to each head's keys and values."""
        key, value = self.project_key_value(attended).split(
            [self.num_heads * self.d_k, self.num_heads * self.d_v], dim=-1
        )
        return self.split(key), self.split(value)

    def attend(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attend to projected keys and values."""
        query = self.split(self.project_query(query))
        heads = self.weighted_sum(query, key, value, mask)
        return self.project_output(heads.transpose(1, 2).flatten(2))

    def weighted_sum(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V of each head (equation 1)."""
        weights = attention_weights(self.compute_scores(query, key), mask)
        return self.dropout(self.weights_tap(weights)) @ value

    def compute_scores(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Score each query against each key (section 3.2.1)."""
        # Unlike the paper: scores can be additive or unscaled too. The paper discusses
        # both, but has no model with them. Off by default: `model.scores`.
        if self.scores == "additive":
            # Bahdanau et al. (2015), whose two matrices are the projections.
            weight = self.additive_weight.to(query.dtype)
            hidden = torch.tanh(query[..., :, None, :] + key[..., None, :, :])
            return torch.einsum("bhqkd,hd->bhqk", hidden, weight)
        return query @ key.transpose(-2, -1) * self.scale

    @property
    def scale(self) -> float:
        """Factor on the dot products of queries and keys."""
        return 1 / math.sqrt(self.d_k) if self.scores == "scaled" else 1.0

    @property
    def has_weight_hooks(self) -> bool:
        """Whether a hook reads or changes the weights, which must then be formed."""
        return len(self.weights_tap._forward_hooks) > 0

    def split(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch heads length head_width"]:
        """Split the width into the heads; subclasses can change the precision."""
        return split_heads(x, self.num_heads)


@contextmanager
def recorded_weights(tap: nn.Module) -> Iterator[list[Tensor]]:
    """Record the attention weights that pass through a tap in this thread.

    Other threads may compute with the same model, and its taps, meanwhile.
    """
    recorded: list[Tensor] = []
    thread = get_ident()

    def record(_: nn.Module, __: object, weights: Tensor) -> None:
        if get_ident() == thread:
            recorded.append(weights)

    hook = tap.register_forward_hook(record)
    try:
        yield recorded
    finally:
        hook.remove()


class RestrictedSelfAttention(MultiHeadAttention):
    """Self-attention of each position to those at most r away (section 4).

    The queries are cut into blocks. A block attends to a window: the keys that its
    queries can reach, at most r positions to either side, or r back in the decoder.
    Blocks are computed as if they were the sentences of a larger batch, so time and
    memory are O(r n d), and no matrix of n x n elements is formed, unless a hook on
    `weights_tap` reads the weights.

    Callers pass the mask of padding only; the layer itself masks the keys out of reach.
    The result at tokens equals that of `MultiHeadAttention` with `neighbourhood_mask`
    (and `causal_mask`). The result at padding may differ, but nothing attends to it.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        scores: Scores,
        dropout: float,
        band: Band,
    ) -> None:
        super().__init__(d_model, num_heads, d_k, d_v, scores, dropout)
        self.band = band

    def weighted_sum(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V over the keys that a query can reach."""
        (batch, _, queries, _), keys = query.shape, key.size(2)
        # Blocks need as many queries as keys, and hooks read the weights of all keys.
        if self.has_weight_hooks or queries != keys or self.band.covers(keys):
            mask = self.whole_mask(mask, queries, keys, query.device)
            return super().weighted_sum(query, key, value, mask)
        if mask is None:
            mask = query.new_ones(batch, 1, 1, keys, dtype=torch.bool)
        sums = super().weighted_sum(
            query_blocks(query, self.band),
            key_windows(key, self.band),
            key_windows(value, self.band),
            self.window_mask(mask.expand(batch, -1, -1, -1)),
        )
        # From blocks back to the sentences, without the padding of the last block.
        blocks = sums.unflatten(0, (batch, -1)).transpose(1, 2)
        return blocks.flatten(2, 3)[:, :, :queries]

    def whole_mask(
        self,
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
        queries: int,
        keys: int,
        device: torch.device,
    ) -> Bool[Tensor, "#batch 1 queries keys"]:
        """Return `mask` and the mask of the neighbourhood as one mask over all keys.

        The queries are the last of the keys' positions.
        """
        whole = neighbourhood_mask(queries, keys, self.band.before, device)
        if self.band.is_causal:
            whole = whole & causal_mask(queries, keys, device)
        return whole if mask is None else whole & mask

    def window_mask(
        self, mask: Bool[Tensor, "batch 1 1 keys"]
    ) -> Bool[Tensor, "blocks 1 block window"]:
        """Return a mask of each block's window, True at keys that a query can reach.

        Keys before the first position and after the last one are masked too.
        """
        band, device = self.band, mask.device
        query = torch.arange(band.block, device=device)[:, None]
        key = torch.arange(band.window, device=device) - band.before
        distance = key - query
        is_near = (distance >= -band.before) & (distance <= band.after)
        return key_windows(mask.transpose(2, 3), band).transpose(2, 3) & is_near


def query_blocks(
    x: Float[Tensor, "batch heads length width"], band: Band
) -> Float[Tensor, "blocks heads block width"]:
    """Cut sequences into blocks; the last of each sequence is padded with zeros."""
    x = functional.pad(x, (0, 0, 0, -x.size(2) % band.block))
    return x.unflatten(2, (-1, band.block)).transpose(1, 2).flatten(0, 1)


def key_windows(
    x: Shaped[Tensor, "batch heads length width"], band: Band
) -> Shaped[Tensor, "blocks heads window width"]:
    """Return the window of each block, padded with zeros at the ends of a sequence."""
    missing = -x.size(2) % band.block
    x = functional.pad(x, (0, 0, band.before, missing + band.after))
    windows = x.unfold(2, band.window, band.block)  # batch heads blocks width window
    return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)
