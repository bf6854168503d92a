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

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import ConfigError

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
    """What search needs of a model. A row is one hypothesis of one sentence.

    The rows of a sentence stand together, `beam_size` of them.
    """

    def step(self, last_ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        """Read one more token in each row; log-probabilities of the next, to keep."""
        ...

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the state, in this order."""
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
    beams = [_Beam(limit, config, eos) for limit in max_lengths]
    live = list(beams)
    last_ids = torch.full((len(live) * config.beam_size,), bos)
    while live:
        log_probs = model.step(last_ids)
        log_probs[:, list(excluded)] = -math.inf
        live, rows, last_ids = _advance(live, log_probs, config.beam_size)
        if live:
            model.reorder(rows)
    return [beam.best() for beam in beams]


def _advance(
    live: list["_Beam"], log_probs: Float[Tensor, "rows vocab"], beam_size: int
) -> tuple[list["_Beam"], Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Grow all beams by a token; those that go on, their rows and last ids."""
    alive = torch.tensor(
        [beam.log_probabilities() for beam in live], dtype=torch.float64
    )
    totals = log_probs.double().view(len(live), beam_size, -1) + alive.to(
        log_probs.device
    ).unsqueeze(-1)
    vocab_size = totals.size(-1)
    # Even if a whole beam's worth of the best candidates end, as many go on.
    num_candidates = min(2 * beam_size, beam_size * vocab_size)
    values, indices = totals.flatten(1).topk(num_candidates)
    survivors, rows, last_ids = [], [], []
    candidates = zip(live, values.tolist(), indices.tolist(), strict=True)
    for i, (beam, beam_values, beam_indices) in enumerate(candidates):
        parents = beam.grow(beam_values, beam_indices, vocab_size)
        if not beam.is_done():
            survivors.append(beam)
            rows += [i * beam_size + parent for parent in parents]
            last_ids += beam.last_ids()
    device = log_probs.device
    return (
        survivors,
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(last_ids, dtype=torch.int64, device=device),
    )


@dataclass(frozen=True, slots=True)
class _Alive:
    ids: tuple[int, ...]
    log_probability: float


class _Beam:
    """The hypotheses of one sentence."""

    def __init__(self, max_length: int, config: SearchConfig, eos: int) -> None:
        self._max_length = max_length
        self._config = config
        self._eos = eos
        # All rows begin alike, so only one of them may have descendants at first.
        dead = _Alive((), -math.inf)
        self._alive = [_Alive((), 0.0)] + [dead] * (config.beam_size - 1)
        self._finished: list[Hypothesis] = []
        self._length = 0

    def log_probabilities(self) -> list[float]:
        return [alive.log_probability for alive in self._alive]

    def last_ids(self) -> list[int]:
        return [alive.ids[-1] if alive.ids else self._eos for alive in self._alive]

    def grow(
        self, values: list[float], indices: list[int], vocab_size: int
    ) -> list[int]:
        """Take the best candidates; return the parent of each that goes on."""
        self._length += 1
        alive: list[_Alive] = []
        parents: list[int] = []
        for value, index in zip(values, indices, strict=True):
            parent, token = divmod(index, vocab_size)
            if value == -math.inf:
                continue
            if token == self._eos:
                self._finish(self._alive[parent].ids, value, is_finished=True)
            elif len(alive) < self._config.beam_size:
                alive.append(_Alive((*self._alive[parent].ids, token), value))
                parents.append(parent)
        missing = self._config.beam_size - len(alive)
        self._alive = alive + [_Alive((), -math.inf)] * missing
        return parents + [0] * missing

    def is_done(self) -> bool:
        """Whether no unfinished hypothesis can come out ahead of the best finished."""
        best_alive = self._alive[0].log_probability
        if best_alive == -math.inf or self._length >= self._max_length:
            return True
        if not self._finished:
            return False
        # Log-probabilities only fall and the penalty only grows with the length, so
        # nothing alive can score above this.
        bound = best_alive / self._penalty(self._max_length)
        return max(h.score for h in self._finished) >= bound

    def best(self) -> list[Hypothesis]:
        """The finished ones, best first; if there are none, those cut short."""
        if not self._finished:
            for alive in self._alive:
                if alive.log_probability > -math.inf:
                    self._finish(alive.ids, alive.log_probability, is_finished=False)
        ranked = sorted(self._finished, key=lambda h: h.score, reverse=True)
        return ranked[: self._config.beam_size]

    def _finish(
        self, ids: tuple[int, ...], log_probability: float, *, is_finished: bool
    ) -> None:
        score = log_probability / self._penalty(self._length)
        self._finished.append(
            Hypothesis(
                ids=ids,
                log_probability=log_probability,
                score=score,
                is_finished=is_finished,
            )
        )

    def _penalty(self, length: int) -> float:
        return length_penalty(length, self._config.length_penalty)
