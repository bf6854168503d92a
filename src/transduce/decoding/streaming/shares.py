"""Which process searches for which sentences, so that all take about as long."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

MIN_SHARE = 8
"""Sentences for which a process of their own pays."""


class StepRows(NamedTuple):
    """What a step takes, counted in rows of its matrix products."""

    of_sentence: int
    """One for each of its hypotheses."""
    in_any_case: int
    """To read weights, and to begin."""

    def cost(self, steps: int, *, is_first: bool) -> int:
        """Of a sentence: the first, the longest, bears what all steps take."""
        return steps * (self.of_sentence + self.in_any_case * is_first)


def num_shares(num_sentences: int, most: int) -> int:
    """One at least, and none that is too small."""
    return max(min(most, num_sentences // MIN_SHARE), 1)


def mixed(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Shares of long and short sentences, by their number, from the steps of each.

    That is for many, as it does not matter if all long ones take longer than was
    thought.
    """
    shares: list[list[int]] = [[] for _ in range(number)]
    costs = [(0, i) for i in range(number)]
    for sentence in _longest_first(steps):
        cost, i = heappop(costs)
        shares[i].append(sentence)
        cost += rows.cost(steps[sentence], is_first=len(shares[i]) == 1)
        heappush(costs, (cost, i))
    return shares


def alike(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Shares of sentences that are about as long, by their number, from their steps.

    That is for those that are searched for in one batch each: as it takes as many steps
    as its longest, only one of them takes as many as the longest of all.
    """
    order = _longest_first(steps)
    lengths = [steps[sentence] for sentence in order]
    # The least that no share needs to cost more than.
    low, high = 0, sum(rows.cost(each, is_first=True) for each in lengths)
    while low < high:
        middle = (low + high) // 2
        if len(list(_cut(lengths, rows, middle))) <= number:
            high = middle
        else:
            low = middle + 1
    return [order[share] for share in _cut(lengths, rows, high)]


def _longest_first(steps: Sequence[int]) -> list[int]:
    return sorted(range(len(steps)), key=steps.__getitem__, reverse=True)


def _cut(lengths: Sequence[int], rows: StepRows, most: int) -> Iterator[slice]:
    """Shares one after another, each as large as it can be for so much."""
    begin, cost = 0, 0
    for i, steps in enumerate(lengths):
        cost += rows.cost(steps, is_first=i == begin)
        if cost > most and i > begin:
            yield slice(begin, i)
            begin, cost = i, rows.cost(steps, is_first=True)
    yield slice(begin, len(lengths))
