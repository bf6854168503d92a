import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from beam_kinds import (
    greedy_search,
    kind_of_beam,  # noqa: F401
)
from transduce.decoding.search import Hypothesis
from transduce.search_config import SearchConfig

BOS, EOS, A, B = range(4)


class Chain:
    """Model whose next token depends only on the one before it."""

    TABLE = torch.tensor(
        [
            [0.0, 0.1, 0.6, 0.3],
            [0.0, 1.0, 0.0, 0.0],
            [0.0, 0.2, 0.1, 0.7],
            [0.5, 0.4, 0.1, 0.0],
        ]
    ).log()

    def __init__(self) -> None:
        self.rows_kept: list[list[list[int]]] = []

    def step(self, last_ids: np.ndarray) -> Tensor:
        return self.TABLE[torch.from_numpy(last_ids)]

    def reorder(self, rows: np.ndarray) -> None:
        self.rows_kept.append(rows.tolist())


def search(
    max_lengths: Sequence[int],
    alpha: float = 0.0,
    excluded: Sequence[int] = (BOS,),
    min_length: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    found = greedy_search(
        Chain(),
        max_lengths,
        SearchConfig(length_penalty=alpha, min_length=min_length),
        bos=BOS,
        eos=EOS,
        excluded=excluded,
        prefixes=prefixes,
    )
    return [hypothesis for [hypothesis] in found]


def test_each_word_is_the_likeliest_after_the_one_before() -> None:
    [found] = search([9])
    assert found.ids == (A, B)
    assert found.is_finished
    assert found.log_probability == pytest.approx(math.log(0.6 * 0.7 * 0.4))


def test_the_length_penalty_counts_the_end_token() -> None:
    [found] = search([9], alpha=1.0)
    assert found.score == pytest.approx(math.log(0.6 * 0.7 * 0.4) / (8 / 6))


@pytest.mark.parametrize(("max_length", "ids"), [(1, (A,)), (2, (A, B))])
def test_an_endless_hypothesis_is_cut_at_the_maximum_length(
    max_length: int, ids: tuple[int, ...]
) -> None:
    [found] = search([max_length])
    assert found.ids == ids
    assert not found.is_finished


def test_a_cut_hypothesis_is_scored_by_its_tokens() -> None:
    [found] = search([2], alpha=1.0)
    assert found.score == pytest.approx(math.log(0.6 * 0.7) / (7 / 6))


def test_a_hypothesis_may_end_at_the_maximum_length() -> None:
    [found] = search([3])
    assert found.is_finished


@pytest.mark.parametrize(
    ("excluded", "ids"), [((), (A, B, BOS)), ((BOS, A), (B,)), ((BOS, B), (A,))]
)
def test_an_excluded_id_is_never_chosen(
    excluded: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    [found] = search([3], excluded=excluded)
    assert found.ids == ids


def test_finished_sentences_leave_the_batch() -> None:
    model = Chain()
    greedy_search(model, [1, 9, 2], SearchConfig(), bos=BOS, eos=EOS, excluded=(BOS,))
    assert model.rows_kept == [[[1], [2]], [[0]]]


def test_the_result_of_a_sentence_does_not_depend_on_the_others() -> None:
    together = search([1, 9, 2, 3])
    assert together == [search([limit])[0] for limit in (1, 9, 2, 3)]


def test_a_search_over_no_sentences_is_empty() -> None:
    assert search([]) == []


def test_an_end_does_not_come_before_the_minimum_length() -> None:
    [found] = search([9], min_length=4)
    assert len(found.ids) >= 4
    assert found.ids[:2] == (A, B)
    assert found.log_probability == pytest.approx(sum(found.token_log_probabilities))


def test_a_prefix_is_kept_and_counted() -> None:
    [found, other] = search([9, 9], prefixes=[(B, A), ()])
    assert found.ids[:2] == (B, A)
    assert found.token_log_probabilities[:2] == pytest.approx(
        [math.log(0.3), math.log(0.1)]
    )
    assert [other] == search([9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_logits_give_a_nan_score_even_if_one_token_is_allowed(dtype) -> None:
    class Damaged(Chain):
        TABLE = torch.full((4, 4), math.nan, dtype=dtype)

    [[found]] = greedy_search(
        Damaged(), [3], SearchConfig(), bos=BOS, eos=EOS, excluded=(BOS, A, B)
    )
    assert math.isnan(found.log_probability)
