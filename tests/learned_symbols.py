"""Vocabulary of the symbols of given trees, without the files of a treebank."""

from collections.abc import Iterable
from itertools import chain

from transduce.trees.linearization import (
    STYLES,
    StyleName,
    SymbolVocabulary,
    linearize,
    vocabulary_of,
)
from transduce.trees.trees import Tree


def learn_symbols(trees: Iterable[Tree], style_name: StyleName) -> SymbolVocabulary:
    """Return the vocabulary of all symbols of the trees."""
    linearized = (linearize(tree, STYLES[style_name]) for tree in trees)
    return vocabulary_of(set(chain.from_iterable(linearized)), style_name)
