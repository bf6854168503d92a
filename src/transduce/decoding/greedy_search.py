"""Greedy search: the likeliest token at each step, without alternatives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from transduce.decoding.candidates import (
    NOT_FORCED,
    Excluded,
    find_candidates,
    forced_tokens,
)
from transduce.decoding.native_search import NativeGreedySearch
from transduce.decoding.search import Decoding, Hypothesis, NextTokenModel, Search
from transduce.native import api
from transduce.search_config import SearchConfig


def greedy_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the one hypothesis of each sentence.

    The length penalty has no influence but on its score.
    """
    search = begin_greedy_search(max_lengths, config, eos, excluded, prefixes)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


def begin_greedy_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Search:
    """Begin a search that the native library keeps, if there is one."""
    kind = GreedySearch if api() is None else NativeGreedySearch
    return kind(max_lengths, config, eos, excluded, prefixes)


class GreedySearch:
    """Sentences that grow together, each by its likeliest token, in Python."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        prefixes = prefixes or [()] * len(max_lengths)
        self.live = [
            _Path(limit, prefix, eos, config)
            for limit, prefix in zip(max_lengths, prefixes, strict=True)
        ]
        """Sentences that are not done."""
        self._excluded = excluded

    def grow(
        self, logits: Float[Any, "sentences 1 vocab"]
    ) -> tuple[Int64[np.ndarray, "kept 1"], Int64[np.ndarray, "kept 1"]]:
        """Append the likeliest tokens; return rows that go on, and what they read."""
        found = find_candidates(
            logits,
            np.zeros((len(self.live), 1)),  # earlier tokens do not matter
            2,
            self._excluded,
            forced_tokens([path.forced for path in self.live]),
        )
        gains, tokens = found.log_probabilities.tolist(), found.tokens.tolist()
        for path, of_path, likeliest in zip(self.live, gains, tokens, strict=True):
            path.grow(of_path, likeliest)
        kept = [i for i, path in enumerate(self.live) if not path.is_done]
        self.live = [self.live[i] for i in kept]
        last_ids = [path.last_id for path in self.live]
        rows, last = np.array([kept, last_ids], dtype=np.int64)
        return rows[:, None], last[:, None]

    def join(self, other: "GreedySearch") -> None:
        """Append the sentences of another; both must have grown."""
        self.live = [*self.live, *other.live]


class _Path:
    """The tokens of one sentence so far."""

    def __init__(
        self, max_length: int, prefix: Sequence[int], eos: int, config: SearchConfig
    ) -> None:
        self._ids: list[int] = []
        self._gains: list[float] = []
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        length = len(self._ids)
        return self._prefix[length] if length < len(self._prefix) else NOT_FORCED

    @property
    def last_id(self) -> int:
        return self._ids[-1]

    @property
    def is_done(self) -> bool:
        return self._is_finished or len(self._ids) >= self._max_length

    def grow(self, gains: Sequence[float], tokens: Sequence[int]) -> None:
        """Append the better of two tokens, but no end that comes too early."""
        is_early = len(self._ids) < self._config.min_length
        chosen = 1 if is_early and tokens[0] == self._eos else 0
        self._ids.append(tokens[chosen])
        self._gains.append(gains[chosen])

    def hypotheses(self) -> list[Hypothesis]:
        """Return the only hypothesis."""
        total = 0.0
        for gain in self._gains:
            total += gain  # `sum` compensates for rounding in Python 3.12 and later
        only = Hypothesis(
            ids=tuple(self._ids[:-1] if self._is_finished else self._ids),
            log_probability=total,
            token_log_probabilities=tuple(self._gains),
            score=self._config.score(total, len(self._ids)),
            is_finished=self._is_finished,
        )
        return [only]

    @property
    def _is_finished(self) -> bool:
        return self._ids[-1:] == [self._eos]
