"""Beam search and greedy search in the native library.

They are the searches of `beam_search.py` in C. With a `NativeDecoder`, a search can
take many steps in one call. `backend.start_search` chooses between C and Python.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.beam_search import (
    UNLIMITED,
    CandidateQuery,
    Candidates,
    Excluded,
    Restrictions,
    find_candidates,
)
from transduce.decoding.search import Coverage, Hypothesis, Sentence
from transduce.machine import num_threads
from transduce.native import RowTokens, api, check, ffi, native_logits, pointer
from transduce.search_config import SearchConfig


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
        if tuple(logits.shape[:2]) != (len(self.live), self._group):
            raise ValueError(
                f"Logits must be of {len(self.live)} sentences and {self._group} "
                f"hypotheses of each, but have the shape {list(logits.shape)}."
            )
        if (array := native_logits(logits)) is not None:
            self._grow_by_logits(array)
        else:
            self._grow_by_candidates(self._find_candidates(logits))
        return self._drop_finished()

    def can_run(self, group_size: int, *, sums_attention: bool) -> bool:
        """Return whether `run` can take the next steps with a decoder.

        The decoder has `group_size` hypotheses of each sentence, and a coverage only if
        it `sums_attention`. Steps before the beams are filled, and those whose excluded
        tokens depend on Python, are taken one by one.
        """
        return (
            group_size == self.beam_size
            and self._mask is None
            and (sums_attention or self._coverage is None)
        )

    def run(
        self,
        decoder: Any,
        last_ids: Int64[np.ndarray, "sentences beam"],
        max_steps: int,
        max_live: int,
    ) -> Int64[np.ndarray, "kept beam"]:
        """Take steps with a decoder (`td_decoder`); return the last tokens.

        It stops when at most `max_live` sentences are live, or after `max_steps`.
        `can_run` must hold.
        """
        last_ids, num_steps = np.ascontiguousarray(last_ids), ffi.new("int64_t *")
        check(
            self._api.search_run(
                self._handle,
                decoder,
                pointer(last_ids, "int64_t *", (len(self.live), self.beam_size)),
                max_steps,
                max_live,
                num_threads(),
                num_steps,
            )
        )
        _, tokens = self._drop_finished()
        return tokens

    def join(self, other: "NativeSearch") -> None:
        """Append the sentences of another search; both must have taken a step."""
        check(self._api.search_join(self._handle, other._handle))
        self.live = [*self.live, *other.live]
        other.live = []
        self._group = other._group
        numbers = np.empty(len(self.live), np.int64)
        check(
            self._api.search_live(
                self._handle, pointer(numbers, "int64_t *"), ffi.NULL, ffi.NULL
            )
        )
        self._numbers = numbers.tolist()

    def _new(
        self, max_lengths: Sequence[int], eos: int, prefixes: Sequence[Sequence[int]]
    ) -> Any:
        """Return a new `td_search`, which copies the arrays that it is given."""
        limits = np.array(
            [min(each, UNLIMITED) for each in max_lengths], dtype=np.int64
        )
        prefix_tokens = RowTokens.of(prefixes)
        prefix_lengths = np.diff(prefix_tokens.offsets)
        excluded = np.array(self._excluded, dtype=np.int64)
        bad_words = RowTokens.of(self._config.bad_words)
        bad_word_lengths = np.diff(bad_words.offsets)
        fields = ffi.new(
            "td_search_config *",
            {
                **self._settings(),
                "eos": eos,
                "excluded_tokens": pointer(excluded, "int64_t *"),
                "num_excluded_tokens": len(excluded),
                "num_bad_words": len(bad_word_lengths),
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
                pointer(prefix_lengths, "int64_t *", limits.shape),
                pointer(prefix_tokens.tokens, "int64_t *"),
                handle,
            )
        )
        return ffi.gc(handle[0], self._api.search_free)

    def _settings(self) -> dict[str, int | float]:
        """Return the numbers of the config as fields of `td_search_config`."""
        config, is_greedy = self._config, self._is_greedy
        return {
            "beam_size": self.beam_size,
            "is_greedy": is_greedy,
            "min_length": config.min_length,
            "num_best": 1 if is_greedy else config.num_best,
            "end_candidates": 1 if is_greedy else config.end_candidates,
            "finished_limit": min(config.finished_limit or UNLIMITED, UNLIMITED),
            "ranks_truncated": config.ranks_truncated,
            "length_penalty": config.length_penalty,
            "is_power_penalty": config.penalty == "power",
            "coverage_penalty": (
                0.0 if self._coverage is None else config.coverage_penalty
            ),
            "diversity": 0.0 if is_greedy else config.diversity,
            "no_repeat_ngram": config.no_repeat_ngram,
            "repetition_penalty": config.repetition_penalty,
        }

    def _grow_by_logits(
        self, logits: Float32[np.ndarray, "sentences group vocab"]
    ) -> None:
        """Take a step whose candidates the library finds."""
        logits = np.ascontiguousarray(logits)
        mask = None
        if self._mask is not None:
            mask = np.ascontiguousarray(self._mask())
        coverage = self._coverage_of_step()
        check(
            self._api.search_grow_by_logits(
                self._handle,
                pointer(logits, "float *"),
                logits.shape[2],
                pointer(mask, "uint8_t *", logits.shape),
                pointer(coverage, "double *", logits.shape[:2]),
            )
        )

    def _find_candidates(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> Candidates:
        """Find the candidates of logits that the library cannot read."""
        log_probabilities = np.empty((len(self.live), self._group))
        forced = np.empty(len(self.live), np.int64)
        check(
            self._api.search_query(
                self._handle,
                pointer(log_probabilities, "double *"),
                pointer(forced, "int64_t *"),
            )
        )
        query = CandidateQuery(
            log_probabilities=log_probabilities,
            count=2 * self.beam_size,
            excluded=self._excluded if self._mask is None else self._mask(),
            forced=forced,
            diversity=0.0 if self._is_greedy else self._config.diversity,
            restrictions=self._restrictions(),
        )
        return find_candidates(logits, query)

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
        """Take a step with candidates found outside the library."""
        totals, parents, tokens = map(np.ascontiguousarray, found)
        coverage = self._coverage_of_step()
        check(
            self._api.search_grow_by_candidates(
                self._handle,
                totals.shape[1],
                pointer(totals, "double *"),
                pointer(parents, "int64_t *"),
                pointer(tokens, "int64_t *"),
                pointer(coverage, "double *", (len(self.live), self._group)),
            )
        )

    def _coverage_of_step(self) -> Float64[np.ndarray, "sentences group"] | None:
        if self._coverage is None:
            return None
        return np.ascontiguousarray(self._coverage(), dtype=np.float64)

    def _drop_finished(
        self,
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        """Drop sentences that are done; return rows and tokens of the others."""
        self._group = self.beam_size
        num_live = self._api.search_num_live(self._handle)
        numbers = np.empty(num_live, np.int64)
        rows, tokens = np.empty((2, num_live, self.beam_size), np.int64)
        arrays = (pointer(each, "int64_t *") for each in (numbers, rows, tokens))
        check(self._api.search_live(self._handle, *arrays))
        if num_live < len(self.live):
            sentences = dict(zip(self._numbers, self.live, strict=True))
            self._numbers = numbers.tolist()
            self.live = [sentences.pop(number) for number in self._numbers]
            for number, sentence in sentences.items():  # those that are done
                sentence.hypotheses = self._hypotheses(number)
                check(self._api.search_forget(self._handle, number))
        return rows, tokens

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
