"""`transduce train`: from text files to a trained, averaged, scored model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transduce.cli.files import Files
from transduce.cli.help import option_name
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
    corpora_of,
    dev_sets_of,
    replayed,
    run_files,
    text_files,
    with_corpora,
    with_dev_sets,
)
from transduce.cli.training_display import TensorBoardLog, TrainingDisplay
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.treebank import TreebankFiles
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.pipeline import Consent
from transduce.experiments.pipeline import resume as resume_run
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.presets import (
    ADAPT,
    FITTING,
    RunConfig,
    require_start,
    require_task,
)
from transduce.experiments.presets import preset as preset_named
from transduce.experiments.resuming import refuse_changed_files, refuse_changed_settings
from transduce.experiments.run_corpus import RunFiles
from transduce.experiments.run_folder import (
    RunFolder,
    is_run,
    precision_of,
    settings_of,
)
from transduce.experiments.start_model import StartModel, open_start, settings_from
from transduce.machine import Precision, use_one_arena
from transduce.processes import PYTHON
from transduce.training.data_parallel import is_distributed, local_rank, process_group


def train(
    *,
    out: Path,
    preset: str | None = None,
    from_: Path | None = None,
    keep_optimizer: bool = False,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    trees: Files = (),
    dev_trees: Files = (),
    corpus: tuple[str, ...] = (),
    replay: tuple[Path, Path] | None = None,
    replay_share: float | None = None,
    dev: tuple[str, ...] = (),
    no_dev: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
    config: Path | None = None,
    settings: Assignments = (),
    force: bool = False,
    resume: bool = False,
    device: str = "auto",
    precision: Precision = "auto",
    devices: int = 1,
    however_long: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train a model, average its last checkpoints and score the result.

    For example:

        transduce train --source my.en --target my.de --preset multi30k --out mine
        transduce train --out mine --resume
        transduce train --out mine --resume --set training.steps=20000
        transduce train --from mine --source new.en --target new.de --out adapted

    Parameters
    ----------
    out
        The run's folder; new, or with --resume one that holds a run.
    preset
        Preset of all settings: base, big or a row of Table 3 (C-N2, ...) for millions
        of pairs, multi30k for tens of thousands; for trees parsing-wsj, parsing-semi or
        parsing-small. The default is base (for trees parsing-wsj) if the corpus is
        large enough; otherwise the command suggests a preset. With --from, the default
        is adapt.
    from_
        Trained model to start a new run from: a run, a model folder or an imported
        model. Its tokenizer, sizes, languages and search are those of the new run.
    keep_optimizer
        Start from the newest checkpoint of the run that --from names, and continue its
        optimizer. By default the optimizer starts anew.
    source
        Text files, one sentence per line, plain or compressed.
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
    corpus
        A corpus of a mixture, as NAME SOURCE TARGET [WEIGHT]; repeat it for each. The
        weight is its share of the training pairs, relative to the others' weights;
        without any, the share of its size. More settings of the corpus may follow:
        tag=bt puts the token <bt> before its sources, target_language=de the token
        >>de<<. If the target files end in different languages, each corpus has the
        token of its language.
    replay
        General text and its translations, SOURCE TARGET, mixed in with those of
        --source and --target, so that a model of --from does not forget it.
    replay_share
        Share of the text of --replay in the training pairs; by default 0.2.
    dev
        A dev set, as NAME SOURCE TARGET; repeat it for each. Each is scored at each
        checkpoint, and the first (or --dev-source) chooses the best one.
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
        Continue the run in the output folder, with its files and settings. With --set
        training.steps=NUMBER it makes that number of updates, also after its end.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products. By default bf16 where it is faster; a resumed run
        keeps its precision.
    devices
        Number of training processes on this machine, each on its own GPU or share of
        the processor's cores. For several machines use torchrun.
    however_long
        Train even if the forecast exceeds two weeks (a week if no preset is given), or
        if no preset is given and the corpus is much too small for base. With a preset,
        a given training.steps allows any time too; so does --from, and so does --force
        where it replaces a run.
    tensorboard
        Also write TensorBoard logs to the run's folder.
    """
    if force:
        _require_overwritable(
            out,
            resume=resume,
            is_chosen=preset is not None or from_ is not None or however_long,
        )
    _require_start_options(preset, from_, keep=keep_optimizer, resume=resume)
    if devices != 1 and not is_distributed():
        given = locals()  # the parameters, as there are no other variables yet
        with naming_resume_command(out, device, devices, tensorboard=tensorboard):
            sys.exit(run_processes(command_of(given), devices))
    # Before any other thread starts: the launcher's watch, the tokenizer of --from, or
    # the connection between processes may start the first one.
    use_one_arena()
    end_with_launcher()
    files = run_files(
        text_files(source, target, dev_source, dev_target),
        TreebankFiles(trees=trees, dev_trees=dev_trees),
    )
    start = open_start(from_, keep_optimizer=keep_optimizer) if from_ else None
    resumed = out if resume else None
    change = partial(changed_by_options, config_file=config, assignments=settings)
    run, files = _with_mixture(
        change(_base_config(preset, resumed, files, start)),
        files,
        corpora_of(corpus),
        replayed(files, replay, replay_share),
        is_new=not resume,
    )
    if not resume and files is None:
        raise ConfigError(NO_CORPUS)
    files = with_dev_sets(files, dev_sets_of(dev))
    languages = {"source": source_language, "target": target_language}
    run = replace(run, languages=run.languages.given(languages))
    run = _without_dev(run, files, resumed) if no_dev else run
    precision = precision_of(out) if resume and precision == "auto" else precision
    hardware = choose_hardware(device, precision, local_rank(), run.model.d_model)
    steps = _steps_of_resumed(out, run, files, change) if resume else None
    logs = (TensorBoardLog(out),) if tensorboard else ()
    with (
        naming_resume_command(out, device, devices, tensorboard=tensorboard),
        process_group(hardware.device) as processes,
        TrainingDisplay() as display,
        errors_printed_once(processes, devices),
    ):
        if resume or files is None:
            resume_run(out, hardware, display, *logs, processes=processes, steps=steps)
        else:
            train_run(
                files,
                run,
                out,
                hardware,
                display,
                *logs,
                processes=processes,
                consent=Consent(
                    is_chosen=preset is not None or start is not None or however_long,
                    is_length_chosen=however_long
                    or start is not None
                    # The old run is replaced before the forecast is made: a refusal
                    # by the forecast would come too late.
                    or (force and is_run(out))
                    or sets_steps(change, run),
                    overwrites=force,
                ),
                start=start,
            )


def sets_steps(change: Callable[[RunConfig], RunConfig], run: RunConfig) -> bool:
    """Whether a change sets `training.steps`, even to the value that it has."""
    other = 1 if run.training.steps > 1 else 2
    others = replace(run, training=replace(run.training, steps=other))
    return change(others).training.steps == run.training.steps


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


def _require_start_options(
    preset: str | None, start: Path | None, *, keep: bool, resume: bool
) -> None:
    """Raise `ConfigError` if options of a start do not go together."""
    if resume:
        if start is not None:
            raise ConfigError(
                "Either --from, to start a run from a model, or --resume, to continue "
                "a run, must be given, but both are; leave one out."
            )
        if keep:
            raise ConfigError(
                "--keep-optimizer is for a new run by --from; a resumed run always "
                "continues its optimizer, so leave it out."
            )
        return
    if preset is not None:
        require_start(preset, has_start=start is not None)
    if keep and start is None:
        raise ConfigError(
            "--keep-optimizer needs the run whose optimizer it continues; name it by "
            "--from."
        )


def _with_mixture(
    run: RunConfig,
    files: RunFiles | None,
    corpora: tuple[CorpusConfig, ...],
    replay: tuple[CorpusConfig, ...],
    *,
    is_new: bool,
) -> tuple[RunConfig, RunFiles | None]:
    """Return settings and files with the corpora of a mixture.

    The files of a resumed run are in its record.
    """
    if replay and (corpora or (is_new and run.corpora)):
        raise ConfigError(
            "Either --replay, or corpora by --corpus or --config, must be given, but "
            "both are; give the text of --replay as a corpus with a weight."
        )
    if corpora or replay:
        run = replace(run, corpora=corpora or replay)
    if replay and isinstance(files, CorpusFiles):
        files = replace(files, source=(), target=())
    is_given = is_new or corpora or replay
    return run, with_corpora(files, run.corpora) if is_given else files


def _without_dev(
    run: RunConfig, files: RunFiles | None, resumed: Path | None
) -> RunConfig:
    """Return settings to train on all pairs.

    Raises `ConfigError` if a dev corpus is given, or if the run to resume was started
    without --no-dev.
    """
    if resumed is not None and settings_of(resumed).evaluation.hold_out:
        raise ConfigError(
            f"{resumed}: the run to resume was started without --no-dev; leave it out, "
            "or start another run."
        )
    if files is not None and files.has_dev:
        raise ConfigError(
            "Either a dev corpus or --no-dev must be given, but both are; leave one "
            "out."
        )
    return replace(run, evaluation=replace(run.evaluation, hold_out=False))


def command_of(options: Mapping[str, Any]) -> list[str]:
    """Return the command line of `transduce train` with these options."""
    command = [*PYTHON, "-m", "transduce", "train"]
    for name, value in options.items():
        option = option_name(name)
        if value is True:
            command.append(option)
        elif isinstance(value, tuple):
            command += _words("--set" if name == "settings" else option, value)
        elif value is not None and value is not False:
            command.append(f"{option}={value}")  # it may begin with dashes
    return command


def _words(option: str, values: Sequence[object]) -> list[str]:
    """Return the words of an option with several values, which may begin with -.

    The parser takes such a word for an option, so each value is written as
    `--option=value`. Options of pairs of files do not accept that form: their paths
    that begin with a dash get ./ in front.
    """
    words = []
    for value in values:
        begins_with_dash = isinstance(value, Path) and str(value).startswith("-")
        words.append(f"./{value}" if begins_with_dash else str(value))
    if any(word.startswith("-") for word in words):
        return [f"{option}={word}" for word in words]
    return [option, *words] if words else []


def _base_config(
    preset: str | None,
    resumed: Path | None,
    files: RunFiles | None,
    start: StartModel | None,
) -> RunConfig:
    """Return the settings of a preset, a start or a resumed run."""
    if preset is not None and files is not None:
        require_task(preset, files.task)
    if resumed is not None and preset is not None and RunFolder.open(resumed)[0].start:
        raise ConfigError(
            f"{resumed}: the run to resume started from a model, from which its "
            "settings follow; leave the preset out."
        )
    if resumed is not None and preset is None:
        return settings_of(resumed)
    if start is not None:
        return settings_from(start, preset or ADAPT)
    large, _ = FITTING["translation" if files is None else files.task]
    return preset_named(preset or large)


def _steps_of_resumed(
    out: Path,
    run: RunConfig,
    files: RunFiles | None,
    change: Callable[[RunConfig], RunConfig],
) -> int:
    """Number of updates that a resumed run is to make.

    Raises `ConfigError` if the run was started with different input or settings, or if
    the number follows from a preset, not from --set or --config.
    """
    recorded = settings_of(out)
    refuse_changed_settings(out, run)
    if files is not None:
        refuse_changed_files(out, files)
    steps = change(recorded).training.steps
    if run.training.steps != steps:
        raise ConfigError(
            f"{out}: `training.steps` of the run to resume is "
            f"{recorded.training.steps:,}, but {run.training.steps:,} in the preset; "
            "leave the preset out, or add --set training.steps=NUMBER."
        )
    return steps
