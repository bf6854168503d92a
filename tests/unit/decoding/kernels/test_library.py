from pathlib import Path

import pytest
import torch

from transduce.decoding.kernels.library import (
    OUT_OF_MEMORY,
    kernels,
    loaded_kernels,
    require_done,
)
from transduce.decoding.kernels.packed_linear import PackedFloats, PackedInt8
from transduce.device import processor_flags
from transduce.errors import RequestError
from transduce.kernels import loading
from transduce.kernels.loading import BUILDS


@pytest.fixture
def asked_anew():
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("build", BUILDS)
@torch.no_grad()
def test_each_says_the_same(monkeypatch, build):
    if not BUILDS[build] <= processor_flags():
        pytest.skip("this processor cannot run it")
    monkeypatch.setattr(loading, "processor_flags", lambda: BUILDS[build])
    kernels.cache_clear()
    assert Path(loaded_kernels()._name).name.startswith(f"{build}.")
    weight, bias, x = torch.randn(70, 33), torch.randn(70), torch.randn(13, 33)
    found = PackedFloats(weight, bias)(x)
    torch.testing.assert_close(found, x @ weight.t() + bias, rtol=1e-6, atol=1e-5)
    x[:, :2] = torch.tensor([0.0, 255.0])  # bytes are what they stand for
    x[:, 2:] = (30 * x[:, 2:]).round().clamp(0, 255)
    packed = PackedInt8(weight, bias)
    # How they round weights is their own.
    rounded = (weight / packed._scales[:70, None]).round() * packed._scales[:70, None]
    torch.testing.assert_close(packed(x), x @ rounded.t() + bias, rtol=1e-5, atol=1e-3)


def test_lack_of_memory_is_told():
    require_done(0)
    with pytest.raises(RequestError, match="must have memory for a step, but there is"):
        require_done(OUT_OF_MEMORY)
