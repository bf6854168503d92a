"""Attention heads compared with the annotation of the built-in grammar.

The grammar gives each sentence's tree, antecedents of pronouns and word alignment.
Positions are words; the end token of the source counts as one more.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.analysis.attention_maps import AttentionMaps, between_words
from transduce.analysis.heads import (
    TASK,
    HeadName,
    encode_pairs,
    maps_of,
    numbered_heads,
)
from transduce.decoding.translator import Translator
from transduce.errors import DataError, RequestError
from transduce.grammar.corpus import BUILT_IN, Grammar, GrammarSentence, Pair
from transduce.model.config import AttentionKind
from transduce.text.corpus import SentencePair
from transduce.text.inline_tags import have_same_letters, letter_groups
from transduce.text.languages import best_match, english_name
from transduce.trees.trees import Constituent, Tree, parse_tree

NOUNS = ("NN", "NNS", "NNP", "PRP")


MODIFIERS = {
    "DT": "determiner → noun",
    "PRP$": "determiner → noun",
    "JJ": "adjective → noun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Linked pair of words, and the kind of attention that could find it."""

    kind: str
    attention: AttentionKind = "encoder"
    query: int
    key: int


def dependencies(tree: Tree) -> Iterator[Link]:
    """Dependencies from modifiers to nouns, verbs to subjects, objects to verbs."""
    inner = [_innermost(tree, i) for i in range(len(tree.leaves))]
    nouns = [
        (noun, phrase)
        for phrase in tree.constituents
        if phrase.label == "NP" and (noun := _noun(tree, phrase, inner)) is not None
    ]
    noun_of = {phrase: noun for noun, phrase in nouns}
    for position, leaf in enumerate(tree.leaves):
        noun = noun_of.get(inner[position])
        if leaf.tag in MODIFIERS and noun is not None:
            yield Link(kind=MODIFIERS[leaf.tag], query=position, key=noun)
    for phrase in tree.constituents:
        verb = phrase.start
        if phrase.label != "VP" or not tree.leaves[verb].tag.startswith("V"):
            continue
        if before := [each for each in nouns if each[1].end == verb]:
            # The longest noun phrase includes its relative clause.
            subject, _ = min(before, key=lambda each: each[1].start)
            yield Link(kind="verb → subject", query=verb, key=subject)
        for noun in [n for n, p in nouns if p.start == verb + 1][:1]:
            yield Link(kind="object → verb", query=noun, key=verb)


def _innermost(tree: Tree, position: int) -> Constituent:
    """Return the innermost phrase of a leaf."""
    around = (c for c in tree.constituents if c.start <= position < c.end)
    *_, inner = around
    return inner


def _noun(tree: Tree, phrase: Constituent, inner: Sequence[Constituent]) -> int | None:
    """Return the head of a noun phrase: its own noun, or that of its first phrase."""
    nouns = [i for i in range(phrase.start, phrase.end) if tree.leaves[i].tag in NOUNS]
    own = [i for i in nouns if inner[i] is phrase]
    found = own or [i for i in nouns if inner[i] is inner[phrase.start]]
    return found[-1] if found else None


RELATIVE = ("WDT", "WP")


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
    source = _letter_groups(source_pieces, sentence.source_words)
    source = torch.block_diag(source, source.new_ones(1, 1))  # with the end token
    target = _letter_groups(target_pieces, sentence.target_words)
    cross = maps.encoder_decoder
    return AnnotatedMaps(
        sentence=sentence,
        encoder=between_words(maps.of("encoder"), source, source),
        written=between_words(cross[..., :-1, :], target, source),
        read=between_words(cross[..., 1:, :], target, source),
    )


def links(sentence: GrammarSentence) -> Iterator[Link]:
    """Links from pronouns to their antecedents, and from words to their heads."""
    tree = parse_tree(sentence.tree)
    yield from _antecedents(sentence, tree)
    yield from dependencies(tree)


def _antecedents(sentence: GrammarSentence, tree: Tree) -> Iterator[Link]:
    for pronoun, noun in sentence.antecedents:
        kind = f"{_pronoun_kind(tree, pronoun)} → antecedent"
        yield Link(kind=kind, query=pronoun, key=noun)
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


def count_alignment(annotated: AnnotatedMaps, total: AlignmentCounts) -> None:
    """Add the counts of a sentence."""
    for place in get_args(Place):
        for linking in get_args(Linking):
            counts, key = _link_counts(annotated, place, linking), (place, linking)
            total[key] = total[key] + counts if key in total else counts


def error_rates(total: AlignmentCounts) -> Iterator[AlignmentError]:
    """Yield the alignment error rates of every head and layer."""
    for (place, linking), (right, found, gold) in total.items():
        rates = (1 - 2 * right / (found + gold)).tolist()
        for layer, (*of_heads, of_mean) in enumerate(rates, start=1):
            for head, rate in (*enumerate(of_heads, start=1), (None, of_mean)):
                yield AlignmentError(
                    layer=layer,
                    head=head,
                    place=place,
                    linking=linking,
                    error_rate=rate,
                )


def _link_counts(
    annotated: AnnotatedMaps, place: Place, linking: Linking
) -> Float[Tensor, "right_found_gold layers heads_and_mean"]:
    weights = annotated.written if place == "written" else annotated.read
    weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
    found = links_by(linking, weights)
    gold = found.new_zeros(found.shape[-2:])
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


def add_links(annotated: AnnotatedMaps, total: "LinkTotals") -> None:
    """Add the links of a sentence."""
    for link in links(annotated.sentence):
        sums = total.setdefault((link.kind, link.attention), _LinkSums())
        sums.add(annotated, link)


def link_surveys(total: "LinkTotals") -> list[LinkSurvey]:
    """Return the accuracy of all heads for every kind of link."""
    return [
        _survey_kind(*key, sums)
        for key, sums in sorted(total.items(), key=itemgetter(0))
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


def _survey_kind(kind: str, attention: AttentionKind, found: _LinkSums) -> LinkSurvey:
    assert found.right is not None
    assert found.weight is not None
    num_links = found.offsets.total()
    accuracy, weight = found.right / num_links, found.weight / num_links
    heads = [
        LinkAccuracy(
            head=name, accuracy=float(accuracy[place]), weight=float(weight[place])
        )
        for name, place in numbered_heads(attention, accuracy)
    ]
    (offset, count), *_ = found.offsets.most_common(1)
    return LinkSurvey(
        kind=kind,
        num_links=num_links,
        offset=offset,
        offset_accuracy=count / num_links,
        heads=tuple(sorted(heads, key=lambda each: each.accuracy, reverse=True)),
    )


SEED = 20170612
"""Seed of the built-in grammar's sentences, which no training uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedSurvey:
    """Results that need the annotation of the built-in grammar."""

    alignment: tuple[AlignmentError, ...]
    links: tuple[LinkSurvey, ...]


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
            count_alignment(words, alignment)
            add_links(words, found)
    if not alignment:
        raise DataError(
            "The model's tokenizer must cover the words of the built-in corpus, but "
            f"covers no sentence of the first {len(sentences):,}; give source and "
            "target text of the model's languages."
        )
    return AnnotatedSurvey(
        alignment=tuple(error_rates(alignment)),
        links=tuple(link_surveys(found)),
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

    The pair has the model's languages. A model of several target languages translates
    into the pair's target. An unknown language counts as the corpus's. Raises
    `RequestError` if no pair fits.
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
        f"the model translates {named[0]} into {' or '.join(named[1:])}; give source "
        "and target text."
    )


def grammar_sentences(count: int, pair: Pair) -> list[GrammarSentence]:
    """Distinct sentences with combinations of words that are not in training."""
    return list(islice(Grammar.built_in(pair).held_out_sentences(SEED), count))
