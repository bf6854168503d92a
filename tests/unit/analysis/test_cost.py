"""The paper's formulas by hand, and its layers compared with the model's attention."""

from typing import get_args

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transduce.analysis.cost import (
    SUSTAINED_TFLOPS,
    Cluster,
    Convolution,
    LayerSizes,
    LayerType,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
    estimate_flops,
    forecast,
    layer_cost,
    make_layer,
    share_of_term,
    utilisation,
)
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.model.attention import neighbourhood_mask
from transduce.model.config import update_flops


@pytest.mark.parametrize(
    ("layer", "operations", "sequential", "path"),
    [
        ("self-attention", 10 * 10 * 7, 1, 1),
        ("recurrent", 10 * 7 * 7, 10, 10),
        # Dilated layers reach 1, 3, 9, 27 positions; contiguous ones 3, 5, 7, 9, 11.
        ("convolutional", 3 * 10 * 7 * 7, 1, 3),
        ("convolutional, contiguous", 3 * 10 * 7 * 7, 1, 5),
        ("separable convolutional", 3 * 10 * 7 + 10 * 7 * 7, 1, 3),
        # Positions nine apart, in windows of four.
        ("restricted self-attention", 4 * 10 * 7, 1, 3),
    ],
)
def test_layer_costs_equal_table_1(layer, operations, sequential, path):
    cost = layer_cost(layer, LayerSizes(n=10, d=7, k=3, r=4))
    assert cost.operations == operations
    assert cost.sequential_operations == sequential
    assert cost.maximum_path_length == path


@pytest.mark.parametrize(("n", "path"), [(1, 1), (3, 1), (4, 2), (9, 2), (10, 3)])
def test_dilated_convolutions_reach_a_power_of_their_width(n, path):
    cost = layer_cost("convolutional", LayerSizes(n=n, d=1, k=3))
    assert cost.maximum_path_length == path


@pytest.mark.parametrize(
    "layer", ["convolutional, contiguous", "restricted self-attention"]
)
def test_a_single_position_takes_one_step(layer):
    assert layer_cost(layer, LayerSizes(n=1, d=1)).maximum_path_length == 1


def test_sizes_with_which_layers_connect_nothing_are_refused():
    for wrong in ({"k": 1}, {"r": 0}, {"n": 0}):
        [name] = wrong
        with pytest.raises(ConfigError, match=f"`{name}` must be a"):
            LayerSizes(**{"n": 3, "d": 4, **wrong})


P100S = Cluster(name="P100", tflops=9.5, num_devices=8)


@pytest.mark.parametrize(("hours", "flops"), [(12.0, 3.3e18), (84.0, 2.3e19)])
def test_the_papers_estimates_equal_table_2(hours, flops):
    assert estimate_flops(hours * 3600, P100S) == pytest.approx(flops, rel=0.01)


def test_devices_have_the_speed_of_the_paper():
    assert SUSTAINED_TFLOPS == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


def test_the_papers_estimate_has_the_order_of_its_products():
    # 100,000 updates of 25,000 tokens a side, in sentences of 25 tokens.
    pairs = np.full(1000, 25)
    total = 1e5 * update_flops(PRESETS["base"].model, pairs, pairs)
    assert 0.28 < utilisation(total, 12 * 3600.0, P100S) < 0.32


def test_a_forecast_uses_published_utilisations():
    cluster = Cluster(name="Abacus", tflops=2.0, num_devices=5)
    assert cluster.flops == 1e13
    least, most = forecast(1e16, cluster)
    assert (least, most) == pytest.approx((1000 / 0.43, 1000 / 0.28))
    assert utilisation(1e16, most, cluster) == pytest.approx(0.28)
    assert str(cluster) == "5 x Abacus of 2 TFLOPS"


CPU = torch.device("cpu")
LAYERS = get_args(LayerType)


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
    assert share_of_term("self-attention", sizes, "n") == pytest.approx(of_term / total)


def test_the_share_of_restricted_attention_follows_from_its_products():
    sizes = LayerSizes(n=4096, d=16, r=8)
    total, of_term = counted_flops(RestrictedSelfAttention(16, 8), sizes)
    share = share_of_term("restricted self-attention", sizes, "r")
    assert share == pytest.approx(of_term / total, rel=1e-3)


@pytest.mark.parametrize("layer", ["recurrent", "convolutional"])
def test_layers_without_attention_have_no_attention_products(layer):
    assert share_of_term(layer, LayerSizes(n=4, d=1000), "n") == 1


def test_a_separable_convolution_has_a_term_for_its_kernel_and_one_for_its_channels():
    sizes = LayerSizes(n=12, d=6, k=4)
    layer = make_layer("separable convolutional", sizes)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, 12, 6))
    operations = layer_cost("separable convolutional", sizes).operations
    assert counter.get_total_flops() == 2 * operations
    shares = [share_of_term("separable convolutional", sizes, c) for c in "kdn"]
    assert shares == pytest.approx([4 / 10, 6 / 10, 1])


def test_with_a_kernel_of_the_whole_sequence_it_costs_attention_and_a_linear_map():
    """Section 4: a separable convolution with k = n."""
    sizes = LayerSizes(n=12, d=6, k=12)
    attention = layer_cost("self-attention", sizes).operations
    cost = layer_cost("separable convolutional", sizes).operations
    assert cost == attention + 12 * 6**2


def test_a_separable_convolution_equals_plain_loops():
    layer = SeparableConvolution(4, kernel_width=3, dilation=2)
    x = torch.randn(1, 7, 4)
    depth, points = layer.depthwise, layer.pointwise
    for position in range(7):
        channels = depth.bias.clone()
        for i in range(3):
            if (at := position - 2 * (2 - i)) >= 0:
                channels += depth.weight[:, 0, i] * x[0, at]
        expected = points.weight[:, :, 0] @ channels + points.bias
        torch.testing.assert_close(layer(x)[0, position], expected)


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
