"""`transduce reproduce`: the paper's tables, with our figures beside them."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from inspect import Parameter as Kind
from inspect import signature
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter

from transduce.benchmark.measurement import describe_machine
from transduce.cli.experiments import (
    SEEDED,
    chosen_corpus,
    complete,
    corpus_files,
    fetched,
    kept_hardware,
    opened,
    refuse_contradictory,
    refuse_settings,
    replace_report,
    require_all_done,
    require_possible,
)
from transduce.cli.files import Files, finish_report, lost_if_interrupted
from transduce.cli.help import option_name
from transduce.cli.options import Assignments, changed_by_options, require_distinct
from transduce.cli.table2 import (
    THIS,
    MachineOptions,
    Size,
    TrainedOptions,
    place_runs,
    train_systems,
)
from transduce.cli.terminal import error_console
from transduce.errors import ConfigError
from transduce.experiments import scaling as scaling_experiment
from transduce.experiments.experiment import CORPUS, make_slots
from transduce.experiments.table1 import as_report as table1_report
from transduce.experiments.table1 import measure_table1
from transduce.experiments.table2 import Scoring
from transduce.experiments.table2 import as_report as table2_report
from transduce.experiments.table2_training import Match, require_systems
from transduce.experiments.table3 import EXPERIMENT as TABLE3_RECORD
from transduce.experiments.table3 import (
    Table3Experiment,
    base_for,
    collect,
    read_row,
    require_rows,
    require_same_rows,
    row_runs,
)
from transduce.experiments.table3 import as_report as table3_report
from transduce.experiments.table4 import Setting, Table4, our_rows
from transduce.experiments.table4 import as_report as table4_report
from transduce.files import require_new_folder
from transduce.machine import Precision, keep_freed_memory
from transduce.metrics.comparison import Trials
from transduce.metrics.scores import Tokenize
from transduce.settings import assigned_values, require_between
from transduce.text.languages import LanguagesConfig, guess_all

VARIED = {
    "model.scores": "all kinds are compared",
    "model.num_heads": "use --heads",
    "model.d_k": "use --d-k",
    "model.d_v": "it is d_k; use --d-k",
    "model.d_model": "it is d_k times the heads; use --d-k and --heads",
    "model.d_ff": "it is twice d_model; use --d-k and --heads",
}
"""Settings that the rows of `reproduce scaling` vary, and what to use instead."""

Pairs = tuple[tuple[Path, Path], ...]


def table1(*, out: Path, force: bool = False, max_rounds: int = 40) -> None:
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
    require_new_folder(out, overwrite=force, made_by="reproduce table1")
    keep_freed_memory()  # otherwise each turn would measure page faults as well
    machine = describe_machine(("torch", "numpy"), torch.device("cpu"))
    with lost_if_interrupted(out), error_console().status("Starting...") as status:
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
    force: bool = False,
    train: bool = False,
    presets: tuple[str, ...] = ("base", "big"),
    source: Files = (),
    reference: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    test: Pairs = (),
    corpus: str | None = None,
    systems: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (1,),
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
    hardware: str = THIS,
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
        With --train: precision of matrix products in training, the same in all systems;
        auto is the choice of `transduce train`, and afterwards that of the experiment.
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
        train_systems(out, chosen, test, options)
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
    require_new_folder(out, overwrite=force, made_by="reproduce table2")
    with lost_if_interrupted(out):
        table = place_runs(
            runs,
            (source, reference),
            Scoring(language=named, tokenize=tokenize),
            presets,
            MachineOptions(
                hardware=hardware, tflops=tflops, num_devices=devices, device=device
            ),
        )
    report = table2_report(table)
    finish_report(report, asdict(table), out, "reproduce table2", overwrite=force)


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
            option = OPTIONS.get(name, option_name(name))
            raise ConfigError(f"{option} has no effect {mode}; leave it out.")


def _require_runs_and_text(
    runs: Sequence[Path], source: Files, **options_of_text: object
) -> None:
    """Raise `ConfigError` unless there are different runs and a text, or neither."""
    require_distinct("RUNS", runs)
    if bool(runs) != bool(source):
        raise ConfigError(
            "Runs and --source must be given together, but only one of them is."
        )
    if not runs:
        _require_defaults("without runs", **options_of_text)


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
    rows: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (1,),
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
        Text files, one sentence per line, plain or compressed.
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
        choice of `transduce train` for base, and afterwards that of the experiment.
    resamples
        Number of resamples of the paired bootstrap.
    shuffles
        Number of shuffles of approximate randomisation.
    """
    trials = Trials(resamples=resamples, shuffles=shuffles)
    refuse_settings(settings, SEEDED)
    base = changed_by_options(base_for(corpus, scale, steps), None, settings)
    runs = row_runs(
        out.absolute(),
        base,
        require_rows(rows),
        list(dict.fromkeys(seeds)),
        chosen={name for name, _ in assigned_values(settings)},
    )
    slots = make_slots(device, parallel)
    hardware = kept_hardware(
        out / TABLE3_RECORD, device, precision, width=base.model.d_model
    )
    files = corpus_files(source, target, dev_source, dev_target)
    chosen = chosen_corpus(corpus, files)
    new = {run.row: run.config for run in runs if not run.has_begun}
    refuse_contradictory(new, chosen)
    with opened(out, "table3", TABLE3_RECORD, "a reproduction of Table 3") as lock:
        experiment = Table3Experiment(
            folder=out.absolute(),
            files=fetched(chosen, out / CORPUS),
            base=base,
            device=device,
            precision=hardware.precision,
        )
        require_possible(runs, experiment.files, hardware)
        experiment.begin()
        require_same_rows(runs)
        failures = complete(
            experiment, runs, slots, lock, lambda run: read_row(experiment, run)
        )
        table = collect(experiment, runs, failures, trials)
        replace_report(table3_report(table), asdict(table), out, "table3")
    require_all_done(runs, failures)


def table4(
    *,
    out: Path,
    force: bool = False,
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
    require_new_folder(out, overwrite=force, made_by="reproduce table4")
    given: dict[Setting, Pairs] = {
        "WSJ only": wsj_only,
        "semi-supervised": semi_supervised,
    }
    chosen = [(setting, *pair) for setting, pairs in given.items() for pair in pairs]
    with lost_if_interrupted(out):
        ours = our_rows(chosen, device)
    table = Table4(ours=ours, treebank=treebank, split=split)
    report = table4_report(table)
    finish_report(report, asdict(table), out, "reproduce table4", overwrite=force)


def scaling(
    *,
    out: Path,
    d_k: tuple[int, ...] = (16, 64, 256),
    heads: int = 1,
    steps: int = 900,
    seeds: tuple[int, ...] = (1,),
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
    require_between("--heads", heads, 1, scaling_experiment.MAX_HEADS)
    for width in d_k:
        require_between("--d-k", width, 1, scaling_experiment.MAX_WIDTH)
    refuse_settings(settings, SEEDED | VARIED)
    base = changed_by_options(scaling_experiment.base_config(steps), None, settings)
    runs = scaling_experiment.scores_runs(out.absolute(), base, d_k, heads, seeds)
    slots = make_slots(device, parallel)
    record, what = scaling_experiment.EXPERIMENT, "an experiment of `reproduce scaling`"
    hardware = kept_hardware(out / record, device, precision)
    files = corpus_files(source, target, dev_source, dev_target)
    with opened(out, "scaling", record, what) as lock:
        corpus = out.absolute() / CORPUS
        experiment = scaling_experiment.ScalingExperiment(
            folder=out.absolute(),
            files=files or scaling_experiment.built_in_corpus(corpus),
            base=base,
            heads=heads,
            device=device,
            precision=hardware.precision,
        )
        require_possible(runs, experiment.files, hardware)
        experiment.begin()
        with error_console().status("Starting...") as status:
            statistics = scaling_experiment.measure_scores(
                scaling_experiment.MEASURED_WIDTHS, status.update
            )
        failures = complete(
            experiment, runs, slots, lock, scaling_experiment.trained_row
        )
        machine = describe_machine(("torch", "numpy"), hardware.device)
        figures = scaling_experiment.collect(
            experiment, statistics, runs, failures, str(machine)
        )
        report = scaling_experiment.as_report(figures)
        replace_report(report, asdict(figures), out, "scaling")
    require_all_done(runs, failures)
