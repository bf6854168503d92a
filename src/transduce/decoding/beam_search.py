"""Beam search and greedy search (section 6.1).

A search reads logits and returns the rows to keep. The semantics of beam search are
those of the paper's own code: each step considers the 2 * beam_size likeliest
continuations of a sentence. Continuations with the end token become finished hypotheses
outside the beam; the best beam_size others continue. A sentence is done when no live
hypothesis can still enter its `num_best` finished ones, or, with `patience`, when
enough hypotheses have finished.

A wider beam may find a lower score: hypotheses that look better for a few steps can
push the later winner out of the beam. Without patience, and with a beam wide enough to
drop no hypothesis, the best score of all is found.

Greedy search takes the likeliest token at each step. It differs from beam search with a
beam of one, which compares finished hypotheses of different lengths.

`find_candidates` finds the likeliest next tokens of a step: in the native library for
logits in fp32 on a CPU, in `torch_candidates` for all others. All sums run in the order
of the vocabulary, so that equal logits always give equal results.

`Restrictions` excludes or penalizes tokens, given the tokens of a hypothesis so far:
`no_repeat_ngram`, `repetition_penalty` and `bad_words` of `SearchConfig` (in the native
library csrc/decode/restrictions.c).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.decoding.search import (
    Coverage,
    Decoder,
    Hypothesis,
    Sentence,
    coverage_of,
    run_search,
)
from transduce.native import RowTokens, api, check, ffi, native_logits, pointer
from transduce.search_config import SearchConfig

UNLIMITED = 2**62
"""Limit that no search reaches, of tokens or of hypotheses."""
NOT_FORCED = -1
"""Forced token of a sentence that may continue with any token."""

ExcludedTokens = Sequence[int] | Bool[np.ndarray, "sentences group vocab"]
"""Ids that never come next, or a mask of the tokens that must not follow each
hypothesis."""
Excluded = Sequence[int] | Callable[[], Bool[np.ndarray, "sentences group vocab"]]
"""Ids that never come next, or a function that returns a mask of the tokens that must
not follow the current hypotheses."""


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
        Maximum number of tokens of each sentence's output, with the end token.
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


def greedy_search(
    decoder: Decoder,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the one hypothesis of each sentence.

    The arguments are as in `beam_search`. The length penalty affects only the score.
    """
    search = GreedySearch(max_lengths, config, eos, excluded, prefixes)
    return run_search(decoder, search, bos)


class _PartialHypothesis(NamedTuple):
    """A hypothesis as its last token and the hypothesis that it continues."""

    before: "_PartialHypothesis | None"
    """None for the empty hypothesis."""
    token: int
    log_probability: float
    """Sum over all tokens; in greedy search only the last one's."""

    def prefixes(self) -> list["_PartialHypothesis"]:
        """Return its beginnings, of one token, of two and so on up to itself."""
        found = []
        last = self
        while last.before is not None:
            found.append(last)
            last = last.before
        return found[::-1]


class _BeamSentence(Sentence):
    """A sentence with its live and its finished hypotheses, best first."""

    def __init__(
        self,
        max_length: int,
        prefix: Sequence[int],
        eos: int,
        config: SearchConfig,
        max_hypotheses: int,
    ) -> None:
        super().__init__()
        self.beam = [_PartialHypothesis(None, -1, 0.0)]
        """Live hypotheses: one before the first step, then `beam_size`."""
        self.parents = [0]
        """Number, in the beam before, of each live hypothesis's parent."""
        self.coverage = [0.0]
        """Coverage of each live hypothesis; 0 without a coverage penalty."""
        self._finished: list[Hypothesis] = []
        self._num_finished = 0
        """Number of hypotheses that have finished, whether they were kept or not."""
        self._length = 0
        """Tokens of each live hypothesis."""
        self._max_length = max_length
        self._prefix = prefix
        self._eos = eos
        self._config = config
        self._max_hypotheses = max_hypotheses

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        if self._length < len(self._prefix):
            return self._prefix[self._length]
        return NOT_FORCED

    @property
    def totals(self) -> list[float]:
        """Log-probability of each live hypothesis; candidates add their token's."""
        return [each.log_probability for each in self.beam]

    def restricted(self) -> Iterator[list[int] | None]:
        """Yield the tokens of each live hypothesis; None if nothing restricts it."""
        is_forced = self.forced != NOT_FORCED
        for hypothesis, total in zip(self.beam, self.totals, strict=True):
            is_free = not is_forced and total > -math.inf
            yield [each.token for each in hypothesis.prefixes()] if is_free else None

    def grow(self, totals: list[float], parents: list[int], tokens: list[int]) -> bool:
        """Continue with the best of these candidates; return whether it is done."""
        are_ends = [
            token == self._eos and total > -math.inf
            for token, total in zip(tokens, totals, strict=True)
        ]
        if self._length >= self._config.min_length:
            self._finish(are_ends, totals, parents)
        # At most one candidate of each hypothesis ends, so there are enough others.
        others = [k for k, is_end in enumerate(are_ends) if not is_end]
        ranks = others[: self._config.beam_size]
        best = _largest([totals[k] for k in ranks])
        is_dead_end = best == -math.inf  # no token may follow
        if not is_dead_end:
            self.parents = [parents[k] for k in ranks]
            self.coverage = [self.coverage[parent] for parent in self.parents]
            self.beam = [
                _PartialHypothesis(self.beam[parents[k]], tokens[k], totals[k])
                for k in ranks
            ]
            self._length += 1
        is_at_limit = not is_dead_end and self._length >= self._max_length
        if not (is_dead_end or is_at_limit or self._is_final(best)):
            return False
        # Without finished hypotheses the live ones are returned, truncated. With
        # patience, live hypotheses at the length limit are ranked with the finished
        # ones if they were among the candidates that may end.
        num_truncated = 0
        if self._length and not self._finished:
            num_truncated = len(self.beam)
        elif is_at_limit and self._config.ranks_truncated:
            num_truncated = sum(k < self._config.end_candidates for k in ranks)
        self.hypotheses = self._ranked(num_truncated)
        return True

    def _finish(
        self, are_ends: list[bool], totals: list[float], parents: list[int]
    ) -> None:
        """Keep the best of the finished hypotheses and of the candidates that end."""
        for k, is_end in enumerate(are_ends[: self._config.end_candidates]):
            if is_end:
                self._num_finished += 1
                self._finished.append(self._hypothesis(parents[k], totals[k]))
        self._finished.sort(key=lambda each: -each.score)
        del self._finished[self._config.beam_size :]

    def _is_final(self, best: float) -> bool:
        """Return whether no live hypothesis can enter the finished ones."""
        config = self._config
        if len(self._finished) < config.num_best:
            return False
        if config.finished_limit is not None and (
            self._num_finished >= config.finished_limit
        ):
            return True
        # Log-probabilities only fall, the divisor never falls, and coverage is at most
        # 0, so no live hypothesis can score above this bound.
        bound = best / config.divisor(self._max_length)
        return self._finished[config.num_best - 1].score >= bound

    def _ranked(self, num_truncated: int) -> list[Hypothesis]:
        """Return the finished and the first live hypotheses, best first."""
        truncated = [
            self._hypothesis(number)
            for number, each in enumerate(self.beam[:num_truncated])
            if each.log_probability > -math.inf
        ]
        ranked = sorted([*self._finished, *truncated], key=lambda each: -each.score)
        return ranked[: self._max_hypotheses]

    def _hypothesis(self, number: int, total: float | None = None) -> Hypothesis:
        """Return a live hypothesis by its number in the beam.

        It is finished by an end token, with the log-probability `total`, or truncated
        if that is None.
        """
        prefixes = self.beam[number].prefixes()
        sums = [each.log_probability for each in prefixes]
        if total is not None:
            sums.append(total)
        return Hypothesis(
            ids=tuple(each.token for each in prefixes),
            log_probability=sums[-1],
            token_log_probabilities=tuple(
                now - before for before, now in pairwise([0.0, *sums])
            ),
            score=self._config.score(sums[-1], len(sums), self.coverage[number]),
            is_finished=total is not None,
        )


def _largest(values: Sequence[float]) -> float:
    """Return the largest number; NaN only if there is no other."""
    numbers = [each for each in values if not math.isnan(each)]
    return max(numbers, default=math.nan)


class _GreedySentence(_BeamSentence):
    """A sentence with its only hypothesis so far.

    Each `log_probability` belongs to one token, and is no sum.
    """

    @property
    def totals(self) -> list[float]:
        return [0.0]  # earlier tokens do not matter

    def grow(self, totals: list[float], parents: list[int], tokens: list[int]) -> bool:
        """Append the better of two tokens, but no end token before `min_length`.

        A hypothesis that no token may follow is truncated.
        """
        is_early = self._length < self._config.min_length
        chosen = 1 if is_early and tokens[0] == self._eos else 0
        is_dead_end = self._length > 0 and totals[chosen] == -math.inf
        if not is_dead_end:
            self.beam = [
                _PartialHypothesis(self.beam[0], tokens[chosen], totals[chosen])
            ]
            self._length += 1
        is_finished = not is_dead_end and tokens[chosen] == self._eos
        is_done = is_dead_end or is_finished or self._length >= self._max_length
        if is_done:
            self.hypotheses = [self._only(is_finished=is_finished)]
        return is_done

    def _only(self, *, is_finished: bool) -> Hypothesis:
        prefixes = self.beam[0].prefixes()
        total = 0.0
        for each in prefixes:
            # `sum` compensates for rounding in Python 3.12 and later.
            total += each.log_probability
        ids = tuple(each.token for each in prefixes)
        return Hypothesis(
            ids=ids[:-1] if is_finished else ids,
            log_probability=total,
            token_log_probabilities=tuple(each.log_probability for each in prefixes),
            score=self._config.score(total, len(ids)),
            is_finished=is_finished,
        )


class BeamSearch:
    """Beam search for several sentences that grow together, in Python.

    `NativeSearch` is the same search in the native library.
    """

    _kind_of_sentence: type[_BeamSentence] = _BeamSentence

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
        self._config = config
        self._excluded = excluded
        self._coverage = coverage
        max_kept = min(max_hypotheses or UNLIMITED, config.beam_size)
        prefixes = prefixes or [()] * len(max_lengths)
        self.live = [
            self._kind_of_sentence(min(limit, UNLIMITED), prefix, eos, config, max_kept)
            for limit, prefix in zip(max_lengths, prefixes, strict=True)
        ]
        """Sentences that are not done."""

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Continue with the best candidates.

        Returns the rows that continue and the token of each.
        """
        forced = np.array([each.forced for each in self.live], dtype=np.int64)
        query = CandidateQuery(
            log_probabilities=np.array([each.totals for each in self.live]),
            count=self._config.candidates,
            excluded=excluded_now(self._excluded),
            forced=forced if (forced != NOT_FORCED).any() else None,
            diversity=self._config.diversity,
            restrictions=restrictions_after(
                (ids for each in self.live for ids in each.restricted()), self._config
            ),
        )
        found = find_candidates(logits, query)
        if self._coverage is not None:
            for sentence, row in zip(self.live, self._coverage().tolist(), strict=True):
                sentence.coverage = row
        candidates = zip(*(each.tolist() for each in found), strict=True)
        are_done = [
            sentence.grow(*each)
            for sentence, each in zip(self.live, candidates, strict=True)
        ]
        kept = [number for number, is_done in enumerate(are_done) if not is_done]
        self.live = [self.live[number] for number in kept]
        first_rows = np.array(kept, dtype=np.int64)[:, None] * logits.shape[1]
        shape = len(kept), self._config.beam_size
        parents = [each.parents for each in self.live]
        tokens = [[last.token for last in each.beam] for each in self.live]
        return (
            first_rows + np.array(parents, dtype=np.int64).reshape(shape),
            np.array(tokens, dtype=np.int64).reshape(shape),
        )

    def join(self, other: "BeamSearch") -> None:
        """Append the sentences of another search; both must have taken a step."""
        self.live = [*self.live, *other.live]


class GreedySearch(BeamSearch):
    """Greedy search for several sentences that grow together, in Python.

    `NativeGreedySearch` is the same search in the native library.
    """

    _kind_of_sentence = _GreedySentence

    def __init__(
        self,
        max_lengths: Sequence[int],
        config: SearchConfig,
        eos: int,
        excluded: Excluded = (),
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Prepare the first step; settings for beams have no effect."""
        super().__init__(max_lengths, config.greedy(), eos, excluded, prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Restrictions of the next token of hypotheses, one row for each."""

    banned: RowTokens
    """Tokens that must not follow."""
    repeated: RowTokens
    """Tokens that the hypothesis has already, in ascending order."""
    penalty: float
    """Factor of the log-probability of repeated tokens."""

    def as_struct(self) -> Any:
        """Return a `td_restrictions`, which borrows the arrays."""
        arrays = {
            "banned_offsets": self.banned.offsets,
            "banned_tokens": self.banned.tokens,
            "repeated_offsets": self.repeated.offsets,
            "repeated_tokens": self.repeated.tokens,
        }
        pointers = {k: pointer(v, "int64_t *") for k, v in arrays.items()}
        fields = {**pointers, "repetition_penalty": self.penalty}
        return ffi.new("td_restrictions *", fields)


def restrictions_after(
    hypotheses: Iterable[Sequence[int] | None], config: SearchConfig
) -> Restrictions | None:
    """Return the restrictions after hypotheses; None if the config has none.

    None in place of a hypothesis means that its next token is forced, so that nothing
    restricts it.
    """
    if not config.has_restrictions:
        return None
    hypotheses = list(hypotheses)
    has_penalty = config.repetition_penalty != 1
    return Restrictions(
        banned=RowTokens.of(
            [[] if ids is None else _banned(list(ids), config) for ids in hypotheses]
        ),
        repeated=RowTokens.of(
            [sorted(set(ids)) if has_penalty and ids else [] for ids in hypotheses]
        ),
        penalty=config.repetition_penalty,
    )


def _banned(ids: list[int], config: SearchConfig) -> list[int]:
    """Return the tokens that would end a repeated n-gram or a bad word."""
    banned = [word[-1] for word in config.bad_words if _ends_with(ids, word[:-1])]
    if n := config.no_repeat_ngram:
        ngrams = (ids[end - n : end] for end in range(n, len(ids) + 1))
        banned += [ngram[-1] for ngram in ngrams if _ends_with(ids, ngram[:-1])]
    return banned


def _ends_with(ids: Sequence[int], ending: Sequence[int]) -> bool:
    start = len(ids) - len(ending)
    return start >= 0 and list(ids[start:]) == list(ending)


def excluded_now(excluded: Excluded) -> ExcludedTokens:
    """Return the tokens that must not follow the current hypotheses."""
    return excluded() if callable(excluded) else excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuery:
    """Hypotheses of several sentences, and which continuations of them to find."""

    log_probabilities: Float64[np.ndarray, "sentences group"]
    """Log-probability of each hypothesis."""
    count: int
    """Number of continuations of each sentence."""
    excluded: ExcludedTokens = ()
    forced: Int64[np.ndarray, " sentences"] | None = None
    """Only token with which each sentence may continue, or `NOT_FORCED`."""
    diversity: float = 0.0
    """Penalty in nats per rank among the continuations of one hypothesis (Li et al.,
    2016): for the ranking, the k-th best token, from k = 0, loses k times as much."""
    restrictions: Restrictions | None = None
    """Restrictions of each hypothesis; they do not apply to forced tokens."""


class Candidates(NamedTuple):
    """The likeliest continuations of each sentence, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Log-probability of the whole sequence; minus infinity where there are no more
    candidates, NaN after a hypothesis with NaN among its logits."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """Number, within the group, of the hypothesis that each candidate extends."""
    tokens: Int64[np.ndarray, "sentences candidates"]


def find_candidates(
    logits: Float[Any, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
    """Find the likeliest continuations of each sentence.

    Of equal candidates, those of earlier hypotheses come first, then lower token ids.
    Raises `IndexError` if a forced token is outside the vocabulary.
    """
    if (array := native_logits(logits)) is not None:
        return _find_natively(array, query)
    # Imported late: PyTorch takes a second to load, and the native library needs none.
    from transduce.decoding.torch_candidates import find_by_torch

    return find_by_torch(logits, query)


def _find_natively(
    logits: Float32[np.ndarray, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
    """Find candidates in the native library, as `find_candidates` does."""
    sentences, group, vocab = logits.shape
    logits = np.ascontiguousarray(logits)
    log_probabilities = np.ascontiguousarray(query.log_probabilities)
    mask, excluded = None, query.excluded
    if isinstance(excluded, np.ndarray):
        mask, excluded = np.ascontiguousarray(excluded), ()
    excluded_ids = np.array(excluded, dtype=np.int64)
    # Each array has a name, since all that the struct points to must outlive the call.
    restrictions = (
        ffi.NULL if query.restrictions is None else query.restrictions.as_struct()
    )
    totals = np.empty((sentences, query.count))
    parents, tokens = np.empty((2, sentences, query.count), np.int64)
    fields = ffi.new(
        "td_candidates *",
        {
            "sentences": sentences,
            "group": group,
            "vocab": vocab,
            "count": query.count,
            "log_probs": pointer(log_probabilities, "double *", (sentences, group)),
            "mask": pointer(mask, "uint8_t *", logits.shape),
            "excluded_tokens": pointer(excluded_ids, "int64_t *"),
            "num_excluded_tokens": len(excluded_ids),
            "forced_tokens": pointer(query.forced, "int64_t *", (sentences,)),
            "restrictions": restrictions,
            "diversity": query.diversity,
            "found_log_probs": pointer(totals, "double *"),
            "found_parents": pointer(parents, "int64_t *"),
            "found_tokens": pointer(tokens, "int64_t *"),
        },
    )
    native = api()
    assert native is not None
    check(native.decode.find_candidates(fields, pointer(logits, "float *")))
    return Candidates(totals, parents, tokens)
