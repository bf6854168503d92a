"""Products of factors in bf16 against those in double precision."""

import pytest
import torch
from torch import Tensor

from transduce.model.operators import bf16_products as module
from transduce.model.operators.bf16_products import (
    add_bf16_product,
    has_bf16_products,
)
from transduce.model.operators.kernels.library import bf16_products_of_torch

pytestmark = pytest.mark.skipif(
    bf16_products_of_torch() is None, reason="PyTorch has none"
)


def factor(rows: int, columns: int, is_transposed: bool) -> Tensor:
    numbers = torch.randn(rows, columns).bfloat16()
    return numbers.t().contiguous().t() if is_transposed else numbers


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 33, 7), (64, 3, 100)], ids=str)
def test_it_is_the_product_and_what_was_there(sizes, turned, beta):
    rows, inner, columns = sizes
    one = factor(rows, inner, turned[0])
    other = factor(inner, columns, turned[1])
    to = torch.randn(rows, columns)
    expected = one.double() @ other.double() + beta * to.double()
    found = add_bf16_product(one, other, beta, to)
    assert found is to
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_was_there_may_be_no_number_if_it_is_not_wanted():
    to = torch.full((2, 3), float("nan"))
    add_bf16_product(factor(2, 4, False), factor(4, 3, False), 0.0, to)
    assert to.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "has_unit", "is_so"),
    [
        (torch.bfloat16, True, True),
        (torch.float32, True, False),
        (torch.bfloat16, False, False),
    ],
)
def test_only_where_it_is_fast(monkeypatch, dtype, has_unit, is_so):
    monkeypatch.setattr(module, "uses_matrix_unit", lambda: has_unit)
    assert has_bf16_products(torch.zeros(2, 2, dtype=dtype)) == is_so
