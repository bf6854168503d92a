"""What the built-in grammar knows of its sentences, beside the maps of a model.

All is between words, as the grammar counts them; the end of the source is one more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import AttentionMaps
from transduce.analysis.head_survey.dependencies import dependencies
from transduce.analysis.words import between_words, groups_of_words
from transduce.model.config import AttentionKind
from transduce.parsing.trees import Tree, parse_tree
from transduce.text.grammar import GrammarSentence

RELATIVE = ("WDT", "WP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A word that is to find another, and in which attention it may look."""

    kind: str
    attention: AttentionKind
    query: int
    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedMaps:
    """A sentence of the grammar, and the maps of a model between its words."""

    sentence: GrammarSentence
    encoder: Float[Tensor, "layers heads source source"]
    written: Float[Tensor, "decoder_layers heads target source"]
    """From each target word where the decoder writes it."""
    read: Float[Tensor, "decoder_layers heads target source"]
    """From each target word where the decoder reads it, a step later."""


def annotate(
    sentence: GrammarSentence,
    maps: AttentionMaps,
    source_pieces: list[str],
    target_pieces: list[str],
) -> AnnotatedMaps:
    """Join what is between pieces to what is between words."""
    source = _with_end(groups_of_words(source_pieces, sentence.source_words))
    target = groups_of_words(target_pieces, sentence.target_words)
    memory = maps.encoder_decoder
    return AnnotatedMaps(
        sentence=sentence,
        encoder=between_words(maps.encoder, source, source),
        written=between_words(memory[..., :-1, :], target, source),
        read=between_words(memory[..., 1:, :], target, source),
    )


def _with_end(
    groups: Float[Tensor, "pieces words"],
) -> Float[Tensor, "pieces_and_end words_and_end"]:
    return torch.block_diag(groups, torch.ones(1, 1))


def links(sentence: GrammarSentence) -> Iterator[Link]:
    """Pronouns to what they stand for, and words to those they depend on."""
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
