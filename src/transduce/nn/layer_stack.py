"""All layers of a stack in one native call forward and one backward.

Called one by one, the operators of a small model wait for Python, and threads for each
other (benchmarks/results/training_speed.md). All weights are differentiated, also those
that do not require gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.transformer import Memory
from transduce.native import check, ffi
from transduce.nn.attention import Heads, has_native_attention
from transduce.nn.dropout import MASK_MULTIPLE, draw_seeds, dropout_rate
from transduce.nn.native_operators import (
    NUM_DIRECTIONS,
    PANEL_WIDTH,
    ROW_MULTIPLE,
    has_sgemm,
    loaded_nn_api,
    packed_once,
    tensor_pointer,
    uses_amx,
)

MAX_PARTS = 4
"""Parts of a batch, each with its own gradients; more threads share each operator."""
MIN_ROWS = 256
"""Rows of a part; with fewer, summing the parts' gradients costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Settings that all layers of a stack share."""

    count: int
    d_ff: int
    heads: Heads
    dropout: float
    attention_dropout: float
    relu_dropout: float
    norm_epsilon: float


def has_layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    memory: Memory | None,
    layers: Layers,
) -> bool:
    """Whether the native stack exists for these inputs and is the fastest."""
    keys = [x] if memory is None else [x, memory.states]
    return (
        all(each.dtype == torch.float32 for each in (x, *keys))
        and x.size(-1) % MASK_MULTIPLE == 0
        and layers.d_ff % ROW_MULTIPLE == 0
        and all(_has_attention(x, each, layers) for each in keys)
        and (_fits_amx(layers) if _is_autocast() else has_sgemm())
    )


def _has_attention(x: Tensor, keys: Tensor, layers: Layers) -> bool:
    return has_native_attention(x, keys, layers.heads, layers.attention_dropout)


def _is_autocast() -> bool:
    """Whether matrices are to be multiplied in another precision."""
    return torch.is_autocast_enabled("cpu")


def _fits_amx(layers: Layers) -> bool:
    heads = layers.heads
    widths = (layers.d_ff, heads.count * heads.d_k, heads.count * heads.d_v)
    return (
        torch.get_autocast_dtype("cpu") == torch.bfloat16
        and all(width % PANEL_WIDTH == 0 for width in widths)
        and uses_amx()
    )


def layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    mask: Bool[Tensor, "#batch 1 #queries queries"],
    memory: Memory | None,
    layers: Layers,
    weights: Sequence[Tensor],
) -> Float[Tensor, "batch queries d_model"]:
    """Return the output of the last layer for the input x.

    `weights` has those of each layer, sub-layer by sub-layer: for attention the maps of
    queries, of keys and values, and of outputs; for the feed-forward network its inner
    and outer map; and then the norm. Each weight is followed by its bias.
    """
    states, memory_mask = (memory.states, memory.mask) if memory else (None, None)
    kept = layers.count if torch.is_grad_enabled() else 1
    result: Tensor = _LayerStack.apply(  # type: ignore[no-untyped-call] # torch's own
        x, mask, states, memory_mask, layers, kept, *weights
    )
    return result


class _LayerStack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        layers: Layers,
        kept: int,
        *weights: Tensor,
    ) -> Tensor:
        x, api = x.contiguous(), loaded_nn_api()
        memory = None if memory is None else memory.contiguous()
        stack = _new_stack(x, memory, layers)
        stack.kept_layers = kept
        stack.is_bf16 = _is_autocast()
        _require_shapes(stack, weights)
        seeds = _draw_seeds(stack)
        # The masks are named, so that they outlive the call.
        masks = [m if m is None else m.contiguous() for m in (mask, memory_mask)]
        stack.self_mask, stack.cross_mask = [_mask(x, each) for each in masks]
        states = x.new_empty(stack.parts, api.stack_states(stack))
        y = torch.empty_like(x)
        stack.seeds = seeds
        stack.y = tensor_pointer(y)
        # Without a backward pass, weights are packed for the forward pass only.
        directions = NUM_DIRECTIONS if kept == layers.count else 1
        packed = _packed(stack, weights, directions) if stack.is_bf16 else None
        saved = (x, memory, states, packed, *weights)
        ctx.save_for_backward(*saved)
        ctx.stack, ctx.seeds = stack, seeds  # the struct points to the seeds
        _run(api.stack_forward, stack, saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # only once, as hooks may fetch it from elsewhere
        x, memory, _, _, *weights = saved
        grad_x = torch.empty_like(x)
        grad_memory = None if memory is None else torch.empty_like(memory)
        size = sum(weight.numel() for weight in weights)
        # Separate tensors, as only the first one is kept.
        total, others = x.new_empty(size), x.new_empty(ctx.stack.parts - 1, size)
        grad_y = gradients[0].contiguous()
        # A copy, as two threads may go backward at once.
        stack = ffi.new("td_stack *", ctx.stack[0])
        pointers = ffi.new(
            "uintptr_t[]",
            [
                pointer
                for part in (total, *others)
                for pointer in _pointers(weights, _addresses(weights, part), ())
            ],
        )
        stack.grad_weights = ffi.cast("void **", pointers)
        stack.grad_y, stack.grad_x = tensor_pointer(grad_y), tensor_pointer(grad_x)
        if grad_memory is not None:
            stack.grad_memory = tensor_pointer(grad_memory)
        _run(loaded_nn_api().stack_backward, stack, saved)
        for each in others:
            total += each
        return grad_x, None, grad_memory, None, None, None, *_split(total, weights)


def _new_stack(x: Tensor, memory: Tensor | None, layers: Layers) -> Any:
    """Return a `td_stack` with its sizes and rates."""
    batch, length, d_model = x.shape
    threads = torch.get_num_threads()
    most = min(MAX_PARTS, batch, batch * length // MIN_ROWS)
    return ffi.new(
        "td_stack *",
        {
            "layers": layers.count,
            "sentences": batch,
            "length": length,
            "d_model": d_model,
            "d_ff": layers.d_ff,
            "heads": layers.heads.count,
            "d_k": layers.heads.d_k,
            "d_v": layers.heads.d_v,
            "memory_length": 0 if memory is None else memory.size(1),
            "parts": threads if threads <= most else 1,
            "epsilon": layers.norm_epsilon,
            "scale": layers.heads.scale,
            "dropout": dropout_rate(layers.dropout),
            "attention_dropout": dropout_rate(layers.attention_dropout),
            "relu_dropout": dropout_rate(layers.relu_dropout),
            "num_threads": threads,
        },
    )


def _require_shapes(stack: Any, weights: Sequence[Tensor]) -> None:
    """Check the weights' shapes, which the native function cannot."""
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
    layer = attention * (_num_sublayers(stack) - 1) + feed_forward
    assert [tuple(weight.shape) for weight in weights] == layer * stack.layers


def _num_sublayers(stack: Any) -> int:
    """Return the number of sub-layers of each layer."""
    return 3 if stack.memory_length > 0 else 2


def _draw_seeds(stack: Any) -> Any:
    """Draw each sub-layer's seeds: two for dropout within it, two for its output's.

    They are drawn in the order of separate layers; a rate of 0 draws none.
    """
    attention = [stack.attention_dropout, stack.dropout]
    feed_forward = [stack.relu_dropout, stack.dropout]
    layer = attention * (_num_sublayers(stack) - 1) + feed_forward
    is_drawn = [rate.num_dropped > 0 for rate in layer * stack.layers for _ in range(2)]
    drawn = iter(draw_seeds(sum(is_drawn)))
    return ffi.new("uint32_t[]", [next(drawn) if each else 0 for each in is_drawn])


def _mask(x: Tensor, mask: Tensor | None) -> dict[str, Any]:
    """Return a mask as `td_mask`, which can be shared by queries and sentences."""
    if mask is None:
        return {}
    wide = mask.expand(x.size(0), -1, x.size(1), -1)
    sentence_stride, _, query_stride, _ = wide.stride()
    return {
        "data": tensor_pointer(mask, torch.bool),
        "sentence_stride": sentence_stride,
        "query_stride": query_stride,
    }


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into views with the shapes of others."""
    pieces = flat.split([each.numel() for each in like])
    return [piece.view_as(each) for piece, each in zip(pieces, like, strict=True)]


def _packed(
    stack: Any, weights: Sequence[Tensor], directions: int
) -> Float[Tensor, "directions elements"]:
    """Pack the matrices in bf16 for the forward pass, and for the backward pass too."""
    size = sum(weight.numel() for weight in weights)

    def pack(elements: Tensor) -> None:
        pointers = _weight_pointers(weights, elements.view(directions, size))
        own = ffi.new("td_stack *", stack[0])
        own.weights = ffi.cast("void **", pointers)
        own.num_threads = torch.get_num_threads()
        check(loaded_nn_api().stack_pack(own))

    return packed_once(weights[0], directions * size, pack).view(directions, size)


def _addresses(weights: Sequence[Tensor], flat: Tensor) -> list[int]:
    """Return the address of each weight if all follow each other in `flat`."""
    assert flat.is_contiguous()
    sizes = [flat.element_size() * weight.numel() for weight in weights]
    return [flat.data_ptr() + start for start in accumulate(sizes[:-1], initial=0)]


def _pointers(
    weights: Sequence[Tensor],
    addresses: Sequence[int],
    packed: Sequence[Sequence[int]],
) -> list[int]:
    """Return `td_stack`'s pointers to weights or gradients and to packed matrices."""
    pointers: list[int] = []
    for number, weight in enumerate(weights):
        pointers.append(addresses[number])
        if weight.dim() > 1:
            matrices = [each[number] for each in packed]
            pointers += (matrices + [0] * NUM_DIRECTIONS)[:NUM_DIRECTIONS]
    return pointers


def _weight_pointers(weights: Sequence[Tensor], packed: Tensor | None) -> Any:
    assert all(each.is_contiguous() for each in weights)
    assert all(each.dtype == torch.float32 for each in weights)
    addresses = [each.data_ptr() for each in weights]
    matrices = [] if packed is None else [_addresses(weights, each) for each in packed]
    return ffi.new("uintptr_t[]", _pointers(weights, addresses, matrices))


def _run(function: Any, stack: Any, saved: Sequence[Any]) -> None:
    """Call a function of `td_stack` with a workspace.

    Pointers are set anew, as hooks may have moved saved tensors.
    """
    x, memory, states, packed, *weights = saved
    stack.x, stack.states = tensor_pointer(x), tensor_pointer(states)
    stack.memory = ffi.NULL if memory is None else tensor_pointer(memory)
    pointers = _weight_pointers(weights, packed)
    stack.weights = ffi.cast("void **", pointers)
    stack.num_threads = torch.get_num_threads()
    workspace = x.new_empty(stack.parts, loaded_nn_api().stack_workspace(stack))
    stack.workspace = tensor_pointer(workspace)
    check(function(stack))
