"""The paper's estimate of what its trainings cost, against its Table 2."""

import numpy as np
import pytest

from transduce.analysis.cost import SUSTAINED_TFLOPS, estimate_flops
from transduce.experiments.presets import PRESETS
from transduce.model.cost import update_flops


@pytest.mark.parametrize(("hours", "flops"), [(12.0, 3.3e18), (84.0, 2.3e19)])
def test_the_papers_estimates_are_those_of_table_2(hours, flops):
    assert estimate_flops(hours * 3600, 8, "P100") == pytest.approx(flops, rel=0.01)


def test_devices_are_as_fast_as_the_paper_says():
    assert SUSTAINED_TFLOPS == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


def test_the_papers_estimate_is_of_the_order_of_its_products():
    # 100,000 updates of 25,000 tokens a side, in sentences of 25 tokens.
    pairs = np.full(1000, 25)
    total = 100_000 * update_flops(PRESETS["base"].model, pairs, pairs)
    assert 0.1 < total / estimate_flops(12 * 3600.0, 8, "P100") < 1
