import pytest
import torch

from transduce.decoding.kernels.library import (
    OUT_OF_MEMORY,
    kernels,
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


@pytest.mark.skipif(
    not BUILDS["avx512"] <= processor_flags(), reason="this processor can run but one"
)
@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("packed_linear", [PackedFloats, PackedInt8])
@torch.no_grad()
def test_all_say_the_same(monkeypatch, packed_linear):
    weight, bias, x = torch.randn(70, 33), torch.randn(70), torch.randn(13, 33)
    best = packed_linear(weight, bias)(x)
    monkeypatch.setattr(loading, "processor_flags", lambda: BUILDS["avx2"])
    kernels.cache_clear()
    other = packed_linear(weight, bias)
    torch.testing.assert_close(other(x), best, rtol=1e-6, atol=1e-5)


def test_lack_of_memory_is_told():
    require_done(0)
    with pytest.raises(RequestError, match="must have memory for a step, but there is"):
        require_done(OUT_OF_MEMORY)
