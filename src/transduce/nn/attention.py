"""Attention over few keys in training, forward and backward (section 3.2)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.native import check, ffi
from transduce.nn.dropout import draw_dropout
from transduce.nn.native_operators import (
    ROW_MULTIPLE,
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)

MAX_KEYS = 128
"""Largest number of keys without dropout: with more, PyTorch's fused kernel is about as
fast and keeps no weights, but it has no dropout on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Number and widths of an attention's heads."""

    count: int
    d_k: int
    d_v: int
    scale: float
    """Factor on the scores."""


def has_native_attention(
    query: Float[Tensor, "batch queries _"],
    attended: Float[Tensor, "batch keys _"],
    heads: Heads,
    dropout: float = 0.0,
) -> bool:
    """Whether the native attention exists for these inputs and is the fastest."""
    return (
        query.device.type == "cpu"
        and query.dtype != torch.float64
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and attended.size(1) > 0
        and (attended.size(1) <= MAX_KEYS or dropout > 0)
        and heads.d_k % ROW_MULTIPLE == 0
        and heads.d_v % ROW_MULTIPLE == 0
        and nn_api() is not None
    )


def native_attention(
    query: Float[Tensor, "batch queries query_width"],
    key_value: Float[Tensor, "batch keys key_value_width"],
    mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    heads: Heads,
    dropout: float = 0.0,
) -> Float[Tensor, "batch queries value_width"]:
    """Compute the attention of all heads, in fp32.

    The heads' queries are side by side in `query`; `key_value` has all heads' keys and
    then their values. `dropout` is the rate of the weights' dropout.
    """
    if mask is None:
        mask = query.new_ones(1, 1, 1, key_value.size(1), dtype=torch.bool)
    result: Tensor = _NativeAttention.apply(  # type: ignore[no-untyped-call] # torch's own
        query.float(), key_value.float(), mask, heads, dropout
    )
    return result


class _NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key_value: Tensor,
        mask: Tensor,
        heads: Heads,
        dropout: float,
    ) -> Tensor:
        query, key_value = query.contiguous(), key_value.contiguous()
        batch, queries, _ = query.shape
        mask = mask.contiguous().expand(batch, -1, queries, -1)
        api, keys = loaded_nn_api(), key_value.size(1)
        width = -(-keys // api.lanes) * api.lanes
        weights = query.new_empty(batch, heads.count, queries, width)
        output = query.new_empty(batch, queries, heads.count * heads.d_v)
        arguments = {
            "sentences": batch,
            "heads": heads.count,
            "queries": queries,
            "keys": keys,
            "d_k": heads.d_k,
            "d_v": heads.d_v,
            "mask": {
                "data": ffi.cast("uint8_t *", mask.data_ptr()),
                "sentence_stride": mask.stride(0),
                "query_stride": mask.stride(2),
            },
            "scale": heads.scale,
            "query": tensor_pointer(query),
            "key_value": tensor_pointer(key_value),
            "weights": tensor_pointer(weights),
            "output": tensor_pointer(output),
        }
        if dropout > 0:
            arguments["dropout"] = draw_dropout(dropout)
        attention = ffi.new("td_attention *", arguments)
        _run(api.attention_forward, attention)
        ctx.save_for_backward(query, key_value, weights)
        ctx.attention = attention
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_output = gradients[0].contiguous()
        query, key_value, weights = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_key_value = torch.empty_like(key_value)
        # A copy, as two threads may go backward at once. Pointers are set anew, as
        # hooks may have moved saved tensors.
        attention = ffi.new("td_attention *", ctx.attention[0])
        attention.query = tensor_pointer(query)
        attention.key_value = tensor_pointer(key_value)
        attention.weights = tensor_pointer(weights)
        attention.grad_output = tensor_pointer(grad_output)
        attention.grad_query = tensor_pointer(grad_query)
        attention.grad_key_value = tensor_pointer(grad_key_value)
        _run(loaded_nn_api().attention_backward, attention)
        return grad_query, grad_key_value, None, None, None


def _run(function: Any, attention: Any) -> None:
    """Call a function of `td_attention` with a workspace."""
    threads = torch.get_num_threads()
    size = loaded_nn_api().attention_workspace(attention)
    # Named, so that it outlives the call.
    workspace = torch.empty(threads, size, dtype=torch.float32, device="cpu")
    attention.workspace = tensor_pointer(workspace)
    check(function(attention, threads))
