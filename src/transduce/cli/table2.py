"""Both modes of `transduce reproduce table2`: to place runs, and to train systems."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from transduce.analysis.cost import SUSTAINED_TFLOPS, Cluster
from transduce.benchmark.measurement import matrix_rate
from transduce.cli.experiments import (
    SEEDED,
    complete,
    fetched,
    fetched_tests,
    kept_hardware,
    opened,
    refuse_contradictory,
    refuse_settings,
    replace_report,
    require_all_done,
    require_possible,
    sound,
)
from transduce.cli.files import Files
from transduce.cli.options import changed_by_options, require_distinct
from transduce.cli.terminal import error_console
from transduce.data.corpus_files import CorpusFiles
from transduce.data.named_corpora import NamedCorpus
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.experiment import (
    CORPUS,
    EvaluationText,
    make_slots,
    require_different_names,
    with_seed,
)
from transduce.experiments.presets import RunConfig, preset
from transduce.experiments.resuming import current_environment
from transduce.experiments.table2 import (
    Scoring,
    Table2,
    TrainedTable2,
    logged_run,
    our_row,
    trained_report,
    training_cost,
)
from transduce.experiments.table2_training import EXPERIMENT as TABLE2_RECORD
from transduce.experiments.table2_training import (
    Match,
    SystemExperiment,
    ensembles_of,
    is_small_corpus,
    path_lengths,
    processors_of,
    read_results,
    recipes,
    results_of,
    system_config,
    system_runs,
)
from transduce.machine import Precision, WaitingMeter
from transduce.metrics.comparison import Trials
from transduce.settings import require_between
from transduce.text.corpus import read_pairs, require_text

Size = Literal["auto", "small", "published"]

THIS = "this"
"""Value of --hardware for the machine that runs the command."""
MAX_DEVICES = 1_000_000
MIN_SCALE, MAX_SCALE = 1 / 64, 64
MAX_STEPS = 10**9
MAX_TFLOPS = 1_000_000
"""Maximum speed of a device, a thousand times that of today's fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """Options of `table2` about the machine of the runs and of the forecast."""

    hardware: str
    """Name of the machine; `THIS` stands for the present one."""
    tflops: float | None
    num_devices: int
    device: str

    @property
    def is_measured(self) -> bool:
        """Whether the speed of this machine is measured."""
        return self.hardware == THIS and self.tflops is None

    def cluster(self) -> Cluster:
        """Return the devices that the options describe, measured if they are here."""
        require_between("--devices", self.num_devices, 1, MAX_DEVICES)
        if self.is_measured:
            here = choose_hardware(self.device)
            name, tflops = str(here), matrix_rate(here) / 1e12
        else:
            name = "this machine" if self.hardware == THIS else self.hardware
            tflops = self._sustained_tflops()
        return Cluster(name=name, tflops=tflops, num_devices=self.num_devices)

    def _sustained_tflops(self) -> float:
        """Return the speed given, or else that of known hardware."""
        tflops = self.tflops
        if tflops is None:
            tflops = SUSTAINED_TFLOPS.get(self.hardware)
        if tflops is None:
            raise ConfigError(
                f"--hardware must be {', '.join((THIS, *SUSTAINED_TFLOPS))}, or come "
                f"with --tflops, but is {self.hardware}."
            )
        if not 0 < tflops <= MAX_TFLOPS:
            raise ConfigError(
                f"--tflops must be above 0 and at most {MAX_TFLOPS:,}, but is {tflops}."
            )
        return tflops


def place_runs(
    runs: Sequence[Path],
    text: tuple[Files, Files],
    scoring: Scoring,
    presets: Sequence[str],
    machine: MachineOptions,
) -> Table2:
    """Score runs on a text with its references, and measure the machine."""
    pairs = list(read_pairs(*text, ("source", "reference")))
    if runs:
        (source, *_), (reference, *_) = text
        require_text(source, (pair.source for pair in pairs))
        require_text(reference, (pair.target for pair in pairs))
    # Find faults before any work.
    logged = [logged_run(run, scoring.language) for run in runs]
    costs = tuple(training_cost(name) for name in presets)
    load = os.getloadavg()[0]
    with error_console().status("Measuring the speed of this machine...") as status:
        meter = WaitingMeter()
        cluster = machine.cluster()
        waited = meter.share()
        ours = []
        for run in logged:
            status.update(f"Translating with {run.path}...")
            ours.append(our_row(run, pairs, scoring, machine.device))
    table = Table2(ours=tuple(ours), costs=costs, cluster=cluster)
    if not machine.is_measured:
        return table
    here = current_environment(choose_hardware(machine.device), machine.num_devices)
    return replace(table, load=load, measured=here, waited=waited)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOptions:
    """Options of `transduce reproduce table2 --train`."""

    systems: tuple[str, ...]
    seeds: tuple[int, ...]
    match: Match
    size: Size
    scale: float
    steps: int | None
    settings: tuple[str, ...]
    """Assignments for all systems."""
    parallel: int | None
    device: str
    precision: Precision
    trials: Trials


def _possible_sizes(corpus: NamedCorpus | CorpusFiles, size: Size) -> list[Size]:
    """Sizes that the systems may get: two before a corpus is downloaded, else one."""
    if size != "auto":
        return [size]
    if isinstance(corpus, NamedCorpus):
        return ["small", "published"]
    return ["small" if is_small_corpus(corpus) else "published"]


def _require_possible(
    out: Path, corpus: NamedCorpus | CorpusFiles, options: TrainedOptions
) -> None:
    """Raise `ConfigError` if no size that the corpus may need has valid settings.

    Systems whose training has begun are not checked again.
    """
    refuse_settings(
        options.settings, {**SEEDED, "model": "use --size, --scale and --match"}
    )
    for seed in options.seeds:
        with_seed(preset("base"), seed)
    faults: list[ConfigError] = []
    possible = _possible_sizes(corpus, options.size)
    for size in possible:
        try:
            configs = _system_configs(options, size)
            runs = system_runs(out, configs, options.seeds, ())
            new = {run.row: run.config for run in runs if not run.has_begun}
            refuse_contradictory(new, corpus)
        except ConfigError as error:
            faults.append(error)
    if len(faults) == len(possible):
        raise faults[0]


def _system_configs(
    options: TrainedOptions, size: Size
) -> dict[str, tuple[str, RunConfig]]:
    """Return the preset and the settings of each system."""
    return {
        key: system_config(
            key,
            is_small=size == "small",
            scale=options.scale,
            steps=options.steps,
            match=options.match,
            change=lambda config: changed_by_options(config, None, options.settings),
        )
        for key in options.systems
    }


def _read_tests(
    given: Sequence[tuple[Path, Path]], corpus: NamedCorpus | CorpusFiles
) -> list[EvaluationText]:
    """Read the given test texts through; without any, the named corpus must have some.

    Raises `ConfigError` or `DataError` for a fault.
    """
    require_distinct("--test", given)
    tests = [EvaluationText.of(*pair) for pair in given]
    if not tests and not (isinstance(corpus, NamedCorpus) and corpus.tests):
        raise ConfigError("Test texts must be given: --test SOURCE REFERENCES ....")
    require_different_names(tests)
    for text in tests:
        text.read_through()
    return tests


def train_systems(
    out: Path,
    corpus: NamedCorpus | CorpusFiles,
    test: Sequence[tuple[Path, Path]],
    options: TrainedOptions,
) -> None:
    """Train the systems of Table 2, translate by each and by ensembles, and report."""
    require_between("--scale", options.scale, MIN_SCALE, MAX_SCALE)
    require_between("--steps", options.steps, 1, MAX_STEPS)
    width = preset("base").model.d_model
    hardware = kept_hardware(
        out / TABLE2_RECORD, options.device, options.precision, width=width
    )
    slots = make_slots(options.device, options.parallel)
    _require_possible(out, corpus, options)
    tests = _read_tests(test, corpus)
    with opened(out, "table2", TABLE2_RECORD, "a training of Table 2") as lock:
        files = fetched(corpus, out / CORPUS)
        if isinstance(corpus, NamedCorpus) and not tests:
            tests = fetched_tests(corpus, out / CORPUS)
        [size] = _possible_sizes(files, options.size)
        configs = _system_configs(options, size)
        experiment = SystemExperiment(
            folder=out.absolute(),
            files=files,
            device=options.device,
            precision=hardware.precision,
        )
        runs = system_runs(experiment.folder, configs, options.seeds, tests)
        require_possible(runs, files, hardware)
        experiment.begin(runs)
        paths = path_lengths(configs)  # before the runs, so that a fault costs little
        failures = complete(experiment, runs, slots, lock, read_results)
        done = sound(runs, failures)
        ensembles = ensembles_of(done)
        for each in ensembles:
            each.discard_stale()
        failures |= complete(experiment, ensembles, slots, lock, read_results)
        table = TrainedTable2(
            processors=processors_of(done),
            files=files.absolute_names(),
            precision=hardware.precision,
            match=options.match,
            results=tuple(results_of(done, sound(ensembles, failures), options.trials)),
            recipes=recipes(configs),
            paths=paths,
            failures=failures,
        )
        replace_report(trained_report(table), asdict(table), out, "table2")
    require_all_done(runs, failures)
