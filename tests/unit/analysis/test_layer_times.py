"""Exponents fitted to known times of layers, and the order of turns."""

from collections import Counter

import pytest
import torch

from callers_modes import MODES
from transduce.analysis import cost as module
from transduce.analysis.cost import MIN_ROUNDS, LayerSizes, Sweep, measure_scaling

SWEEP = Sweep(
    layer="recurrent",
    letter="d",
    values=(2, 3, 5),
    others=LayerSizes(n=4, d=1, k=2, r=2),
    theory=2,
    batch=6,
)
OTHER = Sweep(
    layer="convolutional",
    letter="n",
    values=(2, 4, 8),
    others=LayerSizes(n=1, d=3, k=2, r=2),
    theory=1,
)


class Clock:
    """Clock that advances by a layer's given time, times the noise of the turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.noise = iter(lambda: 1.0, 0.0)
        self.turns: list[LayerSizes] = []
        self.shapes: set[tuple[int, ...]] = set()

    def make_layer(self, layer: str, sizes: LayerSizes) -> torch.nn.Module:
        clock = self
        power = 2.25 if layer == "recurrent" else 1.0

        class Known(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                clock.turns.append(sizes)
                clock.shapes.add(tuple(x.shape))
                seconds = sizes.d**power if layer == "recurrent" else sizes.n
                clock.now += seconds * next(clock.noise)
                assert torch.get_num_threads() == 1
                assert (x.dtype, x.device.type) == (torch.float32, "cpu")
                assert not torch.is_grad_enabled()
                return x

        return Known()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "make_layer", clock.make_layer)
    monkeypatch.setattr(module.time, "process_time", lambda: clock.now)
    return clock


def nothing(number: int) -> None:
    pass


def test_the_exponent_is_fitted_to_the_times(clock: Clock):
    found = measure_scaling([SWEEP, OTHER], 99, nothing)
    first, second = found.growths
    assert first.exponent == pytest.approx(2.25)
    assert first.seconds == pytest.approx([2**2.25, 3**2.25, 5**2.25])
    assert first.fitted() == pytest.approx(list(first.seconds))
    assert second.exponent == pytest.approx(1)
    assert (first.sweep, second.sweep) == (SWEEP, OTHER)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_modes_of_the_caller_do_not_change_the_layers(clock: Clock, mode):
    with mode():
        measure_scaling([SWEEP], MIN_ROUNDS, nothing)
    assert clock.turns  # the layer checks its input


def test_the_measurement_ends_when_the_exponents_are_steady(clock: Clock):
    heard = []
    found = measure_scaling([SWEEP], 99, heard.append)
    assert (found.rounds, found.is_steady) == (MIN_ROUNDS, True)
    assert heard == list(range(1, MIN_ROUNDS + 1))


def test_the_measurement_ends_after_the_most_rounds(clock: Clock):
    random = torch.Generator().manual_seed(1)
    clock.noise = iter(lambda: float(torch.rand(1, generator=random)), -1.0)
    found = measure_scaling([SWEEP], MIN_ROUNDS + 3, nothing)
    assert (found.rounds, found.is_steady) == (MIN_ROUNDS + 3, False)


def test_a_disturbed_turn_does_not_change_the_exponent(clock: Clock):
    turns = iter(range(10**6))
    # The third round, after the warm-up.
    clock.noise = iter(lambda: 50.0 if 9 <= next(turns) < 12 else 1.0, -1.0)
    found = measure_scaling([SWEEP], 7, nothing)
    assert found.growths[0].exponent == pytest.approx(2.25)


def test_layers_take_turns_in_changing_order(clock: Clock):
    measure_scaling([SWEEP, OTHER], 99, nothing)
    rounds = [clock.turns[i : i + 6] for i in range(0, len(clock.turns), 6)]
    # The first round is the warm-up.
    assert len(rounds) == MIN_ROUNDS + 1
    assert all(Counter(each) == Counter(rounds[0]) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 2


def test_a_sweep_changes_one_size_only(clock: Clock):
    measure_scaling([SWEEP, OTHER], 1, nothing)
    recurrent = {(6, 4, d) for d in SWEEP.values}
    convolutional = {(1, n, 3) for n in OTHER.values}
    assert clock.shapes == recurrent | convolutional
    assert all(size.k == 2 for size in clock.turns)


def test_the_number_of_threads_is_restored(clock: Clock):
    torch.set_num_threads(2)
    try:
        measure_scaling([SWEEP], 1, nothing)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
