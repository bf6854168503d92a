"""The built-in grammar as a treebank: its English sentences with their trees.

A tree is that of the derivation, as the grammar's rules have it.
"""

from collections.abc import Iterable, Iterator

from transduce.parsing.trees import Tree, read_trees
from transduce.text.grammar import Grammar, GrammarSentence


def training_trees(seed: int) -> Iterator[Tree]:
    """Trees without end, of `Grammar.training_sentences`."""
    return _trees(Grammar.built_in().training_sentences(seed))


def held_out_trees(seed: int) -> Iterator[Tree]:
    """Different trees without end, of `Grammar.held_out_sentences`."""
    return _trees(Grammar.built_in().held_out_sentences(seed))


def _trees(sentences: Iterable[GrammarSentence]) -> Iterator[Tree]:
    return read_trees((sentence.tree for sentence in sentences), "built-in grammar")
