"""Nearly orthogonal matrices, by products."""

import pytest
import torch

from transduce.nn.muon import orthogonalized

SHAPES = [(3, 8, 8), (2, 12, 5), (2, 5, 12), (1, 16, 80), (5, 128, 128)]


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


def test_inputs_are_not_modified():
    matrices = torch.randn(4, 32, 48)
    before = matrices.clone()
    orthogonalized(matrices)
    assert torch.equal(matrices, before)


@pytest.mark.parametrize("shape", [(2, 16, 32), (0, 16, 32)], ids=str)
def test_zero_matrices_stay_zero(shape):
    assert not orthogonalized(torch.zeros(shape)).any()
