"""The smoothed cross-entropy against PyTorch's, and against what it must come to."""

import math

import pytest
import torch
from torch.nn import functional

from transduce.training.loss import smoothed_cross_entropy

EPSILONS = [0.0, 0.1, 0.4]


@pytest.fixture
def logits() -> torch.Tensor:
    return (3 * torch.randn(7, 11)).requires_grad_()


@pytest.fixture
def target_out() -> torch.Tensor:
    return torch.tensor([0, 10, 3, 3, 5, 1, 7])


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_loss_is_pytorchs(logits, target_out, epsilon):
    expected = functional.cross_entropy(
        logits, target_out, label_smoothing=epsilon, reduction="sum"
    )
    loss = smoothed_cross_entropy(logits, target_out, epsilon)
    torch.testing.assert_close(loss.smoothed, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_is_pytorchs(logits, target_out, epsilon):
    loss = smoothed_cross_entropy(logits, target_out, epsilon)
    [actual] = torch.autograd.grad(2.5 * loss.smoothed, logits)
    oracle = functional.cross_entropy(
        logits, target_out, label_smoothing=epsilon, reduction="sum"
    )
    [expected] = torch.autograd.grad(2.5 * oracle, logits)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_is_that_of_small_differences(target_out, epsilon):
    logits = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: smoothed_cross_entropy(x, target_out, epsilon).smoothed, logits
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_likelihood_is_that_of_the_true_tokens(logits, target_out, epsilon):
    loss = smoothed_cross_entropy(logits, target_out, epsilon)
    expected = -logits.log_softmax(-1).gather(1, target_out[:, None]).sum()
    torch.testing.assert_close(loss.negative_log_likelihood, expected)
    assert not loss.negative_log_likelihood.requires_grad


def test_without_smoothing_the_loss_is_the_likelihood(logits, target_out):
    loss = smoothed_cross_entropy(logits, target_out, 0.0)
    torch.testing.assert_close(loss.smoothed, loss.negative_log_likelihood)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary():
    loss = smoothed_cross_entropy(torch.zeros(3, 50), torch.tensor([1, 2, 3]), 0.1)
    assert loss.smoothed.item() == pytest.approx(3 * math.log(50), rel=1e-6)
    assert loss.negative_log_likelihood.item() == pytest.approx(
        3 * math.log(50), rel=1e-6
    )


def smoothed_target(epsilon: float, vocab: int) -> torch.Tensor:
    """1 - epsilon for word 4, and epsilon for all words alike."""
    target = torch.full((1, vocab), epsilon / vocab, dtype=torch.float64)
    target[0, 4] += 1 - epsilon
    return target


@pytest.mark.parametrize("vocab", [10, 1_000, 37_000])
def test_the_lowest_loss_is_the_entropy_of_the_smoothed_target(vocab):
    target = smoothed_target(0.1, vocab)
    logits = target.log().requires_grad_()
    loss = smoothed_cross_entropy(logits, torch.tensor([4]), 0.1).smoothed
    floor = -(target * target.log()).sum().item()
    assert loss.item() == pytest.approx(floor, abs=1e-9)
    [gradient] = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-12


def test_the_lowest_loss_of_the_papers_vocabulary():
    # The paper's code shares epsilon among the other words: a difference of 1e-5.
    logits = smoothed_target(0.1, 37_000).log()
    loss = smoothed_cross_entropy(logits, torch.tensor([4]), 0.1).smoothed
    assert loss.item() == pytest.approx(1.3769, abs=1e-4)


def test_no_other_answer_costs_less():
    target = smoothed_target(0.1, 10).expand(100, 10)
    logits = target.log() + 0.1 * torch.randn(100, 10, dtype=torch.float64)
    floor = -(target[0] * target[0].log()).sum()
    loss = smoothed_cross_entropy(logits, torch.full((100,), 4), 0.1)
    assert loss.smoothed > 100 * floor


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = smoothed_cross_entropy(logits, torch.tensor([1]), 0.1)
    assert loss.negative_log_likelihood.item() == 2e4
    loss.smoothed.backward()
    assert logits.grad.isfinite().all()


def test_the_logits_are_left_as_they_were(logits, target_out):
    before = logits.detach().clone()
    smoothed_cross_entropy(logits, target_out, 0.1).smoothed.backward()
    assert torch.equal(logits, before)
