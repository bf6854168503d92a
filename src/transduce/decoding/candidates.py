"""The likeliest ways to go on, of all hypotheses of a sentence at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from torch import Tensor

from transduce.decoding.kernels.compiled_candidates import (
    NOT_FORCED,
    CompiledCandidates,
    can_find_candidates,
)
from transduce.decoding.search import SentenceSearch

BLOCK = 64
"""Tokens of which only the best is looked at first."""
Excluded = Sequence[int] | Callable[[], Bool[Tensor, "sentences group vocab"]]
"""Ids that are never put out, or what says which may not come next, after what the
model has read of each hypothesis."""


class Candidates(NamedTuple):
    """The likeliest ways to go on of each sentence, best first."""

    log_probabilities: Float64[Tensor, "sentences candidates"]
    """Of the whole sequence; minus infinity where there is no further candidate."""
    parents: Int64[Tensor, "sentences candidates"]
    """The hypothesis of the group that each goes on from."""
    tokens: Int64[Tensor, "sentences candidates"]


class CandidateSearch:
    """Finds the likeliest `count` tokens after the hypotheses of each sentence."""

    def __init__(
        self, count: int, excluded: Excluded = (), diversity: float = 0.0
    ) -> None:
        self._count = count
        self._mask = excluded if callable(excluded) else None
        self._never = () if callable(excluded) else tuple(excluded)
        self._diversity = diversity
        self.compiled: CompiledCandidates | None = None
        """What has found them by a kernel, if one has."""

    @property
    def is_masked(self) -> bool:
        """Whether it changes from step to step what is excluded."""
        return self._mask is not None

    def __call__(
        self,
        logits: Float[Tensor, "sentences group vocab"],
        log_probabilities: Float64[Tensor, "sentences group"],
        forced: Int64[Tensor, " sentences"] | None = None,
    ) -> Candidates:
        """What is found is on the CPU, and good until the next call.

        `log_probabilities` are those of the hypotheses so far. `forced` has the only
        token that a sentence may go on with, or `NOT_FORCED`.
        """
        mask = None if self._mask is None else self._mask()
        if can_find_candidates(logits):
            if self.compiled is None:
                self.compiled = CompiledCandidates(
                    self._count, self._never, self._diversity
                )
            return Candidates(*self.compiled(logits, log_probabilities, mask, forced))
        excluded = self._never if mask is None else mask
        return found_by_torch(
            logits, log_probabilities, self._count, excluded, forced, self._diversity
        )


@runtime_checkable
class Growing(Protocol):
    """Sentences that candidates are found for."""

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Those that are not done."""
        ...

    @property
    def log_probabilities(self) -> Float64[Tensor, "sentences group"]:
        """Of their hypotheses, as far as they bear on what goes on."""
        ...

    @property
    def forced(self) -> Int64[Tensor, " sentences"] | None:
        """The only token that may come next in each, or `NOT_FORCED`."""
        ...

    def grow(
        self, found: Candidates, group: int
    ) -> tuple[Int64[Tensor, "kept grown"], Int64[Tensor, "kept grown"]]:
        """Take of the candidates; the rows that go on, and what they read next."""
        ...

    def join(self, other: Any) -> None:
        """Put others of its kind, which have grown too, behind these."""
        ...


@runtime_checkable
class ListedSentence(SentenceSearch, Protocol):
    """One whose hypotheses stand in lists."""

    @property
    def forced(self) -> int:
        """The only token that may come next, or `NOT_FORCED`."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether it goes on no more."""
        ...


Sentence = TypeVar("Sentence", bound=ListedSentence)


class ListedSentences(Generic[Sentence]):
    """Those that are live, in lists: where no kernel lets them grow."""

    def __init__(self, live: list[Sentence]) -> None:
        self.live = live

    @property
    def forced(self) -> Int64[Tensor, " sentences"] | None:
        """The only token that may come next in each, if there is such."""
        each = [sentence.forced for sentence in self.live]
        return torch.tensor(each) if max(each, default=NOT_FORCED) >= 0 else None

    def join(self, other: "ListedSentences[Sentence]") -> None:
        """Put others, which have grown too, behind these."""
        self.live = [*self.live, *other.live]

    def _leave(self) -> list[int]:
        """Let those go that are done; the numbers that the others had."""
        kept = [i for i, sentence in enumerate(self.live) if not sentence.is_done]
        self.live = [self.live[i] for i in kept]
        return kept


class GrowingSearch:
    """A search whose sentences grow by their likeliest candidates."""

    def __init__(self, growing: Growing, find: CandidateSearch) -> None:
        self.growing = growing
        self.find = find

    @property
    def live(self) -> Sequence[SentenceSearch]:
        """Those that are not done."""
        return self.growing.live

    def grow(
        self, logits: Float[Tensor, "sentences group vocab"]
    ) -> tuple[Int64[Tensor, "kept grown"], Int64[Tensor, "kept grown"]]:
        """Take the best candidates; the rows that go on, and what they read next.

        Both are good until the next call.
        """
        growing = self.growing
        found = self.find(logits, growing.log_probabilities, growing.forced)
        return growing.grow(found, logits.size(1))

    def join(self, other: "GrowingSearch") -> None:
        """Put the sentences of another, which has grown too, behind one's own."""
        self.growing.join(other.growing)


def found_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    totals: Float64[Tensor, "sentences group"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
    forced: Int64[Tensor, " sentences"] | None,
    diversity: float,
) -> Candidates:
    """What `CompiledCandidates` finds, on any device and in any precision."""
    # Not the logits minus their `logsumexp`: that takes twice as long.
    log_probs = logits.float().log_softmax(dim=-1)
    is_nan = _numpy(log_probs[..., 0].isnan())  # as then all are
    _exclude(log_probs, excluded, forced)
    # What is left is little: numpy is done with it sooner.
    values, tokens = map(_numpy, _largest(log_probs, count))
    values[is_nan] = math.nan
    after = values + totals.numpy()[..., None]
    ranked = after - diversity * np.arange(values.shape[-1]) if diversity else after
    chosen = np.argsort(-_flat(ranked), axis=1, kind="stable")[:, :count]
    sentences = np.arange(len(chosen))[:, None]
    return Candidates(
        _filled(_flat(after)[sentences, chosen], count, -math.inf),
        _filled(chosen // values.shape[-1], count, 0),
        _filled(_flat(tokens)[sentences, chosen], count, 0),
    )


def _exclude(
    log_probs: Float[Tensor, "sentences group vocab"],
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
    forced: Int64[Tensor, " sentences"] | None,
) -> None:
    """Let what may not come be impossible, in place."""
    if isinstance(excluded, Tensor):
        log_probs.masked_fill_(excluded.to(log_probs.device), -math.inf)
    else:
        for token in excluded:
            log_probs[..., token] = -math.inf
    for sentence, token in enumerate([] if forced is None else forced.tolist()):
        if token == NOT_FORCED:
            continue
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only


def _flat(
    each: Shaped[np.ndarray, "sentences group found"],
) -> Shaped[np.ndarray, "sentences candidates"]:
    return each.reshape(len(each), -1)


def _filled(
    each: Shaped[np.ndarray, "sentences found"], count: int, filling: float | int
) -> Shaped[Tensor, "sentences {count}"]:
    """With so many columns."""
    missing = count - each.shape[1]
    filled = np.pad(each, ((0, 0), (0, missing)), constant_values=filling)
    return torch.from_numpy(filled)


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _largest(
    log_probs: Float[Tensor, "sentences group vocab"], count: int
) -> tuple[
    Float[Tensor, "sentences group found"], Int[Tensor, "sentences group found"]
]:
    """The largest and their tokens, best first; all if there are not so many.

    The best of a row stand in those blocks of it whose best are best: these are found
    without sorting.
    """
    num_blocks = log_probs.size(-1) // BLOCK
    if num_blocks <= count:
        values, tokens = log_probs.topk(min(count, log_probs.size(-1)))
        return values, tokens
    in_blocks = num_blocks * BLOCK
    blocks = log_probs[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK))
    chosen = blocks.amax(dim=-1).topk(count).indices[..., None]
    tokens = (chosen * BLOCK + torch.arange(BLOCK, device=log_probs.device)).flatten(-2)
    rest = torch.arange(in_blocks, log_probs.size(-1), device=log_probs.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], dim=-1)
    values, indices = log_probs.gather(-1, tokens).topk(count)
    return values, tokens.gather(-1, indices)
