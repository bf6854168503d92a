"""Probabilities of next tokens in numpy: logarithms, means and draws.

All sums are taken in the order of the vocabulary, or of falling probability, so that
the same numbers always come to the same result.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.search_config import SamplingConfig


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
    likely = np.exp(values - values.max())
    tokens = _likeliest(likely, config.top_k)
    if config.top_p < 1:
        tokens = _nucleus(likely, tokens, config.top_p)
    reached = np.cumsum(likely[tokens], dtype=np.float64)
    # Below the sum of all, so that no token of probability 0 is drawn by rounding.
    aims = np.minimum(chances * reached[-1], np.nextafter(reached[-1], 0.0))
    places = np.searchsorted(reached, aims, side="right")
    return tokens[np.minimum(places, len(reached) - 1)]  # NaN is above all numbers


def _likeliest(
    likely: Float32[np.ndarray, " vocab"], top_k: int | None
) -> Int64[np.ndarray, " tokens"]:
    """The `top_k` likeliest tokens, likeliest first; all in their order without it."""
    if top_k is None or top_k >= len(likely):
        return np.arange(len(likely))
    found = np.argpartition(likely, len(likely) - top_k)[-top_k:]
    return _sorted(likely, found)


def _nucleus(
    likely: Float32[np.ndarray, " vocab"],
    tokens: Int64[np.ndarray, " tokens"],
    top_p: float,
) -> Int64[np.ndarray, " nucleus"]:
    """The fewest tokens that have a share of the probability of all these."""
    of_tokens = likely[tokens]
    total = of_tokens.sum(dtype=np.float64)
    # All that are less likely than this are together less than what is left out.
    bound = (1 - top_p) * total / len(tokens)
    found = _sorted(likely, tokens[~(of_tokens < bound)])  # keeps NaN
    reached = np.cumsum(likely[found], dtype=np.float64)
    # The token that reaches the share belongs to the nucleus.
    return found[: np.searchsorted(reached[:-1], top_p * total) + 1]


def _sorted(
    likely: Float32[np.ndarray, " vocab"], tokens: Int64[np.ndarray, " tokens"]
) -> Int64[np.ndarray, " tokens"]:
    """Tokens, likeliest first."""
    return tokens[np.argsort(-likely[tokens], kind="stable")]
