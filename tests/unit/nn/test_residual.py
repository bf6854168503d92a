"""The normalized sum by its kernel against PyTorch in double precision."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from instruction_sets import chosen_isa
from transduce.model.layers import ResidualConnection
from transduce.nn.fuse import fuse
from transduce.nn.kernels import nn_api
from transduce.nn.operators import Dropout, has_normalized_sum, normalized_sum

pytestmark = pytest.mark.skipif(nn_api() is None, reason="there is no native library")

SHAPES = [(1, 32), (3, 96), (31, 128), (2, 16, 128), (5, 7, 3, 32), (100, 512)]
RATE, EPSILON = 0.3, 1e-6
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def drawn(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Residual input, sub-layer output, gain and bias."""
    shapes = shape, shape, shape[-1:], shape[-1:]
    x, addend, gain, bias = (torch.randn(s) for s in shapes)
    gain, bias = nn.Parameter(gain), nn.Parameter(bias)
    return x.requires_grad_(), addend.requires_grad_(), gain, bias


def by_kernel(x: Tensor, addend: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    norm = nn.LayerNorm(len(gain), eps=EPSILON)
    norm.weight, norm.bias = gain, bias
    torch.manual_seed(4)
    return normalized_sum(x, addend, RATE, norm)


def by_pytorch(x: Tensor, addend: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Compute the sum and the norm in double precision, with the same masks."""
    torch.manual_seed(4)
    mask = Dropout(RATE).train()(torch.ones(x.shape))
    total = x.double() + addend.double() * mask
    width = x.shape[-1:]
    return functional.layer_norm(total, width, gain.double(), bias.double(), EPSILON)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_and_its_gradients_equal_pytorchs(shape):
    inputs = drawn(shape)
    output, expected = by_kernel(*inputs), by_pytorch(*inputs)
    torch.testing.assert_close(output.double(), expected, **TOLERANCE)
    outer = torch.randn_like(output)
    ours = torch.autograd.grad(output, inputs, outer)
    theirs = torch.autograd.grad(expected, inputs, outer.double())
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_small_deviations_from_a_large_mean_survive():
    inputs = drawn((4, 64))
    with torch.no_grad():
        inputs[0].add_(1_000)
    torch.testing.assert_close(
        by_kernel(*inputs).double(), by_pytorch(*inputs), rtol=1e-3, atol=1e-3
    )


def test_an_addend_in_bf16_equals_its_rounded_value_in_fp32():
    x, addend, gain, bias = drawn((5, 32))
    rounded = addend.detach().bfloat16().requires_grad_()
    output = by_kernel(x, rounded, gain, bias)
    expected = by_kernel(x, rounded.detach().float(), gain, bias)
    assert output.dtype == torch.float32
    assert torch.equal(output, expected)
    [gradient] = torch.autograd.grad(output.square().sum(), rounded)
    assert gradient.dtype == torch.bfloat16
    assert gradient.any()


def test_a_constant_row_is_normalised_to_the_bias():
    _, _, gain, bias = drawn((3, 32))
    output = by_kernel(torch.full((3, 32), 7.1), torch.zeros(3, 32), gain, bias)
    # Epsilon reduces one unit in the last place of the mean to half a thousandth.
    torch.testing.assert_close(output, bias.expand(3, 32), atol=2e-3, rtol=0)


def test_an_empty_input_has_an_empty_output():
    inputs = drawn((0, 32))
    output = by_kernel(*inputs)
    assert output.shape == (0, 32)
    assert not torch.autograd.grad(output.sum(), inputs)[2].any()


def test_the_number_of_threads_does_not_change_the_result(two_threads):
    inputs = drawn((50, 20, 128))

    def by(num_threads: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(num_threads)
        output = by_kernel(*inputs)
        return output, *torch.autograd.grad(output.square().sum(), inputs)

    for one, other in zip(by(1), by(2), strict=True):
        assert torch.equal(one, other)


def test_several_threads_may_run_backward_at_once():
    inputs = drawn((300, 32))
    output = by_kernel(*inputs)
    outers = [torch.randn_like(output) for _ in range(40)]

    def backwards(outer: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, inputs, outer, retain_graph=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backwards, outers))
    for each, outer in zip(found, outers, strict=True):
        assert all(map(torch.equal, each, backwards(outer)))


def test_saved_tensors_may_be_moved_by_hooks():
    inputs = drawn((9, 32))
    plain = by_kernel(*inputs)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        other = by_kernel(*inputs)
    outer = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, inputs, outer)
    del plain
    found = torch.autograd.grad(other, inputs, outer)
    assert all(map(torch.equal, found, expected))


def test_inputs_may_be_non_contiguous():
    inputs = drawn((6, 32))
    output = by_kernel(*inputs)
    strewn = [x.detach().t().contiguous().t() for x in inputs[:2]]
    assert torch.equal(by_kernel(*strewn, *inputs[2:]), output)
    # The gradient of a sum is an expanded tensor, which is not contiguous either.
    assert torch.autograd.grad(output.sum(), inputs)[0].isfinite().all()


@pytest.mark.parametrize("which", [0, 1])
def test_nan_stays_within_its_row(which):
    inputs = drawn((3, 32))
    with torch.no_grad():
        inputs[which][1] = torch.nan
    output = by_kernel(*inputs)
    assert output.isnan().all(dim=1).tolist() == [False, True, False]


def test_the_kernel_is_used_only_for_supported_inputs():
    x = torch.zeros(2, 32)
    assert has_normalized_sum(x, x)
    assert not has_normalized_sum(x.double(), x.double())
    assert has_normalized_sum(x, x.bfloat16())
    assert not has_normalized_sum(x.bfloat16(), x)
    assert not has_normalized_sum(x.to("meta"), x.to("meta"))
    assert not has_normalized_sum(torch.zeros(2, 48), torch.zeros(2, 48))
    with chosen_isa("none"):
        assert not has_normalized_sum(x, x)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_layer_computes_the_same_with_and_without_the_kernel(dropout, is_training):
    layer = ResidualConnection(32, dropout, "post", EPSILON).train(is_training)
    fused, x = fuse(layer), torch.randn(4, 9, 32)
    layer.dropout = fused.dropout  # draws the same masks

    def output_of(module: ResidualConnection) -> Tensor:
        torch.manual_seed(6)
        return module(x, torch.sin)

    output = output_of(fused)
    has_kernel = "NormalizedSum" in output.grad_fn.name()
    assert has_kernel == (is_training and dropout > 0)
    plain = output_of(layer)
    assert "NormalizedSum" not in plain.grad_fn.name()
    torch.testing.assert_close(output, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unchecked_types")
def test_inputs_of_another_width_than_the_norm_are_refused():
    fused, x = fuse(ResidualConnection(32, 0.3, "post", EPSILON)), torch.randn(4, 64)
    with pytest.raises(ValueError, match="must get"):
        fused.add_and_norm(x, x)
