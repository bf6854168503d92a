"""Dropout (section 5.4; Srivastava et al., 2014), alone and in residual sums."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce.native import check, ffi
from transduce.nn.native_operators import (
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)

RANDOM_VALUES = 2**16
"""A CPU rounds rates to a multiple of 1 / RANDOM_VALUES, and scales by these."""
MASK_MULTIPLE = 32
"""The native library rounds up the number of masks of a row to a multiple of this."""
BLOCK = 1024
"""Elements whose masks are drawn together if masks are not drawn row by row."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of a block of elements whose masks are drawn together."""

    width: int
    masks: int
    """Number of masks drawn for a block: even, and at least `width`."""


def rows_of(x: Float[Tensor, "*shape"]) -> Blocks:
    """Return blocks of one row each."""
    width = x.size(-1)
    return Blocks(width, -(-width // MASK_MULTIPLE) * MASK_MULTIPLE)


class Dropout(nn.Dropout):
    """Dropout with masks that a CPU draws faster than PyTorch's.

    Masks follow from PyTorch's seed, but differ between kinds of devices, and between
    installations with and without the native library.
    """

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        rate = dropout_in_use(self)
        if rate == 0:
            return x
        if _has_native(x):
            return _NativeDropout.apply(x, rate, self._blocks(x))  # type: ignore[no-untyped-call] # torch's own
        if x.device.type == "cpu":
            return _CpuDropout.apply(x, rate)  # type: ignore[no-untyped-call] # torch's own
        return functional.dropout(x, rate)

    def _blocks(self, x: Float[Tensor, "*shape"]) -> Blocks:
        """Return blocks of one row if that wastes no draws, or else of a fixed size."""
        is_by_row = x.dim() > 0 and x.size(-1) > 0 and x.size(-1) % MASK_MULTIPLE == 0
        return rows_of(x) if is_by_row else Blocks(BLOCK, BLOCK)


class RowDropout(Dropout):
    """Dropout within a sub-layer, of attention's weights or after the ReLU.

    It draws masks row by row, as the native functions of whole sub-layers do.
    """

    def _blocks(self, x: Float[Tensor, "*shape"]) -> Blocks:
        return rows_of(x)


def dropout_in_use(dropout: nn.Dropout) -> float:
    """Rate of dropout in the present mode: 0 unless training."""
    return dropout.p if dropout.training else 0.0


def _has_native(x: Float[Tensor, "*shape"]) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype != torch.float64
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and nn_api() is not None
    )


class _NativeDropout(torch.autograd.Function):
    """Dropout that draws two masks from one random number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, blocks: Blocks) -> Tensor:
        kept, ctx.masking = new_masking(x, rate, blocks)
        ctx.save_for_backward(kept)
        return _masked(loaded_nn_api().dropout_forward, x, ctx.masking)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [kept] = ctx.saved_tensors
        # A copy, as two threads may go backward at once.
        masking = ffi.new("td_masking *", ctx.masking[0])
        masking.kept = tensor_pointer(kept, torch.uint8)
        x = _masked(loaded_nn_api().dropout_backward, gradients[0], masking)
        return x, None, None


def new_masking(
    x: Float[Tensor, "*shape"], rate: float, blocks: Blocks
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
    """Return the `td_dropout` of one tensor, with seeds from PyTorch's generator."""
    return {"seeds": draw_seeds(2), "rate": dropout_rate(rate)}


def draw_seeds(count: int) -> list[int]:
    """Draw seeds of masks from PyTorch's generator; each tensor takes two."""
    seeds: list[int] = (
        torch.empty(count, dtype=torch.int64, device="cpu").random_(2**32).tolist()
    )
    return seeds


def dropout_rate(rate: float) -> dict[str, Any]:
    """Return a rate as `td_dropout_rate`."""
    dropped = num_dropped(rate)
    return {"num_dropped": dropped, "scale": dropout_scale(dropped)}


def _masked(function: Any, x: Tensor, masking: Any) -> Tensor:
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
        draws = torch.empty(num_draws, dtype=torch.int64).random_(-(2**63), None)
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
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and addend.dtype in (torch.float32, torch.bfloat16)
        and x.shape == addend.shape
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and x.size(-1) % MASK_MULTIPLE == 0
        and nn_api() is not None
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
        kept, masking = new_masking(addend, rate, rows_of(addend))
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
