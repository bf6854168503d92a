"""Beam search (section 6.1). Knows no model: only `step` and `reorder`.

The semantics are those of the paper's own code: each step weighs twice the beam's
candidates; those that end go to a list of their own and take no place among those
that go on. A sentence is done when no unfinished hypothesis can still overtake the
best finished ones, as many as are asked for, or, with `patience`, once enough have
ended; then it leaves the batch, with fewer than the beam's worth at times.

Without patience, what is found is never worse than greedy search's if the beam is one,
or wide enough for all. In between it can be, even by log-probability alone: at some
step others may crowd out the sequence that takes the likeliest token each time, and end
badly.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from transduce.decoding.candidates.candidate_search import (
    Candidates,
    CandidateSearch,
    Excluded,
)
from transduce.decoding.growing_search import GrowingSearch, ListedSentences
from transduce.decoding.hypotheses import End, Hypothesis, Step, traced
from transduce.decoding.kernels.compiled_beams import CompiledBeams, Coverage
from transduce.decoding.kernels.compiled_candidates import NOT_FORCED
from transduce.decoding.kernels.library import kernels
from transduce.decoding.search import Decoding, NextTokenModel
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
    """The best hypotheses of each sentence, best first, at most `beam_size`.

    `max_lengths` counts the tokens of each sentence's output, the end token included.
    What is excluded is never put out. What a sentence's prefix is, all of its
    hypotheses begin with. The result for a sentence does not depend on the others.
    """
    search = BeamSearch(max_lengths, config, eos, excluded, prefixes)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


class BeamSearch(GrowingSearch):
    """Sentences whose beams grow together."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        coverage: Coverage | None = None,
        most_told: int | None = None,
    ) -> None:
        """Coverage must be there if the config has a penalty for it.

        Of each sentence, so many hypotheses are told at most, if that is given.
        """
        prefixes = prefixes or [()] * len(max_lengths)
        most_told = most_told or config.beam_size
        super().__init__(
            CompiledBeams(max_lengths, prefixes, eos, config, most_told, coverage)
            if kernels() is not None
            else _Beams(
                [
                    _Beam(limit, prefix, eos, config, most_told)
                    for limit, prefix in zip(max_lengths, prefixes, strict=True)
                ],
                config.beam_size,
                coverage,
            ),
            CandidateSearch(config.candidates, excluded, config.diversity),
        )


class _Beams(ListedSentences["_Beam"]):
    """What `CompiledBeams` is to do."""

    def __init__(
        self, live: list["_Beam"], size: int, coverage: Coverage | None
    ) -> None:
        super().__init__(live)
        self._size = size
        self._coverage = coverage

    @property
    def log_probabilities(self) -> Float64[np.ndarray, "sentences group"]:
        """Of the hypotheses that go on."""
        each = [beam.log_probabilities for beam in self.live] or np.empty((0, 1))
        return np.array(each, dtype=np.float64)

    def grow(
        self, found: Candidates, group: int
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Take the best; the rows that go on, and what they read next."""
        if self._coverage is not None:
            of_groups = self._coverage().tolist()
            for beam, coverages in zip(self.live, of_groups, strict=True):
                beam.coverages = coverages
        each = (found.log_probabilities, found.parents, found.tokens)
        of_sentences = zip(*(numbers.tolist() for numbers in each), strict=True)
        for beam, candidates in zip(self.live, of_sentences, strict=True):
            beam.grow(*candidates)
        kept = self._leave()
        rows = [
            [i * group + parent for parent in beam.parents]
            for i, beam in zip(kept, self.live, strict=True)
        ]
        last_ids = [beam.last_ids for beam in self.live]
        both = np.array([rows, last_ids], dtype=np.int64)
        parents, tokens = both.reshape(2, len(kept), self._size)
        return parents, tokens


class _Beam:
    """The hypotheses of one sentence.

    Each step says only what it has added, so that what goes on twice is not copied.
    """

    def __init__(
        self,
        max_length: int,
        prefix: Sequence[int],
        eos: int,
        config: SearchConfig,
        most_told: int,
    ) -> None:
        self.log_probabilities = [0.0]
        """Of the hypotheses that go on."""
        self.coverages: list[float] = []
        """Theirs, if anybody asks for it."""
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config
        self._most_told = most_told
        self._steps: list[Step] = []
        self._ends: list[End] = []
        """The best of them, best first."""
        self._num_finished = 0
        """Also those that are not kept."""
        self._num_competing = 0
        """Number of continuing hypotheses that rank among those that may end."""

    @property
    def forced(self) -> int:
        """The only token that may come next, if there is such."""
        length = len(self._steps)
        return self._prefix[length] if length < len(self._prefix) else NOT_FORCED

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
        if self.coverages:
            self.coverages = [self.coverages[parent] for parent in step.parents]

    @property
    def is_done(self) -> bool:
        """Whether nothing unfinished can overtake those asked for, or enough ended."""
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
        # nothing, so that nothing unfinished can score above this.
        bound = self._config.score(best, self._max_length)
        return self._ends[num_best - 1].score >= bound

    def hypotheses(self) -> list[Hypothesis]:
        """Finished hypotheses, best first; if there are none, those cut short.

        With patience, those cut short by the length limit compete with finished ones.
        """
        is_cut = len(self._steps) >= self._max_length
        if not self._ends:
            self._cut_short(len(self.log_probabilities))
        elif is_cut and self._config.cut_ones_compete:
            self._cut_short(self._num_competing)
        told = self._ends[: self._most_told]
        return [traced(end, self._steps) for end in told]

    def _cut_short(self, count: int) -> None:
        """Keep the first continuing hypotheses, if they are among the best."""
        for number, log_probability in enumerate(self.log_probabilities[:count]):
            if log_probability > -math.inf:
                self._end(log_probability, number, is_finished=False)

    def _end(self, log_probability: float, last: int, *, is_finished: bool) -> None:
        """Keep a hypothesis, if it is among the best."""
        num_steps = len(self._steps)
        coverage = self.coverages[last] if self.coverages else 0.0
        score = self._config.score(log_probability, num_steps + is_finished, coverage)
        size, ends = self._config.beam_size, self._ends
        if len(ends) == size and score <= ends[-1].score:
            return
        ends.append(End(score, log_probability, num_steps, last, is_finished))
        ends.sort(key=lambda end: -end.score)
        del ends[size:]
