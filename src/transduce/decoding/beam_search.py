"""Beam search (section 6.1). Knows no model: only `step` and `reorder`.

The semantics are those of the paper's own code: each step weighs twice the beam's
candidates; those that end go to a list of their own and take no place among those
that go on. A sentence is done when no unfinished hypothesis can still overtake the
best finished ones, as many as are asked for; then it leaves the batch, with fewer than
the beam's worth at times.

What is found is never worse than greedy search's if the beam is one, or wide enough for
all. In between it can be, even by log-probability alone: at some step others may crowd
out the sequence that takes the likeliest token each time, and end badly.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from torch import Tensor

from transduce.decoding.candidates import (
    Candidates,
    Excluded,
    best_candidates,
    now_excluded,
)
from transduce.decoding.search import Decoding, Hypothesis, NextTokenModel
from transduce.search_config import SearchConfig

Coverage = Callable[[], Float[Tensor, "sentences group"]]
"""Of the hypotheses that the model has read, with the attention of its last step."""


def beam_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first, at most `beam_size`.

    `max_lengths` counts the tokens of each sentence's output, the end token included.
    What is excluded is never put out. What a sentence's prefix is, all of its
    hypotheses begin with. The result for a sentence does not depend on the others.
    """
    search = BeamSearch(max_lengths, config, eos, excluded, prefixes)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


class BeamSearch:
    """Sentences whose beams grow together."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        """Coverage must be there if the config has a penalty for it."""
        count = len(max_lengths)
        self.live = [
            _Beam(limit, tuple(prefix), config)
            for limit, prefix in zip(max_lengths, prefixes or [()] * count, strict=True)
        ]
        self._config = config
        self._eos = eos
        self._excluded = excluded
        self._coverage = coverage
        self._coverages = np.zeros((count, 1))
        """Of the hypotheses that go on."""
        self._log_probabilities = np.zeros((count, 1))
        """Of the hypotheses that go on."""
        self._lengths = np.zeros(count, dtype=np.int64)
        """Tokens of each sentence's hypotheses."""
        self._ids = np.empty((count, 1, 0), dtype=np.int64)
        """The last of them are a hypothesis's tokens, as many as its length."""
        self._gains = np.empty((count, 1, 0))
        """What each token has added to its hypothesis's log-probability."""

    def grow(
        self, logits: Float[Tensor, "sentences group vocab"]
    ) -> tuple[Int[Tensor, "kept beam"], Int[Tensor, "kept beam"]]:
        """Take the best candidates; the rows that go on, and what they read next."""
        candidates = self._candidates(logits)
        if self._coverage is not None:
            self._coverages = self._coverage().double().cpu().numpy()
        is_end = candidates.tokens == self._eos
        if is_end.any():
            self._finish(candidates, is_end)
            candidates = candidates.without(is_end)
        size = self._config.beam_size
        parents, tokens = candidates.parents[:, :size], candidates.tokens[:, :size]
        rows = np.arange(len(parents))[:, None] * self._ids.shape[1] + parents
        self._append(parents, tokens, candidates.log_probabilities[:, :size])
        best = self._log_probabilities.max(axis=1).tolist()
        lengths = self._lengths.tolist()
        kept = [
            i
            for i, beam in enumerate(self.live)
            if not beam.is_done(best[i], lengths[i])
        ]
        if len(kept) < len(self.live):
            self._cut_short(kept)
            self._keep(kept)
            rows, tokens = rows[kept], tokens[kept]
        return torch.from_numpy(rows), torch.from_numpy(tokens)

    def join(self, other: "BeamSearch") -> None:
        """Put the sentences of another, which has grown too, behind one's own."""
        both = (self, other)
        width = max(each._ids.shape[2] for each in both)
        self._ids = np.concatenate([_widened(each._ids, width) for each in both])
        self._gains = np.concatenate([_widened(each._gains, width) for each in both])
        self._lengths = np.concatenate([each._lengths for each in both])
        self._coverages = np.concatenate([each._coverages for each in both])
        self._log_probabilities = np.concatenate(
            [each._log_probabilities for each in both]
        )
        self.live = [*self.live, *other.live]

    def _candidates(self, logits: Float[Tensor, "sentences group vocab"]) -> Candidates:
        lengths = self._lengths.tolist()
        return best_candidates(
            logits,
            self._log_probabilities,
            2 * self._config.beam_size,
            excluded=now_excluded(self._excluded),
            forced={
                i: beam.prefix[length]
                for i, (beam, length) in enumerate(zip(self.live, lengths, strict=True))
                if length < len(beam.prefix)
            },
            diversity=self._config.diversity,
        )

    def _finish(
        self, candidates: Candidates, is_end: Bool[np.ndarray, "sentences candidates"]
    ) -> None:
        is_possible = candidates.log_probabilities > -math.inf
        is_long = self._lengths >= self._config.min_length
        ends = np.argwhere(is_end & is_possible & is_long[:, None]).tolist()
        for i, j in ends:
            parent = int(candidates.parents[i, j])
            before = self._log_probabilities[i, parent]
            ids, gains = self._path(i, parent)
            gain = candidates.log_probabilities[i, j] - before
            coverage = float(self._coverages[i, parent])
            self.live[i].finish(ids, np.append(gains, gain), coverage)

    def _path(
        self, sentence: int, hypothesis: int
    ) -> tuple[Int64[np.ndarray, " length"], Float64[np.ndarray, " length"]]:
        """The tokens of a hypothesis, and what each has added."""
        first = self._ids.shape[2] - self._lengths[sentence]
        return (
            self._ids[sentence, hypothesis, first:],
            self._gains[sentence, hypothesis, first:],
        )

    def _append(
        self,
        parents: Int64[np.ndarray, "sentences group"],
        tokens: Int64[np.ndarray, "sentences group"],
        totals: Float64[np.ndarray, "sentences group"],
    ) -> None:
        """Let hypotheses be what their parents were, with one more token each."""
        sentences = np.arange(len(parents))[:, None]
        ids = self._ids[sentences, parents]
        gains = self._gains[sentences, parents]
        before = self._log_probabilities[sentences, parents]
        with np.errstate(invalid="ignore"):  # of what does not go on
            gain = totals - before
        self._ids = np.concatenate([ids, tokens[..., None]], axis=2)
        self._gains = np.concatenate([gains, gain[..., None]], axis=2)
        self._coverages = self._coverages[sentences, parents]
        self._log_probabilities = totals
        self._lengths = self._lengths + 1

    def _cut_short(self, kept: list[int]) -> None:
        """What was cut short is better than nothing, where nothing has ended."""
        for i in set(range(len(self.live))).difference(kept):
            if self.live[i].has_finished:
                continue
            going_on = np.flatnonzero(self._log_probabilities[i] > -math.inf)
            for hypothesis in going_on.tolist():
                coverage = float(self._coverages[i, hypothesis])
                self.live[i].finish(*self._path(i, hypothesis), coverage)

    def _keep(self, kept: list[int]) -> None:
        self.live = [self.live[i] for i in kept]
        self._lengths = self._lengths[kept]
        self._coverages = self._coverages[kept]
        self._log_probabilities = self._log_probabilities[kept]
        first = self._ids.shape[2] - int(self._lengths.max(initial=0))
        self._ids = self._ids[kept, :, first:]
        self._gains = self._gains[kept, :, first:]


class _Beam:
    """What has been found for one sentence."""

    def __init__(
        self, max_length: int, prefix: tuple[int, ...], config: SearchConfig
    ) -> None:
        self.prefix = prefix
        self._max_length = max_length
        self._config = config
        self._finished: list[Hypothesis] = []
        """The best of them, best first."""

    @property
    def has_finished(self) -> bool:
        """Whether any hypothesis has."""
        return bool(self._finished)

    def finish(
        self,
        ids: Int64[np.ndarray, " length"],
        gains: Float64[np.ndarray, " tokens"],
        coverage: float,
    ) -> None:
        """Keep a hypothesis; the gain of its end, if it has one, comes last."""
        total = float(gains.sum())
        score = self._config.score(total, len(gains), coverage)
        finished = Hypothesis(
            ids=tuple(ids.tolist()),
            log_probability=total,
            token_log_probabilities=tuple(gains.tolist()),
            score=score,
            is_finished=len(gains) > len(ids),
        )
        ranked = sorted([*self._finished, finished], key=lambda h: -h.score)
        self._finished = ranked[: self._config.beam_size]

    def is_done(self, best_log_probability: float, length: int) -> bool:
        """Whether nothing unfinished can overtake those that are asked for."""
        if best_log_probability == -math.inf or length >= self._max_length:
            return True
        num_best = self._config.num_best
        if len(self._finished) < num_best:
            return False
        # Log-probabilities only fall, the divisor never does, and coverage adds
        # nothing, so that nothing unfinished can score above this.
        bound = self._config.score(best_log_probability, self._max_length)
        return self._finished[num_best - 1].score >= bound

    def hypotheses(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        return self._finished


def _widened(
    paths: Shaped[np.ndarray, "sentences group length"], width: int
) -> Shaped[np.ndarray, "sentences group {width}"]:
    """With room before the tokens."""
    return np.pad(paths, ((0, 0), (0, 0), (width - paths.shape[2], 0)))
