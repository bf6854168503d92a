"""Decoding step by step in PyTorch, with cached keys and values.

In decoding, matrix products are small and most time passes between them. `FusedStep`
therefore projects queries, keys and values of self-attention by one product, or gates
and candidates of a recurrent unit, and shares masks among layers. `TorchDecoder` is the
decoder that a search uses; `graphed_decoder` has another one for GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor, nn

from transduce.architectures.interface import DecoderState, Stepper, TransductionModel
from transduce.data.tensors import pad_rows
from transduce.decoding.cache import (
    DecodingState,
    LayerCache,
    RecurrentCache,
    new_state,
)
from transduce.decoding.sampling import sample
from transduce.device import for_inference
from transduce.model.attention import (
    MultiHeadAttention,
    additive_mask,
    recorded_weights,
)
from transduce.model.layers import (
    SSRU,
    DecoderLayer,
    RecurrentDecoderLayer,
    ResidualConnection,
)
from transduce.model.transformer import Memory, Transformer, resized
from transduce.nn.fuse import head_major
from transduce.nn.operators import linear
from transduce.search_config import SamplingConfig
from transduce.text.vocabulary import BOS, EOS, PAD

LinearMap = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor], LinearMap]
"""Function of a weight and a bias that returns their linear map."""


def plain_linear(weight: Tensor, bias: Tensor) -> LinearMap:
    """Return a linear map in the weight's own precision."""
    return lambda x: linear(x, weight, bias)


Affine = tuple[Tensor, Tensor]
"""Weight and bias."""


@dataclass(frozen=True, slots=True)
class _LinearMaps:
    """Factory of the linear maps of a step."""

    make: MakeLinear
    dtype: torch.dtype
    """Precision to which the model may be converted afterwards."""

    def of(self, layer: nn.Linear) -> LinearMap:
        """Return the map of a layer, whose weights it shares."""
        return self.make(layer.weight, layer.bias)

    def of_copy(self, affine: Affine) -> LinearMap:
        """Return the map of joint or scaled weights, rounded here and only once."""
        weight, bias = affine
        return self.make(weight.to(self.dtype), bias.to(self.dtype))


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
        maps = _LinearMaps(make_linear, dtype)
        self._layers = [_FusedLayer(each, maps) for each in layers]
        self._attentions = [
            each for each in layers.modules() if isinstance(each, MultiHeadAttention)
        ]

    def start(self, memory: Memory) -> DecodingState:
        """Return the state before the first step, with one hypothesis a sentence."""
        return new_state(self.model, memory)

    def step(
        self,
        last_ids: Int[Tensor, "sentences group"],
        state: DecodingState,
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        # All hypotheses of a sentence are at the same position.
        positions = self.model.positions.at(state.lengths, state.max_length)
        x = self.model.output_embedding(last_ids)
        x = x + positions[:, None].to(x.dtype)
        self_mask = additive_mask(state.advance(), x.dtype)
        cross_mask = additive_mask(state.memory_mask, x.dtype)
        return self.logits(x, state.layers, self_mask, cross_mask)

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
    def has_weight_hooks(self) -> bool:
        """Whether a hook reads attention weights."""
        return any(each.has_weight_hooks for each in self._attentions)


class _FusedLayer:
    """A decoder layer as linear maps and norms."""

    def __init__(
        self, layer: DecoderLayer | RecurrentDecoderLayer, maps: _LinearMaps
    ) -> None:
        cross, network = layer.cross_attention, layer.feed_forward
        self._first_sublayer = (
            _FusedRecurrence(layer, maps)
            if isinstance(layer, RecurrentDecoderLayer)
            else _FusedSelfAttention(layer, maps)
        )
        self._cross_query = maps.of_copy(_scaled_query(cross))
        self._cross_attention = _ProjectedAttention(cross, maps)
        self._cross_residual = _FusedResidual(layer.after_cross_attention)
        self._inner = maps.of(network.inner)
        self._activate = network.activate
        self._outer = maps.of(network.outer)
        self._feed_forward_residual = _FusedResidual(layer.after_feed_forward)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        self_mask: Float[Tensor, "sentences 1 group slots"],
        cross_mask: Float[Tensor, "sentences 1 1 source"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Compute the layer at the newest position of each hypothesis."""
        x = self._first_sublayer.step(x, cache, self_mask, slots)

        residual = self._cross_residual
        query = self._cross_query(residual.sublayer_input(x))
        attended = self._cross_attention.attend(
            query, cache.cross_key, cache.cross_value, cross_mask
        )
        x = residual.add(x, attended)

        residual = self._feed_forward_residual
        hidden = self._activate(self._inner(residual.sublayer_input(x)))
        return residual.add(x, self._outer(hidden))


class _FusedSelfAttention:
    """Self-attention to the past of each hypothesis, with its residual connection."""

    def __init__(self, layer: DecoderLayer, maps: _LinearMaps) -> None:
        own = layer.self_attention
        self._query_key_value = maps.of_copy(_query_key_value(own))
        self._attention = _ProjectedAttention(own, maps)
        self._residual = _FusedResidual(layer.after_self_attention)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        mask: Float[Tensor, "sentences 1 group slots"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Write the new keys and values to the cache, and attend to the past."""
        assert isinstance(cache, LayerCache)
        attention, residual = self._attention, self._residual
        projected = self._query_key_value(residual.sublayer_input(x))
        query, key, value = projected.split(attention.widths, dim=-1)
        heads = attention.heads(key), attention.heads(value)
        keys, values = cache.write(*heads, mask.size(-1), slots)
        return residual.add(x, attention.attend(query, keys, values, mask))


class _FusedRecurrence:
    """Recurrent unit with its residual connection."""

    def __init__(self, layer: RecurrentDecoderLayer, maps: _LinearMaps) -> None:
        self._unit = layer.recurrence
        self._gate_candidate = maps.of_copy(_gate_candidate(self._unit))
        self._residual = _FusedResidual(layer.after_recurrence)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache | RecurrentCache,
        mask: Float[Tensor, "sentences 1 group slots"],
        slots: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Move the cell of each hypothesis by one position, in place."""
        assert isinstance(cache, RecurrentCache)
        residual, cell = self._residual, cache.cell
        projected = self._gate_candidate(residual.sublayer_input(x))
        gate, candidate = projected.chunk(2, dim=-1)
        # In place, where a recorded step finds it again.
        cell.copy_(self._unit.step(gate, candidate, cell))
        return residual.add(x, cell.relu().to(x.dtype))


class _ProjectedAttention:
    """Attention after the projections of queries, keys and values."""

    def __init__(self, attention: MultiHeadAttention, maps: _LinearMaps) -> None:
        heads = attention.num_heads
        key_width, value_width = heads * attention.d_k, heads * attention.d_v
        self.widths = [key_width, key_width, value_width]
        """Widths of the queries, keys and values of all heads."""
        self._num_heads = heads
        self._attention = attention
        self._compute_scores = (
            attention.compute_scores
            if attention.scores == "additive"
            else _dot_products
        )
        self._output = maps.of(attention.project_output)

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
        """Return the output of attention to these keys and values."""
        scores = self._compute_scores(self.heads(query), key)
        weights = scores.add_(mask).softmax(dim=-1)
        if self._attention.has_weight_hooks:  # a call of the tap takes a while
            weights = self._attention.weights_tap(weights)
        return self._output((weights @ value).transpose(1, 2).flatten(2))


def _dot_products(
    query: Float[Tensor, "sentences heads group d_k"],
    key: Float[Tensor, "sentences heads keys d_k"],
) -> Float[Tensor, "sentences heads group keys"]:
    """Return the scores of keys for queries that are already scaled."""
    return query @ key.transpose(2, 3)


class _FusedResidual:
    """A residual connection with its norm: before the sub-layer, or after the sum."""

    def __init__(self, residual: ResidualConnection) -> None:
        norm = residual.norm
        self._shape, self._epsilon = norm.normalized_shape, norm.eps
        self._weight, self._bias = norm.weight, norm.bias
        self._is_pre_norm = residual.is_pre_norm

    def sublayer_input(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer, normalized in the pre-norm arrangement."""
        return self._normed(x) if self._is_pre_norm else x

    def add(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the output of the sub-layer to its input."""
        return x + output if self._is_pre_norm else self._normed(x + output)

    def _normed(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self._shape, self._weight, self._bias, self._epsilon)


def _scaled_query(attention: MultiHeadAttention) -> Affine:
    """Return weight and bias of the queries, multiplied by the scale of the scores."""
    projection, scale = attention.project_query, attention.scale
    return projection.weight * scale, projection.bias * scale


def _query_key_value(attention: MultiHeadAttention) -> Affine:
    projection = attention.project_key_value
    weight, bias = _scaled_query(attention)
    return torch.cat([weight, projection.weight]), torch.cat([bias, projection.bias])


def _gate_candidate(unit: SSRU) -> Affine:
    gate = unit.forget_gate
    weight = torch.cat([gate.weight, unit.candidate.weight])
    return weight, torch.cat([gate.bias, torch.zeros_like(gate.bias)])


class TorchDecoder:
    """Decoder of encoded sources, for any architecture that decodes step by step."""

    @for_inference
    def __init__(self, stepper: Stepper, memory: Any) -> None:
        self._stepper = stepper
        self.state: DecoderState = stepper.start(memory)
        """State of the hypotheses: in a Transformer, their keys and values."""

    @for_inference
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        return self._stepper.step(self._as_tensor(last_ids), self.state)

    @for_inference
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        self.state.reorder(self._as_tensor(rows))

    @for_inference
    def join(self, other: "TorchDecoder") -> None:
        """Append the sentences of another decoder."""
        self.state.join(other.state)

    def _as_tensor(
        self, numbers: Int64[np.ndarray, "rows columns"]
    ) -> Int64[Tensor, "rows columns"]:
        """Return an array as a tensor on the model's device."""
        return torch.from_numpy(numbers).to(self.state.memory_mask.device)


class TorchCoverageDecoder(TorchDecoder):
    """A decoder that sums the attention of its hypotheses to the source.

    Attention is the mean over the last layer's heads.
    """

    @for_inference
    def __init__(self, stepper: Stepper, memory: Any, tap: nn.Module) -> None:
        """Create a decoder; the weights of attention pass through the module `tap`."""
        super().__init__(stepper, memory)
        self._tap = tap
        mask = memory.mask[:, 0]  # sentences 1 source
        self._attention = mask.new_zeros(mask.shape, dtype=torch.float32)
        """Attention of each hypothesis to each source token, summed over steps:
        sentences x group x source."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        with recorded_weights(self._tap) as recorded:
            logits = super().step(last_ids)
        [weights] = recorded  # sentences x heads x group x source
        with torch.inference_mode():
            self._attention = self._attention + weights.float().mean(dim=1)
        return logits

    @for_inference
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        numbers, group_size = self._as_tensor(rows), self._attention.size(1)
        sentences, parents = numbers[:, :1] // group_size, numbers % group_size
        self._attention = self._attention[sentences, parents]
        super().reorder(rows)

    @for_inference
    def join(self, other: TorchDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, TorchCoverageDecoder)
        super().join(other)
        width = self.state.memory_mask.size(-1)
        both = (self._attention, other._attention)
        self._attention = torch.cat([resized(each, width, dim=2) for each in both])

    @for_inference
    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source tokens."""
        # Clamp: weights may underflow, and log(0) is -inf.
        tiny = torch.finfo(self._attention.dtype).tiny
        logs = self._attention.clamp(min=tiny, max=1).log()
        logs = logs.masked_fill(~self.state.memory_mask[:, 0], 0.0)
        sums: Float64[np.ndarray, "sentences group"] = (
            logs.double().sum(-1).cpu().numpy()
        )
        return sums


@dataclass(frozen=True, slots=True)
class ModelSampler:
    """Sampler that draws token by token from a model in training, in fp32."""

    config: SamplingConfig

    def __call__(
        self,
        model: TransductionModel,
        sources: Sequence[list[int]],
        max_lengths: Sequence[int],
        seeds: Sequence[tuple[int, ...]],
    ) -> list[list[tuple[int, ...]]]:
        """Return the samples of each source, which has an end token."""
        device = model.output_weight.device
        stepper: Stepper = model
        with torch.no_grad():
            if isinstance(model, Transformer):
                # The joint weights of a `FusedStep` are copies: training outdates them.
                stepper = FusedStep(model)
            memory = model.encode(pad_rows(list(sources)).to(device))
        found = sample(
            TorchDecoder(stepper, memory),
            max_lengths,
            seeds,
            self.config,
            bos=BOS,
            eos=EOS,
            excluded=(PAD, BOS),
        )
        return [
            [(*each.ids, EOS) if each.is_finished else each.ids for each in samples]
            for samples in found
        ]
