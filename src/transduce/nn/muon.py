"""Updates by Muon: orthogonalized matrices, in the native library or in PyTorch.

`training.optimizer.Muon` is the optimizer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.native import ffi
from transduce.nn.kernels import (
    PANEL_WIDTH,
    ROW_MULTIPLE,
    check,
    has_bf16_products,
    loaded_nn_api,
    new_floats,
    nn_api,
    tensor_pointer,
)

POLYNOMIALS = (
    (7.9424, -22.2873, 15.8239),
    (3.5875, -2.5845, 0.4893),
    (2.6604, -1.9134, 0.4194),
)
"""Coefficients of x, x^3 and x^5 in each step (Amsel et al., 2025).

The steps move singular values from 0.01 to 1 towards one. The polynomial of a step is
the odd one nearest to one on the values that the previous step gives. Their range is
widened by a fiftieth, because products are rounded.
"""


NORM_EPSILON = 1e-7
"""Added to norms, which may be zero."""


MAX_CACHED_ROWS, MAX_CACHED_COLUMNS = 256, 512
"""Largest wide matrix, or transpose of a tall one, that stays in one core's caches."""


def matrix_size(weight: Tensor, count: int) -> tuple[int, int]:
    """Rows and columns of each of a weight's `count` matrices, one below the other."""
    columns = weight.size(-1)
    return weight.numel() // columns // count, columns


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    """Bring the singular values of matrices near one, from 0.7 to 1.3.

    Values below a hundredth of a matrix's Schatten norm of order four stay farther
    away. Newton-Schulz iterations need only matrix products.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + NORM_EPSILON)
    for step, (a, b, c) in enumerate(POLYNOMIALS):
        square = x @ x.mT
        if step == 0:
            # The Schatten norm, which is nearer to the largest singular value.
            norm = square.norm(dim=(1, 2), keepdim=True).sqrt() + NORM_EPSILON
            x, square = x / norm, square / norm**2
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def has_native_muon(weights: Sequence[Tensor], count: int, dtype: torch.dtype) -> bool:
    """Whether `native_muon` can update weights, and no slower than PyTorch's products.

    They have one shape and `count` matrices each. Products are in `dtype`.
    """
    rows, columns = matrix_size(weights[0], count)
    is_bf16 = dtype == torch.bfloat16
    multiple = PANEL_WIDTH if is_bf16 else ROW_MULTIPLE
    return (
        all(
            each.device.type == "cpu"
            and each.dtype == torch.float32
            and each.is_contiguous()
            for each in weights
        )
        and min(rows, columns) <= MAX_CACHED_ROWS
        and max(rows, columns) <= MAX_CACHED_COLUMNS
        and rows % multiple == 0
        and columns % multiple == 0
        and nn_api() is not None
        and (has_bf16_products() if is_bf16 else dtype == torch.float32)
    )


def native_muon(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    count: int,
    gradient_weight: float,
    rate: float,
    dtype: torch.dtype,
) -> None:
    """Update weights of one shape, of `count` matrices each, by Muon.

    `momenta` are moving averages of the gradients and are updated too, with the weight
    `gradient_weight` for a new gradient: 1 minus the momentum. The orthogonal matrices
    are multiplied by `rate` and subtracted. Products are in `dtype`.
    """
    api, threads = loaded_nn_api(), torch.get_num_threads()
    rows, columns = matrix_size(weights[0], count)
    # The tensors and arrays that a struct points to must be kept during the call.
    gradients = [gradient.contiguous() for gradient in gradients]
    shape = weights[0].shape
    gradient_pointers = _matrix_pointers(gradients, shape, count)
    momentum_pointers = _matrix_pointers(momenta, shape, count)
    weight_pointers = _matrix_pointers(weights, shape, count)
    coefficients = ffi.new("float[]", [each for step in POLYNOMIALS for each in step])
    task = ffi.new(
        "td_muon *",
        {
            "count": len(weights) * count,
            "rows": rows,
            "columns": columns,
            "steps": len(POLYNOMIALS),
            "factors": coefficients,
            "epsilon": NORM_EPSILON,
            "gradient_weight": gradient_weight,
            "rate": rate,
            "gradients": ffi.cast("float **", gradient_pointers),
            "momenta": momentum_pointers,
            "weights": weight_pointers,
            "is_bf16": dtype == torch.bfloat16,
        },
    )
    workspace = new_floats(threads, api.muon_workspace(task))
    task.workspace = tensor_pointer(workspace)
    check(api.muon(task, threads))
    torch.autograd.graph.increment_version(weights)


def _matrix_pointers(tensors: Sequence[Tensor], shape: torch.Size, count: int) -> Any:
    """Return an array of pointers to the `count` matrices of each tensor."""
    size = shape.numel() // count
    starts = (tensor_pointer(each, shape=shape) for each in tensors)
    each = [start + size * i for start in starts for i in range(count)]
    return ffi.new("float *[]", each)
