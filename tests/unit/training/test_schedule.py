"""Equation 3: it rises to the paper's peak, then falls with the root of the step."""

import pytest

from transduce.training.config import TrainingConfig
from transduce.training.schedule import learning_rate, scheduled_rate


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_peak_is_the_papers(d_model, peak):
    assert learning_rate(4_000, d_model, 4_000) == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize("step", [1, 3_999, 4_001, 100_000])
def test_no_other_step_has_a_higher_rate(step):
    assert learning_rate(step, 512, 4_000) < learning_rate(4_000, 512, 4_000)


@pytest.mark.parametrize(
    ("step", "share"),
    [(1, 1 / 4_000), (1_000, 1 / 4), (2_000, 1 / 2), (16_000, 1 / 2), (64_000, 1 / 4)],
)
def test_the_rate_is_a_share_of_the_peak(step, share):
    peak = learning_rate(4_000, 512, 4_000)
    assert learning_rate(step, 512, 4_000) == pytest.approx(share * peak, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 1.7469e-7), (2_000, 3.4939e-4), (100_000, 1.3975e-4)]
)
def test_the_rate_equals_equation_3_by_hand(step, rate):
    assert learning_rate(step, 512, 4_000) == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("step", [1, 100, 10_000, 200_000])
def test_the_scale_is_a_factor(step):
    config = TrainingConfig(warmup_steps=400, learning_rate_scale=0.25)
    expected = learning_rate(step, 64, 400) / 4
    assert scheduled_rate(step, 64, config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "share"),
    [(1, 1), (600, 1), (601, 400 / 401), (800, 201 / 401), (1_000, 1 / 401)],
)
def test_the_rate_falls_linearly_in_the_last_steps(step, share):
    config = TrainingConfig(steps=1_000, warmup_steps=100, cooldown_share=0.4)
    expected = learning_rate(step, 64, 100) * share
    assert scheduled_rate(step, 64, config) == pytest.approx(expected, rel=1e-12)
