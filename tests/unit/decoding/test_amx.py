import numpy as np
import pytest
import torch

from transduce.decoding.torch_model import PackedLinear
from transduce.native import library


def has_amx() -> bool:
    loaded = library()
    return loaded is not None and bool(loaded.td_has_amx_int8())


pytestmark = pytest.mark.skipif(not has_amx(), reason="no AMX")


@pytest.fixture
def allow_amx():
    """Switch AMX on or off; it is on again after the test."""
    switch = library().td_allow_amx
    yield switch
    switch(True)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (64, 1), (64, 16), (64, 17), (128, 33), (192, 33), (320, 64), (512, 96),
        (2048, 70), (4096, 40), (70, 40),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 49, 65, 100])
def test_amx_and_plain_loops_give_equal_products(allow_amx, inputs, outputs, rows):
    weight, bias = torch.randn(outputs, inputs).numpy(), torch.randn(outputs).numpy()
    packed, x = (
        PackedLinear(weight, bias, "int8"),
        torch.randn(rows, inputs).numpy() + 1,
    )
    by_amx = packed(x)
    allow_amx(False)
    assert (packed(x) == by_amx).all()


def test_amx_products_of_extreme_bytes_are_exact(allow_amx):
    weight = np.full((40, 2048), -127.0, np.float32)
    weight[::2] = 127.0
    x = np.full((40, 2048), 255.0, np.float32)
    x[:, 0] = 0.0
    np.testing.assert_allclose(
        PackedLinear(weight, None, "int8")(x), x @ weight.T, rtol=1e-6
    )


def test_the_number_of_threads_does_not_change_the_product(two_threads):
    packed = PackedLinear(torch.randn(5000, 64).numpy(), None, "int8")
    x = torch.randn(130, 64).numpy()
    by_two = packed(x)
    torch.set_num_threads(1)
    assert (packed(x) == by_two).all()
