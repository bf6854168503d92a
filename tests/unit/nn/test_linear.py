import pytest
import torch
from torch.nn import functional

from transduce.nn.kernels import has_fp32_products
from transduce.nn.operators import (
    BLOCK_ROWS,
    Linear,
    add_matrix_product_,
    has_native_product,
    in_blocks,
    linear,
    matrix_product,
)

ROWS = [(1,), (3,), (2, 4), (BLOCK_ROWS,), (5, 13), (3, 2, 50), (0,)]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_the_linear_map_in_bf16_is_near_pytorchs(rows, has_bias):
    layer = Linear(20, 12, bias=has_bias)
    x, upstream = torch.randn(*rows, 20), torch.randn(*rows, 12)

    def found(apply):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = apply(inputs, layer.weight, layer.bias)
        outputs.backward(upstream.bfloat16())
        gradients = [weight.grad for weight in layer.parameters()]
        return [outputs, inputs.grad, *gradients]

    torch.testing.assert_close(
        found(linear), found(functional.linear), atol=0.02, rtol=0.02
    )


def test_second_derivatives_of_the_linear_map_in_bf16_are_refused():
    # Without a refusal they would be wrong: what is saved has no graph.
    x, weight = torch.randn(3, 20, requires_grad=True), torch.randn(12, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x, weight.requires_grad_(), None).float().square().sum()
    [gradient] = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_linear_map_in_fp32_equals_pytorchs():
    layer, x = Linear(20, 12), torch.randn(3, 5, 20)
    assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))


def test_weights_in_bf16_accept_inputs_in_fp32():
    layer, x = Linear(20, 12).bfloat16(), torch.randn(3, 20)
    assert torch.equal(layer(x), layer(x.bfloat16()))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (65, 128), (129, 192)],
)
def test_rows_are_padded_to_whole_blocks(count, expected):
    rows = torch.randn(count, 7)
    found = in_blocks(rows)
    assert (found.shape, found.dtype) == ((expected, 7), torch.bfloat16)
    assert torch.equal(found[:count], rows.bfloat16())
    assert (found[count:] == 0).all()


SHAPES = [(300, 70, 90), (5, 3, 4), (1, 1, 1), (0, 3, 4), (3, 4, 0), (3, 0, 4)]
LAYOUTS = {
    "rows": torch.Tensor.contiguous,
    "transposed": lambda each: each.T.contiguous().T,
    "spaced": lambda each: torch.repeat_interleave(each, 2, dim=1)[:, ::2],
    "part": lambda each: functional.pad(each, (2, 3))[:, 2 : 2 + each.size(1)],
}


@pytest.mark.parametrize("right", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrix_products_are_pytorchs(shape, left, right):
    rows, columns, inner = shape
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    expected = (a.double() @ b.double()).float()
    assert has_native_product(a, b) == has_fp32_products()
    torch.testing.assert_close(matrix_product(left(a), right(b)), expected)
    sums = torch.randn(rows, columns)
    added = sums + expected
    add_matrix_product_(sums, left(a), right(b))
    torch.testing.assert_close(sums, added)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_matrix_products_in_other_precisions_are_pytorchs(dtype):
    a, b = torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    assert not has_native_product(a, b)
    assert torch.equal(matrix_product(a, b), a @ b)


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_pass_through_matrix_products(which):
    factors = [torch.randn(3, 4), torch.randn(4, 5)]
    factors[which].requires_grad_()
    assert not has_native_product(*factors)
    matrix_product(*factors).sum().backward()
    assert factors[which].grad is not None


def test_a_sum_that_was_saved_for_gradients_is_known_to_have_changed():
    weight = torch.randn(3, 5, requires_grad=True)
    sums = torch.zeros(3, 5)
    loss = (weight * sums).sum()
    with torch.no_grad():
        add_matrix_product_(sums, torch.randn(3, 4), torch.randn(4, 5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_default_dtype_does_not_change_matrix_products():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    expected = matrix_product(a, b)
    torch.set_default_dtype(torch.float64)
    try:
        found = matrix_product(a, b)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


@pytest.mark.skipif(not has_fp32_products(), reason="PyTorch multiplies here")
def test_matrix_products_do_not_depend_on_threads():
    a, b = torch.randn(200, 130), torch.randn(130, 70)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            found.append(matrix_product(a, b))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(each, found[0]) for each in found)
