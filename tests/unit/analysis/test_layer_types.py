"""Layers compared with the model's attention, and their FLOPs with the formulas."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transduce.analysis.cost import LayerSizes, layer_cost
from transduce.analysis.layer_types import (
    Convolution,
    RestrictedSelfAttention,
    SelfAttention,
    make_layer,
    share_of_term,
)
from transduce.model.attention import neighbourhood_mask

CPU = torch.device("cpu")
LAYERS = [
    "self-attention",
    "recurrent",
    "convolutional",
    "convolutional, contiguous",
    "restricted self-attention",
]


def counted_flops(layer: torch.nn.Module, sizes: LayerSizes) -> tuple[int, int]:
    """FLOPs of all products of a pass, and of scores and weighted values alone."""
    if hasattr(layer, "attention"):
        # Compute scores by counted matrix products.
        layer.attention.weights_tap.register_forward_hook(lambda *_: None)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, sizes.n, sizes.d))
    by_operation = counter.get_flop_counts()["Global"]
    return counter.get_total_flops(), by_operation.get(torch.ops.aten.bmm, 0)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_keeps_the_shape_of_a_sequence(layer):
    sizes = LayerSizes(n=11, d=6, k=3, r=4)
    x = torch.randn(2, 11, 6)
    assert make_layer(layer, sizes)(x).shape == x.shape


@pytest.mark.parametrize("length", [1, 2, 3, 7, 12, 40])
@pytest.mark.parametrize("r", [1, 2, 5, 12, 60])
def test_restricted_attention_equals_the_models_with_a_mask(length, r):
    banded = RestrictedSelfAttention(128, r)
    x = torch.randn(3, length, 128)
    mask = neighbourhood_mask(length, length, r, CPU)
    expected = banded.attention(x, x, mask)
    torch.testing.assert_close(banded(x), expected, atol=1e-5, rtol=1e-5)


def test_restricted_attention_has_the_models_gradients():
    banded = RestrictedSelfAttention(16, 3)
    x = torch.randn(2, 10, 16, requires_grad=True)
    inputs = [x, *banded.parameters()]
    found = torch.autograd.grad(banded(x).square().sum(), inputs)
    mask = neighbourhood_mask(10, 10, 3, CPU)
    masked = banded.attention(x, x, mask)
    expected = torch.autograd.grad(masked.square().sum(), inputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("n", "d", "r"), [(64, 16, 4), (128, 16, 4), (64, 64, 8)])
def test_restricted_attention_costs_at_most_three_r_scores_per_position(n, d, r):
    sizes = LayerSizes(n=n, d=d, r=r)
    _, flops = counted_flops(RestrictedSelfAttention(d, r), sizes)
    operations = layer_cost("restricted self-attention", sizes).operations
    # The first and the last block have keys in two blocks, not three.
    assert flops == 4 * (3 * operations - 2 * r * r * d)


def test_heads_have_the_papers_width():
    assert SelfAttention(512).attention.num_heads == 8
    assert SelfAttention(8).attention.num_heads == 1


@pytest.mark.parametrize("d", [16, 48])
def test_the_share_of_attention_follows_from_its_products(d):
    sizes = LayerSizes(n=40, d=d)
    total, of_term = counted_flops(SelfAttention(d), sizes)
    assert share_of_term("self-attention", sizes) == pytest.approx(of_term / total)


def test_the_share_of_restricted_attention_follows_from_its_products():
    sizes = LayerSizes(n=4096, d=16, r=8)
    total, of_term = counted_flops(RestrictedSelfAttention(16, 8), sizes)
    share = share_of_term("restricted self-attention", sizes)
    assert share == pytest.approx(of_term / total, rel=1e-3)


@pytest.mark.parametrize("layer", ["recurrent", "convolutional"])
def test_layers_without_attention_have_no_attention_products(layer):
    assert share_of_term(layer, LayerSizes(n=4, d=1000)) == 1


def test_a_convolution_equals_plain_loops():
    layer = Convolution(4, kernel_width=3, dilation=2)
    x = torch.randn(1, 9, 4)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    for position in range(9):
        expected = bias.clone()
        for i in range(3):
            before = position - 2 * (2 - i)
            if before >= 0:
                expected += weight[:, :, i] @ x[0, before]
        torch.testing.assert_close(layer(x)[0, position], expected)


@pytest.mark.parametrize(("place", "dilation"), [(0, 1), (1, 3), (2, 9), (9, 20)])
def test_convolutions_are_dilated_by_their_place(place, dilation):
    sizes = LayerSizes(n=20, d=4, k=3)
    made = make_layer("convolutional", sizes, place).convolution
    assert made.dilation == (dilation,)
    made = make_layer("convolutional, contiguous", sizes, place).convolution
    assert made.dilation == (1,)
