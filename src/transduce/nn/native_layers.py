"""Attention and whole stacks of layers by the native library, forward and backward.

One call computes all layers of a stack: calls of single operators take a large share of
the time of a small model, in Python and in waiting for the slowest thread
(benchmarks/results/training_speed.md). The backward pass differentiates all weights,
also those that do not require gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.transformer import Memory
from transduce.native import ffi
from transduce.nn.kernels import (
    NUM_DIRECTIONS,
    PANEL_WIDTH,
    ROW_MULTIPLE,
    check,
    has_bf16_products,
    has_fp32_products,
    is_native,
    loaded_nn_api,
    new_floats,
    packed_once,
    split_like,
    tensor_pointer,
)
from transduce.nn.operators import MASK_MULTIPLE, draw_dropout, draw_seeds, native_rate

MAX_KEYS = 128
"""Largest number of keys without dropout: with more, PyTorch's fused kernel is about as
fast and keeps no weights, but it has no dropout on a CPU."""
MAX_PARTS = 4
"""Largest number of parts of a batch, each with its own gradients; more threads share
each operator."""
MIN_ROWS = 256
"""Smallest number of rows of a part: with fewer, summing the gradients of parts costs
more than it saves."""


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
        is_native(query)
        and len(query) == len(attended)
        # The output is in fp32. The next linear map converts it to bf16, if its own
        # weights are, but to no other dtype.
        and query.dtype in (torch.float32, torch.bfloat16)
        and attended.size(1) > 0
        and (attended.size(1) <= MAX_KEYS or dropout > 0)
        and heads.d_k % ROW_MULTIPLE == 0
        and heads.d_v % ROW_MULTIPLE == 0
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
    then their values. `dropout` is the rate of the weights' dropout. Raises
    `ValueError` if sizes differ.
    """
    if mask is None:
        mask = query.new_ones(1, 1, 1, key_value.size(1), dtype=torch.bool)
    result: Tensor = _NativeAttention.apply(  # type: ignore[no-untyped-call] # torch's own
        query.float(), key_value.float(), mask, heads, dropout
    )
    return result


class _NativeAttention(torch.autograd.Function):
    """Attention of all heads in one native call, with its backward pass."""

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
        api, keys = loaded_nn_api(), key_value.size(1)
        mask = _expanded_mask(mask, batch, queries, keys)
        width = -(-keys // api.lanes) * api.lanes
        query_width, key_width, value_width = (
            heads.count * each for each in (heads.d_k, heads.d_k, heads.d_v)
        )
        weights = query.new_empty(batch, heads.count, queries, width)
        output = query.new_empty(batch, queries, value_width)
        arguments = {
            "sentences": batch,
            "heads": heads.count,
            "queries": queries,
            "keys": keys,
            "d_k": heads.d_k,
            "d_v": heads.d_v,
            "mask": _native_mask(mask),
            "scale": heads.scale,
            "query": tensor_pointer(query, shape=(batch, queries, query_width)),
            "key_value": tensor_pointer(
                key_value, shape=(batch, keys, key_width + value_width)
            ),
            "weights": tensor_pointer(weights),
            "output": tensor_pointer(output),
        }
        if dropout > 0:
            arguments["dropout"] = draw_dropout(dropout)
        attention = ffi.new("td_attention *", arguments)
        _run_attention(api.attention_forward, attention)
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
        _run_attention(loaded_nn_api().attention_backward, attention)
        return grad_query, grad_key_value, None, None, None


def _run_attention(function: Any, attention: Any) -> None:
    """Call a function of `td_attention` with a workspace."""
    threads = torch.get_num_threads()
    size = loaded_nn_api().attention_workspace(attention)
    # Named, so that it outlives the call.
    workspace = new_floats(threads, size)
    attention.workspace = tensor_pointer(workspace)
    check(function(attention, threads))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """Settings that all layers of a stack share."""

    count: int
    d_ff: int
    heads: Heads
    dropout: float
    attention_dropout: float
    relu_dropout: float
    norm_epsilon: float
    is_recurrent: bool = False
    """Whether recurrent units are in the place of self-attention."""


def has_layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    memory: Memory | None,
    settings: StackSettings,
) -> bool:
    """Whether the native stack exists for these inputs and is the fastest."""
    attended = [] if settings.is_recurrent else [x]
    attended += [] if memory is None else [memory.states]
    return (
        all(each.dtype == torch.float32 for each in (x, *attended))
        and all(each.size(-1) == x.size(-1) for each in attended)
        and x.size(1) > 0
        and x.size(-1) % MASK_MULTIPLE == 0
        and settings.d_ff % ROW_MULTIPLE == 0
        and all(
            has_native_attention(x, each, settings.heads, settings.attention_dropout)
            for each in attended
        )
        and (_fits_bf16(settings) if _is_autocast() else has_fp32_products())
    )


def _is_autocast() -> bool:
    """Whether autocast sets the precision of matrix products."""
    return torch.is_autocast_enabled("cpu")


def _fits_bf16(settings: StackSettings) -> bool:
    heads = settings.heads
    widths = (settings.d_ff, heads.count * heads.d_k, heads.count * heads.d_v)
    return (
        torch.get_autocast_dtype("cpu") == torch.bfloat16
        and all(width % PANEL_WIDTH == 0 for width in widths)
        and has_bf16_products()
    )


def layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    mask: Bool[Tensor, "#batch 1 #queries queries"] | None,
    memory: Memory | None,
    settings: StackSettings,
    weights: Sequence[Tensor],
) -> Float[Tensor, "batch queries d_model"]:
    """Return the output of the last layer for the input x.

    `weights` lists the weights layer by layer, and within a layer by sub-layers, each
    of which ends with its norm:

    - attention: the maps of queries, of keys and values, and of outputs;
    - a recurrent unit: the forget gate and the candidate;
    - the feed-forward network: the inner and the outer map.

    Each weight is followed by its bias, which only the candidate lacks. Recurrent units
    have no mask. Raises `ValueError` if a weight has a wrong shape.
    """
    states, memory_mask = (memory.states, memory.mask) if memory else (None, None)
    has_backward = torch.is_grad_enabled()  # within the function it never is
    result: Tensor = _LayerStack.apply(  # type: ignore[no-untyped-call] # torch's own
        x, mask, states, memory_mask, settings, has_backward, *weights
    )
    return result


class _LayerStack(torch.autograd.Function):
    """All layers in one native call for each pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        settings: StackSettings,
        has_backward: bool,
        *weights: Tensor,
    ) -> Tensor:
        x, api = x.contiguous(), loaded_nn_api()
        memory = None if memory is None else memory.contiguous()
        stack = _new_stack(x, memory, settings)
        stack.kept_layers = settings.count if has_backward else 1
        stack.is_bf16 = _is_autocast()
        for weight, shape in zip(weights, _shapes_of(stack), strict=True):
            if weight.shape != shape:
                raise ValueError(
                    f"A weight of the layers must have the shape {list(shape)}, but "
                    f"has {list(weight.shape)}."
                )
        seeds = _draw_seeds(stack)
        # The masks are named, so that they outlive the call.
        batch, length, _ = x.shape
        if mask is not None:
            mask = _expanded_mask(mask, batch, length, length)
            stack.self_mask = _native_mask(mask)
        if memory_mask is not None:
            memory_mask = _expanded_mask(
                memory_mask, batch, length, stack.memory_length
            )
            stack.cross_mask = _native_mask(memory_mask)
        states = x.new_empty(stack.parts, api.stack_states(stack))
        y = torch.empty_like(x)
        stack.seeds = seeds
        stack.y = tensor_pointer(y)
        directions = NUM_DIRECTIONS if has_backward else 1
        packed = _packed(stack, weights, directions) if stack.is_bf16 else None
        saved = (x, memory, states, packed, *weights)
        ctx.save_for_backward(*saved)
        ctx.stack, ctx.seeds = stack, seeds  # the struct points to the seeds
        _run_stack(api.stack_forward, stack, saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # only once, as hooks may fetch it from elsewhere
        x, memory, _, _, *weights = saved
        grad_x = torch.empty_like(x)
        grad_memory = None if memory is None else torch.empty_like(memory)
        # A copy, as two threads may go backward at once.
        stack = ffi.new("td_stack *", ctx.stack[0])
        size = sum(each.numel() for each in weights)
        # Separate tensors, as only the first one is kept.
        total = x.new_empty(size)
        others = x.new_empty(stack.parts - 1, size)
        grad_y = gradients[0].contiguous()
        # Named, so that it outlives the call.
        parts = ffi.new("float *[]", list(map(tensor_pointer, (total, *others))))
        stack.grad_weights = parts
        stack.grad_y, stack.grad_x = tensor_pointer(grad_y), tensor_pointer(grad_x)
        if grad_memory is not None:
            stack.grad_memory = tensor_pointer(grad_memory)
        _run_stack(loaded_nn_api().stack_backward, stack, saved)
        for each in others:
            total += each
        return grad_x, None, grad_memory, None, None, None, *split_like(total, weights)


def _new_stack(x: Tensor, memory: Tensor | None, settings: StackSettings) -> Any:
    """Return a `td_stack` with its sizes and rates."""
    batch, length, d_model = x.shape
    threads = torch.get_num_threads()
    max_parts = min(MAX_PARTS, batch, batch * length // MIN_ROWS)
    return ffi.new(
        "td_stack *",
        {
            "layers": settings.count,
            "sentences": batch,
            "length": length,
            "d_model": d_model,
            "d_ff": settings.d_ff,
            "heads": settings.heads.count,
            "d_k": settings.heads.d_k,
            "d_v": settings.heads.d_v,
            "memory_length": 0 if memory is None else memory.size(1),
            "is_recurrent": settings.is_recurrent,
            "parts": threads if threads <= max_parts else 1,
            "epsilon": settings.norm_epsilon,
            "scale": settings.heads.scale,
            "dropout": native_rate(settings.dropout),
            "attention_dropout": native_rate(settings.attention_dropout),
            "relu_dropout": native_rate(settings.relu_dropout),
            "num_threads": threads,
        },
    )


def _shapes_of(stack: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all weights of a `td_stack`, in their order."""
    d_model, d_ff = stack.d_model, stack.d_ff
    keys, values = stack.heads * stack.d_k, stack.heads * stack.d_v
    norm = [(d_model,), (d_model,)]
    attention = [
        *[(keys, d_model), (keys,)],
        *[(keys + values, d_model), (keys + values,)],
        *[(d_model, values), (d_model,)],
        *norm,
    ]
    feed_forward = [(d_ff, d_model), (d_ff,), (d_model, d_ff), (d_model,), *norm]
    recurrence = [(d_model, d_model), (d_model,), (d_model, d_model), *norm]
    first = recurrence if stack.is_recurrent else attention
    cross = attention if stack.memory_length > 0 else []
    layer: list[tuple[int, ...]] = first + cross + feed_forward
    return layer * stack.layers


def _draw_seeds(stack: Any) -> Any:
    """Draw the seeds of each sub-layer: two for dropout within it, two for its output.

    The order is that in which separate layers draw. A rate of 0 draws no seeds, which
    are then zeros.
    """
    output = stack.dropout.num_dropped
    attention = [stack.attention_dropout.num_dropped, output]
    feed_forward = [stack.relu_dropout.num_dropped, output]
    first = [0, output] if stack.is_recurrent else attention
    cross = attention if stack.memory_length > 0 else []
    rates = (first + cross + feed_forward) * stack.layers
    drawn = iter(draw_seeds(2 * sum(rate > 0 for rate in rates)))
    seeds = [next(drawn) if rate > 0 else 0 for rate in rates for _ in range(2)]
    return ffi.new("uint32_t[]", seeds)


def _expanded_mask(
    mask: Bool[Tensor, "#batch 1 #queries #keys"], batch: int, queries: int, keys: int
) -> Bool[Tensor, "{batch} 1 {queries} {keys}"]:
    """Return a mask of these sizes; sentences and queries that share a row still do.

    Raises `ValueError` if its dtype is not bool, and PyTorch's `RuntimeError` if it has
    other sizes.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"A mask must be of bools, but is of {mask.dtype}.")
    # The native library reads the keys of a query one after another.
    return mask.expand(-1, -1, -1, keys).contiguous().expand(batch, 1, queries, keys)


def _native_mask(mask: Bool[Tensor, "batch 1 queries keys"]) -> dict[str, Any]:
    """Return the result of `_expanded_mask` as a `td_mask`."""
    sentence_stride, _, query_stride, _ = mask.stride()
    return {
        "data": ffi.cast("uint8_t *", mask.data_ptr()),
        "sentence_stride": sentence_stride,
        "query_stride": query_stride,
    }


def _packed(
    stack: Any, weights: Sequence[Tensor], directions: int
) -> Float[Tensor, "directions elements"]:
    """Pack the matrices in bf16 for the forward pass, and for the backward pass too."""
    size = sum(each.numel() for each in weights if each.dim() > 1)

    def pack(elements: Tensor) -> None:
        own = ffi.new("td_stack *", stack[0])
        pointers = _pointers(weights)
        own.weights = ffi.cast("float **", ffi.from_buffer(pointers))
        _set_packed(own, elements.view(directions, size))
        own.num_threads = torch.get_num_threads()
        check(loaded_nn_api().stack_pack(own))

    return packed_once(weights[0], directions * size, pack).view(directions, size)


def _set_packed(stack: Any, packed: Float[Tensor, "directions elements"]) -> None:
    stack.packed_forward = tensor_pointer(packed[0], torch.bfloat16)
    if len(packed) > 1:
        stack.packed_backward = tensor_pointer(packed[1], torch.bfloat16)


def _pointers(weights: Sequence[Tensor]) -> Integer[np.ndarray, " weights"]:
    """Return the addresses of weights; faster than a pointer of cffi for each."""
    if not all(
        each.is_contiguous() and each.dtype == torch.float32 for each in weights
    ):
        raise ValueError("The weights of layers must be contiguous, and in fp32.")
    return np.array([each.data_ptr() for each in weights], dtype=np.uintp)


def _run_stack(function: Any, stack: Any, saved: Sequence[Any]) -> None:
    """Call a function of `td_stack` with a workspace.

    Pointers are set anew, as hooks may have moved saved tensors.
    """
    x, memory, states, packed, *weights = saved
    stack.x, stack.states = tensor_pointer(x), tensor_pointer(states)
    stack.memory = ffi.NULL if memory is None else tensor_pointer(memory)
    pointers = _pointers(weights)
    stack.weights = ffi.cast("float **", ffi.from_buffer(pointers))
    if packed is not None:
        _set_packed(stack, packed)
    stack.num_threads = torch.get_num_threads()
    workspace = x.new_empty(stack.parts, loaded_nn_api().stack_workspace(stack))
    stack.workspace = tensor_pointer(workspace)
    check(function(stack))
