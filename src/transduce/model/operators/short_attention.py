"""Attention over few keys in training, forwards and backwards (section 3.2)."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.operators.addresses import address
from transduce.model.operators.dropout import drawn
from transduce.model.operators.kernels.fields import AttentionFields
from transduce.model.operators.kernels.library import (
    WHOLE,
    kernels,
    loaded_kernels,
)

MOST_KEYS = 128
"""Keys above which PyTorch's fused kernel is about as fast, and keeps no weights; but
on a CPU it has no dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How many attentions there are side by side, and of which width."""

    count: int
    d_k: int
    d_v: int
    scale: float
    """On the scores."""


def has_short_attention(
    query: Float[Tensor, "batch queries _"],
    memory: Float[Tensor, "batch keys _"],
    heads: Heads,
    dropout: float = 0.0,
) -> bool:
    """Whether there is a kernel for it, and that is the fastest."""
    return (
        query.device.type == "cpu"
        and query.dtype != torch.float64
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and memory.size(1) > 0
        and (memory.size(1) <= MOST_KEYS or dropout > 0)
        and heads.d_k % WHOLE == 0
        and heads.d_v % WHOLE == 0
        and kernels() is not None
    )


def short_attention(
    query: Float[Tensor, "batch queries of_queries"],
    key_value: Float[Tensor, "batch keys of_both"],
    mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    heads: Heads,
    dropout: float = 0.0,
) -> Float[Tensor, "batch queries of_values"]:
    """Average the values by how well each query matches their keys; in fp32.

    Queries, and keys and then values, of all heads are side by side. `dropout` is the
    rate of the weights' dropout.
    """
    if mask is None:
        mask = query.new_ones(1, 1, 1, key_value.size(1), dtype=torch.bool)
    result: Tensor = _ShortAttention.apply(  # type: ignore[no-untyped-call] # torch's own
        query.float(), key_value.float(), mask, heads, dropout
    )
    return result


class _ShortAttention(torch.autograd.Function):
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
        library, keys = loaded_kernels(), key_value.size(1)
        lanes = library.transduce_lanes()
        width = -(-keys // lanes) * lanes
        weights = query.new_empty(batch, heads.count, queries, width)
        output = query.new_empty(batch, queries, heads.count * heads.d_v)
        fields = AttentionFields(
            sentences=batch,
            heads=heads.count,
            queries=queries,
            keys=keys,
            d_k=heads.d_k,
            d_v=heads.d_v,
            mask_by_sentence=mask.stride(0),
            mask_by_query=mask.stride(2),
            scale=heads.scale,
            mask=mask.data_ptr(),
            query=address(query),
            key_value=address(key_value),
            weights=address(weights),
            output=address(output),
        )
        if dropout > 0:
            fields.dropout = drawn(dropout)
        _run(library.transduce_attend, fields)
        ctx.save_for_backward(query, key_value, weights)
        ctx.fields = fields
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_output = gradients[0].contiguous()
        query, key_value, weights = ctx.saved_tensors
        of_query, of_key_value = torch.empty_like(query), torch.empty_like(key_value)
        # A copy, as two threads may go backwards at once; and the addresses of now, as
        # what is saved may have been elsewhere meanwhile.
        fields = AttentionFields.from_buffer_copy(ctx.fields)
        fields.query, fields.key_value = address(query), address(key_value)
        fields.weights = address(weights)
        fields.of_output = address(of_output)
        fields.of_query = address(of_query)
        fields.of_key_value = address(of_key_value)
        _run(loaded_kernels().transduce_form_attention_gradients, fields)
        return of_query, of_key_value, None, None, None


def _run(kernel: Any, fields: AttentionFields) -> None:
    at = ctypes.byref(fields)
    threads = torch.get_num_threads()
    size = loaded_kernels().transduce_attention_room(at)
    # Kept until the kernel is done.
    room = torch.empty(threads, size, dtype=torch.float32, device="cpu")
    fields.room = address(room)
    kernel(at, threads)
