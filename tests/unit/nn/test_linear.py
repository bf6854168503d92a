import pytest
import torch
from torch.nn import functional

from transduce.nn.operators import BLOCK_ROWS, Linear, in_blocks, linear

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
