"""Perplexity of a text under a model, by the log-probabilities the model gave."""

import math
from dataclasses import dataclass


def perplexity(log_probability: float, num_tokens: int) -> float:
    """Of a token; infinite where a double cannot hold it."""
    try:
        return math.exp(-log_probability / num_tokens)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """How likely a model holds a target, given its source."""

    log_probability: float
    """Natural logarithm, the end token counted."""
    num_tokens: int
    """The end token counted."""

    @property
    def perplexity(self) -> float:
        """Of a token."""
        return perplexity(self.log_probability, self.num_tokens)
