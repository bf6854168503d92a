"""The speed and memory of training, ours and that of others, on the same updates.

All take turns, one update at a time, so that a machine that is busy or hot for a while
slows all alike; each has its own process, so that its memory is its own.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from transduce.benchmark import measurement
from transduce.benchmark.measurement import (
    MOST_ROUNDS,
    Machine,
    Turn,
    Worker,
    describe_machine,
    order_of_turns,
)
from transduce.benchmark.training_systems import (
    OURS,
    PEERS,
    TrainingTask,
    UpdateOutcome,
    contestant,
    obstacle,
    peers_on,
)
from transduce.device import Hardware
from transduce.experiments.presets import RunConfig
from transduce.model.cost import count_parameters
from transduce.settings import require_between

WARM_UP_ROUNDS = 2
"""Not counted: memory is allotted, kernels are chosen."""
PACKAGES = ("torch", "numpy", "transformers")

Round = Mapping[str, Turn[UpdateOutcome]]
"""The same update, made by every contestant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantSpeed:
    """How one contestant trained; medians are over the rounds."""

    name: str
    tokens_per_second: float
    """Target tokens, the median."""
    our_advantage: float
    """How many times as long as ours the same update took, the median."""
    matrix_share: float
    """FLOPs needed a second over the machine's matrix rate, the median."""
    peak_bytes: int
    """Resident memory of its process, or allotted on the GPU."""
    seconds: tuple[float, ...]
    """Of each round."""
    losses: tuple[float, ...]
    """Smoothed cross-entropy of each round, nats a target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpeed:
    """What came of a comparison."""

    machine: Machine
    hardware: str
    """Device and precision."""
    num_parameters: int
    rounds: int
    target_tokens: tuple[int, ...]
    """Of the update of each round."""
    update_flops: tuple[int, ...]
    """The same; what the sentences need, so that padding gains nobody anything."""
    matrix_rate: float
    """FLOP/s of large square products, the best of all rounds."""
    contestants: tuple[ContestantSpeed, ...]
    left_out: tuple[str, ...] = ()
    """Why some did not take part, one sentence each."""
    load: float = 0.0
    """Programs that wanted to run in the minute before it, on average."""


def measure_training(
    run: RunConfig,
    hardware: Hardware,
    rounds: int,
    on_round: Callable[[int], None],
    *,
    are_peers_plain: bool = False,
) -> TrainingSpeed:
    """Let all train by turns; `on_round` is told the number of each round before it.

    The rounds up to `WARM_UP_ROUNDS` are not counted. Peers have our settings of
    memory, unless they are to be plain.
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
    """The machine's matrix rate in each round, and what the contestants did in it."""
    device = task.hardware.device
    measure = partial(measurement.take_turns, task.hardware)
    rates: list[float] = []
    played: list[Round] = []
    with ExitStack() as stack:
        yardstick = stack.enter_context(Worker("The matrix rate", measure, device))
        workers = {
            name: stack.enter_context(Worker(name, contestant(name, task), device))
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
        # Else they would not have trained on the same update.
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
        contestants=tuple(
            _contestant_speed(name, rounds, flops, rate)
            for name in (OURS, *PEERS)
            if name in rounds[0]
        ),
    )


def _contestant_speed(
    name: str, rounds: Sequence[Round], flops: Sequence[int], rate: float
) -> ContestantSpeed:
    turns = [each[name] for each in rounds]
    ours = [each[OURS] for each in rounds]
    return ContestantSpeed(
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
