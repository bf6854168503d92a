import numpy as np
import pytest
import torch

from transduce.decoding.kernels.library import kernels, loaded_kernels
from transduce.decoding.kernels.packed_linear import PackedInt8
from transduce.machine import has_matrix_unit


def is_used() -> bool:
    if kernels() is None or not has_matrix_unit("int8"):
        return False
    return bool(loaded_kernels().transduce_use_matrix_unit(True))


pytestmark = pytest.mark.skipif(
    not is_used(), reason="there are no kernels for a matrix unit, or there is none"
)


@pytest.fixture
def use_unit():
    """Switch it on or off; afterwards it is on."""
    switch = loaded_kernels().transduce_use_matrix_unit
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
def test_it_changes_nothing(use_unit, inputs, outputs, rows):
    weight, bias = torch.randn(outputs, inputs).numpy(), torch.randn(outputs).numpy()
    packed, x = PackedInt8(weight, bias), torch.randn(rows, inputs).numpy() + 1
    by_unit = packed(x)
    use_unit(False)
    assert (packed(x) == by_unit).all()


def test_the_largest_and_smallest_bytes_are_exact(use_unit):
    weight = np.full((40, 2048), -127.0, np.float32)
    weight[::2] = 127.0
    x = np.full((40, 2048), 255.0, np.float32)
    x[:, 0] = 0.0
    np.testing.assert_allclose(PackedInt8(weight, None)(x), x @ weight.T, rtol=1e-6)


def test_threads_change_nothing(two_threads):
    packed = PackedInt8(torch.randn(5000, 64).numpy(), None)
    x = torch.randn(130, 64).numpy()
    by_two = packed(x)
    torch.set_num_threads(1)
    assert (packed(x) == by_two).all()
