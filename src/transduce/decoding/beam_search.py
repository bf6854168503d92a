"""Beam search (section 6.1). Knows no model: only `step` and `reorder`.

The semantics are those of the paper's own code: each step weighs twice the beam's
candidates; those that end go to a list of their own and take no place among those
that go on. A sentence is done when no unfinished hypothesis can still overtake the
best finished one; then it leaves the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from transduce.errors import ConfigError

BLOCK = 64
"""Tokens of which only the best is looked at first."""
MAX_LENGTH_PENALTY = 10
"""Beyond all sense, but the penalty of the longest line is still a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How a translation is searched for; the defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    """Hypotheses kept at each step."""
    length_penalty: float = 0.6
    """Alpha of the penalty ((5 + length) / 6)^alpha (Wu et al., 2016)."""
    extra_length: int = 50
    """Tokens a translation may have beyond those of its source."""

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ConfigError(
                f"`search.beam_size` must be at least 1, but is {self.beam_size}."
            )
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            raise ConfigError(
                f"`search.length_penalty` must be from 0 to {MAX_LENGTH_PENALTY}, but "
                f"is {self.length_penalty}."
            )
        if self.extra_length < 0:
            raise ConfigError(
                f"`search.extra_length` must be at least 0, but is {self.extra_length}."
            )


@runtime_checkable
class NextTokenModel(Protocol):
    """What search needs of a model.

    Each sentence has a group of hypotheses, all groups being equally large: one at the
    start, and from then on as many as `reorder` was given.
    """

    def step(
        self, last_ids: Int[Tensor, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        ...

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        They are numbered through all groups.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Natural logarithm, the end token counted."""
    score: float
    """Log-probability over the length penalty: what search maximizes."""
    is_finished: bool = True
    """Whether it ended by itself, not by the limit of length."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha; the length counts the end token (Wu et al., 2016)."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first, at most `beam_size`.

    `max_lengths` counts the tokens of each sentence's output, the end token included.
    Ids in `excluded` are never put out. The result for a sentence does not depend on
    the others.
    """
    beams = [_Beam(limit, config) for limit in max_lengths]
    group = _Group(beams, config.beam_size, eos)
    last_ids = torch.full((len(beams), 1), bos)
    while group.beams:
        logits = model.step(last_ids)
        candidates = best_candidates(
            logits, group.log_probabilities, 2 * config.beam_size, excluded
        )
        rows, last_ids = group.grow(candidates)
        if group.beams:
            model.reorder(rows.to(logits.device))
            last_ids = last_ids.to(logits.device)
    return [beam.best() for beam in beams]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The likeliest ways to go on, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Of the whole sequence; minus infinity where there is no further candidate."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """The hypothesis of the group that each goes on from."""
    tokens: Int64[np.ndarray, "sentences candidates"]


def best_candidates(
    logits: Float[Tensor, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    excluded: Sequence[int] = (),
) -> Candidates:
    """The likeliest `count` tokens after the hypotheses of each sentence.

    `log_probabilities` are those of the hypotheses so far. Of the logits only those of
    each hypothesis's best are normalized.
    """
    logits = logits.float()
    log_total = logits.logsumexp(dim=-1, keepdim=True)
    logits[..., list(excluded)] = -math.inf
    values, tokens = _largest(logits, count)
    so_far = torch.from_numpy(log_probabilities).to(logits.device)
    totals = (values - log_total).double() + so_far[..., None]
    count = min(count, totals[0].numel())
    best, indices = totals.flatten(1).topk(count)
    return Candidates(
        log_probabilities=best.cpu().numpy(),
        parents=(indices // tokens.size(-1)).cpu().numpy(),
        tokens=tokens.flatten(1).gather(1, indices).cpu().numpy(),
    )


def _largest(
    logits: Float[Tensor, "sentences group vocab"], count: int
) -> tuple[
    Float[Tensor, "sentences group found"], Int[Tensor, "sentences group found"]
]:
    """The largest logits and their tokens, best first; all if there are not so many.

    The best of a row stand in those blocks of it whose best are best: these are found
    without sorting.
    """
    num_blocks = logits.size(-1) // BLOCK
    if num_blocks <= count:
        values, tokens = logits.topk(min(count, logits.size(-1)))
        return values, tokens
    in_blocks = num_blocks * BLOCK
    blocks = logits[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK))
    chosen = blocks.amax(dim=-1).topk(count).indices[..., None]
    tokens = (chosen * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(-2)
    rest = torch.arange(in_blocks, logits.size(-1), device=logits.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], dim=-1)
    values, indices = logits.gather(-1, tokens).topk(count)
    return values, tokens.gather(-1, indices)


class _Group:
    """The beams that are not done yet, grown together a token at a time."""

    def __init__(self, beams: list["_Beam"], beam_size: int, eos: int) -> None:
        self.beams = beams
        self.log_probabilities = np.zeros((len(beams), 1))
        """Of the hypotheses that go on."""
        self._beam_size = beam_size
        self._eos = eos
        self._ids = np.empty((len(beams), 1, 0), dtype=np.int64)

    def grow(
        self, candidates: Candidates
    ) -> tuple[Int[Tensor, "kept group"], Int[Tensor, "kept group"]]:
        """Take the best candidates; the rows that go on, and what they read next."""
        is_end = candidates.tokens == self._eos
        self._finish(candidates, is_end)
        # The best of those that go on; behind them what does not.
        order = np.argsort(is_end, axis=1, kind="stable")[:, : self._beam_size]
        parents, tokens, totals, is_end = (
            np.take_along_axis(each, order, axis=1)
            for each in (
                candidates.parents,
                candidates.tokens,
                candidates.log_probabilities,
                is_end,
            )
        )
        totals = np.where(is_end, -math.inf, totals)
        past = np.take_along_axis(self._ids, parents[..., None], axis=1)
        ids = np.concatenate([past, tokens[..., None]], axis=2)
        rows = np.arange(len(parents))[:, None] * self._ids.shape[1] + parents
        kept = [
            i
            for i, beam in enumerate(self.beams)
            if not beam.is_done(ids[i], totals[i])
        ]
        self.beams = [self.beams[i] for i in kept]
        self.log_probabilities, self._ids = totals[kept], ids[kept]
        return torch.from_numpy(rows[kept]), torch.from_numpy(tokens[kept])

    def _finish(
        self, candidates: Candidates, is_end: Bool[np.ndarray, "sentences candidates"]
    ) -> None:
        is_possible = candidates.log_probabilities > -math.inf
        for i, j in zip(*np.nonzero(is_end & is_possible), strict=True):
            past = self._ids[i, candidates.parents[i, j]]
            total = float(candidates.log_probabilities[i, j])
            self.beams[i].finish(past, total, length=len(past) + 1)


class _Beam:
    """What has been found for one sentence."""

    def __init__(self, max_length: int, config: SearchConfig) -> None:
        self._max_length = max_length
        self._config = config
        self._finished: list[Hypothesis] = []
        self._best_score = -math.inf

    def finish(
        self,
        ids: Int64[np.ndarray, " length"],
        log_probability: float,
        length: int,
        *,
        is_finished: bool = True,
    ) -> None:
        """Keep a hypothesis; its length counts the end token."""
        score = log_probability / self._penalty(length)
        self._best_score = max(self._best_score, score)
        self._finished.append(
            Hypothesis(
                ids=tuple(ids.tolist()),
                log_probability=log_probability,
                score=score,
                is_finished=is_finished,
            )
        )

    def is_done(
        self,
        ids: Int64[np.ndarray, "group length"],
        log_probabilities: Float64[np.ndarray, " group"],
    ) -> bool:
        """Whether no unfinished hypothesis can come out ahead of the best finished."""
        length = ids.shape[1]
        if log_probabilities[0] > -math.inf and length < self._max_length:
            # Log-probabilities only fall and the penalty only grows with the length,
            # so nothing unfinished can score above this.
            bound = log_probabilities[0] / self._penalty(self._max_length)
            return bool(self._best_score >= bound)
        if not self._finished:
            for row, total in zip(ids, log_probabilities.tolist(), strict=True):
                if total > -math.inf:
                    self.finish(row, total, length, is_finished=False)
        return True

    def best(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        ranked = sorted(self._finished, key=lambda h: h.score, reverse=True)
        return ranked[: self._config.beam_size]

    def _penalty(self, length: int) -> float:
        return length_penalty(length, self._config.length_penalty)
