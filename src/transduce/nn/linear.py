"""Linear maps, which are nearly all of a Transformer's arithmetic."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

BLOCK = 64
"""Rows of a bf16 product on a CPU are padded to a multiple of this many."""


class Linear(nn.Linear):
    """Layer of one linear map."""

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*rows outputs"]:
    """Compute x W^T + b."""
    if not is_in_blocks(weight):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        y: Tensor = _LinearInBlocks.apply(x, weight, bias)  # type: ignore[no-untyped-call] # torch's own
        return y
    return _product(x, in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16), bias)


def is_in_blocks(weight: Tensor) -> bool:
    """Whether products with a weight are in bf16 on a CPU, and so better in blocks.

    PyTorch compiles such a product anew for each number of rows, which took a third of
    the time of training a small model, and a gigabyte.
    """
    if weight.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return weight.dtype == torch.bfloat16


def in_blocks(
    rows: Float[Tensor, "rows width"],
) -> Float[Tensor, "blocks width"]:
    """Return the rows in bf16, padded with rows of zeros to a multiple of `BLOCK`.

    Fewer rows than a block are padded to the next power of two.
    """
    count = len(rows)
    block = BLOCK if count > BLOCK else 1 << (count - 1).bit_length()
    padded = -(-count // block) * block
    if count in (0, padded):
        return rows.to(torch.bfloat16)
    blocks = rows.new_empty(padded, rows.size(1), dtype=torch.bfloat16)
    blocks[:count] = rows
    blocks[count:] = 0
    return blocks


def _product(
    x: Float[Tensor, "*rows inputs"],
    blocks: Float[Tensor, "blocks inputs"],
    matrix: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*rows outputs"]:
    """Compute the linear map of x, given its rows in blocks."""
    y = functional.linear(blocks, matrix, None if bias is None else bias.to(matrix))
    shape = x.shape[:-1]
    return y[: shape.numel()].view(*shape, len(matrix))


class _LinearInBlocks(torch.autograd.Function):
    """Linear map in bf16, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        blocks, matrix = in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16)
        ctx.save_for_backward(blocks, matrix)
        ctx.dtypes = x.dtype, weight.dtype
        return _product(x, blocks, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        [gradient] = gradients
        blocks, matrix = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        rows = gradient.flatten(0, -2)
        grad_y = in_blocks(rows)
        x = (grad_y @ matrix)[: len(rows)].view(*gradient.shape[:-1], matrix.size(1))
        weight = grad_y.t() @ blocks
        bias = rows.sum(dim=0).to(weight_dtype) if ctx.needs_input_grad[2] else None
        return x.to(x_dtype), weight.to(weight_dtype), bias
