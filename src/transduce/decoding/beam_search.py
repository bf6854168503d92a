"""Beam search (section 6.1). It knows no model: only `step` and `reorder`.

The semantics are those of the paper's own code: each step weighs twice the beam's
candidates; those that end go to a list of their own and take no place among those
that go on. A sentence is done when no unfinished hypothesis can still overtake the
best finished ones, as many as are asked for, or, with `patience`, once enough have
ended; then it leaves the batch.

Without patience, the result is never worse than greedy search's if the beam is one, or
wide enough for all. In between it can be, even by log-probability alone: at some step
others may crowd out the sequence that takes the likeliest token each time, and end
badly.
"""

import math
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
from transduce.decoding.native_search import NativeSearch
from transduce.decoding.search import (
    Coverage,
    Decoding,
    End,
    Hypothesis,
    NextTokenModel,
    Search,
    Step,
    traced,
)
from transduce.native import api
from transduce.search_config import SearchConfig


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
    """Return the best hypotheses of each sentence, best first, at most `beam_size`.

    `max_lengths` counts the tokens of each sentence's output, the end token included.
    Excluded tokens are never put out. All hypotheses of a sentence begin with its
    prefix. The result for a sentence does not depend on the others.
    """
    search = begin_beam_search(max_lengths, config, eos, excluded, prefixes)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


def begin_beam_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    coverage: Coverage | None = None,
    max_hypotheses: int | None = None,
) -> Search:
    """Begin a search that the native library keeps, if there is one.

    A coverage penalty in the config needs `coverage`. Each sentence returns at most
    `max_hypotheses`, or as many as the beam is wide.
    """
    kind = BeamSearch if api() is None else NativeSearch
    return kind(max_lengths, config, eos, excluded, prefixes, coverage, max_hypotheses)


class BeamSearch:
    """Beams of several sentences that grow together, in Python."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        coverage: Coverage | None = None,
        max_hypotheses: int | None = None,
    ) -> None:
        """Begin a search like `begin_beam_search`."""
        prefixes = prefixes or [()] * len(max_lengths)
        self.live = [
            _Beam(limit, prefix, eos, config, max_hypotheses or config.beam_size)
            for limit, prefix in zip(max_lengths, prefixes, strict=True)
        ]
        """Sentences that are not done."""
        self._config = config
        self._excluded = excluded
        self._coverage = coverage

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Grow by the best candidates; return rows that go on, and what they read."""
        group = logits.shape[1]
        found = find_candidates(
            logits,
            np.array([beam.log_probabilities for beam in self.live], dtype=np.float64),
            self._config.candidates,
            self._excluded,
            forced_tokens([beam.forced for beam in self.live]),
            self._config.diversity,
        )
        if self._coverage is not None:
            for beam, each in zip(self.live, self._coverage().tolist(), strict=True):
                beam.coverage = each
        candidates = zip(*(numbers.tolist() for numbers in found), strict=True)
        for beam, (log_probabilities, parents, tokens) in zip(
            self.live, candidates, strict=True
        ):
            beam.grow(log_probabilities, parents, tokens)
        kept = [i for i, beam in enumerate(self.live) if not beam.is_done]
        self.live = [self.live[i] for i in kept]
        shape = len(kept), self._config.beam_size
        parents = np.array([beam.parents for beam in self.live], dtype=np.int64)
        tokens = np.array([beam.last_ids for beam in self.live], dtype=np.int64)
        first_rows = group * np.array(kept, dtype=np.int64)[:, None]
        return first_rows + parents.reshape(shape), tokens.reshape(shape)

    def join(self, other: "BeamSearch") -> None:
        """Append the sentences of another; both must have grown."""
        self.live = [*self.live, *other.live]


class _Beam:
    """The hypotheses of one sentence.

    Each step stores only what it appends, so that nothing is copied where several
    hypotheses extend the same one.
    """

    def __init__(
        self,
        max_length: int,
        prefix: Sequence[int],
        eos: int,
        config: SearchConfig,
        max_hypotheses: int,
    ) -> None:
        self.log_probabilities = [0.0]
        """Log-probability of each live hypothesis."""
        self.coverage: list[float] = []
        """Coverage of each live hypothesis; empty without a coverage penalty."""
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config
        self._max_hypotheses = max_hypotheses
        self._steps: list[Step] = []
        self._ends: list[End] = []
        """The best hypotheses that ended, best first, at most `beam_size`."""
        self._num_finished = 0
        """Number of all that ended by themselves."""
        self._num_competing = 0
        """Number of live hypotheses that rank among the candidates that may end."""

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        length = len(self._steps)
        return self._prefix[length] if length < len(self._prefix) else NOT_FORCED

    @property
    def parents(self) -> list[int]:
        """The hypothesis of the step before that each live one extends."""
        return self._steps[-1].parents

    @property
    def last_ids(self) -> list[int]:
        """The last token of each live hypothesis."""
        return self._steps[-1].tokens

    def grow(
        self, log_probabilities: list[float], parents: list[int], tokens: list[int]
    ) -> None:
        """Extend hypotheses by the best candidates, and rank those that end."""
        step = Step([], [], [])
        self._num_competing = 0
        is_long = len(self._steps) >= self._config.min_length
        candidates = zip(log_probabilities, parents, tokens, strict=True)
        for rank, (log_probability, parent, token) in enumerate(candidates):
            if token == self._eos and log_probability > -math.inf:
                if is_long and rank < self._config.end_candidates:
                    self._num_finished += 1
                    self._end(log_probability, parent, is_finished=True)
            elif len(step.tokens) < self._config.beam_size:
                self._num_competing += rank < self._config.end_candidates
                step.parents.append(parent)
                step.tokens.append(token)
                step.log_probabilities.append(log_probability)
        self._steps.append(step)
        self.log_probabilities = step.log_probabilities
        if self.coverage:
            self.coverage = [self.coverage[parent] for parent in step.parents]

    @property
    def is_done(self) -> bool:
        """Whether no live hypothesis can overtake the best, or enough have ended."""
        best = max(self.log_probabilities)
        if best == -math.inf or len(self._steps) >= self._max_length:
            return True
        num_best = self._config.num_best
        if len(self._ends) < num_best:
            return False
        enough = self._config.enough_ends
        if enough is not None and self._num_finished >= enough:
            return True
        # Log-probabilities only fall, the divisor never does, and coverage adds
        # nothing, so no live hypothesis can score above this bound.
        bound = self._config.score(best, self._max_length)
        return self._ends[num_best - 1].score >= bound

    def hypotheses(self) -> list[Hypothesis]:
        """Return finished hypotheses, best first; if none finished, those cut short.

        With patience, those cut short by the length limit compete with finished ones.
        """
        is_cut = len(self._steps) >= self._max_length
        if not self._ends:
            self._cut_short(len(self.log_probabilities))
        elif is_cut and self._config.cut_ones_compete:
            self._cut_short(self._num_competing)
        return [traced(end, self._steps) for end in self._ends[: self._max_hypotheses]]

    def _cut_short(self, count: int) -> None:
        """Rank the first `count` live hypotheses as they are."""
        for number, log_probability in enumerate(self.log_probabilities[:count]):
            if log_probability > -math.inf:
                self._end(log_probability, number, is_finished=False)

    def _end(self, log_probability: float, last: int, *, is_finished: bool) -> None:
        """Keep a hypothesis if it is among the best."""
        num_steps = len(self._steps)
        coverage = self.coverage[last] if self.coverage else 0.0
        score = self._config.score(log_probability, num_steps + is_finished, coverage)
        size, ends = self._config.beam_size, self._ends
        if len(ends) == size and score <= ends[-1].score:
            return
        ends.append(End(score, log_probability, num_steps, last, is_finished))
        ends.sort(key=lambda end: -end.score)
        del ends[size:]
