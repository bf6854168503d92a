"""Equation 3: it rises to the paper's peak, then falls with the root of the step."""

from dataclasses import replace

import pytest

from transduce.training.config import TrainingConfig
from transduce.training.optimizer import (
    inverse_sqrt_rate,
    schedule_factor,
    scheduled_rate,
)


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_peak_is_the_papers(d_model, peak):
    assert inverse_sqrt_rate(4_000, d_model, 4_000) == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize("step", [1, 3_999, 4_001, 100_000])
def test_no_other_step_has_a_higher_rate(step):
    assert inverse_sqrt_rate(step, 512, 4_000) < inverse_sqrt_rate(4_000, 512, 4_000)


@pytest.mark.parametrize(
    ("step", "share"),
    [(1, 1 / 4_000), (1_000, 1 / 4), (2_000, 1 / 2), (16_000, 1 / 2), (64_000, 1 / 4)],
)
def test_the_rate_is_a_share_of_the_peak(step, share):
    peak = inverse_sqrt_rate(4_000, 512, 4_000)
    assert inverse_sqrt_rate(step, 512, 4_000) == pytest.approx(share * peak, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 1.7469e-7), (2_000, 3.4939e-4), (100_000, 1.3975e-4)]
)
def test_the_rate_equals_equation_3_by_hand(step, rate):
    assert inverse_sqrt_rate(step, 512, 4_000) == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("step", [1, 100, 10_000, 200_000])
def test_the_scale_is_a_factor(step):
    config = TrainingConfig(warmup_steps=400, learning_rate_scale=0.25)
    expected = inverse_sqrt_rate(step, 64, 400) / 4
    assert scheduled_rate(step, 64, config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "share"),
    [(1, 1), (600, 1), (601, 400 / 401), (800, 201 / 401), (1_000, 1 / 401)],
)
def test_the_rate_falls_linearly_in_the_last_steps(step, share):
    config = TrainingConfig(steps=1_000, warmup_steps=100, cooldown_share=0.4)
    expected = inverse_sqrt_rate(step, 64, 100) * share
    assert scheduled_rate(step, 64, config) == pytest.approx(expected, rel=1e-12)


HALVING = {"schedule": "halving", "decay_from": 1_000, "decay_steps": 200}
HOLD = {"schedule": "warm-hold-decay", "hold_steps": 300}


@pytest.mark.parametrize(
    ("settings", "step", "share"),
    [
        *(
            ({"schedule": name}, step, share)
            for name in ("constant", "plateau")
            for step, share in [(1, 1 / 100), (50, 1 / 2), (100, 1), (10**6, 1)]
        ),
        *(
            (HOLD, step, share)
            for step, share in [
                (1, 1 / 100),
                (99, 99 / 100),
                (100, 1),
                (400, 1),
                (401, (400 / 401) ** 0.5),
                (1_600, 1 / 2),
            ]
        ),
        *(
            (HALVING, step, share)
            for step, share in [
                (50, 1 / 2),
                (999, 1),
                (1_000, 1 / 2),
                (1_199, 1 / 2),
                (1_200, 1 / 4),
                (1_400, 1 / 8),
            ]
        ),
    ],
)
def test_a_schedule_is_a_share_of_its_peak(settings, step, share):
    config = TrainingConfig(warmup_steps=100, learning_rate=0.5, **settings)
    assert schedule_factor(step, config) == pytest.approx(share, rel=1e-12)
    rate = scheduled_rate(step, 64, replace(config, steps=10**9))
    assert rate == pytest.approx(0.5 * share, rel=1e-12)


def test_halving_ends_with_the_updates_by_likelihood():
    config = TrainingConfig(
        warmup_steps=100,
        learning_rate=0.5,
        steps=2_000,
        reward="gleu",
        reward_steps=700,
        **HALVING,
    )
    assert [schedule_factor(step, config) for step in (1_199, 1_300, 2_000)] == [
        1 / 2,
        1 / 4,
        1 / 4,
    ]


def test_a_schedule_without_warmup_begins_at_its_peak():
    config = TrainingConfig(schedule="constant", learning_rate=0.5, warmup_steps=1)
    assert scheduled_rate(1, 64, config) == 0.5


def test_sgd_after_adam_has_a_rate_of_its_own():
    config = TrainingConfig(
        warmup_steps=1,
        learning_rate=2e-4,
        sgd_from_step=61,
        sgd_learning_rate=0.5,
        **HALVING,
    )
    rates = [scheduled_rate(step, 64, config) for step in (60, 61, 999, 1_000)]
    assert rates == [2e-4, 0.5, 0.5, 0.25]


def test_the_cooldown_applies_to_every_schedule():
    config = TrainingConfig(
        steps=10,
        warmup_steps=1,
        schedule="constant",
        learning_rate=1.0,
        cooldown_share=0.4,
    )
    assert scheduled_rate(10, 64, config) == pytest.approx(1 / 5)
