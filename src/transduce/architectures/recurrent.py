"""Recurrent translation models: RNNsearch, Luong's attention, and GNMT.

RNNsearch (Bahdanau et al., 2015) has one bidirectional GRU layer and a GRU decoder that
reads the context of its previous state. Luong et al. (2015) attend with the top layer's
current state, and feed the result to the next token. GNMT (Wu et al., 2016) has stacks
of LSTMs with residual connections; its lowest decoder layer attends, and all decoder
layers read the context.

`recurrent_layers` has their parts; attention is its `AttentiveStack`, with a score of
queries and keys by one of the subclasses of `Attention`.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import RecurrentConfig
from transduce.architectures.interface import CachedState, num_matrix_elements
from transduce.architectures.recurrent_layers import (
    AdditiveAttention,
    Attended,
    Attention,
    AttentiveStack,
    GeneralAttention,
    NormedAdditiveAttention,
    RecurrentBase,
    RecurrentEncoder,
    RecurrentLayer,
    RecurrentMemory,
    RecurrentStack,
    TanhProductAttention,
    initialize_biases,
    initialize_orthogonal,
    initialize_uniform,
    joined,
)
from transduce.model.attention import padding_mask
from transduce.model.config import PASSES
from transduce.text.vocabulary import PAD


class MaxoutReadout(nn.Module):
    """Maxout layer over state, embedding and context (Bahdanau et al., 2015, A.2.2)."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_width, 2 * width)

    def forward(
        self, x: Float[Tensor, "batch length input_width"]
    ) -> Float[Tensor, "batch length width"]:
        return self.linear(x).unflatten(-1, (-1, 2)).amax(dim=-1)


class RecurrentModel(RecurrentBase):
    """Recurrent encoder and decoder with attention, in the variants of its settings."""

    def __init__(self, config: RecurrentConfig) -> None:
        embedding_width = config.embedding_width or config.d_model
        super().__init__(config, embedding_width, config.output_width)
        self.config = config
        self.encoder = _encoder(config)
        self.attentive, self.upper = _decoder(config)
        self.project_initial = (
            nn.Linear(config.d_model, config.decoder_layers * config.d_model)
            if config.initial_state == "projected"
            else None
        )
        self.maxout = (
            MaxoutReadout(
                config.d_model + embedding_width + config.memory_width,
                config.output_width,
            )
            if config.readout == "maxout"
            else None
        )
        if config.initial_weights == "uniform":
            initialize_uniform(self, config.initial_range)
        else:
            initialize_orthogonal(self)
        initialize_biases(self, config.forget_bias)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> RecurrentMemory:
        """Encode sources, padded with id 0."""
        mask = padding_mask(source, PAD)
        states, first_backward, last = self.encoder(
            self.embedding(source),
            mask[:, 0, 0].sum(dim=1),
            with_last=self.config.initial_state == "encoder",
        )
        return RecurrentMemory(
            states=states,
            keys=self.attentive.attention.keys(states),
            mask=mask,
            initial=self._initial(states, first_backward, last),
        )

    def _initial(
        self,
        states: Float[Tensor, "batch source memory_width"],
        first_backward: Float[Tensor, "batch width"] | None,
        last: Float[Tensor, "batch layers state_width"] | None,
    ) -> Float[Tensor, "batch layers state_width"]:
        """Return the first state of all layers of the decoder."""
        if last is not None:
            return last
        num_layers = self.config.decoder_layers
        state_width = self.encoder.lowest.state_width
        if self.project_initial is None:
            return states.new_zeros(len(states), num_layers, state_width)
        hidden = torch.tanh(self.project_initial(first_backward))
        hidden = hidden.unflatten(-1, (num_layers, -1))
        # Cells of LSTMs begin with zeros.
        return functional.pad(hidden, (0, state_width - hidden.size(-1)))

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: RecurrentMemory
    ) -> Float[Tensor, "batch target output_width"]:
        """Return the vectors at all positions that `output_weight` is multiplied by."""
        embedded = self.embed_target(target_in)
        count = len(self.attentive.stack.layers)
        attended = self.attentive(embedded, memory, memory.initial[:, :count])
        states = attended.outputs
        if self.upper is not None:
            states, _ = self.upper(states, memory.initial[:, count:], attended.contexts)
        return self._read_out(states, embedded, attended)

    def start(self, memory: RecurrentMemory) -> CachedState:
        """Return the state before the first step, with one hypothesis a sentence."""
        layers = memory.initial[:, None]
        return CachedState(
            memory_mask=memory.mask,
            memory={"states": memory.states, "keys": memory.keys},
            hypotheses={"layers": layers, "fed": self.attentive.first_fed(layers)},
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        embedded = self.embed_target(last_ids)
        layers = state.hypotheses["layers"]
        memory = RecurrentMemory(
            states=state.memory["states"],
            keys=state.memory["keys"],
            mask=state.memory_mask,
            initial=layers[:, 0],
        )
        count = len(self.attentive.stack.layers)
        attended, lower, fed = self.attentive.step(
            embedded, memory, layers[:, :, :count], state.hypotheses["fed"]
        )
        states = attended.outputs
        if self.upper is not None:
            states, upper = self.upper.step(
                states, layers[:, :, count:], attended.contexts
            )
            lower = torch.cat([lower, upper], dim=2)
        state.hypotheses = {"layers": lower, "fed": fed}
        return self.logits(self._read_out(states, embedded, attended))

    def _read_out(
        self,
        states: Float[Tensor, "batch length width"],
        embedded: Float[Tensor, "batch length embedding_width"],
        attended: Attended,
    ) -> Float[Tensor, "batch length output_width"]:
        if self.maxout is None:
            return states
        inputs = joined(attended.queries, embedded, attended.contexts)
        read_out: Tensor = self.maxout(inputs)
        return read_out

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding."""
        keys = self.attentive.attention.project_keys
        by_source = num_matrix_elements(self.encoder) + num_matrix_elements(keys)
        by_pair = num_matrix_elements(self.project_initial)
        by_target = sum(
            map(num_matrix_elements, (self.attentive, self.upper, self.maxout))
        )
        by_target += self.output_weight.numel() - num_matrix_elements(keys)
        source = source_lengths.astype(np.int64)
        target = target_lengths.astype(np.int64)
        # Scores and contexts; of the scores, a product with a vector or a key.
        by_both = keys.out_features + self.config.memory_width
        elements = (
            by_source * int(source.sum())
            + by_target * int(target.sum())
            + by_both * int((source * target).sum())
            + by_pair * len(source)
        )
        return PASSES * 2 * elements


def build_attention(config: RecurrentConfig) -> Attention:
    """Build the attention with the score that the settings name."""
    width = config.attention_width or config.d_model
    match config.attention:
        case "general":
            return GeneralAttention(config.d_model, config.memory_width)
        case "additive":
            return AdditiveAttention(config.d_model, config.memory_width, width)
        case "normed-additive":
            return NormedAdditiveAttention(config.d_model, config.memory_width, width)
        case "tanh-product":
            return TanhProductAttention(config.d_model, config.memory_width, width)


def _encoder(config: RecurrentConfig) -> RecurrentEncoder:
    width, is_both_ways = config.d_model, config.bidirectional
    embedding_width = config.embedding_width or width
    inputs = [2 * width if is_both_ways else width] + [width] * config.encoder_layers
    upper = [
        RecurrentLayer(config.cell, inputs[index], width)
        for index in range(config.encoder_layers - 1)
    ]
    lowest = RecurrentLayer(config.cell, embedding_width, width)
    return RecurrentEncoder(
        lowest,
        RecurrentLayer(config.cell, embedding_width, width) if is_both_ways else None,
        RecurrentStack(upper, config.dropout, _residual_index(config, 1))
        if upper
        else None,
        config.dropout,
    )


def _decoder(
    config: RecurrentConfig,
) -> tuple[AttentiveStack, RecurrentStack | None]:
    """Build the layers up to the query, and those above, which read the context too."""
    width = config.d_model
    embedding_width = config.embedding_width or width
    layers = [RecurrentLayer(config.cell, embedding_width + config.fed_width, width)]
    context_width = config.memory_width if config.readout == "state" else 0
    layers += [
        RecurrentLayer(config.cell, width + context_width, width)
        for _ in range(config.decoder_layers - 1)
    ]
    # Luong et al. attend with the top layer, the others with the lowest.
    count = len(layers) if config.readout == "attentional" else 1
    attentive = AttentiveStack(
        RecurrentStack(layers[:count], config.dropout, _residual_index(config, 0)),
        build_attention(config),
        query=config.attention_query,
        fed_width=config.fed_width,
        combine=nn.Linear(config.memory_width + width, config.output_width, bias=False)
        if config.readout == "attentional"
        else None,
    )
    upper = layers[count:]
    if not upper:
        return attentive, None
    residual_from = _residual_index(config, count)
    return attentive, RecurrentStack(upper, config.dropout, residual_from)


def _residual_index(config: RecurrentConfig, lower: int) -> int | None:
    """Return the index of the first residual layer in a stack above `lower` layers."""
    if config.residual_from is None:
        return None
    return config.residual_from - 1 - lower
