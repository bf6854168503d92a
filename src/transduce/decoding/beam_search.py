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
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decoding.candidates import Excluded, best_candidates, now_excluded
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
        each = zip(max_lengths, prefixes or [()] * len(max_lengths), strict=True)
        self.live = [_Beam(limit, prefix, eos, config) for limit, prefix in each]
        self._config = config
        self._excluded = excluded
        self._coverage = coverage

    def grow(
        self, logits: Float[Tensor, "sentences group vocab"]
    ) -> tuple[Int[Tensor, "kept beam"], Int[Tensor, "kept beam"]]:
        """Take the best candidates; the rows that go on, and what they read next."""
        found = best_candidates(
            logits,
            [beam.log_probabilities for beam in self.live],
            2 * self._config.beam_size,
            excluded=now_excluded(self._excluded),
            forced={
                i: token
                for i, beam in enumerate(self.live)
                if (token := beam.forced) is not None
            },
            diversity=self._config.diversity,
        )
        if self._coverage is not None:
            of_groups = self._coverage().double().tolist()
            for beam, coverages in zip(self.live, of_groups, strict=True):
                beam.coverages = coverages
        of_sentences = zip(
            found.log_probabilities, found.parents, found.tokens, strict=True
        )
        for beam, candidates in zip(self.live, of_sentences, strict=True):
            beam.grow(*candidates)
        kept = [i for i, beam in enumerate(self.live) if not beam.is_done]
        self.live = [self.live[i] for i in kept]
        size, group_size = self._config.beam_size, logits.size(1)
        rows = [
            [i * group_size + parent for parent in beam.parents]
            for i, beam in zip(kept, self.live, strict=True)
        ]
        last_ids = [beam.last_ids for beam in self.live]
        both = np.array([rows, last_ids], dtype=np.int64).reshape(2, len(kept), size)
        parents, tokens = map(torch.from_numpy, both)
        return parents, tokens

    def join(self, other: "BeamSearch") -> None:
        """Put the sentences of another, which has grown too, behind one's own."""
        self.live = [*self.live, *other.live]


class _Step(NamedTuple):
    """The hypotheses that went on, by their last tokens."""

    parents: list[int]
    """Which of the step before each goes on from."""
    tokens: list[int]
    log_probabilities: list[float]
    """Of all tokens so far."""


class _End(NamedTuple):
    """A hypothesis that goes on no more."""

    score: float
    log_probability: float
    num_steps: int
    """By which its tokens were found, its end not counted."""
    last: int
    """Its number in the last of these."""
    is_finished: bool


class _Beam:
    """The hypotheses of one sentence.

    Each step says only what it has added, so that what goes on twice is not copied.
    """

    def __init__(
        self, max_length: int, prefix: Sequence[int], eos: int, config: SearchConfig
    ) -> None:
        self.log_probabilities = [0.0]
        """Of the hypotheses that go on."""
        self.coverages: list[float] = []
        """Theirs, if anybody asks for it."""
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config
        self._steps: list[_Step] = []
        self._ends: list[_End] = []
        """The best of them, best first."""

    @property
    def forced(self) -> int | None:
        """The only token that may come next, if there is such."""
        length = len(self._steps)
        return self._prefix[length] if length < len(self._prefix) else None

    @property
    def parents(self) -> list[int]:
        """Of the hypotheses that go on."""
        return self._steps[-1].parents

    @property
    def last_ids(self) -> list[int]:
        """Of each that goes on."""
        return self._steps[-1].tokens

    def grow(
        self, log_probabilities: list[float], parents: list[int], tokens: list[int]
    ) -> None:
        """Let the best candidates go on, and those that end be kept."""
        step = _Step([], [], [])
        is_long = len(self._steps) >= self._config.min_length
        candidates = zip(log_probabilities, parents, tokens, strict=True)
        for log_probability, parent, token in candidates:
            if token == self._eos and log_probability > -math.inf:
                if is_long:
                    self._end(log_probability, parent, is_finished=True)
            elif len(step.tokens) < self._config.beam_size:
                step.parents.append(parent)
                step.tokens.append(token)
                step.log_probabilities.append(log_probability)
        self._steps.append(step)
        self.log_probabilities = step.log_probabilities
        if self.coverages:
            self.coverages = [self.coverages[parent] for parent in step.parents]

    @property
    def is_done(self) -> bool:
        """Whether nothing unfinished can overtake those that are asked for."""
        best = max(self.log_probabilities)
        if best == -math.inf or len(self._steps) >= self._max_length:
            return True
        num_best = self._config.num_best
        if len(self._ends) < num_best:
            return False
        # Log-probabilities only fall, the divisor never does, and coverage adds
        # nothing, so that nothing unfinished can score above this.
        bound = self._config.score(best, self._max_length)
        return self._ends[num_best - 1].score >= bound

    def hypotheses(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        if not self._ends:
            for number, log_probability in enumerate(self.log_probabilities):
                if log_probability > -math.inf:
                    self._end(log_probability, number, is_finished=False)
        return [self._hypothesis(end) for end in self._ends]

    def _end(self, log_probability: float, last: int, *, is_finished: bool) -> None:
        """Keep a hypothesis, if it is among the best."""
        num_steps = len(self._steps)
        coverage = self.coverages[last] if self.coverages else 0.0
        score = self._config.score(log_probability, num_steps + is_finished, coverage)
        size, ends = self._config.beam_size, self._ends
        if len(ends) == size and score <= ends[-1].score:
            return
        ends.append(_End(score, log_probability, num_steps, last, is_finished))
        ends.sort(key=lambda end: -end.score)
        del ends[size:]

    def _hypothesis(self, end: _End) -> Hypothesis:
        ids, totals, number = [], [end.log_probability], end.last
        if not end.is_finished:
            totals.clear()
        for step in reversed(self._steps[: end.num_steps]):
            ids.append(step.tokens[number])
            totals.append(step.log_probabilities[number])
            number = step.parents[number]
        gains = (now - before for before, now in pairwise([0.0, *reversed(totals)]))
        return Hypothesis(
            ids=tuple(reversed(ids)),
            log_probability=end.log_probability,
            token_log_probabilities=tuple(gains),
            score=end.score,
            is_finished=end.is_finished,
        )
