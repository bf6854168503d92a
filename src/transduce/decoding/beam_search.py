"""Beam search (section 6.1).

The search reads logits and returns the rows to keep. Its semantics are those of the
paper's own code: each step considers the 2 * beam_size likeliest continuations of a
sentence. Those with the end token become finished hypotheses and take no place in the
beam; the best beam_size others continue. A sentence is done when no live hypothesis can
still enter its `num_best` finished ones, or, with `patience`, when enough hypotheses
have finished.

A beam of one compares finished hypotheses of different lengths, which greedy search
does not. A wider beam may find a lower score: hypotheses that look better for a few
steps can push the later winner out of the beam. Without patience, and with a beam wide
enough to drop no hypothesis, the best score of all is found.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from transduce.decoding.candidates import (
    NOT_FORCED,
    CandidateQuery,
    Candidates,
    Excluded,
    Restrictions,
    excluded_now,
    find_candidates,
    restrictions_after,
)
from transduce.decoding.search import (
    Coverage,
    Decoder,
    Hypothesis,
    Sentence,
    coverage_of,
    run_search,
)
from transduce.search_config import SearchConfig

FIRST_COLUMNS = 32
"""Tokens that a new state can hold; twice as many whenever they are not enough."""
UNLIMITED = 2**62
"""Limit that no search reaches, of tokens or of hypotheses."""


def beam_search(
    decoder: Decoder,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sentence, best first, at most `beam_size`.

    The result for a sentence does not depend on the other sentences.

    Parameters
    ----------
    decoder
        Decoder of the encoded sources, before its first step.
    max_lengths
        Most tokens of each sentence's output, the end token included.
    config
        Beam size, length penalty and the other settings of the search. `max_lengths`
        takes the place of `extra_length` and `max_length`, and `shortlist` has no
        effect. A coverage penalty needs a decoder with `coverage`.
    bos
        Id of the token with which decoding starts.
    eos
        Id of the end token.
    excluded
        Ids that are never chosen, or a function that returns a mask of them.
    prefixes
        Ids with which all hypotheses of each sentence begin.

    Raises
    ------
    RequestError
        The config has a coverage penalty, but the decoder has no coverage.
    """
    coverage = coverage_of(decoder, config)
    search = BeamSearch(max_lengths, config, eos, excluded, prefixes, coverage)
    return run_search(decoder, search, bos)


@dataclass(slots=True, kw_only=True)
class SentenceArrays:
    """Arrays whose first axis is the live sentences."""

    def keep(self, is_kept: Bool[np.ndarray, " sentences"]) -> None:
        """Drop all other sentences."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[is_kept])

    def join(self, other: "SentenceArrays") -> None:
        """Append the sentences of arrays of the same shapes."""
        for field in fields(self):
            both = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, np.concatenate(both))


@dataclass(slots=True, kw_only=True)
class HypothesisArrays(SentenceArrays):
    """Tokens of several hypotheses of each sentence, padded to as many `columns`."""

    tokens: Int64[np.ndarray, "sentences number columns"]
    sums: Float64[np.ndarray, "sentences number columns"]
    """Log-probability of each hypothesis up to each of its tokens."""

    @property
    def columns(self) -> int:
        """Number of tokens that a hypothesis can have."""
        return self.tokens.shape[2]

    def widen(self, columns: int) -> None:
        """Add columns for more tokens."""
        padding = ((0, 0), (0, 0), (0, columns - self.columns))
        self.tokens = np.pad(self.tokens, padding)
        self.sums = np.pad(self.sums, padding)


@dataclass(slots=True, kw_only=True)
class OutputConstraints(SentenceArrays):
    """Length limit and prefix of each sentence's output."""

    max_lengths: Int64[np.ndarray, " sentences"]
    """Most tokens of the output, the end token included."""
    prefixes: Int64[np.ndarray, "sentences forced"]
    """Token that each position must have; `NOT_FORCED` after the prefix."""

    def forced_at(
        self, positions: Int64[np.ndarray, " sentences"]
    ) -> Int64[np.ndarray, " sentences"]:
        """Return the token that each sentence must have at a position."""
        positions = np.minimum(positions, self.prefixes.shape[1] - 1)
        return self.prefixes[np.arange(len(positions)), positions]

    def widen(self, num_forced: int) -> None:
        """Add columns for longer prefixes."""
        padding = ((0, 0), (0, num_forced - self.prefixes.shape[1]))
        self.prefixes = np.pad(self.prefixes, padding, constant_values=NOT_FORCED)


@dataclass(slots=True, kw_only=True)
class Beams(HypothesisArrays):
    """Live hypotheses of each sentence, best first.

    Their `number` is 1 before the first step and the beam size afterwards. Columns
    beyond the length of a hypothesis have no meaning.
    """

    lengths: Int64[np.ndarray, " sentences"]
    """Tokens of each hypothesis, the same number for all of a sentence. Sentences that
    joined later have fewer."""
    totals: Float64[np.ndarray, "sentences number"]
    """Log-probability of each hypothesis."""
    coverage: Float64[np.ndarray, "sentences number"]
    """Coverage of each hypothesis; 0 without a coverage penalty."""
    num_end_candidates: Int64[np.ndarray, " sentences"]
    """Number of hypotheses, the first ones, that were among the candidates that may
    end."""


@dataclass(slots=True, kw_only=True)
class FinishedHypotheses(HypothesisArrays):
    """Best finished hypotheses of each sentence, best first."""

    scores: Float64[np.ndarray, "sentences number"]
    """Score of each hypothesis; minus infinity where there is none."""
    totals: Float64[np.ndarray, "sentences number"]
    """Log-probability of each hypothesis, the end token included."""
    lengths: Int64[np.ndarray, "sentences number"]
    """Tokens of each hypothesis, the end token not counted."""

    def merge(self, others: "FinishedHypotheses") -> None:
        """Keep the best of these and others; of equal scores, these come first."""
        count = self.scores.shape[1]
        scores = np.concatenate([self.scores, others.scores], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        sentence = np.arange(len(scores))[:, None]
        for field in fields(self):
            both = getattr(self, field.name), getattr(others, field.name)
            joined = np.concatenate(both, axis=1)
            setattr(self, field.name, joined[sentence, best])


@dataclass(slots=True, kw_only=True)
class BeamState:
    """Beams of all live sentences between two steps."""

    constraints: OutputConstraints
    live: Beams
    finished: FinishedHypotheses
    num_finished: Int64[np.ndarray, " sentences"]
    """Number of hypotheses that have finished, whether they were kept or not."""

    def keep(self, is_kept: Bool[np.ndarray, " sentences"]) -> None:
        """Drop all other sentences."""
        self.constraints.keep(is_kept)
        self.live.keep(is_kept)
        self.finished.keep(is_kept)
        self.num_finished = self.num_finished[is_kept]

    def join(self, other: "BeamState") -> None:
        """Append the sentences of another state with groups of the same size."""
        columns = max(state.live.columns for state in (self, other))
        num_forced = max(state.constraints.prefixes.shape[1] for state in (self, other))
        for state in (self, other):
            state.widen(columns)
            state.constraints.widen(num_forced)
        self.constraints.join(other.constraints)
        self.live.join(other.live)
        self.finished.join(other.finished)
        self.num_finished = np.concatenate([self.num_finished, other.num_finished])

    def widen(self, columns: int) -> None:
        """Add columns for more tokens."""
        self.live.widen(columns)
        self.finished.widen(columns)


def initial_state(
    max_lengths: Sequence[int], prefixes: Sequence[Sequence[int]], beam_size: int
) -> BeamState:
    """State before the first step: one empty hypothesis for each sentence."""
    sentences = len(max_lengths)
    forced = np.full((sentences, max(map(len, prefixes), default=0) + 1), NOT_FORCED)
    for row, prefix in zip(forced, prefixes, strict=True):
        row[: len(prefix)] = prefix
    return BeamState(
        constraints=OutputConstraints(
            max_lengths=np.array([min(n, UNLIMITED) for n in max_lengths], np.int64),
            prefixes=forced,
        ),
        live=Beams(
            lengths=np.zeros(sentences, np.int64),
            totals=np.zeros((sentences, 1)),
            tokens=np.zeros((sentences, 1, FIRST_COLUMNS), np.int64),
            sums=np.zeros((sentences, 1, FIRST_COLUMNS)),
            coverage=np.zeros((sentences, 1)),
            num_end_candidates=np.zeros(sentences, np.int64),
        ),
        finished=FinishedHypotheses(
            scores=np.full((sentences, beam_size), -math.inf),
            totals=np.zeros((sentences, beam_size)),
            lengths=np.zeros((sentences, beam_size), np.int64),
            tokens=np.zeros((sentences, beam_size, FIRST_COLUMNS), np.int64),
            sums=np.zeros((sentences, beam_size, FIRST_COLUMNS)),
        ),
        num_finished=np.zeros(sentences, np.int64),
    )


class BeamSearch:
    """Beam search for several sentences that grow together, in numpy.

    `NativeSearch` is the same search in the native library.
    """

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
        """Prepare the first step; a coverage penalty in the config needs `coverage`.

        Each sentence gets at most `max_hypotheses`, by default `beam_size`.
        """
        prefixes = prefixes or [()] * len(max_lengths)
        self._state = initial_state(max_lengths, prefixes, config.beam_size)
        self._config = config
        self._eos = eos
        self._excluded = excluded
        self._coverage = coverage
        self._max_hypotheses = min(max_hypotheses or UNLIMITED, config.beam_size)
        self.live = [Sentence() for _ in max_lengths]
        """Sentences that are not done."""

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Continue with the best candidates.

        Returns the rows that continue and the token of each.
        """
        beams, config = self._state.live, self._config
        forced = self._forced()
        query = CandidateQuery(
            log_probabilities=beams.totals,
            count=config.candidates,
            excluded=excluded_now(self._excluded),
            forced=forced,
            diversity=config.diversity,
            restrictions=self._restrictions(forced),
        )
        found = find_candidates(logits, query)
        if self._coverage is not None:
            beams.coverage = self._coverage()
        is_end = (found.tokens == self._eos) & (found.log_probabilities > -math.inf)
        self._finish(found, is_end)
        # At most one candidate of each hypothesis ends, so there are enough others.
        ranks = np.argsort(is_end, axis=1, kind="stable")[:, : config.beam_size]
        self._end_where_no_token_may_follow(found, ranks)
        parents, tokens = self._continue(found, ranks)
        is_live = ~self._are_done()
        first_rows = np.flatnonzero(is_live)[:, None] * logits.shape[1]
        self._keep(is_live)
        return first_rows + parents[is_live], tokens[is_live]

    def join(self, other: "BeamSearch") -> None:
        """Append the sentences of another search; both must have taken a step."""
        self._state.join(other._state)
        self.live = [*self.live, *other.live]

    def _forced(self) -> Int64[np.ndarray, " sentences"] | None:
        """Return the forced token of each sentence, or None if no sentence has one."""
        forced = self._state.constraints.forced_at(self._state.live.lengths)
        return forced if (forced != NOT_FORCED).any() else None

    def _restrictions(
        self, forced: Int64[np.ndarray, " sentences"] | None
    ) -> Restrictions | None:
        """Return the restrictions of the next tokens, if the config has any."""
        beams = self._state.live
        if not self._config.has_restrictions:
            return None
        is_free = beams.totals > -math.inf
        if forced is not None:
            is_free &= (forced == NOT_FORCED)[:, None]
        hypotheses = [
            beams.tokens[place][: beams.lengths[place[0]]].tolist()
            if is_free[place]
            else None
            for place in np.ndindex(is_free.shape)
        ]
        return restrictions_after(hypotheses, self._config)

    def _finish(
        self, found: Candidates, is_end: Bool[np.ndarray, "sentences candidates"]
    ) -> None:
        """Keep the best of the finished hypotheses and of the candidates that end."""
        beams, config = self._state.live, self._config
        is_long = beams.lengths >= config.min_length
        may_end = is_end & is_long[:, None]
        may_end[:, config.end_candidates :] = False
        if not may_end.any():
            return
        self._state.num_finished += may_end.sum(axis=1)
        sentence = np.arange(len(is_end))[:, None]
        scores = found.log_probabilities / self._divisors(beams.lengths + 1)[:, None]
        scores += config.coverage_penalty * beams.coverage[sentence, found.parents]
        scores[~may_end] = -math.inf
        ended = FinishedHypotheses(
            scores=scores,
            totals=found.log_probabilities,
            lengths=np.broadcast_to(beams.lengths[:, None], scores.shape),
            tokens=beams.tokens[sentence, found.parents],
            sums=beams.sums[sentence, found.parents],
        )
        self._state.finished.merge(ended)

    def _end_where_no_token_may_follow(
        self, found: Candidates, ranks: Int64[np.ndarray, "sentences beam"]
    ) -> None:
        """Set the hypotheses so far of sentences that no token may follow."""
        values = np.take_along_axis(found.log_probabilities, ranks, axis=1)
        is_dead_end = np.fmax.reduce(values, axis=1) == -math.inf
        for number in np.flatnonzero(
            is_dead_end & (self._state.live.lengths > 0)
        ).tolist():
            self.live[number].hypotheses = self._hypotheses(number)

    def _continue(
        self, found: Candidates, ranks: Int64[np.ndarray, "sentences beam"]
    ) -> tuple[
        Int64[np.ndarray, "sentences beam"], Int64[np.ndarray, "sentences beam"]
    ]:
        """Make the candidates of these ranks the live hypotheses."""
        beams, config = self._state.live, self._config
        if beams.lengths.max() == beams.columns:
            self._state.widen(2 * beams.columns)
        every = np.arange(len(ranks))
        sentence = every[:, None]
        parents, tokens = found.parents[sentence, ranks], found.tokens[sentence, ranks]
        beams.num_end_candidates = (ranks < config.end_candidates).sum(axis=1)
        beams.totals = found.log_probabilities[sentence, ranks]
        beams.coverage = beams.coverage[sentence, parents]
        beams.tokens = beams.tokens[sentence, parents]
        beams.sums = beams.sums[sentence, parents]
        beams.tokens[every, :, beams.lengths] = tokens
        beams.sums[every, :, beams.lengths] = beams.totals
        beams.lengths = beams.lengths + 1
        return parents, tokens

    def _are_done(self) -> Bool[np.ndarray, " sentences"]:
        """Return which sentences need no further step."""
        state, config = self._state, self._config
        max_lengths = state.constraints.max_lengths
        best = np.fmax.reduce(state.live.totals, axis=1)  # ignores NaN
        is_over = (best == -math.inf) | (state.live.lengths >= max_lengths)
        worst_wanted = state.finished.scores[:, config.num_best - 1]
        # Log-probabilities only fall, the divisor never falls, and coverage is at most
        # 0, so no live hypothesis can score above this bound.
        bound = best / self._divisors(max_lengths)
        is_final = worst_wanted >= bound
        if config.finished_limit is not None:
            is_final |= state.num_finished >= config.finished_limit
        return is_over | (is_final & (worst_wanted > -math.inf))

    def _divisors(
        self, lengths: Int64[np.ndarray, " sentences"]
    ) -> Float64[np.ndarray, " sentences"]:
        return np.array([self._config.divisor(each) for each in lengths.tolist()])

    def _keep(self, is_live: Bool[np.ndarray, " sentences"]) -> None:
        """Drop the sentences that are done, and set their hypotheses."""
        if is_live.all():
            return
        for number in np.flatnonzero(~is_live).tolist():
            sentence = self.live[number]
            sentence.hypotheses = sentence.hypotheses or self._hypotheses(number)
        self.live = [self.live[number] for number in np.flatnonzero(is_live)]
        self._state.keep(is_live)

    def _hypotheses(self, number: int) -> list[Hypothesis]:
        """Return a sentence's hypotheses, best first.

        They are the finished ones. Without any, they are the live ones, which the
        length limit truncates or which no token may follow. With patience, live ones at
        the length limit are ranked with finished ones.
        """
        state = self._state
        num_finished = int((state.finished.scores[number] > -math.inf).sum())
        found = [self._finished(number, rank) for rank in range(num_finished)]
        num_truncated = 0
        if not found:
            num_truncated = state.live.totals.shape[1]
        elif (
            self._config.ranks_truncated
            and state.live.lengths[number] >= state.constraints.max_lengths[number]
        ):
            num_truncated = int(state.live.num_end_candidates[number])
        found += [
            self._truncated(number, rank)
            for rank in range(num_truncated)
            if state.live.totals[number, rank] > -math.inf
        ]
        found.sort(key=lambda each: -each.score)
        return found[: self._max_hypotheses]

    def _finished(self, number: int, rank: int) -> Hypothesis:
        finished, place = self._state.finished, (number, rank)
        length, total = finished.lengths[place], float(finished.totals[place])
        return Hypothesis(
            ids=tuple(finished.tokens[place][:length].tolist()),
            log_probability=total,
            token_log_probabilities=_token_log_probabilities(
                [*finished.sums[place][:length].tolist(), total]
            ),
            score=float(finished.scores[place]),
        )

    def _truncated(self, number: int, rank: int) -> Hypothesis:
        beams, place = self._state.live, (number, rank)
        length, total = int(beams.lengths[number]), float(beams.totals[place])
        return Hypothesis(
            ids=tuple(beams.tokens[place][:length].tolist()),
            log_probability=total,
            token_log_probabilities=_token_log_probabilities(
                beams.sums[place][:length].tolist()
            ),
            score=self._config.score(total, length, float(beams.coverage[place])),
            is_finished=False,
        )


def _token_log_probabilities(sums: Sequence[float]) -> tuple[float, ...]:
    """Return the log-probability of each token; `sums` are those of the prefixes."""
    return tuple(now - before for before, now in pairwise([0.0, *sums]))
