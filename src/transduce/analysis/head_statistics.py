"""What a head does, in a few numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import AttentionMaps
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.report.content import Table, columns

FARTHEST = 4
"""Positions to either side that are looked at for one that a head prefers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadName:
    """Where a head is; layers and heads count from 1, as people do."""

    kind: AttentionKind
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind} {self.layer}.{self.head}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStatistics:
    """Means over the queries, of how a head spreads its weight over the keys."""

    head: HeadName
    entropy: float
    """Nats: 0 if all weight is on one key, log n if it is on all n alike."""
    sharpness: float
    """The greatest weight of a query."""
    edge: float
    """The share on the token that is no text: a source's end, a target's begin."""
    distance: float | None = None
    """Positions between a query and what it attends to; none between two texts."""
    previous: float | None = None
    """The share on the position before."""
    same: float | None = None
    """The share on the query's own position."""
    following: float | None = None
    """The share on the position after, which a decoder does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The relative position that a head of an encoder or decoder looks to most."""

    head: HeadName
    offset: int
    """Of the key from the query: -1 is the token before."""
    share: float
    """Of the weight, on it and the two positions beside it."""
    even_share: float
    """What would be there if each query attended alike to all that it may."""


STATISTICS: dict[str, Callable[[HeadStatistics], float | None]] = {
    "entropy": lambda each: each.entropy,
    "sharpness": lambda each: each.sharpness,
    "distance": lambda each: each.distance,
    "previous": lambda each: each.previous,
    "same": lambda each: each.same,
    "next": lambda each: each.following,
    "edge": lambda each: each.edge,
}
"""What people call them."""
LEGEND = (
    "Entropy in nats, 0 if all weight is on one token; sharpness is the greatest "
    "weight; distance in tokens; the rest are shares of the weight: on the token "
    "before, on itself, on the one after, and on the edge, which is </s> in the source "
    "and <s> in what the decoder reads."
)


def statistics_table(statistics: Iterable[HeadStatistics]) -> Table:
    """A row for each head."""
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
    """Those of every head; each sentence counts as much as it has queries."""
    return [
        each
        for kind in ATTENTION_KINDS
        for each in _of_kind(kind, [one.of(kind) for one in maps])
    ]


def favourite_offsets(maps: list[AttentionMaps]) -> list[Offset]:
    """Those of every head that attends within one text, and not to another."""
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
    """Of the weight around each offset from -FARTHEST to FARTHEST."""
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
    """Over the queries of a sentence."""
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
