"""What stands on the terminal before the first update."""

from dataclasses import replace

import pytest
import torch

from transduce.cli.display import TrainingDisplay
from transduce.device import Hardware
from transduce.experiments.observation import RunStart
from transduce.experiments.presets import PRESETS
from transduce.training.fitting import Fit

RUN = PRESETS["base"]
START = RunStart(
    config=replace(RUN, training=replace(RUN.training, steps=1_000)),
    corpus=None,
    num_parameters=63_100_000,
    hardware=Hardware(device=torch.device("cpu"), dtype=torch.float32),
    num_processes=1,
    fit=Fit(
        max_positions=2_000, was_cut=False, seconds=0.001, peak_bytes=3_250_000_000
    ),
    first_step=0,
)
"""50,000 positions an update, each of which takes a millisecond."""


@pytest.mark.parametrize(
    ("start", "updates", "forecast"),
    [
        (START, "1,000 of about 25,000 source and 25,000 target tokens", "13.9 hours"),
        (
            replace(START, num_processes=4),
            "1,000 of about 25,000 source and 25,000 target tokens on 4 processes",
            "3.5 hours",
        ),
        (
            replace(START, first_step=994, fit=replace(START.fit, was_cut=True)),
            "6 of about 25,000 source and 25,000 target tokens, cut to 2,000 positions "
            "at a time",
            "5 minutes",
        ),
    ],
    ids=["alone", "by several processes", "resumed and cut"],
)
def test_what_a_run_will_take_is_foretold(capsys, start, updates, forecast):
    TrainingDisplay().started(start)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Model: 63,100,000 parameters, vocabulary of "
        f"{RUN.model.vocab_size:,}, on cpu (fp32)",
        f"Updates: {updates}",
        f"Forecast: 3.2 GB of memory a process, about {forecast}, checkpoints apart",
    ]


def test_layers_that_cannot_be_compiled_are_told_of(capsys):
    fit = replace(START.fit, unfused="Failed to find C compiler.")
    TrainingDisplay().started(replace(START, fit=fit))
    warning = " ".join(capsys.readouterr().out.splitlines())
    assert "PyTorch cannot compile the layers here" in warning
    assert "Failed to find C compiler." in warning
