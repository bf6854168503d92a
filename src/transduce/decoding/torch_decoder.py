"""Decoding step by step in PyTorch, with cached keys and values.

In decoding, matrix products are small and most time passes between them. `FusedStep`
therefore projects queries, keys and values of self-attention by one product, or gates
and candidates of a recurrent unit, and shares masks among layers. `TorchDecoder` is the
decoder that a search uses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor, nn

from transduce.architectures.interface import DecoderState, Stepper
from transduce.decoding.cache import (
    DecodingState,
    LayerCache,
    RecurrentCache,
    RecurrentState,
    new_state,
    resized,
)
from transduce.model.attention import MultiHeadAttention, additive_mask
from transduce.model.layers import (
    DecoderLayer,
    RecurrentDecoderLayer,
    ResidualConnection,
)
from transduce.model.recurrence import SSRU
from transduce.model.transformer import Memory, Transformer
from transduce.nn.fuse import head_major
from transduce.nn.linear import linear

LinearMap = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor], LinearMap]
"""Function of a weight and a bias that returns their linear map."""


def plain_linear(weight: Tensor, bias: Tensor) -> LinearMap:
    """Return a linear map in the weight's own precision."""
    return lambda x: linear(x, weight, bias)


class FusedStep:
    """Decoding steps of a Transformer, with the weights that it has at construction.

    A step computes the same as `Transformer.step`. The model may be converted to
    `dtype` afterwards: joint and scaled weights are then rounded only once.
    """

    def __init__(
        self,
        model: Transformer,
        make_linear: MakeLinear = plain_linear,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        layers = model.decoder_layers
        self._layers = [_Layer(each, make_linear, dtype) for each in layers]

    def start(self, memory: Memory) -> DecodingState | RecurrentState:
        """Return the state before the first step, with one hypothesis a sentence."""
        return new_state(self.model, memory)

    def step(
        self,
        last_ids: Int[Tensor, "sentences group"],
        state: DecodingState | RecurrentState,
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        x, mask = self.enter(last_ids, state)
        self_mask = additive_mask(mask, x.dtype)
        cross_mask = additive_mask(state.memory_mask, x.dtype)
        return self.logits(x, state.layers, self_mask, cross_mask)

    def enter(
        self,
        last_ids: Int[Tensor, "sentences group"],
        state: DecodingState | RecurrentState,
    ) -> tuple[
        Float[Tensor, "sentences group d_model"],
        Bool[Tensor, "sentences 1 group slots"],
    ]:
        """Embed the last tokens, and take a slot for their keys and values.

        Also returns the mask of the slots to which each hypothesis attends.
        """
        # All hypotheses of a sentence are at the same position.
        positions = self.model.positions.at(state.lengths, state.max_length)
        x = self.model.output_embedding(last_ids)
        mask = state.advance()
        return x + positions[:, None].to(x.dtype), mask

    def logits(
        self,
        x: Float[Tensor, "sentences group d_model"],
        caches: Sequence[LayerCache | RecurrentCache],
        self_mask: Float[Tensor, "sentences 1 group slots"],
        cross_mask: Float[Tensor, "sentences 1 1 source"],
        slots: Int[Tensor, " group"] | None = None,
    ) -> Float[Tensor, "sentences group vocab"]:
        """Run the layers on embedded tokens, with a cache for each layer.

        The masks are added to scores: `self_mask` excludes the slots of other
        hypotheses, `cross_mask` the padding of the source. New keys and values go into
        `slots`, by default the last ones. Recurrent units have no slots.
        """
        for layer, cache in zip(self._layers, caches, strict=True):
            x = layer.step(x, cache, self_mask, cross_mask, slots)
        return self.model.logits(self.model.decoder_norm(x))

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads attention weights."""
        return any(layer.is_watched for layer in self._layers)


class _Layer:
    """A decoder layer as linear maps and norms."""

    def __init__(
        self,
        layer: DecoderLayer | RecurrentDecoderLayer,
        make_linear: MakeLinear,
        dtype: torch.dtype,
    ) -> None:
        cross, network = layer.cross_attention, layer.feed_forward
        self._past = (
            _Recurrence(layer, make_linear, dtype)
            if isinstance(layer, RecurrentDecoderLayer)
            else _SelfAttention(layer, make_linear, dtype)
        )
        self._cross_query = make_linear(*_rounded(_query(cross), dtype))
        self._cross_attention = _Attention(cross, make_linear)
        self._after_cross_attention = _Residual(layer.after_cross_attention)
        self._inner = make_linear(network.inner.weight, network.inner.bias)
        self._activate = network.activate
        self._outer = make_linear(network.outer.weight, network.outer.bias)
        self._after_feed_forward = _Residual(layer.after_feed_forward)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        self_mask: Float[Tensor, "sentences 1 group slots"],
        cross_mask: Float[Tensor, "sentences 1 1 source"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        x = self._past.step(x, cache, self_mask, slots)

        residual = self._after_cross_attention
        query = self._cross_query(residual.before(x))
        attended = self._cross_attention.attend(
            query, cache.cross_key, cache.cross_value, cross_mask
        )
        x = residual.after(x, attended)

        residual = self._after_feed_forward
        inner = self._activate(self._inner(residual.before(x)))
        return residual.after(x, self._outer(inner))

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads its attention weights."""
        return self._past.is_watched or self._cross_attention.is_watched


class _SelfAttention:
    """Self-attention to the past of each hypothesis, with its residual connection."""

    def __init__(
        self, layer: DecoderLayer, make_linear: MakeLinear, dtype: torch.dtype
    ) -> None:
        own = layer.self_attention
        self._query_key_value = make_linear(*_rounded(_query_key_value(own), dtype))
        self._attention = _Attention(own, make_linear)
        self._residual = _Residual(layer.after_self_attention)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        mask: Float[Tensor, "sentences 1 group slots"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        assert isinstance(cache, LayerCache)
        attention, residual = self._attention, self._residual
        projected = self._query_key_value(residual.before(x))
        query, key, value = projected.split(attention.widths, dim=-1)
        heads = attention.heads(key), attention.heads(value)
        key, value = cache.write(*heads, mask.size(-1), slots)
        return residual.after(x, attention.attend(query, key, value, mask))

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads its attention weights."""
        return self._attention.is_watched


class _Recurrence:
    """Recurrent unit with its residual connection."""

    is_watched = False
    """Whether a hook reads its attention weights: it has none."""

    def __init__(
        self, layer: RecurrentDecoderLayer, make_linear: MakeLinear, dtype: torch.dtype
    ) -> None:
        self._unit = layer.recurrence
        self._maps = make_linear(*_rounded(_gate_candidate(self._unit), dtype))
        self._residual = _Residual(layer.after_recurrence)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        mask: Float[Tensor, "sentences 1 group slots"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        assert isinstance(cache, RecurrentCache)
        residual, cell = self._residual, cache.cell
        gate, candidate = self._maps(residual.before(x)).chunk(2, dim=-1)
        # In place, where a recorded step finds it again.
        cell.copy_(self._unit.step(gate, candidate, cell))
        return residual.after(x, cell.relu().to(x.dtype))


class _Attention:
    """Attention after the projections of queries, keys and values."""

    def __init__(self, attention: MultiHeadAttention, make_linear: MakeLinear) -> None:
        heads = attention.num_heads
        num_queries = heads * attention.d_k
        self.widths = [num_queries, num_queries, heads * attention.d_v]
        self._num_heads = heads
        is_product = attention.scores != "additive"
        self._match = _dot_products if is_product else attention.match
        self._tap = attention.weights_tap
        output = attention.project_output
        self._output = make_linear(output.weight, output.bias)

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads its weights."""
        return len(self._tap._forward_hooks) > 0

    def heads(
        self, x: Float[Tensor, "sentences group width"]
    ) -> Float[Tensor, "sentences heads group head_width"]:
        """Split rows into heads."""
        return head_major(x, self._num_heads)

    def attend(
        self,
        query: Float[Tensor, "sentences group width"],
        key: Float[Tensor, "sentences heads keys d_k"],
        value: Float[Tensor, "sentences heads keys d_v"],
        mask: Float[Tensor, "sentences 1 #group keys"],
    ) -> Float[Tensor, "sentences group d_model"]:
        scores = self._match(self.heads(query), key)
        weights = scores.add_(mask).softmax(dim=-1)
        if self.is_watched:
            weights = self._tap(weights)
        return self._output((weights @ value).transpose(1, 2).flatten(2))


def _dot_products(
    query: Float[Tensor, "sentences heads group d_k"],
    key: Float[Tensor, "sentences heads keys d_k"],
) -> Float[Tensor, "sentences heads group keys"]:
    """Return the scores of keys for queries that are already scaled."""
    return query @ key.transpose(2, 3)


class _Residual:
    """A residual connection with its norm: before the sub-layer, or after the sum."""

    def __init__(self, residual: ResidualConnection) -> None:
        norm = residual.norm
        self._shape, self._epsilon = norm.normalized_shape, norm.eps
        self._weight, self._bias = norm.weight, norm.bias
        self._is_pre_norm = residual.is_pre_norm

    def before(self, x: Tensor) -> Tensor:
        return self._normed(x) if self._is_pre_norm else x

    def after(self, x: Tensor, change: Tensor) -> Tensor:
        return x + change if self._is_pre_norm else self._normed(x + change)

    def _normed(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self._shape, self._weight, self._bias, self._epsilon)


Affine = tuple[Tensor, Tensor]
"""Weight and bias."""


def _rounded(affine: Affine, dtype: torch.dtype) -> Affine:
    weight, bias = affine
    return weight.to(dtype), bias.to(dtype)


def _query(attention: MultiHeadAttention) -> Affine:
    """Return weight and bias of the queries, multiplied by the scale of the scores."""
    projection, scale = attention.project_query, attention.scale
    return projection.weight * scale, projection.bias * scale


def _query_key_value(attention: MultiHeadAttention) -> Affine:
    projection = attention.project_key_value
    weight, bias = _query(attention)
    return torch.cat([weight, projection.weight]), torch.cat([bias, projection.bias])


def _gate_candidate(unit: SSRU) -> Affine:
    gate = unit.forget_gate
    weight = torch.cat([gate.weight, unit.candidate.weight])
    return weight, torch.cat([gate.bias, torch.zeros_like(gate.bias)])


class TorchDecoder:
    """Decoder of encoded sources, for any architecture that decodes step by step."""

    @torch.inference_mode()
    def __init__(self, stepper: Stepper, memory: Any) -> None:
        self._stepper = stepper
        self._state: DecoderState = stepper.start(memory)

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        return self._stepper.step(self._as_tensor(last_ids), self._state)

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        self._state.reorder(self._as_tensor(rows))

    @torch.inference_mode()
    def join(self, other: "TorchDecoder") -> None:
        """Append the sentences of another decoder."""
        self._state.join(other._state)

    def _as_tensor(
        self, numbers: Int64[np.ndarray, "rows columns"]
    ) -> Int64[Tensor, "rows columns"]:
        """Return an array as a tensor on the model's device."""
        return torch.from_numpy(numbers).to(self._state.memory_mask.device)


class TorchCoverageDecoder(TorchDecoder):
    """A decoder that sums the attention of its hypotheses to the source.

    Attention is the mean over the last layer's heads.
    """

    @torch.inference_mode()
    def __init__(self, stepper: Stepper, memory: Any, tap: nn.Module) -> None:
        """Create it; `tap` is the module that the weights pass through."""
        super().__init__(stepper, memory)
        self._tap = tap
        mask = memory.mask[:, 0]  # sentences 1 source
        self._attention = torch.zeros(mask.shape, device=mask.device)
        """Attention of each hypothesis to each source token, summed over steps:
        sentences x group x source."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        tap = self._tap.register_forward_hook(self._add_attention)
        try:
            return super().step(last_ids)
        finally:
            tap.remove()

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        numbers, group_size = self._as_tensor(rows), self._attention.size(1)
        sentences, parents = numbers[:, :1] // group_size, numbers % group_size
        self._attention = self._attention[sentences, parents]
        super().reorder(rows)

    @torch.inference_mode()
    def join(self, other: TorchDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, TorchCoverageDecoder)
        super().join(other)
        width = self._state.memory_mask.size(-1)
        both = (self._attention, other._attention)
        self._attention = torch.cat([resized(each, width, dim=2) for each in both])

    @torch.inference_mode()
    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source tokens."""
        # Clamp: weights may underflow, and log(0) is -inf.
        tiny = torch.finfo(self._attention.dtype).tiny
        logs = self._attention.clamp(min=tiny, max=1).log()
        logs = logs.masked_fill(~self._state.memory_mask[:, 0], 0.0)
        sums: Float64[np.ndarray, "sentences group"] = (
            logs.double().sum(-1).cpu().numpy()
        )
        return sums

    def _add_attention(
        self,
        _: nn.Module,
        __: object,
        weights: Float[Tensor, "sentences heads group source"],
    ) -> None:
        self._attention = self._attention + weights.float().mean(dim=1)
