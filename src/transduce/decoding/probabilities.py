"""Probabilities of next tokens in numpy: logarithms, means and draws.

All sums are taken in the order of the vocabulary, or of falling probability, so that
the same numbers always come to the same result.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.sampling_config import SamplingConfig


def log_softmax(logits: Float[np.ndarray, "*rows vocab"]) -> Float32[np.ndarray, "..."]:
    """Logarithms of the probabilities that logits stand for, as a new array."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted.astype(np.float32, copy=False)


def log_likelihoods(
    logits: Float[np.ndarray, "rows vocab"], tokens: Int64[np.ndarray, " rows"]
) -> Float64[np.ndarray, " rows"]:
    """Logarithm of the probability of one token of each row."""
    largest = logits.max(axis=-1)
    totals = np.exp(logits - largest[:, None]).sum(axis=-1)
    chosen = logits[np.arange(len(tokens)), tokens]
    return chosen.astype(np.float64) - largest - np.log(totals)


def log_mean(
    log_probs: Sequence[Float32[np.ndarray, "*rows vocab"]],
) -> Float32[np.ndarray, "..."]:
    """Logarithms of the mean of several models' probabilities."""
    largest = np.maximum.reduce(log_probs)
    total = np.zeros_like(largest)
    for each in log_probs:
        total += np.exp(each - largest)
    return largest + np.log(total / len(log_probs))


def draw(
    logits: Float32[np.ndarray, " vocab"],
    chances: Float64[np.ndarray, " draws"],
    config: SamplingConfig,
) -> Int64[np.ndarray, " draws"]:
    """Tokens whose cumulative probability is the first to pass each chance (0 to 1).

    `top_k` and `top_p` leave the likeliest tokens only, which then come first; without
    them the tokens are in the order of the vocabulary. Logits of minus infinity are
    never drawn, unless there are no others.
    """
    values = logits / np.float32(config.temperature)
    tokens = _candidates(values, config)
    likely = values[tokens].astype(np.float64)
    reached = np.cumsum(np.exp(likely - likely.max()))
    if config.top_p < 1:
        # The token that reaches the probability of the nucleus belongs to it.
        below = np.searchsorted(reached[:-1], config.top_p * reached[-1])
        reached = reached[: below + 1]
    # Below the sum of all, so that no token of probability 0 is drawn by rounding.
    aims = np.minimum(chances * reached[-1], np.nextafter(reached[-1], 0.0))
    places = np.searchsorted(reached, aims, side="right")
    return tokens[np.minimum(places, len(reached) - 1)]  # NaN is above all numbers


def _candidates(
    values: Float32[np.ndarray, " vocab"], config: SamplingConfig
) -> Int64[np.ndarray, " candidates"]:
    """Tokens that `top_k` leaves, likeliest first if the order matters."""
    count = len(values) if config.top_k is None else min(config.top_k, len(values))
    if count == len(values) and config.top_p == 1:
        return np.arange(count)
    if count < len(values):
        likeliest = np.argpartition(-values, count - 1)[:count]
        return likeliest[np.argsort(-values[likeliest], kind="stable")]
    return np.argsort(-values, kind="stable")
