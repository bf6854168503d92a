"""Hypotheses of a sentence, and how searches in Python store them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Sum over all tokens, the end token included; natural logarithm."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each id and, if finished, of the end token."""
    score: float
    """Log-probability divided by the length penalty, plus the weighted coverage: what
    search maximizes."""
    is_finished: bool = True
    """Whether it ended with the end token, not at the length limit."""


class Step(NamedTuple):
    """Live hypotheses of a beam after one step, by the tokens that it appended."""

    parents: list[int]
    """Number of the hypothesis of the step before that each one extends."""
    tokens: list[int]
    log_probabilities: list[float]
    """Sum over all tokens so far."""


class End(NamedTuple):
    """A hypothesis that ended or was cut short."""

    score: float
    log_probability: float
    num_steps: int
    """Steps that appended its tokens, the end token not counted."""
    last: int
    """Its number among the hypotheses of the last of these steps."""
    is_finished: bool


def traced(end: End, steps: Sequence[Step]) -> Hypothesis:
    """Follow a hypothesis from its last token to its first."""
    ids, totals, number = [], [end.log_probability], end.last
    if not end.is_finished:
        totals.clear()
    for step in reversed(steps[: end.num_steps]):
        ids.append(step.tokens[number])
        totals.append(step.log_probabilities[number])
        number = step.parents[number]
    gains = (now - before for before, now in pairwise([0.0, *reversed(totals)]))
    return Hypothesis(
        ids=tuple(reversed(ids)),
        log_probability=end.log_probability,
        token_log_probabilities=tuple(gains),
        score=end.score,
        is_finished=end.is_finished,
    )
