"""From logits to tokens: the likeliest continuations, probabilities, and draws.

Arrays are computed by the native library or numpy, tensors by `torch_model`. All sums
run in the order of the vocabulary, or of falling probability, so that equal logits
always give equal results.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.native import api, check, ffi, pointer
from transduce.search_config import SamplingConfig

NOT_FORCED = -1
"""Forced token of a sentence that may continue with any token."""

Excluded = Sequence[int] | Callable[[], Bool[np.ndarray, "sentences group vocab"]]
"""Ids that never come next, or a function that returns a mask of the tokens that must
not follow the current hypotheses."""


class Candidates(NamedTuple):
    """The likeliest continuations of each sentence, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Log-probability of the whole sequence; minus infinity where there are no more
    candidates, NaN after a hypothesis with NaN among its logits."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """Number, within the group, of the hypothesis that each candidate extends."""
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

    `log_probabilities` are those of the hypotheses. `forced` has the only token with
    which a sentence may continue, or `NOT_FORCED`. For the ranking, the k-th best token
    after a hypothesis, from k = 0, loses `diversity` times k nats (Li et al., 2016). Of
    equal candidates, those of earlier hypotheses come first, then lower token ids.

    Raises `IndexError` if a forced token is outside the vocabulary.
    """
    never = excluded() if callable(excluded) else excluded
    numbers = native_logits(logits)
    if numbers is not None:
        return _find_natively(
            numbers, log_probabilities, count, never, forced, diversity
        )
    # Imported late: PyTorch takes a second to load, and the native library needs none.
    from transduce.decoding.torch_model import find_by_torch

    return find_by_torch(logits, log_probabilities, count, never, forced, diversity)


def native_logits(
    logits: Float[Any, "sentences group vocab"],
) -> Float32[np.ndarray, "sentences group vocab"] | None:
    """Return logits as an array for the native library.

    Returns None without the library, or if the logits are not in fp32 on a CPU.
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
    """Return log-probabilities as a new array."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted.astype(np.float32, copy=False)


def log_likelihoods(
    logits: Float[np.ndarray, "rows vocab"], tokens: Int64[np.ndarray, " rows"]
) -> Float64[np.ndarray, " rows"]:
    """Return the log-probability of one token in each row."""
    largest = logits.max(axis=-1)
    totals = np.exp(logits - largest[:, None]).sum(axis=-1)
    chosen = logits[np.arange(len(tokens)), tokens]
    return chosen.astype(np.float64) - largest - np.log(totals)


def log_mean(
    log_probs: Sequence[Float32[np.ndarray, "*rows vocab"]],
) -> Float32[np.ndarray, "..."]:
    """Return the logarithm of the mean probability over several models."""
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
    """Return, for each chance in [0, 1), the first token whose cumulative probability
    exceeds it.

    With `top_k` or `top_p`, only the likeliest tokens remain, sorted by falling
    probability; otherwise tokens are in the order of the vocabulary. Tokens with a
    logit of minus infinity are drawn only if there are no others.
    """
    values = logits / np.float32(config.temperature)
    likely = np.exp(values - values.max())
    tokens = _likeliest(likely, config.top_k)
    if config.top_p < 1:
        tokens = _nucleus(likely, tokens, config.top_p)
    reached = np.cumsum(likely[tokens], dtype=np.float64)
    # Below the total, so that rounding never draws a token of probability 0.
    aims = np.minimum(chances * reached[-1], np.nextafter(reached[-1], 0.0))
    places = np.searchsorted(reached, aims, side="right")
    return tokens[np.minimum(places, len(reached) - 1)]  # NaN sorts last


def _likeliest(
    likely: Float32[np.ndarray, " vocab"], top_k: int | None
) -> Int64[np.ndarray, " tokens"]:
    """Return the `top_k` likeliest tokens, likeliest first; without it, all by id."""
    if top_k is None or top_k >= len(likely):
        return np.arange(len(likely))
    found = np.argpartition(likely, len(likely) - top_k)[-top_k:]
    return _sorted(likely, found)


def _nucleus(
    likely: Float32[np.ndarray, " vocab"],
    tokens: Int64[np.ndarray, " tokens"],
    top_p: float,
) -> Int64[np.ndarray, " nucleus"]:
    """Return the fewest likeliest tokens with a share `top_p` of the total."""
    likely_tokens = likely[tokens]
    total = likely_tokens.sum(dtype=np.float64)
    # All tokens below this bound have less probability together than is left out.
    bound = (1 - top_p) * total / len(tokens)
    found = _sorted(likely, tokens[~(likely_tokens < bound)])  # keeps NaN
    reached = np.cumsum(likely[found], dtype=np.float64)
    # The token at which the sum reaches the share belongs to the nucleus.
    return found[: np.searchsorted(reached[:-1], top_p * total) + 1]


def _sorted(
    likely: Float32[np.ndarray, " vocab"], tokens: Int64[np.ndarray, " tokens"]
) -> Int64[np.ndarray, " tokens"]:
    """Sort tokens, likeliest first."""
    return tokens[np.argsort(-likely[tokens], kind="stable")]
