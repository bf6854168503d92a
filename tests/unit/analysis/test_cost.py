"""The paper's formulas computed by hand, and its estimates in Table 2."""

import numpy as np
import pytest

from transduce.analysis.cost import (
    SUSTAINED_TFLOPS,
    Cluster,
    LayerSizes,
    estimate_flops,
    forecast,
    layer_cost,
    utilisation,
)
from transduce.experiments.presets import PRESETS
from transduce.model.sizes import update_flops


@pytest.mark.parametrize(
    ("layer", "operations", "sequential", "path"),
    [
        ("self-attention", 10 * 10 * 7, 1, 1),
        ("recurrent", 10 * 7 * 7, 10, 10),
        # Dilated layers reach 1, 3, 9, 27 positions; contiguous ones 3, 5, 7, 9, 11.
        ("convolutional", 3 * 10 * 7 * 7, 1, 3),
        ("convolutional, contiguous", 3 * 10 * 7 * 7, 1, 5),
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
