"""Trees as sequences of symbols, which a Transformer can write (section 6.3).

Words are left out: a symbol stands for each, since the parser knows them. The root is
left out too if it has one child only.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from transduce.errors import DataError
from transduce.trees.normalization import ROOT
from transduce.trees.trees import Constituent, Tree

Kind = Literal["opening", "closing", "leaf"]
Order = Literal["top-down", "in-order"]
StyleName = Literal["xx", "pos", "in-order", "in-order-pos"]
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
"""The tags whose words EVALB leaves out."""
ANY_TAG = "XX"


class Symbol(NamedTuple):
    """The begin or end of a constituent, or a leaf."""

    kind: Kind
    label: str
    """Of the constituent; of a leaf its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a tree is linearised."""

    order: Order
    """Where a constituent is opened: before its first child, or just after it (Liu and
    Zhang, 2017)."""
    opening: str
    """What stands before the label in the spelling of an opening symbol."""
    closing: str
    """The same of a closing symbol."""
    keeps_tags: bool
    """Whether leaves are tags, or XX where they are no punctuation."""

    def leaf(self, tag: str) -> Symbol:
        """The symbol of a leaf."""
        is_kept = self.keeps_tags or tag in PUNCTUATION
        return Symbol("leaf", tag if is_kept else ANY_TAG)

    def spelling(self, symbol: Symbol) -> str:
        """The symbol as a token of the target."""
        prefixes = {"opening": self.opening, "closing": self.closing, "leaf": ""}
        return prefixes[symbol.kind] + symbol.label


STYLES: dict[StyleName, Style] = {
    # Vinyals et al. (2015): (S (NP XX )NP . )S
    "xx": Style(order="top-down", opening="(", closing=")", keeps_tags=False),
    # Tensor2tensor, the paper's own code: S NP NNP /NP . /S
    "pos": Style(order="top-down", opening="", closing="/", keeps_tags=True),
    # As `xx`, but: XX (NP )NP (S . )S
    "in-order": Style(order="in-order", opening="(", closing=")", keeps_tags=False),
    # Both: NNP (NP )NP (S . )S
    "in-order-pos": Style(order="in-order", opening="(", closing=")", keeps_tags=True),
}


def linearize(tree: Tree, style: Style) -> list[Symbol]:
    """The symbols of a tree, whose root must be `TOP`."""
    if not tree.constituents or tree.constituents[0].label != ROOT:
        raise DataError(
            f"A tree must have the root `{ROOT}` to be linearised, but is "
            f"`{str(tree)[:40]}`; normalise it first."
        )
    return list(_symbols(_below_root(tree), style))


def _below_root(tree: Tree) -> Tree:
    root, *below = tree.constituents
    if not below:
        has_one_child = len(tree.leaves) == 1
    else:
        label, *span = below[0]
        has_one_child = label != ROOT and span == [root.start, root.end]
    return replace(tree, constituents=tuple(below)) if has_one_child else tree


def _symbols(tree: Tree, style: Style) -> Iterator[Symbol]:
    is_top_down = style.order == "top-down"
    # Those that hold the leaf, each with whether it is opened.
    entered: list[tuple[Constituent, bool]] = []
    leaves = zip(tree.leaves, tree.opened_at(), strict=True)
    for end, (leaf, begun) in enumerate(leaves, start=1):
        if is_top_down:
            yield from [Symbol("opening", one.label) for one in begun]
        entered += [(one, is_top_down) for one in begun]
        yield style.leaf(leaf.tag)
        while entered:
            constituent, is_opened = entered.pop()
            if not is_opened:
                yield Symbol("opening", constituent.label)
            if constituent.end > end:
                entered.append((constituent, True))
                break
            yield Symbol("closing", constituent.label)


def symbols_in(trees: Iterable[Tree], style: Style) -> dict[str, Symbol]:
    """Every symbol of linearised trees by its spelling: the vocabulary of the target.

    `DataError` if two are spelt alike.
    """
    symbols = {symbol for tree in trees for symbol in linearize(tree, style)}
    table: dict[str, Symbol] = {}
    for symbol in sorted(symbols):
        spelling = style.spelling(symbol)
        other = table.setdefault(spelling, symbol)
        if other != symbol:
            raise DataError(
                f"Symbols must be spelt differently, but `{spelling}` is {_said(other)}"
                f" and {_said(symbol)}; choose another style."
            )
    return table


def _said(symbol: Symbol) -> str:
    return {
        "opening": "a label that opens",
        "closing": "a label that closes",
        "leaf": "a tag",
    }[symbol.kind]


def read_symbols(spellings: Iterable[str], style: Style) -> dict[str, Symbol]:
    """The table that `symbols_in` gave, from its spellings alone.

    A label is what can be closed.
    """
    spellings = list(spellings)
    known = set(spellings)
    labels = {
        label
        for label in (spelling.removeprefix(style.closing) for spelling in spellings)
        if {style.opening + label, style.closing + label} <= known
    }
    table = {spelling: Symbol("leaf", spelling) for spelling in spellings}
    for label in labels:
        table[style.opening + label] = Symbol("opening", label)
        table[style.closing + label] = Symbol("closing", label)
    return table
