"""Beam search over hand-written tables; a missing word has probability zero."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from beam_kinds import (
    beam_search,
    kind_of_beam,  # noqa: F401
)
from transduce.decoding.beam_search import CandidateQuery, find_candidates
from transduce.decoding.search import Hypothesis
from transduce.errors import ConfigError
from transduce.search_config import SearchConfig

BOS, EOS, A, B, C = range(5)
VOCAB_SIZE = 5
Table = Mapping[tuple[int, ...], Mapping[int, float]]

TWO_WORDS: Table = {
    (): {A: 0.6, B: 0.3, EOS: 0.1},
    (A,): {EOS: 0.5, A: 0.3, B: 0.2},
    (B,): {EOS: 0.9, A: 0.1},
    (A, A): {EOS: 1.0},
    (A, B): {EOS: 1.0},
    (B, A): {EOS: 1.0},
}
NEVER_ENDING: Table = {
    (): {A: 0.7, B: 0.3},
    (A,): {A: 0.8, B: 0.2},
    (B,): {A: 0.5, B: 0.5},
    (A, A): {A: 1.0},
    (A, B): {A: 1.0},
    (B, A): {A: 1.0},
    (B, B): {A: 1.0},
}
LATE_END: Table = {
    (): {EOS: 0.5, A: 0.5},
    (A,): {A: 1.0},
    (A, A): {EOS: 1.0},
}
"""Both ends have probability one half; the penalty decides between them."""
CUT: Table = {
    (): {A: 0.6, EOS: 0.3, B: 0.1},
    (A,): {A: 0.9, B: 0.1},
    (B,): {A: 1.0},
}
"""With a limit of two tokens, cut hypotheses are likelier than all finished ones."""
CUT_BEHIND_ENDS: Table = {
    (): {A: 0.5, B: 0.45, C: 0.05},
    (A,): {EOS: 0.6, A: 0.4},
    (B,): {EOS: 0.6, B: 0.4},
}
"""With a limit of two tokens, the two likeliest finish and others are cut."""


class TableModel:
    """Model with one table per sentence: next-word probabilities by prefix."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._rows = [(table, ()) for table in tables]
        self.steps = 0

    def step(self, last_ids: np.ndarray) -> Tensor:
        if self.steps > 0:
            self._rows = [
                (table, (*prefix, last))
                for (table, prefix), last in zip(
                    self._rows, last_ids.flatten().tolist(), strict=True
                )
            ]
        self.steps += 1
        log_probs = torch.stack([self._log_probs(*row) for row in self._rows])
        return log_probs.view(*last_ids.shape, -1)

    def reorder(self, rows: np.ndarray) -> None:
        self._rows = [self._rows[row] for row in rows.flatten().tolist()]

    @staticmethod
    def _log_probs(table: Table, prefix: tuple[int, ...]) -> Tensor:
        # Impossible prefixes are evaluated too, and their values must not matter.
        words = table.get(prefix, {A: 0.5, EOS: 0.5})
        return torch.tensor([words.get(i, 0.0) for i in range(VOCAB_SIZE)]).log()


def search(
    tables: Sequence[Table],
    max_lengths: Sequence[int],
    *,
    beam_size: int = 4,
    alpha: float = 0.0,
    excluded: Sequence[int] = (BOS,),
    prefixes: Sequence[Sequence[int]] | None = None,
    **settings: Any,
) -> list[list[Hypothesis]]:
    return beam_search(
        TableModel(tables),
        max_lengths,
        SearchConfig(beam_size=beam_size, length_penalty=alpha, **settings),
        bos=BOS,
        eos=EOS,
        excluded=excluded,
        prefixes=prefixes,
    )


def test_the_best_hypothesis_has_the_probability_of_its_path() -> None:
    [best, *_] = search([TWO_WORDS], [5])[0]
    assert best.ids == (A,)
    assert best.is_finished
    assert best.log_probability == pytest.approx(math.log(0.6 * 0.5))


def test_hypotheses_are_ranked_by_probability_when_alpha_is_zero() -> None:
    [hypotheses] = search([TWO_WORDS], [5], beam_size=8)
    probabilities = {h.ids: math.exp(h.log_probability) for h in hypotheses}
    first_two = list(probabilities.items())[:2]
    assert first_two == [
        ((A,), pytest.approx(0.30)),
        ((B,), pytest.approx(0.27)),
    ]


def test_scores_fall_from_first_to_last() -> None:
    [hypotheses] = search([TWO_WORDS], [5], alpha=0.6)
    scores = [h.score for h in hypotheses]
    assert len(scores) > 1
    assert scores == sorted(scores, reverse=True)


def test_no_hypothesis_occurs_twice() -> None:
    [hypotheses] = search([TWO_WORDS], [5], beam_size=8, alpha=2.0)
    assert len({h.ids for h in hypotheses}) == len(hypotheses)


@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_at_most_beam_size_hypotheses_are_returned(beam_size: int) -> None:
    [hypotheses] = search([TWO_WORDS], [5], beam_size=beam_size, alpha=2.0)
    assert len(hypotheses) <= beam_size


def test_the_score_is_the_log_probability_over_the_penalty_with_the_end_token() -> None:
    [best, *_] = search([LATE_END], [5], alpha=1.0)[0]
    assert best.ids == (A, A)
    assert best.score == pytest.approx(math.log(0.5) / (8 / 6))


@pytest.mark.parametrize(("alpha", "ids"), [(0.0, ()), (0.6, (A, A))])
def test_a_penalty_prefers_the_longer_of_two_equals(
    alpha: float, ids: tuple[int, ...]
) -> None:
    assert search([LATE_END], [5], alpha=alpha)[0][0].ids == ids


@pytest.mark.parametrize(
    ("length", "alpha", "penalty"),
    [
        (1, 0.6, 1.0),
        (7, 1.0, 2.0),
        (13, 2.0, 9.0),
        (19, 0.5, 2.0),
        (30, 0.0, 1.0),
        (31, 0.6, 6**0.6),
    ],
)
def test_the_length_penalty_equals_wu_et_als_formula(
    length: int, alpha: float, penalty: float
) -> None:
    assert SearchConfig(length_penalty=alpha).divisor(length) == pytest.approx(penalty)


@pytest.mark.parametrize("max_length", [1, 2, 3])
def test_an_endless_hypothesis_is_cut_at_the_maximum_length(max_length: int) -> None:
    [hypotheses] = search([NEVER_ENDING], [max_length], beam_size=2)
    assert {len(h.ids) for h in hypotheses} == {max_length}
    assert not any(h.is_finished for h in hypotheses)


def test_a_cut_hypothesis_is_scored_by_its_tokens() -> None:
    [best, *_] = search([NEVER_ENDING], [2], beam_size=2, alpha=1.0)[0]
    assert best.ids == (A, A)
    assert best.score == pytest.approx(math.log(0.7 * 0.8) / (7 / 6))


def test_finished_hypotheses_replace_all_unfinished_ones() -> None:
    table = {(): {A: 0.99, EOS: 0.01}, (A,): {A: 0.99, B: 0.01}}
    [hypotheses] = search([table], [2], alpha=2.0)
    assert [h.ids for h in hypotheses] == [()]
    assert hypotheses[0].is_finished


def test_the_end_token_counts_towards_the_maximum_length() -> None:
    [hypotheses] = search([TWO_WORDS], [2], beam_size=8)
    assert {h.ids for h in hypotheses} == {(A,), (B,), ()}


@pytest.mark.parametrize("excluded", [(BOS, A), (BOS, B), (BOS, A, B)])
def test_an_excluded_id_is_never_chosen(excluded: tuple[int, ...]) -> None:
    [hypotheses] = search([TWO_WORDS], [5], beam_size=8, excluded=excluded)
    assert hypotheses
    assert not {i for h in hypotheses for i in h.ids} & set(excluded)


def test_the_excluded_ids_may_be_empty() -> None:
    assert search([TWO_WORDS], [5], excluded=())[0][0].ids == (A,)


def test_a_certain_sentence_is_found_by_a_beam_wider_than_the_vocabulary() -> None:
    table = {(): {A: 1.0}, (A,): {B: 1.0}, (A, B): {EOS: 1.0}}
    [hypotheses] = search([table], [9], beam_size=7)
    assert [h.ids for h in hypotheses] == [(A, B)]
    assert hypotheses[0].log_probability == 0.0


def test_a_search_over_no_sentences_is_empty() -> None:
    assert search([], []) == []


def test_search_stops_when_no_live_hypothesis_can_win() -> None:
    table = {(): {EOS: 0.9, A: 0.1}, (A,): {A: 1.0}}
    model = TableModel([table])
    config = SearchConfig(beam_size=2, length_penalty=0.0)
    beam_search(model, [50], config, bos=BOS, eos=EOS, excluded=(BOS,))
    assert model.steps == 1


@pytest.mark.parametrize(("num_best", "steps"), [(1, 1), (2, 2), (3, 3)])
def test_search_continues_until_num_best_hypotheses_are_found(
    num_best: int, steps: int
) -> None:
    table = {
        (): {EOS: 0.9, A: 0.1},
        (A,): {EOS: 0.9, A: 0.1},
        (A, A): {EOS: 0.9, A: 0.1},
        (A, A, A): {A: 1.0},
    }
    model = TableModel([table])
    config = SearchConfig(beam_size=3, num_best=num_best, length_penalty=0.0)
    [found] = beam_search(model, [50], config, bos=BOS, eos=EOS, excluded=(BOS,))
    assert model.steps == steps
    assert [h.ids for h in found] == [(A,) * n for n in range(num_best)]


def test_search_continues_while_a_live_hypothesis_can_win() -> None:
    [best, *_] = search([LATE_END], [50], alpha=0.1)[0]
    assert best.ids == (A, A)


def test_the_power_penalty_divides_by_a_power_of_the_length() -> None:
    config = SearchConfig(length_penalty=0.5, penalty="power")
    assert [config.divisor(length) for length in (1, 4, 9)] == [1.0, 2.0, 3.0]
    [best, *_] = search([LATE_END], [5], alpha=1.0, penalty="power")[0]
    assert best.score == pytest.approx(math.log(0.5) / 3)


def test_every_token_has_its_log_probability() -> None:
    for best in search([TWO_WORDS], [5], beam_size=8)[0]:
        probabilities = [
            TWO_WORDS[best.ids[:i]][token] for i, token in enumerate([*best.ids, EOS])
        ]
        assert best.token_log_probabilities == pytest.approx(np.log(probabilities))


def test_a_cut_hypothesis_has_no_log_probability_of_an_end() -> None:
    [best, *_] = search([NEVER_ENDING], [2], beam_size=2)[0]
    assert best.token_log_probabilities == pytest.approx(np.log([0.7, 0.8]))


@pytest.mark.parametrize("min_length", [0, 1, 2])
def test_no_hypothesis_is_shorter_than_the_minimum(min_length: int) -> None:
    [hypotheses] = search([TWO_WORDS], [5], beam_size=8, min_length=min_length)
    assert min(len(h.ids) for h in hypotheses) == min_length


def test_all_hypotheses_begin_with_the_prefix_of_their_sentence() -> None:
    found = search([TWO_WORDS] * 3, [5] * 3, beam_size=8, prefixes=[(B,), (), (A, B)])
    assert [h.ids for h in found[0]] == [(B,)]
    assert found[1] == search([TWO_WORDS], [5], beam_size=8)[0]
    assert [h.ids for h in found[2]] == [(A, B)]
    assert found[2][0].log_probability == pytest.approx(math.log(0.6 * 0.2))


def test_diversity_favours_children_of_other_parents() -> None:
    table = {
        (): {A: 0.6, B: 0.4},
        (A,): {A: 0.4, B: 0.3, C: 0.3},
        (B,): {A: 0.4, B: 0.3, C: 0.3},
    }
    [alike] = search([table], [2], beam_size=2)
    [diverse] = search([table], [2], beam_size=2, diversity=1.0)
    assert [h.ids[0] for h in alike] == [A, A]
    assert [h.ids[0] for h in diverse] == [A, B]
    assert diverse[1].log_probability == pytest.approx(math.log(0.4 * 0.4))


LATER_IS_BETTER: Table = {(A,) * length: {EOS: 0.5, A: 0.5} for length in range(5)} | {
    (A,) * 5: {EOS: 1.0}
}
"""With a penalty that strongly favours length: an end at each step."""


@pytest.mark.parametrize(
    ("patience", "num_best", "found"),
    [
        (None, 1, [5, 4]),
        (0.2, 1, [0]),
        (0.5, 1, [0]),
        (0.7, 1, [0]),
        (0.75, 1, [1, 0]),
        (0.5, 2, [1, 0]),
        (1, 1, [1, 0]),
        (1.5, 1, [2, 1]),
        (2, 1, [3, 2]),
        (100, 1, [5, 4]),
        (1e3, 1, [5, 4]),
    ],
)
def test_a_search_with_patience_ends_after_enough_finished_hypotheses(
    patience: float | None, num_best: int, found: Sequence[int]
) -> None:
    [hypotheses] = search(
        [LATER_IS_BETTER],
        [9],
        beam_size=2,
        alpha=6,
        patience=patience,
        num_best=num_best,
    )
    assert [len(h.ids) for h in hypotheses] == found


def test_patience_counts_ends_among_the_best_of_their_step_alone() -> None:
    table = {(): {A: 0.4, B: 0.35, EOS: 0.25}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}
    [all_ends] = search([table], [5], beam_size=2, num_best=2)
    assert [h.ids for h in all_ends] == [(A,), (B,)]
    [first] = search([table], [1], beam_size=2)
    assert [h.ids for h in first] == [()]
    [impatient] = search([table], [1], beam_size=2, patience=1)
    # None ended, so cut hypotheses take their place.
    assert [h.ids for h in impatient] == [(A,), (B,)]


def test_an_end_that_is_not_among_the_best_of_its_step_exhausts_no_patience() -> None:
    table = {
        (): {A: 0.4, B: 0.35, EOS: 0.25},
        (A,): {A: 0.6, EOS: 0.4},
        (B,): {A: 0.9, EOS: 0.1},
        (A, A): {EOS: 1.0},
        (B, A): {EOS: 1.0},
    }
    # No end in the first two steps is among the best two; by their number, search
    # would be over after the second.
    [hypotheses] = search([table], [5], beam_size=2, patience=1)
    assert [h.ids for h in hypotheses] == [(B, A), (A, A)]


def test_a_search_with_patience_ends_once_no_hypothesis_can_win() -> None:
    model, patient = TableModel([LATE_END]), TableModel([LATE_END])
    for each, patience in ((model, None), (patient, 9)):
        config = SearchConfig(beam_size=2, length_penalty=0, patience=patience)
        beam_search(each, [5], config, bos=BOS, eos=EOS, excluded=(BOS,))
    assert patient.steps == model.steps


@pytest.mark.parametrize("vocab_size", [1, 5, 63, 64, 200, 576, 577, 640, 5_000])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_best_candidates_equal_those_of_a_full_sort(
    vocab_size: int, count: int
) -> None:
    logits = torch.randn(3, 2, vocab_size)
    so_far = np.array([[0.0, -0.5], [-1.0, -1.1], [-2.0, -math.inf]])
    totals = logits.double().log_softmax(-1) + torch.from_numpy(so_far)[..., None]
    expected, indices = totals.flatten(1).topk(min(count, 2 * vocab_size))
    query = CandidateQuery(log_probabilities=so_far, count=count)
    found = find_candidates(logits.clone(), query)
    known = min(count, 2 * min(count, vocab_size))
    found_totals = found.log_probabilities
    assert found_totals.shape == (3, count)
    log_probabilities = found_totals[:, :known]
    np.testing.assert_allclose(
        log_probabilities, expected[:, :known], rtol=1e-6, atol=1e-6
    )
    assert (found_totals[:, known:] == -math.inf).all()
    is_possible = log_probabilities > -math.inf
    places = (found.parents * vocab_size + found.tokens)[:, :known]
    assert (places == indices[:, :known].numpy())[is_possible].all()


@pytest.mark.parametrize(
    ("setting", "value", "bound"),
    [
        ("beam_size", 0, "at least 1, but is 0"),
        ("beam_size", -3, "at least 1, but is -3"),
        ("num_best", 0, "from 1 to the beam size 4, but is 0"),
        ("num_best", 5, "from 1 to the beam size 4, but is 5"),
        ("patience", 0, "above 0 and at most 1,000, but is 0.0"),
        ("patience", -1.0, "above 0 and at most 1,000, but is -1.0"),
        ("patience", math.nan, "above 0 and at most 1,000, but is nan"),
        ("patience", math.inf, "above 0 and at most 1,000, but is inf"),
        ("patience", 1e300, "above 0 and at most 1,000, but is 1e[+]300"),
        ("beam_size", 100_000, "at most 1,000, but is 100000"),
        ("min_length", 10**9, "at most 100,000, but is 1000000000"),
        ("extra_length", 10**12, "at most 100,000, but is 1000000000000"),
        ("max_length", 10**9, "at most 100,001, but is 1000000000"),
        ("coverage_penalty", 1e300, "at most 1,000, but is 1e[+]300"),
        ("length_penalty", -0.1, "at least 0, but is -0.1"),
        ("extra_length", -1, "at least 0, but is -1"),
        ("min_length", -1, "at least 0, but is -1"),
        ("max_length", 0, "at least 1, but is 0"),
        ("max_length", -5, "at least 1, but is -5"),
        ("beam_size", 2.5, "a whole number, but is 2.5"),
        ("beam_size", "4", "a whole number, but is '4'"),
        ("beam_size", True, "a whole number, but is True"),
        ("max_length", 8.5, "a whole number or none, but is 8.5"),
        ("beam_size", None, "a whole number, but is None"),
        ("length_penalty", "1", "a number, but is '1'"),
        ("diversity", -0.5, "at least 0, but is -0.5"),
        ("coverage_penalty", -0.5, "at least 0, but is -0.5"),
        ("diversity", math.nan, "at least 0, but is nan"),
        ("diversity", math.inf, "at most 1,000, but is inf"),
    ],
)
def test_an_impossible_setting_is_refused(
    setting: str, value: float, bound: str
) -> None:
    with pytest.raises(ConfigError, match=rf"`search\.{setting}` must be {bound}\."):
        SearchConfig(**{setting: value})


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, (54, 60)),
        ({"extra_length": 0}, (4, 60)),
        ({"max_length": 9}, (9, 60)),
        ({"max_length": 9, "extra_length": 3}, (7, 60)),
        ({"max_length": 70, "min_length": 65}, (66, 66)),
    ],
    ids=str,
)
def test_the_maximum_length_leaves_room_for_a_required_minimum(
    settings: dict[str, int], limits: tuple[int, int]
) -> None:
    config = SearchConfig(**settings)
    assert (config.limit(4), config.limit(4, minimum=60)) == limits


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_length_penalty_is_refused() -> None:
    message = '`search.penalty` must be "gnmt" or "power", but is "none"'
    with pytest.raises(ConfigError, match=message):
        SearchConfig(penalty="none")  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("alpha", [math.nan, math.inf])
def test_a_nan_length_penalty_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=r"`search\.length_penalty` must be"):
        SearchConfig(length_penalty=alpha)


def test_a_coverage_penalty_needs_a_beam_of_at_least_two() -> None:
    with pytest.raises(ConfigError, match="at least 2 if there is a coverage penalty"):
        SearchConfig(beam_size=1, coverage_penalty=0.2)


@pytest.mark.parametrize(
    ("patience", "expected"), [(None, [()]), (1.0, [(A, A), (B, A), ()])]
)
def test_cut_hypotheses_compete_with_finished_ones_under_patience(
    patience: float | None, expected: list[tuple[int, ...]]
) -> None:
    settings: dict[str, Any] = {"penalty": "power", "alpha": 1.0}
    [found] = search([CUT], [2], beam_size=3, patience=patience, **settings)
    assert [each.ids for each in found] == expected
    assert [each.is_finished for each in found] == [ids == () for ids in expected]
    if patience is not None:
        assert found[0].score == pytest.approx(math.log(0.6 * 0.9) / 2)


def test_only_the_beams_best_cut_hypotheses_compete() -> None:
    """Search weighs twice the beam, but only the beam's best compete, as for ends."""
    [found] = search([CUT_BEHIND_ENDS], [2], beam_size=2, patience=1.0)
    assert [each.ids for each in found] == [(A,), (B,)]
    [found] = search([CUT_BEHIND_ENDS], [2], beam_size=3, patience=1.0)
    assert [each.ids for each in found] == [(A,), (B,), (A, A)]
