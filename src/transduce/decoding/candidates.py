"""The likeliest ways to go on, over all hypotheses of each sentence."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.native import api, check, ffi, pointer
from transduce.search_config import SamplingConfig

NOT_FORCED = -1
"""Forced token of a sentence that may go on with any token."""

Excluded = Sequence[int] | Callable[[], Bool[np.ndarray, "sentences group vocab"]]
"""Ids that never come next, or a function for a mask of those that may not come after
what the model has read of each hypothesis."""


class Candidates(NamedTuple):
    """The likeliest continuations of each sentence, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Sum over the whole sequence; minus infinity where there is no further candidate,
    NaN after a hypothesis with NaN among its logits."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """Number in its group of the hypothesis that each candidate extends."""
    tokens: Int64[np.ndarray, "sentences candidates"]


def find_candidates(
    logits: Float[Any, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    excluded: Excluded = (),
    forced: Int64[np.ndarray, " sentences"] | None = None,
    diversity: float = 0.0,
) -> Candidates:
    """Find the `count` likeliest continuations of each sentence.

    `log_probabilities` are those of the hypotheses so far. `forced` has the only token
    that a sentence may go on with, or `NOT_FORCED`. The k-th best token after a
    hypothesis is put back by `diversity` times k in the choice. Of equals, those of
    earlier hypotheses, then of lower tokens, come first.

    `IndexError` if a forced token is outside the vocabulary.
    """
    never = excluded() if callable(excluded) else excluded
    numbers = native_logits(logits)
    if numbers is not None:
        return _find_natively(
            numbers, log_probabilities, count, never, forced, diversity
        )
    # Imported late: PyTorch takes a second to load, and the native library needs none.
    from transduce.decoding.torch_logits import find_by_torch

    return find_by_torch(logits, log_probabilities, count, never, forced, diversity)


def native_logits(
    logits: Float[Any, "sentences group vocab"],
) -> Float32[np.ndarray, "sentences group vocab"] | None:
    """Return logits for the native library.

    None if there is none, or the logits are not on a CPU, or not in fp32.
    """
    if api() is None:
        return None
    if not isinstance(logits, np.ndarray):
        if logits.device.type != "cpu" or not logits.dtype.is_floating_point:
            return None
        if logits.dtype.itemsize != np.dtype(np.float32).itemsize:
            return None
        logits = logits.detach().numpy()
    return logits if logits.dtype == np.float32 else None


def forced_tokens(
    each: Sequence[int],
) -> Int64[np.ndarray, " sentences"] | None:
    """Return the forced token of each sentence as an array; None if none has one."""
    if max(each, default=NOT_FORCED) == NOT_FORCED:
        return None
    return np.array(each, dtype=np.int64)


def _find_natively(
    logits: Float32[np.ndarray, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    never: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
    diversity: float,
) -> Candidates:
    sentences, group, vocab = logits.shape
    assert log_probabilities.shape == (sentences, group)
    assert forced is None or forced.shape == (sentences,)
    logits = np.ascontiguousarray(logits)
    log_probabilities = np.ascontiguousarray(log_probabilities)
    mask, ids = None, np.empty(0, np.int64)
    if isinstance(never, np.ndarray):
        assert never.shape == logits.shape
        mask = np.ascontiguousarray(never)
    else:
        ids = np.array(never, dtype=np.int64)
    totals = np.empty((sentences, count))
    parents, tokens = np.empty((2, sentences, count), np.int64)
    query = ffi.new(
        "td_candidates *",
        {
            "sentences": sentences,
            "group": group,
            "vocab": vocab,
            "count": count,
            "log_probs": pointer(log_probabilities, "double *"),
            "mask": ffi.NULL if mask is None else pointer(mask, "uint8_t *"),
            "excluded_tokens": pointer(ids, "int64_t *"),
            "num_excluded_tokens": len(ids),
            "forced_tokens": (
                ffi.NULL if forced is None else pointer(forced, "int64_t *")
            ),
            "diversity": diversity,
            "found_log_probs": pointer(totals, "double *"),
            "found_parents": pointer(parents, "int64_t *"),
            "found_tokens": pointer(tokens, "int64_t *"),
        },
    )
    native = api()
    assert native is not None
    check(native.decode.find_candidates(query, pointer(logits, "float *")))
    return Candidates(totals, parents, tokens)


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
