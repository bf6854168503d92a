"""A fast decoding step of the Transformer in PyTorch, with cached keys and values.

Products of decoding are small, and the time goes into what is between them. Here the
projections of self-attention are one product, and all layers share their masks.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transduce.decoding.cache import DecodingState, LayerCache, new_state
from transduce.model.attention import MultiHeadAttention, additive_mask
from transduce.model.layers import DecoderLayer, ResidualConnection
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
    """Decoding of a Transformer, step by step, with its present weights.

    It computes the same as `Transformer.step`. The model may be converted to `dtype`
    afterwards: joint and scaled weights are made from those of now, and rounded once.
    """

    def __init__(
        self,
        model: Transformer,
        make_linear: MakeLinear = plain_linear,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        layers = model.decoder_layers
        self._layers = [FusedLayer(each, make_linear, dtype) for each in layers]

    def start(self, memory: Memory) -> DecodingState:
        """Return the state before the first step, with one hypothesis a sentence."""
        return new_state(self.model, memory)

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: DecodingState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        x, seen = self.enter(last_ids, state)
        others = additive_mask(seen, x.dtype)
        padding = additive_mask(state.memory_mask, x.dtype)
        return self.logits(x, state.layers, others, padding)

    def enter(
        self, last_ids: Int[Tensor, "sentences group"], state: DecodingState
    ) -> tuple[
        Float[Tensor, "sentences group d_model"],
        Bool[Tensor, "sentences 1 group slots"],
    ]:
        """Embed the newest tokens and take a slot for each.

        Also returns the mask of the slots that each hypothesis attends to.
        """
        # All hypotheses of a sentence are at the same position.
        positions = self.model.positions.at(state.lengths, state.max_length)
        x = self.model.output_embedding(last_ids)
        mask = state.advance()
        neighbourhood = self.model.config.neighbourhood
        if neighbourhood is not None:
            distance = state.lengths[:, None] - 1 - state.positions
            near = (distance <= neighbourhood)[:, : state.num_slots]
            mask = mask & near[:, None, None]
        return x + positions[:, None].to(x.dtype), mask

    def logits(
        self,
        x: Float[Tensor, "sentences group d_model"],
        caches: Sequence[LayerCache],
        others: Float[Tensor, "sentences 1 group slots"],
        padding: Float[Tensor, "sentences 1 1 source"],
        newest: Int[Tensor, " group"] | None = None,
    ) -> Float[Tensor, "sentences group vocab"]:
        """Run the layers on embedded tokens, with a cache for each layer.

        The masks are added to scores: `others` excludes slots of other hypotheses,
        `padding` that of the source. The newest keys and values go into the last slots,
        or into `newest`.
        """
        for layer, cache in zip(self._layers, caches, strict=True):
            x = layer.step(x, cache, others, padding, newest)
        return self.model.logits(self.model.decoder_norm(x))

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads attention weights."""
        return any(layer.is_watched for layer in self._layers)


class FusedLayer:
    """A decoder layer as its maps and norms."""

    def __init__(
        self, layer: DecoderLayer, make_linear: MakeLinear, dtype: torch.dtype
    ) -> None:
        own, memory = layer.self_attention, layer.cross_attention
        network = layer.feed_forward
        self._query_key_value = make_linear(*_rounded(_query_key_value(own), dtype))
        self._own = FusedAttention(own, make_linear)
        self._after_own = FusedResidual(layer.after_self_attention)
        self._memory_query = make_linear(*_rounded(_query(memory), dtype))
        self._memory = FusedAttention(memory, make_linear)
        self._after_memory = FusedResidual(layer.after_cross_attention)
        self._inner = _flat(network.inner, make_linear)
        self._activated = network.activate
        self._outer = _flat(network.outer, make_linear)
        self._after_feed_forward = FusedResidual(layer.after_feed_forward)

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache,
        others: Float[Tensor, "sentences 1 group slots"],
        padding: Float[Tensor, "sentences 1 1 source"],
        newest: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        read = self._after_own.before(x)
        x = self._after_own.after(x, self._attend_to_past(read, cache, others, newest))
        query = self._memory_query(self._after_memory.before(x))
        attended = self._memory.attend(
            query, cache.cross_key, cache.cross_value, padding
        )
        x = self._after_memory.after(x, attended)
        inner = self._inner(self._after_feed_forward.before(x))
        return self._after_feed_forward.after(x, self._outer(self._activated(inner)))

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads its attention weights."""
        return self._own.is_watched or self._memory.is_watched

    def _attend_to_past(
        self,
        x: Float[Tensor, "sentences group d_model"],
        cache: LayerCache,
        others: Float[Tensor, "sentences 1 group slots"],
        newest: Int[Tensor, " group"] | None,
    ) -> Float[Tensor, "sentences group d_model"]:
        own = self._own
        query, key, value = self._query_key_value(x).split(own.widths, dim=-1)
        heads = own.heads(key), own.heads(value)
        return own.attend(query, *cache.write(*heads, others.size(-1), newest), others)


class FusedAttention:
    """Attention without the projections of queries, keys and values."""

    def __init__(self, attention: MultiHeadAttention, make_linear: MakeLinear) -> None:
        heads = attention.num_heads
        num_queries = heads * attention.d_k
        self.widths = [num_queries, num_queries, heads * attention.d_v]
        self._num_heads = heads
        is_product = attention.scores != "additive"
        self._match = dot_products if is_product else attention.match
        self._tap = attention.weights_tap
        self._output = _flat(attention.project_output, make_linear)

    @property
    def is_watched(self) -> bool:
        """Whether a hook reads its weights."""
        return len(self._tap._forward_hooks) > 0

    def heads(
        self, x: Float[Tensor, "sentences group width"]
    ) -> Float[Tensor, "sentences heads group head_width"]:
        """Split into heads."""
        return head_major(x, self._num_heads)

    def attend(
        self,
        query: Float[Tensor, "sentences group width"],
        key: Float[Tensor, "sentences heads keys d_k"],
        value: Float[Tensor, "sentences heads keys d_v"],
        penalty: Float[Tensor, "sentences 1 #group keys"],
    ) -> Float[Tensor, "sentences group d_model"]:
        scores = self._match(self.heads(query), key)
        weights = scores.add_(penalty).softmax(dim=-1)
        if self.is_watched:
            weights = self._tap(weights)
        return self._output((weights @ value).transpose(1, 2).flatten(2))


def dot_products(
    query: Float[Tensor, "sentences heads group d_k"],
    key: Float[Tensor, "sentences heads keys d_k"],
) -> Float[Tensor, "sentences heads group keys"]:
    """Score scaled queries against keys."""
    return query @ key.transpose(2, 3)


class FusedResidual:
    """A residual sum with its norm, before or after it."""

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
    """Return weight and bias of the queries, with the scale of the scores."""
    projection, scale = attention.project_query, attention.scale
    return projection.weight * scale, projection.bias * scale


def _query_key_value(attention: MultiHeadAttention) -> Affine:
    projection = attention.project_key_value
    weight, bias = _query(attention)
    return torch.cat([weight, projection.weight]), torch.cat([bias, projection.bias])


def _flat(layer: nn.Linear, make_linear: MakeLinear) -> LinearMap:
    return make_linear(layer.weight, layer.bias)
