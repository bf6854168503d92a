"""Orthogonalization of matrices, for Muon (Jordan et al., 2024)."""

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.native import check, ffi
from transduce.nn.native_operators import (
    ROW_MULTIPLE,
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)

POLYNOMIALS = (
    (7.9424, -22.2873, 15.8239),
    (3.5875, -2.5845, 0.4893),
    (2.6604, -1.9134, 0.4194),
)
"""Factors of x, x^3 and x^5 in each step.

Each is the odd polynomial nearest to one on the range to which the previous step maps
0.01 to 1, widened by a fiftieth because products are rounded (Amsel et al., 2025).
"""
EPSILON = 1e-7
"""Added to norms, which may be zero."""
MAX_ROWS, MAX_COLUMNS = 256, 512
"""Largest matrix that (nearly) stays in the caches of one core."""


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    """Bring the singular values of matrices near one, from 0.7 to 1.3.

    Values below a hundredth of a matrix's Schatten norm of order four stay farther
    away. Newton-Schulz iterations need only matrix products.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    wide = matrices.mT if is_tall else matrices
    near = _natively(wide) if _has_native(wide) else _by_products(wide)
    return near.mT if is_tall else near


def _by_products(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + EPSILON)
    for step, (a, b, c) in enumerate(POLYNOMIALS):
        square = x @ x.mT
        if step == 0:
            # The Schatten norm, which is nearer to the largest singular value.
            norm = square.norm(dim=(1, 2), keepdim=True).sqrt() + EPSILON
            x, square = x / norm, square / norm**2
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def _has_native(matrices: Float[Tensor, "count rows columns"]) -> bool:
    _, rows, columns = matrices.shape
    return (
        matrices.device.type == "cpu"
        and matrices.dtype == torch.float32
        and rows <= MAX_ROWS
        and columns <= MAX_COLUMNS
        and rows % ROW_MULTIPLE == 0
        and columns % ROW_MULTIPLE == 0
        and nn_api() is not None
    )


def _natively(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    api, threads = loaded_nn_api(), torch.get_num_threads()
    x = matrices.clone(memory_format=torch.contiguous_format)
    count, rows, columns = x.shape
    factors = ffi.new("float[]", [each for step in POLYNOMIALS for each in step])
    task = ffi.new(
        "td_orthogonalization *",
        {
            "count": count,
            "rows": rows,
            "columns": columns,
            "steps": len(POLYNOMIALS),
            "factors": factors,
            "epsilon": EPSILON,
            "matrices": tensor_pointer(x),
        },
    )
    workspace = x.new_empty(threads, api.orthogonalize_workspace(task))
    task.workspace = tensor_pointer(workspace)
    check(api.orthogonalize(task, threads))
    return x
