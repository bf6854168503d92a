"""Shares of sentences of about equal cost, one for each process."""

from collections.abc import Callable, Sequence
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.decoding.search import (
    RunningSearch,
    SearchTask,
    StepRows,
    batch_positions,
)
from transduce.decoding.worker_pool import (
    LATE_FRACTION,
    MAX_LATE_SHARES,
    MIN_SHARE,
    mixed_shares,
    shares_of,
    similar_shares,
)

Sharing = Callable[[Sequence[int], StepRows, int], list[list[int]]]
BEAM = StepRows(per_sentence=4, overhead=16)


def cost(steps: Sequence[int], rows: StepRows, share: Sequence[int]) -> int:
    own = [steps[i] for i in share]
    return rows.per_sentence * sum(own) + rows.overhead * max(own)


@pytest.mark.parametrize("sharing", [mixed_shares, similar_shares])
@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_shares_take_about_equally_long(sharing: Sharing, number: int) -> None:
    steps = np.random.default_rng(1).integers(1, 60, 64).tolist()
    shares = sharing(steps, BEAM, number)
    assert sorted(chain.from_iterable(shares)) == list(range(64))
    assert len(shares) == number
    costs = [cost(steps, BEAM, share) for share in shares]
    # In shares of consecutive sentences, the last one takes the rest.
    apart = max(steps) if sharing is mixed_shares else number * max(steps)
    assert max(costs) - min(costs) <= apart * BEAM.per_sentence


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    rows=st.builds(StepRows, st.integers(1, 8), st.integers(0, 32)),
    number=st.integers(1, 6),
)
def test_shares_of_similar_length_have_the_least_maximum_cost(
    steps: list[int], rows: StepRows, number: int
) -> None:
    shares = similar_shares(steps, rows, number)
    assert sorted(chain.from_iterable(shares)) == list(range(len(steps)))
    assert 1 <= len(shares) <= number
    in_order = [steps[i] for share in shares for i in share]
    assert in_order == sorted(steps, reverse=True)
    dearest = max(cost(steps, rows, share) for share in shares)
    assert dearest == least_of_dearest(sorted(steps, reverse=True), rows, number)


def least_of_dearest(steps: list[int], rows: StepRows, number: int) -> int:
    """Least possible cost of the dearest share, by trying every way to cut the list."""
    best = {(len(steps), left): 0 for left in range(number + 1)}
    for begin in range(len(steps) - 1, -1, -1):
        for left in range(1, number + 1):
            best[begin, left] = min(
                max(cost(steps, rows, range(begin, end)), best[end, left - 1])
                for end in range(begin + 1, len(steps) + 1)
            )
        best[begin, 0] = 10**9
    return best[0, number]


def test_shares_of_similar_length_take_fewer_steps_in_all() -> None:
    steps = [*[40] * 6, *[10] * 40]
    taken = {
        sharing: sum(max(steps[i] for i in share) for share in sharing(steps, BEAM, 2))
        for sharing in (mixed_shares, similar_shares)
    }
    assert taken == {mixed_shares: 80, similar_shares: 50}


def test_a_higher_fixed_cost_per_step_puts_fewer_sentences_with_the_longest() -> None:
    steps = list(range(41, 9, -1))
    with_longest = [
        len(similar_shares(steps, StepRows(4, overhead), 2)[0])
        for overhead in (0, 32, 64, 128)
    ]
    assert with_longest == sorted(with_longest, reverse=True)
    assert len(set(with_longest)) == 4


@pytest.mark.parametrize(
    ("sentences", "number"),
    [(0, 1), (1, 1), (2 * MIN_SHARE - 1, 1), (2 * MIN_SHARE, 2), (1_000, 4)],
)
def test_no_share_is_smaller_than_the_minimum(sentences: int, number: int) -> None:
    task = SearchTask(
        sentences=range(sentences),
        lengths=[5] * sentences,
        capacity=2_048,
        start=_unused,
    )
    shares = shares_of(task, 4)
    assert len(shares) == number
    assert sorted(chain.from_iterable(shares)) == list(range(sentences))


def test_short_sentences_of_a_large_task_wait_for_the_first_free_process() -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 2_000).tolist()
    task = SearchTask(
        sentences=range(2_000), lengths=lengths, capacity=512, start=_unused
    )
    shares = shares_of(task, 2)
    assert sorted(chain.from_iterable(shares)) == list(range(2_000))
    sizes = [sum(lengths[i] for i in share) for share in shares]
    assert len(shares) == 2 + 2 * MAX_LATE_SHARES
    assert abs(sizes[0] - sizes[1]) <= 60
    assert 0.19 < sum(sizes[2:]) / sum(sizes) <= LATE_FRACTION
    longest_late = max(lengths[i] for share in shares[2:] for i in share)
    assert longest_late <= min(lengths[i] for share in shares[:2] for i in share)
    # The last share, which may end last, is the smallest.
    assert min(sizes) == sizes[-1]


@given(
    lengths=st.lists(st.integers(1, 300), min_size=16, max_size=200),
    capacity=st.integers(0, 600),
    number=st.integers(2, 6),
)
def test_each_sentence_is_in_one_share_of_a_task(
    lengths: list[int], capacity: int, number: int
) -> None:
    task = SearchTask(
        sentences=range(len(lengths)),
        lengths=lengths,
        capacity=capacity,
        start=_unused,
    )
    shares = shares_of(task, number)
    assert sorted(chain.from_iterable(shares)) == list(range(len(lengths)))
    assert all(shares)


def _unused(_: object, __: object) -> RunningSearch:
    raise AssertionError


@pytest.mark.parametrize(
    ("device", "gibibytes", "positions"),
    [("cpu", 0, 2_048), ("cuda", 1, 2_048), ("cuda", 16, 16_384), ("cuda", 80, 81_920)],
)
def test_a_larger_gpu_decodes_more_together(
    device: str, gibibytes: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(total_memory=gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert batch_positions(device) == positions
