"""Models with mixtures of experts: a Transformer, and LSTMs (Shazeer et al., 2017).

`mixture_layers` has the mixtures themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from transduce.architectures.config import (
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
)
from transduce.architectures.interface import CachedState
from transduce.architectures.mixture_layers import MixtureOfExperts, take_losses
from transduce.architectures.recurrent import (
    AttentiveStack,
    RecurrentBase,
    RecurrentLayer,
    RecurrentMemory,
    RecurrentStack,
    TanhProductAttention,
    at_least_one_position,
    initialize_biases,
    initialize_uniform,
    memory_of,
    reordered,
    reversed_order,
)
from transduce.model.attention import causal_mask, padding_mask
from transduce.model.config import FORWARDS_PER_UPDATE, forward_flops
from transduce.model.embedding import (
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)
from transduce.model.layers import attention_of, residual_of
from transduce.model.transformer import Memory, final_norm, resized
from transduce.text.vocabulary import PAD

MORE_PLACES = 16
"""Number of tokens by which the cache of keys and values grows."""


class MixtureEncoderLayer(nn.Module):
    """Self-attention, then a mixture of experts."""

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        transformer = config.transformer
        self.self_attention = attention_of(transformer)
        self.mixture = MixtureOfExperts(config.d_model, config.experts)
        self.after_self_attention = residual_of(transformer)
        self.after_mixture = residual_of(transformer)

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch source d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, mask))
        return self.after_mixture(x, lambda x: self.mixture(x, mask[:, 0, 0]))


class MixtureDecoderLayer(nn.Module):
    """Self-attention, cross-attention, then a mixture of experts."""

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        transformer = config.transformer
        self.self_attention = attention_of(transformer)
        self.cross_attention = attention_of(transformer)
        self.mixture = MixtureOfExperts(config.d_model, config.experts)
        self.after_self_attention = residual_of(transformer)
        self.after_cross_attention = residual_of(transformer)
        self.after_mixture = residual_of(transformer)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Memory,
        self_mask: Bool[Tensor, "1 1 target target"],
        is_token: Bool[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, self_mask))
        x = self.after_cross_attention(
            x, lambda x: self.cross_attention(x, memory.states, memory.mask)
        )
        return self.after_mixture(x, lambda x: self.mixture(x, is_token))

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        state: "PrefixState",
        name: str,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Read one more token of each hypothesis.

        `name` is the key of the layer's tensors in the state.
        """
        x = self.after_self_attention(x, lambda x: self._attend_to_past(x, state, name))
        cross = self.cross_attention
        heads = state.memory[name].unflatten(2, (cross.num_heads, -1)).transpose(1, 2)
        key, value = heads.split([cross.d_k, cross.d_v], dim=-1)
        x = self.after_cross_attention(
            x, lambda x: cross.attend(x, key, value, state.memory_mask)
        )
        is_token = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.after_mixture(x, lambda x: self.mixture(x, is_token))

    def _attend_to_past(
        self,
        x: Float[Tensor, "sentences group d_model"],
        state: "PrefixState",
        name: str,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Attend from each hypothesis to the tokens that it has read, and this one."""
        attention, row = self.self_attention, x.flatten(0, 1)[:, None]
        new = torch.cat(attention.keys_and_values(row), dim=-1)
        past = state.write(name, new[:, :, 0].unflatten(0, x.shape[:2])).flatten(0, 1)
        key, value = past.split([attention.d_k, attention.d_v], dim=-1)
        attended = attention.attend(row, key, value, state.past_mask)
        return attended[:, 0].unflatten(0, x.shape[:2])


@dataclass(slots=True, kw_only=True)
class PrefixState(CachedState):
    """Keys and values of the tokens that each hypothesis has read, side by side.

    `memory` and `hypotheses` hold one tensor a layer, by the number of the layer:
    [sentences, source, heads (d_k + d_v)] of a source, and
    [sentences, group, heads, places, d_k + d_v] of hypotheses. Sentences that join
    later have read fewer tokens than there are places.
    """

    lengths: Int[Tensor, " sentences"]
    """Number of tokens that the hypotheses of each sentence have read."""
    max_length: int = 0
    """Upper bound of the lengths."""

    @property
    def past_mask(self) -> Bool[Tensor, "hypotheses 1 1 places"]:
        """True at the tokens read, and at the one that is being read."""
        places = torch.arange(self.max_length + 1, device=self.lengths.device)
        mask = places <= self.lengths[:, None]
        return mask.repeat_interleave(self._group_size, dim=0)[:, None, None]

    def add_place(self) -> None:
        """Make sure that one more token fits."""
        if self.max_length == self._num_places:
            self._resize(self.max_length + MORE_PLACES)

    def write(
        self, name: str, new: Float[Tensor, "sentences group heads width"]
    ) -> Float[Tensor, "sentences group heads places width"]:
        """Write the keys and values of a token after those read; return all."""
        stored = self.hypotheses[name]
        place = self.lengths[:, None, None, None, None].expand_as(new[..., None, :])
        # In place: copying all of a beam's past would take longer than all products.
        stored.scatter_(3, place, new[..., None, :])
        return stored[..., : self.max_length + 1, :]

    def advance(self) -> None:
        """Count the token that all layers have written."""
        self.lengths = self.lengths + 1
        self.max_length += 1

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses in this order, as `DecoderState.reorder`."""
        self.lengths = self.lengths[rows[:, 0] // self._group_size]
        CachedState.reorder(self, rows)

    def join(self, other: CachedState) -> None:
        """Append the sentences of another state with groups of the same size."""
        assert isinstance(other, PrefixState)
        places = max(self._num_places, other._num_places)
        self._resize(places)
        other._resize(places)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.max_length = max(self.max_length, other.max_length)
        CachedState.join(self, other)

    @property
    def _group_size(self) -> int:
        return next(iter(self.hypotheses.values())).size(1)

    @property
    def _num_places(self) -> int:
        return next(iter(self.hypotheses.values())).size(3)

    def _resize(self, places: int) -> None:
        self.hypotheses = {
            name: resized(each, places, dim=3) for name, each in self.hypotheses.items()
        }


class MixtureTransformer(nn.Module):
    """Transformer whose feed-forward networks are mixtures of experts.

    Attention, embeddings, positions and residual connections are those of
    `transduce.model`.
    """

    # Unlike the paper: Vaswani et al. (2017) have one network for all tokens, and
    # Shazeer et al. (2017) mixtures between LSTMs. Lepikhin et al. (2021) put mixtures
    # into Transformers. Off by default: only in mixtures of experts.

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embedding = SharedEmbedding(config.vocab_size, d_model, bias=False)
        self.target_embedding = (
            None
            if config.target_vocab_size is None
            else SharedEmbedding(config.target_vocab_size, d_model, bias=False)
        )
        self.positions = (
            SinusoidalPositions(d_model)
            if config.positions == "sinusoidal"
            else LearnedPositions(config.max_positions, d_model)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder_layers = nn.ModuleList(
            MixtureEncoderLayer(config) for _ in range(config.num_layers)
        )
        num_decoder_layers = config.transformer.num_decoder_layers
        self.decoder_layers = nn.ModuleList(
            MixtureDecoderLayer(config) for _ in range(num_decoder_layers)
        )
        self.encoder_norm: nn.Module = final_norm(config.transformer)
        self.decoder_norm: nn.Module = final_norm(config.transformer)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Encode sources, padded with id 0."""
        self.auxiliary_loss()  # clear the loss of an interrupted pass
        mask = padding_mask(source, PAD)
        x = self._embed(source, self.embedding)
        for layer in self.encoder_layers:
            x = layer(x, mask)
        return Memory(states=self.encoder_norm(x), mask=mask)

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets."""
        length = target_in.size(1)
        mask = causal_mask(length, length, target_in.device)
        x = self._embed(target_in, self.output_embedding)
        for layer in self.decoder_layers:
            x = layer(x, memory, mask, target_in != PAD)
        states: Tensor = self.decoder_norm(x)
        return states

    def _embed(
        self, ids: Int[Tensor, "batch length"], embedding: SharedEmbedding
    ) -> Float[Tensor, "batch length d_model"]:
        x = embedding(ids)
        positions = self.positions(0, ids.size(1), ids.device)
        embedded: Tensor = self.dropout(x + positions.to(x.dtype))
        return embedded

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states."""
        return self.output_embedding.logits(states)

    @property
    def output_embedding(self) -> SharedEmbedding:
        """Embedding of target and output."""
        return self.target_embedding or self.embedding

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        return self.output_embedding.weight

    @property
    def output_bias(self) -> None:
        """None: the logits have no bias."""
        return

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        """Modules that the weights of cross-attention pass through, one a layer."""
        return [layer.cross_attention.weights_tap for layer in self._decoder]

    @property
    def _decoder(self) -> Sequence[MixtureDecoderLayer]:
        return cast(Sequence[MixtureDecoderLayer], self.decoder_layers)

    def start(self, memory: Memory) -> PrefixState:
        """Return the state before the first step, with one hypothesis a sentence."""
        heads = {
            str(number): torch.cat(
                layer.cross_attention.keys_and_values(memory.states), dim=-1
            )
            for number, layer in enumerate(self._decoder)
        }
        return PrefixState(
            memory_mask=memory.mask,
            memory={name: x.transpose(1, 2).flatten(2) for name, x in heads.items()},
            hypotheses={name: x[:, None, :, :0] for name, x in heads.items()},
            lengths=memory.mask.new_zeros(len(memory.mask), dtype=torch.int64),
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: PrefixState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        x = self.output_embedding(last_ids)
        positions = self.positions.at(state.lengths, state.max_length)
        x = x + positions[:, None].to(x.dtype)
        state.add_place()
        for number, layer in enumerate(self._decoder):
            x = layer.step(x, state, str(number))
        state.advance()
        return self.logits(self.decoder_norm(x))

    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """Return the losses of all mixtures in the last `encode` and `decode`.

        They are in nats per target token. The call clears them, which frees the memory
        of their graph.
        """
        layers = [*self.encoder_layers, *self.decoder_layers]
        return take_losses([layer.mixture for layer in layers])

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(each.numel() for each in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        A token counts for the experts that it goes to.
        """
        config = self.config
        flops = forward_flops(config.transformer, source_lengths, target_lengths)
        num_tokens = len(self.encoder_layers) * int(source_lengths.sum())
        num_tokens += len(self.decoder_layers) * int(target_lengths.sum())
        mixtures = 2 * num_tokens * config.experts.operations(config.d_model)
        return FORWARDS_PER_UPDATE * (flops.total - flops.feed_forward + mixtures)


class MixtureRecurrent(RecurrentBase):
    """LSTMs with a mixture of experts in the encoder and one in the decoder.

    The model of Shazeer et al. (2017), appendix E. All layers have residual
    connections; the output of a mixture passes a sigmoid first. The previous state of
    the decoder's first LSTM is the query of attention; the context is its input.
    """

    # Appendix E gives this encoder 3 LSTM layers, and GNMT's 9, which is its number if
    # both directions of the lowest layer count. Here two of the 3 are directions, too.
    # Unlike the paper: the outputs of both directions are added, because all layers are
    # to have the same width. GNMT joins them; the appendix does not say. Off by
    # default: only in mixtures of experts.

    def __init__(self, config: MixtureRecurrentConfig) -> None:
        super().__init__(config, config.d_model, config.d_model)
        self.config = config
        width = config.d_model
        self.forward_layer, self.backward_layer = _lstm(config), _lstm(config)
        self.upper_encoder = _lstms(config, config.encoder_layers - 2)
        self.attentive = AttentiveStack(
            RecurrentStack([_lstm(config, 2 * width)], dropout=0.0),
            TanhProductAttention(width, width, width),
            query="previous",
        )
        self.upper_decoder = _lstms(config, config.decoder_layers - 1)
        self.dropout = nn.Dropout(config.dropout)
        # Experts and gates have initial weights of their own.
        initialize_uniform(self, config.initial_range)
        initialize_biases(self)
        self.encoder_mixture = MixtureOfExperts(width, config.experts)
        self.decoder_mixture = MixtureOfExperts(width, config.experts)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> RecurrentMemory:
        """Encode sources, padded with id 0."""
        self.auxiliary_loss()  # clear the loss of an interrupted pass
        source = at_least_one_position(source)
        mask = padding_mask(source, PAD)
        is_token = mask[:, 0, 0]
        x = self.dropout(self.embedding(source))
        order = reversed_order(is_token.sum(dim=1), source.size(1))
        forward, _ = self.forward_layer(x)
        backward, _ = self.backward_layer(reordered(x, order))
        backward = reordered(backward, order)
        x = x + self.dropout(forward) + self.dropout(backward)
        x = self._mix(x, self.encoder_mixture, is_token)
        for layer in self.upper_encoder:
            x = x + self.dropout(layer(x)[0])
        return RecurrentMemory(
            states=x,
            keys=self.attentive.attention.keys(x),
            mask=mask,
            initial=x.new_zeros(
                len(x), self.config.decoder_layers, self.forward_layer.state_width
            ),
        )

    def _mix(
        self,
        x: Float[Tensor, "batch length d_model"],
        mixture: MixtureOfExperts,
        is_token: Bool[Tensor, "batch length"],
    ) -> Float[Tensor, "batch length d_model"]:
        return x + self.dropout(torch.sigmoid(mixture(x, is_token)))

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: RecurrentMemory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets."""
        read = at_least_one_position(target_in)
        x = self.dropout(self.embed_target(read))
        attended = self.attentive(x, memory, memory.initial[:, :1])
        x = x + self.dropout(attended.outputs)
        x = self._mix(x, self.decoder_mixture, read != PAD)
        for layer in self.upper_decoder:
            x = x + self.dropout(layer(x)[0])
        return x[:, : target_in.size(1)]

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        layers = state.hypotheses["layers"]
        x = self.dropout(self.embed_target(last_ids))
        attended, lowest, fed = self.attentive.step(
            x, memory_of(state), layers[:, :, :1], state.hypotheses["fed"]
        )
        x = x + self.dropout(attended.outputs)
        is_token = torch.ones_like(last_ids, dtype=torch.bool)
        x = self._mix(x, self.decoder_mixture, is_token)
        states = [lowest[:, :, 0]]
        for number, layer in enumerate(self.upper_decoder, 1):
            rows, before = x.flatten(0, 1)[:, None], layers[:, :, number].flatten(0, 1)
            outputs, after = layer(rows, before)
            x = x + self.dropout(outputs[:, 0].unflatten(0, last_ids.shape))
            states.append(after.unflatten(0, last_ids.shape))
        state.hypotheses = {"layers": torch.stack(states, dim=2), "fed": fed}
        return self.logits(x)

    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """Return the losses of both mixtures in the last `encode` and `decode`.

        They are in nats per target token. The call clears them, which frees the memory
        of their graph.
        """
        return take_losses([self.encoder_mixture, self.decoder_mixture])

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        A token counts for the experts that it goes to.
        """
        source, target = (
            each.astype(np.int64) for each in (source_lengths, target_lengths)
        )
        config = self.config
        operations = (
            config.source_operations * int(source.sum())
            + config.target_operations * int(target.sum())
            # Scores and contexts.
            + 2 * config.d_model * int((source * target).sum())
        )
        return FORWARDS_PER_UPDATE * 2 * operations


def _lstm(
    config: MixtureRecurrentConfig, input_width: int | None = None
) -> RecurrentLayer:
    inputs = config.d_model if input_width is None else input_width
    return RecurrentLayer("lstm", inputs, config.cells, config.d_model)


def _lstms(config: MixtureRecurrentConfig, count: int) -> nn.ModuleList:
    return nn.ModuleList(_lstm(config) for _ in range(count))
