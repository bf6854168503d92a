"""Perplexity of a text under a model, from its log-probability."""

import math
from dataclasses import dataclass


def perplexity(log_probability: float, num_tokens: int) -> float:
    """Return the perplexity per token; infinite if it overflows.

    `log_probability` is a natural logarithm.
    """
    try:
        return math.exp(-log_probability / num_tokens)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """Log-probability of a target under a model, given its source."""

    log_probability: float
    """Natural logarithm, including the end token."""
    num_tokens: int
    """Number of tokens, including the end token."""

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return perplexity(self.log_probability, self.num_tokens)
