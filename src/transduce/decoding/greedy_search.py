"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from transduce.decoding.candidates import CandidateSearch, Excluded
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.kernels.compiled_candidates import NOT_FORCED
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


class GreedySearch:
    """Sentences that grow together, each by its likeliest token."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        each = zip(max_lengths, prefixes or [()] * len(max_lengths), strict=True)
        self.live = [_Path(limit, prefix, eos, config) for limit, prefix in each]
        self._find = CandidateSearch(2, excluded)
        self._zeros = torch.zeros(0, 1, dtype=torch.float64)

    def grow(
        self, logits: Float[Tensor, "sentences 1 vocab"]
    ) -> tuple[Int[Tensor, "kept 1"], Int[Tensor, "kept 1"]]:
        """Take the likeliest; the rows that go on, and what they read next."""
        forced = [path.forced for path in self.live]
        found = self._find(
            logits,
            self._certain(),
            torch.tensor(forced) if max(forced) >= 0 else None,
        )
        gains, tokens = found.log_probabilities.tolist(), found.tokens.tolist()
        for path, of_path, likeliest in zip(self.live, gains, tokens, strict=True):
            path.grow(of_path, likeliest)
        kept = [i for i, path in enumerate(self.live) if not path.is_done]
        if len(kept) < len(self.live):
            self.live = [self.live[i] for i in kept]
        return _column(kept), _column([path.last_id for path in self.live])

    def join(self, other: "GreedySearch") -> None:
        """Put the sentences of another behind one's own."""
        self.live = [*self.live, *other.live]

    def _certain(self) -> Float64[Tensor, "sentences 1"]:
        """As log-probabilities so far: they do not bear on what comes next."""
        if len(self._zeros) != len(self.live):
            self._zeros = torch.zeros(len(self.live), 1, dtype=torch.float64)
        return self._zeros


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
        return self._ids[-1] == self._eos


def _column(numbers: list[int]) -> Int[Tensor, "numbers 1"]:
    # By way of numpy, which reads lists several times as fast.
    return torch.from_numpy(np.array(numbers, dtype=np.int64)[:, None])
