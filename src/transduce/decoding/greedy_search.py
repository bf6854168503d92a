"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decoding.candidates import Excluded, likeliest, now_excluded
from transduce.decoding.search import Decoding, Hypothesis, NextTokenModel
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
        self._eos = eos
        self._excluded = excluded

    def grow(
        self, logits: Float[Tensor, "sentences 1 vocab"]
    ) -> tuple[Int[Tensor, "kept 1"], Int[Tensor, "kept 1"]]:
        """Take the likeliest; the rows that go on, and what they read next."""
        count = len(self.live)
        values, best = likeliest(
            logits,
            2,
            excluded=now_excluded(self._excluded),
            forced={
                i: token
                for i, path in enumerate(self.live)
                if (token := path.forced) is not None
            },
        )
        # The second best, if the best is an end that comes too early.
        must_go_on = np.array([path.must_go_on for path in self.live])
        chosen = ((best[:, 0, 0] == self._eos) & must_go_on).astype(int)
        tokens = best[np.arange(count), 0, chosen]
        gains = values[np.arange(count), 0, chosen].tolist()
        for path, token, gain in zip(self.live, tokens.tolist(), gains, strict=True):
            path.append(token, gain)
        rows = [row for row, path in enumerate(self.live) if not path.is_done]
        self.live = [self.live[row] for row in rows]
        kept = np.array(rows, dtype=np.int64)
        return torch.from_numpy(kept[:, None]), torch.from_numpy(tokens[kept, None])

    def join(self, other: "GreedySearch") -> None:
        """Put the sentences of another behind one's own."""
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
    def forced(self) -> int | None:
        """The only token that may come next, if there is such."""
        length = len(self._ids)
        return self._prefix[length] if length < len(self._prefix) else None

    @property
    def must_go_on(self) -> bool:
        return len(self._ids) < self._config.min_length

    @property
    def is_done(self) -> bool:
        return self._is_finished or len(self._ids) >= self._max_length

    def append(self, token: int, gain: float) -> None:
        self._ids.append(token)
        self._gains.append(gain)

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
