"""`transduce reproduce`: the paper's tables, with measured figures beside the
paper's."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import Parameter as Kind
from inspect import signature
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter

from transduce.analysis.cost import SUSTAINED_TFLOPS, Cluster
from transduce.benchmark.measurement import describe_machine, matrix_rate
from transduce.cli.data import DataDisplay
from transduce.cli.options import (
    Assignments,
    changed_by_options,
    require_distinct,
)
from transduce.cli.terminal import (
    Files,
    Force,
    ProgressDisplay,
    error_console,
    finish_report,
    require_new_folder,
)
from transduce.data.corpus_files import (
    CorpusFiles,
    EvaluationText,
    require_different_names,
)
from transduce.data.named_corpora import NamedCorpus, assemble, named_corpus
from transduce.device import choose_hardware
from transduce.errors import ConfigError, DataError, neither_or_both
from transduce.experiments import scaling as scaling_experiment
from transduce.experiments.environment import current_environment
from transduce.experiments.presets import RunConfig, preset
from transduce.experiments.run_processes import (
    CORPUS,
    Experiment,
    ExperimentProgress,
    Run,
    RunsFailedError,
    Slot,
    Workers,
    locked,
    make_slots,
    refuse_other_contents,
    run_all,
    with_seed,
)
from transduce.experiments.table1 import as_report as table1_report
from transduce.experiments.table1 import measure_table1
from transduce.experiments.table2 import (
    Table2,
    Target,
    TrainedTable2,
    logged_run,
    our_row,
    trained_report,
    training_cost,
)
from transduce.experiments.table2 import as_report as table2_report
from transduce.experiments.table2_training import EXPERIMENT as TABLE2_RECORD
from transduce.experiments.table2_training import (
    Match,
    SystemExperiment,
    ensembles_of,
    is_small_corpus,
    path_lengths,
    recipes,
    require_systems,
    results_of,
    system_config,
    system_runs,
)
from transduce.experiments.table3 import EXPERIMENT as TABLE3_RECORD
from transduce.experiments.table3 import Experiment as Table3Experiment
from transduce.experiments.table3 import as_report as table3_report
from transduce.experiments.table3 import base_for, collect, require_rows, row_runs
from transduce.experiments.table4 import Setting, Table4, our_rows
from transduce.experiments.table4 import as_report as table4_report
from transduce.machine import Precision, WaitingMeter, keep_freed_memory
from transduce.metrics.comparison import Trials
from transduce.metrics.scores import Tokenize
from transduce.report.report import Report
from transduce.settings import assigned_values, require_between
from transduce.text.corpus import read_pairs, require_text
from transduce.text.languages import LanguagesConfig, guess_all

Names = Annotated[tuple[str, ...], Parameter(consume_multiple=1, negative="")]
Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=1, negative="")]
Pairs = Annotated[
    tuple[tuple[Path, Path], ...],
    Parameter(consume_multiple=1, negative="", show_default=False),
]
MAX_DEVICES = 1_000_000
Size = Literal["auto", "small", "published"]
MIN_SCALE, MAX_SCALE = 1 / 64, 64
MAX_STEPS = 10**9
MAX_TFLOPS = 1_000_000
"""Maximum speed of a device, a thousand times that of today's fastest."""


def table1(*, out: Path, force: Force = False, max_rounds: int = 40) -> None:
    """Measure what layers cost (section 4), beside the formulas of Table 1.

    The measurement uses one thread of the processor for some minutes.

    For example:

        transduce reproduce table1 --out table1

    Parameters
    ----------
    out
        A new folder for the report: Markdown with pictures, a page, and JSON.
    force
        Overwrite an older report in that folder.
    max_rounds
        Maximum number of rounds; they end as soon as the exponents are stable.
    """
    if max_rounds < 1:
        raise ConfigError(f"--max-rounds must be at least 1, but is {max_rounds}.")
    require_new_folder(out, force=force, made_by="reproduce table1")
    keep_freed_memory()  # for it would be paid for again in every turn
    machine = describe_machine(("torch", "numpy"), torch.device("cpu"))
    with error_console().status("Starting...") as status:
        table = measure_table1(
            machine=str(replace(machine, num_threads=1)),
            load=os.getloadavg()[0],
            max_rounds=max_rounds,
            on_progress=status.update,
        )
    report = table1_report(table)
    finish_report(report, asdict(table), out, "reproduce table1", overwrite=force)


def table2(
    *runs: Path,
    out: Path,
    force: Force = False,
    train: Annotated[bool, Parameter(negative="")] = False,
    presets: Names = ("base", "big"),
    source: Files = (),
    reference: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    test: Pairs = (),
    corpus: str | None = None,
    systems: Names = (),
    seeds: Numbers = (1,),
    match: Match = "parameters",
    size: Size = "auto",
    scale: float = 1.0,
    steps: int | None = None,
    settings: Assignments = (),
    parallel: int | None = None,
    precision: Precision = "auto",
    resamples: int = 1000,
    language: Annotated[
        str | None, Parameter(name=("--target-language", "--language"))
    ] = None,
    tokenize: Tokenize = "auto",
    hardware: str = "this",
    tflops: float | None = None,
    devices: int = 1,
    device: str = "auto",
) -> None:
    """Place runs among the models of Table 2 (section 6.1), or train its systems.

    Without --train: the paper's table with given runs in it, and forecasts. With
    --train: every system of the table is trained on the same text. The same command
    continues where it was stopped, and adds systems and seeds; the report has those
    that the command names. Several seeds also form an ensemble.

    For example:

        transduce reproduce table2 --presets base big multi30k --out table2
        transduce reproduce table2 runs/mine --source a.en --reference a.de --out table2
        transduce reproduce table2 --train --corpus multi30k --seeds 1 2 --out trained

    Parameters
    ----------
    runs
        Folders of runs to score by both protocols of BLEU.
    out
        A folder for the report: Markdown, a page, and JSON; new, or with --train that
        of an experiment to continue.
    force
        Overwrite an older report in that folder.
    train
        Train the systems of the table.
    presets
        Presets whose costs are listed and whose training times are forecast.
    source
        Test text for the runs to translate; with --train the training text.
    reference
        Reference translations of the test text.
    target
        With --train: translations of the training text.
    dev_source
        With --train: held-out text for checkpoints and learning curves.
    dev_target
        Its translations.
    test
        With --train: pairs of a test text and its references.
    corpus
        With --train: a named corpus of `transduce data`, in place of files.
    systems
        With --train: bytenet, deep-att, gnmt, gnmt-rl, convs2s, moe, base or big; all
        by default.
    seeds
        With --train: seeds of each system's trainings.
    match
        With --train: change the widths until all systems have the base Transformer's
        number of parameters, or the number of updates until they cost its FLOPs.
    size
        With --train: sizes as published, or small ones of about 2 million parameters;
        auto takes those that fit the number of training pairs.
    scale
        With --train: factor on all widths and vocabularies.
    steps
        With --train: number of updates of the base Transformer; the others change in
        proportion.
    settings
        With --train: single settings of all systems, such as
        batching.target_tokens=4096.
    parallel
        With --train: number of simultaneous trainings; by default one on each CUDA
        device, or one.
    precision
        With --train: precision of matrix products in training, the same in all systems.
    resamples
        With --train: number of resamples of the bootstrap.
    language
        Language of the reference as a BCP 47 tag; by default that of its ending or of
        the run, otherwise German. Only German compounds are split.
    tokenize
        sacreBLEU's tokenizer; by default the one for the language.
    hardware
        K80, K40, M40 or P100, with the paper's speeds; this, whose speed is measured;
        or any other name, with --tflops.
    tflops
        TFLOP/s that one device sustains.
    devices
        Number of devices.
    device
        auto, cpu or cuda, for training, translation and measurement on this machine.
    """
    if train:
        _require_defaults(
            "with --train",
            runs=runs, reference=reference, force=force, presets=presets,
            language=language, tokenize=tokenize, hardware=hardware, tflops=tflops,
            devices=devices,
        )  # fmt: skip
        chosen = chosen_corpus(
            corpus, corpus_files(source, target, dev_source, dev_target)
        )
        options = TrainedOptions(
            systems=tuple(require_systems(systems)),
            seeds=tuple(dict.fromkeys(seeds)),
            match=match,
            size=size,
            scale=scale,
            steps=steps,
            settings=settings,
            parallel=parallel,
            device=device,
            precision=precision,
            trials=Trials(resamples=resamples),
        )
        _train_table2(out, chosen, test, options)
        return
    _require_defaults(
        "without --train",
        target=target, dev_source=dev_source, dev_target=dev_target, test=test,
        corpus=corpus, systems=systems, seeds=seeds, match=match, size=size,
        scale=scale, steps=steps, settings=settings, parallel=parallel,
        precision=precision, resamples=resamples,
    )  # fmt: skip
    _require_runs_and_text(
        runs, source, reference=reference, language=language, tokenize=tokenize
    )
    require_distinct("--presets", presets)
    named = LanguagesConfig(target=language).target or guess_all(reference)
    require_new_folder(out, force=force, made_by="reproduce table2")
    table = _placed_runs(
        runs,
        (source, reference),
        Target(language=named, tokenize=tokenize),
        presets,
        MachineOptions(
            hardware=hardware, tflops=tflops, num_devices=devices, device=device
        ),
    )
    report = table2_report(table)
    finish_report(report, asdict(table), out, "reproduce table2", overwrite=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """Options of `table2` about the machine of the runs and of the forecast."""

    hardware: str
    """Name of the machine; "this" stands for the present one."""
    tflops: float | None
    num_devices: int
    device: str

    @property
    def is_measured(self) -> bool:
        """Whether the speed of this machine is measured."""
        return self.hardware == "this" and self.tflops is None


def _placed_runs(
    runs: Sequence[Path],
    text: tuple[Files, Files],
    target: Target,
    presets: Sequence[str],
    machine: MachineOptions,
) -> Table2:
    """Score runs on a text with its references, and measure the machine."""
    pairs = list(read_pairs(*text, ("source", "reference")))
    if runs:
        (source, *_), (reference, *_) = text
        require_text(source, (pair.source for pair in pairs))
        require_text(reference, (pair.target for pair in pairs))
    logged = [logged_run(run) for run in runs]  # find faults before any work
    costs = tuple(training_cost(name) for name in presets)
    load = os.getloadavg()[0]
    with error_console().status("Measuring the speed of this machine...") as status:
        meter = WaitingMeter()
        cluster = _cluster(machine)
        waited = meter.share()
        ours = []
        for run in logged:
            status.update(f"Translating with {run.path}...")
            ours.append(our_row(run, pairs, target, machine.device))
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


SEEDED = {"training.seed": "use --seeds"}
"""Setting that all experiments vary, and what to use instead."""
OPTIONS = {"runs": "A run", "settings": "--set", "language": "--target-language"}
"""Options of `table2` that have other names than their parameters."""


def _require_defaults(mode: str, **values: object) -> None:
    """Raise `ConfigError` unless these parameters of `table2` have their defaults.

    They have no effect in this mode, such as "without --train".
    """
    defaults = {
        name: () if each.kind is Kind.VAR_POSITIONAL else each.default
        for name, each in signature(table2).parameters.items()
    }
    for name, value in values.items():
        if value != defaults[name]:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise ConfigError(f"{option} has no effect {mode}; leave it out.")


def _require_runs_and_text(
    runs: Sequence[Path], source: Files, **of_text: object
) -> None:
    """Raise `ConfigError` unless there are different runs and a text, or neither."""
    require_distinct("RUNS", runs)
    if bool(runs) != bool(source):
        raise ConfigError(
            "Runs and --source must be given together, but only one of them is."
        )
    if not runs:
        _require_defaults("without runs", **of_text)


def _refuse_settings(assignments: Sequence[str], options: Mapping[str, str]) -> None:
    """Raise `ConfigError` for settings of an experiment that its options decide.

    `options` has what to do instead by a setting's full name, or that of its table.
    """
    for name, _ in assigned_values(assignments):
        instead = options.get(name) or options.get(name.partition(".")[0])
        if instead is not None:
            raise ConfigError(
                f"`{name}` must not be changed by --set in this experiment; {instead}."
            )


def _values_of_is_small(corpus: NamedCorpus | CorpusFiles, size: Size) -> list[bool]:
    """Possible values of `is_small`: both before a corpus is downloaded, else one."""
    if size != "auto":
        return [size == "small"]
    return (
        [is_small_corpus(corpus)] if isinstance(corpus, CorpusFiles) else [True, False]
    )


def _require_possible(
    corpus: NamedCorpus | CorpusFiles, options: TrainedOptions
) -> None:
    """Raise `ConfigError` if no size that the corpus may need has valid settings."""
    _refuse_settings(
        options.settings, {**SEEDED, "model": "use --size, --scale and --match"}
    )
    for seed in options.seeds:
        with_seed(preset("base"), seed)
    faults: list[ConfigError] = []
    possible = _values_of_is_small(corpus, options.size)
    for is_small in possible:
        try:
            _system_configs(options, is_small=is_small)
        except ConfigError as error:
            faults.append(error)
    if len(faults) == len(possible):
        raise faults[0]


def _system_configs(
    options: TrainedOptions, *, is_small: bool
) -> dict[str, tuple[str, RunConfig]]:
    """Return the preset and the settings of each system."""
    return {
        key: system_config(
            key,
            is_small=is_small,
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


def _train_table2(
    out: Path,
    corpus: NamedCorpus | CorpusFiles,
    test: Sequence[tuple[Path, Path]],
    options: TrainedOptions,
) -> None:
    """Train the systems of Table 2, translate by each and by ensembles, and report."""
    require_between("--scale", options.scale, MIN_SCALE, MAX_SCALE)
    require_between("--steps", options.steps, 1, MAX_STEPS)
    width = preset("base").model.d_model
    hardware = choose_hardware(options.device, options.precision, width=width)
    slots = make_slots(options.device, options.parallel)
    _require_possible(corpus, options)
    tests = _read_tests(test, corpus)
    refuse_other_contents(out, TABLE2_RECORD, "a training of Table 2")
    with locked(out) as lock:
        files = fetched(corpus, out / CORPUS)
        if isinstance(corpus, NamedCorpus) and not tests:
            tests = fetched_tests(corpus, out / CORPUS)
        [is_small] = _values_of_is_small(files, options.size)
        configs = _system_configs(options, is_small=is_small)
        experiment = SystemExperiment(
            folder=out.absolute(),
            files=files,
            device=options.device,
            precision=hardware.precision,
        )
        runs = system_runs(experiment.folder, configs, options.seeds, tests)
        experiment.begin(runs)
        paths = path_lengths(configs)  # before the runs, so that a fault costs little
        failures = _complete(experiment, runs, slots, lock)
        ensembles = ensembles_of(runs)
        for each in ensembles:
            each.discard_stale()
        failures |= _complete(experiment, ensembles, slots, lock)
        table = TrainedTable2(
            machine=str(hardware),
            files=files.absolute_names(),
            precision=hardware.precision,
            match=options.match,
            results=tuple(results_of(runs, ensembles, options.trials)),
            recipes=recipes(configs),
            paths=paths,
            failures=failures,
        )
        _replace_report(trained_report(table), asdict(table), out, "table2")
    _require_all_done(runs, failures)


def table3(
    *,
    out: Path,
    corpus: str | None = None,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    scale: float | None = None,
    steps: int | None = None,
    rows: Names = (),
    seeds: Numbers = (1,),
    settings: Assignments = (),
    parallel: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Precision = "auto",
    resamples: int = 1000,
    shuffles: int = 10_000,
) -> None:
    """Vary the base model as Table 3 does (section 6.2), at any scale.

    Every row is a separate training. The same command continues where it was stopped,
    and adds rows and seeds; the report has those that the command names. With --scale 1
    and --corpus wmt14-en-de it is the paper's experiment.

    For example:

        transduce reproduce table3 --corpus multi30k --seeds 1 2 --out table3

    Parameters
    ----------
    out
        Folder of the experiment: runs, their logs, and the report.
    corpus
        Named corpus of `transduce data`, downloaded into the folder; alternatively,
        give files by --source, --target, --dev-source and --dev-target.
    source
        Text files, one sentence per line, plain or gzip.
    target
        Their translations, line by line.
    dev_source
        Held-out text on which the rows are scored.
    dev_target
        Its translations.
    scale
        Factor on the widths d_model, d_ff, d_k, d_v and on the vocabulary: a multiple
        of 1/8. The numbers of heads and layers stay; rows change sizes by the paper's
        factors. By default 1, the paper's; for --corpus multi30k 1/4, with half the
        layers, small updates and a small vocabulary.
    steps
        Number of updates of base: 100,000 in the paper (2,000 for --corpus multi30k
        without --scale); big has three times as many. With fewer than 20,000, a fifth
        of them are warm-up.
    rows
        Rows by the names of their presets (A-h1, C-N2, ...); all by default. Base is
        always among them.
    seeds
        Seeds of each row's trainings; their figures are pooled.
    settings
        Single settings of the base, such as batching.target_tokens=4096.
    parallel
        Number of simultaneous trainings; by default one on each CUDA device, or one.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products in training, the same in all rows; auto is the
        choice of `transduce train` for base.
    resamples
        Number of resamples of the paired bootstrap.
    shuffles
        Number of shuffles of approximate randomisation.
    """
    trials = Trials(resamples=resamples, shuffles=shuffles)
    _refuse_settings(settings, SEEDED)
    base = changed_by_options(base_for(corpus, scale, steps), None, settings)
    runs = row_runs(
        out.absolute(), base, require_rows(rows), list(dict.fromkeys(seeds))
    )
    slots = make_slots(device, parallel)
    hardware = choose_hardware(device, precision, width=base.model.d_model)
    files = corpus_files(source, target, dev_source, dev_target)
    chosen = chosen_corpus(corpus, files)
    refuse_other_contents(out, TABLE3_RECORD, "a reproduction of Table 3")
    with locked(out) as lock:
        experiment = Table3Experiment(
            folder=out.absolute(),
            files=fetched(chosen, out / CORPUS),
            base=base,
            device=device,
            precision=hardware.precision,
        )
        experiment.begin()
        failures = _complete(experiment, runs, slots, lock)
        table = collect(experiment, runs, failures, trials)
        _replace_report(table3_report(table), asdict(table), out, "table3")
    _require_all_done(runs, failures)


def table4(
    *,
    out: Path,
    force: Force = False,
    wsj_only: Pairs = (),
    semi_supervised: Pairs = (),
    treebank: str | None = None,
    split: str | None = None,
    device: str = "auto",
) -> None:
    """Place parses among the parsers of Table 4 (section 6.3).

    Trees are normalized, and predicted words get the gold tags, as with
    `transduce evaluate-parses --normalize --gold-tags`.

    For example:

        transduce reproduce table4 --wsj-only gold own --treebank WSJ --split 23 --out t

    Parameters
    ----------
    out
        A new folder for the report: Markdown, a page, and JSON.
    force
        Overwrite an older report in that folder.
    wsj_only
        Pairs of a gold file and a parser trained on the treebank only. The parser is a
        file of its trees, or a run or model folder, which parses the gold words.
    semi_supervised
        The same for parsers that were also trained on other trees.
    treebank
        Name of the treebank; the paper's is the Wall Street Journal.
    split
        Name of the test part; the paper's is section 23.
    device
        auto, cpu or cuda, for parsing.
    """
    if not wsj_only and not semi_supervised:
        raise ConfigError(
            "Trees must be given: --wsj-only or --semi-supervised, each with GOLD "
            "PREDICTED."
        )
    if treebank is None or split is None:
        raise ConfigError(
            "F1 is meaningless without its test set; name it by --treebank and --split."
        )
    require_new_folder(out, force=force, made_by="reproduce table4")
    given: dict[Setting, Pairs] = {
        "WSJ only": wsj_only,
        "semi-supervised": semi_supervised,
    }
    ours = our_rows(
        [(setting, *pair) for setting, pairs in given.items() for pair in pairs], device
    )
    table = Table4(ours=ours, treebank=treebank, split=split)
    report = table4_report(table)
    finish_report(report, asdict(table), out, "reproduce table4", overwrite=force)


def scaling(
    *,
    out: Path,
    d_k: Annotated[Numbers, Parameter(name="--d-k")] = (16, 64, 256),
    heads: int = 1,
    steps: int = 900,
    seeds: Numbers = (1,),
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    settings: Assignments = (),
    parallel: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Precision = "fp32",
) -> None:
    """Compare scaled, unscaled and additive attention (section 3.2.1).

    First the scores of random queries and keys are measured as d_k grows: their
    variance (footnote 4), and the entropy and gradient of the softmax. Then a small
    model is trained with each kind of score and each d_k, by default on the built-in
    corpus, in about ten minutes. The same command continues where it was stopped, and
    adds widths and seeds; the report has those that the command names.

    For example:

        transduce reproduce scaling --d-k 16 64 256 --seeds 1 2 --out scaling

    Parameters
    ----------
    out
        Folder of the experiment: runs, their logs, and the report.
    d_k
        Dimensions of a head's queries and keys; d_model is as many times the heads.
    heads
        Number of heads.
    steps
        Number of updates of each training.
    seeds
        Seeds of each row's trainings.
    source
        Text files instead of the built-in corpus, one sentence per line.
    target
        Their translations, line by line.
    dev_source
        Held-out text on which perplexity is measured.
    dev_target
        Its translations.
    settings
        Single settings of all trainings, such as model.num_layers=2.
    parallel
        Number of simultaneous trainings; by default one on each CUDA device, or one.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products in training, the same in all rows.
    """
    _refuse_settings(settings, SEEDED | scaling_experiment.VARIED)
    base = changed_by_options(scaling_experiment.base_config(steps), None, settings)
    runs = scaling_experiment.scores_runs(out.absolute(), base, d_k, heads, seeds)
    slots = make_slots(device, parallel)
    hardware = choose_hardware(device, precision)
    files = corpus_files(source, target, dev_source, dev_target)
    refuse_other_contents(
        out, scaling_experiment.EXPERIMENT, "an experiment of `reproduce scaling`"
    )
    with locked(out) as lock:
        corpus = out.absolute() / CORPUS
        experiment = scaling_experiment.ScalingExperiment(
            folder=out.absolute(),
            files=files or scaling_experiment.built_in_corpus(corpus),
            base=base,
            heads=heads,
            device=device,
            precision=hardware.precision,
        )
        experiment.begin()
        with error_console().status("Starting...") as status:
            statistics = scaling_experiment.measure_scores(
                scaling_experiment.MEASURED_WIDTHS, status.update
            )
        failures = _complete(experiment, runs, slots, lock)
        machine = describe_machine(("torch", "numpy"), hardware.device)
        figures = scaling_experiment.collect(
            experiment, statistics, runs, failures, str(machine)
        )
        report = scaling_experiment.as_report(figures)
        _replace_report(report, asdict(figures), out, "scaling")
    _require_all_done(runs, failures)


def _complete(
    experiment: Experiment,
    runs: Sequence[Run],
    slots: Sequence[Slot],
    lock: tuple[int, ...],
) -> dict[str, str]:
    """Complete runs of an experiment; return the reason of each failure by name."""
    with ExperimentDisplay(runs) as display:
        workers = Workers(experiment, slots, lock)
        return run_all(runs, workers, display.went_on)


def _replace_report(
    report: Report, figures: Mapping[str, object], out: Path, name: str
) -> None:
    """Print the report of an experiment, and write it in place of an older one."""
    folder, command = out / "report", f"reproduce {name}"
    finish_report(report, figures, folder, command, overwrite=True)


def _require_all_done(runs: Sequence[Run], failures: Mapping[str, str]) -> None:
    """Raise `RunsFailedError` if a run has failed."""
    if failures:
        name, why = next(iter(failures.items()))
        raise RunsFailedError(
            f"All runs must be done, but {len(failures)} of {len(runs)} failed; the "
            f"first is {name}: {why} The same command tries them again."
        )


class ExperimentDisplay(ProgressDisplay):
    """Progress of the trainings of an experiment."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self._num_runs = len(runs)
        self._num_steps = sum(run.num_steps for run in runs)
        self._has_begun = False

    def went_on(self, progress: ExperimentProgress) -> None:
        """Start counting from existing results."""
        if not self._has_begun:
            self.begin(progress.steps, self._num_steps)
            self._has_begun = True
        what = f"{progress.num_ended} of {self._num_runs} runs"
        self.show(what, progress.working, progress.steps)


def corpus_files(
    source: Files, target: Files, dev_source: Files, dev_target: Files
) -> CorpusFiles | None:
    """Return the user's corpus files, or None if none are given."""
    sides = (source, target, dev_source, dev_target)
    if not any(sides):
        return None
    if not all(sides):
        raise ConfigError(
            "Both sides of a corpus and of its held-out part must be given: --source, "
            "--target, --dev-source and --dev-target."
        )
    for path in (path for side in sides for path in side):
        if not path.is_file():
            raise DataError(f"{path}: a corpus must be a file, but there is none.")
    return CorpusFiles(
        source=source, target=target, dev_source=dev_source, dev_target=dev_target
    )


def chosen_corpus(
    name: str | None, files: CorpusFiles | None
) -> NamedCorpus | CorpusFiles:
    """Return the named corpus or the files; exactly one must be given."""
    if name is not None and files is None:
        return named_corpus(name)
    if name is None and files is not None:
        return files
    raise ConfigError(
        "Either a named --corpus or files (--source, --target, --dev-source and "
        f"--dev-target) must be given, but {neither_or_both(are_given=bool(files))}"
    )


def fetched(corpus: NamedCorpus | CorpusFiles, folder: Path) -> CorpusFiles:
    """Return the files; a named corpus is downloaded and prepared if necessary."""
    if isinstance(corpus, CorpusFiles):
        return corpus
    with DataDisplay() as display:
        assembled = assemble(corpus, folder, display)
    source, target, *_ = corpus.languages
    return CorpusFiles(
        source=(assembled.path(corpus.train, source),),
        target=(assembled.path(corpus.train, target),),
        dev_source=(assembled.path(corpus.dev, source),),
        dev_target=(assembled.path(corpus.dev, target),),
    )


def fetched_tests(corpus: NamedCorpus, folder: Path) -> list[EvaluationText]:
    """Return the test texts of a named corpus."""
    with DataDisplay() as display:
        assembled = assemble(corpus, folder, display)
    source, target, *_ = corpus.languages
    return [
        EvaluationText.of(assembled.path(split, source), assembled.path(split, target))
        for split in corpus.tests
    ]


def _cluster(machine: MachineOptions) -> Cluster:
    """Return the devices that the options describe, measured if they are here."""
    num_devices = machine.num_devices
    require_between("--devices", num_devices, 1, MAX_DEVICES)
    if machine.is_measured:
        here = choose_hardware(machine.device)
        return Cluster(
            name=str(here), tflops=matrix_rate(here) / 1e12, num_devices=num_devices
        )
    hardware, tflops = machine.hardware, machine.tflops
    tflops = tflops if tflops is not None else SUSTAINED_TFLOPS.get(hardware)
    if tflops is None:
        raise ConfigError(
            f"--hardware must be this, {', '.join(SUSTAINED_TFLOPS)}, or come with "
            f"--tflops, but is {hardware}."
        )
    if not 0 < tflops <= MAX_TFLOPS:
        raise ConfigError(
            f"--tflops must be above 0 and at most {MAX_TFLOPS:,}, but is {tflops}."
        )
    return Cluster(name=hardware, tflops=tflops, num_devices=num_devices)
