"""Layers one upon another, all in one call forwards and one backwards.

Called one by one, the operators of a small model wait for Python, and threads for each
other (benchmarks/results/training_speed.md). All weights are differentiated, also those
that ask for no gradient.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.operators.addresses import address
from transduce.model.operators.dropout import WHOLE_MASKS, draw_seeds, rate_fields
from transduce.model.operators.kernels.fields import SeenFields, StackFields
from transduce.model.operators.kernels.library import (
    WHOLE,
    has_products,
    loaded_kernels,
    uses_matrix_unit,
)
from transduce.model.operators.packed_weights import (
    NUM_WAYS,
    PANEL_WIDTH,
    packed_once,
)
from transduce.model.operators.short_attention import Heads, has_short_attention

MOST_PARTS = 4
"""Of a batch, each with all gradients of its own; more threads share each operator."""
LEAST_ROWS = 256
"""Of a part: for fewer, gradients of all weights are too much to sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """What the layers of a stack have in common."""

    count: int
    d_ff: int
    heads: Heads
    dropout: float
    attention_dropout: float
    relu_dropout: float
    norm_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What all layers attend to besides themselves."""

    memory: Float[Tensor, "batch keys d_model"]
    mask: Bool[Tensor, "#batch 1 #queries keys"]


def has_layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    attended: Attended | None,
    layers: Layers,
) -> bool:
    """Whether there are kernels for it, and they are the fastest."""
    keys = [x] if attended is None else [x, attended.memory]
    return (
        all(each.dtype == torch.float32 for each in (x, *keys))
        and x.size(-1) % WHOLE_MASKS == 0
        and layers.d_ff % WHOLE == 0
        and all(_has_attention(x, each, layers) for each in keys)
        and (_is_for_unit(layers) if _is_autocast() else has_products())
    )


def _has_attention(x: Tensor, keys: Tensor, layers: Layers) -> bool:
    return has_short_attention(x, keys, layers.heads, layers.attention_dropout)


def _is_autocast() -> bool:
    """Whether the factors of products are to be in another precision."""
    return torch.is_autocast_enabled("cpu")


def _is_for_unit(layers: Layers) -> bool:
    heads = layers.heads
    widths = (layers.d_ff, heads.count * heads.d_k, heads.count * heads.d_v)
    return (
        torch.get_autocast_dtype("cpu") == torch.bfloat16
        and all(width % PANEL_WIDTH == 0 for width in widths)
        and uses_matrix_unit()
    )


def layer_stack(
    x: Float[Tensor, "batch queries d_model"],
    mask: Bool[Tensor, "#batch 1 #queries queries"],
    attended: Attended | None,
    layers: Layers,
    weights: Sequence[Tensor],
) -> Float[Tensor, "batch queries d_model"]:
    """What the last layer makes of x.

    The weights are those of each layer, sub-layer by sub-layer: of queries, of keys and
    values, of outputs, or of the inner and the outer map, and then of the norm; each
    with its bias.
    """
    memory, memory_mask = (attended.memory, attended.mask) if attended else (None, None)
    kept = layers.count if torch.is_grad_enabled() else 1
    result: Tensor = _LayerStack.apply(  # type: ignore[no-untyped-call] # torch's own
        x, mask, memory, memory_mask, layers, kept, *weights
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
        x, library = x.contiguous(), loaded_kernels()
        memory = None if memory is None else memory.contiguous()
        fields = _fields(x, memory, layers)
        fields.kept_layers = kept
        fields.is_bf16 = _is_autocast()
        _require_shapes(fields, weights)
        seeds = _seeds(fields)
        # Both are kept until the kernel is done, which alone reads them.
        masks = [m if m is None else m.contiguous() for m in (mask, memory_mask)]
        fields.self_mask, fields.memory_mask = [_seen(x, each) for each in masks]
        size = library.transduce_stack_states(ctypes.byref(fields))
        states = x.new_empty(fields.parts, size)
        y = torch.empty_like(x)
        fields.seeds = ctypes.addressof(seeds)
        fields.y = address(y)
        ways = NUM_WAYS if kept == layers.count else 1  # there may be no way back
        packed = _packed(fields, weights, ways) if fields.is_bf16 else None
        saved = (x, memory, states, packed, *weights)
        ctx.save_for_backward(*saved)
        ctx.fields, ctx.seeds = fields, seeds  # the fields point to the seeds
        _run(library.transduce_form_layers, fields, saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # only once, as hooks may bring it from elsewhere
        x, memory, _, _, *weights = saved
        of_x = torch.empty_like(x)
        of_memory = None if memory is None else torch.empty_like(memory)
        size = sum(weight.numel() for weight in weights)
        # Apart from the others, which are not kept.
        total, others = x.new_empty(size), x.new_empty(ctx.fields.parts - 1, size)
        of_y = gradients[0].contiguous()
        # A copy, as two threads may go backwards at once.
        fields = StackFields.from_buffer_copy(ctx.fields)
        places = _as_array(
            [
                place
                for part in (total, *others)
                for place in _places(weights, _starts(weights, part), ())
            ]
        )
        fields.gradients = ctypes.addressof(places)
        fields.of_y, fields.of_x = address(of_y), address(of_x)
        fields.of_memory = None if of_memory is None else address(of_memory)
        kernel = loaded_kernels().transduce_differentiate_layers
        _run(kernel, fields, saved)
        for each in others:
            total += each
        return of_x, None, of_memory, None, None, None, *_as_pieces(total, weights)


def _fields(x: Tensor, memory: Tensor | None, layers: Layers) -> StackFields:
    batch, length, d_model = x.shape
    threads = torch.get_num_threads()
    most = min(MOST_PARTS, batch, batch * length // LEAST_ROWS)
    return StackFields(
        layers=layers.count,
        sentences=batch,
        length=length,
        d_model=d_model,
        d_ff=layers.d_ff,
        heads=layers.heads.count,
        d_k=layers.heads.d_k,
        d_v=layers.heads.d_v,
        memory_length=0 if memory is None else memory.size(1),
        parts=threads if threads <= most else 1,
        epsilon=layers.norm_epsilon,
        scale=layers.heads.scale,
        dropout=rate_fields(layers.dropout),
        attention_dropout=rate_fields(layers.attention_dropout),
        relu_dropout=rate_fields(layers.relu_dropout),
        num_threads=threads,
    )


def _require_shapes(fields: StackFields, weights: Sequence[Tensor]) -> None:
    """The kernel knows of no others."""
    d_model, d_ff = fields.d_model, fields.d_ff
    keys, values = fields.heads * fields.d_k, fields.heads * fields.d_v
    norm = [(d_model,), (d_model,)]
    attention = [
        *[(keys, d_model), (keys,)],
        *[(keys + values, d_model), (keys + values,)],
        *[(d_model, values), (d_model,)],
        *norm,
    ]
    feed_forward = [(d_ff, d_model), (d_ff,), (d_model, d_ff), (d_model,), *norm]
    layer = attention * (_num_sublayers(fields) - 1) + feed_forward
    assert [tuple(weight.shape) for weight in weights] == layer * fields.layers


def _num_sublayers(fields: StackFields) -> int:
    """Of each layer."""
    return 3 if fields.memory_length > 0 else 2


def _seeds(fields: StackFields) -> "ctypes.Array[ctypes.c_uint32]":
    """Seeds of each sub-layer: two for dropout within it, and two for its output's.

    They are drawn in the order of separate layers; a rate of 0 draws none.
    """
    attention = [fields.attention_dropout, fields.dropout]
    feed_forward = [fields.relu_dropout, fields.dropout]
    layer = attention * (_num_sublayers(fields) - 1) + feed_forward
    is_drawn = [
        rate.num_dropped > 0 for rate in layer * fields.layers for _ in range(2)
    ]
    drawn = iter(draw_seeds(sum(is_drawn)))
    return (ctypes.c_uint32 * len(is_drawn))(
        *(next(drawn) if each else 0 for each in is_drawn)
    )


def _seen(x: Tensor, mask: Tensor | None) -> SeenFields:
    """Where a mask is, and how it is spread over queries and sentences."""
    if mask is None:
        return SeenFields()
    wide = mask.expand(x.size(0), -1, x.size(1), -1)
    by_sentence, _, by_query, _ = wide.stride()
    return SeenFields(
        at=address(mask, torch.bool), by_sentence=by_sentence, by_query=by_query
    )


def _as_pieces(numbers: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """One after the other, in the shapes of others."""
    pieces = numbers.split([each.numel() for each in like])
    return [piece.view_as(each) for piece, each in zip(pieces, like, strict=True)]


def _packed(
    fields: StackFields, weights: Sequence[Tensor], ways: int
) -> Float[Tensor, "ways numbers"]:
    """Matrices in bf16, as the kernel reads them forwards, and backwards too."""
    size = sum(weight.numel() for weight in weights)

    def pack(numbers: Tensor) -> None:
        packed = numbers.view(ways, size)
        places = _weight_places(weights, packed)
        own = StackFields.from_buffer_copy(fields)
        own.weights = ctypes.addressof(places)
        threads = torch.get_num_threads()
        loaded_kernels().transduce_pack_layers(ctypes.byref(own), threads)

    return packed_once(weights[0], ways * size, pack).view(ways, size)


def _starts(weights: Sequence[Tensor], numbers: Tensor) -> list[int]:
    """Of all weights one after the other, where such numbers are."""
    counts = [numbers.element_size() * weight.numel() for weight in weights]
    return [
        address(numbers, numbers.dtype) + before
        for before in accumulate(counts[:-1], initial=0)
    ]


def _places(
    weights: Sequence[Tensor], numbers: Sequence[int], packed: Sequence[Sequence[int]]
) -> list[int | None]:
    """Of weights or gradients, and of each matrix in bf16, if there is any."""
    places: list[int | None] = []
    for number, weight in enumerate(weights):
        places.append(numbers[number])
        if weight.dim() > 1:
            ways: list[int | None] = [way[number] for way in packed]
            places += (ways + [None] * NUM_WAYS)[:NUM_WAYS]
    return places


def _weight_places(
    weights: Sequence[Tensor], packed: Tensor | None
) -> "ctypes.Array[ctypes.c_void_p]":
    ways = [] if packed is None else [_starts(weights, way) for way in packed]
    return _as_array(_places(weights, [*map(address, weights)], ways))


def _as_array(places: Sequence[int | None]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(places))(*places)


def _run(kernel: Any, fields: StackFields, saved: Sequence[Any]) -> None:
    """With the addresses of now, as what is saved may have been elsewhere meanwhile."""
    x, memory, states, packed, *weights = saved
    fields.x, fields.states = address(x), address(states)
    fields.memory = None if memory is None else address(memory)
    places = _weight_places(weights, packed)
    fields.weights = ctypes.addressof(places)
    fields.num_threads = torch.get_num_threads()
    at = ctypes.byref(fields)
    room = x.new_empty(fields.parts, loaded_kernels().transduce_stack_room(at))
    fields.room = address(room)
    kernel(at, fields.num_threads)
