"""Greedy search: the likeliest token at each step.

It differs from beam search with a beam of one, which compares finished hypotheses of
different lengths.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from transduce.decoding.candidates import (
    NOT_FORCED,
    CandidateQuery,
    Excluded,
    excluded_now,
    find_candidates,
    restrictions_after,
)
from transduce.decoding.search import Decoder, Hypothesis, Sentence, run_search
from transduce.search_config import SearchConfig


def greedy_search(
    decoder: Decoder,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the one hypothesis of each sentence.

    The arguments are those of `beam_search`. The length penalty affects only the score.
    """
    search = GreedySearch(max_lengths, config, eos, excluded, prefixes)
    return run_search(decoder, search, bos)


class GreedySearch:
    """Greedy search for several sentences that grow together, in Python.

    `NativeGreedySearch` is the same search in the native library.
    """

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Prepare the first step; settings for beams have no effect."""
        prefixes = prefixes or [()] * len(max_lengths)
        self.live = [
            _GreedySentence(limit, prefix, eos, config)
            for limit, prefix in zip(max_lengths, prefixes, strict=True)
        ]
        """Sentences that are not done."""
        self._excluded = excluded
        self._config = config

    def grow(
        self, logits: Float[Any, "sentences 1 vocab"]
    ) -> tuple[Int64[np.ndarray, "kept 1"], Int64[np.ndarray, "kept 1"]]:
        """Append the likeliest tokens.

        Returns the rows that continue and the token of each.
        """
        forced = np.array([each.forced for each in self.live], dtype=np.int64)
        # Two candidates, since the end token may come too early. Earlier tokens do not
        # matter, so all totals are 0.
        query = CandidateQuery(
            log_probabilities=np.zeros((len(self.live), 1)),
            count=2,
            excluded=excluded_now(self._excluded),
            forced=forced if (forced != NOT_FORCED).any() else None,
            restrictions=restrictions_after(
                [s.ids if s.forced == NOT_FORCED else None for s in self.live],
                self._config,
            ),
        )
        found = find_candidates(logits, query)
        for sentence, log_probs, tokens in zip(
            self.live,
            found.log_probabilities.tolist(),
            found.tokens.tolist(),
            strict=True,
        ):
            sentence.grow(log_probs, tokens)
        kept = [i for i, each in enumerate(self.live) if not each.hypotheses]
        self.live = [self.live[i] for i in kept]
        last_ids = [each.ids[-1] for each in self.live]
        rows, last = np.array([kept, last_ids], dtype=np.int64)
        return rows[:, None], last[:, None]

    def join(self, other: "GreedySearch") -> None:
        """Append the sentences of another search; both must have taken a step."""
        self.live = [*self.live, *other.live]


class _GreedySentence(Sentence):
    """A sentence with the tokens of its only hypothesis so far."""

    def __init__(
        self, max_length: int, prefix: Sequence[int], eos: int, config: SearchConfig
    ) -> None:
        super().__init__()
        self.ids: list[int] = []
        self._log_probs: list[float] = []
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        length = len(self.ids)
        return self._prefix[length] if length < len(self._prefix) else NOT_FORCED

    def grow(self, log_probs: Sequence[float], tokens: Sequence[int]) -> None:
        """Append the better of two tokens, but no end token before `min_length`.

        A hypothesis that no token may follow is truncated.
        """
        is_early = len(self.ids) < self._config.min_length
        chosen = 1 if is_early and tokens[0] == self._eos else 0
        if self.ids and log_probs[chosen] == -math.inf:
            self.hypotheses = [self._hypothesis(is_finished=False)]
            return
        self.ids.append(tokens[chosen])
        self._log_probs.append(log_probs[chosen])
        is_finished = self.ids[-1] == self._eos
        if is_finished or len(self.ids) >= self._max_length:
            self.hypotheses = [self._hypothesis(is_finished=is_finished)]

    def _hypothesis(self, *, is_finished: bool) -> Hypothesis:
        total = 0.0
        for each in self._log_probs:
            total += each  # `sum` compensates for rounding in Python 3.12 and later
        return Hypothesis(
            ids=tuple(self.ids[:-1] if is_finished else self.ids),
            log_probability=total,
            token_log_probabilities=tuple(self._log_probs),
            score=self._config.score(total, len(self.ids)),
            is_finished=is_finished,
        )
