"""Beams that a kernel lets grow, in arrays instead of lists."""

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float64, Int64

from transduce.decoding.candidates.candidate_search import Candidates
from transduce.decoding.hypotheses import End, Hypothesis
from transduce.decoding.kernels.compiled_candidates import NOT_FORCED
from transduce.decoding.kernels.fields import (
    BeamFields,
    BeamsFields,
    EndFields,
    StepsFields,
)
from transduce.decoding.kernels.library import loaded_kernels
from transduce.kernels.loading import address
from transduce.search_config import SearchConfig

Coverage = Callable[[], Float64[np.ndarray, "sentences group"]]
"""Function for the sum of log(min(attention, 1)) over the source tokens of each current
hypothesis, its last step included."""

END = np.dtype(EndFields)
FIRST_ROOM = 32
"""Steps that there is room for at first; most sentences need no more."""
ENDLESS = 2**62
"""Tokens, or hypotheses: there are never so many."""


class CompiledBeam:
    """The hypotheses of one sentence."""

    def __init__(
        self,
        max_length: int,
        prefix: Sequence[int],
        config: SearchConfig,
        most_told: int,
    ) -> None:
        size = self.size(config)
        self._config = config
        self._most_told = most_told
        self.room = 0
        """Steps of which there can be, those that were done counted."""
        self._steps: Int64[np.ndarray, "3 steps beam"] = np.empty(
            (3, 0, size), np.int64
        )
        self._ends = np.empty(size, dtype=END)
        self._prefix = np.array(prefix, dtype=np.int64)
        self.fields = BeamFields(
            max_length=min(max_length, ENDLESS),
            last_divisor=config.divisor(max_length),
            prefix_length=len(prefix),
            prefix=self._prefix.ctypes.data,
            ends=self._ends.ctypes.data,
        )
        self.make_room()

    @staticmethod
    def size(config: SearchConfig) -> int:
        """Hypotheses that there are, once the first has grown."""
        return config.beam_size

    @property
    def steps_left(self) -> int:
        """That there is room for."""
        return self.room - self.fields.num_steps

    def make_room(self) -> None:
        """For as many steps again."""
        before, size = self._steps.shape[1:]
        self.room = max(2 * before, FIRST_ROOM)
        steps = np.empty((3, self.room, size), dtype=np.int64)
        steps[:, :before] = self._steps
        self._steps = steps
        first, plane = steps.ctypes.data, steps.strides[0]
        self.fields.parents = first
        self.fields.tokens = first + plane
        self.fields.totals = first + 2 * plane

    def hypotheses(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        ends, num_steps = self._ended(), self.fields.num_steps
        tokens = np.empty((len(ends), num_steps), dtype=np.int64)
        gains = np.empty((len(ends), num_steps + 1))
        loaded_kernels().transduce_trace_best(
            ctypes.byref(self.fields),
            self._steps.shape[2],
            len(ends),
            tokens.ctypes.data,
            gains.ctypes.data,
        )
        each = zip(ends, tokens.tolist(), gains.tolist(), strict=True)
        return [
            Hypothesis(
                ids=tuple(ids[: end.num_steps]),
                log_probability=end.log_probability,
                token_log_probabilities=tuple(own[: end.num_steps + end.is_finished]),
                score=end.score,
                is_finished=end.is_finished,
            )
            for end, ids, own in each
        ]

    def _ended(self) -> list[End]:
        told = min(self.fields.num_ends, self._most_told)
        ends = self._ends[:told].tolist()
        return [End._make((*each, bool(last))) for *each, last in ends]


class CompiledPath(CompiledBeam):
    """The one hypothesis of a sentence, with gains in the place of their sums."""

    @staticmethod
    def size(config: SearchConfig) -> int:
        """One, however large the beam of other searches is."""
        return 1

    def hypotheses(self) -> list[Hypothesis]:
        """The only one."""
        [end] = self._ended()
        done = self._steps[:, : self.fields.num_steps, 0]
        tokens, gains = done[1].tolist(), done[2].view(np.float64).tolist()
        total = sum(gains)
        only = Hypothesis(
            ids=tuple(tokens[: end.num_steps]),
            log_probability=total,
            token_log_probabilities=tuple(gains),
            score=self._config.score(total, len(tokens)),
            is_finished=end.is_finished,
        )
        return [only]


class CompiledBeams:
    """Sentences whose beams grow together, as beam_search.py has them in lists."""

    _of_sentence: type[CompiledBeam] = CompiledBeam
    _kernel_name = "transduce_grow"
    _is_greedy = False

    def __init__(
        self,
        max_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        eos: int,
        config: SearchConfig,
        most_told: int,
        coverage: Coverage | None = None,
    ) -> None:
        """Begin a search; a coverage penalty in the config needs `coverage`."""
        self.live = [
            self._of_sentence(limit, prefix, config, most_told)
            for limit, prefix in zip(max_lengths, prefixes, strict=True)
        ]
        self._config = config
        self._coverage = coverage
        self._kernel = getattr(loaded_kernels(), self._kernel_name)
        self._fields = BeamsFields(
            size=self._of_sentence.size(config),
            eos=eos,
            min_length=config.min_length,
            num_best=config.num_best,
            end_candidates=config.end_candidates,
            enough_ends=min(config.enough_ends or ENDLESS, ENDLESS),
            cut_ones_compete=config.cut_ones_compete,
            coverage_penalty=config.coverage_penalty,
        )
        forced = [prefix[0] if prefix else NOT_FORCED for prefix in prefixes]
        self._hold(np.array(forced, dtype=np.int64))
        self.log_probabilities: Float64[np.ndarray, "sentences group"] = np.zeros(
            (len(self.live), 1)
        )
        """Of the hypotheses that go on, as far as they bear on what comes next."""
        self._has_prefixes = any(prefixes)

    @property
    def are_covered(self) -> bool:
        """Whether the search has a coverage penalty."""
        return self._coverage is not None

    @property
    def forced(self) -> Int64[np.ndarray, " sentences"] | None:
        """The only token that may come next in each sentence."""
        return self._forced if self._has_prefixes else None

    def grow(
        self, found: Candidates, group: int
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Take the best; the rows that go on, and what they read next.

        Both are good until the next call.
        """
        assert len(found.tokens) == len(self.live)
        if not self._steps_left:
            self._make_room()
        self._steps_left -= 1
        if self._coverage is not None:
            coverages = np.ascontiguousarray(self._coverage(), dtype=np.float64)
            assert coverages.shape == (len(self.live), group)
            self._fields.coverages = address(coverages, np.float64)
        self._kernel(
            ctypes.byref(self._fields),
            address(found.log_probabilities, np.float64),
            address(found.parents, np.int64),
            address(found.tokens, np.int64),
            found.tokens.shape[1],
            group,
        )
        if (kept := self._fields.sentences) < len(self.live):
            self._leave(kept)
        self.log_probabilities = self._totals
        return self._rows, self._tokens

    @property
    def size(self) -> int:
        """Hypotheses of each, once it has grown."""
        return int(self._fields.size)

    def fill_in(
        self, steps: StepsFields, last_ids: Int64[np.ndarray, "sentences beam"]
    ) -> None:
        """What a kernel is to know to let them grow; as many steps as there is room."""
        if not self._steps_left:
            self._make_room()
        self._tokens[:] = last_ids  # not those of before, if others have joined
        if self._coverage is not None:
            self._coverages = np.empty(last_ids.shape)
            self._fields.coverages = address(self._coverages, np.float64)
        steps.beams = ctypes.addressof(self._fields)
        steps.is_greedy = self._is_greedy
        steps.has_prefixes = self._has_prefixes
        steps.most = min(steps.most, self._steps_left)

    def grown(self, steps: StepsFields) -> Int64[np.ndarray, "kept beam"]:
        """Go on from where a kernel has let them grow to; what they read next."""
        self._steps_left -= steps.taken
        if (kept := self._fields.sentences) < len(self.live):
            self._leave(kept)
        self.log_probabilities = self._totals
        return self._tokens

    def join(self, other: "CompiledBeams") -> None:
        """Put the sentences of another, which has grown too, behind one's own."""
        totals = np.concatenate([self.log_probabilities, other.log_probabilities])
        self.live = [*self.live, *other.live]
        self._hold(np.concatenate([self._forced, other._forced]))
        self._totals[:] = totals
        self.log_probabilities = self._totals
        self._has_prefixes |= other._has_prefixes

    def _hold(self, forced: Int64[np.ndarray, " sentences"]) -> None:
        """Have places for what is said of those that are live."""
        number, size = len(self.live), self._fields.size
        places = np.empty((3, number, size), dtype=np.int64)
        self._rows, self._tokens = places[0], places[1]
        self._totals = places[2].view(np.float64)
        self._forced = forced
        self._beam_at = {ctypes.addressof(beam.fields): beam for beam in self.live}
        self._live = (ctypes.c_size_t * number)(*self._beam_at)
        first, plane = places.ctypes.data, places.strides[0]
        self._fields.sentences = number
        self._fields.live = ctypes.addressof(self._live)
        self._fields.rows = first
        self._fields.tokens = first + plane
        self._fields.totals = first + 2 * plane
        self._fields.forced = forced.ctypes.data
        self._count_room()

    def _leave(self, kept: int) -> None:
        """So many are not done, and stand first."""
        self._rows, self._tokens = self._rows[:kept], self._tokens[:kept]
        self._totals, self._forced = self._totals[:kept], self._forced[:kept]
        self.live = [self._beam_at[at] for at in self._live[:kept]]

    def _make_room(self) -> None:
        for beam in self.live:
            if not beam.steps_left:
                beam.make_room()
        self._count_room()

    def _count_room(self) -> None:
        self._steps_left = min((beam.steps_left for beam in self.live), default=0)
        longest = max((beam.room for beam in self.live), default=0)
        self._divisors = _divisors(self._config, longest)
        self._fields.divisors = address(self._divisors, np.float64)


class CompiledPaths(CompiledBeams):
    """Sentences that grow greedily, as greedy_search.py has them in lists."""

    _of_sentence = CompiledPath
    _kernel_name = "transduce_grow_greedily"
    _is_greedy = True


@lru_cache(maxsize=16)
def _divisors(config: SearchConfig, longest: int) -> Float64[np.ndarray, " lengths"]:
    """Of the scores of hypotheses, up to such a length and with an end after that."""
    each = [1.0, *map(config.divisor, range(1, longest + 2))]
    return np.array(each)
