"""Speed and memory of training: transduce and other systems, on the same updates.

All systems take turns, one update at a time, so that a busy or hot machine slows all
alike. Each has its own process, so that its memory is its own.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median

from transduce.benchmark import measurement
from transduce.benchmark.measurement import (
    MOST_ROUNDS,
    NAME_WIDTH,
    Machine,
    Turn,
    Worker,
    describe_machine,
    load_warning,
    order_of_turns,
)
from transduce.benchmark.training_systems import (
    OURS,
    PEERS,
    TrainingTask,
    UpdateOutcome,
    obstacle,
    peers_on,
    work_of,
)
from transduce.device import Hardware
from transduce.experiments.presets import RunConfig
from transduce.model.sizes import count_parameters
from transduce.settings import require_between

WARM_UP_ROUNDS = 2
"""Rounds that are not counted, in which memory is allocated and kernels are chosen."""
PACKAGES = ("torch", "numpy", "transformers")

Round = Mapping[str, Turn[UpdateOutcome]]
"""One update by every system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpeed:
    """Speed and memory of one system; medians are over the rounds."""

    name: str
    tokens_per_second: float
    """Median of target tokens per second."""
    our_advantage: float
    """Median of the system's time for an update over ours."""
    matrix_share: float
    """Median of the model's FLOP/s over the machine's matrix rate."""
    peak_bytes: int
    """Peak resident memory of the process, or peak GPU memory."""
    seconds: tuple[float, ...]
    """Time of each round."""
    losses: tuple[float, ...]
    """Smoothed cross-entropy of each round, in nats per target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpeed:
    """Results of a comparison of training."""

    machine: Machine
    hardware: str
    """Device and precision."""
    num_parameters: int
    rounds: int
    target_tokens: tuple[int, ...]
    """Target tokens of each round's update."""
    update_flops: tuple[int, ...]
    """FLOPs of each round's update, without padding."""
    matrix_rate: float
    """Best FLOP/s of large square matrix products in all rounds."""
    systems: tuple[SystemSpeed, ...]
    left_out: tuple[str, ...] = ()
    """Sentences about systems that could not take part."""
    load: float = 0.0
    """Load average of the minute before the measurement."""


def measure_training(
    run: RunConfig,
    hardware: Hardware,
    rounds: int,
    on_round: Callable[[int], None],
    *,
    are_peers_plain: bool = False,
) -> TrainingSpeed:
    """Measure the training speed of all systems in turns.

    The first `WARM_UP_ROUNDS` are not counted. Peers get our memory settings, unless
    `are_peers_plain`. Calls `on_round` with the number of each round before it.
    """
    require_between("rounds", rounds, 1, MOST_ROUNDS)
    task = TrainingTask(
        run=run,
        hardware=hardware,
        steps=WARM_UP_ROUNDS + rounds,
        are_peers_plain=are_peers_plain,
    )
    load = os.getloadavg()[0]
    peers = peers_on(hardware.device)
    obstacles = {name: obstacle(name, task.model) for name in peers}
    names = [OURS, *(name for name, reason in obstacles.items() if reason is None)]
    rates, played = _play(task, names, on_round)
    speed = _summary(task, max(rates), played[WARM_UP_ROUNDS:])
    left_out = tuple(reason for reason in obstacles.values() if reason is not None)
    return replace(speed, load=load, left_out=left_out)


def _play(
    task: TrainingTask, names: Sequence[str], on_round: Callable[[int], None]
) -> tuple[list[float], list[Round]]:
    """Matrix rate of the machine and results of the systems in each round."""
    device = task.hardware.device
    measure = partial(measurement.take_turns, task.hardware)
    rates: list[float] = []
    played: list[Round] = []
    with ExitStack() as stack:
        yardstick = stack.enter_context(Worker("the matrix rate", measure, device))
        workers = {
            name: stack.enter_context(Worker(name, work_of(name, task), device))
            for name in names
        }
        for number in range(task.steps):
            on_round(number + 1)
            rates.append(yardstick.take_turn().outcome)
            played.append(
                {
                    name: workers[name].take_turn()
                    for name in order_of_turns(names, number)
                }
            )
    return rates, played


def _summary(task: TrainingTask, rate: float, rounds: Sequence[Round]) -> TrainingSpeed:
    tokens = tuple(each[OURS].outcome.num_target_tokens for each in rounds)
    for turns in rounds:
        # All systems must have trained on the same update.
        assert len({turn.outcome.num_target_tokens for turn in turns.values()}) == 1
    flops = tuple(task.update_flops()[-len(rounds) :])
    return TrainingSpeed(
        machine=describe_machine(PACKAGES, task.hardware.device),
        hardware=str(task.hardware),
        num_parameters=count_parameters(task.model).total,
        rounds=len(rounds),
        target_tokens=tokens,
        update_flops=flops,
        matrix_rate=rate,
        systems=tuple(
            _system_speed(name, rounds, flops, rate)
            for name in (OURS, *PEERS)
            if name in rounds[0]
        ),
    )


def _system_speed(
    name: str, rounds: Sequence[Round], flops: Sequence[int], rate: float
) -> SystemSpeed:
    turns = [each[name] for each in rounds]
    ours = [each[OURS] for each in rounds]
    return SystemSpeed(
        name=name,
        tokens_per_second=median(
            t.outcome.num_target_tokens / t.seconds for t in turns
        ),
        our_advantage=median(
            theirs.seconds / our.seconds
            for theirs, our in zip(turns, ours, strict=True)
        ),
        matrix_share=median(
            needed / turn.seconds / rate
            for needed, turn in zip(flops, turns, strict=True)
        ),
        peak_bytes=turns[-1].peak_bytes,
        seconds=tuple(turn.seconds for turn in turns),
        losses=tuple(turn.outcome.loss for turn in turns),
    )


def training_table(speed: TrainingSpeed) -> Iterator[str]:
    """Format a comparison of training as lines of text."""
    yield f"Machine: {speed.machine}"
    yield f"Matrix products: {speed.matrix_rate / 1e9:,.0f} GFLOP/s on {speed.hardware}"
    yield (
        f"Model: {speed.num_parameters:,} parameters; an update is about "
        f"{mean(speed.target_tokens):,.0f} target tokens and "
        f"{mean(speed.update_flops) / 1e9:,.1f} GFLOP"
    )
    yield from speed.left_out
    yield ""
    heads = ("target tokens/s", "ours / this", "of matrix rate", "peak memory")
    yield f"{f'Rounds: {speed.rounds}':<{NAME_WIDTH}}" + "".join(
        f"{h:>16}" for h in heads
    )
    for each in speed.systems:
        cells = (
            f"{each.tokens_per_second:,.0f}",
            f"{each.our_advantage:.2f} x",
            f"{each.matrix_share:.1%}",
            f"{each.peak_bytes / 1e6:,.0f} MB",
        )
        yield f"{each.name:<{NAME_WIDTH}}" + "".join(f"{cell:>16}" for cell in cells)
    yield from load_warning(speed.load)
