"""Attention heads: statistics over a corpus, and the loss without each head.

The statistics are entropy, sharpness, distance and preferred offset, in tokens.
`grammar_heads` compares heads with the built-in grammar's annotation, and
`heads_report` writes the report.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    attentions,
    without_head,
)
from transduce.data.dataset import EncodedPair
from transduce.data.tensors import pad_rows
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.errors import DataError
from transduce.model.config import AttentionKind
from transduce.model.transformer import Transformer
from transduce.report.report import (
    Table,
    columns,
)
from transduce.text.corpus import SentencePair
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.linearization import SymbolVocabulary
from transduce.trees.trees import Tree

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


def numbered_heads(
    kind: AttentionKind, values: Float[Tensor, "layers heads"]
) -> Iterator[tuple[HeadName, tuple[int, int]]]:
    """Yield the name of each head, and its place in values of all heads."""
    num_layers, num_heads = values.shape
    for layer in range(num_layers):
        for head in range(num_heads):
            yield HeadName(kind=kind, layer=layer + 1, head=head + 1), (layer, head)


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


REACH = range(-FARTHEST - 1, FARTHEST + 2)
"""Relative positions whose weights are summed: a share has one position on each side of
its offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSums:
    """Sums of one kind of attention over the queries of sentences, for every head."""

    kind: AttentionKind
    num_queries: int
    statistics: dict[str, Float[Tensor, "layers heads"]]
    """Sums of the statistics, by their names in `HeadStatistics`."""
    weights: Float[Tensor, "layers heads reach"] | None = None
    """Weight at each relative position of `REACH`; None for cross-attention."""
    even_weights: Float[Tensor, "1 1 reach"] | None = None
    """The same for uniform attention over all unmasked keys."""

    def __add__(self, other: "HeadSums") -> "HeadSums":
        return HeadSums(
            kind=self.kind,
            num_queries=self.num_queries + other.num_queries,
            statistics={
                name: each + other.statistics[name]
                for name, each in self.statistics.items()
            },
            weights=_added(self.weights, other.weights),
            even_weights=_added(self.even_weights, other.even_weights),
        )


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else one + other


def head_sums(maps: Iterable[AttentionMaps]) -> list[HeadSums]:
    """Sum up the maps of all sentences, for each kind of attention.

    The maps of a stream are not kept.
    """
    total: dict[AttentionKind, HeadSums] = {}
    for each in maps:
        for kind in each.kinds:
            sums = _sums_of_sentence(kind, each.of(kind))
            total[kind] = total[kind] + sums if kind in total else sums
    return list(total.values())


def _sums_of_sentence(
    kind: AttentionKind, weights: Float[Tensor, "layers heads queries keys"]
) -> HeadSums:
    weights = weights.double()
    sums = HeadSums(
        kind=kind,
        num_queries=weights.size(-2),
        statistics=_sums_over_queries(kind, weights),
    )
    if kind == "encoder-decoder":
        return sums
    even = (weights > 0).any(dim=0).any(dim=0).double()
    even = even / even.sum(dim=-1, keepdim=True)
    return replace(
        sums,
        weights=_at_reach(weights),
        even_weights=_at_reach(even[None, None]),
    )


def _at_reach(
    weights: Float[Tensor, "layers heads length length"],
) -> Float[Tensor, "layers heads reach"]:
    return torch.stack([_diagonal_sum(weights, each) for each in REACH], dim=-1)


def head_statistics(sums: Iterable[HeadSums]) -> list[HeadStatistics]:
    """Statistics of every head, as means over all queries."""
    return [
        HeadStatistics(
            head=head,
            **{
                name: float(total[place] / one.num_queries)
                for name, total in one.statistics.items()
            },
        )
        for one in sums
        for head, place in numbered_heads(one.kind, one.statistics["entropy"])
    ]


def preferred_offsets(sums: Iterable[HeadSums]) -> Iterator[Offset]:
    """Yield the preferred offset of every self-attention head."""
    for one in sums:
        if one.weights is None or one.even_weights is None:
            continue
        shares = _shares_by_offset(one.weights) / one.num_queries
        even_shares = _shares_by_offset(one.even_weights)[0, 0] / one.num_queries
        best, chosen = shares.max(dim=-1)
        for head, place in numbered_heads(one.kind, best):
            yield Offset(
                head=head,
                offset=int(chosen[place]) - FARTHEST,
                share=float(best[place]),
                even_share=float(even_shares[chosen[place]]),
            )


def _shares_by_offset(
    weights: Float[Tensor, "layers heads reach"],
) -> Float[Tensor, "layers heads offsets"]:
    """Weight around each offset from -FARTHEST to FARTHEST."""
    return weights.unfold(-1, 3, 1).sum(dim=-1)


def _sums_over_queries(
    kind: AttentionKind, weights: Float[Tensor, "layers heads queries keys"]
) -> dict[str, Float[Tensor, "layers heads"]]:
    """Sums of the statistics over the queries of a sentence."""
    edge = 0 if kind == "decoder" else -1
    sums = {
        "entropy": -torch.xlogy(weights, weights).sum(dim=(-2, -1)),
        "sharpness": weights.amax(dim=-1).sum(dim=-1),
        "edge": weights[..., edge].sum(dim=-1),
    }
    if kind == "encoder-decoder":
        return sums
    positions = torch.arange(weights.size(-1), device=weights.device)
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


BATCH_PAIRS = 32


def encode_pairs(
    translator: Translator, pairs: Sequence[SentencePair]
) -> list[EncodedPair]:
    """Encode sentence pairs, with the translator's tags before the sources.

    The targets of a parser are lines of symbols.
    """
    written = translator.symbols or translator.tokenizer
    sources = translator.source_ids([pair.source for pair in pairs])
    targets = written.encode_targets([pair.target for pair in pairs])
    return [
        EncodedPair(source=source, target=target)
        for source, target in zip(sources, targets, strict=True)
    ]


def maps_of(
    model: Transformer, pairs: Sequence[EncodedPair]
) -> Iterator[AttentionMaps]:
    """Attention maps of each pair, in order."""
    device = next(model.parameters()).device
    for batch in _batches(pairs):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        target_in = pad_rows([[BOS, *pair.target] for pair in batch]).to(device)
        yield from attention_maps(model, source, target_in)


def loss(model: Transformer, pairs: Sequence[EncodedPair]) -> float:
    """Cross-entropy in nats per target token and end token, without smoothing."""
    device = next(model.parameters()).device
    by_length = sorted(pairs, key=lambda pair: len(pair.source) + len(pair.target))
    total, num_tokens = 0.0, 0
    for batch in _batches(by_length):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        for score in score_targets(model, source, [pair.target for pair in batch]):
            total -= score.log_probability
            num_tokens += score.num_tokens
    return total / num_tokens


def _batches(pairs: Sequence[EncodedPair]) -> Iterator[Sequence[EncodedPair]]:
    for start in range(0, len(pairs), BATCH_PAIRS):
        yield pairs[start : start + BATCH_PAIRS]


MAX_TOKENS = 128
"""Longest source or target in tokens: attention maps grow with its square."""
TASK = "A survey of heads"
"""Task in the error about a model that is no Transformer."""
PAIR, TREE = "pair", "tree"
"""Items of the corpus of a model that translates, and of a parser."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedHead:
    """Loss of the model with one head masked."""

    head: HeadName
    loss: float
    """Nats per target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSurvey:
    """Statistics of all heads over a corpus."""

    num_pairs: int
    loss: float
    """Loss of the whole model, in nats per target token."""
    statistics: tuple[HeadStatistics, ...]
    offsets: tuple[Offset, ...]
    pruned: tuple[PrunedHead, ...]
    """Losses without each head, the highest first."""


def survey_heads(
    translator: Translator, corpus: Sequence[SentencePair], on_progress: OnProgress
) -> HeadSurvey:
    """Compute the statistics of every head, and the loss without it.

    A parser needs the pairs of `tree_pairs`. Pairs that are too long, or have a side
    without text, are left out; raises `DataError` if none is left.
    """
    model = translator.torch_model.transformer(TASK)
    filled = [each for each in corpus if each.source.strip() and each.target.strip()]
    pairs = [
        pair for pair in encode_pairs(translator, filled) if pair.length <= MAX_TOKENS
    ]
    if not pairs:
        raise DataError(
            f"The corpus must have a {unit_of(translator)} of 1 to {MAX_TOKENS} tokens "
            f"a side, but has none among its first {len(corpus):,}."
        )
    on_progress("Computing attention...")
    sums = head_sums(maps_of(model, pairs))
    return HeadSurvey(
        num_pairs=len(pairs),
        loss=loss(model, pairs),
        statistics=tuple(head_statistics(sums)),
        offsets=tuple(preferred_offsets(sums)),
        pruned=tuple(_prune(model, pairs, on_progress)),
    )


def unit_of(translator: Translator) -> str:
    """Return the unit of a model's corpus: `TREE` for a parser, else `PAIR`."""
    return PAIR if translator.symbols is None else TREE


def tree_pairs(symbols: SymbolVocabulary, trees: Iterable[Tree]) -> list[SentencePair]:
    """Sentences with their linearized trees, as a parser reads and writes them."""
    return [
        SentencePair(
            source=" ".join(map(symbols.read_word, tree.words)),
            target=symbols.target_line(tree),
        )
        for tree in trees
    ]


def _prune(
    model: Transformer, pairs: Sequence[EncodedPair], on_progress: OnProgress
) -> list[PrunedHead]:
    pruned = []
    for kind, layers in attentions(model).items():
        for layer, attention in enumerate(layers, start=1):
            for head in range(attention.num_heads):
                name = HeadName(kind=kind, layer=layer, head=head + 1)
                on_progress(f"Without head {name}...")
                with without_head(attention, head):
                    pruned.append(PrunedHead(head=name, loss=loss(model, pairs)))
    return sorted(pruned, key=lambda each: each.loss, reverse=True)
