"""Deep-Att: deep LSTM columns with fast-forward connections (Zhou et al. 2016).

The feed-forward vector f of a layer goes straight to the next layer, beside the layer's
output h, so that a linear path leads from the embeddings to the top:

    f_t of layer k = W_k [first half of f_t, h_t] of layer k - 1
    h_t of layer k = LSTM_k(f_t, h of the step before)

An f is as wide as the four gates of a layer. The encoder has two columns, which begin
in opposite directions and change direction from layer to layer. The decoder attends to
the joined f and h of both top layers, projected to a quarter of their width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from transduce.architectures.config import DeepAttConfig
from transduce.architectures.interface import CachedState, num_matrix_elements
from transduce.architectures.recurrent import (
    at_least_one_position,
    reordered,
    reversed_order,
)
from transduce.model.attention import attention_weights
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepAttMemory:
    """Output of the encoder, with the keys of the attention."""

    values: Float[Tensor, "batch source context_width"]
    """Projected top vectors."""
    keys: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"]
    """True at the tokens of the source, not at its padding."""


class FastForwardLayer(nn.Module):
    """An LSTM layer whose feed-forward part is computed apart from its recurrence.

    `feed_forward` gives f for all positions at once; `step` adds the recurrent part.
    """

    def __init__(self, inputs: int, cells: int) -> None:
        super().__init__()
        # The paper gives no biases and no initial weights. This project's choice: one
        # bias, 1 for the forget gate, and uniform weights after Glorot and Bengio
        # (2010), which keep the size of f from layer to layer.
        self.feed_forward = nn.Linear(inputs, 4 * cells)
        self.recurrent = nn.Linear(cells, 4 * cells, bias=False)
        nn.init.xavier_uniform_(self.feed_forward.weight)
        nn.init.xavier_uniform_(self.recurrent.weight)
        with torch.no_grad():
            nn.init.zeros_(self.feed_forward.bias)
            self.feed_forward.bias[cells : 2 * cells] = 1.0

    def forward(
        self, f: Float[Tensor, "batch length gates"]
    ) -> Float[Tensor, "batch length cells"]:
        """Return the outputs at all positions, from zero states on."""
        cells = self.recurrent.in_features
        h = f.new_zeros(f.size(0), cells)
        c = f.new_zeros(f.size(0), cells, dtype=torch.float32)
        outputs = []
        for each in f.unbind(dim=1):
            h, c = self.step(each, h, c)
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    def step(
        self,
        f: Float[Tensor, "*rows gates"],
        h: Float[Tensor, "*rows cells"],
        c: Float[Tensor, "*rows cells"],
    ) -> tuple[Float[Tensor, "*rows cells"], Float[Tensor, "*rows cells"]]:
        """Return output and cells after one more position.

        The gates are in the order input, forget, candidate, output. Cells are in fp32.
        """
        gates = (f + self.recurrent(h)).float()
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
        c = forget_gate.sigmoid() * c + input_gate.sigmoid() * candidate.tanh()
        return (output_gate.sigmoid() * c.tanh()).to(f.dtype), c


class DeepAtt(nn.Module):
    """Encoder of interleaved columns, attention, and decoder of one column."""

    def __init__(self, config: DeepAttConfig) -> None:
        super().__init__()
        self.config = config
        cells, context = config.d_model, config.context_width
        # Unlike Zhou et al.: source and target have one vocabulary, not two, and so one
        # embedding.
        self.embedding = _embedding(config.vocab_size, config.embedding_width)
        self.target_embedding = (
            None
            if config.target_vocab_size is None
            else _embedding(config.target_vocab_size, config.embedding_width)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.columns = nn.ModuleList(
            _stack(config, config.embedding_width, config.encoder_layers)
            for _ in range(config.columns)
        )
        self.project_top = nn.Linear(config.top_width, context)
        # This project's choice: the hidden layer of the attention is as wide as a layer
        # of the decoder.
        self.project_key = nn.Linear(context, cells)
        self.project_query = nn.Linear(cells, cells, bias=False)
        self.score = nn.Linear(cells, 1, bias=False)
        self.weights_tap = nn.Identity()
        self.decoder_layers = _stack(
            config, config.embedding_width + context, config.decoder_layers
        )
        size = config.target_vocab_size or config.vocab_size
        self.output = nn.Linear(cells, size)
        for each in (self.project_top, self.project_key, self.project_query):
            nn.init.xavier_uniform_(each.weight)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> DeepAttMemory:
        """Encode sources, padded with id 0."""
        source = at_least_one_position(source)
        mask = source != PAD
        x = self.embedding(source)
        order = reversed_order(mask.sum(dim=1), source.size(1))
        tops = [self._column(x, order, number) for number in range(self.config.columns)]
        values = self.project_top(torch.cat(tops, dim=-1))
        return DeepAttMemory(
            values=values, keys=self.project_key(values), mask=mask[:, None, None]
        )

    def _column(
        self,
        x: Float[Tensor, "batch source embedding_width"],
        order: Int[Tensor, "batch source"],
        number: int,
    ) -> Float[Tensor, "batch source top"]:
        """Return f and h of the top layer of a column; `order` reverses the source."""
        f, h = x, x.new_zeros(*x.shape[:2], 0)
        for layer, module in enumerate(_layers(self.columns[number])):
            f = module.feed_forward(self._inputs(f, h) if layer else x)
            if self.reads_backwards(number, layer):
                h = reordered(module(reordered(f, order)), order)
            else:
                h = module(f)
        return torch.cat([h, f], dim=-1)

    def reads_backwards(self, column: int, layer: int) -> bool:
        """Whether an encoder layer reads the source from its end."""
        return (column + (layer if self.config.interleaved else 0)) % 2 == 1

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: DeepAttMemory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the outputs of the top layer at all positions of the targets.

        Attention depends on the first layer's output, so that this layer goes from
        position to position; the others do not have to wait for the next token.
        """
        first, *others = self._decoder
        y = self._embed_target(at_least_one_position(target_in))
        cells = self.config.d_model
        h = y.new_zeros(y.size(0), 1, cells)
        c = y.new_zeros(y.size(0), 1, cells, dtype=torch.float32)
        forwards, outputs, weights = [], [], []
        for each in y.split(1, dim=1):
            attention = self._weights(h, memory.keys, memory.mask)
            f = first.feed_forward(torch.cat([each, attention @ memory.values], -1))
            h, c = first.step(f, h, c)
            forwards.append(f)
            outputs.append(h)
            weights.append(attention)
        self.weights_tap(torch.cat(weights, dim=1)[:, None])
        f, h = torch.cat(forwards, dim=1), torch.cat(outputs, dim=1)
        for layer in others:
            f = layer.feed_forward(self._inputs(f, h))
            h = layer(f)
        dropped: Tensor = self.dropout(h)
        return dropped[:, : target_in.size(1)]

    def start(self, memory: DeepAttMemory) -> CachedState:
        """Return the state before the first step, with one hypothesis a sentence."""
        # The paper does not say how the decoder starts. This project's choice: from
        # zero states.
        shape = (
            len(memory.values), 1, self.config.decoder_layers, self.config.d_model
        )  # fmt: skip
        return CachedState(
            memory_mask=memory.mask,
            memory={"values": memory.values, "keys": memory.keys},
            hypotheses={
                "outputs": memory.values.new_zeros(shape),
                "cells": memory.values.new_zeros(shape, dtype=torch.float32),
            },
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        outputs = state.hypotheses["outputs"].unbind(dim=2)
        cells = state.hypotheses["cells"].unbind(dim=2)
        attention = self._weights(outputs[0], state.memory["keys"], state.memory_mask)
        attention = self.weights_tap(attention[:, None])[:, 0]
        context = attention @ state.memory["values"]
        inputs = torch.cat([self._embed_target(last_ids), context], dim=-1)
        new_outputs, new_cells = [], []
        for layer, h, c in zip(self._decoder, outputs, cells, strict=True):
            f = layer.feed_forward(inputs)
            h, c = layer.step(f, h, c)
            new_outputs.append(h)
            new_cells.append(c)
            inputs = self._inputs(f, h)
        state.hypotheses = {
            "outputs": torch.stack(new_outputs, dim=2),
            "cells": torch.stack(new_cells, dim=2),
        }
        return self.logits(h)

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for outputs of the top layer."""
        logits: Tensor = self.output(states)
        return logits

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        return self.output.weight

    @property
    def output_bias(self) -> Float[Tensor, " vocab"]:
        """Bias of the logits."""
        return self.output.bias

    @property
    def cross_attention_taps(self) -> Sequence[nn.Module]:
        """Module that gets the weights of the attention, which has one head."""
        return [self.weights_tap]

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(each.numel() for each in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        Only matrix products are counted, three for each forward one.
        """
        cells, context = self.config.d_model, self.config.context_width
        encoder = self.columns, self.project_top, self.project_key
        decoder = self.decoder_layers, self.project_query, self.output
        per_source = sum(map(num_matrix_elements, encoder))
        per_target = sum(map(num_matrix_elements, decoder))
        scores = int((source_lengths.astype(np.int64) * target_lengths).sum())
        products = (
            per_source * int(source_lengths.sum())
            + per_target * int(target_lengths.sum())
            + (cells + context) * scores
        )
        return FORWARDS_PER_UPDATE * 2 * products

    @property
    def _decoder(self) -> list[FastForwardLayer]:
        return _layers(self.decoder_layers)

    def _inputs(
        self,
        f: Float[Tensor, "batch length gates"],
        h: Float[Tensor, "batch length cells"],
    ) -> Float[Tensor, "batch length inputs"]:
        """Return a layer's inputs: f of the one below in part, and h with dropout."""
        return torch.cat(
            [f[..., : self.config.fast_forward_width], self.dropout(h)], -1
        )

    def _embed_target(
        self, ids: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target embedding_width"]:
        # Unlike Zhou et al.: the first position reads the embedding of the start token,
        # as other architectures here do, not a zero vector.
        embedded: Tensor = (self.target_embedding or self.embedding)(ids)
        return embedded

    def _weights(
        self,
        h: Float[Tensor, "batch group d_model"],
        keys: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch group source"]:
        """Attention of Bahdanau et al. (2015), to the first layer's output h."""
        hidden = (self.project_query(h)[:, :, None] + keys[:, None]).tanh()
        scores = self.score(hidden).squeeze(-1).float()
        return attention_weights(scores[:, None], mask)[:, 0].to(keys.dtype)


def _embedding(size: int, width: int) -> nn.Embedding:
    # This project's choice, as the paper gives none.
    embedding = nn.Embedding(size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def _stack(config: DeepAttConfig, inputs: int, layers: int) -> nn.ModuleList:
    upper = config.fast_forward_width + config.d_model
    widths = [inputs, *[upper] * (layers - 1)]
    return nn.ModuleList(FastForwardLayer(each, config.d_model) for each in widths)


def _layers(stack: nn.Module) -> list[FastForwardLayer]:
    return [each for each in stack.children() if isinstance(each, FastForwardLayer)]
