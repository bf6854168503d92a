"""Orthogonal matrices, by products and by the kernel, where there is one."""

import pytest
import torch

from instruction_sets import chosen_isa
from transduce.nn import operators as module
from transduce.nn.operators import (
    MAX_CACHED_COLUMNS,
    MAX_CACHED_ROWS,
    nn_api,
    orthogonalized,
)

SMALL = [(3, 8, 8), (2, 12, 5), (2, 5, 12)]
"""Shapes that the kernel does not support."""
WHOLE = [(3, 16, 16), (1, 16, 80), (2, 48, 32), (5, 128, 128), (2, 112, 272)]
SHAPES = SMALL + WHOLE

needs_kernels = pytest.mark.skipif(
    nn_api() is None, reason="there is no native library"
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_become_nearly_one(shape):
    # Not too far apart: the smallest singular values would need more steps.
    matrices = torch.randn(shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = torch.linspace(0.2, 5, min(shape[1:]))
    found = orthogonalized(left @ torch.diag(values) @ right)
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.65
    assert singular.max() < 1.3
    torch.testing.assert_close(found, left @ right, atol=0.35, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_matrices_become_nearly_orthogonal(shape):
    matrices = torch.randn(shape)
    found = orthogonalized(matrices.bfloat16()).double()
    exact = orthogonalized(matrices.double())
    assert torch.linalg.svdvals(found).max() < 1.35
    assert (found - exact).square().mean() < 0.05 * exact.square().mean()


@needs_kernels
@pytest.mark.parametrize("shape", WHOLE, ids=str)
def test_the_kernel_equals_plain_products(shape):
    matrices = torch.randn(shape)
    found = orthogonalized(matrices)
    with chosen_isa("none"):
        plain = orthogonalized(matrices)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    exact = orthogonalized(matrices.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize(
    "matrices",
    [
        torch.zeros(2, 5, 12),
        torch.zeros(2, 16, 24),
        torch.zeros(1, 16, MAX_CACHED_COLUMNS + 16),
        torch.zeros(1, MAX_CACHED_ROWS + 16, MAX_CACHED_ROWS + 16),
        torch.zeros(2, 16, 16, dtype=torch.float64),
        torch.zeros(2, 16, 16, dtype=torch.bfloat16),
    ],
    ids=lambda matrices: f"{tuple(matrices.shape)} {matrices.dtype}",
)
def test_unsupported_matrices_use_plain_products(matrices, monkeypatch):
    monkeypatch.setattr(module, "loaded_nn_api", lambda: pytest.fail("was asked"))
    assert orthogonalized(matrices).shape == matrices.shape


@needs_kernels
@pytest.mark.parametrize("shape", [(4, 32, 48), (4, 48, 32)], ids=str)
def test_inputs_are_not_modified(shape):
    matrices = torch.randn(shape)
    before = matrices.clone()
    orthogonalized(matrices)
    assert torch.equal(matrices, before)


@needs_kernels
def test_inputs_may_be_non_contiguous():
    matrices = torch.randn(4, 32, 48)
    strewn = matrices.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(orthogonalized(strewn), orthogonalized(matrices))


@needs_kernels
def test_the_number_of_threads_does_not_change_the_result(two_threads):
    matrices = torch.randn(9, 64, 96)

    def by(num_threads: int) -> torch.Tensor:
        torch.set_num_threads(num_threads)
        return orthogonalized(matrices)

    assert torch.equal(by(1), by(2))


@pytest.mark.parametrize("shape", [(2, 16, 32), (0, 16, 32)], ids=str)
def test_zero_matrices_stay_zero(shape):
    assert not orthogonalized(torch.zeros(shape)).any()


@needs_kernels
def test_nan_stays_within_its_matrix():
    matrices = torch.randn(2, 16, 32)
    matrices[0, 3, 5] = torch.nan
    found = orthogonalized(matrices)
    assert found[0].isnan().any()
    assert found[1].isfinite().all()
