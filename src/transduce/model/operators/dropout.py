"""Dropout (section 5.4; Srivastava et al., 2014)."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce.model.operators.addresses import address
from transduce.model.operators.kernels.fields import (
    DropoutRateFields,
    MaskDrawFields,
    MaskingFields,
)
from transduce.model.operators.kernels.library import kernels, loaded_kernels

RANDOM_VALUES = 2**16
"""On a CPU the rate is met to the inverse of this, and the scale is of the rate met."""
WHOLE_MASKS = 32
"""Number to a multiple of which the kernels round up the masks of a row."""
BLOCK = 1024
"""Numbers whose masks are drawn together, where rows are not."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of a block of numbers whose masks are drawn together."""

    width: int
    masks: int
    """Number of masks drawn for a block: even, and at least `width`."""


def rows_of(x: Float[Tensor, "*shape"]) -> Blocks:
    """Blocks of one row each."""
    width = x.size(-1)
    return Blocks(width, -(-width // WHOLE_MASKS) * WHOLE_MASKS)


class Dropout(nn.Module):
    """Set activations to zero at random in training, and scale up the others.

    The masks come from PyTorch's seed; but not all kinds of devices draw the same, nor
    does an installation without kernels.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def is_on(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.rate > 0

    @property
    def rate_in_use(self) -> float:
        """Rate in the present mode: 0 unless training."""
        return self.rate if self.training else 0.0

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.is_on:
            return x
        if _has_kernel(x):
            return _CompiledDropout.apply(x, self.rate, self._blocks(x))  # type: ignore[no-untyped-call] # torch's own
        if x.device.type == "cpu":
            return _CpuDropout.apply(x, self.rate)  # type: ignore[no-untyped-call] # torch's own
        return functional.dropout(x, self.rate)

    def _blocks(self, x: Float[Tensor, "*shape"]) -> Blocks:
        """Blocks of rows if that wastes no draws, otherwise of a fixed size."""
        is_by_row = x.dim() > 0 and x.size(-1) > 0 and x.size(-1) % WHOLE_MASKS == 0
        return rows_of(x) if is_by_row else Blocks(BLOCK, BLOCK)


class InnerDropout(Dropout):
    """Dropout within a sub-layer, of attention's weights or after the ReLU.

    It draws masks row by row, like the kernels of whole sub-layers.
    """

    # Unlike the paper: any model can have dropout of attention's weights and after the
    # ReLU. The paper has the first for parsing only (section 6.3); its code has both.
    def _blocks(self, x: Float[Tensor, "*shape"]) -> Blocks:
        return rows_of(x)


def _has_kernel(x: Float[Tensor, "*shape"]) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype != torch.float64
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and kernels() is not None
    )


class _CompiledDropout(torch.autograd.Function):
    """Two masks from one random number, drawn where they are applied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, blocks: Blocks) -> Tensor:
        kept, ctx.masking = masking_of(x, rate, blocks)
        ctx.save_for_backward(kept)
        return _masked(loaded_kernels().transduce_drop, x, ctx.masking)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [kept] = ctx.saved_tensors
        # A copy, as two threads may go backwards at once.
        masking = MaskingFields.from_buffer_copy(ctx.masking)
        masking.kept = address(kept, torch.uint8)
        return (
            _masked(loaded_kernels().transduce_mask, gradients[0], masking),
            None,
            None,
        )


def masking_of(
    x: Float[Tensor, "*shape"], rate: float, blocks: Blocks
) -> tuple[Integer[Tensor, " bytes"], MaskingFields]:
    """Uninitialised masks of x, and the kernels' parameters to draw them."""
    num_blocks = -(-x.numel() // max(blocks.width, 1))
    kept = x.new_empty(num_blocks * blocks.masks, dtype=torch.uint8)
    return kept, MaskingFields(
        kept=address(kept, torch.uint8),
        count=x.numel(),
        width=max(blocks.width, 1),
        block=blocks.masks,
        draw=drawn(rate),
    )


def drawn(rate: float) -> MaskDrawFields:
    """Seeds and rate of one tensor's masks, from PyTorch's generator."""
    return MaskDrawFields(
        seeds=(ctypes.c_uint32 * 2)(*draw_seeds(2)), rate=rate_fields(rate)
    )


def draw_seeds(count: int) -> list[int]:
    """Draw seeds of masks from PyTorch's generator; each tensor takes two."""
    seeds: list[int] = (
        torch.empty(count, dtype=torch.int64, device="cpu").random_(2**32).tolist()
    )
    return seeds


def rate_fields(rate: float) -> DropoutRateFields:
    """Rate as the kernels realise it, and the scale that belongs to it."""
    dropped = num_dropped(rate)
    return DropoutRateFields(num_dropped=dropped, scale=dropout_scale(dropped))


def _masked(kernel: Any, x: Tensor, masking: MaskingFields) -> Tensor:
    numbers = x.float().contiguous()
    result = torch.empty_like(numbers)
    masking.x, masking.y = address(numbers), address(result)
    kernel(ctypes.byref(masking), torch.get_num_threads())
    return result.to(x.dtype)


class _CpuDropout(torch.autograd.Function):
    """Four masks from one random number, since drawing them is what takes the time.

    PyTorch draws one a value, which took a fifth of the time of training on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        dropped = num_dropped(rate)
        num_draws = -(-x.numel() // 4)
        draws = torch.empty(num_draws, dtype=torch.int64).random_(-(2**63), None)
        random = draws.view(torch.int16)[: x.numel()].view(x.shape)
        scale = dropout_scale(dropped)
        kept = random >= dropped - RANDOM_VALUES // 2
        # As numbers: a product with a mask of truth values converts it each time.
        ctx.kept, ctx.scale = kept.to(x.dtype), scale
        return (x * ctx.kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return (gradients[0] * ctx.kept).mul_(ctx.scale), None


def num_dropped(rate: float) -> int:
    """Of the random values, those that drop: never all."""
    return min(round(rate * RANDOM_VALUES), RANDOM_VALUES - 1)


def dropout_scale(dropped: int) -> float:
    """On what is left, where so many of the random values drop."""
    return RANDOM_VALUES / (RANDOM_VALUES - dropped)
