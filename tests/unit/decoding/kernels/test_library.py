from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.decoding.kernels.library import (
    OUT_OF_MEMORY,
    kernels,
    loaded_kernels,
    require_done,
)
from transduce.decoding.kernels.packed_linear import PackedFloats, PackedInt8
from transduce.errors import RequestError
from transduce.kernels import loading
from transduce.kernels.loading import BUILDS
from transduce.machine import processor_flags


@pytest.fixture
def asked_anew():
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("build", BUILDS)
def test_each_says_the_same(monkeypatch, build):
    if not BUILDS[build] <= processor_flags():
        pytest.skip("this processor cannot run it")
    monkeypatch.setattr(loading, "processor_flags", lambda: BUILDS[build])
    kernels.cache_clear()
    assert Path(loaded_kernels()._name).name.startswith(f"{build}.")
    shapes = (70, 33), (70,), (13, 33)
    weight, bias, x = (torch.randn(shape).numpy() for shape in shapes)
    found = PackedFloats(weight, bias)(x)
    np.testing.assert_allclose(found, x @ weight.T + bias, rtol=1e-6, atol=1e-5)
    x[:, :2] = 0.0, 255.0  # bytes are what they stand for
    x[:, 2:] = (30 * x[:, 2:]).round().clip(0, 255)
    packed = PackedInt8(weight, bias)
    # How they round weights is their own.
    rounded = (weight / packed._scales[:70, None]).round() * packed._scales[:70, None]
    np.testing.assert_allclose(packed(x), x @ rounded.T + bias, rtol=1e-5, atol=1e-3)


def test_lack_of_memory_is_told():
    require_done(0)
    with pytest.raises(RequestError, match="must have memory for a step, but there is"):
        require_done(OUT_OF_MEMORY)
