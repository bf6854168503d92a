"""`transduce train`: from text files to a trained, averaged, scored model."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.cli.display import TensorBoardLog, TrainingDisplay
from transduce.cli.files import Files, Force
from transduce.cli.launching import (
    end_with_launcher,
    errors_printed_once,
    naming_resume_command,
    run_processes,
)
from transduce.cli.options import (
    NO_CORPUS,
    Assignments,
    changed_by_options,
    run_config,
    run_files,
    text_files,
)
from transduce.data.treebank import TreebankFiles
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.pipeline import Consent
from transduce.experiments.pipeline import resume as resume_run
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.presets import FITTING, RunConfig, require_task
from transduce.experiments.run_folder import (
    RunFiles,
    is_run,
    precision_of,
    refuse_changed_files,
    refuse_changed_settings,
    settings_of,
)
from transduce.machine import Precision
from transduce.training.distributed import is_distributed, local_rank, process_group


def train(
    *,
    out: Path,
    preset: str | None = None,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    trees: Files = (),
    dev_trees: Files = (),
    no_dev: Annotated[bool, Parameter(negative="")] = False,
    source_language: str | None = None,
    target_language: str | None = None,
    config: Path | None = None,
    settings: Assignments = (),
    force: Force = False,
    resume: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
    precision: Precision = "auto",
    devices: int = 1,
    however_long: Annotated[bool, Parameter(negative="")] = False,
    tensorboard: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a model, average its last checkpoints and score the result.

    For example:

        transduce train --source my.en --target my.de --preset multi30k --out mine
        transduce train --out mine --resume

    Parameters
    ----------
    out
        The run's folder; new, or with --resume one that holds a run.
    preset
        Preset of all settings: base, big or a row of Table 3 (C-N2, ...) for millions
        of pairs, multi30k for tens of thousands; for trees parsing-wsj, parsing-semi or
        parsing-small. The default is base (for trees parsing-wsj) if the corpus is
        large enough; otherwise the command suggests a preset.
    source
        Text files, one sentence per line, plain or gzip.
    target
        Their translations, line by line.
    dev_source
        Held-out text, scored at each checkpoint.
    dev_target
        Its translations.
    trees
        Treebanks in brackets, instead of text and translations, to train a parser. A
        file given twice counts twice.
    dev_trees
        Held-out trees, scored at each checkpoint.
    no_dev
        Train on all pairs. By default, if no dev corpus is given, 1 % of the pairs are
        held out, at least 200 and at most 2,000.
    source_language
        Source language as a BCP 47 tag such as en or pt-BR, stored in the model. By
        default guessed from the files' endings: train.en, train.pt-BR.gz.
    target_language
        Target language, likewise. It also selects BLEU's tokenizer.
    config
        A TOML file of settings that change the preset.
    settings
        Single settings, such as model.dropout=0.2.
    force
        Replace the run in the output folder by a new one.
    resume
        Continue the run in the output folder.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products. By default bf16 where it is faster; a resumed run
        keeps its precision.
    devices
        Number of training processes on this machine, each on its own GPU or share of
        the processor's cores. For several machines use torchrun.
    however_long
        Train even if no preset is given and the forecast exceeds a week, or the corpus
        is much too small for base.
    tensorboard
        Also write TensorBoard logs to the run's folder.
    """
    if force:
        _require_overwritable(
            out, resume=resume, is_chosen=preset is not None or however_long
        )
    if devices != 1 and not is_distributed():
        given = locals()
        with naming_resume_command(out, device, devices):
            sys.exit(run_processes(_command(given), devices))
    end_with_launcher()
    files = run_files(
        text_files(source, target, dev_source, dev_target),
        TreebankFiles(trees=trees, dev_trees=dev_trees),
    )
    if preset is not None and files is not None:
        require_task(preset, files.task)
    run = _run_config(out if resume else None, preset, config, settings, files)
    languages = {"source": source_language, "target": target_language}
    run = replace(run, languages=run.languages.given(languages))
    run = _without_dev(run, files) if no_dev else run
    if resume and precision == "auto":
        precision = precision_of(out)
    hardware = choose_hardware(device, precision, local_rank(), run.model.d_model)
    if resume:
        _refuse_changes(out, run, files)
    elif files is None:
        raise ConfigError(NO_CORPUS)
    log = (TensorBoardLog(out),) if tensorboard else ()
    with (
        naming_resume_command(out, device, devices),
        process_group(hardware.device) as processes,
        TrainingDisplay() as display,
        errors_printed_once(processes, devices),
    ):
        observers = (display, *log)
        if resume or files is None:
            resume_run(out, hardware, *observers, processes=processes)
        else:
            consent = Consent(
                is_chosen=preset is not None or however_long, overwrites=force
            )
            train_run(
                files,
                run,
                out,
                hardware,
                *observers,
                processes=processes,
                consent=consent,
            )


def _require_overwritable(out: Path, *, resume: bool, is_chosen: bool) -> None:
    """Raise `ConfigError` if --force could remove a run without starting another."""
    if resume:
        raise ConfigError(
            "Either --force, to replace the run, or --resume, to continue it, must be "
            "given, but both are; leave one out."
        )
    if not is_chosen and is_run(out):
        raise ConfigError(
            f"{out}: --force needs --preset here, so that the old run is not removed "
            "for a new one that may be refused as too long."
        )


def _without_dev(run: RunConfig, files: RunFiles | None) -> RunConfig:
    """Return settings to train on all pairs; `ConfigError` if a dev corpus is given."""
    if files is not None and files.has_dev:
        raise ConfigError(
            "Either a dev corpus or --no-dev must be given, but both are; leave one "
            "out."
        )
    return replace(run, evaluation=replace(run.evaluation, hold_out=False))


def _command(options: Mapping[str, Any]) -> list[str]:
    """Return this command again, for each of several processes."""
    command = [sys.executable, "-m", "transduce", "train"]
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        if value is True:
            command.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False, ()):
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            command += [option, *map(str, values)]
    return command


def _run_config(
    resumed: Path | None,
    preset: str | None,
    config: Path | None,
    settings: tuple[str, ...],
    files: RunFiles | None,
) -> RunConfig:
    """Return the requested settings, based on a preset or on a resumed run."""
    if resumed is not None and preset is None:
        return changed_by_options(settings_of(resumed), config, settings)
    large, _ = FITTING["translation" if files is None else files.task]
    return run_config(preset or large, config, settings)


def _refuse_changes(out: Path, run: RunConfig, files: RunFiles | None) -> None:
    """Raise `ConfigError` if a resumed run was started with different input or
    settings."""
    refuse_changed_settings(out, run)
    if files is not None:
        refuse_changed_files(out, files)
