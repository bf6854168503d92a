"""Automaton of well-formed linearized trees, for constrained parsing.

Each hypothesis has a small immutable state, cheap to copy. The automaton works on
symbols; words and vocabulary ids stand elsewhere.
"""

from typing import NamedTuple

from transduce.errors import RequestError
from transduce.phrases import counted
from transduce.trees.linearization import Kind, Order, Style, Symbol


class Allowed(NamedTuple):
    """Set of symbols that may come next.

    There are only about four times as many values as labels, so a mask of the
    vocabulary can be cached for each.
    """

    opening: bool
    leaf: bool
    closing: str | None
    """Only label that may be closed; None if none may be."""
    end: bool
    """Whether the tree is complete, so that the sequence may end."""

    def permits(self, symbol: Symbol) -> bool:
        match symbol.kind:
            case "opening":
                return self.opening
            case "leaf":
                return self.leaf
            case "closing":
                return self.closing == symbol.label


class PartialTree(NamedTuple):
    """Prefix of a linearized tree.

    Any sequence of allowed symbols completes the tree: every step allows at least one
    symbol, and the end comes within `symbols_left` symbols.
    """

    order: Order
    words_left: int
    symbols_left: int
    labels: tuple[str, ...] = ()
    """Labels of the open constituents, outer ones first."""
    last: Kind | None = None
    """Kind of the last symbol; None at the start."""

    def allowed(self) -> Allowed:
        """Return the symbols that may come next."""
        return Allowed(
            opening=self._may_open() and self._has_room(self.words_left, 1),
            leaf=self._may_add_leaf(),
            closing=self.labels[-1] if self._may_close() else None,
            end=not self.labels and not self.words_left,
        )

    def after(self, symbol: Symbol) -> "PartialTree":
        """Return the state after one more symbol, which must be allowed."""
        kind, label = symbol
        labels = self.labels
        if kind == "opening":
            labels = (*labels, label)
        elif kind == "closing":
            labels = labels[:-1]
        words_left = self.words_left - (kind == "leaf")
        return PartialTree(self.order, words_left, self.symbols_left - 1, labels, kind)

    def _may_open(self) -> bool:
        if self.order == "in-order":
            return self.last in ("leaf", "closing")
        return self.words_left > 0 and (bool(self.labels) or self.last is None)

    def _may_add_leaf(self) -> bool:
        if not self.words_left:
            return False
        if self.labels:
            return True
        is_first = self.last is None
        return is_first and (self.order == "in-order" or self.words_left == 1)

    def _may_close(self) -> bool:
        if not self.labels:
            return False
        if self.order == "in-order":
            return self._has_room(self.words_left, -1)
        is_last = len(self.labels) == 1
        return self.last != "opening" and not (is_last and self.words_left)

    def _has_room(self, words_left: int, deeper: int) -> bool:
        depth = len(self.labels) + deeper
        return symbols_needed(words_left, depth) < self.symbols_left


def partial_tree(num_words: int, max_symbols: int, style: Style) -> PartialTree:
    """Return the initial state; `max_symbols` does not count the end.

    Raises `RequestError` if no tree over the words fits.
    """
    needed = num_words if num_words <= 1 else symbols_needed(num_words, 0)
    if max_symbols < needed:
        raise RequestError(
            f"A tree over {counted(num_words, 'word')} must be allowed at least "
            f"{counted(needed, 'symbol')}, but is allowed {max_symbols}."
        )
    return PartialTree(style.order, num_words, max_symbols)


def symbols_needed(words_left: int, depth: int) -> int:
    """Return the least number of symbols that complete a tree at this depth."""
    if words_left and not depth:
        return words_left + 2  # a constituent around them
    return words_left + depth
