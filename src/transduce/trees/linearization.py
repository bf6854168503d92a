"""Linearization of trees into symbols that a Transformer can generate (section 6.3).

A symbol stands for each word, since the words are known from the input. A root with
only one child is omitted.
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
"""Tags whose words EVALB ignores."""
ANY_TAG = "XX"


class Symbol(NamedTuple):
    """Start or end of a constituent, or a leaf."""

    kind: Kind
    label: str
    """Label of the constituent, or tag of the leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Style of linearization."""

    order: Order
    """Position of the opening symbol: before the first child, or after it (Liu and
    Zhang, 2017)."""
    opening: str
    """Prefix of opening symbols."""
    closing: str
    """Prefix of closing symbols."""
    keeps_tags: bool
    """Whether leaves keep their tags; otherwise they are XX, except punctuation."""

    def leaf(self, tag: str) -> Symbol:
        """Return the symbol of a leaf."""
        is_kept = self.keeps_tags or tag in PUNCTUATION
        return Symbol("leaf", tag if is_kept else ANY_TAG)

    def spelling(self, symbol: Symbol) -> str:
        """Return the symbol as a target token."""
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
    """Return the symbols of a tree; `DataError` unless its root is `TOP`."""
    if not tree.constituents or tree.constituents[0].label != ROOT:
        raise DataError(
            f"A tree must have the root `{ROOT}` to be linearized, but is "
            f"`{str(tree)[:40]}`; normalize it first."
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
    # Constituents around the leaf, each with whether its opening symbol is written.
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
    """Collect the symbols of linearized trees by spelling: the target vocabulary.

    Raises `DataError` if two symbols have the same spelling.
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
    """Rebuild the table of `symbols_in` from its spellings.

    A spelling is a label if it also occurs with the closing prefix.
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
