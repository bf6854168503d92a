"""How translations are drawn at random."""

from dataclasses import dataclass

from transduce.errors import ConfigError
from transduce.search_config import MAX_TOKENS
from transduce.settings import require_between, require_types

MAX_TOP_K = 10_000_000
"""Largest `top_k`: more tokens than any vocabulary has."""
MAX_SEED = 2**63 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 1_000
"""Colder, only the likeliest is drawn; hotter, all alike."""
MAX_DRAWS = 100_000
"""Draws of a sentence at most; memory may allow fewer, as each has its own logits."""


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
        for name, least, most in (
            ("number", 1, MAX_DRAWS),
            ("top_k", 1, MAX_TOP_K),
            ("extra_length", 0, MAX_TOKENS),
            ("seed", 0, MAX_SEED),
        ):
            require_between(name, getattr(self, name), least, most)
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"`temperature` must be from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE:,}, but is {self.temperature}."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"`top_p` must be above 0 and at most 1, but is {self.top_p}."
            )
