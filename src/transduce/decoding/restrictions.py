"""Restrictions of the next token by the tokens that a hypothesis has.

Three settings of `SearchConfig` restrict it: `no_repeat_ngram`, `repetition_penalty`
and `bad_words`. The native library has the same in csrc/decode/restrictions.c.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from transduce.native import ffi, pointer
from transduce.search_config import SearchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTokens:
    """Tokens of each of several rows, stored one row after another."""

    offsets: Int64[np.ndarray, " rows_and_one"]
    """Place of each row's first token; at the end, the number of tokens."""
    tokens: Int64[np.ndarray, " tokens"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "RowTokens":
        """Store the tokens of rows."""
        return cls(
            offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
            tokens=np.array([i for row in rows for i in row], dtype=np.int64),
        )

    @property
    def rows(self) -> Int64[np.ndarray, " tokens"]:
        """Row of each token."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Restrictions of the next token of hypotheses, one row for each."""

    banned: RowTokens
    """Tokens that must not follow."""
    repeated: RowTokens
    """Tokens that the hypothesis has already, in ascending order."""
    penalty: float
    """Factor of the log-probability of repeated tokens."""

    @property
    def native(self) -> Any:
        """The same as a `td_restrictions`, which borrows the arrays."""
        arrays = {
            "banned_offsets": self.banned.offsets,
            "banned_tokens": self.banned.tokens,
            "repeated_offsets": self.repeated.offsets,
            "repeated_tokens": self.repeated.tokens,
        }
        pointers = {k: pointer(v, "int64_t *") for k, v in arrays.items()}
        fields = {**pointers, "repetition_penalty": self.penalty}
        return ffi.new("td_restrictions *", fields)


def restrictions_after(
    hypotheses: Sequence[Sequence[int] | None], config: SearchConfig
) -> Restrictions | None:
    """Return the restrictions after hypotheses; None if the config has none.

    A hypothesis of None stands for one whose next token is forced, and is free.
    """
    if not config.has_restrictions:
        return None
    has_penalty = config.repetition_penalty != 1
    return Restrictions(
        banned=RowTokens.of(
            [[] if ids is None else _banned(list(ids), config) for ids in hypotheses]
        ),
        repeated=RowTokens.of(
            [sorted(set(ids)) if has_penalty and ids else [] for ids in hypotheses]
        ),
        penalty=config.repetition_penalty,
    )


def _banned(ids: list[int], config: SearchConfig) -> list[int]:
    """Return the tokens that would end a repeated n-gram or a bad word."""
    banned = [word[-1] for word in config.bad_words if _ends_with(ids, word[:-1])]
    if n := config.no_repeat_ngram:
        ngrams = (ids[end - n : end] for end in range(n, len(ids) + 1))
        banned += [ngram[-1] for ngram in ngrams if _ends_with(ids, ngram[:-1])]
    return banned


def _ends_with(ids: Sequence[int], ending: Sequence[int]) -> bool:
    return list(ids[len(ids) - len(ending) :]) == list(ending) and (
        len(ending) <= len(ids)
    )
