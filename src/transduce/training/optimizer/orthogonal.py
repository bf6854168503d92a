"""The orthogonal matrix nearest to a matrix, about (Jordan et al., 2024)."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.model.operators.addresses import address
from transduce.model.operators.kernels.fields import OrthogonalizationFields
from transduce.model.operators.kernels.library import (
    WHOLE,
    kernels,
    loaded_kernels,
)

POLYNOMIALS = (
    (7.9424, -22.2873, 15.8239),
    (3.5875, -2.5845, 0.4893),
    (2.6604, -1.9134, 0.4194),
)
"""Of each step, the factors of x, x^3 and x^5.

Each is the odd polynomial that is nearest to one on what the step before leaves of 0.01
to 1, and a fiftieth beyond it, since products are rounded (Amsel et al., 2025).
"""
LEAST_NORM = 1e-7
"""Added to a matrix's, which may be zero."""
MOST_ROWS, MOST_COLUMNS = 256, 512
"""Of a matrix that stays in the caches of one core, or nearly."""


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    """The matrices with their singular values brought near one, from 0.7 to 1.3.

    Those are farther from it that are not a hundredth of a matrix's Schatten norm of
    order four. By Newton-Schulz iterations, which are matrix products alone.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    wide = matrices.mT if is_tall else matrices
    near = _by_kernel(wide) if _has_kernel(wide) else _by_products(wide)
    return near.mT if is_tall else near


def _by_products(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + LEAST_NORM)
    for step, (a, b, c) in enumerate(POLYNOMIALS):
        square = x @ x.mT
        if step == 0:
            # The Schatten norm, which is nearer to the largest singular value.
            norm = square.norm(dim=(1, 2), keepdim=True).sqrt() + LEAST_NORM
            x, square = x / norm, square / norm**2
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def _has_kernel(matrices: Float[Tensor, "count rows columns"]) -> bool:
    _, rows, columns = matrices.shape
    return (
        matrices.device.type == "cpu"
        and matrices.dtype == torch.float32
        and rows <= MOST_ROWS
        and columns <= MOST_COLUMNS
        and rows % WHOLE == 0
        and columns % WHOLE == 0
        and kernels() is not None
    )


def _by_kernel(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    library, threads = loaded_kernels(), torch.get_num_threads()
    x = matrices.clone(memory_format=torch.contiguous_format)
    count, rows, columns = x.shape
    factors = [factor for polynomial in POLYNOMIALS for factor in polynomial]
    places = (ctypes.c_float * len(factors))(*factors)
    fields = OrthogonalizationFields(
        count=count,
        rows=rows,
        columns=columns,
        steps=len(POLYNOMIALS),
        factors=ctypes.addressof(places),
        least_norm=LEAST_NORM,
        matrices=address(x),
    )
    at = ctypes.byref(fields)
    room = x.new_empty(threads, library.transduce_orthogonal_room(at))
    fields.room = address(room)
    library.transduce_orthogonalize(at, threads)
    return x
