"""The likeliest ways to go on, over all hypotheses of each sentence."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.native import api, check, ffi, pointer

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
    from transduce.decoding.candidates_by_torch import find_by_torch

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
