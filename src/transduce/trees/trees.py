"""Constituency trees: their brackets, their normal form, and their display.

Brackets are those of the Penn Treebank (Marcus et al., 1993). A tree is flat: leaves,
and constituents as spans over them. No code walks from node to node, and trees compare
and hash like tuples. For parsing, trees are normalized as usual (Collins, 1999): no
traces, no function tags, one root label. They are displayed as indented brackets or as
an SVG picture.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate, compress
from typing import NamedTuple

from rich.cells import cell_len

from transduce.errors import DataError
from transduce.report.report import xml_text

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

    def moved(self, by: int) -> "Constituent":
        """Return the constituent over leaves that come later by a number."""
        return self._replace(start=self.start + by, end=self.end + by)


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
            pieces.append(f" {_bracketed(leaf)}")
            pieces.append(")" * closing[position + 1])
        return "".join(pieces)[1:]

    def opened_at(self) -> list[list[Constituent]]:
        """Return the constituents that start at each leaf, outer ones first."""
        opened: list[list[Constituent]] = [[] for _ in self.leaves]
        for constituent in self.constituents:
            opened[constituent.start].append(constituent)
        return opened


NOTHING = Tree(leaves=(), constituents=())


def is_word(word: object) -> bool:
    """Whether a value is a word that can be written in brackets."""
    return isinstance(word, str) and WORD.fullmatch(word) is not None


def _bracketed(leaf: Leaf) -> str:
    if not is_word(leaf.word):
        raise DataError(
            "A word must be without white space to be written in brackets, but is "
            f"{leaf.word!r}."
        )
    return f"({leaf.tag} {without_brackets(leaf.word)})"


def without_brackets(word: str) -> str:
    """Escape brackets in a word as treebanks do."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Read the trees of a treebank; each starts on a new line.

    If a tree spans several lines, all but the first must be indented. Blank lines are
    ignored. Errors (`DataError`) state the file's `name` with line and column.
    """
    reader = TreeReader(name)
    for line in lines:
        tree = reader.read(line)
        if tree is not None:
            yield tree
    reader.finish("the file ends")


def read_parses(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Read a parser's output or a treebank; `NOTHING` stands for no parse.

    If every tree is on one line, as EVALB reads them, a blank line is a sentence
    without a parse. If trees span several lines, as `read_trees` reads them, blank
    lines only separate them.
    """
    reader, found = TreeReader(name), list[Tree | None]()
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
    reader = TreeReader("tree")
    tree = reader.read(text)
    reader.finish("its line ends")
    if tree is None:
        raise DataError("tree:1: a tree must be here, but the line is blank.")
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


class TreeReader:
    """Reader that assembles trees line by line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
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
        """Raise `DataError` if a tree is still open before `end`: "the file ends"."""
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
            if token.split() != [token]:
                raise self._error(
                    "a label must be without white space, but here is", token
                )
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
        shown = token if token.isprintable() else ascii(token)[1:-1]
        return DataError(f"{self._name}:{self._line}:{self._column}: {what} `{shown}`.")


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
    return without_leaves(tree, {TRACE})


def without_leaves(tree: Tree, tags: Set[str]) -> Tree:
    """Remove the leaves with certain tags, and the constituents that become empty."""
    is_kept = [leaf.tag not in tags for leaf in tree.leaves]
    if all(is_kept):
        return tree
    position = list(accumulate(is_kept, initial=0))
    moved = [
        Constituent(label, position[start], position[end])
        for label, start, end in tree.constituents
    ]
    return Tree(
        leaves=tuple(compress(tree.leaves, is_kept)),
        constituents=tuple([one for one in moved if one.start < one.end]),
    )


def without_functions(tree: Tree) -> Tree:
    """Reduce labels: NP-SBJ-1 to NP, and alternatives such as ADVP|PRT to the last."""
    return replace(
        tree,
        constituents=tuple(
            [
                one._replace(label=_without_function(one.label))
                for one in tree.constituents
            ]
        ),
    )


def _without_function(label: str) -> str:
    without = FUNCTION.sub("", label)
    return without.rstrip("|").rpartition("|")[2] or without


def with_root(tree: Tree) -> Tree:
    """Rename the root to `TOP`, or add one if there is none."""
    if not tree.leaves:
        return tree
    inner = tree.constituents
    if inner and inner[0].label in ROOTS:
        inner = inner[1:]
    root = Constituent(ROOT, 0, len(tree.leaves))
    return replace(tree, constituents=(root, *inner))


INDENT = "  "
CHARACTER, CAPITAL, GAP, LEVEL, MARGIN, BASELINE = 8, 10, 14, 44, 16, 14
"""Pixels: width of a terminal cell (wide characters take two) in words and in labels,
gap between words, distance of levels, margin around a tree, and height of the text's
baseline."""
SVG_STYLE = (
    "text{font:14px sans-serif;text-anchor:middle;fill:#222}"
    ".label{font-weight:600;fill:#4477aa}.tag{fill:#888}"
    "line{stroke:#999}"
)


def indented(tree: Tree) -> str:
    """Format a tree in brackets, one constituent per line with its first leaves.

    `(TOP)` stands for a tree without words, since blank lines between indented trees
    are skipped.
    """
    if not tree.leaves:
        return f"({ROOT})"
    closing = Counter(one.end for one in tree.constituents)
    lines: list[str] = []
    depth, is_begun = 0, False
    for position, opened in enumerate(tree.opened_at()):
        for one in opened:
            lines.append(f"{INDENT * depth}({one.label}")
            depth += 1
        leaf = _bracketed(tree.leaves[position])
        if opened or is_begun:
            lines[-1] += f" {leaf}"
        else:
            lines.append(INDENT * depth + leaf)
        num_closed = closing[position + 1]
        lines[-1] += ")" * num_closed
        depth -= num_closed
        is_begun = not num_closed
    return "\n".join(lines)


def svg(trees: Iterable[Tree]) -> str:
    """Draw trees as one SVG picture, one below the other."""
    drawings: list[str] = []
    width, height = 0.0, 0.0
    for tree in trees:
        widths = _widths(tree)
        nodes = _laid_out(tree, widths)
        shapes = "".join(map(_shapes, nodes))
        drawings.append(f'<g transform="translate(0 {height:g})">{shapes}</g>')
        width = max(width, sum(widths) + 2 * MARGIN)
        lowest = max([node.y for node in nodes], default=-MARGIN)
        height += lowest + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{SVG_STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(drawings)}</svg>\n"
    )


@dataclass(slots=True, eq=False)
class _Node:
    """Label, tag or word of a drawing, with the nodes below it."""

    text: str
    kind: str
    level: int
    x: float = 0.0
    below: list["_Node"] = field(default_factory=list)

    @property
    def y(self) -> int:
        return MARGIN + BASELINE + self.level * LEVEL


def _laid_out(tree: Tree, widths: list[float]) -> list[_Node]:
    """Place all nodes, each centred above its children."""
    begins = accumulate(widths, initial=MARGIN)
    middles = [begin + width / 2 for begin, width in zip(begins, widths, strict=False)]
    above: list[tuple[_Node, int]] = []
    """Open constituents around the next leaf, each with its end."""
    phrases: list[_Node] = []
    others: list[_Node] = []
    leaves = zip(tree.leaves, tree.opened_at(), middles, strict=True)
    for position, (leaf, opened, x) in enumerate(leaves):
        while above and above[-1][1] <= position:
            above.pop()
        for one in opened:
            phrases.append(_Node(one.label, "label", len(above)))
            if above:
                above[-1][0].below.append(phrases[-1])
            above.append((phrases[-1], one.end))
        word = _Node(leaf.word, "word", len(above) + 1, x)
        tag = _Node(leaf.tag, "tag", len(above), x, [word])
        if above:  # a tree of one word may have no constituent
            above[-1][0].below.append(tag)
        others += [tag, word]
    for node in reversed(phrases):
        node.x = (node.below[0].x + node.below[-1].x) / 2
    return phrases + others


def _widths(tree: Tree) -> list[float]:
    """Width of each word; the words of a constituent have room for its label."""
    widths = [
        float(GAP + CHARACTER * max(cell_len(leaf.word), cell_len(leaf.tag)))
        for leaf in tree.leaves
    ]
    for label, start, end in reversed(tree.constituents):
        lacking = GAP + CAPITAL * cell_len(label) - sum(widths[start:end])
        if lacking > 0:
            for i in range(start, end):
                widths[i] += lacking / (end - start)
    return widths


def _shapes(node: _Node) -> str:
    x, y = f"{node.x:g}", node.y
    lines = [
        f'<line x1="{x}" y1="{y + 4}" x2="{child.x:g}" y2="{child.y - BASELINE}"/>'
        for child in node.below
    ]
    shown = escape(xml_text(node.text))
    text = f'<text class="{node.kind}" x="{x}" y="{y}">{shown}</text>'
    return text + "".join(lines)
