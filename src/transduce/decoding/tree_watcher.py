"""A decoder that knows which symbols may follow in the tree of each hypothesis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from transduce.decoding.search import JoinableModel
from transduce.trees.automaton import Allowed, PartialTree
from transduce.trees.linearization import Symbol

Group = list[PartialTree | None]
"""Trees of the hypotheses of a sentence; None for one that is impossible."""


class TreeWatcher:
    """An incremental decoder with the tree that each hypothesis has begun."""

    def __init__(
        self,
        decoder: JoinableModel,
        trees: Sequence[PartialTree],
        symbols: Mapping[int, Symbol],
        eos: int,
    ) -> None:
        """Begin with one empty tree for each sentence; `symbols` are by their ids."""
        self._decoder = decoder
        self._groups: list[Group] = [[tree] for tree in trees]
        self._is_begun = False
        self._symbols = symbols
        self._eos = eos
        self._masks: dict[Allowed | None, Bool[np.ndarray, " vocab"]] = {}

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        if self._is_begun:
            self._groups = [
                [self._after(tree, i) for tree, i in zip(group, ids, strict=True)]
                for group, ids in zip(self._groups, last_ids.tolist(), strict=True)
            ]
        self._is_begun = True  # the first token only begins the sequence
        return self._decoder.step(last_ids)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        flat = [tree for group in self._groups for tree in group]
        self._groups = [[flat[row] for row in kept] for kept in rows.tolist()]
        self._decoder.reorder(rows)

    def join(self, other: "TreeWatcher") -> None:
        """Append the sentences of another decoder."""
        self._groups += other._groups
        self._decoder.join(other._decoder)

    def excluded(self) -> Bool[np.ndarray, "sentences group vocab"]:
        """Return a mask of the tokens that may not come next."""
        return np.array([list(map(self._mask, group)) for group in self._groups])

    def _after(self, tree: PartialTree | None, i: int) -> PartialTree | None:
        symbol = self._symbols.get(i)
        if tree is None or symbol is None or not tree.allowed().permits(symbol):
            return None
        return tree.after(symbol)

    def _mask(self, tree: PartialTree | None) -> Bool[np.ndarray, " vocab"]:
        allowed = None if tree is None else tree.allowed()
        if allowed not in self._masks:
            self._masks[allowed] = self._excluded(allowed)
        return self._masks[allowed]

    def _excluded(self, allowed: Allowed | None) -> Bool[np.ndarray, " vocab"]:
        mask = np.ones(max(self._symbols) + 1, dtype=np.bool_)
        if allowed is not None:
            mask[self._eos] = not allowed.end
            for i, symbol in self._symbols.items():
                mask[i] = not allowed.permits(symbol)
        return mask
