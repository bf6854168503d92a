"""Grids of search settings, the best of them, and its significance."""

from dataclasses import replace

import pytest

from transduce.experiments.tuning import Cell, Grid, Tuning, paired_f1_p, tuned
from transduce.search_config import SearchConfig
from transduce.trees.bracket_f1 import SentenceCounts

NOW = SearchConfig(beam_size=4, length_penalty=0.6, num_best=3)


def test_the_models_own_search_is_the_first_of_a_grid() -> None:
    searches = Grid(beam_sizes=(1, 2), length_penalties=(0.0,)).searches(NOW)
    assert searches[0] == replace(NOW, num_best=1)
    found = [(s.beam_size, s.length_penalty) for s in searches]
    assert found == [(4, 0.6), (1, 0.6), (2, 0.0), (2, 0.6), (4, 0.0)]


def test_greedy_search_keeps_the_settings_of_a_beam() -> None:
    now = replace(NOW, patience=1.0, num_best=1)
    grid = Grid(beam_sizes=(1,), length_penalties=(0.0, 1.2), patiences=(2.0,))
    [greedy] = [each for each in grid.searches(now) if each.beam_size == 1]
    assert tuned(now, greedy) == replace(now, beam_size=1)


def test_a_coverage_penalty_is_not_tried_with_a_greedy_search() -> None:
    now = replace(NOW, coverage_penalty=0.2)
    searches = Grid(beam_sizes=(1, 2), length_penalties=(0.6,)).searches(now)
    assert [s.beam_size for s in searches] == [4, 2]
    assert {s.coverage_penalty for s in searches} == {0.2}


def test_a_greedy_model_is_tried_once() -> None:
    now = SearchConfig(beam_size=1)
    searches = Grid(beam_sizes=(1, 2), length_penalties=(0.0, 0.6)).searches(now)
    assert [s.beam_size for s in searches] == [1, 2, 2]
    assert searches[0] == now


def tuning(*scores: float) -> Tuning:
    searches = [replace(NOW, num_best=1)] + [
        replace(NOW, num_best=1, beam_size=beam, length_penalty=penalty)
        for beam, penalty in ((8, 0.6), (2, 1.2), (2, 0.3))
    ]
    cells = [Cell(search=s, score=x) for s, x in zip(searches, scores, strict=True)]
    return Tuning(
        metric="BLEU", protocol="", num_sentences=1, cells=tuple(cells), p=None
    )


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((30.0, 31.0, 30.5, 30.9), 1),
        ((30.0, 30.0, 30.0, 30.0), 0),
        ((30.0, 30.004, 30.0, 30.0), 0),
        ((30.0, 31.0, 31.0, 31.0), 3),
        ((30.0, 31.0, 31.0, 30.0), 2),
    ],
)
def test_the_best_is_the_fastest_of_equal_scores(
    scores: tuple[float, ...], best: int
) -> None:
    found = tuning(*scores)
    assert found.cells.index(found.best) == best


def test_settings_that_were_not_tuned_are_unchanged() -> None:
    best = replace(NOW, beam_size=2, length_penalty=1.0, num_best=1, extra_length=7)
    chosen = tuned(NOW, best)
    assert chosen == replace(NOW, beam_size=2, length_penalty=1.0, num_best=2)


def sentence(matched: int) -> SentenceCounts:
    return SentenceCounts(length=10, matched=matched, gold=10, predicted=10)


def test_the_p_value_distinguishes_a_gain_of_f1_from_chance() -> None:
    now = [sentence(5)] * 40
    assert paired_f1_p(now, now) == 1.0
    assert paired_f1_p(now, [sentence(7)] * 40) < 0.01
    by_luck = [sentence(5 + (2 if i == 0 else 0)) for i in range(40)]
    assert paired_f1_p(now, by_luck) > 0.5
