"""The same model, computed fast: the choice of kernels for each of its modules.

`fuse` replaces modules of the architectures by subclasses that compute the same with
other functions: those of the native library on a CPU, PyTorch's fused attention
elsewhere. Each function says for which inputs it exists and is the fastest; for all
others a module computes as its base class does.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from transduce.architectures.convolutional import NormalizedLinear
from transduce.architectures.mixture_layers import NoisyTopKGate
from transduce.architectures.recurrent import RecurrentLayer, RnnState
from transduce.data.tensors import PackedBatch, PackedSide
from transduce.device import is_good_at_bf16
from transduce.model.attention import (
    MultiHeadAttention,
    RestrictedSelfAttention,
    key_windows,
    query_blocks,
    split_heads,
)
from transduce.model.embedding import SharedEmbedding
from transduce.model.layers import (
    SSRU,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    FeedForward,
    RecurrentDecoderLayer,
    ResidualConnection,
)
from transduce.model.transformer import Memory, Transformer
from transduce.nn.kernels import has_triton
from transduce.nn.native_layers import (
    Heads,
    StackSettings,
    has_layer_stack,
    has_native_attention,
    layer_stack,
    native_attention,
)
from transduce.nn.operators import (
    Dropout,
    FusedSSRU,
    Linear,
    RowDropout,
    current_rate,
    draw_normal,
    has_normalized_sum,
    linear,
    normalized_sum,
)

Model = TypeVar("Model")
Stack = EncoderStack | DecoderStack
Layer = EncoderLayer | DecoderLayer | RecurrentDecoderLayer

FEW_QUERIES, FEW_KEYS = 16, 64
"""With at most this many queries (in decoding) or keys (in training, if the native
attention does not exist), forming the weights is faster on a CPU than PyTorch's fused
attention."""
FEW_ROWS = 128
"""Number of rows up to which the cell of an LSTM is faster than oneDNN's layer."""


def fuse(model: Model) -> Model:
    """Return a copy of a model, or of a part of it, that is computed fast.

    The copy shares the parameters and has the same modules under the same names, with
    their hooks.
    """
    assert isinstance(model, nn.Module)
    shared = {id(parameter): parameter for parameter in model.parameters()}
    fused = deepcopy(model, shared)
    for module in list(fused.modules()):
        if isinstance(module, MultiHeadAttention | FeedForward):
            # Fused functions of whole sub-layers draw masks row by row.
            module.dropout.__class__ = RowDropout
        # Fused classes differ from their bases in methods only.
        if type(module) in FUSED:
            module.__class__ = FUSED[type(module)]
    return fused


def head_major(
    x: Float[Tensor, "batch length width"], num_heads: int
) -> Float[Tensor, "batch heads length head_width"]:
    """Split into heads; on a CPU return them in fp32.

    PyTorch's attention in bf16 takes up to ten times as long on a CPU, because its
    kernels are compiled for each length.
    """
    heads = split_heads(x, num_heads)
    if x.device.type != "cpu" or x.dtype != torch.bfloat16:
        return heads
    return heads.to(torch.float32, memory_format=torch.contiguous_format)


class FusedAttention(MultiHeadAttention):
    """Attention by the native library or by PyTorch's fused function.

    Weights are formed only if a hook reads them, or if that is faster.
    """

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        attended: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        if not self.uses_native_attention(query, attended):
            return super().forward(query, attended, mask)
        queries = self.project_query(query)
        key_value = self.project_key_value(attended)
        with torch.autocast("cpu", enabled=False):  # attention is in fp32
            heads = native_attention(
                queries, key_value, mask, heads_of(self), current_rate(self.dropout)
            )
        return self.project_output(heads)

    def weighted_sum(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
        value: Float[Tensor, "batch heads keys d_v"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V of each head (equation 1)."""
        with torch.autocast("cpu", enabled=False):  # `split` returns fp32
            if self._must_form_weights or self.is_faster_unfused(query, key):
                return super().weighted_sum(query, key, value, mask)
            rate = current_rate(self.dropout)
            return functional.scaled_dot_product_attention(
                query, key, value, mask, rate, scale=self.scale
            )

    def split(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch heads length head_width"]:
        """Split the width into the heads, on a CPU in fp32."""
        return head_major(x, self.num_heads)

    @property
    def _must_form_weights(self) -> bool:
        """Whether a hook reads the weights, or no fused function exists."""
        return self.has_weight_hooks or self.scores == "additive"

    def is_faster_unfused(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch heads keys d_k"],
    ) -> bool:
        """Whether forming the weights is faster than PyTorch's fused attention."""
        if query.is_cuda:
            return False
        if current_rate(self.dropout) > 0:
            # With dropout PyTorch forms them too, and draws masks more slowly.
            return True
        if torch.is_grad_enabled():
            return key.size(2) <= FEW_KEYS
        return query.size(2) <= FEW_QUERIES

    def uses_native_attention(
        self,
        query: Float[Tensor, "batch queries d_model"],
        attended: Float[Tensor, "batch keys d_model"],
    ) -> bool:
        """Whether the native library computes the attention."""
        if self._must_form_weights or not torch.is_grad_enabled():
            return False
        rate = current_rate(self.dropout)
        return has_native_attention(query, attended, heads_of(self), rate)


class FusedRestrictedSelfAttention(RestrictedSelfAttention, FusedAttention):
    """Restricted self-attention whose blocks are computed as `FusedAttention` does."""

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        attended: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "#batch 1 #queries keys"] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        (batch, length, _), band = attended.shape, self.band
        # Blocks need as many queries as keys.
        if query.size(1) != length or band.covers(length):
            mask = self.whole_mask(mask, query.size(1), length, query.device)
            return FusedAttention.forward(self, query, attended, mask)
        if not self.uses_native_attention(query, attended[:, : band.window]):
            return MultiHeadAttention.forward(self, query, attended, mask)
        if mask is None:
            mask = query.new_ones(batch, 1, 1, length, dtype=torch.bool)
        # The native function reads all heads side by side, so blocks and windows are
        # cut from sequences of one head, as wide as all heads together.
        queries = query_blocks(self.project_query(query)[:, None], band)
        key_value = key_windows(self.project_key_value(attended)[:, None], band)
        with torch.autocast("cpu", enabled=False):  # attention is in fp32
            heads = native_attention(
                queries[:, 0],
                key_value[:, 0],
                self.window_mask(mask.expand(batch, -1, -1, -1)),
                heads_of(self),
                current_rate(self.dropout),
            )
        rows = heads.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]
        return self.project_output(rows)


class FusedResidual(ResidualConnection):
    """Residual connection whose dropout, sum and norm are one native function."""

    def add_and_norm(
        self,
        x: Float[Tensor, "batch length d_model"],
        addend: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return LayerNorm(x + Dropout(addend))."""
        rate = current_rate(self.dropout)
        if rate > 0 and has_normalized_sum(x, addend):
            return normalized_sum(x, addend, rate, self.norm)
        return super().add_and_norm(x, addend)


class FusedNormalizedLinear(NormalizedLinear):
    """Linear map with weight normalization, computed by `linear`."""

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, self.matrix, self.bias)


class FusedRecurrentLayer(RecurrentLayer):
    """Recurrent layer that computes one position of an LSTM for few rows as a cell.

    PyTorch computes LSTM layers on a CPU by oneDNN, which rearranges the weights in
    each call.
    """

    def recurrence(self, x: Tensor | PackedSequence, first: RnnState | None) -> Any:
        """Return outputs and the last state as `nn.LSTM` or `nn.GRU` does."""
        if not isinstance(x, Tensor) or not isinstance(first, tuple):
            return super().recurrence(x, first)
        if not self._is_faster_as_cell(x):
            return super().recurrence(x, first)
        rnn: Any = self.rnn
        weights = rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0
        before = [each[0] for each in first]
        hidden, cell = torch.lstm_cell(x[:, 0], before, *weights)
        return hidden[:, None], (hidden[None], cell[None])

    def _is_faster_as_cell(self, x: Float[Tensor, "rows length input_width"]) -> bool:
        """Whether a cell exists for these inputs, is faster, and no hook needs the
        layer."""
        return (
            x.device.type == "cpu"
            and not _has_hooks(self.rnn)
            and x.size(1) == 1
            and x.size(0) <= FEW_ROWS
            and self.rnn.proj_size == 0
            and (not torch.is_autocast_enabled("cpu") or is_good_at_bf16("cpu"))
        )


class FusedNoisyTopKGate(NoisyTopKGate):
    """Gate whose noise comes from the generator of `own_generator`."""

    def draw_normal(
        self, like: Float[Tensor, "rows choices"]
    ) -> Float[Tensor, "rows choices"]:
        """Draw numbers of the standard normal distribution, as many as in `like`."""
        return draw_normal(like)


class FusedEmbedding(SharedEmbedding):
    """Embedding whose logits are computed by `linear`."""

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows."""
        return linear(x, self.weight, self.bias)


class FusedEncoderStack(EncoderStack):
    """Encoder layers in one native call, unless a hook reads a layer's output."""

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "#batch 1 #queries source"],
    ) -> Float[Tensor, "batch source d_model"]:
        if fits_one_call(self, x, None):
            settings, weights = stack_settings(self), weights_of(self)
            self_mask = _self_mask(self, x, mask)
            return layer_stack(x, self_mask, None, settings, weights)
        return super().forward(x, mask)


class FusedDecoderStack(DecoderStack):
    """Decoder layers in one native call, unless a hook reads a layer's output."""

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "1 1 target target"] | None,
        memory_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target d_model"]:
        masked_memory = Memory(states=memory, mask=memory_mask)
        if fits_one_call(self, x, masked_memory):
            settings, weights = stack_settings(self), weights_of(self)
            self_mask = _self_mask(self, x, self_mask)
            return layer_stack(x, self_mask, masked_memory, settings, weights)
        return super().forward(x, memory, self_mask, memory_mask)


class FusedTransformer(Transformer):
    """Transformer whose training on a GPU computes no padding."""

    def can_pack(self, dtype: torch.dtype) -> bool:
        """Whether `packed_states` exists with products in `dtype`.

        No hook may read a layer's output. Turing GPUs, which emulate bf16,
        have too little shared memory for the kernels.
        """
        stacks: tuple[Stack, ...] = (self.encoder_layers, self.decoder_layers)
        return (
            self.output_weight.is_cuda
            and dtype == torch.bfloat16
            and is_good_at_bf16("cuda")
            and has_triton()
            and all(map(is_packable, stacks))
        )

    def packed_states(
        self, batch: PackedBatch, dtype: torch.dtype
    ) -> Float[Tensor, "target_rows d_model"]:
        """Return the decoder's states at all tokens of the targets, in `dtype`."""
        from transduce.nn.gpu_layers import packed_stack, sentences_of

        encoder, decoder = self.encoder_layers, self.decoder_layers
        source, target = sentences_of(batch.source), sentences_of(batch.target)
        memory = packed_stack(
            self._packed_embeddings(batch.source, self.embedding, dtype),
            None,
            source,
            source,
            stack_settings(encoder),
            weights_of(encoder),
        )
        return packed_stack(
            self._packed_embeddings(batch.target, self.output_embedding, dtype),
            memory,
            target,
            source,
            stack_settings(decoder),
            weights_of(decoder),
        )

    def _packed_embeddings(
        self, side: PackedSide, embedding: SharedEmbedding, dtype: torch.dtype
    ) -> Float[Tensor, "rows d_model"]:
        from transduce.nn.gpu_layers import dropped_rows

        positions = self.positions.at(side.positions, side.longest - 1)
        rows = embedding(side.ids[None])[0] + positions
        return dropped_rows(rows, current_rate(self.dropout), dtype)


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: Dropout,
    nn.Linear: Linear,
    NormalizedLinear: FusedNormalizedLinear,
    NoisyTopKGate: FusedNoisyTopKGate,
    RecurrentLayer: FusedRecurrentLayer,
    SharedEmbedding: FusedEmbedding,
    MultiHeadAttention: FusedAttention,
    RestrictedSelfAttention: FusedRestrictedSelfAttention,
    SSRU: FusedSSRU,
    ResidualConnection: FusedResidual,
    EncoderStack: FusedEncoderStack,
    DecoderStack: FusedDecoderStack,
    Transformer: FusedTransformer,
}
"""Class that replaces each class of the model."""


def fits_one_call(
    stack: Stack,
    x: Float[Tensor, "batch length d_model"],
    memory: Memory | None,
) -> bool:
    """Whether one native call can compute all layers, and no hook reads one of them."""
    return (
        len(stack) > 0
        and all(map(_is_supported, stack))
        and not _is_in_blocks(stack, x)
        and has_layer_stack(x, memory, stack_settings(stack))
        and _is_plain_and_uniform(stack)
    )


PACKED_WIDTHS = (16, 32, 64, 128)
"""Widths of a head for which attention over packed sentences exists."""


def is_packable(stack: Stack) -> bool:
    """Whether one call can compute all layers over packed sentences."""
    if len(stack) == 0:
        return False
    attention = _self_attention_of(stack)
    return (
        attention is not None
        and not isinstance(attention, RestrictedSelfAttention)
        and attention.d_k == attention.d_v
        and attention.d_k in PACKED_WIDTHS
        and all(map(_is_supported, stack))
        and _is_plain_and_uniform(stack)
    )


def _is_supported(layer: Layer) -> bool:
    """Whether a call for whole stacks can compute layers of this kind.

    A model that is prepared for decoding may have linear maps that are no `nn.Linear`.
    """
    network = layer.feed_forward
    return (
        all(isinstance(each, nn.Linear) for each in (network.inner, network.outer))
        and network.activation == "relu"
        and not layer.after_feed_forward.is_pre_norm
        and _attention_of(layer).scores != "additive"
    )


def _is_in_blocks(stack: Stack, x: Float[Tensor, "batch length d_model"]) -> bool:
    """Whether self-attention is restricted and the sequences longer than a window."""
    attention = _self_attention_of(stack)
    return isinstance(attention, RestrictedSelfAttention) and not attention.band.covers(
        x.size(1)
    )


def _self_mask(
    stack: Stack,
    x: Float[Tensor, "batch length d_model"],
    mask: Bool[Tensor, "#batch 1 #length length"] | None,
) -> Bool[Tensor, "#batch 1 #length length"] | None:
    """Return the mask of self-attention in sequences no longer than a window.

    Recurrent units have none.
    """
    attention = _self_attention_of(stack)
    if isinstance(attention, RestrictedSelfAttention):
        return attention.whole_mask(mask, x.size(1), x.size(1), x.device)
    assert (mask is None) == (attention is None)
    return mask


def _is_plain_and_uniform(stack: Stack) -> bool:
    """Whether no module has a hook, and all layers have the same settings.

    These are the mode (training or evaluation), dropout rates and epsilons.
    """
    modules = _modules_of(stack)
    residuals = [m for m in modules if isinstance(m, ResidualConnection)]
    attentions = [m for m in modules if isinstance(m, MultiHeadAttention)]
    networks = [m for m in modules if isinstance(m, FeedForward)]
    return (
        all(each.training == stack.training for each in modules)
        and not any(map(_has_hooks, modules))
        and len({(each.dropout.p, each.norm.eps) for each in residuals}) == 1
        and len({each.dropout.p for each in attentions}) == 1
        and len({each.dropout.p for each in networks}) == 1
    )


def _modules_of(stack: Stack) -> list[nn.Module]:
    """Return the stack and all modules within, faster than `stack.modules()`."""
    found: list[nn.Module] = [stack]
    for module in found:  # the loop also visits the modules that it appends
        found += [each for each in module._modules.values() if each is not None]
    return found


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def stack_settings(stack: Stack) -> StackSettings:
    """Return the settings that all layers of a stack share."""
    first = next(iter(stack))
    attention, network = _attention_of(first), first.feed_forward
    residual = first.after_feed_forward
    return StackSettings(
        count=len(stack),
        d_ff=network.inner.out_features,
        heads=heads_of(attention),
        dropout=current_rate(residual.dropout),
        attention_dropout=current_rate(attention.dropout),
        relu_dropout=current_rate(network.dropout),
        norm_epsilon=residual.norm.eps,
        is_recurrent=isinstance(first, RecurrentDecoderLayer),
    )


def _self_attention_of(stack: Stack) -> MultiHeadAttention | None:
    """Return the self-attention of the first layer; None for recurrent units."""
    first = next(iter(stack))
    return None if isinstance(first, RecurrentDecoderLayer) else first.self_attention


def _attention_of(layer: Layer) -> MultiHeadAttention:
    """Return the first attention of a layer; all have the same settings."""
    if isinstance(layer, RecurrentDecoderLayer):
        return layer.cross_attention
    return layer.self_attention


def heads_of(attention: MultiHeadAttention) -> Heads:
    """Return the number, widths and scale of an attention's heads."""
    return Heads(
        count=attention.num_heads,
        d_k=attention.d_k,
        d_v=attention.d_v,
        scale=attention.scale,
    )


def weights_of(stack: Stack) -> list[Tensor]:
    """Return the weights of all layers in the order of `layer_stack`."""
    return [weight for layer in stack for weight in _layer_weights(layer)]


def _layer_weights(layer: Layer) -> Iterable[Tensor]:
    """Yield the weights and biases of a layer in the order of `layer_stack`."""
    parts: list[nn.Linear | nn.LayerNorm]
    if isinstance(layer, RecurrentDecoderLayer):
        unit = layer.recurrence
        parts = [unit.forget_gate, unit.candidate, layer.after_recurrence.norm]
    else:
        parts = [*_linear_maps(layer.self_attention), layer.after_self_attention.norm]
    if isinstance(layer, DecoderLayer | RecurrentDecoderLayer):
        parts += [
            *_linear_maps(layer.cross_attention),
            layer.after_cross_attention.norm,
        ]
    network = layer.feed_forward
    parts += [network.inner, network.outer, layer.after_feed_forward.norm]
    for part in parts:
        yield part.weight
        if part.bias is not None:
            yield part.bias


def _linear_maps(attention: MultiHeadAttention) -> list[nn.Linear | nn.LayerNorm]:
    return [
        attention.project_query,
        attention.project_key_value,
        attention.project_output,
    ]
