"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from transduce.decoding.candidates.candidate_search import (
    Candidates,
    CandidateSearch,
    Excluded,
)
from transduce.decoding.growing_search import GrowingSearch, ListedSentences
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.kernels.compiled_beams import CompiledPaths
from transduce.decoding.kernels.compiled_candidates import NOT_FORCED
from transduce.decoding.kernels.library import kernels
from transduce.decoding.search import Decoding, NextTokenModel
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
    """The one hypothesis of each sentence. The length penalty only enters its score."""
    search = GreedySearch(max_lengths, config, eos, excluded, prefixes)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


class GreedySearch(GrowingSearch):
    """Sentences that grow together, each by its likeliest token."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        prefixes = prefixes or [()] * len(max_lengths)
        super().__init__(
            CompiledPaths(max_lengths, prefixes, eos, config, most_told=1)
            if kernels() is not None
            else _Paths(
                [
                    _Path(limit, prefix, eos, config)
                    for limit, prefix in zip(max_lengths, prefixes, strict=True)
                ]
            ),
            CandidateSearch(2, excluded),
        )


class _Paths(ListedSentences["_Path"]):
    """What `CompiledPaths` is to do."""

    @property
    def log_probabilities(self) -> Float64[np.ndarray, "sentences 1"]:
        """None of them bears on what goes on."""
        return np.zeros((len(self.live), 1))

    def grow(
        self, found: Candidates, _: int
    ) -> tuple[Int64[np.ndarray, "kept 1"], Int64[np.ndarray, "kept 1"]]:
        """Take the likeliest; the rows that go on, and what they read next."""
        gains, tokens = found.log_probabilities.tolist(), found.tokens.tolist()
        for path, of_path, likeliest in zip(self.live, gains, tokens, strict=True):
            path.grow(of_path, likeliest)
        kept = self._leave()
        last_ids = [path.last_id for path in self.live]
        rows, last = np.array([kept, last_ids], dtype=np.int64)
        return rows[:, None], last[:, None]


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
        """The only token that may come next, if there is such."""
        length = len(self._ids)
        return self._prefix[length] if length < len(self._prefix) else NOT_FORCED

    @property
    def last_id(self) -> int:
        return self._ids[-1]

    @property
    def is_done(self) -> bool:
        return self._is_finished or len(self._ids) >= self._max_length

    def grow(self, gains: Sequence[float], tokens: Sequence[int]) -> None:
        """By the better of two tokens; not by an end that comes too early."""
        is_early = len(self._ids) < self._config.min_length
        chosen = 1 if is_early and tokens[0] == self._eos else 0
        self._ids.append(tokens[chosen])
        self._gains.append(gains[chosen])

    def hypotheses(self) -> list[Hypothesis]:
        """The only one."""
        total = sum(self._gains)
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
