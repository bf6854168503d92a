"""Path lengths and sequential operations of real layers are those of Table 1."""

from typing import get_args

import pytest
import torch
from torch import nn

from transduce.analysis import cost as module
from transduce.analysis.cost import (
    CAUSAL,
    EXACT,
    LayerSizes,
    LayerType,
    Recurrence,
    TruncatedRecurrence,
    count_sequential_operations,
    dependencies,
    layer_cost,
    make_layer,
    maximum_path_length,
)

LAYERS = get_args(LayerType)
SIZES = [
    LayerSizes(n=1, d=4, k=3, r=2),
    LayerSizes(n=9, d=4, k=3, r=4),
    LayerSizes(n=10, d=4, k=3, r=4),
    LayerSizes(n=16, d=4, k=2, r=1),
    LayerSizes(n=17, d=4, k=5, r=20),
    LayerSizes(n=28, d=4, k=3, r=7),
]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_path_lengths_equal_table_1(layer, sizes):
    expected = layer_cost(layer, sizes).maximum_path_length
    assert maximum_path_length(layer, sizes) == expected


@pytest.mark.parametrize("layer", LAYERS)
def test_no_output_depends_on_a_masked_input(layer):
    sizes = LayerSizes(n=12, d=4, k=3, r=2)
    found = dependencies(make_layer(layer, sizes).to(EXACT), 12, 4)
    distance = torch.arange(12)[:, None] - torch.arange(12)
    expected = {
        "self-attention": distance < 12,
        "recurrent": distance >= 0,
        "convolutional": (distance >= 0) & (distance < 3),
        "convolutional, contiguous": (distance >= 0) & (distance < 3),
        "separable convolutional": (distance >= 0) & (distance < 3),
        "restricted self-attention": distance.abs() <= 2,
    }[layer]
    assert torch.equal(found, expected)
    assert (layer in CAUSAL) == (not found.triu(1).any())


def test_dependencies_are_the_non_zeros_of_the_jacobian():
    layer = make_layer("restricted self-attention", LayerSizes(n=7, d=4, r=2))
    layer = layer.to(EXACT)
    x = torch.randn(1, 7, 4, dtype=EXACT)
    jacobian = torch.autograd.functional.jacobian(layer, x)
    expected = (jacobian[0, :, :, 0] != 0).any(dim=-1).any(dim=1)
    assert torch.equal(dependencies(layer, 7, 4), expected)


def test_a_dependency_that_cancels_in_a_sum_is_found():
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[..., 0], -x[..., 0]], dim=-1)

    assert torch.equal(dependencies(Difference(), 3, 2), torch.eye(3).bool())


def test_a_truncated_recurrence_computes_the_same():
    recurrence = Recurrence(5)
    x = torch.randn(6, 6, 5)
    found = TruncatedRecurrence(recurrence, num_steps=2)(x)
    torch.testing.assert_close(found, recurrence(x))


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_a_gradient_flows_through_the_given_number_of_steps(num_steps):
    followed = TruncatedRecurrence(Recurrence(4), num_steps).to(EXACT)
    ones = torch.ones(8, 8, dtype=torch.bool)
    expected = ones.tril() & ones.triu(1 - num_steps)
    assert torch.equal(dependencies(followed, 8, 4), expected)


@pytest.mark.parametrize("layer", LAYERS)
def test_only_a_recurrence_has_more_sequential_operations_in_longer_sequences(layer):
    lengths = (8, 16, 32)
    counts = [
        count_sequential_operations(layer, LayerSizes(n=n, d=4, k=3, r=2))
        for n in lengths
    ]
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert second == 2 * first
    assert (first > 0) == (layer == "recurrent")
    costs = [layer_cost(layer, LayerSizes(n=n, d=4)) for n in lengths]
    is_constant = len({cost.sequential_operations for cost in costs}) == 1
    assert is_constant == (first == 0)


def test_the_longest_chain_is_counted():
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            long = x.sin().cos().exp()
            return long + x

    x = torch.randn(2, requires_grad=True)
    # The leaf, three functions and the sum.
    assert module.longest_chain(Chain()(x).grad_fn) == 5
