"""Configurations of the architectures, without PyTorch.

`config.json` of a model folder names the architecture, and `CONFIGS` the class of its
settings. To add an architecture, add its config here, a case to `models.build`, and a
module that implements `models.TransductionModel`.
"""

from dataclasses import Field
from typing import Any, ClassVar, Protocol, runtime_checkable

from transduce.errors import RequestError
from transduce.model.config import ModelConfig

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


CONFIGS: dict[str, type[ArchitectureConfig]] = {TRANSFORMER: ModelConfig}
"""Class of the settings of each architecture, by its name in `config.json`."""


def architecture_of(config: ArchitectureConfig) -> str:
    """Return the name of an architecture by the class of its settings."""
    [name] = [name for name, known in CONFIGS.items() if type(config) is known]
    return name


def require_transformer(config: ArchitectureConfig) -> ModelConfig:
    """Return the settings of a Transformer; raise `RequestError` for others."""
    if isinstance(config, ModelConfig):
        return config
    raise RequestError(
        "This task must have a Transformer, but the architecture of the model is "
        f'"{architecture_of(config)}".'
    )
