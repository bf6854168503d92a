"""Configurations of the architectures, without PyTorch.

`config.json` of a model folder names the architecture, and `CONFIGS` the class of its
settings. To add an architecture, add its config here, a case to `models.build`, and a
module that implements `models.TransductionModel`. Its `num_parameters` is a formula, so
that `transduce presets` needs no PyTorch; tests hold it against the model.
"""

from dataclasses import Field
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from transduce.errors import RequestError
from transduce.model.config import ModelConfig
from transduce.model.sizes import count_parameters

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


CONFIGS: dict[str, type[ArchitectureConfig]] = {TRANSFORMER: ModelConfig}
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
