"""Symbols as a target vocabulary, after the special ids."""

from itertools import islice
from pathlib import Path

import pytest

from transduce.grammar.corpus import training_trees
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.trees.linearization import STYLES, StyleName, Symbol, linearize
from transduce.trees.trees import parse_tree
from transduce.trees.vocabulary import (
    NEVER_WRITTEN,
    UNKNOWN,
    SymbolVocabulary,
    learn_symbols,
)

TREES = list(islice(training_trees(seed=1), 50))


@pytest.mark.parametrize("name", STYLES)
def test_the_symbols_of_a_tree_have_ids(name: StyleName) -> None:
    vocabulary = learn_symbols(TREES, name)
    lines = list(map(vocabulary.target_line, TREES))
    for tree, ids in zip(TREES, vocabulary.encode_targets(lines), strict=True):
        symbols = [vocabulary.symbols[i] for i in ids]
        assert symbols == linearize(tree, STYLES[name])


def test_special_ids_come_before_all_symbols() -> None:
    vocabulary = SymbolVocabulary("xx", (")S", "(S", "XX"))
    assert list(vocabulary.symbols) == [4, 5, 6]
    assert vocabulary.vocab_size == 7
    assert vocabulary.symbols[4] == Symbol("closing", "S")
    assert set(NEVER_WRITTEN) == {PAD, BOS, UNKNOWN}
    assert EOS not in NEVER_WRITTEN


def test_a_symbol_outside_the_training_trees_is_unknown() -> None:
    vocabulary = learn_symbols([parse_tree("(TOP (S (A a)))")], "xx")
    assert vocabulary.encode_targets(["(S (NP XX )NP )S", ""]) == [
        [6, UNKNOWN, 5, UNKNOWN, 4],
        [],
    ]


def test_symbols_of_words_take_a_source_word() -> None:
    tree = parse_tree("(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))")
    vocabulary = learn_symbols([tree], "pos")
    words = {
        vocabulary.spellings[i - UNKNOWN - 1]
        for i in vocabulary.symbols
        if vocabulary.takes_word[i]
    }
    assert words == {"DT", "NN", "VBZ", "."}
    assert vocabulary.takes_word[: UNKNOWN + 1] == [False] * 4


def test_a_saved_vocabulary_can_be_read(tmp_path: Path) -> None:
    for name in STYLES:
        saved = learn_symbols(TREES, name)
        saved.save(tmp_path / "symbols")
        assert SymbolVocabulary.load(tmp_path / "symbols") == saved
