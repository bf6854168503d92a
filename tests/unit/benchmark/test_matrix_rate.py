"""Matrix rates by a fake clock, and products by PyTorch's FLOP counter."""

import time
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transduce.benchmark.measurement import (
    REPEATS,
    SIZES,
    matrix_rate,
    measure_matrix_rates,
)

TICK = 0.25


@pytest.fixture
def known_clock(monkeypatch):
    """Clock by which every product takes one tick."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: TICK * next(ticks))


@pytest.mark.parametrize(
    ("long_s", "measured"),
    [(TICK / 2, [16]), (2 * TICK, [16, 32, 64])],
    ids=["the first is long", "none is long"],
)
@pytest.mark.usefixtures("known_clock")
def test_sizes_grow_until_a_product_is_long(cpu, long_s, measured):
    with FlopCounterMode(display=False) as counter:
        rate = matrix_rate(cpu, (16, 32, 64), long_s)
    flops = [2 * size**3 for size in measured]
    assert rate == max(flops) / TICK
    assert counter.get_total_flops() == sum(flops) * REPEATS


def test_sizes_double_by_default():
    assert [2 * size for size in SIZES[:-1]] == list(SIZES[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("known_clock")
def test_products_are_in_the_hardwares_precision(monkeypatch, cpu, dtype):
    dtypes = set()

    def multiply(left: torch.Tensor, right: torch.Tensor) -> None:
        dtypes.update({left.dtype, right.dtype})

    monkeypatch.setattr(torch, "mm", multiply)
    matrix_rate(replace(cpu, dtype=dtype), sizes=(16,))
    assert dtypes == {dtype}


def test_the_rate_is_that_of_the_fastest_product(monkeypatch, cpu):
    readings = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    assert matrix_rate(cpu, sizes=(16,)) == 2 * 16**3


@pytest.mark.usefixtures("known_clock")
def test_the_rate_is_measured_in_every_turn(cpu, take_all_turns):
    turns = take_all_turns(lambda turns: measure_matrix_rates(cpu, turns), 3)
    # A tick is so long that the first size is the only one.
    assert [turn.outcome for turn in turns] == [2 * SIZES[0] ** 3 / TICK] * 3
