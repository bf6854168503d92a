"""Configurations of the architectures, without PyTorch.

`config.json` of a model folder names the architecture, and `CONFIGS` the class of its
settings. To add an architecture, add its config here, a case to `checkpoint.build`, and
a module that implements `interface.TransductionModel`. Its `num_parameters` is a
formula, so that `transduce presets` needs no PyTorch; tests compare it with the model.
"""

import re
from dataclasses import Field, dataclass, field, fields, replace
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    cast,
    runtime_checkable,
)

from transduce.errors import ConfigError, RequestError
from transduce.model.config import (
    MAX_LAYERS,
    MAX_WIDTH,
    InnerWidth,
    ModelConfig,
    Norm,
    NumLayers,
    NumPositions,
    Positions,
    VocabSize,
    Width,
    count_parameters,
)
from transduce.settings import Bounds, Rate, convert_and_check, require_between, shown

TRANSFORMER = "transformer"
"""Architecture of folders that name none."""


@runtime_checkable
class ArchitectureConfig(Protocol):
    """Settings that the models of all architectures have: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    has_cross_attention: ClassVar[bool]
    """Whether the decoder attends to the source, so that models have
    `TransductionModel.cross_attention_taps`."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary of the source, and of the target if that has none of
        its own."""
        ...

    @property
    def target_vocab_size(self) -> int | None:
        """Size of the target's own vocabulary; None if both sides share one."""
        ...

    @property
    def d_model(self) -> int:
        """Width of the decoder's states, on which the learning rate depends."""
        ...


class RivalConfig(ArchitectureConfig, Protocol):
    """Settings of an architecture other than the Transformer."""

    @property
    def dropout(self) -> float:
        """Dropout rate; each architecture drops elements at places of its own."""
        ...

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        ...


InitialRange = Annotated[float, Bounds(1e-6, 10)]
Cell = Literal["lstm", "gru"]
AttentionFunction = Literal["additive", "normed-additive", "general", "tanh-product"]
AttentionQuery = Literal["previous", "current"]
Readout = Literal["state", "attentional", "maxout"]
InitialState = Literal["zero", "encoder", "projected"]
InitialWeights = Literal["uniform", "orthogonal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """Settings of a recurrent model; the defaults are near GNMT's (Wu et al., 2016).

    RNNsearch (Bahdanau et al., 2015) and the model of Luong et al. (2015) are other
    values of the same settings.
    """

    has_cross_attention: ClassVar[bool] = True

    vocab_size: VocabSize = 32_000
    """Size of the vocabulary, as the tokenizer has learned it."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary. None for a shared vocabulary."""
    cell: Cell = "lstm"
    """Kind of the recurrent layers: lstm, or gru as in RNNsearch."""
    encoder_layers: NumLayers = 8
    """Number of layers of the encoder."""
    decoder_layers: NumLayers = 8
    """Number of layers of the decoder."""
    d_model: Width = 1024
    """Width of the states of all layers, in each direction."""
    embedding_width: Width | None = None
    """Width of the embeddings. None for `d_model`."""
    attention_width: Width | None = None
    """Width of the hidden layer of attention. None for `d_model`."""
    readout_width: Width | None = None
    """Width of the vectors that the output matrix is multiplied by, for the readouts
    attentional and maxout. None for `d_model`."""
    bidirectional: bool = True
    """Whether the lowest layer of the encoder reads the source in both directions. The
    layers above read it forwards."""
    attention: AttentionFunction = "additive"
    """Score of a query q and a source state k. additive: v tanh(W q + U k) (Bahdanau et
    al., 2015); normed-additive: with g v/|v| in place of v, and a bias inside the tanh
    (tensorflow/nmt); general: q W k (Luong et al., 2015); tanh-product: v (tanh(W q)
    tanh(U k)) (Shazeer et al., 2017)."""
    attention_query: AttentionQuery = "previous"
    """Token whose decoder state is the query of attention. previous: the token before,
    so that the context is an input of all layers of the decoder (RNNsearch, GNMT);
    current: the same token, so that all layers but the lowest run over whole sequences
    (gnmt_v2 of tensorflow/nmt)."""
    input_feeding: bool = True
    """Whether the lowest layer of the decoder also reads the previous token's context
    (gnmt_v2) or attentional vector (Luong et al., 2015, section 3.3). Without, it runs
    over whole sequences. With the query previous, the lowest layer always reads a
    context, and this has no effect."""
    readout: Readout = "state"
    """Vector that the output matrix is multiplied by. state: the top layer's state; the
    lowest layer's state is the query, and the layers above read the context beside
    their input (GNMT). attentional: tanh(W [context; state]) of the top layer's state,
    which is the query (Luong et al., 2015). maxout: a maxout layer over the previous
    state, the embedding and the context (RNNsearch)."""
    residual_from: int | None = None
    """Number of the first layer, counted from 1, with a residual connection; 3 in GNMT.
    None for no residual connections."""
    initial_state: InitialState = "zero"
    """First state of each layer of the decoder. zero; encoder: the last state of the
    encoder's layer of the same number (Luong et al., 2015; tensorflow/nmt); projected:
    tanh(W h) of the lowest encoder layer's backward state at the first token
    (RNNsearch)."""
    dropout: Rate = 0.2
    """Dropout rate of the inputs of all layers, contexts included; none inside the
    recurrence (Zaremba et al., 2014)."""
    shared_embedding: bool = False
    """Whether source and target have one embedding, if they share the vocabulary."""
    tied_output: bool = False
    """Whether the output matrix is the target's embedding."""
    initial_weights: InitialWeights = "uniform"
    """Distribution of the initial weights. uniform: in plus or minus `initial_range`;
    orthogonal: as in RNNsearch, with orthogonal recurrent matrices and the others
    normal with standard deviation 0.01, those of attention 0.001."""
    initial_range: InitialRange = 0.04
    """Largest absolute value of initial weights that are uniform."""
    forget_bias: Annotated[float, Bounds(-100, 100)] = 0.0
    """First bias of the forget gates of LSTMs; 1 in tensorflow/nmt."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        self._check_layers()
        self._check_readout()

    def _check_layers(self) -> None:
        # Below, a layer's input and output differ in width and cannot be added.
        minimum = 3 if self.bidirectional else 2
        require_between("model.residual_from", self.residual_from, minimum, 10_000)
        if self.initial_state == "projected" and not self.bidirectional:
            raise ConfigError(
                "`model.bidirectional` must be true if `model.initial_state` is "
                '"projected", but is false.'
            )
        if (
            self.initial_state == "encoder"
            and self.decoder_layers != self.encoder_layers
        ):
            raise ConfigError(
                "`model.decoder_layers` must equal `model.encoder_layers` if "
                '`model.initial_state` is "encoder", but is '
                f"{self.decoder_layers} and not {self.encoder_layers}."
            )

    def _check_readout(self) -> None:
        if self.readout == "attentional" and self.attention_query == "previous":
            raise ConfigError(
                '`model.attention_query` must be "current" if `model.readout` is '
                '"attentional", but is "previous".'
            )
        if self.readout == "maxout" and self.decoder_layers > 1:
            raise ConfigError(
                '`model.decoder_layers` must be 1 if `model.readout` is "maxout", but '
                f"is {self.decoder_layers}."
            )
        if (
            self.readout == "state"
            and self.attention_query == "current"
            and self.decoder_layers == 1
        ):
            raise ConfigError(
                "`model.decoder_layers` must be at least 2 if `model.readout` is "
                '"state" and `model.attention_query` is "current", but is 1: no layer '
                "would read the context."
            )
        width, embedding = self.output_width, self.embedding_width or self.d_model
        if self.tied_output and width != embedding:
            raise ConfigError(
                "`model.tied_output` must be false unless embeddings and readout are "
                f"equally wide, but they are {embedding} and {width} wide."
            )

    @property
    def output_width(self) -> int:
        """Width of the vectors that the output matrix is multiplied by."""
        if self.readout == "state":
            return self.d_model
        return self.readout_width or self.d_model

    @property
    def memory_width(self) -> int:
        """Width of the encoder's output, and of contexts."""
        only_bidirectional = self.bidirectional and self.encoder_layers == 1
        return 2 * self.d_model if only_bidirectional else self.d_model

    @property
    def fed_width(self) -> int:
        """Width of the lowest decoder layer's input beside the embedding."""
        if self.attention_query == "previous":
            return self.memory_width
        if not self.input_feeding:
            return 0
        return self.output_width if self.readout == "attentional" else self.memory_width

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        return (
            self._num_embeddings
            + self._num_encoder
            + self._num_decoder
            + self._num_attention
            + self._num_readout
        )

    @property
    def _num_embeddings(self) -> int:
        embedding = self.embedding_width or self.d_model
        target = self.target_vocab_size or self.vocab_size
        shared = self.shared_embedding and self.target_vocab_size is None
        count = self.vocab_size * embedding
        count += 0 if shared else target * embedding
        return count + (0 if self.tied_output else target * self.output_width)

    def _num_layer(self, inputs: int) -> int:
        """Number of parameters of a layer: of each gate, two matrices and biases."""
        gates = 4 if self.cell == "lstm" else 3
        return gates * self.d_model * (inputs + self.d_model + 2)

    @property
    def _num_encoder(self) -> int:
        directions = 2 if self.bidirectional else 1
        count = directions * self._num_layer(self.embedding_width or self.d_model)
        if self.encoder_layers > 1:
            count += self._num_layer(directions * self.d_model)
            count += (self.encoder_layers - 2) * self._num_layer(self.d_model)
        return count

    @property
    def _num_decoder(self) -> int:
        embedding = self.embedding_width or self.d_model
        context = self.memory_width if self.readout == "state" else 0
        count = self._num_layer(embedding + self.fed_width)
        return count + (self.decoder_layers - 1) * self._num_layer(
            self.d_model + context
        )

    @property
    def _num_attention(self) -> int:
        width = self.attention_width or self.d_model
        if self.attention == "general":
            return self.d_model * self.memory_width
        count = width * (self.d_model + self.memory_width + 1)
        return count + (width + 1 if self.attention == "normed-additive" else 0)

    @property
    def _num_readout(self) -> int:
        count = 0
        if self.readout == "attentional":
            count = self.output_width * (self.memory_width + self.d_model)
        if self.readout == "maxout":
            embedding = self.embedding_width or self.d_model
            inputs = self.d_model + embedding + self.memory_width
            count = 2 * self.output_width * (inputs + 1)
        if self.initial_state == "projected":
            count += self.decoder_layers * self.d_model * (self.d_model + 1)
        return count


FastForward = Literal["half", "full", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepAttConfig:
    """Settings of Deep-Att (Zhou et al. 2016); the defaults are that paper's sizes."""

    has_cross_attention: ClassVar[bool] = True

    vocab_size: VocabSize = 80_000
    """Size of the vocabulary, as the tokenizer has learned it. It is shared by
    source and target, as is their embedding."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary, for the symbols of a parser's trees. None
    for a shared vocabulary."""
    embedding_width: Width = 256
    """Dimension of the embeddings."""
    d_model: Width = 512
    """Number of cells of an LSTM layer, and width of the attention's hidden layer."""
    encoder_layers: NumLayers = 9
    """Number of LSTM layers of each column of the encoder."""
    decoder_layers: NumLayers = 7
    """Number of LSTM layers of the decoder."""
    columns: Annotated[int, Bounds(1, 2)] = 2
    """Number of columns of the encoder, 1 or 2, that begin in opposite directions."""
    interleaved: bool = True
    """Whether the direction of a column alternates from layer to layer. If not, all
    layers of the first column read forwards, and those of the second backwards."""
    fast_forward: FastForward = "half"
    """Part of the feed-forward vector of a layer that the next layer takes beside the
    layer's output: its first half, all of it ("full") or none."""
    dropout: Rate = 0.1
    """Dropout rate of the outputs of LSTM layers, but for those of the encoder's top
    layers."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        if self.d_model % 4:
            raise ConfigError(
                "`model.d_model` must be a multiple of 4, as the context has a quarter "
                f"of the width of the encoder's top vectors, but is {self.d_model}."
            )

    @property
    def fast_forward_width(self) -> int:
        """Width of the part of a feed-forward vector that the next layer takes."""
        return {"half": 2, "full": 4, "none": 0}[self.fast_forward] * self.d_model

    @property
    def top_width(self) -> int:
        """Width of the joined top vectors: an output and a feed-forward vector of each
        column."""
        return self.columns * 5 * self.d_model

    @property
    def context_width(self) -> int:
        """Width of the context, a quarter of the joined top vectors."""
        return self.top_width // 4

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        h, gates = self.d_model, 4 * self.d_model

        def stack(inputs: int, layers: int) -> int:
            upper = self.fast_forward_width + h
            inputs += (layers - 1) * upper
            return (inputs + layers * (h + 1)) * gates

        target = self.target_vocab_size or 0
        embeddings = (self.vocab_size + target) * self.embedding_width
        encoder = self.columns * stack(self.embedding_width, self.encoder_layers)
        context = (self.top_width + 1) * self.context_width
        attention = (self.context_width + 1) * h + h * h + h
        decoder = stack(self.embedding_width + self.context_width, self.decoder_layers)
        output = (h + 1) * (target or self.vocab_size)
        return embeddings + encoder + context + attention + decoder + output


MAX_KERNEL = 1_000


class Convolution(NamedTuple):
    """Sizes of a convolutional block."""

    width: int
    """Number of outputs at a position."""
    kernel: int
    """Number of positions that an output depends on."""


def convolutions(name: str, blocks: str) -> tuple[Convolution, ...]:
    """Parse blocks such as "9x512k3,2x2048k1": 9 of width 512 and kernel 3, then 2.

    Raises `ConfigError`, with the name of the setting, if they are written otherwise.
    """
    found: list[Convolution] = []
    for part in blocks.split(","):
        match = re.fullmatch(r"(?:(\d{1,9})x)?(\d{1,9})k(\d{1,9})", part.strip())
        if match is None:
            raise ConfigError(
                f"`model.{name}` must be blocks as in 9x512k3,2x2048k1 (9 of width 512 "
                f"and kernel 3, then 2), but is {shown(blocks)}."
            )
        count, width, kernel = (int(number or 1) for number in match.groups())
        for size, number, largest in (
            ("number of blocks", len(found) + count, MAX_LAYERS),
            ("width", width, MAX_WIDTH),
            ("kernel", kernel, MAX_KERNEL),
        ):
            if not 1 <= number <= largest or count == 0:
                raise ConfigError(
                    f"The {size} in `model.{name}` must be from 1 to {largest:,}, but "
                    f"is {0 if count == 0 else number:,}."
                )
        found += [Convolution(width, kernel)] * count
    return tuple(found)


def normalized_map(inputs: int, outputs: int) -> int:
    """Number of parameters of a linear map with weight normalization."""
    return (inputs + 2) * outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalConfig:
    """Settings of ConvS2S (Gehring et al., 2017); the defaults are near those of its
    code for English to German."""

    has_cross_attention: ClassVar[bool] = True

    vocab_size: VocabSize = 40_000
    """Size of the vocabulary, as the tokenizer has learned it."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary, for the symbols of a parser's trees. None
    for a shared vocabulary."""
    encoder_blocks: str = "9x512k3,4x1024k3,2x2048k1"
    """Convolutional blocks of the encoder: number, width and kernel of each run of
    equal blocks."""
    decoder_blocks: str | None = None
    """Convolutional blocks of the decoder, each with attention. None for those of the
    encoder."""
    d_embedding: Width = 768
    """Dimension of the embeddings and of attention."""
    d_output: Width | None = None
    """Dimension of the decoder's outputs. None for that of the embeddings."""
    shared_embedding: bool = False
    """Whether source, target and output share one matrix, as in the Transformer."""
    max_positions: NumPositions = 1024
    """Number of learned positional embeddings of either side; later positions share
    the last one."""
    dropout: Rate = 0.2
    """Dropout rate of embeddings, of the inputs of convolutions, and of the decoder's
    outputs."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        self.encoder_convolutions  # noqa: B018 # raises if they are written otherwise
        self.decoder_convolutions  # noqa: B018
        if self.shared_embedding and self.d_embedding != self.d_model:
            raise ConfigError(
                "`model.d_output` must be none or `model.d_embedding`, "
                f"{self.d_embedding}, if the embedding is shared, but is "
                f"{self.d_output}."
            )
        if self.shared_embedding and self.target_vocab_size is not None:
            raise ConfigError(
                "`model.shared_embedding` must be false if the target has a vocabulary "
                "of its own, but is true."
            )

    @property
    def encoder_convolutions(self) -> tuple[Convolution, ...]:
        """Sizes of the encoder's blocks."""
        return convolutions("encoder_blocks", self.encoder_blocks)

    @property
    def decoder_convolutions(self) -> tuple[Convolution, ...]:
        """Sizes of the decoder's blocks."""
        if self.decoder_blocks is None:
            return self.encoder_convolutions
        return convolutions("decoder_blocks", self.decoder_blocks)

    @property
    def d_model(self) -> int:
        """Dimension of the decoder's outputs."""
        return self.d_output or self.d_embedding

    @property
    def num_target_tokens(self) -> int:
        """Size of the target's vocabulary."""
        return self.target_vocab_size or self.vocab_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters: embeddings, and weights, gains and biases of maps."""
        tables = self.vocab_size + 2 * self.max_positions
        if self.shared_embedding:
            output = self.vocab_size  # the biases
        else:
            tables += self.num_target_tokens
            output = normalized_map(self.d_model, self.num_target_tokens)
        encoder, decoder = self.encoder_convolutions, self.decoder_convolutions
        attention = sum(
            normalized_map(block.width, self.d_embedding)
            + normalized_map(self.d_embedding, block.width)
            for block in decoder
        )
        return (
            tables * self.d_embedding
            + self._maps(encoder, self.d_embedding)
            + self._maps(decoder, self.d_model)
            + attention
            + output
        )

    def _maps(self, blocks: tuple[Convolution, ...], d_output: int) -> int:
        """Number of parameters of blocks, and of the maps before and after them."""
        first, last = blocks[0].width, blocks[-1].width
        count = normalized_map(self.d_embedding, first) + normalized_map(last, d_output)
        for before, block in pairwise((Convolution(first, 1), *blocks)):
            count += normalized_map(block.kernel * before.width, 2 * block.width)
            if before.width != block.width:
                count += normalized_map(before.width, block.width)
        return count


Stacking = Literal["added", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteNetConfig:
    """Settings of ByteNet (Kalchbrenner et al., 2016); the defaults are that paper's
    for English to German."""

    has_cross_attention: ClassVar[bool] = False

    vocab_size: VocabSize = 700
    """Size of the vocabulary, as the tokenizer has learned it."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary, for the symbols of a parser's trees. None
    for a shared vocabulary."""
    num_blocks: NumLayers = 30
    """Number of residual blocks of the encoder."""
    decoder_blocks: NumLayers | None = None
    """Number of residual blocks of the decoder. None for as many as the encoder."""
    d_hidden: Annotated[int, Bounds(1, MAX_WIDTH // 2)] = 800
    """Width d within residual blocks; between them it is 2d."""
    kernel: Annotated[int, Bounds(1, MAX_KERNEL)] = 3
    """Number of positions that an output of a convolution depends on."""
    largest_dilation: Annotated[int, Bounds(1, 2**20)] = 16
    """Dilation of a round's last block. It doubles from 1 on from block to block; then
    the next round begins at 1."""
    unfolding: Annotated[float, Bounds(1, 100)] = 1.2
    """Length of the encoder's output relative to the source. Later positions of the
    target depend on the target alone."""
    stacking: Stacking = "added"
    """Input of the decoder at a position: the sum of the encoder's output and the
    embedding of the target (added), or a linear map of both side by side (joined)."""
    dropout: Rate = 0.0
    """Dropout rate of the outputs of residual blocks, before the sum. The paper has
    none for translation."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        if self.largest_dilation & (self.largest_dilation - 1):
            raise ConfigError(
                "`model.largest_dilation` must be a power of two, as dilations double, "
                f"but is {self.largest_dilation}."
            )

    @property
    def d_model(self) -> int:
        """Width 2d of the decoder's states."""
        return 2 * self.d_hidden

    @property
    def num_target_tokens(self) -> int:
        """Size of the target's vocabulary."""
        return self.target_vocab_size or self.vocab_size

    @property
    def encoder_dilations(self) -> tuple[int, ...]:
        """Dilation of each block of the encoder."""
        return self._dilations(self.num_blocks)

    @property
    def decoder_dilations(self) -> tuple[int, ...]:
        """Dilation of each block of the decoder."""
        return self._dilations(self.decoder_blocks or self.num_blocks)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        d, stream = self.d_hidden, self.d_model
        norms = 2 * (stream + 2 * d)
        maps = (stream + 1) * d + (self.kernel * d + 1) * d + (d + 1) * stream
        blocks = len(self.encoder_dilations) + len(self.decoder_dilations)
        joining = (2 * stream + 1) * stream if self.stacking == "joined" else 0
        embeddings = (self.vocab_size + self.num_target_tokens) * stream
        output = (stream + 1) * (stream + self.num_target_tokens)
        return embeddings + blocks * (norms + maps) + joining + output

    def _dilations(self, count: int) -> tuple[int, ...]:
        rounds = self.largest_dilation.bit_length()
        return tuple(2 ** (number % rounds) for number in range(count))


Gating = Literal["noisy-top-k", "batchwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Settings of a mixture of experts (Shazeer et al., 2017)."""

    num_experts: Annotated[int, Bounds(1, 2**20)] = 32
    """Number of experts of a layer."""
    num_groups: int | None = None
    """Number of groups of a hierarchical mixture, where gates choose groups and then
    experts of these (appendix B). None for one level of gates."""
    top_k: Annotated[int, Bounds(1, 64)] = 4
    """Number of experts that a token goes to; in a hierarchical mixture, of groups and
    of experts in each of these groups. With batchwise gating it is the mean."""
    d_ff: InnerWidth = 2048
    """Inner dimension of each expert."""
    gating: Gating = "noisy-top-k"
    """Choice of experts in training: the k largest logits with noise (section 2.1), or
    as many tokens of the batch for each expert, with learned thresholds in decoding
    (appendix F)."""
    importance_weight: Annotated[float, Bounds(0, 1_000)] = 0.01
    """Weight of the loss of unequal importance, the sum of an expert's gates (section
    4). The default is that of translation (appendix E)."""
    load_weight: Annotated[float, Bounds(0, 1_000)] = 0.01
    """Weight of the loss of unequal load, the number of an expert's tokens (appendix
    A). It has no effect on batchwise gating, whose loads are equal."""

    def __post_init__(self) -> None:
        where = "model.experts"
        convert_and_check(self, f"{where}.")
        require_between(f"{where}.num_groups", self.num_groups, 2, self.num_experts)
        if self.num_experts % (self.num_groups or 1):
            raise ConfigError(
                f"`{where}.num_experts` must be a multiple of the {self.num_groups} "
                f"groups, but is {self.num_experts}; change it or "
                f"`{where}.num_groups`."
            )
        fewest = min(choices for _, choices in self.levels)
        if self.top_k > fewest:
            kind = "groups or of experts in each" if self.num_groups else "experts"
            raise ConfigError(
                f"`{where}.top_k` must be at most {fewest}, the number of {kind}, but "
                f"is {self.top_k}."
            )

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Number of parents and of choices for each, of every level of gates."""
        if self.num_groups is None:
            return [(1, self.num_experts)]
        groups = self.num_groups
        return [(1, groups), (groups, self.num_experts // groups)]

    @property
    def experts_per_token(self) -> int:
        """Number of experts that compute a token, with batchwise gating on average."""
        return int(self.top_k ** len(self.levels))

    def num_parameters(self, d_model: int) -> int:
        """Return the number of parameters of a layer of this width."""
        choices = sum(parents * choices for parents, choices in self.levels)
        # Beside the matrix of the gates, noisy gates have another one, of the noise,
        # and batchwise gates have thresholds.
        gates = choices * (2 * d_model if self.gating == "noisy-top-k" else d_model + 1)
        return gates + 2 * self.num_experts * d_model * self.d_ff

    def operations(self, d_model: int) -> int:
        """Return the multiply-adds of a layer for one token in training."""
        noise = 2 if self.gating == "noisy-top-k" else 1
        gates = sum(
            noise * self.top_k**depth * choices * d_model
            for depth, (_, choices) in enumerate(self.levels)
        )
        return gates + 2 * self.experts_per_token * d_model * self.d_ff


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureTransformerConfig:
    """Settings of a Transformer whose feed-forward networks are mixtures of experts."""

    # Not a subclass of `ModelConfig`, which the native library and exports accept.

    has_cross_attention: ClassVar[bool] = True

    vocab_size: int = 37_000
    """Size of the vocabulary, as the tokenizer has learned it. It is shared by
    source and target, as is their embedding."""
    target_vocab_size: int | None = None
    """Size of a separate target vocabulary. None for a shared vocabulary."""
    num_layers: int = 6
    """Number of layers N of the encoder and of the decoder."""
    decoder_layers: int | None = None
    """Number of layers of the decoder. None for as many as the encoder."""
    d_model: int = 512
    """Dimension of the embeddings and of the outputs of all sub-layers."""
    num_heads: int = 8
    """Number of attention heads h."""
    d_k: int = 64
    """Dimension of the queries and keys of one head."""
    d_v: int = 64
    """Dimension of the values of one head."""
    dropout: float = 0.1
    """Dropout rate P_drop of sub-layer outputs and of embeddings."""
    attention_dropout: float = 0.0
    """Dropout rate of attention weights."""
    positions: Positions = "sinusoidal"
    """Positional encoding: sinusoids or learned embeddings."""
    max_positions: int = 1024
    """Number of learned positional embeddings; later positions share the last one.
    Sinusoids have no limit."""
    norm: Norm = "post"
    """Place of layer normalization: after the residual sum (post), or before the
    sub-layer (pre)."""
    norm_epsilon: float = 1e-6
    """Constant in the denominator of layer normalization."""
    experts: ExpertsConfig = field(default_factory=lambda: ExpertsConfig(top_k=2))
    """Mixture of experts in place of each feed-forward network."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        _ = self.transformer  # checks the bounds of the settings that both have

    @property
    def transformer(self) -> ModelConfig:
        """Settings of the same Transformer with one expert in each layer."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        experts: ExpertsConfig = own.pop("experts")
        return ModelConfig(d_ff=experts.d_ff, **own)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        counts = count_parameters(self.transformer)
        num_mixtures = self.num_layers + self.transformer.num_decoder_layers
        mixtures = num_mixtures * self.experts.num_parameters(self.d_model)
        return counts.total - counts.feed_forward + mixtures


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRecurrentConfig:
    """Settings of LSTMs with mixtures of experts between them.

    The defaults are the sizes of Shazeer et al. (2017), appendix E, with 32 experts.
    """

    has_cross_attention: ClassVar[bool] = True

    vocab_size: VocabSize = 32_000
    """Size of the vocabulary, as the tokenizer has learned it."""
    target_vocab_size: VocabSize | None = None
    """Size of a separate target vocabulary. None for a shared vocabulary."""
    d_model: Width = 512
    """Width of embeddings, of the inputs and outputs of all layers, and of
    attention."""
    cells: int = 2048
    """Number of cells of each LSTM, whose outputs are projected to `d_model` (Sak et
    al., 2014)."""
    encoder_layers: Annotated[int, Bounds(3, MAX_LAYERS)] = 3
    """Number of LSTMs of the encoder. The first two read the embeddings, forwards and
    backwards; the mixture is above them."""
    decoder_layers: Annotated[int, Bounds(2, MAX_LAYERS)] = 2
    """Number of LSTMs of the decoder. The mixture is above the first one, which attends
    to the source."""
    dropout: Rate = 0.4
    """Dropout rate of the outputs of embeddings, LSTMs and mixtures."""
    shared_embedding: bool = False
    """Whether source and target have one embedding, if they share the vocabulary."""
    tied_output: bool = False
    """Whether the output matrix is the target's embedding."""
    initial_range: InitialRange = 0.04
    """Weights of embeddings, LSTMs and attention are first uniform in plus or minus
    this range, as in GNMT (Wu et al., 2016). Biases are zero."""
    experts: ExpertsConfig = field(
        default_factory=lambda: ExpertsConfig(gating="batchwise")
    )
    """The mixtures of experts: one in the encoder, one in the decoder."""

    def __post_init__(self) -> None:
        convert_and_check(self, "model.")
        # PyTorch projects to fewer outputs than cells.
        require_between("model.cells", self.cells, self.d_model + 1, 2 * MAX_WIDTH)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        width, num_targets = self.d_model, self.target_vocab_size or self.vocab_size
        num_rows = self.vocab_size
        if not (self.shared_embedding and self.target_vocab_size is None):
            num_rows += num_targets  # the target's embedding
        if not self.tied_output:
            num_rows += num_targets
        num_lstms = self.encoder_layers + self.decoder_layers
        # The decoder's first LSTM also reads the context.
        matrices = num_lstms * self.lstm_operations(width) + 4 * self.cells * width
        return (
            num_rows * width
            + matrices
            + num_lstms * 8 * self.cells  # two vectors of biases of four gates
            + 2 * width**2  # attention
            + width
            + 2 * self.experts.num_parameters(width)
        )

    def lstm_operations(self, input_width: int) -> int:
        """Return the multiply-adds of an LSTM for one token."""
        return self.cells * (4 * (input_width + self.d_model) + self.d_model)

    @property
    def source_operations(self) -> int:
        """Multiply-adds for each source token, beside scores and contexts."""
        lstms = self.encoder_layers * self.lstm_operations(self.d_model)
        return lstms + self.experts.operations(self.d_model) + self.d_model**2

    @property
    def target_operations(self) -> int:
        """Multiply-adds for each target token, beside scores and contexts.

        The first LSTM also reads the context.
        """
        width = self.d_model
        lstms = self.decoder_layers * self.lstm_operations(width)
        output = (self.target_vocab_size or self.vocab_size) * width
        mixture = self.experts.operations(width)
        return lstms + 4 * self.cells * width + mixture + width**2 + output


CONFIGS: dict[str, type[ArchitectureConfig]] = {
    TRANSFORMER: ModelConfig,
    "recurrent": RecurrentConfig,
    "deep-att": DeepAttConfig,
    "convolutional": ConvolutionalConfig,
    "bytenet": ByteNetConfig,
    "mixture-recurrent": MixtureRecurrentConfig,
    "mixture-transformer": MixtureTransformerConfig,
}
"""Class of the settings of each architecture, by its name in `config.json`."""


def architecture_of(config: ArchitectureConfig) -> str:
    """Return the name of an architecture by the class of its settings."""
    [name] = [name for name, known in CONFIGS.items() if type(config) is known]
    return name


def num_parameters(config: ArchitectureConfig) -> int:
    """Return the number of parameters of a model, each counted once."""
    if isinstance(config, ModelConfig):
        return count_parameters(config).total
    return cast(RivalConfig, config).num_parameters


def num_positions(config: ArchitectureConfig) -> int | None:
    """Return the number of learned positions of a model; None if it has none."""
    match config:
        case ModelConfig() | MixtureTransformerConfig():
            return config.max_positions if config.positions == "learned" else None
        case ConvolutionalConfig():
            return config.max_positions
        case _:
            return None


WIDTHS = (
    *("d_model", "d_ff", "d_k", "d_v", "d_hidden", "d_embedding", "d_output", "cells"),
    *("embedding_width", "attention_width", "readout_width"),
)
"""Settings of the architectures that are widths."""


def scaled(config: ArchitectureConfig, factor: float) -> ArchitectureConfig:
    """Multiply all widths of a model by a factor, and round them to multiples of 4.

    Numbers of layers and heads, kernel widths and rates stay.
    """

    def width(before: int) -> int:
        return max(4 * round(before * factor / 4), 4)

    settings = {each.name: getattr(config, each.name) for each in fields(config)}
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, ExpertsConfig):
            changes[name] = replace(value, d_ff=width(value.d_ff))
        elif name in WIDTHS and value is not None:
            changes[name] = width(value)
        elif isinstance(value, str) and name in ("encoder_blocks", "decoder_blocks"):
            changes[name] = re.sub(
                r"\d+(?=k)", lambda found: str(width(int(found[0]))), value
            )
    return replace(config, **changes)


def require_transformer(
    config: ArchitectureConfig, task: str, remedy: str = "choose another model"
) -> ModelConfig:
    """Return the settings of a Transformer; raise `RequestError` for others.

    The message begins with the task and ends with the remedy.
    """
    if isinstance(config, ModelConfig):
        return config
    raise RequestError(
        f"{task} must have a Transformer, but the architecture of the model is "
        f'"{architecture_of(config)}"; {remedy}.'
    )
