"""Residual sums that are normalised, in training (sections 3.1 and 5.4)."""

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transduce.model.operators.addresses import address
from transduce.model.operators.dropout import WHOLE_MASKS, masking_of, rows_of
from transduce.model.operators.kernels.fields import ResidualFields
from transduce.model.operators.kernels.library import kernels, loaded_kernels


def has_normalized_sum(
    x: Float[Tensor, "*rows width"], addend: Float[Tensor, "*rows width"]
) -> bool:
    """Whether there is a kernel for it."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and addend.dtype in (torch.float32, torch.bfloat16)
        and x.shape == addend.shape
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and x.size(-1) % WHOLE_MASKS == 0
        and kernels() is not None
    )


def normalized_sum(
    x: Float[Tensor, "*rows width"],
    addend: Float[Tensor, "*rows width"],
    rate: float,
    norm: nn.LayerNorm,
) -> Float[Tensor, "*rows width"]:
    """LayerNorm(x + Dropout(addend)), with dropout at a rate above zero; in fp32."""
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
        kept, masking = masking_of(addend, rate, rows_of(addend))
        masking.x = address(addend)
        y, normalized = torch.empty_like(x), torch.empty_like(x)
        inverse_deviation = x.new_empty(x.shape[:-1])
        fields = ResidualFields(
            rows=inverse_deviation.numel(),
            width=x.size(-1),
            epsilon=epsilon,
            x=address(x),
            gain=address(gain),
            bias=address(bias),
            normalized=address(normalized),
            inverse_deviation=address(inverse_deviation),
            y=address(y),
            masking=masking,
        )
        kernel = loaded_kernels().transduce_normalize_sum
        kernel(ctypes.byref(fields), torch.get_num_threads())
        ctx.save_for_backward(normalized, inverse_deviation, gain, kept)
        ctx.fields = fields
        return y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, Tensor, Tensor, None]:
        of_y = gradients[0].contiguous()
        normalized, inverse_deviation, gain, kept = ctx.saved_tensors
        library = loaded_kernels()
        of_x, of_addend = torch.empty_like(normalized), torch.empty_like(normalized)
        of_gain, of_bias = torch.empty_like(gain), torch.empty_like(gain)
        # A copy, as two threads may go backwards at once; and the addresses of now, as
        # what is saved may have been elsewhere meanwhile.
        fields = ResidualFields.from_buffer_copy(ctx.fields)
        at = ctypes.byref(fields)
        of_groups = gain.new_empty(library.transduce_residual_groups(at), 2, len(gain))
        fields.gain = address(gain)
        fields.normalized = address(normalized)
        fields.inverse_deviation = address(inverse_deviation)
        fields.of_y = address(of_y)
        fields.of_x = address(of_x)
        fields.of_gain = address(of_gain)
        fields.of_bias = address(of_bias)
        fields.of_groups = address(of_groups)
        fields.masking.kept = address(kept, torch.uint8)
        fields.masking.y = address(of_addend)
        library.transduce_differentiate_normalized_sum(at, torch.get_num_threads())
        return of_x, of_addend, None, of_gain, of_bias, None
