"""Which symbols may come next, so that what is written is a tree over so many words.

The state of one hypothesis is a small value that costs nothing to copy. Knows neither
words nor a vocabulary.
"""

from typing import NamedTuple

from transduce.errors import RequestError, counted
from transduce.trees.linearization import Kind, Order, Style, Symbol


class Allowed(NamedTuple):
    """What may come next.

    There are only about four times as many values as there are labels: whoever masks a
    vocabulary needs one mask for each, made when it first occurs.
    """

    opening: bool
    leaf: bool
    closing: str | None
    """The only label that may be closed."""
    end: bool
    """Of the sequence: the tree is complete."""

    def permits(self, symbol: Symbol) -> bool:
        match symbol.kind:
            case "opening":
                return self.opening
            case "leaf":
                return self.leaf
            case "closing":
                return self.closing == symbol.label


class PartialTree(NamedTuple):
    """A linearised tree of which a part is written.

    Whatever allowed symbols follow, it gets complete: something is allowed at every
    step, and no more symbols than are left can come before the end.
    """

    order: Order
    words_left: int
    symbols_left: int
    labels: tuple[str, ...] = ()
    """Of the constituents that are open, outer ones first."""
    last: Kind | None = None
    """What was written last."""

    def allowed(self) -> Allowed:
        """What may come next."""
        return Allowed(
            opening=self._may_open() and self._has_room(self.words_left, 1),
            leaf=self._may_add_leaf(),
            closing=self.labels[-1] if self._may_close() else None,
            end=not self.labels and not self.words_left,
        )

    def after(self, symbol: Symbol) -> "PartialTree":
        """The tree with one symbol more, which must be allowed."""
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
    """The state before the first symbol; the end does not count as one."""
    needed = num_words if num_words <= 1 else symbols_needed(num_words, 0)
    if max_symbols < needed:
        raise RequestError(
            f"A tree over {counted(num_words, 'word')} must be allowed at least "
            f"{counted(needed, 'symbol')}, but is allowed {max_symbols}."
        )
    return PartialTree(style.order, num_words, max_symbols)


def symbols_needed(words_left: int, depth: int) -> int:
    """How many symbols at least complete a tree with so many open constituents."""
    if words_left and not depth:
        return words_left + 2  # a constituent around them
    return words_left + depth
