"""`transduce reproduce`: the paper's tables, our figures beside those of the paper."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from rich.console import Console

from transduce.analysis.cost import SUSTAINED_TFLOPS, Cluster
from transduce.benchmark.machine import describe_machine
from transduce.benchmark.matrix_rate import matrix_rate
from transduce.cli.options import Files
from transduce.cli.reports import finish, require_new
from transduce.device import choose_hardware, keep_freed_memory
from transduce.errors import ConfigError
from transduce.experiments.tables.table1 import as_report as table1_report
from transduce.experiments.tables.table1 import measure_table1
from transduce.experiments.tables.table2 import Table2, our_row, training_cost
from transduce.experiments.tables.table2 import as_report as table2_report
from transduce.text.corpus import read_pairs

Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]


def table1(*, out: Path, max_rounds: int = 40) -> None:
    """Measure what layers cost (section 4), beside the formulas of Table 1.

    The processor is used, in one thread, for some minutes; a busy one takes longer.

    Parameters
    ----------
    out
        A new folder for the report: Markdown with pictures, a page, and JSON.
    max_rounds
        Rounds of measurements at most; they end as soon as the exponents are steady.
    """
    if max_rounds < 1:
        raise ConfigError(f"`max_rounds` must be at least 1, but is {max_rounds}.")
    require_new(out)
    keep_freed_memory()  # for it would be paid for again in every turn
    machine = describe_machine(("torch", "numpy"), torch.device("cpu"))
    with Console(stderr=True).status("Starting...") as status:
        table = measure_table1(
            machine=str(replace(machine, num_threads=1)),
            load=os.getloadavg()[0],
            max_rounds=max_rounds,
            on_progress=status.update,
        )
    finish(table1_report(table), asdict(table), out, "table1")


def table2(
    *runs: Path,
    out: Path,
    presets: Names = ("base", "big"),
    source: Files = (),
    reference: Files = (),
    language: str = "de",
    hardware: str = "this",
    tflops: float | None = None,
    devices: int = 1,
    device: str = "auto",
) -> None:
    """Place runs among the models of Table 2 (section 6.1), and forecast trainings.

    Parameters
    ----------
    runs
        Folders of runs, to be scored by both protocols of BLEU.
    out
        A new folder for the report: Markdown, a page, and JSON.
    presets
        Whose costs are told, and whose trainings are forecast.
    source
        Test text, for the runs to translate.
    reference
        Its true translations.
    language
        Of the reference, for the paper's tokenisation; compounds are split in "de".
    hardware
        K80, K40, M40 or P100, whose speed the paper tells; this, whose speed is
        measured; or a name of your own, with --tflops.
    tflops
        What one device sustains.
    devices
        How many there are of them.
    device
        auto, cpu or cuda, for translating and measuring here.
    """
    if bool(runs) != bool(source):
        raise ConfigError("Runs and a --source to translate must go together.")
    require_new(out)
    costs = tuple(training_cost(name) for name in presets)
    with Console(stderr=True).status(
        "Measuring the speed of this machine..."
    ) as status:
        cluster = _cluster(hardware, tflops, devices, device)
        pairs = list(read_pairs(source, reference))
        ours = []
        for run in runs:
            status.update(f"Translating with {run}...")
            ours.append(our_row(run, pairs, language, device))
    table = Table2(ours=tuple(ours), costs=costs, cluster=cluster)
    finish(table2_report(table), asdict(table), out, "table2")


def _cluster(
    hardware: str, tflops: float | None, num_devices: int, device: str
) -> Cluster:
    if num_devices < 1:
        raise ConfigError(f"`devices` must be at least 1, but is {num_devices}.")
    if tflops is None and hardware == "this":
        here = choose_hardware(device)
        return Cluster(
            name=str(here), tflops=matrix_rate(here) / 1e12, num_devices=num_devices
        )
    tflops = tflops if tflops is not None else SUSTAINED_TFLOPS.get(hardware)
    if tflops is None:
        raise ConfigError(
            f"`hardware` must be this, {', '.join(SUSTAINED_TFLOPS)}, or come with "
            f"--tflops, but is {hardware}."
        )
    if tflops <= 0:
        raise ConfigError(f"`tflops` must be above 0, but is {tflops}.")
    return Cluster(name=hardware, tflops=tflops, num_devices=num_devices)
