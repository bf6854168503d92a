"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import numpy as np
import torch

from transduce.decoding.beam_search import (
    Hypothesis,
    NextTokenModel,
    best_candidates,
)
from transduce.decoding.search_config import SearchConfig


def greedy_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The one hypothesis of each sentence. The length penalty only enters its score."""
    paths = [
        _Path(limit, prefix, eos)
        for limit, prefix in zip(
            max_lengths, prefixes or [()] * len(max_lengths), strict=True
        )
    ]
    live = list(paths)
    last_ids = torch.full((len(live), 1), bos)
    while live:
        logits = model.step(last_ids)
        best = best_candidates(
            logits,
            np.zeros((len(live), 1)),
            2,
            excluded=excluded,
            forced={i: path.forced for i, path in enumerate(live) if path.is_forced},
        )
        # The second best, if the best is an end that comes too early.
        must_go_on = len(live[0].ids) < config.min_length
        chosen = ((best.tokens[:, 0] == eos) & must_go_on).astype(int)
        every = np.arange(len(live))
        tokens = best.tokens[every, chosen]
        gains = best.log_probabilities[every, chosen].tolist()
        for path, token, gain in zip(live, tokens.tolist(), gains, strict=True):
            path.append(token, gain)
        rows = [row for row, path in enumerate(live) if not path.is_done]
        live = [live[row] for row in rows]
        if live:
            last_ids = torch.from_numpy(tokens[rows, None]).to(logits.device)
            model.reorder(torch.tensor(rows, device=logits.device)[:, None])
    return [[path.hypothesis(config)] for path in paths]


class _Path:
    """The tokens of one sentence so far."""

    def __init__(self, max_length: int, prefix: Sequence[int], eos: int) -> None:
        self.ids: list[int] = []
        self._gains: list[float] = []
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos

    @property
    def is_forced(self) -> bool:
        return len(self.ids) < len(self._prefix)

    @property
    def forced(self) -> int:
        """The only token that may come next."""
        return self._prefix[len(self.ids)]

    @property
    def is_finished(self) -> bool:
        return self.ids[-1] == self._eos

    @property
    def is_done(self) -> bool:
        return self.is_finished or len(self.ids) >= self._max_length

    def append(self, token: int, gain: float) -> None:
        self.ids.append(token)
        self._gains.append(gain)

    def hypothesis(self, config: SearchConfig) -> Hypothesis:
        total = sum(self._gains)
        return Hypothesis(
            ids=tuple(self.ids[:-1] if self.is_finished else self.ids),
            log_probability=total,
            token_log_probabilities=tuple(self._gains),
            score=config.score(total, len(self.ids)),
            is_finished=self.is_finished,
        )
