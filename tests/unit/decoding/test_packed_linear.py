from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from instruction_sets import packed_weights
from transduce.decoding.native_decoder import NativePrecision
from transduce.decoding.torch_model import PackedLinear
from transduce.machine import processor_flags
from transduce.native import api

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")


class Packed:
    """Packed linear map that takes and returns tensors."""

    def __init__(
        self, precision: NativePrecision, weight: Tensor, bias: Tensor | None
    ) -> None:
        numbers = None if bias is None else bias.detach().numpy()
        self._packed = PackedLinear(weight.detach().numpy(), numbers, precision)

    @property
    def scales(self) -> Tensor:
        return torch.from_numpy(self._packed.scales())

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self._packed(x.float().numpy()))


@pytest.fixture(params=["fp32", "int8"])
def packed_linear(request) -> Callable[[Tensor, Tensor | None], Packed]:
    """Packed linear map, in each precision."""
    return partial(Packed, request.param)


SIZES = [(1, 1), (3, 5), (16, 32), (17, 33), (64, 48), (129, 70), (512, 2048)]


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 25])
@torch.no_grad()
def test_int8_products_are_near_the_exact_ones(inputs, outputs, rows):
    linear = nn.Linear(inputs, outputs)
    # One scale for all outputs, or for all rows, would round the small ones to zero.
    linear.weight[0] *= 100
    x = torch.randn(rows, inputs) + 3
    x[0] *= 1000
    packed = Packed("int8", linear.weight, linear.bias)
    found, expected = packed(x), linear(x)
    # Each number has an error of at most half a step of its row's range.
    step = (x.amax(dim=1) - x.amin(dim=1)) / 255
    weight_step, finest = packed.scales, linear.weight.abs().amax(dim=1) / 127
    assert (weight_step >= 0.9999 * finest).all()
    assert (weight_step <= 4.05 * finest).all()
    # Larger steps round what the finest ones have rounded before.
    weight_step = weight_step + torch.where(weight_step > 1.001 * finest, finest, 0)
    bound = 0.5 * (
        step[:, None] * linear.weight.abs().sum(dim=1)
        + (x.abs().sum(dim=1) + step * inputs)[:, None] * weight_step
    )
    assert ((found - expected).abs() <= bound + 1e-4 * expected.abs().max()).all()


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 11, 12, 13, 25])
@torch.no_grad()
def test_fp32_products_equal_pytorchs(inputs, outputs, rows):
    linear = nn.Linear(inputs, outputs).double()
    x = torch.randn(rows, inputs, dtype=torch.float64) + 3
    found = Packed("fp32", linear.weight, linear.bias)(x)
    largest = (x.abs() @ linear.weight.abs().t()).amax()
    torch.testing.assert_close(
        found.double(), linear(x), rtol=0.0, atol=float(largest) * 1e-6
    )


def random_weights(outputs: int, inputs: int) -> Tensor:
    """Random weights of both signs, and of one sign only."""
    weight = torch.randn(outputs, inputs)
    weight[: outputs // 2] = weight[: outputs // 2].abs()
    return weight


@pytest.mark.parametrize(
    "weights",
    [
        random_weights,
        torch.ones,
        lambda *size: -torch.ones(size),
        lambda *size: torch.ones(size).cumsum(dim=1) % 2 - 0.4,
        lambda *size: torch.ones(size).cumsum(dim=1) % 8 - 4,
    ],
    ids=["random", "largest", "smallest", "alternating", "rising"],
)
@pytest.mark.parametrize("inputs", [2, 37, 64, 512])
@torch.no_grad()
def test_products_of_bytes_are_exact(weights, inputs):
    weight, x = weights(45, inputs), torch.randint(0, 256, (14, inputs)).float()
    x[:, 0], x[:, 1] = 0, 255  # so that quantization is exact
    x[7, 1:] = 255
    packed = Packed("int8", weight, None)
    rounded = torch.from_numpy(packed_weights(weight.numpy(), packed.scales.numpy()))
    torch.testing.assert_close(
        packed(x).double(), x.double() @ rounded.t(), rtol=1e-6, atol=1e-3
    )


def test_a_packed_map_has_the_shapes_of_a_linear_map(packed_linear):
    packed = packed_linear(torch.ones(3, 4), torch.tensor([0.0, 1.0, 2.0]))
    expected = torch.tensor([4.0, 5.0, 6.0]).expand(2, 5, 3)
    torch.testing.assert_close(packed(torch.ones(2, 5, 4)), expected)
    assert packed(torch.ones(0, 5, 4)).shape == (0, 5, 3)


def test_zero_weights_give_a_zero_output(packed_linear):
    found = packed_linear(torch.zeros(4, 8), None)(torch.randn(2, 8))
    assert torch.equal(found, torch.zeros(2, 4))


@torch.no_grad()
def test_a_row_does_not_depend_on_the_other_rows(packed_linear):
    packed, x = packed_linear(torch.randn(40, 50), torch.randn(40)), torch.randn(27, 50)
    alone = torch.cat([packed(row[None]) for row in x])
    assert torch.equal(packed(x), alone)


@torch.no_grad()
def test_weights_may_be_non_contiguous_or_double(packed_linear):
    weight, x = torch.randn(50, 40), torch.randn(3, 50)
    expected = packed_linear(weight.t().contiguous(), None)(x)
    assert torch.equal(packed_linear(weight.t(), None)(x), expected)
    assert torch.equal(packed_linear(weight.t().double(), None)(x), expected)


@torch.no_grad()
def test_the_number_of_threads_does_not_change_the_product(two_threads, packed_linear):
    weight, x = torch.randn(5003, 63), torch.randn(30, 63)
    packed = packed_linear(weight, None)
    by_two = packed(x)
    torch.set_num_threads(1)
    assert torch.equal(packed(x), by_two)
    assert torch.equal(packed_linear(weight, None)(x), by_two)


def test_nan_stays_within_its_row_or_output(packed_linear):
    weight, x = torch.randn(40, 20), torch.randn(3, 20)
    x[1, 7] = torch.nan
    assert packed_linear(weight, None)(x).isnan().any(dim=1).tolist() == [
        False,
        True,
        False,
    ]
    weight[33, 2] = torch.nan
    found = packed_linear(weight, None)(x[:1])
    assert found.isnan().nonzero().tolist() == [[0, 33]]


@torch.no_grad()
def test_int8_weights_use_the_whole_range():
    """The largest weight of an output is 127 steps, where products cannot overflow.

    Without VNNI instructions sums of two products have 16 bits, and steps are coarser.
    """
    weight = torch.randn(40, 64) * torch.logspace(-3, 3, 40)[:, None]
    packed = Packed("int8", weight, None)
    steps = weight.abs().amax(dim=1) / packed.scales
    is_fine = bool({"avx512_vnni", "avx_vnni"} & processor_flags())
    expected = 127.0 if is_fine else 127 / 4
    if is_fine:
        torch.testing.assert_close(
            steps, torch.full((40,), expected), rtol=1e-3, atol=0
        )
    else:
        assert (steps >= expected).all()


@torch.no_grad()
def test_an_int8_layer_is_within_one_percent_of_fp32():
    linear = nn.Linear(512, 512)
    x = torch.randn(200, 512)
    found, expected = Packed("int8", linear.weight, linear.bias)(x), linear(x)
    error = (found - expected).norm() / expected.norm()
    is_fine = bool({"avx512_vnni", "avx_vnni"} & processor_flags())
    assert error < (0.015 if is_fine else 0.05)
    # 127 steps for weights and 255 for inputs; far fewer would have larger errors.
    assert error > 0.001


@pytest.mark.usefixtures("unchecked_types")
def test_inputs_of_another_width_or_type_are_refused(packed_linear):
    layer = packed_linear(torch.randn(8, 16), None)
    for x in (torch.randn(2, 4), torch.randn(2, 17)):
        with pytest.raises(ValueError, match="must get float32"):
            layer(x)
    exact = PackedLinear(np.ones((8, 16), np.float32), None, "fp32")
    with pytest.raises(ValueError, match="must get float32"):
        exact(np.ones((2, 16)))
    with pytest.raises(ValueError, match="must get float32"):
        packed_linear(torch.randn(8, 16), torch.randn(2))
