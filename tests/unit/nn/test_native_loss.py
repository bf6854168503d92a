"""The native loss of the output matrix in bf16 against PyTorch's in fp64."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from transduce import native
from transduce.nn import cross_entropy as module
from transduce.nn.cross_entropy import (
    LossGradients,
    has_native_loss,
    native_loss,
    smoothed_cross_entropy,
)
from transduce.nn.kernels import nn_api, unchanged_weights

pytestmark = pytest.mark.skipif(nn_api() is None, reason="there is no native library")


def case(rows: int, vocab: int, width: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Random inputs exact in bf16, so that only logits and gradients are rounded."""
    torch.manual_seed(rows * vocab)
    return (
        torch.randn(rows, width).bfloat16().float(),
        torch.randn(vocab, width).bfloat16().float(),
        torch.randint(vocab, (rows,)),
    )


def exact(states: Tensor, weight: Tensor, targets: Tensor) -> LossGradients:
    """Loss and gradients by PyTorch in double precision."""
    states, weight = (each.double().requires_grad_() for each in (states, weight))
    logits = states @ weight.T
    smoothed = functional.cross_entropy(
        logits, targets, label_smoothing=0.1, reduction="sum"
    )
    grad_states, grad_weight = torch.autograd.grad(smoothed, (states, weight))
    likelihood = functional.cross_entropy(logits, targets, reduction="sum")
    return LossGradients(
        sums=torch.stack([smoothed, likelihood]).detach().float(),
        grad_states=grad_states.float(),
        grad_weight=grad_weight.float(),
    )


def off(one: Tensor, other: Tensor) -> float:
    return ((one - other).norm() / other.norm().clamp(min=1e-6)).item()


@pytest.fixture(autouse=True)
def unwritten_is_no_number() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("rows", "vocab"),
    [*product([1, 15, 16, 17, 33, 70], [2, 31, 32, 33, 100]), (40, 4_200)],
)
def test_the_loss_differs_from_fp64_by_rounding_only(
    bf16_unit, rows, vocab, two_threads
):
    found, expected = native_loss(*case(rows, vocab), 0.1), exact(*case(rows, vocab))
    # A logit in bf16 is off by up to 1/512 of it, and so is a gradient.
    torch.testing.assert_close(found.sums, expected.sums, rtol=5e-3, atol=0.02)
    assert off(found.grad_states, expected.grad_states) < 0.02
    assert off(found.grad_weight, expected.grad_weight) < 0.02


@pytest.mark.parametrize("width", [1, 31, 33, 513])
def test_the_width_may_be_no_multiple_of_a_panel(bf16_unit, width):
    found, expected = (
        native_loss(*case(20, 40, width), 0.1),
        exact(*case(20, 40, width)),
    )
    assert found.grad_states.shape == (20, width)
    assert found.grad_weight.shape == (40, width)
    assert off(found.grad_states, expected.grad_states) < 0.02
    assert off(found.grad_weight, expected.grad_weight) < 0.02


def test_a_batch_may_have_more_rows_than_one_sum_takes(bf16_unit):
    found = native_loss(*case(8_200, 33), 0.1, max_logits=4_100 * 33)
    expected = exact(*case(8_200, 33))
    assert off(found.grad_weight, expected.grad_weight) < 0.02


def test_inputs_may_be_non_contiguous(bf16_unit):
    states, weight, targets = case(20, 40, 64)
    apart = torch.stack([states, states], dim=2)[:, :, 0]
    targets_apart = torch.stack([targets, targets], dim=1)[:, 0]
    assert not apart.is_contiguous()
    found = native_loss(apart, weight, targets_apart, 0.1)
    assert torch.equal(found.sums, native_loss(states, weight, targets, 0.1).sums)


def test_the_gradients_are_nearer_to_fp64_than_pytorchs(bf16_unit, monkeypatch):
    states, weight, targets = case(70, 100, 64)
    expected = exact(states, weight, targets)
    ours = native_loss(states, weight, targets, 0.1)
    inputs = states.requires_grad_(), weight.requires_grad_()
    monkeypatch.setattr(module, "has_native_loss", lambda *_: False)
    loss = smoothed_cross_entropy(*inputs, targets, 0.1, torch.bfloat16).smoothed
    grad_states, grad_weight = torch.autograd.grad(loss, inputs)
    assert off(ours.grad_states, expected.grad_states) < off(
        grad_states, expected.grad_states
    )
    assert off(ours.grad_weight, expected.grad_weight) < off(
        grad_weight, expected.grad_weight
    )


def test_training_uses_the_native_loss(bf16_unit):
    states, weight, targets = case(50, 61, 64)
    inputs = states.requires_grad_(), weight.requires_grad_()
    loss = smoothed_cross_entropy(*inputs, targets, 0.1, torch.bfloat16)
    gradients = torch.autograd.grad(3 * loss.smoothed, inputs)
    found = native_loss(states.detach(), weight.detach(), targets, 0.1)
    likelihoods = [loss.smoothed.item(), loss.negative_log_likelihood.item()]
    assert likelihoods == found.sums.tolist()
    for gradient, its in zip(
        gradients, (found.grad_states, found.grad_weight), strict=True
    ):
        assert torch.equal(gradient, 3 * its)


def test_the_rows_at_a_time_do_not_change_the_loss(bf16_unit):
    whole = native_loss(*case(600, 100), 0.1)
    parts = native_loss(*case(600, 100), 0.1, max_logits=0)  # 256 rows at a time
    assert torch.equal(whole.grad_states, parts.grad_states)
    torch.testing.assert_close(whole.grad_weight, parts.grad_weight)
    torch.testing.assert_close(whole.sums, parts.sums)


def test_the_number_of_threads_does_not_change_the_loss(bf16_unit, two_threads):
    two = native_loss(*case(300, 700), 0.1)
    torch.set_num_threads(1)
    one = native_loss(*case(300, 700), 0.1)
    assert torch.equal(one.grad_states, two.grad_states)
    assert torch.equal(one.grad_weight, two.grad_weight)
    assert torch.equal(one.sums, two.sums)


def test_each_unit_and_plain_loops_give_the_same(bf16_unit):
    if bf16_unit is None:
        pytest.skip("nothing to compare with")
    one = native_loss(*case(40, 4_200, 64), 0.1)
    native.library().td_allow_amx(False)
    native.library().td_allow_avx512_bf16(False)
    other = native_loss(*case(40, 4_200, 64), 0.1)
    # Sums in another order may now and then be rounded to another number in bf16.
    torch.testing.assert_close(one.sums, other.sums, rtol=1e-4, atol=0)
    assert off(one.grad_states, other.grad_states) < 3e-3
    assert off(one.grad_weight, other.grad_weight) < 3e-3


def test_an_unchanged_matrix_is_packed_once(bf16_unit):
    states, weight, targets = case(20, 40)
    weight = nn.Parameter(weight, requires_grad=False)
    expected = native_loss(states, weight, targets, 0.1)
    with unchanged_weights():
        native_loss(states, weight, targets, 0.1)
        weight.zero_()
        unaware = native_loss(states, weight, targets, 0.1)
    assert torch.equal(unaware.sums, expected.sums)
    assert not torch.equal(
        native_loss(states, weight, targets, 0.1).sums, expected.sums
    )


def test_an_empty_batch_has_a_loss_of_zero(bf16_unit):
    found = native_loss(*case(0, 40), 0.1)
    assert found.sums.tolist() == [0, 0]
    assert found.grad_states.shape == (0, 32)
    assert bool((found.grad_weight == 0).all())


def test_a_nan_state_makes_its_gradient_and_the_loss_nan(bf16_unit):
    states, weight, targets = case(20, 40)
    states[3, 5] = torch.nan
    found = native_loss(states, weight, targets, 0.1)
    assert bool(found.sums.isnan().all())
    others = [row for row in range(20) if row != 3]
    assert bool(found.grad_states[others].isfinite().all())
    assert bool(found.grad_states[3].isnan().all())
    assert bool(found.grad_weight.isnan().all(dim=1).all())


def test_a_token_id_outside_the_vocabulary_is_refused(bf16_unit):
    states, weight, targets = case(20, 40)
    targets[7] = 40
    with pytest.raises(IndexError, match="A token id is outside the vocabulary"):
        native_loss(states, weight, targets, 0.1)


@pytest.mark.parametrize(
    ("states_dtype", "weight_dtype", "dtype", "is_so"),
    [
        (torch.float32, torch.float32, torch.bfloat16, True),
        (torch.bfloat16, torch.float32, torch.bfloat16, False),
        (torch.float32, torch.bfloat16, torch.bfloat16, False),
        (torch.float32, torch.float32, torch.float32, False),
    ],
)
def test_the_native_loss_is_used_only_for_products_in_bf16(
    bf16_unit, states_dtype, weight_dtype, dtype, is_so, monkeypatch
):
    states = torch.randn(3, 32, dtype=states_dtype)
    weight = torch.randn(7, 32, dtype=weight_dtype)
    assert has_native_loss(states, weight, dtype) == is_so
    monkeypatch.setattr(module, "has_bf16_products", lambda: False)
    assert not has_native_loss(states, weight, dtype)
