"""Normalized residual sums in training (sections 3.1 and 5.4)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transduce.native import check, ffi
from transduce.nn.dropout import MASK_MULTIPLE, new_masking, rows_of
from transduce.nn.native_operators import (
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)


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
