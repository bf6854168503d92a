"""Attention heads: statistics, and comparison with the built-in grammar's annotation.

A survey measures all heads of a model over a corpus, as data and as a report.

The statistics are entropy, sharpness, distance and preferred offset. The grammar gives
each sentence's tree, antecedents of pronouns and word alignment. Positions are words;
the end token of the source counts as one more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    attentions,
    between_words,
    without_head,
)
from transduce.analysis.figures import HeadValues, draw_heads
from transduce.data.batches import EncodedPair
from transduce.data.tensors import pad_rows
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.errors import DataError, RequestError, counted, percent
from transduce.grammar.corpus import BUILT_IN, Grammar, GrammarSentence, Pair
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.model.transformer import Transformer
from transduce.report.report import (
    Part,
    Picture,
    Report,
    Section,
    Table,
    columns,
)
from transduce.text.corpus import SentencePair
from transduce.text.inline_tags import have_same_letters, letter_groups
from transduce.text.languages import best_match, english_name
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.linearization import SymbolVocabulary
from transduce.trees.trees import Constituent, Tree, parse_tree, without_brackets

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
            sums = _of_sentence(kind, each.of(kind))
            total[kind] = total[kind] + sums if kind in total else sums
    return list(total.values())


def _of_sentence(
    kind: AttentionKind, weights: Float[Tensor, "layers heads queries keys"]
) -> HeadSums:
    weights = weights.double()
    sums = HeadSums(
        kind=kind, num_queries=weights.size(-2), statistics=_sums(kind, weights)
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
    return [each for one in sums for each in _of_kind(one)]


def preferred_offsets(sums: Iterable[HeadSums]) -> list[Offset]:
    """Preferred offset of every self-attention head."""
    return [
        each
        for one in sums
        if one.weights is not None and one.even_weights is not None
        for each in _offsets(
            one.kind,
            _shares_by_offset(one.weights) / one.num_queries,
            _shares_by_offset(one.even_weights)[0, 0] / one.num_queries,
        )
    ]


def _offsets(
    kind: AttentionKind,
    shares: Float[Tensor, "layers heads offsets"],
    even_shares: Float[Tensor, " offsets"],
) -> list[Offset]:
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


def _shares_by_offset(
    weights: Float[Tensor, "layers heads reach"],
) -> Float[Tensor, "layers heads offsets"]:
    """Weight around each offset from -FARTHEST to FARTHEST."""
    return weights.unfold(-1, 3, 1).sum(dim=-1)


def _of_kind(sums: HeadSums) -> list[HeadStatistics]:
    means = {name: each / sums.num_queries for name, each in sums.statistics.items()}
    num_layers, num_heads = means["entropy"].shape
    return [
        HeadStatistics(
            head=HeadName(kind=sums.kind, layer=layer + 1, head=head + 1),
            **{name: float(mean[layer, head]) for name, mean in means.items()},
        )
        for layer in range(num_layers)
        for head in range(num_heads)
    ]


def _sums(
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


NOUNS = ("NN", "NNS", "NNP", "PRP")
MODIFIERS = {
    "DT": "determiner → noun",
    "PRP$": "determiner → noun",
    "JJ": "adjective → noun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Syntactic dependency between two words."""

    kind: str
    query: int
    key: int


def dependencies(tree: Tree) -> Iterator[Dependency]:
    """Dependencies from modifiers to nouns, verbs to subjects, objects to verbs."""
    phrases = _Phrases(tree)
    yield from _of_modifiers(phrases)
    for verb, phrase in phrases.verbs():
        yield from _of_verb(phrases, verb, phrase)


class _Phrases:
    """Tree with the innermost phrase of each leaf."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.inner = [self._innermost(i) for i in range(len(tree.leaves))]

    def _innermost(self, position: int) -> Constituent:
        around = (c for c in self.tree.constituents if c.start <= position < c.end)
        *_, inner = around
        return inner

    def nouns(self) -> Iterator[tuple[int, Constituent]]:
        """Each noun phrase with its head: its own noun, or that of its first phrase."""
        for phrase in self.tree.constituents:
            noun = self._noun(phrase)
            if phrase.label == "NP" and noun is not None:
                yield noun, phrase

    def _noun(self, phrase: Constituent) -> int | None:
        inside = range(phrase.start, phrase.end)
        tags = [leaf.tag for leaf in self.tree.leaves]
        own = [i for i in inside if self.inner[i] is phrase and tags[i] in NOUNS]
        first = [i for i in inside if self.inner[i] is self.inner[phrase.start]]
        found = own or [i for i in first if tags[i] in NOUNS]
        return found[-1] if found else None

    def verbs(self) -> Iterator[tuple[int, Constituent]]:
        """Each verb phrase with the verb that begins it."""
        for phrase in self.tree.constituents:
            tag = self.tree.leaves[phrase.start].tag
            if phrase.label == "VP" and tag.startswith("V"):
                yield phrase.start, phrase


def _of_modifiers(phrases: _Phrases) -> Iterator[Dependency]:
    nouns = {phrase: noun for noun, phrase in phrases.nouns()}
    for position, leaf in enumerate(phrases.tree.leaves):
        noun = nouns.get(phrases.inner[position])
        if leaf.tag in MODIFIERS and noun is not None:
            yield Dependency(kind=MODIFIERS[leaf.tag], query=position, key=noun)


def _of_verb(phrases: _Phrases, verb: int, phrase: Constituent) -> Iterator[Dependency]:
    before = [(n, p) for n, p in phrases.nouns() if p.end == phrase.start]
    after = [n for n, p in phrases.nouns() if p.start == verb + 1]
    if before:
        # The longest noun phrase includes its relative clause.
        subject = min(before, key=lambda each: each[1].start)[0]
        yield Dependency(kind="verb → subject", query=verb, key=subject)
    for noun in after[:1]:
        yield Dependency(kind="object → verb", query=noun, key=verb)


RELATIVE = ("WDT", "WP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Linked pair of words, and the kind of attention that could find it."""

    kind: str
    attention: AttentionKind
    query: int
    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedMaps:
    """Sentence of the grammar with a model's attention between its words."""

    sentence: GrammarSentence
    encoder: Float[Tensor, "layers heads source source"]
    written: Float[Tensor, "decoder_layers heads target source"]
    """Cross-attention at the step that outputs the target word."""
    read: Float[Tensor, "decoder_layers heads target source"]
    """Cross-attention at the next step, whose input is the target word."""


def _letter_groups(
    pieces: Sequence[str], words: Sequence[str]
) -> Float[Tensor, "pieces words"]:
    return torch.from_numpy(letter_groups(pieces, words))


def annotate(
    sentence: GrammarSentence,
    maps: AttentionMaps,
    source_pieces: list[str],
    target_pieces: list[str],
) -> AnnotatedMaps:
    """Convert attention between sub-words to attention between words."""
    source = _with_end(_letter_groups(source_pieces, sentence.source_words))
    target = _letter_groups(target_pieces, sentence.target_words)
    cross = maps.encoder_decoder
    return AnnotatedMaps(
        sentence=sentence,
        encoder=between_words(maps.of("encoder"), source, source),
        written=between_words(cross[..., :-1, :], target, source),
        read=between_words(cross[..., 1:, :], target, source),
    )


def _with_end(
    groups: Float[Tensor, "pieces words"],
) -> Float[Tensor, "pieces_and_end words_and_end"]:
    return torch.block_diag(groups, torch.ones(1, 1))


def links(sentence: GrammarSentence) -> Iterator[Link]:
    """Links from pronouns to their antecedents, and from words to their heads."""
    tree = parse_tree(sentence.tree)
    yield from _antecedents(sentence, tree)
    for each in dependencies(tree):
        yield Link(kind=each.kind, attention="encoder", query=each.query, key=each.key)


def _antecedents(sentence: GrammarSentence, tree: Tree) -> Iterator[Link]:
    for pronoun, noun in sentence.antecedents:
        kind = f"{_pronoun_kind(tree, pronoun)} → antecedent"
        yield Link(kind=kind, attention="encoder", query=pronoun, key=noun)
        if tree.leaves[pronoun].tag != "PRP":
            continue
        for source, target in sentence.alignment:
            if source == pronoun:
                yield Link(
                    kind=f"translation of {kind}",
                    attention="encoder-decoder",
                    query=target,
                    key=noun,
                )


def _pronoun_kind(tree: Tree, position: int) -> str:
    tag, word = tree.leaves[position]
    if tag in RELATIVE:
        return "that, which, who"
    if tag == "PRP$":
        return "his, her, its, their"
    return "it" if word.lower() == "it" else "he, she, they"


Place = Literal["written", "read"]
"""Decoding step whose attention is used for a target word: see `AnnotatedMaps`."""
Linking = Literal["target", "source", "either"]
"""Side whose words each choose the word with the greatest weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentError:
    """Alignment error rate of a head, or of the mean of a layer's heads."""

    layer: int
    head: int | None
    """Number of the head from 1; None for the mean of heads."""
    place: Place
    linking: Linking
    error_rate: float
    """Between 0, if all links are found and right, and 1, if none is."""


AlignmentCounts = dict[
    tuple[Place, Linking], Float[Tensor, "right_found_gold layers heads_and_mean"]
]
"""Numbers of right links, of all links found, and of those in the annotation."""


def alignment_errors(annotated: Iterable[AnnotatedMaps]) -> list[AlignmentError]:
    """Alignment error rates of every head and layer over all sentences."""
    total: AlignmentCounts = {}
    for each in annotated:
        _count_alignment(each, total)
    return list(_error_rates(total))


def _count_alignment(annotated: AnnotatedMaps, total: AlignmentCounts) -> None:
    """Add the counts of a sentence."""
    for place in get_args(Place):
        for linking in get_args(Linking):
            counts, key = _counts(annotated, place, linking), (place, linking)
            total[key] = total[key] + counts if key in total else counts


def _error_rates(total: AlignmentCounts) -> Iterator[AlignmentError]:
    for (place, linking), counts in total.items():
        yield from _errors(counts, place, linking)


def _errors(
    counts: Float[Tensor, "right_found_gold layers heads_and_mean"],
    place: Place,
    linking: Linking,
) -> Iterator[AlignmentError]:
    right, found, gold = counts
    rates = 1 - 2 * right / (found + gold)
    num_layers, num_and_mean = rates.shape
    for layer in range(num_layers):
        for head in range(num_and_mean):
            is_mean = head == num_and_mean - 1
            yield AlignmentError(
                layer=layer + 1,
                head=None if is_mean else head + 1,
                place=place,
                linking=linking,
                error_rate=float(rates[layer, head]),
            )


def _counts(
    annotated: AnnotatedMaps, place: Place, linking: Linking
) -> Float[Tensor, "right_found_gold layers heads_and_mean"]:
    weights = annotated.written if place == "written" else annotated.read
    weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
    found = links_by(linking, weights)
    gold = torch.zeros(found.shape[-2:], dtype=torch.bool)
    for source, target in annotated.sentence.alignment:
        gold[target, source] = True
    right = (found & gold).sum(dim=(-2, -1))
    num_found = found.sum(dim=(-2, -1))
    return torch.stack([right, num_found, gold.sum().expand_as(right)]).double()


def links_by(
    linking: Linking, weights: Float[Tensor, "*heads target source_and_end"]
) -> Bool[Tensor, "*heads target source"]:
    """Link each word with the one of the greatest weight.

    The end token of the source is no word: a target word that prefers it has no link.
    """
    by_target = _greatest(weights, dim=-1)
    by_source = _greatest(weights, dim=-2)
    return {
        "target": by_target,
        "source": by_source,
        "either": by_target | by_source,
    }[linking][..., :-1]


def _greatest(weights: Float[Tensor, "..."], dim: int) -> Bool[Tensor, "..."]:
    places = weights.argmax(dim=dim, keepdim=True)
    return torch.zeros_like(weights, dtype=torch.bool).scatter(dim, places, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAccuracy:
    """Accuracy of a head for one kind of link."""

    head: HeadName
    accuracy: float
    """Share of links whose word has the greatest weight, without the querying word and
    the end token."""
    weight: float
    """Mean weight on the linked word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSurvey:
    """Accuracy of all heads for one kind of link."""

    kind: str
    num_links: int
    offset: int
    """Most frequent offset of the linked word, in words."""
    offset_accuracy: float
    """Accuracy of always choosing the word at this offset."""
    heads: tuple[LinkAccuracy, ...]
    """Heads, the most accurate first."""


def survey_links(annotated: Iterable[AnnotatedMaps]) -> list[LinkSurvey]:
    """Accuracy of all heads for every kind of link in the sentences."""
    total: LinkTotals = {}
    for each in annotated:
        _add_links(each, total)
    return _link_surveys(total)


def _add_links(annotated: AnnotatedMaps, total: "LinkTotals") -> None:
    """Add the links of a sentence."""
    for link in links(annotated.sentence):
        sums = total.setdefault((link.kind, link.attention), _LinkSums())
        sums.add(annotated, link)


def _link_surveys(total: "LinkTotals") -> list[LinkSurvey]:
    return [
        _survey(*key, sums) for key, sums in sorted(total.items(), key=itemgetter(0))
    ]


@dataclass(slots=True)
class _LinkSums:
    """Sums of all heads over the links of one kind."""

    offsets: Counter[int] = field(default_factory=Counter)
    """Number of links by offset of the linked word."""
    right: Float[Tensor, "layers heads"] | None = None
    weight: Float[Tensor, "layers heads"] | None = None

    def add(self, annotated: AnnotatedMaps, link: Link) -> None:
        """Add a link of a sentence."""
        is_inside = link.attention == "encoder"
        maps = annotated.encoder if is_inside else annotated.written
        weights = maps[:, :, link.query]
        others = weights[..., :-1].clone()
        if is_inside:
            others[..., link.query] = -1
        right = (others.argmax(dim=-1) == link.key).double()
        weight = weights[..., link.key].double()
        self.offsets[link.key - link.query] += 1
        self.right = right if self.right is None else self.right + right
        self.weight = weight if self.weight is None else self.weight + weight


LinkTotals = dict[tuple[str, AttentionKind], _LinkSums]
"""Sums over all links, by their kind and by that of the attention."""


def _survey(kind: str, attention: AttentionKind, found: _LinkSums) -> LinkSurvey:
    assert found.right is not None
    assert found.weight is not None
    num_links = found.offsets.total()
    accuracy, weight = found.right / num_links, found.weight / num_links
    heads = [
        LinkAccuracy(
            head=HeadName(kind=attention, layer=layer + 1, head=head + 1),
            accuracy=float(accuracy[layer, head]),
            weight=float(weight[layer, head]),
        )
        for layer in range(accuracy.size(0))
        for head in range(accuracy.size(1))
    ]
    (offset, count), *_ = found.offsets.most_common(1)
    return LinkSurvey(
        kind=kind,
        num_links=num_links,
        offset=offset,
        offset_accuracy=count / num_links,
        heads=tuple(sorted(heads, key=lambda each: each.accuracy, reverse=True)),
    )


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
"""Longest source or target: attention maps grow with its square."""
TASK = "A survey of heads"
"""Task in the error about a model that is no Transformer."""
SEED = 20170612
"""Seed of the built-in grammar's sentences, which no training uses."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedSurvey:
    """Results that need the annotation of the built-in grammar."""

    alignment: tuple[AlignmentError, ...]
    links: tuple[LinkSurvey, ...]


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
            f"The corpus must have a pair of 1 to {MAX_TOKENS} tokens a side, but has "
            f"none among its first {len(corpus):,}."
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


def survey_annotated(
    translator: Translator, sentences: Sequence[GrammarSentence]
) -> AnnotatedSurvey:
    """Compare the heads with the annotation of the grammar's sentences.

    Sentences that the tokenizer cannot represent are left out; raises `DataError` if
    none is left.
    """
    model, tokenizer = translator.torch_model.transformer(TASK), translator.tokenizer
    pairs = encode_pairs(
        translator,
        [SentencePair(source=each.source, target=each.target) for each in sentences],
    )
    num_tags = bool(translator.corpus_tag) + bool(translator.language_tag)
    alignment: AlignmentCounts = {}
    found: LinkTotals = {}
    for sentence, pair, maps in zip(
        sentences, pairs, maps_of(model, pairs), strict=True
    ):
        source = tokenizer.pieces(pair.source[num_tags:])
        target = tokenizer.pieces(pair.target)
        if have_same_letters(sentence.source_words, source) and have_same_letters(
            sentence.target_words, target
        ):
            words = annotate(sentence, _without_tags(maps, num_tags), source, target)
            _count_alignment(words, alignment)
            _add_links(words, found)
    if not alignment:
        raise DataError(
            "The model's tokenizer must cover the words of the built-in corpus, but "
            f"covers no sentence of the first {len(sentences):,}; give text of the "
            "model's languages with --source and --target."
        )
    return AnnotatedSurvey(
        alignment=tuple(_error_rates(alignment)),
        links=tuple(_link_surveys(found)),
    )


def _without_tags(maps: AttentionMaps, num_tags: int) -> AttentionMaps:
    """Leave out the tags before the source, which are no words."""
    encoder = maps.encoder
    return replace(
        maps,
        encoder=None if encoder is None else encoder[..., num_tags:, num_tags:],
        encoder_decoder=maps.encoder_decoder[..., num_tags:],
    )


def translator_and_pair(translator: Translator) -> tuple[Translator, Pair]:
    """Return the translator for the built-in corpus, and the corpus's pair for it.

    The pair is that of the model's languages. A model of several target languages
    translates into that of the pair. An unknown language counts as the corpus's.
    Raises `RequestError` if no pair fits.
    """
    several = translator.target_languages
    for pair in BUILT_IN:
        source, target = pair.split("-")
        known = several or [translator.target_language or target]
        if best_match(source, [translator.source_language or source]) is None:
            continue
        if found := best_match(target, known):
            return (translator.into(found) if several else translator), pair
    targets: Sequence[str | None] = several or [translator.target_language]
    named = [
        english_name(each) if each else "unknown"
        for each in (translator.source_language, *targets)
    ]
    raise RequestError(
        "The built-in corpus has English sources and German or Chinese targets, but "
        f"the model translates {named[0]} into {' or '.join(named[1:])}; give text by "
        "--source and --target."
    )


def grammar_sentences(count: int, pair: Pair) -> list[GrammarSentence]:
    """Distinct sentences with combinations of words that are not in training."""
    return list(islice(Grammar.built_in(pair).held_out_sentences(SEED), count))


def tree_pairs(symbols: SymbolVocabulary, trees: Iterable[Tree]) -> list[SentencePair]:
    """Sentences with their linearized trees, as a parser reads and writes them."""
    return [
        SentencePair(
            source=" ".join(map(without_brackets, tree.words)),
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


def as_report(
    survey: HeadSurvey, annotated: AnnotatedSurvey | None, model: str, corpus: str
) -> Report:
    """Report on all heads; `annotated` is for the built-in grammar only."""
    sections = [
        Section(title="Heads that follow positions", parts=tuple(_positional(survey))),
        Section(title="Statistics of the heads", parts=tuple(_statistics(survey))),
    ]
    if annotated is not None:
        sections += [
            Section(title="Pronouns and syntax", parts=tuple(_links(annotated))),
            Section(title="Alignment", parts=tuple(_alignment(annotated))),
        ]
    sections.append(Section(title="Pruning", parts=tuple(_pruning(survey))))
    pairs = counted(survey.num_pairs, "pair")
    return Report(
        title=f"The heads of {model} on {pairs} of {corpus}",
        sections=tuple(sections),
    )


def _positional(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        "The relative position around which each head has the most weight. The share "
        "is the weight on this position and its two neighbours; the last column is the "
        "same for uniform attention over all unmasked tokens. Position 0 is the token "
        "itself, -1 the previous one."
    )
    ranked = sorted(survey.offsets, key=lambda each: each.share, reverse=True)
    yield Table(
        columns=columns("head", "position", "share", "if uniform"),
        rows=tuple(
            (
                str(each.head),
                f"{each.offset:+d}" if each.offset else "0",
                f"{each.share:.2f}",
                f"{each.even_share:.2f}",
            )
            for each in ranked
        ),
    )
    values = [(each.head, each.share) for each in survey.offsets]
    yield _picture("positions", "Weight around the preferred position", values)


def _statistics(survey: HeadSurvey) -> Iterator[Part]:
    yield f"Means over all tokens. {LEGEND}"
    yield statistics_table(survey.statistics)
    yield _picture(
        "sharpness",
        "Sharpness: greatest weight of a query",
        [(each.head, each.sharpness) for each in survey.statistics],
    )


def _links(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Accuracy of the two best heads for each kind of link: how often the linked "
        "word has the greatest weight, apart from the word itself and the end token. "
        "Weight is the best head's mean weight on the linked word. For "
        "comparison, the last columns are the most frequent distance of the linked "
        "word and the accuracy of always choosing that distance. Translations of "
        "pronouns attend to the source at the step that outputs them."
    )
    heads = ("links", "best head", "accuracy", "weight", "second", "accuracy")
    yield Table(
        columns=columns("link", *heads, "distance", "accuracy"),
        rows=tuple(map(_link_row, annotated.links)),
    )
    for survey in annotated.links:
        if survey.kind.startswith("it "):
            values = [(each.head, each.accuracy) for each in survey.heads]
            yield _picture("antecedents", f"{survey.kind}: accuracy", values)


def _link_row(survey: LinkSurvey) -> tuple[str, ...]:
    best, second = survey.heads[0], survey.heads[min(1, len(survey.heads) - 1)]
    return (
        survey.kind,
        f"{survey.num_links:,}",
        str(best.head),
        percent(best.accuracy),
        f"{best.weight:.2f}",
        str(second.head),
        percent(second.accuracy),
        f"{survey.offset:+d}",
        percent(survey.offset_accuracy),
    )


def _alignment(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Alignment error rate (Och and Ney, 2003) of cross-attention between "
        "words, against the grammar's alignment; 0 % means that all links are found "
        "and right. The attention of a target word is taken at the step that outputs "
        "it (written), or at the next step, whose input it is (read). By target, each "
        "target word is linked to the source word of the greatest weight; by source, "
        "each source word to the target word of the greatest weight; by either, both."
    )
    heads = [f"{p}, by {b}" for p in ("written", "read") for b in get_args(Linking)]
    by_head: dict[tuple[int, bool, int], list[AlignmentError]] = {}
    for each in annotated.alignment:
        # The mean of a layer's heads comes after them.
        place = (each.layer, each.head is None, each.head or 0)
        by_head.setdefault(place, []).append(each)
    yield Table(
        columns=columns("encoder-decoder", *heads),
        rows=tuple(_error_row(by_head[key]) for key in sorted(by_head)),
    )


def _error_row(errors: Sequence[AlignmentError]) -> tuple[str, ...]:
    first = errors[0]
    name = f"head {first.head}" if first.head else "mean of heads"
    return (
        f"layer {first.layer}, {name}",
        *(percent(each.error_rate, 1) for each in errors),
    )


def _pruning(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        f"The loss of the whole model is {survey.loss:.4f} nats per target token. The "
        "table has the loss with one head masked, so that its output is 0 (Michel et "
        "al., 2019)."
    )
    yield Table(
        columns=columns("head", "loss", "increase"),
        rows=tuple(
            (str(each.head), f"{each.loss:.4f}", f"{each.loss - survey.loss:+.4f}")
            for each in survey.pruned
        ),
    )
    values = [(each.head, each.loss - survey.loss) for each in survey.pruned]
    title = "Increase of the loss without each head, in nats per target token"
    yield _picture("pruning", title, values)


def _picture(name: str, title: str, values: list[tuple[HeadName, float]]) -> Picture:
    present = {head.kind for head, _ in values}
    kinds = [kind for kind in ATTENTION_KINDS if kind in present]
    grids = [
        HeadValues(
            kind=kind,
            values={(h.layer, h.head): v for h, v in values if h.kind == kind},
        )
        for kind in kinds
    ]
    return draw_heads(name, title, grids)
