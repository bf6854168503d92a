"""Linear maps, which nearly all of a Transformer's arithmetic is."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

BLOCK = 64
"""Rows of a product in bf16 on a CPU; it has a whole number of blocks."""


class Linear(nn.Linear):
    """A layer of one linear map."""

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*rows outputs"]:
    """x W^T + b."""
    if not is_in_blocks(weight):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        y: Tensor = _LinearInBlocks.apply(x, weight, bias)  # type: ignore[no-untyped-call] # torch's own
        return y
    return _product(x, in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16), bias)


def is_in_blocks(weight: Tensor) -> bool:
    """Whether products with it are in bf16 on a CPU, and so best made in blocks.

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
    """The rows in bf16, and zeros behind them up to a whole block.

    Of less than a block there are as many rows as the next power of two.
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
    """Of x, which the blocks are of."""
    y = functional.linear(blocks, matrix, None if bias is None else bias.to(matrix))
    shape = x.shape[:-1]
    return y[: shape.numel()].view(*shape, len(matrix))


class _LinearInBlocks(torch.autograd.Function):
    """A linear map in bf16, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        blocks, matrix = in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16)
        ctx.save_for_backward(blocks, matrix)
        ctx.dtypes = x.dtype, weight.dtype
        return _product(x, blocks, matrix, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        [gradient] = gradients
        blocks, matrix = ctx.saved_tensors
        of_x, of_weight = ctx.dtypes
        rows = gradient.flatten(0, -2)
        of_y = in_blocks(rows)
        x = (of_y @ matrix)[: len(rows)].view(*gradient.shape[:-1], matrix.size(1))
        weight = of_y.t() @ blocks
        bias = rows.sum(dim=0).to(of_weight) if ctx.needs_input_grad[2] else None
        return x.to(of_x), weight.to(of_weight), bias
