import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.decoding.candidates.by_torch import found_by_torch
from transduce.decoding.kernels.compiled_candidates import (
    CompiledCandidates,
    for_kernel,
)
from transduce.decoding.kernels.library import kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")


def after_nothing(logits: Tensor, count: int, excluded=()) -> list[np.ndarray]:
    find, totals = CompiledCandidates(count, excluded, 0.0), np.zeros(logits.shape[:2])
    return list(find(logits.numpy(), totals, None, None))


@given(
    vocab=st.integers(1, 300) | st.sampled_from([1023, 1024, 1025, 2049, 3000]),
    count=st.integers(1, 12),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.1, 1.0, 50.0]),
    diversity=st.sampled_from([0.0, 0.7]),
    masked=st.booleans(),
    is_forced=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_they_are_those_of_pytorch(
    vocab, count, seed, scale, diversity, masked, is_forced
):
    rng, group = torch.Generator().manual_seed(seed), 1 + seed % 5
    logits = scale * torch.randn(3, group, vocab, generator=rng)
    totals = -torch.rand(3, group, generator=rng, dtype=torch.float64).numpy()
    totals[2, group - 1] = -np.inf
    logits[1, group // 2, seed % vocab] = torch.nan if seed % 3 == 0 else 0.5
    excluded = (
        (torch.rand(3, group, vocab, generator=rng) < 0.3).numpy()
        if masked
        else list(range(0, vocab, 7))
    )
    forced = np.array([-1, vocab // 2, -1]) if is_forced else None
    mask, never = (excluded, ()) if masked else (None, excluded)
    find = CompiledCandidates(count, never, diversity)
    found = find(logits.numpy(), totals, mask, forced)
    expected = found_by_torch(logits, totals, count, excluded, forced, diversity)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    is_there = np.isfinite(expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one == other)[is_there].all()


@given(
    vocab=st.integers(1, 3000),
    count=st.integers(1, 50),
    num_never=st.integers(0, 6),
    spread=st.sampled_from([0.5, 2.0, 100.0]),
    seed=st.integers(0, 999),
)
@settings(max_examples=300, deadline=None)
def test_the_best_are_found_among_many_equals(vocab, count, num_never, spread, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(2, 2, vocab, generator=rng)).round()
    # What never comes is among the best.
    never = logits[0, 0].topk(min(num_never, vocab - 1)).indices
    count = min(count, vocab - len(never))
    found = CompiledCandidates(count, never.tolist(), 0.0)
    totals = np.array([[0.0, -np.inf]] * 2)
    _, _, tokens = found(logits.numpy(), totals, None, None)
    logits[..., never] = -torch.inf
    order = np.argsort(-logits[:, 0].numpy(), axis=1, kind="stable")
    assert tokens.tolist() == order[:, :count].tolist()


def test_their_logarithm_of_sums_is_that_of_pytorch():
    logits = 30 * torch.randn(8, 1, 3000)
    [totals, _, tokens] = after_nothing(logits, 1)
    expected = logits.double().log_softmax(dim=-1).amax(dim=-1)
    np.testing.assert_allclose(totals, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


def test_of_equal_ones_the_first_come_first():
    totals, parents, tokens = after_nothing(torch.zeros(1, 2, 100), 4, (0, 2))
    assert tokens.tolist() == [[1, 3, 4, 5]]
    assert parents.tolist() == [[0, 0, 0, 0]]
    np.testing.assert_allclose(totals, -np.log(100), rtol=1e-6)


def test_what_is_impossible_is_nobodys_candidate():
    logits = torch.full((1, 1, 40), -torch.inf)
    logits[..., 5] = 2.0
    totals, _, tokens = after_nothing(logits, 2)
    assert totals.tolist() == [[0.0, -np.inf]]
    assert tokens[0, 0] == 5


def test_where_there_are_too_few_the_rest_is_impossible():
    totals, parents, tokens = after_nothing(torch.zeros(1, 2, 2), 6)
    assert np.isfinite(totals[0]).tolist() == [True] * 4 + [False] * 2
    assert parents[0].tolist() == [0, 0, 1, 1, 0, 0]
    assert tokens[0].tolist() == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("others", [1.0, -torch.inf])
@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
def test_one_that_is_certain_is_found_wherever_it_stands(others, place):
    logits = torch.full((1, 1, 3000), others)
    logits[..., place] = 200.0
    totals, _, tokens = after_nothing(logits, 1)
    assert (totals.tolist(), tokens.tolist()) == ([[0.0]], [[place]])


@pytest.mark.parametrize("step", [0.01, -0.01])
def test_sums_are_right_where_logits_rise_and_fall(step):
    logits = step * torch.arange(3000.0).reshape(1, 1, 3000)
    totals, _, tokens = after_nothing(logits, 3)
    expected, places = logits.double().log_softmax(dim=-1).topk(3)
    np.testing.assert_allclose(totals, expected[0].numpy(), rtol=1e-6)
    assert tokens.tolist() == places[0].tolist()


@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_where_there_is_no_distribution_nothing_is_a_number(bad, place):
    logits = torch.randn(2, 1, 3000)
    logits[1, 0, place] = bad
    totals, _, _ = after_nothing(logits, 2)
    assert np.isfinite(totals[0]).all()
    assert np.isnan(totals[1]).all()


def test_a_hypothesis_without_numbers_stands_behind_the_others():
    logits = torch.randn(1, 2, 50)
    logits[0, 0, 20] = torch.nan
    totals, parents, _ = after_nothing(logits, 5)
    assert parents.tolist() == [[1] * 5]
    assert np.isfinite(totals).all()


def test_all_impossible_is_no_distribution_either():
    totals, _, _ = after_nothing(torch.full((1, 1, 9), -torch.inf), 2)
    assert np.isnan(totals).all()


def test_no_sentence_has_no_candidate():
    assert [len(each) for each in after_nothing(torch.zeros(0, 1, 9), 2)] == [0] * 3


@pytest.mark.parametrize("token", [9, 2**40])
def test_what_is_forced_is_a_token(token):
    logits, forced = np.zeros((1, 1, 9), np.float32), np.array([token])
    with pytest.raises(IndexError, match="Ids must be those of tokens, but one is not"):
        CompiledCandidates(2, (), 0.0)(logits, np.zeros((1, 1)), None, forced)


def test_the_kernel_takes_fp32_of_a_cpu_alone():
    logits = torch.randn(1, 1, 9)
    taken = for_kernel(logits)
    assert taken is not None
    assert np.shares_memory(taken, logits.numpy())
    assert for_kernel(taken) is taken
    assert for_kernel(taken.astype(np.float64)) is None
    assert for_kernel(logits.bfloat16()) is None
    assert for_kernel(logits.double()) is None
    assert for_kernel(logits.to("meta")) is None
