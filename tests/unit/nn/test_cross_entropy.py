"""The smoothed cross-entropy against PyTorch's and against closed forms."""

import math

import pytest
import torch
from torch.nn import functional

from transduce.nn import cross_entropy as module
from transduce.nn.cross_entropy import Loss, smoothed_cross_entropy

EPSILONS = [0.0, 0.1, 0.4]


# All kinds of loss but that by AMX, which test_native_loss.py tests.
pytestmark = pytest.mark.usefixtures("without_bf16_unit", "is_native")


def loss_of(
    logits: torch.Tensor, target_out: torch.Tensor, label_smoothing: float
) -> Loss:
    """Loss of states that are logits already: the output matrix is the identity."""
    matrix = torch.eye(logits.size(1), dtype=logits.dtype)
    return smoothed_cross_entropy(
        logits, matrix, target_out, label_smoothing, logits.dtype
    )


def loss_of_one(logits: torch.Tensor, target: int, label_smoothing: float) -> Loss:
    """Loss of one row of logits, as a one-dimensional state times a matrix."""
    return smoothed_cross_entropy(
        torch.ones(1, 1, dtype=logits.dtype),
        logits.T,
        torch.tensor([target]),
        label_smoothing,
        logits.dtype,
    )


@pytest.fixture
def logits() -> torch.Tensor:
    return (3 * torch.randn(7, 11)).requires_grad_()


@pytest.fixture
def target_out() -> torch.Tensor:
    return torch.tensor([0, 10, 3, 3, 5, 1, 7])


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_loss_equals_pytorchs(logits, target_out, epsilon):
    expected = functional.cross_entropy(
        logits, target_out, label_smoothing=epsilon, reduction="sum"
    )
    loss = loss_of(logits, target_out, epsilon)
    torch.testing.assert_close(loss.smoothed, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_equals_pytorchs(logits, target_out, epsilon):
    loss = loss_of(logits, target_out, epsilon)
    [actual] = torch.autograd.grad(2.5 * loss.smoothed, logits)
    oracle = functional.cross_entropy(
        logits, target_out, label_smoothing=epsilon, reduction="sum"
    )
    [expected] = torch.autograd.grad(2.5 * oracle, logits)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_equals_finite_differences(target_out, epsilon):
    logits = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: loss_of(x, target_out, epsilon).smoothed, logits
    )


def test_second_derivatives_of_the_loss_are_refused(logits, target_out):
    # Without a refusal they would be wrong: what is saved has no graph.
    loss = loss_of(logits, target_out, 0.1).smoothed
    [gradient] = torch.autograd.grad(loss.square(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_likelihood_is_the_product_over_true_tokens(logits, target_out, epsilon):
    loss = loss_of(logits, target_out, epsilon)
    expected = -logits.log_softmax(-1).gather(1, target_out[:, None]).sum()
    torch.testing.assert_close(loss.negative_log_likelihood, expected)
    assert not loss.negative_log_likelihood.requires_grad


def test_without_smoothing_the_loss_is_the_likelihood(logits, target_out):
    loss = loss_of(logits, target_out, 0.0)
    torch.testing.assert_close(loss.smoothed, loss.negative_log_likelihood)


def test_equal_logits_have_the_log_of_the_vocabulary_size_as_loss():
    loss = loss_of(torch.zeros(3, 50), torch.tensor([1, 2, 3]), 0.1)
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
    loss = loss_of_one(logits, 4, 0.1).smoothed
    floor = -(target * target.log()).sum().item()
    assert loss.item() == pytest.approx(floor, abs=1e-9)
    [gradient] = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-12


def test_the_lowest_loss_of_the_papers_vocabulary():
    # The paper's code shares epsilon among the other words: a difference of 1e-5.
    logits = smoothed_target(0.1, 37_000).log()
    loss = loss_of_one(logits, 4, 0.1).smoothed
    assert loss.item() == pytest.approx(1.3769, abs=1e-4)


def test_no_other_distribution_has_a_lower_loss():
    target = smoothed_target(0.1, 10).expand(100, 10)
    logits = target.log() + 0.1 * torch.randn(100, 10, dtype=torch.float64)
    floor = -(target[0] * target[0].log()).sum()
    loss = loss_of(logits, torch.full((100,), 4), 0.1)
    assert loss.smoothed > 100 * floor


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = loss_of(logits, torch.tensor([1]), 0.1)
    assert loss.negative_log_likelihood.item() == 2e4
    loss.smoothed.backward()
    assert logits.grad.isfinite().all()


def test_the_logits_are_not_modified(logits, target_out):
    before = logits.detach().clone()
    loss_of(logits, target_out, 0.1).smoothed.backward()
    assert torch.equal(logits, before)


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(7, 5, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def output_weight() -> torch.Tensor:
    return torch.randn(11, 5, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("logit_rows", [1, 3, 256])
def test_the_gradients_of_states_and_matrix_equal_pytorchs(
    states, output_weight, target_out, epsilon, logit_rows, monkeypatch
):
    monkeypatch.setattr(module, "MIN_LOGIT_ROWS", logit_rows)
    monkeypatch.setattr(module, "MAX_LOGITS", 0)
    inputs = (states, output_weight)
    loss = smoothed_cross_entropy(*inputs, target_out, epsilon, torch.float64)
    oracle = functional.cross_entropy(
        states @ output_weight.T, target_out, label_smoothing=epsilon, reduction="sum"
    )
    torch.testing.assert_close(loss.smoothed, oracle)
    torch.testing.assert_close(
        torch.autograd.grad(0.3 * loss.smoothed, inputs),
        torch.autograd.grad(0.3 * oracle, inputs),
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradients_of_states_and_matrix_equal_finite_differences(
    states, output_weight, target_out, epsilon
):
    def smoothed(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return smoothed_cross_entropy(
            states, weight, target_out, epsilon, torch.float64
        ).smoothed

    assert torch.autograd.gradcheck(smoothed, (states, output_weight))


@pytest.mark.parametrize("logit_rows", [2, 256])
def test_the_loss_is_the_same_without_gradients(
    states, output_weight, target_out, logit_rows, monkeypatch
):
    monkeypatch.setattr(module, "MIN_LOGIT_ROWS", logit_rows)
    monkeypatch.setattr(module, "MAX_LOGITS", 0)
    inputs = (states, output_weight, target_out, 0.1, torch.float64)
    expected = smoothed_cross_entropy(*inputs)
    with torch.no_grad():
        loss = smoothed_cross_entropy(*inputs)
    assert not loss.smoothed.requires_grad
    torch.testing.assert_close(loss.smoothed, expected.smoothed.detach())
    torch.testing.assert_close(
        loss.negative_log_likelihood, expected.negative_log_likelihood
    )


def test_bf16_products_give_gradients_in_the_precision_of_the_inputs(target_out):
    states = torch.randn(7, 5, requires_grad=True)
    weight = torch.randn(11, 5, requires_grad=True)
    loss = smoothed_cross_entropy(states, weight, target_out, 0.1, torch.bfloat16)
    exact = smoothed_cross_entropy(states, weight, target_out, 0.1, torch.float32)
    assert loss.smoothed.dtype == torch.float32
    torch.testing.assert_close(loss.smoothed, exact.smoothed, rtol=0.01, atol=0.1)
    found = torch.autograd.grad(loss.smoothed, (states, weight))
    expected = torch.autograd.grad(exact.smoothed, (states, weight))
    assert {gradient.dtype for gradient in found} == {torch.float32}
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("rows", [1, 5, 64, 70])
@pytest.mark.parametrize("vocab", [1, 17, 61])
def test_the_loss_in_bf16_is_computed_in_fp32_up_to_the_gradient(rows, vocab):
    """The output matrix is the identity, which is exact in either precision."""
    states = (4 * torch.randn(rows, vocab)).bfloat16().float().requires_grad_()
    targets = torch.randint(vocab, (rows,))
    inputs = (states, torch.eye(vocab), targets, 0.1)
    found = smoothed_cross_entropy(*inputs, torch.bfloat16)
    expected = smoothed_cross_entropy(*inputs, torch.float32)
    torch.testing.assert_close(found.smoothed, expected.smoothed)
    torch.testing.assert_close(
        found.negative_log_likelihood, expected.negative_log_likelihood
    )
    [gradient] = torch.autograd.grad(found.smoothed, states)
    [exact] = torch.autograd.grad(expected.smoothed, states)
    assert torch.equal(gradient, exact.bfloat16().float())


def test_nan_stays_nan_in_bf16():
    states = torch.zeros(3, 20)
    states[1, 7] = torch.nan
    states.requires_grad_()
    targets = torch.zeros(3, dtype=torch.int64)
    loss = smoothed_cross_entropy(states, torch.eye(20), targets, 0.1, torch.bfloat16)
    assert loss.smoothed.isnan()
    [gradient] = torch.autograd.grad(loss.smoothed, states)
    assert gradient.isnan().any(dim=1).tolist() == [False, True, False]


def test_an_empty_batch_has_a_loss_of_zero(output_weight):
    states = torch.zeros(0, 5, dtype=torch.float64, requires_grad=True)
    loss = smoothed_cross_entropy(
        states,
        output_weight,
        torch.zeros(0, dtype=torch.int64),
        0.1,
        torch.float64,
    )
    loss.smoothed.backward()
    assert loss.smoothed.item() == 0
    assert not output_weight.grad.any()


@pytest.mark.parametrize("vocab", [1, 5, 8, 16, 17, 40, 6_001])
def test_the_loss_of_any_vocabulary_size_equals_pytorchs_in_fp64(vocab):
    logits = (4 * torch.randn(9, vocab)).requires_grad_()
    targets = torch.randint(vocab, (9,))
    loss = loss_of_rows(logits, targets)
    oracle = functional.cross_entropy(
        logits.double(), targets, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(
        loss.smoothed.double(), oracle, rtol=1e-6, atol=1e-5, check_dtype=False
    )
    [found] = torch.autograd.grad(loss.smoothed, logits)
    [expected] = torch.autograd.grad(oracle, logits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def loss_of_rows(logits: torch.Tensor, targets: torch.Tensor) -> Loss:
    """Sum over rows, which avoids a square matrix of the vocabulary's size."""
    each = [
        loss_of_one(row, int(target), 0.1)
        for row, target in zip(logits.split(1), targets, strict=True)
    ]
    return Loss(
        smoothed=torch.stack([loss.smoothed for loss in each]).sum(),
        negative_log_likelihood=torch.stack(
            [loss.negative_log_likelihood for loss in each]
        ).sum(),
    )


def test_the_number_of_threads_does_not_change_the_loss(two_threads):
    """States and matrix have one column, so products have no order of summation."""
    states, matrix = torch.randn(50, 1), torch.randn(300, 1, requires_grad=True)
    targets = torch.arange(50)

    def by(num_threads: int) -> tuple[torch.Tensor, ...]:
        torch.set_num_threads(num_threads)
        loss = smoothed_cross_entropy(states, matrix, targets, 0.1, torch.float32)
        return loss.smoothed.detach(), loss.negative_log_likelihood

    assert all(map(torch.equal, by(1), by(2)))


@pytest.mark.parametrize("place", [0, 7, 19])
@pytest.mark.parametrize("target", [3, 7])
def test_a_nan_state_makes_the_loss_nan(place, target):
    logits = torch.zeros(1, 20)
    logits[0, place] = torch.nan
    logits.requires_grad_()
    loss = loss_of_one(logits, target, 0.1).smoothed
    assert loss.isnan()
    assert torch.autograd.grad(loss, logits)[0].isnan().all()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("number", [0, 3, 300])
def test_another_number_of_targets_than_of_states_is_an_error(logits, number):
    logits.requires_grad_()
    targets = torch.zeros(number, dtype=torch.int64)
    with pytest.raises(ValueError, match="one target for each"):
        loss_of(logits, targets, 0.1)


@pytest.mark.parametrize("target", [-12, -1, 11, 2**40])
def test_a_token_beyond_the_vocabulary_is_an_error(logits, target, target_out):
    target_out[2] = target
    with pytest.raises((IndexError, RuntimeError), match=r"outside|out of bounds"):
        loss_of(logits, target_out, 0.1)


ALPHA = 3.0


def consistent_loss(
    logits: torch.Tensor, target_out: torch.Tensor, epsilon: float
) -> Loss:
    """Loss of two passes, each of which has half of the logits and of the targets."""
    matrix = torch.eye(logits.size(1), dtype=logits.dtype)
    return smoothed_cross_entropy(
        logits, matrix, target_out, epsilon, logits.dtype, ALPHA
    )


def half_of_liang(
    logits: torch.Tensor, target_out: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Half of the loss of Liang et al. (2021, equation 4), by PyTorch's functions."""
    p, q = logits.log_softmax(-1).chunk(2)
    cross_entropy = functional.cross_entropy(
        logits, target_out, label_smoothing=epsilon, reduction="sum"
    )
    divergence = functional.kl_div(q, p, log_target=True, reduction="sum")
    other_divergence = functional.kl_div(p, q, log_target=True, reduction="sum")
    return (cross_entropy + ALPHA / 2 * (divergence + other_divergence)) / 2


@pytest.fixture
def two_passes() -> tuple[torch.Tensor, torch.Tensor]:
    logits = (3 * torch.randn(600, 11)).requires_grad_()
    return logits, torch.randint(11, (300,)).repeat(2)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_loss_of_two_passes_equals_pytorchs(two_passes, epsilon, monkeypatch):
    monkeypatch.setattr(module, "MAX_LOGITS", 11 * module.MIN_LOGIT_ROWS)  # in chunks
    found = consistent_loss(*two_passes, epsilon)
    expected = half_of_liang(*two_passes, epsilon)
    likelihood = functional.cross_entropy(*two_passes, reduction="sum") / 2
    torch.testing.assert_close(found.smoothed, expected)
    torch.testing.assert_close(found.negative_log_likelihood, likelihood.detach())
    [actual] = torch.autograd.grad(2.5 * found.smoothed, two_passes[0])
    [gradient] = torch.autograd.grad(2.5 * expected, two_passes[0])
    torch.testing.assert_close(actual, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_of_two_passes_equals_finite_differences(epsilon):
    logits = torch.randn(8, 11, dtype=torch.float64, requires_grad=True)
    target_out = torch.tensor([0, 10, 3, 3]).repeat(2)
    assert torch.autograd.gradcheck(
        lambda x: consistent_loss(x, target_out, epsilon).smoothed, logits
    )


def test_equal_passes_have_the_loss_of_one(logits, target_out):
    one = loss_of(logits, target_out, 0.1)
    two = consistent_loss(logits.repeat(2, 1), target_out.repeat(2), 0.1)
    torch.testing.assert_close(two.smoothed, one.smoothed)
    torch.testing.assert_close(two.negative_log_likelihood, one.negative_log_likelihood)


def test_without_gradients_two_passes_have_no_divergence(two_passes):
    with torch.no_grad():
        found = consistent_loss(*two_passes, 0.1)
        plain = loss_of(*two_passes, 0.1)
    torch.testing.assert_close(found.smoothed, plain.smoothed)
