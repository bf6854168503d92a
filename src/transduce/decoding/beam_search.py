"""Beam search (section 6.1). Knows no model: only `step` and `reorder`.

The semantics are those of the paper's own code: each step weighs twice the beam's
candidates; those that end go to a list of their own and take no place among those
that go on. A sentence is done when no unfinished hypothesis can still overtake the
best finished ones, as many as are asked for; then it leaves the batch, with fewer than
the beam's worth at times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from transduce.decoding.search_config import SearchConfig

BLOCK = 64
"""Tokens of which only the best is looked at first."""


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
    token_log_probabilities: tuple[float, ...]
    """Of each id and, if it is finished, of the end token."""
    score: float
    """Log-probability over the length penalty: what search maximizes."""
    is_finished: bool = True
    """Whether it ended by itself, not by the limit of length."""


def beam_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first, at most `beam_size`.

    `max_lengths` counts the tokens of each sentence's output, the end token included.
    Ids in `excluded` are never put out. What a sentence's prefix is, all of its
    hypotheses begin with. The result for a sentence does not depend on the others.
    """
    beams = [
        _Beam(limit, tuple(prefix), config)
        for limit, prefix in zip(
            max_lengths, prefixes or [()] * len(max_lengths), strict=True
        )
    ]
    group = _Group(beams, config, eos)
    last_ids = torch.full((len(beams), 1), bos)
    while group.beams:
        logits = model.step(last_ids)
        candidates = best_candidates(
            logits,
            group.log_probabilities,
            2 * config.beam_size,
            excluded=excluded,
            forced=group.forced_tokens(),
            diversity=config.diversity,
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
    *,
    excluded: Sequence[int] = (),
    forced: Mapping[int, int] | None = None,
    diversity: float = 0.0,
) -> Candidates:
    """The likeliest `count` tokens after the hypotheses of each sentence.

    `log_probabilities` are those of the hypotheses so far. `forced` has the only token
    that some sentences may go on with.
    """
    # Not the logits minus their `logsumexp`: that takes twice as long.
    log_probs = logits.float().log_softmax(dim=-1)
    log_probs[..., list(excluded)] = -math.inf
    for sentence, token in (forced or {}).items():
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only
    values, tokens = _largest(log_probs, count)
    so_far = torch.from_numpy(log_probabilities).to(logits.device)
    totals = (values.double() + so_far[..., None]).flatten(1)
    count = min(count, totals.size(1))
    places = torch.arange(values.size(-1), device=logits.device).repeat(values.size(1))
    indices = (totals - diversity * places).topk(count).indices
    chosen = totals.gather(1, indices)
    return Candidates(
        log_probabilities=chosen.cpu().numpy(),
        parents=(indices // tokens.size(-1)).cpu().numpy(),
        tokens=tokens.flatten(1).gather(1, indices).cpu().numpy(),
    )


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


class _Group:
    """The beams that are not done yet, grown together a token at a time."""

    def __init__(self, beams: list["_Beam"], config: SearchConfig, eos: int) -> None:
        self.beams = beams
        self.log_probabilities = np.zeros((len(beams), 1))
        """Of the hypotheses that go on."""
        self._config = config
        self._eos = eos
        self._ids = np.empty((len(beams), 1, 0), dtype=np.int64)
        self._gains = np.empty((len(beams), 1, 0))
        """What each token has added to its hypothesis's log-probability."""

    @property
    def _length(self) -> int:
        return self._ids.shape[2]

    def forced_tokens(self) -> dict[int, int]:
        """By the number of their sentence."""
        return {
            i: beam.prefix[self._length]
            for i, beam in enumerate(self.beams)
            if self._length < len(beam.prefix)
        }

    def grow(
        self, candidates: Candidates
    ) -> tuple[Int[Tensor, "kept group"], Int[Tensor, "kept group"]]:
        """Take the best candidates; the rows that go on, and what they read next."""
        is_end = candidates.tokens == self._eos
        if self._length >= self._config.min_length:
            self._finish(candidates, is_end)
        # The best of those that go on; behind them what does not.
        order = np.argsort(is_end, axis=1, kind="stable")[:, : self._config.beam_size]
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
        rows = np.arange(len(parents))[:, None] * self._ids.shape[1] + parents
        ids, gains = self._appended(parents, tokens, totals)
        kept = [
            i
            for i, beam in enumerate(self.beams)
            if not beam.is_done(ids[i], gains[i], totals[i])
        ]
        self.beams = [self.beams[i] for i in kept]
        self.log_probabilities = totals[kept]
        self._ids, self._gains = ids[kept], gains[kept]
        return torch.from_numpy(rows[kept]), torch.from_numpy(tokens[kept])

    def _appended(
        self,
        parents: Int64[np.ndarray, "sentences group"],
        tokens: Int64[np.ndarray, "sentences group"],
        totals: Float64[np.ndarray, "sentences group"],
    ) -> tuple[
        Int64[np.ndarray, "sentences group length"],
        Float64[np.ndarray, "sentences group length"],
    ]:
        """The parents with one more token each, and what each token has added."""
        ids = np.take_along_axis(self._ids, parents[..., None], axis=1)
        gains = np.take_along_axis(self._gains, parents[..., None], axis=1)
        before = np.take_along_axis(self.log_probabilities, parents, axis=1)
        with np.errstate(invalid="ignore"):  # of what does not go on
            gain = totals - before
        return (
            np.concatenate([ids, tokens[..., None]], axis=2),
            np.concatenate([gains, gain[..., None]], axis=2),
        )

    def _finish(
        self, candidates: Candidates, is_end: Bool[np.ndarray, "sentences candidates"]
    ) -> None:
        is_possible = candidates.log_probabilities > -math.inf
        for i, j in zip(*np.nonzero(is_end & is_possible), strict=True):
            parent = candidates.parents[i, j]
            gain = (
                candidates.log_probabilities[i, j] - self.log_probabilities[i, parent]
            )
            self.beams[i].finish(
                self._ids[i, parent], np.append(self._gains[i, parent], gain)
            )


class _Beam:
    """What has been found for one sentence."""

    def __init__(
        self, max_length: int, prefix: tuple[int, ...], config: SearchConfig
    ) -> None:
        self.prefix = prefix
        self._max_length = max_length
        self._config = config
        self._finished: list[Hypothesis] = []
        self._best_scores = [-math.inf] * config.num_best
        """Best first: of the hypotheses that are asked for."""

    def finish(
        self,
        ids: Int64[np.ndarray, " length"],
        gains: Float64[np.ndarray, " tokens"],
    ) -> None:
        """Keep a hypothesis; the gain of its end, if it has one, comes last."""
        total = float(gains.sum())
        score = self._config.score(total, length=len(gains))
        self._best_scores = sorted([*self._best_scores, score], reverse=True)[:-1]
        self._finished.append(
            Hypothesis(
                ids=tuple(ids.tolist()),
                log_probability=total,
                token_log_probabilities=tuple(gains.tolist()),
                score=score,
                is_finished=len(gains) > len(ids),
            )
        )

    def is_done(
        self,
        ids: Int64[np.ndarray, "group length"],
        gains: Float64[np.ndarray, "group length"],
        log_probabilities: Float64[np.ndarray, " group"],
    ) -> bool:
        """Whether nothing unfinished can overtake those that are asked for."""
        best, length = float(log_probabilities.max()), ids.shape[1]
        if best > -math.inf and length < self._max_length:
            # Log-probabilities only fall and the divisor never does, so that nothing
            # unfinished can score above this.
            return self._best_scores[-1] >= self._config.score(best, self._max_length)
        if not self._finished:
            for i in np.flatnonzero(log_probabilities > -math.inf):
                self.finish(ids[i], gains[i])
        return True

    def best(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        ranked = sorted(self._finished, key=lambda h: h.score, reverse=True)
        return ranked[: self._config.beam_size]
