"""The loop that all searches share, its interfaces, and the candidates of a step.

A search chooses tokens from logits. It uses a decoder through `step`, `reorder` and
`join`; the native search runs in C with its decoder (`take_steps`). A batch holds
several sentences with a group of hypotheses each; all groups have the same size.
Finished sentences leave the batch and new ones can join it. Token ids and row numbers
are numpy arrays; logits are an array or a tensor on any device.

Two decoders change the logits of others: `Ensemble` averages the probabilities of
several models, and `with_shortlists` restricts each sentence to its shortlist.

`find_candidates` finds the likeliest next tokens. These can be restricted by the tokens
that a hypothesis has (`Restrictions`: `no_repeat_ngram`, `repetition_penalty` and
`bad_words` of `SearchConfig`; the native library has the same in
csrc/decode/restrictions.c). Candidates and probabilities of arrays are computed here,
by the native library or numpy, and those of tensors by `torch_candidates`. All sums run
in the order of the vocabulary, so that equal logits always give equal results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64

from transduce.errors import CheckpointError, RequestError
from transduce.metrics.scores import TargetScore
from transduce.native import api, check, ffi, pointer
from transduce.search_config import SearchConfig
from transduce.text.shortlist import Shortlist

AllowedTokens = Int32[np.ndarray, " _"] | None
"""Tokens that may come next, by rising id; None for the whole vocabulary."""


class Hypothesis(NamedTuple):
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Sum over all tokens, the end token included; natural logarithm."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each id and, if finished, of the end token."""
    score: float
    """Log-probability divided by the length penalty, plus the weighted coverage: what
    beam search maximizes."""
    is_finished: bool = True
    """Whether it ended with the end token, not at the length limit."""


class Sentence:
    """A sentence of a search, from its first step until it is done."""

    __slots__ = ("hypotheses",)

    def __init__(self) -> None:
        self.hypotheses: list[Hypothesis] = []
        """Hypotheses, best first; empty until the sentence is done."""


@runtime_checkable
class Decoder(Protocol):
    """A decoder that has read sources and reads target tokens step by step.

    Groups have one hypothesis each at the start, and after each call of `reorder` as
    many as that gave them.
    """

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        ...

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep `rows` of the flattened [sentences, group] of hypotheses, in this order.

        Each new group must come from one sentence.
        """
        ...


@runtime_checkable
class JoinableDecoder(Decoder, Protocol):
    """A decoder that another decoder of its kind can join."""

    def join(self, other: Any) -> None:
        """Append the sentences of another decoder, which must not be used afterwards.

        Both must have groups of the same size.
        """
        ...


Coverage = Callable[[], Float64[np.ndarray, "sentences group"]]
"""Function that returns, for each current hypothesis, the sum of log(min(attention, 1))
over the source tokens."""


@runtime_checkable
class CoverageDecoder(JoinableDecoder, Protocol):
    """A decoder that sums the attention of its hypotheses over all steps."""

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        ...


def coverage_of(decoder: Decoder, config: SearchConfig) -> Coverage | None:
    """Return the coverage of a decoder's hypotheses; None if a search needs none."""
    if not config.coverage_penalty:
        return None
    assert isinstance(decoder, CoverageDecoder)
    return decoder.coverage


@runtime_checkable
class DecodingModel(Protocol):
    """A model prepared for decoding: in the native library, or in PyTorch."""

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
        ...

    @property
    def shortlist(self) -> Shortlist | None:
        """Shortlist of target pieces; None if the model has none."""
        ...

    def encode(self, sources: Sequence[Sequence[int]]) -> Any:
        """Encode sources, which include their end tokens, for `start`."""
        ...

    def start(self, encoded: Any, *, sum_attention: bool = False) -> JoinableDecoder:
        """Return a decoder of encoded sources.

        With `sum_attention` it is a `CoverageDecoder`.
        """
        ...

    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens.

        The longest targets come first.
        """
        ...


@runtime_checkable
class MultiStepDecoder(Decoder, Protocol):
    """A decoder that can take several steps together with a search in one call."""

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, max_live: int
    ) -> Int64[np.ndarray, "kept group"] | None:
        """Take steps until at most `max_live` sentences are live, or some number.

        Returns the last tokens of the remaining hypotheses. Returns None, and changes
        nothing, if it cannot take steps with such a search.
        """
        ...


@runtime_checkable
class ShortlistDecoder(JoinableDecoder, Protocol):
    """A decoder that computes the logits of each sentence's shortlist only."""

    def set_shortlists(self, shortlists: Sequence[AllowedTokens]) -> None:
        """Restrict each sentence to the tokens of its shortlist."""
        ...


@runtime_checkable
class Search(Protocol):
    """A search for several sentences, each of which grows by one token a step."""

    @property
    def live(self) -> Sequence[Sentence]:
        """Sentences that are not done, in the order of the batch."""
        ...

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept group"], Int64[np.ndarray, "kept group"]]:
        """Choose the next tokens.

        Returns the rows that continue, for `Decoder.reorder`, and the token of each.
        All steps return groups of the same size.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another search; both must have taken a step."""
        ...


class Decoding:
    """A search and its decoder, which take steps together."""

    def __init__(self, decoder: Decoder, search: Search, bos: int) -> None:
        self.search = search
        self._decoder = decoder
        self._multi_step = decoder if isinstance(decoder, MultiStepDecoder) else None
        self._last_ids = np.full((len(search.live), 1), bos, dtype=np.int64)

    def step(self) -> None:
        """Grow all live sentences by one token."""
        logits = self._decoder.step(self._last_ids)
        rows, last_ids = self.search.grow(logits)
        if self.search.live:
            self._decoder.reorder(rows)
            self._last_ids = last_ids

    def step_until_some_are_done(
        self, max_live: int = 0, on_step: Callable[[], object] | None = None
    ) -> None:
        """Grow all live sentences until at least one of them is done.

        A decoder that takes several steps in one call may continue until at most
        `max_live` sentences are live. `on_step` is called between steps; an exception
        that it raises ends the search.
        """
        num_live = len(self.search.live)
        assert num_live
        max_live = min(max_live, num_live - 1)
        while len(self.search.live) == num_live:
            if on_step is not None:
                on_step()
            if not self._take_steps(max_live):
                self.step()

    def _take_steps(self, max_live: int) -> bool:
        """Take several steps in one call, and return whether this is possible."""
        if self._multi_step is None:
            return False
        last_ids = self._multi_step.take_steps(self._last_ids, self.search, max_live)
        if last_ids is None:
            return False
        self._last_ids = last_ids
        return True

    def join(self, other: "Decoding") -> None:
        """Append the sentences of another; both must have taken a step."""
        mine, theirs = self._decoder, other._decoder
        assert isinstance(mine, JoinableDecoder)
        assert isinstance(theirs, JoinableDecoder)
        mine.join(theirs)
        self.search.join(other.search)
        self._last_ids = np.concatenate([self._last_ids, other._last_ids])


def run_search(decoder: Decoder, search: Search, bos: int) -> list[list[Hypothesis]]:
    """Run a search to its end; return the hypotheses of each sentence, best first."""
    sentences = list(search.live)
    decoding = Decoding(decoder, search, bos)
    while search.live:
        decoding.step_until_some_are_done()
    return [each.hypotheses for each in sentences]


def require_numbers(log_probabilities: Sequence[float]) -> None:
    """Raise `CheckpointError` if there is no result because the logits were NaN."""
    if not log_probabilities or math.isnan(log_probabilities[0]):
        raise CheckpointError(
            "The model must put out numbers, but puts out NaN; its weights are "
            "damaged, or too large for the precision: try fp32, or another "
            "checkpoint."
        )


class Ensemble:
    """Decoders of several models with one vocabulary; averages their probabilities."""

    def __init__(self, members: Sequence[JoinableDecoder]) -> None:
        self.members = members
        """Decoder of each model."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last tokens and return the log-probabilities of the next.

        The result is an array if all members return arrays, otherwise a tensor.
        """
        logits = [each.step(last_ids) for each in self.members]
        if all(isinstance(each, np.ndarray) for each in logits):
            return log_mean(list(map(log_softmax, logits)))
        from transduce.decoding.torch_candidates import log_mean_by_torch

        return log_mean_by_torch(logits)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        for member in self.members:
            member.reorder(rows)

    def join(self, other: "Ensemble") -> None:
        """Append the sentences of another ensemble."""
        for mine, theirs in zip(self.members, other.members, strict=True):
            mine.join(theirs)


def require_coverage(config: SearchConfig, num_models: int) -> None:
    """Raise `RequestError` if a search needs the coverage of several models."""
    if config.coverage_penalty > 0 and num_models > 1:
        raise RequestError(
            "A coverage penalty must be used with one model, whose attention it "
            f"counts, but {num_models} are loaded."
        )


def start_decoder(
    models: Sequence[DecodingModel],
    sources: Sequence[Sequence[int]],
    config: SearchConfig | None = None,
) -> JoinableDecoder:
    """Encode sources, which include their end tokens, and return their decoder.

    Several models form an `Ensemble`. The decoder has `coverage` if a search by the
    config needs it.
    """
    sum_attention = config is not None and config.coverage_penalty > 0
    decoders = [
        each.start(each.encode(sources), sum_attention=sum_attention) for each in models
    ]
    return decoders[0] if len(decoders) == 1 else Ensemble(decoders)


def with_shortlists(
    decoder: JoinableDecoder, shortlists: Sequence[AllowedTokens]
) -> JoinableDecoder:
    """Let each sentence of a decoder choose among the tokens of its shortlist.

    Log-probabilities are then normalized over these tokens. A shortlist depends on its
    source alone, so translations do not depend on the batch. The native library
    computes only the logits of the tokens; elsewhere the logits of all others are set
    to minus infinity. The models of an ensemble have the same shortlists.
    """
    if isinstance(decoder, Ensemble):
        return Ensemble([with_shortlists(each, shortlists) for each in decoder.members])
    if isinstance(decoder, ShortlistDecoder):
        decoder.set_shortlists(shortlists)
        return decoder
    return MaskedDecoder(decoder, shortlists)


class MaskedDecoder:
    """A decoder whose logits are minus infinity except for each sentence's shortlist.

    It takes the place of a `ShortlistDecoder`.
    """

    def __init__(
        self, decoder: JoinableDecoder, shortlists: Sequence[AllowedTokens]
    ) -> None:
        self._decoder = decoder
        self.shortlists = list(shortlists)
        """Tokens of each sentence that may come next."""
        self._group = 1

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        self._group = last_ids.shape[1]
        logits = self._decoder.step(last_ids)
        if isinstance(logits, np.ndarray):
            masked = np.full_like(logits, -np.inf)
            sentences = zip(masked, logits, self.shortlists, strict=True)
            for kept, all_logits, shortlist in sentences:
                allowed = slice(None) if shortlist is None else shortlist
                kept[:, allowed] = all_logits[:, allowed]
            return masked
        from transduce.decoding.torch_candidates import keep_shortlists

        return keep_shortlists(logits, self.shortlists)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        sentences = (rows[:, 0] // self._group).tolist()
        self.shortlists = [self.shortlists[each] for each in sentences]
        self._decoder.reorder(rows)

    def join(self, other: "MaskedDecoder") -> None:
        """Append the sentences of another decoder."""
        self._decoder.join(other._decoder)
        self.shortlists += other.shortlists

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        assert isinstance(self._decoder, CoverageDecoder)
        return self._decoder.coverage()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTokens:
    """Tokens of each of several rows, stored one row after another."""

    offsets: Int64[np.ndarray, " rows_and_one"]
    """Place of each row's first token; at the end, the number of tokens."""
    tokens: Int64[np.ndarray, " tokens"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "RowTokens":
        """Store the tokens of rows."""
        return cls(
            offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
            tokens=np.array([i for row in rows for i in row], dtype=np.int64),
        )

    @property
    def rows(self) -> Int64[np.ndarray, " tokens"]:
        """Row of each token."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


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
    hypotheses: Sequence[Sequence[int] | None], config: SearchConfig
) -> Restrictions | None:
    """Return the restrictions after hypotheses; None if the config has none.

    None in place of a hypothesis means that its next token is forced, so that nothing
    restricts it.
    """
    if not config.has_restrictions:
        return None
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
    logits: Float32[np.ndarray, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
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
