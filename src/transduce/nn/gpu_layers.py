"""Stacks of layers over packed sentences on a GPU, forward and backward.

The rows of all sentences follow each other, so no product computes padding, and a batch
can hold sentences of all lengths. One call computes all layers of a stack, by PyTorch's
matrix products and Triton's kernels between them: the operators of a layer, recorded
one by one, take longer on the CPU than on the GPU
(benchmarks/results/gpu/training.md).

Rows are in bf16; kernels compute in fp32, and the gradients of weights are in fp32.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.data.tensors import PackedSide
from transduce.nn.gpu_kernels import (
    LONGEST_SHORT,
    MAX_SEED,
    SEED_STRIDE,
    SHORT_SENTENCE,
    DropoutMask,
    PackedAttention,
    Sentences,
    add_and_norm,
    add_and_norm_backward,
    attention,
    attention_backward,
    column_sums,
    dropout_into,
    relu_backward_,
    weight_gradient,
)
from transduce.nn.kernels import packed_once
from transduce.nn.native_layers import StackSettings

SUBLAYER_WEIGHTS = {"attention": 8, "feed_forward": 6}
"""Number of weights of each sub-layer, with its norm."""
MAX_MASKS = 64
"""Number of seeds drawn at a time: as many as a stack of ten decoder layers needs."""


def packed_stack(
    x: Float[Tensor, "queries d_model"],
    memory: Float[Tensor, "keys d_model"] | None,
    sentences: Sentences,
    sources: Sentences,
    layers: StackSettings,
    weights: Sequence[Tensor],
) -> Float[Tensor, "queries d_model"]:
    """Return the output of the last layer for the input x.

    With a memory, whose rows `sources` describes, the layers are a decoder's, and
    self-attention is causal. `weights` has the order of `layer_stack`.
    """
    has_backward = torch.is_grad_enabled()  # inside forward it is off
    y: Tensor = _PackedStack.apply(  # type: ignore[no-untyped-call] # torch's own
        x, memory, (sentences, sources), layers, has_backward, *weights
    )
    return y


def sentences_of(side: PackedSide) -> Sentences:
    """Return the places of a side's sentences."""
    are_short = side.mean_length <= SHORT_SENTENCE and side.longest <= LONGEST_SHORT
    return Sentences(side.starts, side.longest, are_short)


def dropped_rows(
    x: Float[Tensor, "rows width"], rate: float, dtype: torch.dtype
) -> Float[Tensor, "rows width"]:
    """Return Dropout(x) in another type."""
    dropout = DropoutMask(rate, next(_seeds(x.device)))
    y: Tensor = _DroppedRows.apply(x, dropout, dtype)  # type: ignore[no-untyped-call] # torch's own
    return y


class _DroppedRows(torch.autograd.Function):
    """Dropout that computes its masks again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dropout: DropoutMask, dtype: torch.dtype
    ) -> Tensor:
        ctx.dropout, ctx.dtype = dropout, x.dtype
        return dropout_into(torch.empty_like(x, dtype=dtype), x, dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        grad = gradients[0].contiguous()
        grad_x = torch.empty_like(grad, dtype=ctx.dtype)
        return dropout_into(grad_x, grad, ctx.dropout), None, None


def _seeds(device: torch.device) -> Iterator[Int[Tensor, " _"]]:
    """Draw seeds from the device's generator; yield them one by one."""
    size = (MAX_MASKS, SEED_STRIDE)
    while True:
        yield from torch.randint(MAX_SEED, size, dtype=torch.int32, device=device)


class _PackedStack(torch.autograd.Function):
    """Sub-layers of a stack, one after the other, and their backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        memory: Tensor | None,
        sides: tuple[Sentences, Sentences],
        layers: StackSettings,
        has_backward: bool,
        *weights: Tensor,
    ) -> Tensor:
        ctx.backwards = []
        for sublayer in _sublayers(x, memory, sides, layers, weights):
            x, backward = sublayer(x)
            if has_backward:
                ctx.backwards.append(backward)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad, grad_memory = gradients[0].contiguous(), None
        grads_by_sublayer: list[list[Tensor]] = []
        while ctx.backwards:  # popped, so that tensors are freed once they are read
            grad, grad_memory, found = ctx.backwards.pop()(grad, grad_memory)
            grads_by_sublayer.append(found)
        grad_weights = [each for found in reversed(grads_by_sublayer) for each in found]
        return grad, grad_memory, None, None, None, *grad_weights


Gradients = tuple[Tensor, Tensor | None, list[Tensor]]
"""Gradients of x, of the memory as far as known, and of the weights of a sub-layer."""
Backward = Callable[[Tensor, Tensor | None], Gradients]
"""Backward pass of a sub-layer: a function of the gradients of its output and, as far
as known, of the memory. It holds the tensors of the forward pass that it reads."""
SubLayer = Callable[[Tensor], tuple[Tensor, Backward]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Weights of a sub-layer, as factors and addends of products.

    The input map of attention joins the map of queries and that of keys and values.
    """

    inner: Float[Tensor, "inner d_model"]
    inner_bias: Float[Tensor, " inner"]
    outer: Float[Tensor, "d_model outer"]
    outer_bias: Float[Tensor, " d_model"]
    gain: Float[Tensor, " d_model"]
    """Gain of the norm, in fp32 as its bias."""
    bias: Float[Tensor, " d_model"]


def _sublayers(
    x: Float[Tensor, "queries d_model"],
    memory: Float[Tensor, "keys d_model"] | None,
    sides: tuple[Sentences, Sentences],
    layers: StackSettings,
    weights: Sequence[Tensor],
) -> Iterator[SubLayer]:
    """Yield the sub-layers of a stack in their order, with seeds for their masks."""
    is_decoder, (sentences, sources) = memory is not None, sides
    kinds = ["attention", *(["attention"] if is_decoder else []), "feed_forward"]
    rounded = iter(_rounded(weights, kinds * layers.count, x.dtype))
    seeds, heads = _seeds(x.device), layers.heads

    def attention_to(keys: Sentences, *, is_causal: bool) -> PackedAttention:
        return PackedAttention(
            queries=sentences,
            keys=keys,
            num_heads=heads.count,
            width=heads.d_k,
            scale=heads.scale,
            is_causal=is_causal,
            dropout=DropoutMask(layers.attention_dropout, next(seeds)),
        )

    def residual() -> "_Residual":
        return _Residual(layers.norm_epsilon, DropoutMask(layers.dropout, next(seeds)))

    for _ in range(layers.count):
        settings = attention_to(sentences, is_causal=is_decoder)
        yield partial(_self_attention, next(rounded), settings, residual())
        if memory is not None:
            settings = attention_to(sources, is_causal=False)
            own = next(rounded)
            yield partial(_cross_attention, own, settings, residual(), memory)
        relu_dropout = DropoutMask(layers.relu_dropout, next(seeds))
        yield partial(_feed_forward, next(rounded), relu_dropout, residual())


def _rounded(
    weights: Sequence[Tensor], kinds: Iterable[str], dtype: torch.dtype
) -> list[_Weights]:
    """Return the weights of each sub-layer, those of products in the rows' type.

    All are copied at once. The maps of queries, and of keys and values, become one.
    """
    remaining = iter(weights)
    norms: list[tuple[Tensor, Tensor]] = []
    groups: list[list[Tensor]] = []  # a group becomes one factor or addend
    for kind in kinds:
        *own, gain, bias = islice(remaining, SUBLAYER_WEIGHTS[kind])
        norms.append((gain.detach(), bias.detach()))
        if kind == "attention":
            query, query_bias, key_value, key_value_bias, *own = own
            groups += [[query, key_value], [query_bias, key_value_bias]]
        groups += [[each] for each in own]
    members = [each for group in groups for each in group]
    sizes = [sum(each.numel() for each in group) for group in groups]

    def copy(elements: Tensor) -> None:
        pieces = elements.split([each.numel() for each in members])
        flat = [each.detach().flatten() for each in members]
        torch._foreach_copy_(list(pieces), flat)

    pieces = packed_once(weights[0], sum(sizes), copy, dtype).split(sizes)
    factors = (
        piece.view(-1, *group[0].shape[1:])
        for piece, group in zip(pieces, groups, strict=True)
    )
    return [
        _Weights(
            inner=next(factors),
            inner_bias=next(factors),
            outer=next(factors),
            outer_bias=next(factors),
            gain=gain,
            bias=bias,
        )
        for gain, bias in norms
    ]


@dataclass(frozen=True, slots=True)
class _Residual:
    """Residual connection of a sub-layer: LayerNorm(x + Dropout(addend))."""

    epsilon: float
    dropout: DropoutMask

    def forward(
        self, x: Tensor, addend: Tensor, weights: _Weights
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, list[Tensor]]]]:
        """Return the output, and a function of its gradient: the backward pass.

        The backward pass returns the gradients of x, of the addend, and of three
        vectors: the last bias of the sub-layer, and the norm's gain and bias.
        """
        gain = weights.gain
        y, scales = add_and_norm(
            x, addend, gain, weights.bias, self.epsilon, self.dropout
        )

        def backward(grad_y: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
            found = add_and_norm_backward(grad_y, addend, scales, gain, self.dropout)
            return found.x, found.addend, [found.addend_sum, found.gain, found.bias]

        return y, backward


def _self_attention(
    weights: _Weights, settings: PackedAttention, residual: _Residual, x: Tensor
) -> tuple[Tensor, Backward]:
    """Return the output of self-attention with its residual connection."""
    split = settings.split
    inner = torch.addmm(weights.inner_bias, x, weights.inner.t())
    heads, log_sums = attention(*split(inner), settings)
    addend = torch.addmm(weights.outer_bias, heads, weights.outer.t())
    y, residual_backward = residual.forward(x, addend, weights)

    def backward(grad_y: Tensor, grad_memory: Tensor | None) -> Gradients:
        grad_x, grad_addend, vectors = residual_backward(grad_y)
        grad_inner = torch.empty_like(inner)
        attention_backward(
            split(grad_inner),
            grad_addend @ weights.outer,
            split(inner),
            heads,
            log_sums,
            settings,
        )
        grad_query, grad_key_value = split(weight_gradient(grad_inner, x).t())
        grad_query_bias, grad_key_value_bias = split(column_sums(grad_inner)[None])
        grad_weights = [
            grad_query.t(),
            grad_query_bias[0],
            grad_key_value.t(),
            grad_key_value_bias[0],
            weight_gradient(grad_addend, heads),
            *vectors,
        ]
        return grad_x.addmm_(grad_inner, weights.inner), grad_memory, grad_weights

    return y, backward


def _cross_attention(
    weights: _Weights,
    settings: PackedAttention,
    residual: _Residual,
    memory: Tensor,
    x: Tensor,
) -> tuple[Tensor, Backward]:
    """Return the output of attention to the memory with its residual connection.

    The backward pass adds the gradient of the memory to that of later layers.
    """
    query_weight, key_value_weight = settings.split(weights.inner.t())
    query_bias, key_value_bias = settings.split(weights.inner_bias[None])
    query = torch.addmm(query_bias[0], x, query_weight)
    key_value = torch.addmm(key_value_bias[0], memory, key_value_weight)
    heads, log_sums = attention(query, key_value, settings)
    addend = torch.addmm(weights.outer_bias, heads, weights.outer.t())
    y, residual_backward = residual.forward(x, addend, weights)

    def backward(grad_y: Tensor, grad_memory: Tensor | None) -> Gradients:
        grad_x, grad_addend, vectors = residual_backward(grad_y)
        grad_query = torch.empty_like(query)
        grad_key_value = torch.empty_like(key_value)
        attention_backward(
            (grad_query, grad_key_value),
            grad_addend @ weights.outer,
            (query, key_value),
            heads,
            log_sums,
            settings,
        )
        if grad_memory is None:
            grad_memory = grad_key_value @ key_value_weight.t()
        else:
            grad_memory.addmm_(grad_key_value, key_value_weight.t())
        grad_weights = [
            weight_gradient(grad_query, x),
            column_sums(grad_query),
            weight_gradient(grad_key_value, memory),
            column_sums(grad_key_value),
            weight_gradient(grad_addend, heads),
            *vectors,
        ]
        return grad_x.addmm_(grad_query, query_weight.t()), grad_memory, grad_weights

    return y, backward


def _feed_forward(
    weights: _Weights, dropout: DropoutMask, residual: _Residual, x: Tensor
) -> tuple[Tensor, Backward]:
    """Return the output of a feed-forward network with its residual connection."""
    hidden = torch._addmm_activation(weights.inner_bias, x, weights.inner.t())
    if dropout.rate > 0:
        dropout_into(hidden, hidden, dropout)
    addend = torch.addmm(weights.outer_bias, hidden, weights.outer.t())
    y, residual_backward = residual.forward(x, addend, weights)

    def backward(grad_y: Tensor, grad_memory: Tensor | None) -> Gradients:
        grad_x, grad_addend, vectors = residual_backward(grad_y)
        grad_hidden = grad_addend @ weights.outer
        grad_inner_bias = relu_backward_(grad_hidden, hidden, dropout.rate)
        grad_weights = [
            weight_gradient(grad_hidden, x),
            grad_inner_bias,
            weight_gradient(grad_addend, hidden),
            *vectors,
        ]
        return grad_x.addmm_(grad_hidden, weights.inner), grad_memory, grad_weights

    return y, backward
