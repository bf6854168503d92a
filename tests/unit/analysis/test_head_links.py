from itertools import islice

import pytest
import torch

from transduce.analysis.attention_maps import AttentionMaps
from transduce.analysis.head_annotation import (
    AnnotatedMaps,
    annotate,
    dependencies,
    links,
    survey_links,
)
from transduce.grammar.corpus import Grammar, GrammarSentence
from transduce.trees.trees import parse_tree

SHIP = """(TOP (S (NP (DT The) (JJ broken) (NN ship)) (VP (VBZ does) (RB not)
(VP (VB leave) (SBAR (IN although) (S (NP (PRP it)) (VP (VBZ is)
(ADJP (JJ big))))))) (. .)))""".replace("\n", " ")
HORSES = """(TOP (S (NP (NP (DT the) (NNS horses)) (SBAR (WHNP (WDT that)) (S (NP (NP
(NNP Julia) (POS 's)) (NN child)) (VP (VBD saw))))) (VP (VBD found) (NP (DT a)
(NN ball))) (. .)))""".replace("\n", " ")


@pytest.fixture
def sentence() -> GrammarSentence:
    return GrammarSentence(
        source="The broken ship does not leave although it is big.",
        target="Das kaputte Schiff fährt nicht ab, obwohl es groß ist.",
        tree=SHIP,
        source_words=tuple(parse_tree(SHIP).words),
        target_words=(
            *("Das", "kaputte", "Schiff", "fährt", "nicht", "ab", ","),
            *("obwohl", "es", "groß", "ist", "."),
        ),
        alignment=((7, 8),),
        antecedents=((7, 2),),
    )


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (
            SHIP,
            [
                ("The", "ship"),
                ("broken", "ship"),
                ("does", "ship"),
                ("is", "it"),
            ],
        ),
        (
            HORSES,
            [
                ("the", "horses"),
                ("a", "ball"),
                ("saw", "child"),
                ("found", "horses"),
                ("ball", "found"),
            ],
        ),
    ],
    ids=["main and subordinate clause", "relative clause"],
)
def test_dependencies_follow_from_a_tree(
    tree: str, expected: list[tuple[str, str]]
) -> None:
    read = parse_tree(tree)
    found = [(read.words[d.query], read.words[d.key]) for d in dependencies(read)]
    assert found == expected


def test_a_pronoun_is_linked_from_both_languages(sentence: GrammarSentence) -> None:
    pronouns = [link for link in links(sentence) if "antecedent" in link.kind]
    assert [(each.kind, each.attention) for each in pronouns] == [
        ("it → antecedent", "encoder"),
        ("translation of it → antecedent", "encoder-decoder"),
    ]
    assert [(each.query, each.key) for each in pronouns] == [(7, 2), (8, 2)]


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (1, "it → antecedent"),
        (1, "he, she, they → antecedent"),
        (1, "his, her, its, their → antecedent"),
        (1, "that, which, who → antecedent"),
    ],
)
def test_the_built_in_grammar_has_every_kind_of_pronoun(seed: int, kind: str) -> None:
    sentences = islice(Grammar.built_in().held_out_sentences(seed), 200)
    assert any(link.kind == kind for each in sentences for link in links(each))


def test_a_head_that_finds_the_antecedent_is_the_most_accurate(
    sentence: GrammarSentence,
) -> None:
    nowhere = torch.eye(12)
    finds = torch.eye(12)
    finds[7] = torch.tensor([0, 0, 0.4, 0, 0, 0, 0, 0.5, 0, 0, 0, 0.1])
    annotated = AnnotatedMaps(
        sentence=sentence,
        encoder=torch.stack([nowhere, finds])[None],
        written=torch.full((1, 2, 12, 12), 1 / 12),
        read=torch.full((1, 2, 12, 12), 1 / 12),
    )
    found = {each.kind: each for each in survey_links([annotated])}
    it = found["it → antecedent"]
    assert str(it.heads[0].head) == "encoder 1.2"
    assert it.heads[0].accuracy == 1  # itself left out
    assert it.heads[0].weight == pytest.approx(0.4)
    assert it.heads[1].accuracy == 0
    assert (it.offset, it.offset_accuracy, it.num_links) == (-5, 1, 1)


def test_attention_between_pieces_becomes_attention_between_words(
    sentence: GrammarSentence,
) -> None:
    source = [" The", " bro", "ken", *(f" {w}" for w in sentence.source_words[2:])]
    target = [*(f" {w}" for w in sentence.target_words)]
    maps = AttentionMaps(
        encoder=torch.full((1, 1, 13, 13), 1 / 13),
        decoder=torch.full((1, 1, 13, 13), 1 / 13),
        encoder_decoder=torch.eye(13)[None, None],
    )
    found = annotate(sentence, maps, source, target)
    assert found.encoder.shape == (1, 1, 12, 12)
    assert float(found.encoder[0, 0, 0, 1]) == pytest.approx(2 / 13)
    assert found.written.shape == found.read.shape == (1, 1, 12, 12)
    # Each word is the input one position after it was the output.
    assert found.written[0, 0, 0].argmax() == 0
    assert found.read[0, 0, 0].argmax() == 1
