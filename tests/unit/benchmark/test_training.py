"""Order, warm-up and medians, with systems whose times are known."""

from functools import partial
from statistics import median

import pytest

from transduce.benchmark import training as training_speed
from transduce.benchmark.measurement import Turn, within_quota
from transduce.benchmark.training import (
    HUGGING_FACE,
    OURS,
    TORCH,
    WARM_UP_ROUNDS,
    TrainingTask,
    UpdateOutcome,
    in_large_batches,
    measure_training,
)
from transduce.data.batches import Update
from transduce.errors import ConfigError
from transduce.experiments.presets import RunConfig, preset
from transduce.model.config import count_parameters

SECONDS = {
    OURS: [9.0, 9.0, 1.0, 2.0, 4.0],
    HUGGING_FACE: [9.0, 9.0, 4.0, 6.0, 8.0],
    TORCH: [9.0, 9.0, 3.0, 3.0, 3.0],
}
RATES = [1e6, 2e6, 1e6, 3e6, 1e6]
YARDSTICK = "the matrix rate"


class KnownWorker:
    """Worker with given times that records the order of turns."""

    order: list[str]
    plain: list[bool]
    environments: dict[str, dict[str, str]]

    def __init__(self, name, work, device, environment=None) -> None:
        assert isinstance(work, partial)
        assert work.func is within_quota
        self.environments[name] = environment or {}
        self.name = name
        self.updates = iter(())
        if name == YARDSTICK:
            self.rates = iter(RATES)
        else:
            [measured] = work.args
            task = measured.args[-1]
            self.plain.append(task.are_peers_plain)
            self.updates = iter(task.updates(task.dataset()))
            self.seconds = iter(SECONDS[name])

    def __enter__(self) -> "KnownWorker":
        return self

    def __exit__(self, *_) -> None:
        self.order.append(f"{self.name} goes")

    def take_turn(self) -> Turn:
        self.order.append(self.name)
        if self.name == YARDSTICK:
            return Turn(outcome=next(self.rates), seconds=0.1, peak_bytes=7)
        update, seconds = next(self.updates), next(self.seconds)
        outcome = UpdateOutcome(num_target_tokens=update.num_target_tokens, loss=5.0)
        return Turn(outcome=outcome, seconds=seconds, peak_bytes=int(1e3 * seconds))


@pytest.fixture
def order(monkeypatch):
    """Names of the systems in the order of their turns."""
    KnownWorker.order, KnownWorker.plain, KnownWorker.environments = [], [], {}
    monkeypatch.setattr(training_speed, "Worker", KnownWorker)
    monkeypatch.setattr(training_speed, "obstacle", lambda name, config: None)
    return KnownWorker.order


@pytest.fixture
def speed(order, task):
    return measure_training(task.run, task.hardware, 3, on_round=lambda _: None)


@pytest.mark.parametrize("is_plain", [True, False])
def test_peers_are_plain_on_request(order, task, is_plain):
    measure_training(
        task.run, task.hardware, 1, lambda _: None, are_peers_plain=is_plain
    )
    assert KnownWorker.plain == 3 * [is_plain]


def test_only_the_named_peers_take_part(order, task):
    measure_training(task.run, task.hardware, 1, lambda _: None, peers=[TORCH])
    assert {each for each in order if " goes" in each} == {
        f"{YARDSTICK} goes", f"{OURS} goes", f"{TORCH} goes"
    }  # fmt: skip


def test_large_batches_make_updates_of_as_many_tokens_and_few_batches(cpu):
    run = preset("base")

    def updates(run: RunConfig) -> list[Update]:
        task = TrainingTask(run=run, hardware=cpu, steps=30)
        return list(task.updates(task.dataset()))

    usual, large = updates(run), updates(in_large_batches(run))
    assert min(len(each.batches) for each in usual) > 5
    assert max(len(each.batches) for each in large) <= 2
    sizes = [median(each.num_target_tokens for each in all) for all in (usual, large)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


@pytest.mark.parametrize("shortens", [True, False])
@pytest.mark.usefixtures("order")
def test_peers_train_with_openmps_own_settings(monkeypatch, task, shortens):
    monkeypatch.setattr("transduce.SHORTENS_SPINS", shortens)
    measure_training(task.run, task.hardware, 1, on_round=lambda _: None)
    default = {"GOMP_SPINCOUNT": "300000"} if shortens else {}
    assert KnownWorker.environments == {
        YARDSTICK: {},
        OURS: {"MALLOC_ARENA_MAX": "1"},
        HUGGING_FACE: default,
        TORCH: default,
    }


def of(speed, name):
    return next(each for each in speed.systems if each.name == name)


def test_systems_take_turns_in_rotating_order(order, speed):
    rounds = [
        [YARDSTICK, OURS, HUGGING_FACE, TORCH],
        [YARDSTICK, HUGGING_FACE, TORCH, OURS],
        [YARDSTICK, TORCH, OURS, HUGGING_FACE],
        [YARDSTICK, OURS, HUGGING_FACE, TORCH],
        [YARDSTICK, HUGGING_FACE, TORCH, OURS],
    ]
    ends = [f"{name} goes" for name in (TORCH, HUGGING_FACE, OURS, YARDSTICK)]
    assert order == [*sum(rounds, []), *ends]
    assert len(rounds) == WARM_UP_ROUNDS + 3
    assert [each.name for each in speed.systems] == [OURS, HUGGING_FACE, TORCH]


def test_the_warm_up_is_not_counted(speed):
    assert speed.rounds == 3
    assert of(speed, OURS).seconds == (1, 2, 4)
    assert of(speed, HUGGING_FACE).losses == (5.0,) * 3
    assert len(speed.target_tokens) == len(speed.update_flops) == 3


def test_speeds_are_medians_over_the_rounds(speed):
    tokens, flops = speed.target_tokens, speed.update_flops
    marian = of(speed, HUGGING_FACE)
    assert marian.tokens_per_second == median(
        [tokens[0] / 4, tokens[1] / 6, tokens[2] / 8]
    )
    assert marian.matrix_share == pytest.approx(
        median([flops[0] / 4, flops[1] / 6, flops[2] / 8]) / 3e6
    )
    # The median of 4, 3 and 2 times our time, not a ratio of medians.
    assert marian.our_advantage == 3
    assert of(speed, TORCH).our_advantage == 1.5
    assert of(speed, OURS).our_advantage == 1


def test_the_matrix_rate_is_the_best_of_all_rounds(speed):
    assert speed.matrix_rate == 3e6


def test_the_peak_memory_is_that_of_the_last_round(speed):
    assert of(speed, OURS).peak_bytes == 4000


def test_the_load_is_measured_before_the_comparison(monkeypatch, order, task):
    monkeypatch.setattr("os.getloadavg", lambda: (1.5 + len(order), 0.0, 0.0))
    speed = measure_training(task.run, task.hardware, 1, on_round=lambda _: None)
    assert speed.load == 1.5


def test_the_result_describes_the_measurement(speed, task):
    assert speed.num_parameters == count_parameters(task.model).total
    assert speed.hardware == "cpu (fp32)"
    assert "torch" in speed.machine.versions
    assert speed.left_out == ()


def test_the_result_has_the_updates_after_the_warm_up(speed, task):
    longer = training_speed.TrainingTask(run=task.run, hardware=task.hardware, steps=5)
    updates = list(longer.updates(longer.dataset()))
    assert speed.target_tokens == tuple(u.num_target_tokens for u in updates[2:])
    assert speed.update_flops == tuple(longer.update_flops()[2:])


def test_a_system_left_out_takes_no_turn_and_is_reported(monkeypatch, order, task):
    reasons = {HUGGING_FACE: "Marian is ill.", TORCH: None}
    monkeypatch.setattr(training_speed, "obstacle", lambda name, _: reasons[name])
    speed = measure_training(task.run, task.hardware, 1, on_round=lambda _: None)
    assert speed.left_out == ("Marian is ill.",)
    assert set(order) & {OURS, HUGGING_FACE, TORCH} == {OURS, TORCH}


def test_rounds_are_announced_when_they_start(order, task):
    numbers = []
    measure_training(
        task.run, task.hardware, 1, on_round=lambda n: numbers.append((n, len(order)))
    )
    assert numbers == [(1, 0), (2, 4), (3, 8)]


@pytest.mark.parametrize("rounds", [0, -1])
def test_zero_rounds_are_refused(task, rounds):
    message = f"`rounds` must be at least 1, but is {rounds}"
    with pytest.raises(ConfigError, match=message):
        measure_training(task.run, task.hardware, rounds, on_round=lambda _: None)
