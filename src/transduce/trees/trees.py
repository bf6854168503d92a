"""Constituency trees: their brackets (Marcus et al., 1993), and their normal form.

A tree is flat: leaves, and constituents as spans over them. No code walks from node to
node, and trees compare and hash like tuples. For parsing, trees are normalized as usual
for the Penn Treebank (Collins, 1999): no traces, no function tags, one root label.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from transduce.errors import DataError

TOKEN = re.compile(r"[()]|[^()\s]+", re.ASCII)
NO_PARSE = re.compile(r"\s*(?:\(\s*(?:\(\s*\)|TOP)?\s*\)\s*)?", re.ASCII)
"""Output of parsers that found no tree: a blank line, `()`, `(())` or `(TOP)`."""
WORD = re.compile(r"\S+", re.ASCII)
"""Word of a treebank, which may contain non-ASCII spaces."""
MAX_DEPTH = 1_000
"""Maximum depth of brackets; a deeper file is not a treebank."""
ALONE = "a word must stand in a bracket with its tag and nothing else, but here is"


class Leaf(NamedTuple):
    """Word with its part of speech."""

    tag: str
    word: str


class Constituent(NamedTuple):
    """Phrase over the leaves from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Constituency tree; empty for a sentence without a parse."""

    leaves: tuple[Leaf, ...]
    constituents: tuple[Constituent, ...]
    """Non-empty constituents from left to right, outer before inner. The first is the
    root, which spans all leaves."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple([leaf.word for leaf in self.leaves])

    def __str__(self) -> str:
        """The tree in one line; brackets in words are written -LRB- and -RRB-."""
        closing = Counter(constituent.end for constituent in self.constituents)
        opened = self.opened_at()
        pieces = []
        for position, leaf in enumerate(self.leaves):
            pieces += [f" ({constituent.label}" for constituent in opened[position]]
            pieces.append(f" ({leaf.tag} {_written(leaf.word)})")
            pieces.append(")" * closing[position + 1])
        return "".join(pieces)[1:]

    def opened_at(self) -> list[list[Constituent]]:
        """Return the constituents that start at each leaf, outer ones first."""
        opened: list[list[Constituent]] = [[] for _ in self.leaves]
        for constituent in self.constituents:
            opened[constituent.start].append(constituent)
        return opened


NOTHING = Tree(leaves=(), constituents=())


def _written(word: str) -> str:
    if not WORD.fullmatch(word):
        raise DataError(
            "A word must be without white space to be written in brackets, but is "
            f"{word!r}."
        )
    return without_brackets(word)


def without_brackets(word: str) -> str:
    """Escape brackets in a word as treebanks do."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Read the trees of a treebank; each starts on a new line.

    If a tree spans several lines, all but the first must be indented. Blank lines are
    ignored. Errors (`DataError`) state the file's `name` with line and column.
    """
    reader = _Reader(name)
    for line in lines:
        tree = reader.read(line)
        if tree is not None:
            yield tree
    reader.finish("the file ends")


def read_parses(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Read a parser's output or a treebank; `NOTHING` stands for no parse.

    If every tree is on one line, as EVALB reads them, a blank line is a sentence
    without a parse. If trees span several lines, as `read_trees` reads them, blank
    lines only separate them."""
    reader, found = _Reader(name), list[Tree | None]()
    takes_several_lines = False
    for line in lines:
        if reader.is_within_a_tree:
            takes_several_lines = True
        elif NO_PARSE.fullmatch(line):
            found.append(NOTHING if line.strip() else None)
            reader.pass_over()
            continue
        if (tree := reader.read(line)) is not None:
            found.append(tree)
    reader.finish("the file ends")
    for each in found:
        if each is not None or not takes_several_lines:
            yield each or NOTHING


def parse_tree(text: str) -> Tree:
    """Read one tree from a text; `DataError` if it holds none."""
    return _tree_in(text, "tree", 1)


def _tree_in(text: str, name: str, number: int) -> Tree:
    reader = _Reader(name, number - 1)
    tree = reader.read(text)
    reader.finish("its line ends")
    if tree is None:
        raise DataError(f"{name}:{number}: a tree must be here, but the line is blank.")
    return tree


@dataclass(slots=True)
class _Bracket:
    """Open bracket."""

    line: int
    column: int
    start: int
    index: int
    """Index of its constituent."""
    label: str | None = None
    is_leaf: bool = False


class _Reader:
    """Reader that assembles trees line by line."""

    def __init__(self, name: str, num_lines_before: int = 0) -> None:
        self._name = name
        self._line = num_lines_before
        self._column = 0
        self._open: list[_Bracket] = []
        self._leaves: list[Leaf] = []
        self._constituents: list[Constituent] = []

    def read(self, line: str) -> Tree | None:
        """Read the next line; return the tree that ends in it, or None."""
        if line.startswith("("):
            # Otherwise a missing and a surplus bracket would merge many trees into one.
            self.finish("a line that is not indented")
        self._line += 1
        tree = None
        for token in TOKEN.finditer(line):
            self._column = token.start() + 1
            if tree is not None:
                raise self._error(
                    "a tree must be alone on its line, but here follows", token[0]
                )
            tree = self._take(token[0])
        return tree

    @property
    def is_within_a_tree(self) -> bool:
        """Whether a tree continues on the next line."""
        return bool(self._open)

    def pass_over(self) -> None:
        """Skip a line, but count it."""
        self._line += 1

    def finish(self, end: str) -> None:
        """Make sure that no tree is open at what ends it."""
        if self._open:
            root = self._open[0]
            raise DataError(
                f"{self._name}:{root.line}:{root.column}: a tree must close its "
                f"brackets before {end}, but this one leaves {len(self._open):,} open."
            )

    def _take(self, token: str) -> Tree | None:
        if token == "(":
            self._begin()
        elif not self._open:
            raise self._error("a tree must begin with `(`, but here is", token)
        elif token == ")":
            return self._end(self._open.pop())
        else:
            self._name_or_word(token)
        return None

    def _begin(self) -> None:
        if self._open and self._open[-1].is_leaf:
            raise self._error(ALONE, "(")
        if len(self._open) == MAX_DEPTH:
            raise self._error(
                f"brackets must be at most {MAX_DEPTH:,} deep, but here is one more",
                "(",
            )
        start, index = len(self._leaves), len(self._constituents)
        self._open.append(_Bracket(self._line, self._column, start, index))
        self._constituents.append(Constituent("", start, start))

    def _name_or_word(self, token: str) -> None:
        bracket = self._open[-1]
        if len(self._leaves) > bracket.start:
            raise self._error(ALONE, token)
        if bracket.label is None:
            bracket.label = token
        else:
            bracket.is_leaf = True
            self._constituents.pop()
            self._leaves.append(Leaf(bracket.label, token))

    def _end(self, bracket: _Bracket) -> Tree | None:
        end = len(self._leaves)
        if end == bracket.start:
            raise self._error(
                "a bracket must hold a word or brackets, but here is", ")"
            )
        if not bracket.is_leaf:
            constituent = Constituent(bracket.label or "", bracket.start, end)
            self._constituents[bracket.index] = constituent
        return None if self._open else self._tree()

    def _tree(self) -> Tree:
        tree = Tree(leaves=tuple(self._leaves), constituents=tuple(self._constituents))
        self._leaves.clear()
        self._constituents.clear()
        return tree

    def _error(self, what: str, token: str) -> DataError:
        return DataError(f"{self._name}:{self._line}:{self._column}: {what} `{token}`.")


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
