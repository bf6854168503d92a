"""Candidates of a step: the likeliest next tokens of the hypotheses of a search.

`find_candidates` finds them. `Restrictions` excludes or penalizes tokens, given the
tokens of a hypothesis so far: `no_repeat_ngram`, `repetition_penalty` and `bad_words`
of `SearchConfig` (in the native library csrc/decode/restrictions.c).

The native library finds the candidates of logits in fp32 on a CPU, and
`torch_candidates` all others. All sums run in the order of the vocabulary, so that
equal logits always give equal results.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.native import (
    RowTokens,
    api,
    check,
    ffi,
    native_logits,
    pointer,
)
from transduce.search_config import SearchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Restrictions of the next token of hypotheses, one row for each."""

    banned: RowTokens
    """Tokens that must not follow."""
    repeated: RowTokens
    """Tokens that the hypothesis has already, in ascending order."""
    penalty: float
    """Factor of the log-probability of repeated tokens."""

    def as_struct(self) -> Any:
        """Return a `td_restrictions`, which borrows the arrays."""
        arrays = {
            "banned_offsets": self.banned.offsets,
            "banned_tokens": self.banned.tokens,
            "repeated_offsets": self.repeated.offsets,
            "repeated_tokens": self.repeated.tokens,
        }
        pointers = {k: pointer(v, "int64_t *") for k, v in arrays.items()}
        fields = {**pointers, "repetition_penalty": self.penalty}
        return ffi.new("td_restrictions *", fields)


def restrictions_after(
    hypotheses: Iterable[Sequence[int] | None], config: SearchConfig
) -> Restrictions | None:
    """Return the restrictions after hypotheses; None if the config has none.

    None in place of a hypothesis means that its next token is forced, so that nothing
    restricts it.
    """
    if not config.has_restrictions:
        return None
    hypotheses = list(hypotheses)
    has_penalty = config.repetition_penalty != 1
    return Restrictions(
        banned=RowTokens.of(
            [[] if ids is None else _banned(list(ids), config) for ids in hypotheses]
        ),
        repeated=RowTokens.of(
            [sorted(set(ids)) if has_penalty and ids else [] for ids in hypotheses]
        ),
        penalty=config.repetition_penalty,
    )


def _banned(ids: list[int], config: SearchConfig) -> list[int]:
    """Return the tokens that would end a repeated n-gram or a bad word."""
    banned = [word[-1] for word in config.bad_words if _ends_with(ids, word[:-1])]
    if n := config.no_repeat_ngram:
        ngrams = (ids[end - n : end] for end in range(n, len(ids) + 1))
        banned += [ngram[-1] for ngram in ngrams if _ends_with(ids, ngram[:-1])]
    return banned


def _ends_with(ids: Sequence[int], ending: Sequence[int]) -> bool:
    start = len(ids) - len(ending)
    return start >= 0 and list(ids[start:]) == list(ending)


NOT_FORCED = -1
"""Forced token of a sentence that may continue with any token."""

ExcludedTokens = Sequence[int] | Bool[np.ndarray, "sentences group vocab"]
"""Ids that never come next, or a mask of the tokens that must not follow each
hypothesis."""
Excluded = Sequence[int] | Callable[[], Bool[np.ndarray, "sentences group vocab"]]
"""Ids that never come next, or a function that returns a mask of the tokens that must
not follow the current hypotheses."""


def excluded_now(excluded: Excluded) -> ExcludedTokens:
    """Return the tokens that must not follow the current hypotheses."""
    return excluded() if callable(excluded) else excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuery:
    """Hypotheses of several sentences, and which continuations of them to find."""

    log_probabilities: Float64[np.ndarray, "sentences group"]
    """Log-probability of each hypothesis."""
    count: int
    """Number of continuations of each sentence."""
    excluded: ExcludedTokens = ()
    forced: Int64[np.ndarray, " sentences"] | None = None
    """Only token with which each sentence may continue, or `NOT_FORCED`."""
    diversity: float = 0.0
    """Penalty in nats per rank among the continuations of one hypothesis (Li et al.,
    2016): for the ranking, the k-th best token, from k = 0, loses k times as much."""
    restrictions: Restrictions | None = None
    """Restrictions of each hypothesis; they do not apply to forced tokens."""


class Candidates(NamedTuple):
    """The likeliest continuations of each sentence, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Log-probability of the whole sequence; minus infinity where there are no more
    candidates, NaN after a hypothesis with NaN among its logits."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """Number, within the group, of the hypothesis that each candidate extends."""
    tokens: Int64[np.ndarray, "sentences candidates"]


def find_candidates(
    logits: Float[Any, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
    """Find the likeliest continuations of each sentence.

    Of equal candidates, those of earlier hypotheses come first, then lower token ids.
    Raises `IndexError` if a forced token is outside the vocabulary.
    """
    if (array := native_logits(logits)) is not None:
        return _find_natively(array, query)
    # Imported late: PyTorch takes a second to load, and the native library needs none.
    from transduce.decoding.torch_candidates import find_by_torch

    return find_by_torch(logits, query)


def _find_natively(
    logits: Float32[np.ndarray, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
    """Find candidates in the native library, as `find_candidates` does."""
    sentences, group, vocab = logits.shape
    logits = np.ascontiguousarray(logits)
    log_probabilities = np.ascontiguousarray(query.log_probabilities)
    mask, excluded = None, query.excluded
    if isinstance(excluded, np.ndarray):
        mask, excluded = np.ascontiguousarray(excluded), ()
    excluded_ids = np.array(excluded, dtype=np.int64)
    # Each array has a name, since all that the struct points to must outlive the call.
    restrictions = (
        ffi.NULL if query.restrictions is None else query.restrictions.as_struct()
    )
    totals = np.empty((sentences, query.count))
    parents, tokens = np.empty((2, sentences, query.count), np.int64)
    fields = ffi.new(
        "td_candidates *",
        {
            "sentences": sentences,
            "group": group,
            "vocab": vocab,
            "count": query.count,
            "log_probs": pointer(log_probabilities, "double *", (sentences, group)),
            "mask": pointer(mask, "uint8_t *", logits.shape),
            "excluded_tokens": pointer(excluded_ids, "int64_t *"),
            "num_excluded_tokens": len(excluded_ids),
            "forced_tokens": pointer(query.forced, "int64_t *", (sentences,)),
            "restrictions": restrictions,
            "diversity": query.diversity,
            "found_log_probs": pointer(totals, "double *"),
            "found_parents": pointer(parents, "int64_t *"),
            "found_tokens": pointer(tokens, "int64_t *"),
        },
    )
    native = api()
    assert native is not None
    check(native.decode.find_candidates(fields, pointer(logits, "float *")))
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
    # Outside a shortlist, all are minus infinity.
    offset = np.where(largest == -np.inf, np.float32(0), largest)
    total = np.zeros_like(largest)
    for each in log_probs:
        total += np.exp(each - offset)
    with np.errstate(divide="ignore"):
        return offset + np.log(total / len(log_probs))
