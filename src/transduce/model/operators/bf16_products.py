"""Products of matrices in bf16 with sums in fp32, by the library that PyTorch has."""

import ctypes
from ctypes import byref, c_char, c_float, c_int, c_void_p

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.model.operators.kernels.library import (
    bf16_products_of_torch,
    uses_matrix_unit,
)

_GEMM = ctypes.CFUNCTYPE(None, *[c_void_p] * 13)
_AS_IT_IS, _TRANSPOSED = c_char(b"N"), c_char(b"T")


def has_bf16_products(factor: Tensor) -> bool:
    """Whether it is one of such a product, and this processor forms that fast."""
    return (
        factor.dtype == torch.bfloat16
        and factor.device.type == "cpu"
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and bf16_products_of_torch() is not None
        and uses_matrix_unit()
    )


def add_bf16_product(
    one: Float[Tensor, "rows inner"],
    other: Float[Tensor, "inner columns"],
    beta: float,
    to: Float[Tensor, "rows columns"],
) -> Float[Tensor, "rows columns"]:
    """one @ other, and beta times what was there; in its place.

    Both are in bf16, and may be transposed; the sums are in fp32. PyTorch's own have
    their sums in bf16 too, and where one is transposed take up to twice as long.
    """
    rows, inner = one.shape
    columns = other.size(1)
    assert other.size(0) == inner
    assert to.shape == (rows, columns)
    assert to.dtype == torch.float32
    assert to.is_contiguous()
    (of_one, by_one), (of_other, by_other) = _layout(one), _layout(other)
    # With columns that follow each other, as there, all is the other way round.
    arguments = [
        *(byref(of_other), byref(of_one)),
        *(byref(c_int(each)) for each in (columns, rows, inner)),
        byref(c_float(1.0)),
        *(c_void_p(other.data_ptr()), byref(c_int(by_other))),
        *(c_void_p(one.data_ptr()), byref(c_int(by_one))),
        *(byref(c_float(beta)), c_void_p(to.data_ptr()), byref(c_int(columns))),
    ]
    place = bf16_products_of_torch()
    assert place is not None
    _GEMM(place)(*arguments)
    return to


def _layout(matrix: Tensor) -> tuple[c_char, int]:
    """Whether its rows stand as columns, and how far these are from each other."""
    assert matrix.dtype == torch.bfloat16
    if matrix.is_contiguous():
        return _AS_IT_IS, max(matrix.size(1), 1)
    assert matrix.t().is_contiguous()
    return _TRANSPOSED, max(matrix.size(0), 1)
