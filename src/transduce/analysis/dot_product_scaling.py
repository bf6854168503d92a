"""How the time of a layer grows with its sizes: exponents, fitted to measurements.

In processor time of one thread, which other programs of the machine disturb less than
the time on the wall. All are measured by turns, again and again, until the two halves
of the rounds agree.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import log
from statistics import geometric_mean, linear_regression, median
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from transduce.analysis.cost import LayerSizes, LayerType
from transduce.analysis.layer_types import make_layer

MIN_ROUNDS = 6
STEADY = 0.03
"""By which the exponents of odd and even rounds may differ."""
SEED = 1
"""Of the order in which layers take their turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One size of a layer taken through several values, the others fixed."""

    layer: LayerType
    letter: Literal["n", "d", "k", "r"]
    values: tuple[int, ...]
    others: LayerSizes
    theory: int
    """The exponent of Table 1."""
    batch: int = 1
    """Sequences at a time."""

    @property
    def sizes(self) -> list[LayerSizes]:
        return [replace(self.others, **{self.letter: value}) for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What came of a sweep."""

    sweep: Sweep
    seconds: tuple[float, ...]
    """Processor time of a layer at each value, the median."""
    exponent: float

    def fitted(self) -> list[float]:
        """Seconds by the power of the exponent nearest to the medians."""
        centre_x, centre_y = (
            geometric_mean(self.sweep.values),
            geometric_mean(self.seconds),
        )
        return [centre_y * (x / centre_x) ** self.exponent for x in self.sweep.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What came of all sweeps."""

    growths: tuple[Growth, ...]
    rounds: int
    is_steady: bool
    """Whether the rounds were enough for the two halves of them to agree."""


class _Trial:
    """A layer and its input, to be timed again and again."""

    def __init__(self, sweep: Sweep, sizes: LayerSizes) -> None:
        self.layer: nn.Module = make_layer(sweep.layer, sizes)
        self.input: Tensor = torch.randn(sweep.batch, sizes.n, sizes.d)
        self.seconds: list[float] = []

    def take_turn(self) -> None:
        started = time.process_time()
        self.layer(self.input)
        self.seconds.append(time.process_time() - started)


def measure_scaling(
    sweeps: Sequence[Sweep], max_rounds: int, on_round: Callable[[int], None]
) -> Scaling:
    """Time forward passes; `on_round` is told the number of each round before it."""
    random, rounds, is_steady = np.random.default_rng(SEED), 0, False
    with _one_thread(), torch.inference_mode():
        tried = [[_Trial(sweep, sizes) for sizes in sweep.sizes] for sweep in sweeps]
        trials = [trial for each in tried for trial in each]
        for trial in trials:
            trial.layer(trial.input)  # kernels are chosen, memory is allotted
        while rounds < max_rounds and not is_steady:
            rounds += 1
            on_round(rounds)
            for i in random.permutation(len(trials)):
                trials[i].take_turn()
            is_steady = rounds >= MIN_ROUNDS and all(
                _halves_agree(sweep, each)
                for sweep, each in zip(sweeps, tried, strict=True)
            )
    growths = [
        _growth(sweep, [trial.seconds for trial in each])
        for sweep, each in zip(sweeps, tried, strict=True)
    ]
    return Scaling(growths=tuple(growths), rounds=rounds, is_steady=is_steady)


def _growth(sweep: Sweep, seconds: Sequence[Sequence[float]]) -> Growth:
    """The slope of the medians where both axes are logarithmic."""
    medians = [median(each) for each in seconds]
    slope, _ = linear_regression(list(map(log, sweep.values)), list(map(log, medians)))
    return Growth(sweep=sweep, seconds=tuple(medians), exponent=slope)


def _halves_agree(sweep: Sweep, trials: Sequence[_Trial]) -> bool:
    odd, even = (
        _growth(sweep, [trial.seconds[first::2] for trial in trials]).exponent
        for first in (0, 1)
    )
    return abs(odd - even) < STEADY


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
