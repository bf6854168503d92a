"""The Transformer (section 3; Figure 1)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from transduce.model.attention import causal_mask, neighbourhood_mask, padding_mask
from transduce.model.cache import DecodingState, new_state
from transduce.model.config import ModelConfig
from transduce.model.cost import update_flops
from transduce.model.embedding import (
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)
from transduce.model.layers import (
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the encoder made of the sources (section 3.2.3)."""

    states: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"]


class Transformer(nn.Module):
    """Encoder and decoder (section 3), over one embedding unless told otherwise."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = SharedEmbedding(
            config.vocab_size,
            config.d_model,
            bias=config.output_bias and config.target_vocab_size is None,
        )
        self.target_embedding = (
            None
            if config.target_vocab_size is None
            else SharedEmbedding(
                config.target_vocab_size, config.d_model, bias=config.output_bias
            )
        )
        self.positions = (
            SinusoidalPositions(config.d_model)
            if config.positions == "sinusoidal"
            else LearnedPositions(config.max_positions, config.d_model)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder_layers = EncoderStack(
            EncoderLayer(config) for _ in range(config.num_layers)
        )
        self.decoder_layers = DecoderStack(
            DecoderLayer(config) for _ in range(config.num_decoder_layers)
        )
        self.encoder_norm: nn.Module = _final_norm(config)
        self.decoder_norm: nn.Module = _final_norm(config)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Read the sources (Figure 1, left)."""
        mask = padding_mask(source, PAD)
        self_mask = mask & self._near(source.size(1), source.size(1), source.device)
        x = self.encoder_layers(self.embed(source, self.embedding), self_mask)
        return Memory(states=self.encoder_norm(x), mask=mask)

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target d_model"]:
        """The decoder's states at all positions at once (Figure 1, right)."""
        length, device = target_in.size(1), target_in.device
        mask = causal_mask(length, length, device) & self._near(length, length, device)
        x = self.embed(target_in, self.output_embedding)
        return self.decoder_norm(
            self.decoder_layers(x, memory.states, mask, memory.mask)
        )

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Decoder states to scores of the next token (section 3.4)."""
        return self.output_embedding.logits(states)

    @property
    def output_embedding(self) -> SharedEmbedding:
        """That of target and output: the one of all, or their own."""
        return self.target_embedding or self.embedding

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The matrix that makes logits of decoder states."""
        return self.output_embedding.weight

    @property
    def output_bias(self) -> Float[Tensor, " vocab"] | None:
        """What is added to them, if anything is."""
        return self.output_embedding.bias

    def start(self, memory: Memory) -> DecodingState:
        """The state before the first step, with one hypothesis a sentence."""
        layers = [layer.start(memory.states) for layer in self.decoder_layers]
        return new_state(layers, memory.mask)

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: DecodingState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        x, mask = self.enter(last_ids, state)
        for layer, cache in zip(self.decoder_layers, state.layers, strict=True):
            x = layer.step(x, cache, mask, state.memory_mask)
        return self.logits(self.decoder_norm(x))

    def enter(
        self, last_ids: Int[Tensor, "sentences group"], state: DecodingState
    ) -> tuple[
        Float[Tensor, "sentences group d_model"],
        Bool[Tensor, "sentences 1 group slots"],
    ]:
        """What the first layer reads in a step, and which slots each now sees."""
        # Those of a sentence are at the same position, not one after the other.
        positions = self.positions.at(state.lengths, state.max_length)
        x = self.output_embedding(last_ids)
        x = self.dropout(x + positions[:, None].to(x.dtype))
        return x, self._see(state)

    def _see(self, state: DecodingState) -> Bool[Tensor, "sentences 1 group slots"]:
        """Take a slot for each hypothesis's newest position; what each sees now."""
        mask = state.advance()
        if self.config.neighbourhood is not None:
            passed = state.positions[:, : state.num_slots]
            distance = state.lengths[:, None] - 1 - passed
            mask = mask & (distance <= self.config.neighbourhood)[:, None, None]
        return mask

    def embed(
        self, ids: Int[Tensor, "batch length"], embedding: SharedEmbedding
    ) -> Float[Tensor, "batch length d_model"]:
        """Tokens and their positions as one (sections 3.4 and 3.5)."""
        x = embedding(ids)
        positions = self.positions(0, ids.size(1), ids.device)
        return self.dropout(x + positions.to(x.dtype))

    def num_parameters(self) -> int:
        """Numbers learned, each counted once (Table 3, last column)."""
        return sum(p.numel() for p in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of so many tokens, padding left out."""
        return update_flops(self.config, source_lengths, target_lengths)

    def _near(
        self, queries: int, keys: int, device: torch.device
    ) -> Bool[Tensor, "1 1 #queries #keys"]:
        """Who may see whom by distance: all, or the neighbourhood (section 4)."""
        if self.config.neighbourhood is None:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        return neighbourhood_mask(queries, keys, self.config.neighbourhood, device)


def _final_norm(config: ModelConfig) -> nn.Module:
    """Nothing in the paper's arrangement."""
    if config.norm == "pre":
        # Unlike the paper: one more norm, as nothing else scales the last sum.
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
    return nn.Identity()
