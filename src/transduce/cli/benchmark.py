"""`transduce benchmark`: our speed beside that of others, in one run."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from statistics import mean
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from transduce.benchmark.training_speed import (
    WARM_UP_ROUNDS,
    TrainingSpeed,
    measure_training,
)
from transduce.cli.options import Assignments, run_config
from transduce.device import Precision, choose_hardware

BUSY_LOAD = 0.5
"""Programs that want to run, from which on figures are not to be trusted."""


def training(
    *,
    preset: str = "base",
    settings: Assignments = (),
    device: str = "auto",
    precision: Precision = "auto",
    rounds: int = 5,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Measure the speed and memory of training, ours beside other libraries'.

    Hugging Face Marian and torch.nn.Transformer train the same model on the same
    batches in the same precision, each in its own process, one update each by turns.

    Parameters
    ----------
    preset
        The settings of model, batches and training: base, big, multi30k, ...
    settings
        Single settings, such as model.num_layers=2.
    device
        auto, cpu or cuda.
    precision
        Of matrix products: bf16 where the processor is good at it, by default.
    rounds
        Updates measured of each, after two that are not.
    json_output
        Print one JSON object.
    """
    hardware = choose_hardware(device, precision)
    run = run_config(preset, None, settings)
    with Console(stderr=True).status("Starting...") as status:
        speed = measure_training(
            run,
            hardware,
            rounds,
            on_round=lambda number: status.update(
                f"Round {number} of {WARM_UP_ROUNDS + rounds}..."
            ),
        )
    if json_output:
        print(json.dumps(asdict(speed), indent=2))
    else:
        for line in table(speed):
            print(line)


def table(speed: TrainingSpeed) -> Iterator[str]:
    """The figures as lines of text."""
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
    yield f"{f'Rounds: {speed.rounds}':<22}" + "".join(f"{h:>16}" for h in heads)
    for each in speed.contestants:
        cells = (
            f"{each.tokens_per_second:,.0f}",
            f"{each.our_advantage:.2f} x",
            f"{each.matrix_share:.1%}",
            f"{each.peak_bytes / 1e6:,.0f} MB",
        )
        yield f"{each.name:<22}" + "".join(f"{cell:>16}" for cell in cells)
    if speed.load > BUSY_LOAD:
        yield ""
        yield (
            f"Other programs were running (load {speed.load:.1f}): the figures are too "
            "low, and the ratios rough."
        )
