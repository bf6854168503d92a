"""Perplexity of a text under a model, by the log-probabilities the model gave."""

import math


def perplexity(log_probability: float, num_tokens: int) -> float:
    """Of a token; infinite where a double cannot hold it."""
    try:
        return math.exp(-log_probability / num_tokens)
    except OverflowError:
        return math.inf
