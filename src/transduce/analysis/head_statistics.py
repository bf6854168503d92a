"""Statistics of attention heads: entropy, sharpness, distance and preferred offset."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import AttentionMaps
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.report.content import Table, columns

FARTHEST = 4
"""Largest relative position considered as a head's preferred offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadName:
    """Kind, layer and number of a head; layers and heads count from 1."""

    kind: AttentionKind
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind} {self.layer}.{self.head}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStatistics:
    """Statistics of a head's attention weights, as means over the queries.

    The last four are None for cross-attention.
    """

    head: HeadName
    entropy: float
    """Entropy in nats: 0 if all weight is on one key, log n if it is even over n."""
    sharpness: float
    """Greatest weight."""
    edge: float
    """Weight on the special token: `</s>` of a source, `<s>` of a target."""
    distance: float | None = None
    """Expected distance between query and key, in positions."""
    previous: float | None = None
    """Weight on the previous position."""
    same: float | None = None
    """Weight on the query's own position."""
    following: float | None = None
    """Weight on the next position, which a decoder masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Relative position around which a self-attention head has the most weight."""

    head: HeadName
    offset: int
    """Position of the key relative to the query: -1 is the previous token."""
    share: float
    """Weight on this position and its two neighbours."""
    even_share: float
    """Mean weight of uniform attention over all unmasked keys, for comparison."""


STATISTICS: dict[str, Callable[[HeadStatistics], float | None]] = {
    "entropy": lambda each: each.entropy,
    "sharpness": lambda each: each.sharpness,
    "distance": lambda each: each.distance,
    "previous": lambda each: each.previous,
    "same": lambda each: each.same,
    "next": lambda each: each.following,
    "edge": lambda each: each.edge,
}
"""Names of the statistics in tables."""
LEGEND = (
    "Entropy is in nats, 0 if all weight is on one token. Sharpness is the greatest "
    "weight. Distance is in tokens. The other columns are the weight on the previous "
    "token, on the token itself, on the next one, and on the edge: </s> of the source "
    "or <s> of the decoder's input."
)


def statistics_table(statistics: Iterable[HeadStatistics]) -> Table:
    """Table with a row for each head."""
    return Table(
        columns=columns("head", *STATISTICS),
        rows=tuple(
            (str(each.head), *(_cell(value(each)) for value in STATISTICS.values()))
            for each in statistics
        ),
    )


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def head_statistics(maps: list[AttentionMaps]) -> list[HeadStatistics]:
    """Statistics of every head over all queries of all sentences."""
    return [
        each
        for kind in ATTENTION_KINDS
        for each in _of_kind(kind, [one.of(kind) for one in maps])
    ]


def preferred_offsets(maps: list[AttentionMaps]) -> list[Offset]:
    """Preferred offset of every self-attention head."""
    kinds: tuple[AttentionKind, ...] = ("encoder", "decoder")
    return [
        each for kind in kinds for each in _offsets(kind, [m.of(kind) for m in maps])
    ]


def _offsets(kind: AttentionKind, maps: list[Tensor]) -> list[Offset]:
    even = [(each > 0).any(dim=0).any(dim=0).double() for each in maps]
    even = [each / each.sum(dim=-1, keepdim=True) for each in even]
    shares = _shares_by_offset(maps)
    even_shares = _shares_by_offset([each[None, None] for each in even])[0, 0]
    best, places = shares.max(dim=-1)
    num_layers, num_heads = best.shape
    return [
        Offset(
            head=HeadName(kind=kind, layer=layer + 1, head=head + 1),
            offset=int(places[layer, head]) - FARTHEST,
            share=float(best[layer, head]),
            even_share=float(even_shares[places[layer, head]]),
        )
        for layer in range(num_layers)
        for head in range(num_heads)
    ]


def _shares_by_offset(maps: list[Tensor]) -> Float[Tensor, "layers heads offsets"]:
    """Mean weight around each offset from -FARTHEST to FARTHEST."""
    num_queries = sum(each.size(-2) for each in maps)
    reach = range(-FARTHEST - 1, FARTHEST + 2)
    single = torch.stack(
        [
            torch.stack([_diagonal_sum(each, offset) for each in maps]).sum(dim=0)
            for offset in reach
        ],
        dim=-1,
    )
    return single.unfold(-1, 3, 1).sum(dim=-1) / num_queries


def _of_kind(kind: AttentionKind, maps: list[Tensor]) -> list[HeadStatistics]:
    num_queries = sum(each.size(-2) for each in maps)
    sums = [_sums(kind, each) for each in maps]
    means = {
        name: torch.stack([each[name] for each in sums]).sum(dim=0) / num_queries
        for name in sums[0]
    }
    num_layers, num_heads = maps[0].shape[:2]
    return [
        HeadStatistics(
            head=HeadName(kind=kind, layer=layer + 1, head=head + 1),
            **{name: float(mean[layer, head]) for name, mean in means.items()},
        )
        for layer in range(num_layers)
        for head in range(num_heads)
    ]


def _sums(
    kind: AttentionKind, weights: Float[Tensor, "layers heads queries keys"]
) -> dict[str, Float[Tensor, "layers heads"]]:
    """Sums of the statistics over the queries of a sentence."""
    weights = weights.double()
    edge = 0 if kind == "decoder" else -1
    sums = {
        "entropy": -torch.xlogy(weights, weights).sum(dim=(-2, -1)),
        "sharpness": weights.amax(dim=-1).sum(dim=-1),
        "edge": weights[..., edge].sum(dim=-1),
    }
    if kind == "encoder-decoder":
        return sums
    positions = torch.arange(weights.size(-1))
    apart = (positions[:, None] - positions).abs()
    return sums | {
        "distance": (weights * apart).sum(dim=(-2, -1)),
        "previous": _diagonal_sum(weights, -1),
        "same": _diagonal_sum(weights, 0),
        "following": _diagonal_sum(weights, 1),
    }


def _diagonal_sum(
    weights: Float[Tensor, "layers heads length length"], offset: int
) -> Float[Tensor, "layers heads"]:
    if abs(offset) >= weights.size(-1):
        return weights.new_zeros(weights.shape[:2])
    return weights.diagonal(offset, dim1=-2, dim2=-1).sum(dim=-1)
