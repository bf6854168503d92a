"""What a search has found for a sentence."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A decoded sequence without its special tokens."""

    ids: tuple[int, ...]
    log_probability: float
    """Natural logarithm, the end token counted."""
    token_log_probabilities: tuple[float, ...]
    """Of each id and, if it is finished, of the end token."""
    score: float
    """Log-probability over the length penalty, and what coverage takes from it: what
    search maximizes."""
    is_finished: bool = True
    """Whether it ended by itself, not by the limit of length."""


class Step(NamedTuple):
    """The hypotheses of a beam that went on, by their last tokens."""

    parents: list[int]
    """Which of the step before each goes on from."""
    tokens: list[int]
    log_probabilities: list[float]
    """Of all tokens so far."""


class End(NamedTuple):
    """A hypothesis that goes on no more."""

    score: float
    log_probability: float
    num_steps: int
    """By which its tokens were found, its end not counted."""
    last: int
    """Its number in the last of these."""
    is_finished: bool


def traced(end: End, steps: Sequence[Step]) -> Hypothesis:
    """The hypothesis that ended so, from its last token to its first."""
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
