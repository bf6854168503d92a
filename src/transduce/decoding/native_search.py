"""Beam search and greedy search in the native library.

`beam_search.py` and `greedy_search.py` have the same searches in Python.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.beam_search import ENDLESS, BeamSearch
from transduce.decoding.greedy_search import GreedySearch
from transduce.decoding.search import (
    Candidates,
    Coverage,
    Excluded,
    Hypothesis,
    Restrictions,
    RowTokens,
    Search,
    Sentence,
    find_candidates,
    native_logits,
)
from transduce.machine import num_threads
from transduce.native import api, check, ffi, pointer
from transduce.search_config import SearchConfig


def start_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    coverage: Coverage | None = None,
    max_hypotheses: int | None = None,
) -> Search:
    """Start greedy search if the beam size is 1, otherwise beam search.

    The native library searches if there is one. The arguments are those of
    `BeamSearch`.
    """
    is_native = api() is not None
    if config.beam_size == 1:
        greedy = NativeGreedySearch if is_native else GreedySearch
        return greedy(max_lengths, config, eos, excluded, prefixes)
    beam = NativeSearch if is_native else BeamSearch
    return beam(max_lengths, config, eos, excluded, prefixes, coverage, max_hypotheses)


class NativeSearch:
    """Beam search for several sentences that grow together, in the native library."""

    _is_greedy = False

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
        native = api()
        assert native is not None
        self._api = native.decode
        self._mask = excluded if callable(excluded) else None
        self._coverage = coverage
        self._max_hypotheses = max_hypotheses or config.beam_size
        self._config = config
        self._excluded = () if callable(excluded) else tuple(excluded)
        self.beam_size = 1 if self._is_greedy else config.beam_size
        """Hypotheses of each sentence after its first step."""
        self._group = 1
        self._handle = self._new(max_lengths, eos, prefixes or [()] * len(max_lengths))
        self.live = [Sentence() for _ in max_lengths]
        """Sentences that are not done."""
        self._numbers = list(range(len(max_lengths)))
        """Numbers of the live sentences in the library."""

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Continue with the best candidates.

        Returns the rows that continue and the token of each.
        """
        assert tuple(logits.shape[:2]) == (len(self.live), self._group)
        if isinstance(logits, np.ndarray) and logits.dtype == np.float32:
            self._grow_by_logits(logits)
        elif (numbers := native_logits(logits)) is not None:
            self._grow_by_logits(numbers)
        else:
            self._grow_by_candidates(self._find_candidates(logits))
        return self._after_step()

    def run(
        self,
        decoder: Any,
        last_ids: Int64[np.ndarray, "sentences beam"],
        max_steps: int,
        few: int,
    ) -> Int64[np.ndarray, "kept beam"]:
        """Take steps with a decoder (`td_decoder`); return the last tokens.

        It stops when at most `few` sentences are live, or after `max_steps`.
        """
        last_ids, num_steps = np.ascontiguousarray(last_ids), ffi.new("int64_t *")
        check(
            self._api.search_run(
                self._handle,
                decoder,
                pointer(last_ids, "int64_t *"),
                max_steps,
                few,
                num_threads(),
                num_steps,
            )
        )
        _, tokens = self._after_step()
        return tokens

    def join(self, other: "NativeSearch") -> None:
        """Append the sentences of another search; both must have taken a step."""
        check(self._api.search_join(self._handle, other._handle))
        self.live = [*self.live, *other.live]
        other.live = []
        self._group = other._group
        numbers = np.empty(len(self.live), np.int64)
        to = pointer(numbers, "int64_t *")
        check(self._api.search_live(self._handle, to, ffi.NULL, ffi.NULL))
        self._numbers = numbers.tolist()

    @property
    def is_masked(self) -> bool:
        """Whether the excluded tokens depend on the tokens before them."""
        return self._mask is not None

    @property
    def is_covered(self) -> bool:
        """Whether the search has a coverage penalty."""
        return self._coverage is not None

    def _new(
        self, max_lengths: Sequence[int], eos: int, prefixes: Sequence[Sequence[int]]
    ) -> Any:
        config, is_greedy = self._config, self._is_greedy
        excluded = np.array(self._excluded, dtype=np.int64)
        limits = np.array([min(each, ENDLESS) for each in max_lengths], dtype=np.int64)
        lengths = np.array([len(each) for each in prefixes], dtype=np.int64)
        tokens = np.array([i for each in prefixes for i in each], dtype=np.int64)
        assert len(lengths) == len(limits)
        bad_words = RowTokens.of(config.bad_words)
        bad_word_lengths = np.diff(bad_words.offsets)
        fields = ffi.new(
            "td_search_config *",
            {
                "beam_size": self.beam_size,
                "is_greedy": is_greedy,
                "eos": eos,
                "min_length": config.min_length,
                "num_best": 1 if is_greedy else config.num_best,
                "end_candidates": 1 if is_greedy else config.end_candidates,
                "enough_finished": min(config.enough_ends or ENDLESS, ENDLESS),
                "cut_ones_compete": config.cut_ones_compete,
                "length_penalty": config.length_penalty,
                "is_power_penalty": config.penalty == "power",
                "coverage_penalty": (
                    config.coverage_penalty if self._coverage is not None else 0.0
                ),
                "diversity": 0.0 if is_greedy else config.diversity,
                "excluded_tokens": pointer(excluded, "int64_t *"),
                "num_excluded_tokens": len(excluded),
                "no_repeat_ngram": config.no_repeat_ngram,
                "repetition_penalty": config.repetition_penalty,
                "num_bad_words": len(config.bad_words),
                "bad_word_lengths": pointer(bad_word_lengths, "int64_t *"),
                "bad_word_tokens": pointer(bad_words.tokens, "int64_t *"),
            },
        )
        handle = ffi.new("td_search **")
        check(
            self._api.search_new(
                fields,
                len(limits),
                pointer(limits, "int64_t *"),
                pointer(lengths, "int64_t *"),
                pointer(tokens, "int64_t *"),
                handle,
            )
        )
        return ffi.gc(handle[0], self._api.search_free)

    def _grow_by_logits(
        self, logits: Float32[np.ndarray, "sentences group vocab"]
    ) -> None:
        logits = np.ascontiguousarray(logits)
        mask, given_mask = None, ffi.NULL
        if self._mask is not None:
            mask = np.ascontiguousarray(self._mask())
            assert mask.shape == logits.shape
            given_mask = pointer(mask, "uint8_t *")
        coverage = self._coverage_of_step()
        check(
            self._api.search_advance(
                self._handle,
                pointer(logits, "float *"),
                logits.shape[2],
                given_mask,
                ffi.NULL if coverage is None else pointer(coverage, "double *"),
            )
        )

    def _find_candidates(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> Candidates:
        log_probabilities = np.empty((len(self.live), self._group))
        forced = np.empty(len(self.live), np.int64)
        to = pointer(log_probabilities, "double *"), pointer(forced, "int64_t *")
        check(self._api.search_next(self._handle, *to))
        return find_candidates(
            logits,
            log_probabilities,
            2 * self.beam_size,
            self._excluded if self._mask is None else self._mask,
            forced,
            0.0 if self._is_greedy else self._config.diversity,
            self._restrictions(),
        )

    def _restrictions(self) -> Restrictions | None:
        """Copy the restrictions of the next tokens, if the config has any."""
        if not self._config.has_restrictions:
            return None
        found = ffi.new("td_restrictions *")
        check(self._api.search_restrictions(self._handle, found))
        rows = len(self.live) * self._group

        def copy(offsets: Any, tokens: Any) -> RowTokens:
            ends = np.array(ffi.unpack(offsets, rows + 1), dtype=np.int64)
            ids = ffi.unpack(tokens, ends[-1]) if ends[-1] else []
            return RowTokens(offsets=ends, tokens=np.array(ids, dtype=np.int64))

        return Restrictions(
            banned=copy(found.banned_offsets, found.banned_tokens),
            repeated=copy(found.repeated_offsets, found.repeated_tokens),
            penalty=found.repetition_penalty,
        )

    def _grow_by_candidates(self, found: Candidates) -> None:
        totals, parents, tokens = map(np.ascontiguousarray, found)
        coverage = self._coverage_of_step()
        check(
            self._api.search_grow(
                self._handle,
                totals.shape[1],
                pointer(totals, "double *"),
                pointer(parents, "int64_t *"),
                pointer(tokens, "int64_t *"),
                ffi.NULL if coverage is None else pointer(coverage, "double *"),
            )
        )

    def _coverage_of_step(self) -> Float64[np.ndarray, "sentences group"] | None:
        if self._coverage is None:
            return None
        coverage = np.ascontiguousarray(self._coverage(), dtype=np.float64)
        assert coverage.shape == (len(self.live), self._group)
        return coverage

    def _after_step(
        self,
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Let sentences that are done leave; return rows and tokens of the others."""
        self._group = self.beam_size
        kept = self._api.search_num_live(self._handle)
        numbers = np.empty(kept, np.int64)
        rows, tokens = np.empty((2, kept, self.beam_size), np.int64)
        to = (pointer(each, "int64_t *") for each in (numbers, rows, tokens))
        check(self._api.search_live(self._handle, *to))
        if kept < len(self.live):
            self._leave(numbers.tolist())
        return rows, tokens

    def _leave(self, kept: list[int]) -> None:
        sentences = dict(zip(self._numbers, self.live, strict=True))
        self._numbers = kept
        self.live = [sentences.pop(number) for number in kept]
        for number, sentence in sentences.items():
            sentence.hypotheses = self._hypotheses(number)
            check(self._api.search_forget(self._handle, number))

    def _hypotheses(self, number: int) -> list[Hypothesis]:
        count = self._api.search_num_hypotheses(self._handle, number)
        count = min(count, self._max_hypotheses)
        return [self._hypothesis(number, rank) for rank in range(count)]

    def _hypothesis(self, number: int, rank: int) -> Hypothesis:
        found = ffi.new("td_hypothesis *")
        check(self._api.search_hypothesis(self._handle, number, rank, found))
        length, is_finished = found.num_tokens, bool(found.is_finished)
        return Hypothesis(
            ids=tuple(ffi.unpack(found.tokens, length)),
            log_probability=found.log_prob,
            token_log_probabilities=tuple(
                ffi.unpack(found.token_log_probs, length + is_finished)
            ),
            score=found.score,
            is_finished=is_finished,
        )


class NativeGreedySearch(NativeSearch):
    """Greedy search in the native library; settings for beams have no effect."""

    _is_greedy = True
