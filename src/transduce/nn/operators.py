"""Operators of layers: linear maps, dropout, sums with a norm, recurrent units.

The native library computes an operator where it can read the given tensors, and PyTorch
elsewhere. Attention and whole stacks are in `native_layers.py`, the loss in
`cross_entropy.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce.model.layers import SSRU
from transduce.native import ffi
from transduce.nn.kernels import (
    ROW_MULTIPLE,
    check,
    has_fp32_products,
    is_native,
    loaded_nn_api,
    new_floats,
    tensor_pointer,
)

BLOCK_ROWS = 64
"""Rows of a bf16 product on a CPU are padded to a multiple of this many."""


class Linear(nn.Linear):
    """PyTorch's linear layer, computed by `linear`."""

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
    if not multiplies_in_blocks(weight):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        y: Tensor = _LinearInBlocks.apply(x, weight, bias)  # type: ignore[no-untyped-call] # torch's own
        return y
    return _linear_product(
        x, in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16), bias
    )


def multiplies_in_blocks(weight: Tensor) -> bool:
    """Whether products with a weight are in bf16 on a CPU, and so faster in blocks.

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
    """Return the rows in bf16, padded with rows of zeros to a multiple of `BLOCK_ROWS`.

    Fewer rows than a block are padded to the next power of two.
    """
    count = len(rows)
    block = BLOCK_ROWS if count > BLOCK_ROWS else 1 << (count - 1).bit_length()
    padded = -(-count // block) * block
    if count in (0, padded):
        return rows.to(torch.bfloat16)
    blocks = rows.new_empty(padded, rows.size(1), dtype=torch.bfloat16)
    blocks[:count] = rows
    blocks[count:] = 0
    return blocks


def _linear_product(
    x: Float[Tensor, "*rows inputs"],
    blocks: Float[Tensor, "blocks inputs"],
    matrix: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*rows outputs"]:
    """Compute the linear map of x, given its rows in blocks."""
    y = functional.linear(blocks, matrix, None if bias is None else bias.to(matrix))
    shape = x.shape[:-1]
    return y[: shape.numel()].view(*shape, len(matrix))


def matrix_product(
    a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"]
) -> Float[Tensor, "rows columns"]:
    """Compute a b, natively in fp32 on a CPU unless gradients are needed."""
    if not has_native_product(a, b):
        return a @ b
    c = a.new_empty(len(a), b.size(1))
    _multiply_natively(a, b, c, accumulates=False)
    return c


def add_matrix_product_(
    c: Float[Tensor, "rows columns"],
    a: Float[Tensor, "rows inner"],
    b: Float[Tensor, "inner columns"],
) -> None:
    """Add a b to c, natively in fp32 on a CPU unless gradients are needed."""
    if has_native_product(a, b, c) and c.is_contiguous():
        _multiply_natively(a, b, c, accumulates=True)
        torch.autograd.graph.increment_version([c])
    else:
        c.add_(a @ b)


def has_native_product(*matrices: Tensor) -> bool:
    """Whether the native product exists for these factors and is the fastest."""
    is_differentiated = torch.is_grad_enabled() and any(
        each.requires_grad for each in matrices
    )
    return (
        all(each.dtype == torch.float32 and is_native(each) for each in matrices)
        and not is_differentiated
        and has_fp32_products()
    )


def _multiply_natively(a: Tensor, b: Tensor, c: Tensor, *, accumulates: bool) -> None:
    """Compute c = a b or, if it `accumulates`, c += a b in the library."""
    if a.size(1) != len(b):
        raise ValueError(
            f"Matrices of {list(a.shape)} and {list(b.shape)} have no product."
        )
    a, b = _with_unit_stride(a), _with_unit_stride(b)
    api, threads = loaded_nn_api(), torch.get_num_threads()
    workspace = new_floats(threads, api.product_workspace())
    product = ffi.new(
        "td_product *",
        {
            "rows": len(a),
            "columns": b.size(1),
            "inner": len(b),
            "a": _factor(a),
            "b": _factor(b),
            "c": tensor_pointer(c, shape=(len(a), b.size(1))),
            "accumulates": accumulates,
            "workspace": tensor_pointer(workspace),
        },
    )
    check(api.product(product, threads))


def _with_unit_stride(
    matrix: Float[Tensor, "rows columns"],
) -> Float[Tensor, "rows columns"]:
    """Return the matrix, or a copy if neither its rows nor columns are contiguous."""
    return matrix if 1 in matrix.stride() else matrix.contiguous()


def _factor(matrix: Float[Tensor, "rows columns"]) -> dict[str, Any]:
    """Return the fields of a `td_factor`."""
    # PyTorch calls a matrix of few elements contiguous whatever its strides.
    is_contiguous = matrix.is_contiguous()
    strides = (matrix.size(1), 1) if is_contiguous else matrix.stride()
    return {
        "data": ffi.cast("float *", matrix.data_ptr()),
        "row_stride": strides[0],
        "column_stride": strides[1],
    }


class _LinearInBlocks(torch.autograd.Function):
    """Linear map in bf16, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        blocks, matrix = in_blocks(x.flatten(0, -2)), weight.to(torch.bfloat16)
        ctx.save_for_backward(blocks, matrix)
        ctx.dtypes = x.dtype, weight.dtype
        return _linear_product(x, blocks, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        [gradient] = gradients
        blocks, matrix = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        rows = gradient.flatten(0, -2)
        grad_y = in_blocks(rows)
        grad_x = (grad_y @ matrix)[: len(rows)]
        grad_x = grad_x.view(*gradient.shape[:-1], matrix.size(1)).to(x_dtype)
        grad_weight = (grad_y.t() @ blocks).to(weight_dtype)
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(dim=0).to(weight_dtype)
        return grad_x, grad_weight, grad_bias


RANDOM_VALUES = 2**16
"""Number of values of a random number that decides whether an element is dropped. On a
CPU, rates are therefore rounded to multiples of 1 / RANDOM_VALUES."""
MASK_MULTIPLE = 32
"""The native library rounds up the number of masks of a row to a multiple of this."""
BLOCK_MASKS = 1024
"""Elements of a block if a block is not a row."""


@dataclass(frozen=True, slots=True)
class MaskBlocks:
    """Blocks of a tensor's elements; the masks of a block are drawn together."""

    width: int
    """Number of elements of a block."""
    masks: int
    """Number of masks drawn for a block: even, and at least `width`."""


def row_blocks(x: Float[Tensor, "*shape"]) -> MaskBlocks:
    """Return blocks of one row each."""
    width = x.size(-1)
    return MaskBlocks(width, -(-width // MASK_MULTIPLE) * MASK_MULTIPLE)


class Dropout(nn.Dropout):
    """Dropout with masks that a CPU draws faster than PyTorch's.

    Masks follow from PyTorch's seed or that of `own_generator`, but differ between
    kinds of devices, and between installations with and without the native library.
    """

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        rate = current_rate(self)
        if rate == 0:
            return x
        if is_native(x) and x.dtype != torch.float64:
            return _NativeDropout.apply(x, rate, self._blocks(x))  # type: ignore[no-untyped-call] # torch's own
        if x.device.type == "cpu":
            return _CpuDropout.apply(x, rate)  # type: ignore[no-untyped-call] # torch's own
        return functional.dropout(x, rate)

    def _blocks(self, x: Float[Tensor, "*shape"]) -> MaskBlocks:
        """Return blocks of one row if that wastes no draws, or else of a fixed size."""
        is_by_row = x.dim() > 0 and x.size(-1) > 0 and x.size(-1) % MASK_MULTIPLE == 0
        return row_blocks(x) if is_by_row else MaskBlocks(BLOCK_MASKS, BLOCK_MASKS)


class RowDropout(Dropout):
    """Dropout within a sub-layer, of attention's weights or after the ReLU.

    It draws masks row by row, as the native functions of whole sub-layers do.
    """

    def _blocks(self, x: Float[Tensor, "*shape"]) -> MaskBlocks:
        return row_blocks(x)


def current_rate(dropout: nn.Dropout) -> float:
    """Return the rate of dropout in the present mode: 0 unless training."""
    return dropout.p if dropout.training else 0.0


class _NativeDropout(torch.autograd.Function):
    """Dropout that draws two masks from one random number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, blocks: MaskBlocks) -> Tensor:
        kept, ctx.masking = new_masking(x, rate, blocks)
        ctx.save_for_backward(kept)
        return _apply_masks(loaded_nn_api().dropout_forward, x, ctx.masking)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [kept] = ctx.saved_tensors
        # A copy, as two threads may go backward at once.
        masking = ffi.new("td_masking *", ctx.masking[0])
        masking.kept = tensor_pointer(kept, torch.uint8)
        backward = loaded_nn_api().dropout_backward
        return _apply_masks(backward, gradients[0], masking), None, None


def new_masking(
    x: Float[Tensor, "*shape"], rate: float, blocks: MaskBlocks
) -> tuple[Integer[Tensor, " bytes"], Any]:
    """Return uninitialized masks of x, and the `td_masking` to draw them."""
    width = max(blocks.width, 1)
    num_blocks = -(-x.numel() // width)
    kept = x.new_empty(num_blocks * blocks.masks, dtype=torch.uint8)
    return kept, ffi.new(
        "td_masking *",
        {
            "kept": tensor_pointer(kept, torch.uint8),
            "count": x.numel(),
            "block_width": width,
            "block_masks": blocks.masks,
            "dropout": draw_dropout(rate),
        },
    )


def draw_dropout(rate: float) -> dict[str, Any]:
    """Return the `td_dropout` of one tensor, with new seeds."""
    return {"seeds": draw_seeds(2), "rate": native_rate(rate)}


_generator: ContextVar[torch.Generator | None] = ContextVar("_generator", default=None)


@contextmanager
def own_generator(seed: int) -> Iterator[None]:
    """Draw dropout masks and noise on a CPU from a generator that no other thread uses.

    Masks and noise equal those of PyTorch's generator after `manual_seed(seed)`. All
    other random numbers, for example in the dropout of PyTorch's own layers, still come
    from PyTorch's generator.
    """
    token = _generator.set(torch.Generator().manual_seed(seed))
    try:
        yield
    finally:
        _generator.reset(token)


def draw_seeds(count: int) -> list[int]:
    """Draw seeds of masks from the generator in use; each tensor takes two."""
    drawn = torch.empty(count, dtype=torch.int64, device="cpu")
    seeds: list[int] = drawn.random_(2**32, generator=_generator.get()).tolist()
    return seeds


def draw_normal(like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Draw numbers of the standard normal distribution from the generator in use."""
    if like.device.type != "cpu":
        return torch.randn_like(like)
    return torch.randn(like.shape, dtype=like.dtype, generator=_generator.get())


def native_rate(rate: float) -> dict[str, Any]:
    """Return a rate as `td_dropout_rate`."""
    dropped = num_dropped(rate)
    return {"num_dropped": dropped, "scale": dropout_scale(dropped)}


def _apply_masks(function: Any, x: Tensor, masking: Any) -> Tensor:
    """Call a native function of dropout; the result has the type of x."""
    inputs = x.float().contiguous()
    result = torch.empty_like(inputs)
    masking.x, masking.y = tensor_pointer(inputs), tensor_pointer(result)
    check(function(masking, torch.get_num_threads()))
    return result.to(x.dtype)


class _CpuDropout(torch.autograd.Function):
    """Dropout that draws four masks from one random number.

    PyTorch draws one for each element, which took a fifth of the time of training on a
    CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        dropped = num_dropped(rate)
        num_draws = -(-x.numel() // 4)
        draws = torch.empty(num_draws, dtype=torch.int64)
        draws.random_(-(2**63), None, generator=_generator.get())
        random = draws.view(torch.int16)[: x.numel()].view(x.shape)
        scale = dropout_scale(dropped)
        kept = random >= dropped - RANDOM_VALUES // 2
        # Kept as numbers: a product with a mask of bools would convert it each time.
        ctx.kept, ctx.scale = kept.to(x.dtype), scale
        return (x * ctx.kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return (gradients[0] * ctx.kept).mul_(ctx.scale), None


def num_dropped(rate: float) -> int:
    """Number of the 65,536 random values that drop an element; never all of them."""
    return min(round(rate * RANDOM_VALUES), RANDOM_VALUES - 1)


def dropout_scale(dropped: int) -> float:
    """Return the factor on kept elements, 1 / (1 - dropped / 65,536)."""
    return RANDOM_VALUES / (RANDOM_VALUES - dropped)


def has_normalized_sum(
    x: Float[Tensor, "*rows width"], addend: Float[Tensor, "*rows width"]
) -> bool:
    """Whether the native sum exists for these inputs."""
    return (
        is_native(x)
        and x.dtype == torch.float32
        and addend.dtype in (torch.float32, torch.bfloat16)
        and x.shape == addend.shape
        and x.size(-1) % MASK_MULTIPLE == 0
    )


def normalized_sum(
    x: Float[Tensor, "*rows width"],
    addend: Float[Tensor, "*rows width"],
    rate: float,
    norm: nn.LayerNorm,
) -> Float[Tensor, "*rows width"]:
    """Compute LayerNorm(x + Dropout(addend)) in fp32, for a dropout rate above zero."""
    result: Tensor = _NormalizedSum.apply(  # type: ignore[no-untyped-call] # torch's own
        x, addend.float(), rate, norm.weight, norm.bias, norm.eps
    )
    return result


class _NormalizedSum(torch.autograd.Function):
    """Dropout, sum and layer normalization in one native call."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        addend: Tensor,
        rate: float,
        gain: Tensor,
        bias: Tensor,
        epsilon: float,
    ) -> Tensor:
        x, addend = x.contiguous(), addend.contiguous()
        kept, masking = new_masking(addend, rate, row_blocks(addend))
        masking.x = tensor_pointer(addend)
        y, normalized = torch.empty_like(x), torch.empty_like(x)
        inverse_deviation = x.new_empty(x.shape[:-1])
        arguments = {
            "rows": inverse_deviation.numel(),
            "width": x.size(-1),
            "epsilon": epsilon,
            "x": tensor_pointer(x),
            "gain": tensor_pointer(gain, shape=x.shape[-1:]),
            "bias": tensor_pointer(bias, shape=x.shape[-1:]),
            "normalized": tensor_pointer(normalized),
            "inverse_deviation": tensor_pointer(inverse_deviation),
            "y": tensor_pointer(y),
            "masking": masking[0],
        }
        layer_norm = ffi.new("td_layer_norm *", arguments)
        forward = loaded_nn_api().layer_norm_forward
        check(forward(layer_norm, torch.get_num_threads()))
        ctx.save_for_backward(normalized, inverse_deviation, gain, kept)
        ctx.layer_norm = layer_norm
        return y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, Tensor, Tensor, None]:
        grad_y = gradients[0].contiguous()
        normalized, inverse_deviation, gain, kept = ctx.saved_tensors
        api = loaded_nn_api()
        grad_x = torch.empty_like(normalized)
        grad_addend = torch.empty_like(normalized)
        grad_gain, grad_bias = torch.empty_like(gain), torch.empty_like(gain)
        # A copy, as two threads may go backward at once. Pointers are set anew, as
        # hooks may have moved saved tensors.
        layer_norm = ffi.new("td_layer_norm *", ctx.layer_norm[0])
        workspace = gain.new_empty(api.layer_norm_workspace(layer_norm))
        layer_norm.gain = tensor_pointer(gain)
        layer_norm.normalized = tensor_pointer(normalized)
        layer_norm.inverse_deviation = tensor_pointer(inverse_deviation)
        layer_norm.grad_y = tensor_pointer(grad_y)
        layer_norm.grad_x = tensor_pointer(grad_x)
        layer_norm.grad_gain = tensor_pointer(grad_gain)
        layer_norm.grad_bias = tensor_pointer(grad_bias)
        layer_norm.workspace = tensor_pointer(workspace)
        layer_norm.masking.kept = tensor_pointer(kept, torch.uint8)
        layer_norm.masking.y = tensor_pointer(grad_addend)
        check(api.layer_norm_backward(layer_norm, torch.get_num_threads()))
        return grad_x, grad_addend, None, grad_gain, grad_bias, None


def scan(
    forget: Float[Tensor, "batch length d_model"],
    addend: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the cells c_t = f_t * c_(t-1) + a_t of all positions, with c_0 = 0."""
    cells: Tensor = _Scan.apply(forget, addend)  # type: ignore[no-untyped-call] # torch's own
    return cells


class _Scan(torch.autograd.Function):
    """Scan whose backward pass is a scan from the last position to the first."""

    @staticmethod
    def forward(ctx: Any, forget: Tensor, addend: Tensor) -> Tensor:
        cells = _run_scan(forget, addend)
        ctx.save_for_backward(forget, cells)
        return cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        forget, cells = ctx.saved_tensors
        # g_t = dL/dc_t + f_(t+1) * g_(t+1)
        next_forget = functional.pad(forget[:, 1:], (0, 0, 0, 1))
        grad = _run_scan(next_forget.flip(1), gradients[0].flip(1)).flip(1)
        before = functional.pad(cells[:, :-1], (0, 0, 1, 0))
        return grad * before, grad


def _run_scan(
    forget: Float[Tensor, "batch length d_model"],
    addend: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the cells of all positions, without gradients.

    The parallel prefix scan of Hillis and Steele (1986) takes log2(length) steps. After
    each step, `cell` covers the last `reach` positions up to its own, and `forget` is
    the product of their forget gates.
    """
    cell, reach = addend, 1
    while reach < addend.size(1):
        # Zeros stand before the first position, where the cell is 0, too.
        earlier = functional.pad(cell[:, :-reach], (0, 0, reach, 0))
        cell = cell + forget * earlier
        forget = forget * functional.pad(forget[:, :-reach], (0, 0, reach, 0))
        reach *= 2
    return cell


class FusedSSRU(SSRU):
    """Recurrent unit whose cells are computed in few operations."""

    scan: Callable[[Tensor, Tensor], Tensor] = staticmethod(scan)

    def leave_scan_uncompiled(self) -> None:
        """Let PyTorch's compiler skip the scan, as each number of steps needs a graph.

        A decorator of `scan` would load the compiler with this module, for a second.
        """
        self.scan = torch.compiler.disable(scan)

    def outputs(
        self,
        gate: Float[Tensor, "batch length d_model"],
        candidate: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs, given W_f x + b_f and W x of all positions."""
        dtype = torch.promote_types(gate.dtype, torch.float32)
        gate, candidate = gate.to(dtype), candidate.to(dtype)
        if has_native_recurrence(gate):
            return native_recurrence(gate, candidate)
        forget = gate.sigmoid()
        return self.scan(forget, (1 - forget) * candidate).relu()


def has_native_recurrence(gate: Float[Tensor, "batch length d_model"]) -> bool:
    """Whether the native recurrence exists for these inputs."""
    return (
        is_native(gate)
        and gate.dtype == torch.float32
        and gate.size(1) > 0
        and gate.size(2) % ROW_MULTIPLE == 0
    )


def native_recurrence(
    gate: Float[Tensor, "batch length d_model"],
    candidate: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the outputs of a recurrent unit, given W_f x + b_f and W x, in fp32."""
    output: Tensor = _NativeRecurrence.apply(gate, candidate)  # type: ignore[no-untyped-call] # torch's own
    return output


class _NativeRecurrence(torch.autograd.Function):
    """Cells and outputs of a recurrent unit in one native call."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, candidate: Tensor) -> Tensor:
        gate, candidate = gate.contiguous(), candidate.contiguous()
        forget, cells, output = (torch.empty_like(gate) for _ in range(3))
        recurrence = _recurrence(candidate, forget, cells)
        recurrence.gate = tensor_pointer(gate)
        recurrence.output = tensor_pointer(output)
        threads = torch.get_num_threads()
        check(loaded_nn_api().recurrence_forward(recurrence, threads))
        ctx.save_for_backward(candidate, forget, cells)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        grad_output = gradients[0].contiguous()
        candidate, forget, cells = ctx.saved_tensors
        grad_gate, grad_candidate = (torch.empty_like(cells) for _ in range(2))
        recurrence = _recurrence(candidate, forget, cells)
        recurrence.grad_output = tensor_pointer(grad_output)
        recurrence.grad_gate = tensor_pointer(grad_gate)
        recurrence.grad_candidate = tensor_pointer(grad_candidate)
        threads = torch.get_num_threads()
        check(loaded_nn_api().recurrence_backward(recurrence, threads))
        return grad_gate, grad_candidate


def _recurrence(candidate: Tensor, forget: Tensor, cells: Tensor) -> Any:
    """Return a `td_recurrence` with the fields that both passes use."""
    sentences, length, width = cells.shape
    return ffi.new(
        "td_recurrence *",
        {
            "sentences": sentences,
            "length": length,
            "width": width,
            "candidate": tensor_pointer(candidate, shape=cells.shape),
            "forget": tensor_pointer(forget),
            "cells": tensor_pointer(cells),
        },
    )
