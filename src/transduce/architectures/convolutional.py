"""ConvS2S: convolutional sequence to sequence learning (Gehring et al., 2017).

Sections and equations are those of that paper. Where it leaves something open, the
model follows the authors' code, fairseq (`fconv.py`); comments say so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import Convolution, ConvolutionalConfig
from transduce.architectures.interface import CachedState, num_matrix_elements
from transduce.model.attention import attention_weights, padding_mask
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.text.vocabulary import PAD

HALF = math.sqrt(0.5)
"""Factor on the sum of two terms, which halves its variance (section 3.4)."""
EMBEDDING_DEVIATION = 0.1
"""Standard deviation of the first embeddings (section 3.5)."""
GATED = 4.0
"""Variance of the input of a gated linear unit relative to that of the layer's input
(section 3.5)."""


class NormalizedLinear(nn.Linear):
    """Linear map with weight normalization (Salimans and Kingma, 2016).

    Row i of its matrix is `gain[i] * weight[i] / |weight[i]|`.
    """

    def __init__(
        self, inputs: int, outputs: int, *, variance: float = 1.0, dropout: float = 0.0
    ) -> None:
        """Draw weights from N(0, sqrt(variance (1 - dropout) / inputs)) (section 3.5).

        `variance` is the variance of an output divided by that of an input, and
        `dropout` is the rate at which inputs are dropped.
        """
        super().__init__(inputs, outputs)
        deviation = math.sqrt(variance * (1 - dropout) / inputs)
        nn.init.normal_(self.weight, std=deviation)
        nn.init.zeros_(self.bias)
        self.gain = nn.Parameter(self.weight.new_empty(outputs))
        if not self.weight.is_meta:  # there a norm would load PyTorch's compiler
            self.gain.data = self.weight.detach().norm(dim=1)
        self._kept: tuple[tuple[object, ...], Tensor] | None = None

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return functional.linear(x, self.matrix, self.bias)

    @property
    def matrix(self) -> Float[Tensor, "outputs inputs"]:
        """Matrix of the map; in evaluation without gradients it is computed once."""
        if self.training or torch.is_grad_enabled():
            return self._normalized()
        parts = (self.weight, self.gain)
        version = (
            self.weight.dtype,
            *((each.data_ptr(), each._version) for each in parts),
        )
        if self._kept is None or self._kept[0] != version:
            self._kept = (version, self._normalized())
        return self._kept[1]

    def train(self, mode: bool = True) -> "NormalizedLinear":
        """Set the mode; the matrix of evaluation is dropped, as weights may change."""
        self._kept = None
        return super().train(mode)

    def _normalized(self) -> Float[Tensor, "outputs inputs"]:
        exact = torch.promote_types(self.weight.dtype, torch.float32)
        weight = self.weight.to(exact)
        scale = self.gain.to(exact) / weight.norm(dim=1)
        return (weight * scale[:, None]).to(self.weight.dtype)


class _ScaledGradient(torch.autograd.Function):
    """Identity that multiplies gradients by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, whose gradient is multiplied by a factor."""
    scaled: Tensor = _ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call] # torch's own
    return scaled


def windows(
    x: Float[Tensor, "batch length width"], kernel: int, before: int, dilation: int = 1
) -> Float[Tensor, "batch length window"]:
    """Join the inputs of each position: `before` earlier ones, itself, and later ones.

    The `kernel` inputs of a position stand in their order, `dilation` positions apart;
    zeros surround the sequence.
    """
    if kernel == 1:
        return x
    around = (before * dilation, (kernel - 1 - before) * dilation)
    padded = functional.pad(x, (0, 0, *around))
    starts, length = range(0, kernel * dilation, dilation), x.size(1)
    return torch.cat([padded[:, i : i + length] for i in starts], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalMemory:
    """Output of the encoder, which each block of the decoder attends to."""

    keys: Float[Tensor, "batch source d_embedding"]
    """Outputs z of the encoder."""
    values: Float[Tensor, "batch source d_embedding"]
    """Outputs plus embeddings of the source (equation 2)."""
    mask: Bool[Tensor, "batch 1 1 source"]
    """True at the tokens of the source, not at its padding."""


class AddedPositions(nn.Module):
    """Sum of the embeddings of tokens and of their positions (section 3.1)."""

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.table = _table(config.max_positions, config.d_embedding)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Float[Tensor, "batch length d_embedding"],
        positions: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_embedding"]:
        """Add the embeddings of these positions, by default 0, 1, 2, ..."""
        if positions is None:
            positions = torch.arange(tokens.size(1), device=tokens.device)[None]
        # Positions beyond the table have the embedding of its last row. Gehring et al.
        # do not mention them; fairseq refuses such sentences.
        rows = positions.clamp(max=self.table.num_embeddings - 1)
        return self.dropout(tokens + self.table(rows))


def _table(count: int, width: int) -> nn.Embedding:
    table = nn.Embedding(count, width)
    nn.init.normal_(table.weight, std=EMBEDDING_DEVIATION)
    return table


class EncoderBlock(nn.Module):
    """Convolution, gated linear unit and residual connection (section 3.2)."""

    def __init__(self, inputs: int, sizes: Convolution, dropout: float) -> None:
        super().__init__()
        self.kernel = sizes.kernel
        self.dropout = nn.Dropout(dropout)
        self.convolution = NormalizedLinear(
            sizes.kernel * inputs, 2 * sizes.width, variance=GATED, dropout=dropout
        )
        # As in fairseq, a linear map changes the width; the paper does not mention it.
        self.residual = (
            nn.Identity()
            if inputs == sizes.width
            else NormalizedLinear(inputs, sizes.width)
        )

    def forward(
        self,
        x: Float[Tensor, "batch source inputs"],
        is_token: Bool[Tensor, "batch source 1"],
    ) -> Float[Tensor, "batch source outputs"]:
        """Return the outputs; zeros stand for padding, as beyond the sentence's end."""
        inputs = self.dropout(x.masked_fill(~is_token, 0.0))
        window = windows(inputs, self.kernel, before=(self.kernel - 1) // 2)
        return (self.gated(window) + self.residual(x)) * HALF

    def gated(
        self, window: Float[Tensor, "batch rows window"]
    ) -> Float[Tensor, "batch rows outputs"]:
        """Multiply one half of the convolution's output by the gates of the other."""
        return functional.glu(self.convolution(window), dim=-1)


class Attention(nn.Module):
    """Attention of one decoder block to the encoder's output (section 3.3)."""

    def __init__(self, width: int, d_embedding: int) -> None:
        super().__init__()
        self.project_query = NormalizedLinear(width, d_embedding)
        self.project_output = NormalizedLinear(d_embedding, width)
        self.weights_tap = nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch rows width"],
        embedded: Float[Tensor, "batch rows d_embedding"],
        memory: ConvolutionalMemory,
    ) -> Float[Tensor, "batch rows width"]:
        """Return the sum of the block's states and their contexts from attention.

        Rows are the positions of a target, or the hypotheses of a sentence.
        """
        # Equation 1 has this sum; the factor is fairseq's.
        query = (self.project_query(x) + embedded) * HALF
        scores = (query @ memory.keys.transpose(1, 2))[:, None]
        weights = self.weights_tap(attention_weights(scores, memory.mask))
        # The factor m sqrt(1 / m) of section 3.4, for m source tokens.
        size = memory.mask[:, 0].sum(dim=-1, keepdim=True).to(x.dtype).sqrt()
        context = (weights[:, 0] @ memory.values) * size
        # The paper adds both without a factor; this one is fairseq's.
        return (self.project_output(context) + x) * HALF


class DecoderBlock(EncoderBlock):
    """Block of the decoder: its convolution ends at a position; attention follows."""

    def __init__(
        self, inputs: int, sizes: Convolution, d_embedding: int, dropout: float
    ) -> None:
        super().__init__(inputs, sizes, dropout)
        self.attention = Attention(sizes.width, d_embedding)

    def forward(  # type: ignore[override] # a decoder attends and masks nothing
        self,
        x: Float[Tensor, "batch target inputs"],
        embedded: Float[Tensor, "batch target d_embedding"],
        memory: ConvolutionalMemory,
    ) -> Float[Tensor, "batch target outputs"]:
        """Return the outputs of all positions; `embedded` are the target's tokens."""
        window = windows(self.dropout(x), self.kernel, before=self.kernel - 1)
        return self._finish(x, window, embedded, memory)

    def step(
        self,
        x: Float[Tensor, "sentences group inputs"],
        embedded: Float[Tensor, "sentences group d_embedding"],
        memory: ConvolutionalMemory,
        past: Float[Tensor, "sentences group past inputs"],
    ) -> tuple[
        Float[Tensor, "sentences group outputs"],
        Float[Tensor, "sentences group past inputs"],
    ]:
        """Return the outputs of one position, and the last k - 1 inputs up to it."""
        inputs = torch.cat([past, self.dropout(x)[:, :, None]], dim=2)
        return self._finish(x, inputs.flatten(2), embedded, memory), inputs[:, :, 1:]

    def _finish(
        self,
        x: Float[Tensor, "batch rows inputs"],
        window: Float[Tensor, "batch rows window"],
        embedded: Float[Tensor, "batch rows d_embedding"],
        memory: ConvolutionalMemory,
    ) -> Float[Tensor, "batch rows outputs"]:
        states = self.attention(self.gated(window), embedded, memory)
        return (states + self.residual(x)) * HALF


class Convolutional(nn.Module):
    """ConvS2S: stacks of gated convolutions, and attention in every decoder block."""

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.config = config
        encoder, decoder = config.encoder_convolutions, config.decoder_convolutions
        width, rate = config.d_embedding, config.dropout
        self.embedding = _table(config.vocab_size, width)
        self.own_target_embedding = (
            None if config.shared_embedding else _table(config.num_target_tokens, width)
        )
        self.source_positions = AddedPositions(config)
        self.target_positions = AddedPositions(config)
        self.encoder_input = NormalizedLinear(width, encoder[0].width, dropout=rate)
        self.encoder_blocks = nn.ModuleList(
            EncoderBlock(before.width, sizes, rate)
            for before, sizes in _with_inputs(encoder)
        )
        self.encoder_output = NormalizedLinear(encoder[-1].width, width)
        self.decoder_input = NormalizedLinear(width, decoder[0].width, dropout=rate)
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(before.width, sizes, width, rate)
            for before, sizes in _with_inputs(decoder)
        )
        self.decoder_output = NormalizedLinear(decoder[-1].width, config.d_model)
        self.dropout = nn.Dropout(rate)
        # The paper's output layer has a matrix of its own.
        self.output: NormalizedLinear | None = None
        self.shared_bias: nn.Parameter | None = None
        if config.shared_embedding:
            self.shared_bias = nn.Parameter(torch.zeros(config.vocab_size))
        else:
            self.output = NormalizedLinear(
                config.d_model, config.num_target_tokens, dropout=rate
            )

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> ConvolutionalMemory:
        """Encode sources, padded with id 0."""
        mask = padding_mask(source, PAD)
        is_token = mask[:, 0, 0, :, None]
        embedded = self.source_positions(self.embedding(source))
        x = self.encoder_input(embedded)
        for block in self.encoder_blocks:
            x = block(x, is_token)
        # Section 3.4: each block of the decoder attends to the encoder, so the
        # encoder's gradient is divided by their number. fairseq also halves it.
        x = scaled_gradient(
            self.encoder_output(x), 1 / (2 * len(self.decoder_blocks))
        ).masked_fill(~is_token, 0.0)
        # Equation 2 has this sum; the factor is fairseq's.
        values = (x + embedded) * HALF
        return ConvolutionalMemory(keys=x, values=values, mask=mask)

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: ConvolutionalMemory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's outputs at all positions, with dropout."""
        embedded = self.target_positions(self.target_embedding(target_in))
        x = self.decoder_input(embedded)
        for block in self.decoder_blocks:
            x = block(x, embedded, memory)
        states: Tensor = self.dropout(self.decoder_output(x))
        return states

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder outputs."""
        return functional.linear(states, self.output_weight, self.output_bias)

    @property
    def target_embedding(self) -> nn.Embedding:
        """Embedding of the target's tokens."""
        return self.own_target_embedding or self.embedding

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits, which is normalized unless it is the embedding."""
        if self.output is None:
            return self.embedding.weight
        return self.output.matrix

    @property
    def output_bias(self) -> Float[Tensor, " vocab"]:
        """Bias of the logits."""
        bias = self.shared_bias if self.output is None else self.output.bias
        assert bias is not None
        return bias

    @property
    def cross_attention_taps(self) -> Sequence[nn.Module]:
        """Modules that the weights of attention pass through, one a decoder block."""
        blocks = cast(Sequence[DecoderBlock], self.decoder_blocks)
        return [block.attention.weights_tap for block in blocks]

    def start(self, memory: ConvolutionalMemory) -> CachedState:
        """Return the state before the first step: all earlier inputs are zeros."""
        keys, sentences = memory.keys, len(memory.mask)
        hypotheses = {"position": keys.new_zeros(sentences, 1, dtype=torch.int64)}
        decoder = self.config.decoder_convolutions
        for number, (before, sizes) in enumerate(_with_inputs(decoder)):
            shape = (sentences, 1, sizes.kernel - 1, before.width)
            hypotheses[past_name(number)] = keys.new_zeros(shape)
        return CachedState(
            memory_mask=memory.mask,
            memory={"keys": memory.keys, "values": memory.values},
            hypotheses=hypotheses,
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        memory = ConvolutionalMemory(**state.memory, mask=state.memory_mask)
        hypotheses = state.hypotheses
        embedded = self.target_positions(
            self.target_embedding(last_ids), hypotheses["position"]
        )
        hypotheses["position"] = hypotheses["position"] + 1
        x = self.decoder_input(embedded)
        blocks = cast(Sequence[DecoderBlock], self.decoder_blocks)
        for number, block in enumerate(blocks):
            name = past_name(number)
            x, hypotheses[name] = block.step(x, embedded, memory, hypotheses[name])
        return self.logits(self.dropout(self.decoder_output(x)))

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        Only matrix products are counted, three for each forward one.
        """
        num_source, num_target = int(source_lengths.sum()), int(target_lengths.sum())
        num_scores = int((source_lengths.astype(np.int64) * target_lengths).sum())
        encoder = [self.encoder_input, *self.encoder_blocks, self.encoder_output]
        decoder = [self.decoder_input, *self.decoder_blocks, self.decoder_output]
        output = self.config.d_model * self.config.num_target_tokens
        products = (
            num_source * sum(map(num_matrix_elements, encoder))
            + num_target * (sum(map(num_matrix_elements, decoder)) + output)
            # Scores, and sums of values weighted by them, in each block.
            + 2 * num_scores * self.config.d_embedding * len(self.decoder_blocks)
        )
        return FORWARDS_PER_UPDATE * 2 * products


def _with_inputs(
    blocks: Sequence[Convolution],
) -> list[tuple[Convolution, Convolution]]:
    """Pair each block with the one before it; the first has inputs of its width."""
    return list(pairwise((blocks[0], *blocks)))


def past_name(number: int) -> str:
    """Name of a block's last inputs in the state."""
    return f"past.{number}"
