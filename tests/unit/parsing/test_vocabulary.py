"""Symbols as a target's vocabulary: whole, and the special ids first."""

from itertools import islice

import pytest

from transduce.corpora.grammar_treebank import training_trees
from transduce.parsing.linearization import STYLES, StyleName, Symbol, linearize
from transduce.parsing.trees import parse_tree
from transduce.parsing.vocabulary import (
    NEVER_WRITTEN,
    UNKNOWN,
    SymbolVocabulary,
    learn_symbols,
    target_line,
)
from transduce.special_ids import BOS, EOS, PAD

TREES = list(islice(training_trees(seed=1), 50))


@pytest.mark.parametrize("name", STYLES)
def test_ids_stand_for_the_symbols_of_a_tree(name: StyleName) -> None:
    vocabulary = learn_symbols(TREES, name)
    lines = [target_line(tree, vocabulary.style) for tree in TREES]
    for tree, ids in zip(TREES, vocabulary.encode_batch(lines), strict=True):
        symbols = [vocabulary.symbols[i] for i in ids]
        assert symbols == linearize(tree, STYLES[name])


def test_special_ids_stand_before_all_symbols() -> None:
    vocabulary = SymbolVocabulary("xx", (")S", "(S", "XX"))
    assert list(vocabulary.symbols) == [4, 5, 6]
    assert vocabulary.vocab_size == 7
    assert vocabulary.symbols[4] == Symbol("closing", "S")
    assert set(NEVER_WRITTEN) == {PAD, BOS, UNKNOWN}
    assert EOS not in NEVER_WRITTEN


def test_a_symbol_that_training_had_not_is_unknown() -> None:
    vocabulary = learn_symbols([parse_tree("(TOP (S (A a)))")], "xx")
    assert vocabulary.encode_batch(["(S (NP XX )NP )S", ""]) == [
        [6, UNKNOWN, 5, UNKNOWN, 4],
        [],
    ]
