"""Trees as parsers learn them: without traces and functions, below one kind of root.

So are the Penn Treebank's trees commonly prepared (Collins, 1999).
"""

import re
from dataclasses import replace
from itertools import accumulate

from transduce.trees.trees import Constituent, Tree

ROOT = "TOP"
ROOTS = frozenset({"", ROOT, "ROOT", "S1", "VROOT"})
"""What treebanks and parsers call the bracket around a sentence."""
TRACE = "-NONE-"
FUNCTION = re.compile(r"(?<=.)[-=].*")


def normalized(tree: Tree) -> Tree:
    """The tree without traces and functions, below the root `TOP`."""
    return with_root(without_functions(without_traces(tree)))


def without_traces(tree: Tree) -> Tree:
    """Leave out what is not spoken, and the constituents that hold nothing else."""
    is_word = [leaf.tag != TRACE for leaf in tree.leaves]
    if all(is_word):
        return tree
    position = list(accumulate(is_word, initial=0))
    moved = [
        Constituent(label, position[start], position[end])
        for label, start, end in tree.constituents
    ]
    return Tree(
        leaves=tuple([leaf for leaf in tree.leaves if leaf.tag != TRACE]),
        constituents=tuple([one for one in moved if one.start < one.end]),
    )


def without_functions(tree: Tree) -> Tree:
    """NP-SBJ-1 becomes NP; of alternatives as in ADVP|PRT the last is kept."""
    return replace(
        tree,
        constituents=tuple(
            [
                one._replace(label=FUNCTION.sub("", one.label).rpartition("|")[2])
                for one in tree.constituents
            ]
        ),
    )


def with_root(tree: Tree) -> Tree:
    """Call the root `TOP`, or put one on top if there is none."""
    if not tree.leaves:
        return tree
    inner = tree.constituents
    if inner and inner[0].label in ROOTS:
        inner = inner[1:]
    root = Constituent(ROOT, 0, len(tree.leaves))
    return replace(tree, constituents=(root, *inner))
