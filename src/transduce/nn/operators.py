"""Operators of training: linear maps, dropout, recurrent units, updates by Muon.

Each is computed by the native library where that has it for the given tensors, and
elsewhere in PyTorch. Attention and whole stacks are in `layers.py`, the loss in
`cross_entropy.py`. First come the library's functions (`nn_api()` is `td_nn_api` of
transduce.h) and the weights that it packs; structs are made by `ffi.new`, and share
their memory with tensors.
"""

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce import native
from transduce.errors import TransduceWarning
from transduce.model.layers import SSRU
from transduce.native import LAYERS, ffi

ROW_MULTIPLE = 16
"""Most functions need rows of a multiple of this many elements, to fill registers."""
POINTER_TYPES = {
    torch.float32: "float *",
    torch.bfloat16: "td_bf16 *",
    torch.int64: "int64_t *",
    torch.uint8: "uint8_t *",
    torch.bool: "uint8_t *",
}


@cache
def nn_api() -> Any | None:
    """Return the functions for this processor; None if there is no native library."""
    api = native.api()
    if api is None:
        return None
    api.nn.use_sgemm(ffi.cast("void *", sgemm_of_torch() or 0))
    return api.nn


def loaded_nn_api() -> Any:
    """Return the functions for this processor, which must exist."""
    api = nn_api()
    assert api is not None
    return api


def check(status: int) -> None:
    """Raise the errors of `native.check` unless a status is `TD_OK`."""
    native.check(status, LAYERS)


def has_sgemm() -> bool:
    """Whether fp32 matrices can be multiplied: by the BLAS that torch links."""
    return nn_api() is not None and sgemm_of_torch() is not None


def bf16_unit() -> str | None:
    """Return the instructions by which native functions multiply bf16 matrices.

    They are "amx" or "avx512_bf16"; None where slow loops compute the products.
    """
    api, library = nn_api(), native.library()
    if api is None or library is None:
        return None
    names = {library.TD_BF16_AMX: "amx", library.TD_BF16_AVX512: "avx512_bf16"}
    return names.get(api.bf16_unit())


def has_bf16_products() -> bool:
    """Whether the native functions multiply bf16 matrices fast."""
    return bf16_unit() is not None


@cache
def has_triton() -> bool:
    """Whether Triton's kernels run on this machine's GPU; warn once if they should.

    PyTorch's builds for GPUs bring Triton along, but it needs a C compiler.
    """
    if find_spec("triton") is None:
        return False
    from transduce.nn.gpu_kernels import launch_fault

    if (fault := launch_fault()) is None:
        return True
    warnings.warn(
        "The GPU is without Triton's kernels, so training takes several times as long "
        f"and decoding longer: {fault}",
        TransduceWarning,
        stacklevel=1,
    )
    return False


def is_native(tensor: Tensor) -> bool:
    """Whether native functions can read a tensor, whatever its dtype."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and nn_api() is not None
    )


def tensor_pointer(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Any:
    """Return a pointer to the elements of a contiguous tensor of this dtype.

    It is valid as long as the tensor is kept.
    """
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return ffi.cast(POINTER_TYPES[dtype], tensor.data_ptr())


def split_like(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into views with the shapes of others."""
    pieces = flat.split([each.numel() for each in like])
    return [
        piece if each.dim() == 1 else piece.view_as(each)
        for piece, each in zip(pieces, like, strict=True)
    ]


@cache
def sgemm_of_torch() -> int | None:
    """Return the address of `sgemm_` in the BLAS that torch links; None if hidden."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        return ctypes.cast(ctypes.CDLL(str(path)).sgemm_, ctypes.c_void_p).value
    return None


PANEL_WIDTH = 32
"""Rows of bf16 matrices have a multiple of this many elements."""
NUM_DIRECTIONS = 2
"""A weight is packed for the forward and for the backward pass."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight, held so that its address is not reused, and its packed elements."""

    weight: Tensor
    elements: Tensor


class _PackedWeights(dict[tuple[int, int, torch.dtype], _Packed]):
    """Packed weights by address, size and dtype, for all threads of an update."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
        """Held while a weight is packed, so that no other thread packs it too."""


_packed_weights: ContextVar[_PackedWeights | None] = ContextVar(
    "_packed_weights", default=None
)


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Pack each weight only once until the context ends, as no weight changes.

    PyTorch cannot say when a weight has changed, as fused optimizers do not record it.
    """
    token = _packed_weights.set(_PackedWeights())
    try:
        yield
    finally:
        _packed_weights.reset(token)


def packed_once(
    weight: Tensor,
    size: int,
    pack: Callable[[Tensor], None],
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, " {size}"]:
    """Return `size` elements that `pack` has filled for this weight.

    Of several weights that are packed together, pass the first. Only parameters are
    cached: other tensors are new in each call.
    """
    cached = _packed_weights.get() if isinstance(weight, nn.Parameter) else None

    def packed() -> Tensor:
        elements = weight.new_empty(size, dtype=dtype)
        pack(elements)
        return elements

    if cached is None:
        return packed()
    key = (weight.data_ptr(), size, dtype)
    with cached.lock:
        if key not in cached:
            cached[key] = _Packed(weight, packed())
        return cached[key].elements


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
        x = (grad_y @ matrix)[: len(rows)].view(*gradient.shape[:-1], matrix.size(1))
        weight = grad_y.t() @ blocks
        bias = rows.sum(dim=0).to(weight_dtype) if ctx.needs_input_grad[2] else None
        return x.to(x_dtype), weight.to(weight_dtype), bias


RANDOM_VALUES = 2**16
"""A CPU rounds rates to a multiple of 1 / RANDOM_VALUES, and scales by these."""
MASK_MULTIPLE = 32
"""The native library rounds up the number of masks of a row to a multiple of this."""
BLOCK_MASKS = 1024
"""Elements whose masks are drawn together if masks are not drawn row by row."""


@dataclass(frozen=True, slots=True)
class MaskBlocks:
    """Sizes of a block of elements whose masks are drawn together."""

    width: int
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
        x = _apply_masks(loaded_nn_api().dropout_backward, gradients[0], masking)
        return x, None, None


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
    """Draw dropout masks on a CPU from a generator that no other thread uses.

    They are those that PyTorch's generator would draw after `manual_seed(seed)`. Other
    random numbers, such as those of dropout within PyTorch's layers, are not.
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


def native_rate(rate: float) -> dict[str, Any]:
    """Return a rate as `td_dropout_rate`."""
    dropped = num_dropped(rate)
    return {"num_dropped": dropped, "scale": dropout_scale(dropped)}


def _apply_masks(function: Any, x: Tensor, masking: Any) -> Tensor:
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
        # As numbers: a product with a mask of bools would convert it each time.
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
            "gain": tensor_pointer(gain),
            "bias": tensor_pointer(bias),
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

    After each step the sum of a position covers twice as many positions up to it.
    """
    factor, total, reach = forget, addend, 1
    while reach < addend.size(1):
        # Padding before the first position has the sum 0, so its factor has no effect.
        earlier = functional.pad(total[:, :-reach], (0, 0, reach, 0))
        total = total + factor * earlier
        factor = factor * functional.pad(factor[:, :-reach], (0, 0, reach, 0))
        reach *= 2
    return total


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
    """Return the outputs, in fp32."""
    output: Tensor = _NativeRecurrence.apply(gate, candidate)  # type: ignore[no-untyped-call] # torch's own
    return output


class _NativeRecurrence(torch.autograd.Function):
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
    """Return a `td_recurrence` with its sizes and what both passes need."""
    sentences, length, width = cells.shape
    return ffi.new(
        "td_recurrence *",
        {
            "sentences": sentences,
            "length": length,
            "width": width,
            "candidate": tensor_pointer(candidate),
            "forget": tensor_pointer(forget),
            "cells": tensor_pointer(cells),
        },
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
    share: float,
    rate: float,
    dtype: torch.dtype,
) -> None:
    """Update weights of one shape, of `count` matrices each, by Muon.

    `momenta` are the means of the gradients, in which the newest gradient has the
    weight `share`; they are updated too. `rate` is the factor of the orthogonal
    matrices that are subtracted. Products are in `dtype`.
    """
    api, threads = loaded_nn_api(), torch.get_num_threads()
    rows, columns = matrix_size(weights[0], count)
    # The tensors and arrays that a struct points to must be kept during the call.
    gradients = [gradient.contiguous() for gradient in gradients]
    gradient_pointers = _matrix_pointers(gradients, count)
    momentum_pointers = _matrix_pointers(momenta, count)
    weight_pointers = _matrix_pointers(weights, count)
    factors = ffi.new("float[]", [each for step in POLYNOMIALS for each in step])
    task = ffi.new(
        "td_muon *",
        {
            "count": len(weights) * count,
            "rows": rows,
            "columns": columns,
            "steps": len(POLYNOMIALS),
            "factors": factors,
            "epsilon": NORM_EPSILON,
            "share": share,
            "rate": rate,
            "gradients": ffi.cast("float **", gradient_pointers),
            "momenta": momentum_pointers,
            "weights": weight_pointers,
            "is_bf16": dtype == torch.bfloat16,
        },
    )
    workspace = torch.empty(threads, api.muon_workspace(task))
    task.workspace = tensor_pointer(workspace)
    check(api.muon(task, threads))
    torch.autograd.graph.increment_version(weights)


def _matrix_pointers(tensors: Sequence[Tensor], count: int) -> Any:
    """Return an array of pointers to the `count` matrices of each tensor."""
    size = tensors[0].numel() // count
    starts = map(tensor_pointer, tensors)
    each = [start + size * i for start in starts for i in range(count)]
    return ffi.new("float *[]", each)
