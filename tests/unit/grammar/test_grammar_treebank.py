"""The built-in grammar's trees belong to its sentences and are well formed."""

from itertools import islice

import pytest

from transduce.grammar.corpus import Grammar, held_out_trees, training_trees
from transduce.trees.trees import Tree, normalized

VERBS = {"VB", "VBD", "VBP", "VBZ", "MD", "TO"}
FIRST_TAGS = {
    "VP": VERBS,
    "PP": {"IN"},
    "WHPP": {"IN"},
    "WHNP": {"WP", "WDT"},
    "SBAR": {"IN", "WP", "WDT"},
    "ADVP": {"RB"},
    "PRT": {"RP"},
    "NP": {"CD", "DT", "JJ", "NNP", "NNS", "PRP", "PRP$", "RB"},
    "ADJP": {"JJ", "RB"},
}


@pytest.fixture(scope="module")
def trees() -> list[Tree]:
    return list(islice(training_trees(1), 1_000))


def test_a_seed_gives_the_trees_of_its_sentences(trees: list[Tree]) -> None:
    sentences = islice(Grammar.built_in().training_sentences(1), 1_000)
    for tree, sentence in zip(trees, sentences, strict=True):
        assert tree.words == sentence.source_words
        assert str(tree) == sentence.tree


def test_held_out_trees_belong_to_held_out_sentences() -> None:
    sentences = islice(Grammar.built_in().held_out_sentences(2), 50)
    trees = islice(held_out_trees(2), 50)
    assert [tree.words for tree in trees] == [one.source_words for one in sentences]


def test_the_trees_need_no_normalization(trees: list[Tree]) -> None:
    assert list(map(normalized, trees)) == trees


def test_phrases_start_like_phrases_of_their_label(trees: list[Tree]) -> None:
    first = {
        (one.label, tree.leaves[one.start].tag)
        for tree in trees
        for one in tree.constituents
        if one.label not in ("TOP", "S")
    }
    assert {label for label, _ in first} == set(FIRST_TAGS)
    assert [pair for pair in first if pair[1] not in FIRST_TAGS[pair[0]]] == []


def test_every_clause_has_a_predicate(trees: list[Tree]) -> None:
    for tree in trees:
        predicates = [one for one in tree.constituents if one.label == "VP"]
        for clause in tree.constituents:
            if clause.label == "S":
                assert any(
                    clause.start <= one.start and one.end <= clause.end
                    for one in predicates
                )
