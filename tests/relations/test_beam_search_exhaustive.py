"""Beam search against brute force on a random model of four words."""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from beam_kinds import (
    beam_search,
    greedy_search,
    kind_of_beam,  # noqa: F401
)
from transduce.decoding.search import Hypothesis
from transduce.search_config import SearchConfig

BOS, EOS, VOCAB_SIZE = 0, 1, 6
WORDS = range(2, VOCAB_SIZE)
MAX_LENGTH = 4
WIDE = 160
"""Search considers twice as many candidates: all 4^3 * 5 of the last step."""
ALPHAS = [0.0, 0.6, 1.0, 2.0]
SEEDS = range(6)


@cache
def log_probs(seed: int, prefix: tuple[int, ...]) -> tuple[float, ...]:
    """Random distribution of the next word, a function of seed and prefix."""
    random = np.random.default_rng((seed, *prefix))
    weights = random.dirichlet(np.full(VOCAB_SIZE - 1, 0.7)) + 1e-9
    return (-np.inf, *np.log(weights / weights.sum()).tolist())


class RandomModel:
    """Model whose sentences each have a seed of their own."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._rows = [(seed, ()) for seed in seeds]
        self._is_first = True

    def step(self, last_ids: np.ndarray) -> Tensor:
        # The first token is the start token, which all prefixes share.
        grown = [] if self._is_first else last_ids.flatten().tolist()
        self._is_first = False
        if grown:
            self._rows = [
                (seed, (*prefix, last))
                for (seed, prefix), last in zip(self._rows, grown, strict=True)
            ]
        rows = [log_probs(*row) for row in self._rows]
        return torch.tensor(rows, dtype=torch.float64).float().view(*last_ids.shape, -1)

    def reorder(self, rows: np.ndarray) -> None:
        self._rows = [self._rows[row] for row in rows.flatten().tolist()]


def log_probability(seed: int, ids: Sequence[int]) -> float:
    return sum(log_probs(seed, tuple(ids[:i]))[ids[i]] for i in range(len(ids)))


def all_finished(max_length: int) -> Iterator[tuple[int, ...]]:
    for length in range(max_length):
        yield from ((*words, EOS) for words in product(WORDS, repeat=length))


def exhaustive(seed: int, alpha: float, max_length: int = MAX_LENGTH) -> list[float]:
    """Scores of all finished sequences, best first."""
    scores = (
        log_probability(seed, ids)
        / SearchConfig(length_penalty=alpha).divisor(len(ids))
        for ids in all_finished(max_length)
    )
    return sorted(scores, reverse=True)


def without_early_stop(
    seed: int, beam_size: int, alpha: float, max_length: int
) -> float | None:
    """Best score of a beam search that always continues to the maximum length."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished = []
    for length in range(1, max_length + 1):
        candidates = sorted(
            (
                (total + value, (*ids, token))
                for total, ids in alive
                for token, value in enumerate(log_probs(seed, ids))
                if token != BOS
            ),
            reverse=True,
        )[: 2 * beam_size]
        finished += [
            total / SearchConfig(length_penalty=alpha).divisor(length)
            for total, ids in candidates
            if ids[-1] == EOS
        ]
        alive = [c for c in candidates if c[1][-1] != EOS][:beam_size]
    return max(finished, default=None)


def search(
    seeds: Sequence[int], beam_size: int, alpha: float, max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    return beam_search(
        RandomModel(seeds),
        max_lengths,
        SearchConfig(beam_size=beam_size, length_penalty=alpha),
        bos=BOS,
        eos=EOS,
        excluded=(BOS,),
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int, alpha: float) -> None:
    [[best, *_]] = search([seed], WIDE, alpha, [MAX_LENGTH])
    assert best.score == pytest.approx(exhaustive(seed, alpha)[0], abs=1e-5)
    assert log_probability(seed, [*best.ids, EOS]) == pytest.approx(
        best.log_probability, abs=1e-5
    )


@given(
    seed=st.integers(0, 10_000),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from(ALPHAS),
    max_length=st.integers(1, 5),
)
@settings(max_examples=60, derandomize=True, database=None)
def test_early_stopping_keeps_the_best_hypothesis(
    seed: int, beam_size: int, alpha: float, max_length: int
) -> None:
    [[best, *_]] = search([seed], beam_size, alpha, [max_length])
    expected = without_early_stop(seed, beam_size, alpha, max_length)
    assert best.is_finished == (expected is not None)
    if expected is not None:
        assert best.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beam_size", [1, 3, 8])
def test_the_result_of_a_sentence_does_not_depend_on_its_batch(
    beam_size: int, alpha: float
) -> None:
    seeds, limits = [3, 1, 4, 15, 9], [4, 1, 6, 2, 5]
    together = search(seeds, beam_size, alpha, limits)
    alone = [
        search([seed], beam_size, alpha, [limit])[0]
        for seed, limit in zip(seeds, limits, strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_hypothesis_is_finished_distinct_and_scored_by_its_path(
    seed: int, alpha: float
) -> None:
    [hypotheses] = search([seed], 6, alpha, [MAX_LENGTH])
    expected = [
        log_probability(seed, [*h.ids, EOS])
        / SearchConfig(length_penalty=alpha).divisor(len(h.ids) + 1)
        for h in hypotheses
    ]
    assert [h.score for h in hypotheses] == pytest.approx(expected, abs=1e-5)
    assert expected == sorted(expected, reverse=True)
    assert len({h.ids for h in hypotheses}) == len(hypotheses)


CROWDED_OUT = {
    (): {2: 0.4, 3: 0.35, 4: 0.25},
    (2,): {2: 0.3, 3: 0.25, 4: 0.25, EOS: 0.2},
    (3,): {2: 0.5, 3: 0.5},
    (2, 2): {EOS: 1.0},
    **{(3, word): {2: 0.34, 3: 0.33, 4: 0.33} for word in (2, 3)},
}
"""After two words, prefixes that begin with 3 lead, but they end badly."""


def crowded_out(seed: int, prefix: tuple[int, ...]) -> tuple[float, ...]:
    words = CROWDED_OUT.get(prefix, {EOS: 1.0})
    return tuple(math.log(words.get(i, 0.0) or 1e-30) for i in range(VOCAB_SIZE))


def test_a_beam_of_two_can_be_worse_than_greedy_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds for every beam search with these semantics."""
    monkeypatch.setattr(sys.modules[__name__], "log_probs", crowded_out)
    [of_greedy] = greedy([0], 0.0, 9)
    assert of_greedy.ids == (2, 2)
    assert of_greedy.score == pytest.approx(math.log(0.4 * 0.3))
    for beam_size, probability in ((1, 0.12), (2, 0.35 * 0.5 * 0.34), (4, 0.25)):
        [[best, *_]] = search([0], beam_size, 0.0, [9])
        assert best.score == pytest.approx(math.log(probability), abs=1e-5)


def greedy_path(seed: int, max_length: int) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    while len(ids) < max_length and (not ids or ids[-1] != EOS):
        values = log_probs(seed, ids)
        ids = (*ids, values.index(max(values)))
    return ids


def greedy(seeds: Sequence[int], alpha: float, max_length: int) -> list[Hypothesis]:
    found = greedy_search(
        RandomModel(seeds),
        [max_length] * len(seeds),
        SearchConfig(length_penalty=alpha),
        bos=BOS,
        eos=EOS,
        excluded=(BOS,),
    )
    return [hypothesis for [hypothesis] in found]


@pytest.mark.parametrize("max_length", [1, 3, 9])
def test_greedy_search_takes_the_likeliest_word_at_each_step(max_length: int) -> None:
    seeds = list(range(12))
    found = greedy(seeds, 0.6, max_length)
    paths = [greedy_path(seed, max_length) for seed in seeds]
    assert [(*h.ids, EOS) if h.is_finished else h.ids for h in found] == paths
    assert [h.log_probability for h in found] == pytest.approx(
        [log_probability(s, p) for s, p in zip(seeds, paths, strict=True)], abs=1e-5
    )


@given(seed=st.integers(0, 10_000), alpha=st.sampled_from(ALPHAS))
@settings(max_examples=40, derandomize=True, database=None)
def test_a_beam_of_one_or_of_all_is_never_worse_than_greedy_search(
    seed: int, alpha: float
) -> None:
    """Beam search may be better: it keeps an end that was second best in its step."""
    for beam_size, max_length in ((1, 30), (WIDE, MAX_LENGTH)):
        [of_greedy] = greedy([seed], alpha, max_length)
        [[of_beam, *_]] = search([seed], beam_size, alpha, [max_length])
        if of_greedy.is_finished:  # else it may be likelier because it has no end
            assert of_beam.score >= of_greedy.score - 1e-6
