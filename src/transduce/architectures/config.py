"""Configurations of the architectures, without PyTorch.

`config.json` of a model folder names the architecture, and `CONFIGS` the class of its
settings. To add an architecture, add its config here, a case to `models.build`, and a
module that implements `models.TransductionModel`. Its `num_parameters` is a formula, so
that `transduce presets` needs no PyTorch; tests hold it against the model.
"""

from dataclasses import Field, dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, get_args, runtime_checkable

from transduce.errors import ConfigError, RequestError
from transduce.model.config import ModelConfig
from transduce.model.sizes import count_parameters
from transduce.settings import require_between

TRANSFORMER = "transformer"
"""Architecture of folders that name none."""


@runtime_checkable
class ArchitectureConfig(Protocol):
    """Settings that the models of all architectures have: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def vocab_size(self) -> int:
        """Number of source tokens; of target tokens too, without
        `target_vocab_size`."""
        ...

    @property
    def target_vocab_size(self) -> int | None:
        """Number of target tokens, if the target has a vocabulary of its own."""
        ...

    @property
    def d_model(self) -> int:
        """Width of the decoder's states, on which the learning rate depends."""
        ...


class RivalConfig(ArchitectureConfig, Protocol):
    """Settings of an architecture other than the Transformer."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a model with these settings."""
        ...


FastForward = Literal["half", "full", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepAttConfig:
    """Settings of Deep-Att (Zhou et al. 2016); the defaults are that paper's sizes."""

    vocab_size: int = 80_000
    """Size of the vocabulary, which is that of the learned tokenizer. It is shared by
    source and target, as is their embedding."""
    target_vocab_size: int | None = None
    """Size of a separate target vocabulary, for the symbols of a parser's trees. None
    for a shared vocabulary."""
    embedding_width: int = 256
    """Dimension of the embeddings."""
    d_model: int = 512
    """Number of cells of an LSTM layer, and width of the attention's hidden layer."""
    encoder_layers: int = 9
    """Number of LSTM layers of each column of the encoder."""
    decoder_layers: int = 7
    """Number of LSTM layers of the decoder."""
    columns: int = 2
    """Number of columns of the encoder, 1 or 2, that begin in opposite directions."""
    interleaved: bool = True
    """Whether the direction of a column alternates from layer to layer. If not, all
    layers of the first column read forwards, and those of the second backwards."""
    fast_forward: FastForward = "half"
    """Part of the feed-forward vector of a layer that the next layer takes beside the
    layer's output: its first half, all of it ("full") or none."""
    dropout: float = 0.1
    """Dropout rate of the outputs of LSTM layers."""

    def __post_init__(self) -> None:
        for name, largest in DEEP_ATT_MAX.items():
            require_between(f"model.{name}", getattr(self, name), 1, largest)
        if self.d_model % 4:
            raise ConfigError(
                "`model.d_model` must be a multiple of 4, as the context has a quarter "
                f"of the width of the encoder's top vectors, but is {self.d_model}."
            )
        if self.fast_forward not in get_args(FastForward):
            raise ConfigError(
                '`model.fast_forward` must be "half", "full" or "none", but is '
                f'"{self.fast_forward}".'
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(
                "`model.dropout` must be at least 0 and below 1, but is "
                f"{self.dropout}."
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


DEEP_ATT_MAX = {
    "vocab_size": 2**24,
    "target_vocab_size": 2**24,
    "embedding_width": 2**16,
    "d_model": 2**16,
    "encoder_layers": 1_000,
    "decoder_layers": 1_000,
    "columns": 2,
}
"""Largest value of each size of Deep-Att."""


Gating = Literal["noisy-top-k", "batchwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Settings of a mixture of experts (Shazeer et al., 2017)."""

    num_experts: int = 32
    """Number of experts of a layer."""
    num_groups: int | None = None
    """Number of groups of a hierarchical mixture, where gates choose groups and then
    experts of these (appendix B). None for one level of gates."""
    top_k: int = 4
    """Number of experts that a token goes to; in a hierarchical mixture, of groups and
    of experts in each of these groups. With batchwise gating it is the mean."""
    d_ff: int = 2048
    """Inner dimension of each expert."""
    gating: Gating = "noisy-top-k"
    """Choice of experts in training: the k largest logits with noise (section 2.1), or
    as many tokens of the batch for each expert, with learned thresholds in decoding
    (appendix F)."""
    importance_weight: float = 0.01
    """Weight of the loss of unequal importance, the sum of an expert's gates (section
    4). The default is that of translation (appendix E)."""
    load_weight: float = 0.01
    """Weight of the loss of unequal load, the number of an expert's tokens (appendix
    A). It has no effect on batchwise gating, whose loads are equal."""

    def __post_init__(self) -> None:
        where = "model.experts"
        for name, largest in {"num_experts": 2**20, "d_ff": 2**18, "top_k": 64}.items():
            require_between(f"{where}.{name}", getattr(self, name), 1, largest)
        require_between(f"{where}.num_groups", self.num_groups, 2, self.num_experts)
        if self.num_experts % (self.num_groups or 1):
            raise ConfigError(
                f"`{where}.num_experts` must be a multiple of the {self.num_groups} "
                f"groups, but is {self.num_experts}; change it or "
                f"`{where}.num_groups`."
            )
        fewest = min(choices for _, choices in self.levels)
        if self.top_k > fewest:
            of = (
                "experts" if self.num_groups is None else "groups, and of one's experts"
            )
            raise ConfigError(
                f"`{where}.top_k` must be at most {fewest}, the number of {of}, but is "
                f"{self.top_k}."
            )
        if self.gating not in get_args(Gating):
            raise ConfigError(
                f'`{where}.gating` must be "noisy-top-k" or "batchwise", but is '
                f'"{self.gating}".'
            )
        for name in ("importance_weight", "load_weight"):
            require_between(f"{where}.{name}", getattr(self, name), 0, 1_000)

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
        # Beside the matrix of the gates there is that of the noise, or thresholds.
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


CONFIGS: dict[str, type[ArchitectureConfig]] = {
    TRANSFORMER: ModelConfig,
    "deep-att": DeepAttConfig,
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


def require_transformer(config: ArchitectureConfig) -> ModelConfig:
    """Return the settings of a Transformer; raise `RequestError` for others."""
    if isinstance(config, ModelConfig):
        return config
    raise RequestError(
        "This task must have a Transformer, but the architecture of the model is "
        f'"{architecture_of(config)}".'
    )
