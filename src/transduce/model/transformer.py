"""The Transformer (section 3; Figure 1)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.attention import causal_mask, padding_mask
from transduce.model.config import ModelConfig, update_flops
from transduce.model.embedding import (
    LearnedPositions,
    OutputLayer,
    SharedEmbedding,
    SinusoidalPositions,
)
from transduce.model.layers import (
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    RecurrentDecoderLayer,
)
from transduce.text.vocabulary import BOS, PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Output of the encoder, which the decoder attends to (section 3.2.3)."""

    states: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"]
    """True at the tokens of the source, not at its padding."""


class Transformer(nn.Module):
    """Encoder and decoder with one shared embedding.

    With `config.target_vocab_size`, target and output share an embedding of their own.
    Without `config.tied_output`, the output has a matrix of its own.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d_model, target_size = config.d_model, config.target_vocab_size
        has_tied_bias = config.output_bias and config.tied_output
        self.embedding = SharedEmbedding(
            config.vocab_size, d_model, bias=has_tied_bias and target_size is None
        )
        # Unlike the paper: a target of another vocabulary, such as the symbols of
        # trees, has an embedding of its own, which is also the output's matrix. Off by
        # default: `model.target_vocab_size`, which parsers have.
        self.target_embedding = (
            None
            if target_size is None
            else SharedEmbedding(target_size, d_model, bias=has_tied_bias)
        )
        # Unlike the paper: an output matrix of its own, for models of Marian. Off by
        # default: `model.tied_output=false`.
        self.output = (
            None
            if config.tied_output
            else OutputLayer(
                target_size or config.vocab_size, d_model, bias=config.output_bias
            )
        )
        self.positions = (
            # Unlike the paper: the wavelengths of sinusoids can have another base, as
            # in Marian's models. Off by default: `model.position_base`.
            SinusoidalPositions(d_model, config.position_base)
            if config.positions == "sinusoidal"
            else LearnedPositions(config.max_positions, d_model)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder_layers = EncoderStack(
            EncoderLayer(config) for _ in range(config.num_layers)
        )
        # Unlike the paper: the decoder can have fewer layers than the encoder, or more.
        # Off by default: `model.decoder_layers`.
        self.decoder_layers = DecoderStack(
            RecurrentDecoderLayer(config)
            if config.decoder_self_attention == "ssru"
            else DecoderLayer(config)
            for _ in range(config.num_decoder_layers)
        )
        self.encoder_norm: nn.Module = final_norm(config)
        self.decoder_norm: nn.Module = final_norm(config)
        if not config.learned_start:
            with torch.no_grad():
                self.output_embedding.weight[BOS] = 0
            _freeze_start_embedding(self)
            # Loading may replace the parameter.
            self.register_load_state_dict_post_hook(_freeze_start_embedding)  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a model that was copied or pickled, which loses hooks of tensors."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.config.learned_start:
            _freeze_start_embedding(self)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Encode sources (Figure 1, left)."""
        mask = padding_mask(source, PAD)
        x = self.encoder_layers(self.embed(source, self.embedding), mask)
        return Memory(states=self.encoder_norm(x), mask=mask)

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions (Figure 1, right)."""
        config, length, mask = self.config, target_in.size(1), None
        # Restricted attention and recurrences are causal without a mask.
        if config.neighbourhood is None and config.decoder_self_attention != "ssru":
            mask = causal_mask(length, length, target_in.device)
        x = self.embed(target_in, self.output_embedding)
        return self.decoder_norm(
            self.decoder_layers(x, memory.states, mask, memory.mask)
        )

    def embed(
        self, ids: Int[Tensor, "batch length"], embedding: SharedEmbedding
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the sum of embeddings and positions (sections 3.4 and 3.5)."""
        x = embedding(ids)
        positions = self.positions(0, ids.size(1), ids.device)
        return self.dropout(x + positions.to(x.dtype))

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states (section 3.4)."""
        return self.output_layer.logits(states)

    @property
    def output_layer(self) -> OutputLayer:
        """Matrix and bias of the logits: the target's embedding, or their own."""
        return self.output or self.output_embedding

    @property
    def output_embedding(self) -> SharedEmbedding:
        """Embedding of the target and, unless it has its own matrix, the output."""
        return self.target_embedding or self.embedding

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        return self.output_layer.weight

    @property
    def output_bias(self) -> Float[Tensor, " vocab"] | None:
        """Bias of the logits, if they have one."""
        return self.output_layer.bias

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        """Modules, one for each layer, that the weights of cross-attention pass.

        `step` computes all positions anew, so its weights also have a row for each
        target position: [sentences * group, heads, target, source].
        """
        return [layer.cross_attention.weights_tap for layer in self.decoder_layers]

    def start(self, memory: Memory) -> "Prefixes":
        """Return the state before the first step, with one hypothesis a sentence."""
        sentences, device = len(memory.mask), memory.mask.device
        return Prefixes(
            memory=memory,
            ids=torch.zeros(sentences, 1, 0, dtype=torch.int64, device=device),
            lengths=torch.zeros(sentences, dtype=torch.int64, device=device),
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: "Prefixes"
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next.

        All positions are computed anew; `decoding.torch_decoder` keeps keys and values.
        """
        state.append(last_ids)
        sentences, group, _ = state.ids.shape
        memory = Memory(
            states=state.memory.states.repeat_interleave(group, dim=0),
            mask=state.memory.mask.repeat_interleave(group, dim=0),
        )
        states = self.decode(state.ids.flatten(0, 1), memory)
        states = states.unflatten(0, (sentences, group))
        row = torch.arange(sentences, device=last_ids.device)
        return self.logits(states[row, :, state.lengths - 1])

    def num_parameters(self) -> int:
        """Number of parameters, each counted once (Table 3, last column)."""
        return sum(p.numel() for p in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding."""
        return update_flops(self.config, source_lengths, target_lengths)


def final_norm(config: ModelConfig) -> nn.Module:
    """Return the norm after a stack: the identity in the paper's arrangement."""
    if config.norm == "pre":
        # Unlike the paper: a norm after the last layer of pre-norm stacks, whose sum
        # nothing else normalizes. Off by default: `model.norm`.
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
    return nn.Identity()


@dataclass(slots=True, kw_only=True)
class Prefixes:
    """State of the decoder: the encoder's output, and each hypothesis's tokens so far.

    Each sentence has a group of hypotheses; all groups are equally large. The
    hypotheses of a sentence that joined later are shorter, and are padded at the end.
    """

    memory: Memory
    ids: Int[Tensor, "sentences group longest"]
    lengths: Int[Tensor, " sentences"]
    """Number of tokens that the hypotheses of each sentence have read."""

    @property
    def memory_mask(self) -> Bool[Tensor, "sentences 1 1 source"]:
        """True at the tokens of the sources, not at their padding."""
        return self.memory.mask

    def append(self, last_ids: Int[Tensor, "sentences group"]) -> None:
        """Add a token to each hypothesis."""
        ids = functional.pad(self.ids, (0, 1), value=PAD)
        place = self.lengths[:, None, None].expand(-1, ids.size(1), -1)
        self.ids = ids.scatter(2, place, last_ids[..., None])
        self.lengths = self.lengths + 1

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep `rows` of the flattened [sentences, group] of hypotheses, in this order.

        Each new group must come from one sentence.
        """
        sentences = rows[:, 0] // self.ids.size(1)
        self.ids = self.ids.flatten(0, 1)[rows]
        self.lengths = self.lengths[sentences]
        states, mask = self.memory.states[sentences], self.memory.mask[sentences]
        self.memory = Memory(states=states, mask=mask)

    def join(self, other: "Prefixes") -> None:
        """Append the sentences of another state with groups of the same size."""
        both = (self, other)
        length = max(each.ids.size(2) for each in both)
        source = max(each.memory.mask.size(3) for each in both)
        self.memory = Memory(
            states=torch.cat([resized(e.memory.states, source, 1) for e in both]),
            mask=torch.cat([resized(e.memory.mask, source, 3) for e in both]),
        )
        self.ids = torch.cat([resized(each.ids, length, 2) for each in both])
        self.lengths = torch.cat([each.lengths for each in both])


def resized(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Return a tensor with one axis cut at the end, or padded there with zeros."""
    missing = size - tensor.size(dim)
    if missing <= 0:
        return tensor.narrow(dim, 0, size)
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def _freeze_start_embedding(model: Transformer, _: object = None) -> None:
    """Set the gradient of the start token's embedding to zero from now on."""
    weight = model.output_embedding.weight
    if _without_start_gradient not in (weight._backward_hooks or {}).values():
        weight.register_hook(_without_start_gradient)


def _without_start_gradient(
    gradient: Float[Tensor, "vocab d_model"],
) -> Float[Tensor, "vocab d_model"]:
    gradient = gradient.clone()
    gradient[BOS] = 0
    return gradient
