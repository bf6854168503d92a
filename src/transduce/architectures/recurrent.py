"""Recurrent translation models: RNNsearch, Luong's attention, and GNMT.

RNNsearch (Bahdanau et al., 2015) has one bidirectional GRU layer and a GRU decoder that
reads the context of its previous state. Luong et al. (2015) attend with the top layer's
current state, and feed the result to the next token. GNMT (Wu et al., 2016) has stacks
of LSTMs with residual connections; its lowest decoder layer attends, and all decoder
layers read the context.

Their parts, which other models use too:

- `RecurrentLayer`: one LSTM or GRU layer, over whole sequences or single tokens;
- `RecurrentStack`: several of them with dropout, residual connections and a context;
- `RecurrentEncoder`: a stack whose lowest layer may be bidirectional;
- `Attention` and its subclasses: scores of queries and keys, and contexts;
- `AttentiveStack`: a stack whose top state is the query of attention. It may read the
  context of the token before;
- `RecurrentBase`: base class of models with one `AttentiveStack`.

All compute sequences as [batch, length, width] and steps as [sentences, group, width],
where a group are the hypotheses of one sentence. A state is one tensor [..., layers,
state_width]: the hidden state of each layer, in LSTMs followed by its cell.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
)

from transduce.architectures.config import (
    AttentionQuery,
    Cell,
    MixtureRecurrentConfig,
    RecurrentConfig,
)
from transduce.architectures.interface import CachedState, num_matrix_elements
from transduce.device import is_good_at_bf16
from transduce.model.attention import attention_weights, padding_mask
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.text.vocabulary import PAD

LayerStates = Float[Tensor, "rows layers state_width"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentMemory:
    """Output of a recurrent encoder."""

    states: Float[Tensor, "batch source memory_width"]
    keys: Float[Tensor, "batch source attention_width"]
    """Result of `Attention.keys`, computed once."""
    mask: Bool[Tensor, "batch 1 1 source"]
    """True at the tokens of the source, not at its padding."""
    initial: Float[Tensor, "batch layers state_width"]
    """First state of the decoder."""


def memory_of(state: CachedState) -> RecurrentMemory:
    """Return the encoder's output in the state of a decoder.

    Steps do not read `initial`, which is the present state of the first hypotheses.
    """
    return RecurrentMemory(
        states=state.memory["states"],
        keys=state.memory["keys"],
        mask=state.memory_mask,
        initial=state.hypotheses["layers"][:, 0],
    )


@cache
def suppress_projection_warning() -> None:
    """Suppress PyTorch's warning that oneDNN has no LSTM with a projection.

    PyTorch gives it once a process, and no user can act on it. The random generator
    stays as it is.
    """
    cpu, fp32 = torch.device("cpu"), torch.float32
    with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        layer = nn.LSTM(1, 2, proj_size=1, device=cpu, dtype=fp32)
        layer(torch.zeros(1, 1, 1, device=cpu, dtype=fp32))


RnnState = Tensor | tuple[Tensor, Tensor]
"""State as PyTorch's layers read it: that of a GRU, or hidden state and cell of an
LSTM, each of shape (1, rows, width)."""


class RecurrentLayer(nn.Module):
    """LSTM or GRU layer in one direction.

    `projection` is the width to which an LSTM's hidden state is projected (Sak et al.,
    2014). Unlike the GRU of Cho et al. (2014), PyTorch's has its reset gate after the
    recurrent matrix.
    """

    def __init__(
        self, cell: Cell, input_width: int, width: int, projection: int | None = None
    ) -> None:
        super().__init__()
        if projection is not None:
            suppress_projection_warning()
        self.rnn: nn.RNNBase = (
            nn.GRU(input_width, width, batch_first=True)
            if cell == "gru"
            else nn.LSTM(
                input_width, width, batch_first=True, proj_size=projection or 0
            )
        )
        self.output_width = projection or width
        """Width of the outputs, which are the hidden states."""
        self.state_width = width if cell == "gru" else self.output_width + width

    def forward(
        self,
        x: Float[Tensor, "rows length input_width"],
        state: Float[Tensor, "rows state_width"] | None = None,
        lengths: Int[Tensor, " rows"] | None = None,
    ) -> tuple[
        Float[Tensor, "rows length output_width"], Float[Tensor, "rows state_width"]
    ]:
        """Return the outputs and the last state.

        `state` is the first state, by default zeros. The last state of a row is that at
        its length if `lengths` are given, otherwise that after all positions. A row
        without tokens counts as one of length 1.
        """
        x = x.to(self._dtype)  # autocast leaves bf16
        first = None if state is None else self._split(state.to(x.dtype))
        # PyTorch packs neither an empty batch nor a row without tokens.
        if lengths is None or not len(lengths):
            outputs, last = self.recurrence(x, first)
        else:
            packed = pack_padded_sequence(
                x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False
            )
            packed, last = self.recurrence(packed, first)
            outputs, _ = pad_packed_sequence(
                packed, batch_first=True, total_length=x.size(1)
            )
        return outputs, torch.cat(last, dim=-1)[0] if self._has_cell else last[0]

    def recurrence(self, x: Tensor | PackedSequence, first: RnnState | None) -> Any:
        """Return outputs and the last state as `nn.LSTM` or `nn.GRU` does."""
        device = next(self.rnn.parameters()).device.type
        if device != "cpu" or is_good_at_bf16(device):
            return self.rnn(x, first)
        # oneDNN has no LSTM with products in bf16 for these processors.
        with torch.autocast(device, enabled=False):
            return self.rnn(x, first)

    def _split(self, state: Float[Tensor, "rows state_width"]) -> RnnState:
        """Return a state as PyTorch's layers read it."""
        if not self._has_cell:
            return state[None]
        hidden, cell = state[None].split([self.output_width, self.rnn.hidden_size], -1)
        return hidden.contiguous(), cell.contiguous()

    @property
    def _has_cell(self) -> bool:
        return isinstance(self.rnn, nn.LSTM)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.rnn.parameters()).dtype


class RecurrentStack(nn.Module):
    """Recurrent layers, one above the other.

    The inputs of all layers have dropout. `residual_from` is the index of the first
    layer with a residual connection, None for none.
    """

    def __init__(
        self,
        layers: Sequence[RecurrentLayer],
        dropout: float,
        residual_from: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)
        self.residual_from = len(layers) if residual_from is None else residual_from

    def forward(
        self,
        x: Float[Tensor, "rows length input_width"],
        states: LayerStates | None = None,
        context: Float[Tensor, "rows length context_width"] | None = None,
        lengths: Int[Tensor, " rows"] | None = None,
    ) -> tuple[Float[Tensor, "rows length output_width"], LayerStates]:
        """Return the outputs of the top layer and the last states of all.

        The context is a second input of all layers. `lengths` as in `RecurrentLayer`.
        """
        last = []
        for index, layer in enumerate(self.layers):
            inputs = x if context is None else joined(x, context)
            state = None if states is None else states[:, index]
            outputs, state = layer(self.dropout(inputs), state, lengths)
            x = outputs + x if index >= self.residual_from else outputs
            last.append(state)
        return x, torch.stack(last, dim=1)

    def step(
        self,
        x: Float[Tensor, "sentences group input_width"],
        states: Float[Tensor, "sentences group layers state_width"],
        context: Float[Tensor, "sentences group context_width"] | None = None,
    ) -> tuple[
        Float[Tensor, "sentences group output_width"],
        Float[Tensor, "sentences group layers state_width"],
    ]:
        """Read one token of each hypothesis; return outputs and new states."""
        sentences, group, _ = x.shape
        outputs, states = self(
            _rows(x),
            states.flatten(0, 1),
            None if context is None else _rows(context),
        )
        shape = (sentences, group)
        return outputs[:, 0].unflatten(0, shape), states.unflatten(0, shape)


def _rows(
    x: Float[Tensor, "sentences group width"],
) -> Float[Tensor, "rows 1 width"]:
    """Return hypotheses as sequences of one token."""
    return x.flatten(0, 1)[:, None]


def joined(*parts: Tensor) -> Tensor:
    """Concatenate along the width; under autocast the parts may differ in dtype."""
    return torch.cat([part.to(parts[0].dtype) for part in parts], dim=-1)


class EncoderStates(NamedTuple):
    """Result of `RecurrentEncoder`."""

    top: Float[Tensor, "batch source memory_width"]
    """Outputs of the top layer."""
    first_backward: Float[Tensor, "batch width"] | None
    """Output of the backward layer at the first token; None without that layer."""
    last: Float[Tensor, "batch layers state_width"] | None
    """State of each layer after the tokens that it reads; None unless requested."""


class RecurrentEncoder(nn.Module):
    """Recurrent layers over the source; the lowest may read it in both directions.

    Padding influences no result: it follows the tokens, and the backward layer reads
    each row reversed within its length.
    """

    def __init__(
        self,
        lowest: RecurrentLayer,
        backward: RecurrentLayer | None,
        upper: RecurrentStack | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.lowest = lowest
        self.backward_layer = backward
        self.upper = upper
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch source embedding_width"],
        lengths: Int[Tensor, " batch"],
        *,
        with_last: bool,
    ) -> EncoderStates:
        """Encode embedded sources of these lengths.

        The last states are computed only `with_last`, since this is slower. If the
        lowest layer reads both ways, its last state is that of the backward direction.
        """
        # Packing reads lengths on the CPU: one copy serves all layers.
        until = lengths.cpu() if with_last else None
        x = self.dropout(x)
        states, lowest_last = self.lowest(x, None, until)
        first_backward = None
        if self.backward_layer is not None:
            order = reversed_order(lengths, x.size(1))
            backward, lowest_last = self.backward_layer(
                reordered(x, order), None, until
            )
            backward = reordered(backward, order)
            first_backward = backward[:, 0]
            states = torch.cat([states, backward], dim=-1)
        last = lowest_last[:, None]
        if self.upper is not None:
            states, upper_last = self.upper(states, lengths=until)
            last = torch.cat([last, upper_last], dim=1)
        return EncoderStates(states, first_backward, last if with_last else None)


def at_least_one_position(
    ids: Int[Tensor, "batch length"],
) -> Int[Tensor, "batch positions"]:
    """Return the ids, with a column of padding if they have no column.

    PyTorch's recurrences refuse a sequence without positions.
    """
    return ids if ids.size(1) else functional.pad(ids, (0, 1), value=PAD)


def reversed_order(
    lengths: Int[Tensor, " batch"], size: int
) -> Int[Tensor, "batch {size}"]:
    """Return the indices that reverse each row within its length; padding stays."""
    index = torch.arange(size, device=lengths.device)[None]
    last = lengths[:, None] - 1
    return torch.where(index <= last, last - index, index)


def reordered(
    x: Float[Tensor, "batch length width"], order: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch length width"]:
    """Return the positions of each row in another order."""
    return x.gather(1, order[..., None].expand_as(x))


class Attention(nn.Module, ABC):
    """Attention of decoder states, the queries, to encoder states.

    Subclasses have a score each. `weights_tap` passes the weights through for hooks.
    """

    def __init__(self, memory_width: int, width: int) -> None:
        super().__init__()
        self.project_keys = nn.Linear(memory_width, width, bias=False)
        self.weights_tap = nn.Identity()

    def keys(
        self, states: Float[Tensor, "batch source memory_width"]
    ) -> Float[Tensor, "batch source width"]:
        """Return the part of the scores that depends on the source alone."""
        keys: Tensor = self.project_keys(states)
        return keys

    @abstractmethod
    def scores(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        keys: Float[Tensor, "batch source width"],
    ) -> Float[Tensor, "batch queries source"]:
        """Return the scores of queries and keys."""

    def weights(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        memory: RecurrentMemory,
    ) -> Float[Tensor, "batch 1 queries source"]:
        """Return the softmax of the scores, before the tap."""
        scores = self.scores(queries, memory.keys)[:, None].float()
        return attention_weights(scores, memory.mask)


class GeneralAttention(Attention):
    """Score q W k (Luong et al., 2015, equation 8)."""

    def __init__(self, query_width: int, memory_width: int) -> None:
        super().__init__(memory_width, query_width)

    def scores(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        keys: Float[Tensor, "batch source width"],
    ) -> Float[Tensor, "batch queries source"]:
        return queries.to(keys.dtype) @ keys.transpose(1, 2)


class AdditiveAttention(Attention):
    """Score v tanh(W q + U k) (Bahdanau et al., 2015, appendix A.1.2)."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__(memory_width, width)
        self.project_query = nn.Linear(query_width, width, bias=False)
        self.vector = nn.Parameter(torch.empty(width))

    def scores(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        keys: Float[Tensor, "batch source width"],
    ) -> Float[Tensor, "batch queries source"]:
        hidden = self.project_query(queries)[:, :, None] + keys[:, None]
        return torch.tanh(hidden) @ self.vector.to(hidden.dtype)


class NormedAdditiveAttention(AdditiveAttention):
    """Score g v/|v| tanh(W q + U k + b), as in tensorflow/nmt (normed_bahdanau)."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__(query_width, memory_width, width)
        self.gain = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(width))

    def scores(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        keys: Float[Tensor, "batch source width"],
    ) -> Float[Tensor, "batch queries source"]:
        projected = self.project_query(queries)
        hidden = (projected + self.bias.to(projected.dtype))[:, :, None] + keys[:, None]
        vector = self.gain * self.vector / self.vector.norm()
        return torch.tanh(hidden) @ vector.to(hidden.dtype)


class TanhProductAttention(AdditiveAttention):
    """Score v (tanh(W q) tanh(U k)), a matrix product (Shazeer et al., 2017)."""

    def keys(
        self, states: Float[Tensor, "batch source memory_width"]
    ) -> Float[Tensor, "batch source width"]:
        return torch.tanh(super().keys(states))

    def scores(
        self,
        queries: Float[Tensor, "batch queries query_width"],
        keys: Float[Tensor, "batch source width"],
    ) -> Float[Tensor, "batch queries source"]:
        projected = torch.tanh(self.project_query(queries))
        return (projected * self.vector.to(projected.dtype)) @ keys.transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Result of `AttentiveStack` for each token, [batch, length, width]."""

    outputs: Float[Tensor, "batch target width"]
    """States of the top layer, or attentional vectors."""
    queries: Float[Tensor, "batch target output_width"]
    """Decoder states that are the queries: of the token, or of the one before."""
    contexts: Float[Tensor, "batch target memory_width"]
    """Sums of the encoder's states, weighted by attention."""
    weights: Float[Tensor, "batch 1 target source"]
    """Attention of each token to the source."""


class AttentiveStack(nn.Module):
    """Recurrent layers whose top state is the query of attention.

    With the query "previous", the state of the token before is the query, and the
    lowest layer reads the context beside the embedding. With the query "current", the
    lowest layer reads the embedding and `fed_width` numbers of the token before: its
    context, or its attentional vector, which `combine` makes of context and state.
    With a `fed_width` of 0, the layers run over whole sequences.
    """

    def __init__(
        self,
        stack: RecurrentStack,
        attention: Attention,
        *,
        query: AttentionQuery,
        fed_width: int = 0,
        combine: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.stack = stack
        self.attention = attention
        self.combine = combine
        self.query = query
        self.fed_width = 0 if query == "previous" else fed_width
        """Width of the vector that a step passes to the next beside the states."""

    def forward(
        self,
        x: Float[Tensor, "batch target embedding_width"],
        memory: RecurrentMemory,
        states: Float[Tensor, "batch layers state_width"],
    ) -> Attended:
        """Compute whole sequences, given the first states."""
        if self.query == "current" and not self.fed_width:
            queries, _ = self.stack(x, states)
            attended, _ = self._attend(queries, memory)
        else:
            attended = self._in_steps(x, memory, states[:, None])
        self.attention.weights_tap(attended.weights)
        return attended

    def step(
        self,
        x: Float[Tensor, "sentences group embedding_width"],
        memory: RecurrentMemory,
        states: Float[Tensor, "sentences group layers state_width"],
        fed: Float[Tensor, "sentences group fed_width"],
    ) -> tuple[Attended, Tensor, Tensor]:
        """Read one token of each hypothesis; also return new states and new `fed`."""
        attended, states, fed = self._advance(x, memory, states, fed)
        self.attention.weights_tap(attended.weights)
        return attended, states, fed

    def first_fed(
        self, states: Float[Tensor, "batch group layers state_width"]
    ) -> Float[Tensor, "batch group fed_width"]:
        """Return `fed` before the first step: zeros."""
        return states.new_zeros(*states.shape[:2], self.fed_width)

    def _in_steps(
        self,
        x: Float[Tensor, "batch target embedding_width"],
        memory: RecurrentMemory,
        states: Float[Tensor, "batch 1 layers state_width"],
    ) -> Attended:
        """Compute token by token, where each reads the context of the one before."""
        fed = self.first_fed(states)
        steps = []
        for token in x.split(1, dim=1):
            attended, states, fed = self._advance(token, memory, states, fed)
            steps.append(attended)
        return Attended(
            outputs=torch.cat([each.outputs for each in steps], dim=1),
            queries=torch.cat([each.queries for each in steps], dim=1),
            contexts=torch.cat([each.contexts for each in steps], dim=1),
            weights=torch.cat([each.weights for each in steps], dim=2),
        )

    def _advance(
        self,
        x: Float[Tensor, "sentences group embedding_width"],
        memory: RecurrentMemory,
        states: Float[Tensor, "sentences group layers state_width"],
        fed: Float[Tensor, "sentences group fed_width"],
    ) -> tuple[Attended, Tensor, Tensor]:
        """Compute one step without the tap."""
        if self.query == "previous":
            width = self.stack.layers[-1].output_width
            attended, _ = self._attend(states[:, :, -1, :width], memory)
            outputs, states = self.stack.step(joined(x, attended.contexts), states)
            return replace(attended, outputs=outputs), states, fed
        inputs = joined(x, fed) if self.fed_width else x
        queries, states = self.stack.step(inputs, states)
        attended, fed_next = self._attend(queries, memory)
        return attended, states, fed_next if self.fed_width else fed

    def _attend(
        self,
        queries: Float[Tensor, "batch queries output_width"],
        memory: RecurrentMemory,
    ) -> tuple[Attended, Float[Tensor, "batch queries fed_width"]]:
        """Attend with queries; also return the vectors for input feeding.

        They are the attentional vectors, or the contexts if there are none.
        """
        weights = self.attention.weights(queries, memory)
        contexts = weights[:, 0].to(memory.states.dtype) @ memory.states
        attended = Attended(
            outputs=queries, queries=queries, contexts=contexts, weights=weights
        )
        if self.combine is None:
            return attended, contexts
        vectors = torch.tanh(self.combine(joined(contexts, queries)))
        return replace(attended, outputs=vectors), vectors


class RecurrentBase(nn.Module):
    """Embeddings, logits and first state of models with one `AttentiveStack`.

    Logits are computed from vectors of `output_width` numbers.
    """

    attentive: AttentiveStack

    def __init__(
        self,
        config: RecurrentConfig | MixtureRecurrentConfig,
        embedding_width: int,
        output_width: int,
    ) -> None:
        super().__init__()
        num_targets = config.target_vocab_size or config.vocab_size
        has_own = config.target_vocab_size is not None or not config.shared_embedding
        self.embedding = nn.Embedding(config.vocab_size, embedding_width)
        self.target_embedding = (
            nn.Embedding(num_targets, embedding_width) if has_own else None
        )
        self.output = (
            None
            if config.tied_output
            else nn.Linear(output_width, num_targets, bias=False)
        )

    def embed_target(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length embedding_width"]:
        """Return the embeddings of target tokens."""
        embedded: Tensor = (self.target_embedding or self.embedding)(ids)
        return embedded

    def start(self, memory: RecurrentMemory) -> CachedState:
        """Return the state before the first step, with one hypothesis a sentence."""
        layers = memory.initial[:, None]
        return CachedState(
            memory_mask=memory.mask,
            memory={"states": memory.states, "keys": memory.keys},
            hypotheses={"layers": layers, "fed": self.attentive.first_fed(layers)},
        )

    def logits(
        self, states: Float[Tensor, "*rows output_width"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for vectors of `decode`."""
        if self.output is not None:
            logits: Tensor = self.output(states)
            return logits
        return functional.linear(states, self.output_weight)

    @property
    def output_weight(self) -> Float[Tensor, "vocab output_width"]:
        """Matrix of the logits."""
        return (self.output or self.target_embedding or self.embedding).weight

    @property
    def output_bias(self) -> None:
        """None: the logits have no bias."""
        return

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        """Module that the weights of attention pass through."""
        return [self.attentive.attention.weights_tap]

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(each.numel() for each in self.parameters())


def initialize_uniform(model: nn.Module, largest: float) -> None:
    """Draw all parameters from plus or minus `largest`."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -largest, largest)


@torch.no_grad()
def initialize_orthogonal(model: nn.Module) -> None:
    """Draw initial weights as in RNNsearch (Bahdanau et al., 2015, appendix B.1)."""
    # Their vector of attention is zero at first. A normed vector cannot be, as it has
    # no direction then; it gets a random direction.
    zeros = [
        each.vector
        for each in model.modules()
        if isinstance(each, AdditiveAttention)
        and not isinstance(each, NormedAdditiveAttention)
    ]
    for name, parameter in model.named_parameters():
        if name.endswith("weight_hh_l0"):
            for gate in parameter.split(parameter.size(1)):
                nn.init.orthogonal_(gate)
        elif any(parameter is each for each in zeros):
            nn.init.zeros_(parameter)
        else:
            is_attention = ".attention." in name
            nn.init.normal_(parameter, std=0.001 if is_attention else 0.01)


@torch.no_grad()
def initialize_biases(model: nn.Module, forget_bias: float = 0.0) -> None:
    """Set biases to zero, those of forget gates to `forget_bias`.

    The gain of normed attention becomes the root of 1 / width, as in tensorflow/nmt.
    """
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2].startswith("bias"):
            nn.init.zeros_(parameter)
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            # PyTorch's gates are input, forget, cell, output.
            size = module.hidden_size
            nn.init.constant_(
                module.get_parameter("bias_ih_l0")[size : 2 * size], forget_bias
            )
        if isinstance(module, NormedAdditiveAttention):
            nn.init.constant_(module.gain, len(module.vector) ** -0.5)


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
        source = at_least_one_position(source)
        mask = padding_mask(source, PAD)
        encoded: EncoderStates = self.encoder(
            self.embedding(source),
            mask[:, 0, 0].sum(dim=1),
            with_last=self.config.initial_state == "encoder",
        )
        return RecurrentMemory(
            states=encoded.top,
            keys=self.attentive.attention.keys(encoded.top),
            mask=mask,
            initial=self._initial(encoded),
        )

    def _initial(
        self, encoded: EncoderStates
    ) -> Float[Tensor, "batch layers state_width"]:
        """Return the first state of all layers of the decoder."""
        if encoded.last is not None:
            return encoded.last
        num_layers = self.config.decoder_layers
        state_width = self.encoder.lowest.state_width
        if self.project_initial is None:
            return encoded.top.new_zeros(len(encoded.top), num_layers, state_width)
        hidden = torch.tanh(self.project_initial(encoded.first_backward))
        hidden = hidden.unflatten(-1, (num_layers, -1))
        # Cells of LSTMs begin with zeros.
        return functional.pad(hidden, (0, state_width - hidden.size(-1)))

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: RecurrentMemory
    ) -> Float[Tensor, "batch target output_width"]:
        """Return the vectors at all positions that `output_weight` is multiplied by."""
        embedded = self.embed_target(at_least_one_position(target_in))
        count = len(self.attentive.stack.layers)
        attended = self.attentive(embedded, memory, memory.initial[:, :count])
        states = attended.outputs
        if self.upper is not None:
            states, _ = self.upper(states, memory.initial[:, count:], attended.contexts)
        return self._read_out(states, embedded, attended)[:, : target_in.size(1)]

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        embedded = self.embed_target(last_ids)
        layers = state.hypotheses["layers"]
        count = len(self.attentive.stack.layers)
        attended, lower, fed = self.attentive.step(
            embedded, memory_of(state), layers[:, :, :count], state.hypotheses["fed"]
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
        # A score is a product with a vector or a key, and a context a sum of states.
        by_both = keys.out_features + self.config.memory_width
        elements = (
            by_source * int(source.sum())
            + by_target * int(target.sum())
            + by_both * int((source * target).sum())
            + by_pair * len(source)
        )
        return FORWARDS_PER_UPDATE * 2 * elements


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
