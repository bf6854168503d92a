"""Normalization of trees for parsing: no traces, no function tags, one root label.

This is the usual preparation of the Penn Treebank (Collins, 1999).
"""

import re
from dataclasses import replace
from itertools import accumulate

from transduce.trees.trees import Constituent, Tree

ROOT = "TOP"
ROOTS = frozenset({"", ROOT, "ROOT", "S1", "VROOT"})
"""Labels of the bracket around a sentence, in treebanks and parsers."""
TRACE = "-NONE-"
FUNCTION = re.compile(r"(?<=.)[-=].*")


def normalized(tree: Tree) -> Tree:
    """Return the tree without traces and function tags, with the root `TOP`."""
    return with_root(without_functions(without_traces(tree)))


def without_traces(tree: Tree) -> Tree:
    """Remove traces, and the constituents that become empty."""
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
    """Reduce labels: NP-SBJ-1 to NP, and alternatives such as ADVP|PRT to the last."""
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
    """Rename the root to `TOP`, or add one if there is none."""
    if not tree.leaves:
        return tree
    inner = tree.constituents
    if inner and inner[0].label in ROOTS:
        inner = inner[1:]
    root = Constituent(ROOT, 0, len(tree.leaves))
    return replace(tree, constituents=(root, *inner))
