import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.decoding.beam_search import CandidateQuery, find_candidates
from transduce.decoding.torch_candidates import find_by_torch
from transduce.native import api, native_logits

pytestmark = pytest.mark.skipif(api() is None, reason="there is no native library")


def after_nothing(logits: Tensor, count: int, excluded=()) -> list[np.ndarray]:
    totals = np.zeros(logits.shape[:2])
    query = CandidateQuery(log_probabilities=totals, count=count, excluded=excluded)
    return list(find_candidates(logits.numpy(), query))


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
def test_native_candidates_equal_pytorchs(
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
    query = CandidateQuery(
        log_probabilities=totals,
        count=count,
        excluded=excluded,
        forced=forced,
        diversity=diversity,
    )
    found = find_candidates(logits.numpy(), query)
    expected = find_by_torch(logits, query)
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
def test_the_best_tokens_are_found_among_many_equals(
    vocab, count, num_never, spread, seed
):
    rng = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(2, 2, vocab, generator=rng)).round()
    # Excluded tokens are among the best.
    never = logits[0, 0].topk(min(num_never, vocab - 1)).indices
    count = min(count, vocab - len(never))
    totals = np.array([[0.0, -np.inf]] * 2)
    query = CandidateQuery(
        log_probabilities=totals, count=count, excluded=never.tolist()
    )
    natively = find_candidates(logits.numpy(), query)
    by_torch = find_by_torch(logits, query)
    logits[..., never] = -torch.inf
    order = np.argsort(-logits[:, 0].numpy(), axis=1, kind="stable")
    for found in (natively, by_torch):
        assert found.tokens.tolist() == order[:, :count].tolist()


def test_log_probabilities_equal_pytorchs():
    logits = 30 * torch.randn(8, 1, 3000)
    [totals, _, tokens] = after_nothing(logits, 1)
    expected = logits.double().log_softmax(dim=-1).amax(dim=-1)
    np.testing.assert_allclose(totals, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("vocab", [100, 640, 5_000])
def test_equal_tokens_are_ordered_by_id_in_pytorch(vocab):
    logits = torch.zeros(1, 2, vocab)
    logits[..., 70:] = 1.0  # the best begin within a block
    query = CandidateQuery(
        log_probabilities=np.zeros((1, 2)), count=4, excluded=(0, 71)
    )
    found = find_by_torch(logits, query)
    assert found.tokens.tolist() == [[70, 72, 73, 74]]
    assert found.parents.tolist() == [[0, 0, 0, 0]]


def test_equal_tokens_are_ordered_by_id():
    totals, parents, tokens = after_nothing(torch.zeros(1, 2, 100), 4, (0, 2))
    assert tokens.tolist() == [[1, 3, 4, 5]]
    assert parents.tolist() == [[0, 0, 0, 0]]
    np.testing.assert_allclose(totals, -np.log(100), rtol=1e-6)


def test_an_impossible_token_is_never_a_candidate():
    logits = torch.full((1, 1, 40), -torch.inf)
    logits[..., 5] = 2.0
    totals, _, tokens = after_nothing(logits, 2)
    assert totals.tolist() == [[0.0, -np.inf]]
    assert tokens[0, 0] == 5


def test_missing_candidates_have_a_probability_of_zero():
    totals, parents, tokens = after_nothing(torch.zeros(1, 2, 2), 6)
    assert np.isfinite(totals[0]).tolist() == [True] * 4 + [False] * 2
    assert parents[0].tolist() == [0, 0, 1, 1, 0, 0]
    assert tokens[0].tolist() == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("others", [1.0, -torch.inf])
@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
def test_a_certain_token_is_found_at_any_id(others, place):
    logits = torch.full((1, 1, 3000), others)
    logits[..., place] = 200.0
    totals, _, tokens = after_nothing(logits, 1)
    assert (totals.tolist(), tokens.tolist()) == ([[0.0]], [[place]])


@pytest.mark.parametrize("step", [0.01, -0.01])
def test_log_probabilities_of_rising_and_falling_logits_are_right(step):
    logits = step * torch.arange(3000.0).reshape(1, 1, 3000)
    totals, _, tokens = after_nothing(logits, 3)
    expected, places = logits.double().log_softmax(dim=-1).topk(3)
    np.testing.assert_allclose(totals, expected[0].numpy(), rtol=1e-6)
    assert tokens.tolist() == places[0].tolist()


@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_a_distribution_has_nan_candidates(bad, place):
    logits = torch.randn(2, 1, 3000)
    logits[1, 0, place] = bad
    totals, _, _ = after_nothing(logits, 2)
    assert np.isfinite(totals[0]).all()
    assert np.isnan(totals[1]).all()


def test_candidates_of_a_row_with_nan_rank_last():
    logits = torch.randn(1, 2, 50)
    logits[0, 0, 20] = torch.nan
    totals, parents, _ = after_nothing(logits, 5)
    assert parents.tolist() == [[1] * 5]
    assert np.isfinite(totals).all()


def test_a_row_of_minus_infinity_has_nan_candidates():
    totals, _, _ = after_nothing(torch.full((1, 1, 9), -torch.inf), 2)
    assert np.isnan(totals).all()


def test_a_batch_without_sentences_has_no_candidates():
    assert [len(each) for each in after_nothing(torch.zeros(0, 1, 9), 2)] == [0] * 3


@pytest.mark.parametrize("token", [9, 2**40])
def test_a_forced_token_outside_the_vocabulary_is_refused(token):
    logits, forced = np.zeros((1, 1, 9), np.float32), np.array([token])
    with pytest.raises(IndexError, match="token id is outside the vocabulary"):
        find_candidates(
            logits,
            CandidateQuery(log_probabilities=np.zeros((1, 1)), count=2, forced=forced),
        )


def test_only_logits_in_fp32_on_a_cpu_are_searched_natively():
    logits = torch.randn(1, 1, 9)
    taken = native_logits(logits)
    assert taken is not None
    assert np.shares_memory(taken, logits.numpy())
    assert native_logits(taken) is taken
    assert native_logits(taken.astype(np.float64)) is None
    assert native_logits(logits.bfloat16()) is None
    assert native_logits(logits.double()) is None
    assert native_logits(logits.to("meta")) is None
