"""ByteNet: translation of characters by dilated convolutions (Kalchbrenner et al.,
2016), without attention.

Section numbers refer to the paper's second version (2017).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import ByteNetConfig
from transduce.architectures.convolutional import past_name, windows
from transduce.architectures.interface import CachedState, num_matrix_elements
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfoldedSource:
    """Output of the encoder, at more positions than the source has tokens."""

    states: Float[Tensor, "batch unfolded d_model"]
    """Outputs, which are zeros after the unfolded length of a source."""
    mask: Bool[Tensor, "batch 1 1 unfolded"]
    """True at the tokens of the source."""


class ResidualBlock(nn.Module):
    """Residual block with ReLUs and one dilated convolution (section 3.6).

    Each map follows a layer normalization and a ReLU; the first reduces the width 2d to
    d, and the last restores it.
    """

    def __init__(self, config: ByteNetConfig, dilation: int) -> None:
        super().__init__()
        d, stream = config.d_hidden, config.d_model
        self.kernel, self.dilation = config.kernel, dilation
        # The paper gives neither the initial weights nor the constant of the norms;
        # here they are PyTorch's.
        self.norm = nn.LayerNorm(stream)
        self.reduce = nn.Linear(stream, d)
        self.reduced_norm = nn.LayerNorm(d)
        self.convolution = nn.Linear(config.kernel * d, d)
        self.convolved_norm = nn.LayerNorm(d)
        self.restore = nn.Linear(d, stream)
        self.dropout = nn.Dropout(config.dropout)

    def reduced(
        self, x: Float[Tensor, "batch rows d_model"]
    ) -> Float[Tensor, "batch rows d_hidden"]:
        """Return the inputs of the convolution."""
        narrow = self.reduce(functional.relu(self.norm(x)))
        return functional.relu(self.reduced_norm(narrow))

    def finish(
        self,
        x: Float[Tensor, "batch rows d_model"],
        window: Float[Tensor, "batch rows window"],
    ) -> Float[Tensor, "batch rows d_model"]:
        """Return the block's output for its input and the convolution's windows."""
        convolved = self.convolved_norm(self.convolution(window))
        return x + self.dropout(self.restore(functional.relu(convolved)))


class EncoderBlock(ResidualBlock):
    """Block whose convolution depends on earlier and later positions."""

    def forward(
        self,
        x: Float[Tensor, "batch unfolded d_model"],
        is_inside: Bool[Tensor, "batch unfolded 1"],
    ) -> Float[Tensor, "batch unfolded d_model"]:
        """Return the output; zeros are after the unfolded length of each source."""
        inputs = self.reduced(x).masked_fill(~is_inside, 0.0)
        before = (self.kernel - 1) // 2
        return self.finish(x, windows(inputs, self.kernel, before, self.dilation))


class DecoderBlock(ResidualBlock):
    """Block whose convolution depends on earlier positions only (section 3.4)."""

    @property
    def num_past(self) -> int:
        """Number of positions from the first input of an output to the output."""
        return (self.kernel - 1) * self.dilation

    def forward(
        self, x: Float[Tensor, "batch target d_model"]
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the output at all positions."""
        before = self.kernel - 1
        inputs = self.reduced(x)
        return self.finish(x, windows(inputs, self.kernel, before, self.dilation))

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        past: Float[Tensor, "sentences group past d_hidden"],
    ) -> tuple[
        Float[Tensor, "sentences group d_model"],
        Float[Tensor, "sentences group past d_hidden"],
    ]:
        """Return the output of one position, and the last inputs up to it."""
        inputs = torch.cat([past, self.reduced(x)[:, :, None]], dim=2)
        window = inputs[:, :, :: self.dilation].flatten(2)
        return self.finish(x, window), inputs[:, :, 1:]


class ByteNet(nn.Module):
    """Decoder of characters on top of an encoder, position by position."""

    def __init__(self, config: ByteNetConfig) -> None:
        super().__init__()
        self.config = config
        stream = config.d_model
        self.source_embedding = nn.Embedding(config.vocab_size, stream)
        self.target_embedding = nn.Embedding(config.num_target_tokens, stream)
        self.encoder_blocks = nn.ModuleList(
            EncoderBlock(config, dilation) for dilation in config.encoder_dilations
        )
        # The paper does not say how the decoder reads the encoder's output. It has the
        # width of the residual stream, so that both can be added as in a residual
        # block; tensor2tensor joins them.
        self.joining = (
            nn.Linear(2 * stream, stream) if config.stacking == "joined" else None
        )
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(config, dilation) for dilation in config.decoder_dilations
        )
        # Section 3.1 of the first version has one more map and ReLU before the output.
        # It does not give the width; here it is that of the stream.
        self.last = nn.Linear(stream, stream)
        self.output = nn.Linear(stream, config.num_target_tokens)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next token of the target."""
        return self.logits(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> UnfoldedSource:
        """Encode sources, padded with id 0, at `unfolding` times as many positions."""
        # Unlike Kalchbrenner et al. (2017): sources are not padded to a multiple of 50
        # characters, so that the encoding depends on the source alone.
        lengths = (source != PAD).sum(dim=1)
        unfolded = (lengths.double() * self.config.unfolding).ceil().long()
        longest = int(unfolded.max()) if len(unfolded) else 0
        width = max(longest, source.size(1))
        position = torch.arange(width, device=source.device)
        mask = position < lengths[:, None]
        is_inside = (position < unfolded[:, None])[..., None]
        ids = functional.pad(source, (0, width - source.size(1)), value=PAD)
        x = self.source_embedding(ids).masked_fill(~mask[..., None], 0.0)
        for block in self.encoder_blocks:
            x = block(x, is_inside)
        states = x.masked_fill(~is_inside, 0.0)
        return UnfoldedSource(states=states, mask=mask[:, None, None])

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: UnfoldedSource
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions."""
        missing = target_in.size(1) - memory.states.size(1)
        # A negative number cuts off positions.
        below = functional.pad(memory.states, (0, 0, 0, missing))
        x = self._stacked(self.target_embedding(target_in), below)
        for block in self.decoder_blocks:
            x = block(x)
        return self._last_states(x)

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states."""
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
        """No modules, as there is no attention."""
        return []

    def start(self, memory: UnfoldedSource) -> CachedState:
        """Return the state before the first step: all earlier inputs are zeros."""
        sentences, states = len(memory.states), memory.states
        hypotheses = {"position": states.new_zeros(sentences, 1, dtype=torch.int64)}
        for number, block in enumerate(self._decoder_blocks):
            shape = (sentences, 1, block.num_past, self.config.d_hidden)
            hypotheses[past_name(number)] = states.new_zeros(shape)
        return CachedState(
            memory_mask=memory.mask, memory={"states": states}, hypotheses=hypotheses
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        states, hypotheses = state.memory["states"], state.hypotheses
        position = hypotheses["position"]
        last = states.size(1) - 1
        # The hypotheses of a sentence are at the same position.
        first = position[:, :1, None]
        index = first.clamp(max=last).expand(-1, -1, states.size(2))
        below = states.gather(1, index).masked_fill(first > last, 0.0)
        x = self._stacked(self.target_embedding(last_ids), below)
        hypotheses["position"] = position + 1
        for number, block in enumerate(self._decoder_blocks):
            name = past_name(number)
            x, hypotheses[name] = block.step(x, hypotheses[name])
        return self.logits(self._last_states(x))

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
        num_target = int(target_lengths.sum())
        num_unfolded = int(np.ceil(source_lengths * self.config.unfolding).sum())
        encoder = num_matrix_elements(self.encoder_blocks)
        parts = (self.joining, self.decoder_blocks, self.last, self.output)
        decoder = sum(map(num_matrix_elements, parts))
        return FORWARDS_PER_UPDATE * 2 * (num_unfolded * encoder + num_target * decoder)

    def _stacked(
        self,
        embedded: Float[Tensor, "batch rows d_model"],
        below: Float[Tensor, "#batch #rows d_model"],
    ) -> Float[Tensor, "batch rows d_model"]:
        """Return the decoder's input from the target and the encoder's output."""
        if self.joining is None:
            return embedded + below
        both = torch.cat([embedded, below.expand_as(embedded)], dim=-1)
        joined: Tensor = self.joining(both)
        return joined

    def _last_states(
        self, x: Float[Tensor, "batch rows d_model"]
    ) -> Float[Tensor, "batch rows d_model"]:
        return functional.relu(self.last(x))

    @property
    def _decoder_blocks(self) -> list[DecoderBlock]:
        return [each for each in self.decoder_blocks if isinstance(each, DecoderBlock)]
