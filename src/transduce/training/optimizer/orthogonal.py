"""The orthogonal matrix nearest to a matrix, about (Jordan et al., 2024)."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.kernels.loading import address
from transduce.model.operators.kernels.fields import OrthogonalizationFields
from transduce.model.operators.kernels.library import (
    WHOLE,
    kernels,
    loaded_kernels,
)

STEPS = 5
"""Of Newton and Schulz."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Factors of x, x^3 and x^5 that bring any x from 0 to 1 near one (Jordan et al.)."""
LEAST_NORM = 1e-7
"""Added to a matrix's, which may be zero."""
MOST_ROWS, MOST_COLUMNS = 256, 512
"""Of a matrix that stays in the caches of one core, or nearly."""


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    """The matrices with their singular values brought near one, from 0.7 to 1.2.

    By Newton-Schulz iterations, which are matrix products alone.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    wide = matrices.mT if is_tall else matrices
    near = _by_kernel(wide) if _has_kernel(wide) else _by_products(wide)
    return near.mT if is_tall else near


def _by_products(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    a, b, c = QUINTIC
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + LEAST_NORM)
    for _ in range(STEPS):
        square = x @ x.mT
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
    fields = OrthogonalizationFields(
        count=count,
        rows=rows,
        columns=columns,
        steps=STEPS,
        factors=(ctypes.c_float * 3)(*QUINTIC),
        least_norm=LEAST_NORM,
        matrices=address(x),
    )
    at = ctypes.byref(fields)
    room = x.new_empty(threads, library.transduce_orthogonal_room(at))
    fields.room = address(room)
    library.transduce_orthogonalize(at, threads)
    return x
