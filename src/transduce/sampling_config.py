"""How translations are drawn at random."""

from dataclasses import dataclass

from transduce.errors import ConfigError
from transduce.settings import require_types

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 1_000
"""Colder, only the likeliest is drawn; hotter, all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn."""

    number: int = 1
    """Translations of each sentence."""
    temperature: float = 1.0
    """What logits are divided by: below one, the likely become likelier."""
    top_k: int | None = None
    """Only so many of the likeliest tokens are drawn from (Fan et al., 2018)."""
    top_p: float = 1.0
    """Only the likeliest tokens that reach this probability together are drawn from:
    the nucleus (Holtzman et al., 2020)."""
    extra_length: int = 50
    """Tokens a translation may have beyond those of its source."""
    seed: int = 1

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("number", "top_k"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"`temperature` must be from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE:,}, but is {self.temperature}."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"`top_p` must be above 0 and at most 1, but is {self.top_p}."
            )
        for name in ("extra_length", "seed"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"`{name}` must be at least 0, but is {value}.")
