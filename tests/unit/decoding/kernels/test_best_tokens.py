import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.decoding import candidates
from transduce.decoding.candidates import likeliest
from transduce.decoding.kernels.best_tokens import best_tokens, can_find_best
from transduce.decoding.kernels.library import kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")


@given(
    vocab=st.integers(1, 300),
    count=st.integers(1, 12),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.1, 1.0, 50.0]),
    masked=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_they_are_those_of_pytorch(vocab, count, seed, scale, masked):
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, 3, vocab, generator=rng)
    excluded = (
        torch.rand(2, 3, vocab, generator=rng) < 0.3
        if masked
        else list(range(0, vocab, 7))
    )
    forced = {1: vocab // 2}
    found = likeliest(logits, count, excluded, forced)
    expected = candidates._found_by_torch(logits, count, excluded, forced)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    is_there = np.isfinite(expected[0])
    assert (found[1] == expected[1])[is_there].all()


def test_their_logarithm_of_sums_is_that_of_pytorch():
    logits = 30 * torch.randn(4, 2, 3000)
    found = best_tokens(logits, 3, ()).log_sums
    expected = logits.double().logsumexp(dim=-1)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


def test_of_equal_ones_the_first_come_first():
    found = best_tokens(torch.zeros(1, 1, 100), 3, (0, 2))
    assert found.tokens.tolist() == [[[1, 3, 4]]]
    np.testing.assert_allclose(found.values, -np.log(100), rtol=1e-6)


def test_what_is_impossible_is_nobodys_candidate():
    logits = torch.full((1, 1, 40), -torch.inf)
    logits[..., 5] = 2.0
    found = best_tokens(logits, 2, ())
    assert found.values.tolist() == [[[0.0, -np.inf]]]
    assert found.tokens[0, 0, 0] == 5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_where_there_is_no_distribution_nothing_is_a_number(bad):
    logits = torch.randn(1, 2, 50)
    logits[0, 1, 20] = bad
    found = best_tokens(logits, 2, ())
    assert np.isfinite(found.values[0, 0]).all()
    assert np.isnan(found.values[0, 1]).all()


def test_all_impossible_is_no_distribution_either():
    found = best_tokens(torch.full((1, 1, 9), -torch.inf), 2, ())
    assert np.isnan(found.values).all()


def test_the_kernel_takes_fp32_of_a_cpu_alone():
    logits = torch.randn(1, 1, 9)
    assert can_find_best(logits)
    assert not can_find_best(logits.bfloat16())
    assert not can_find_best(logits.to("meta"))
