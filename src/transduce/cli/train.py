"""`transduce train`: from text files to a trained, averaged, scored model.

Its progress appears on a terminal, in a log file, and in TensorBoard.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from transduce.cli.launching import (
    end_with_launcher,
    errors_printed_once,
    naming_resume_command,
    run_processes,
)
from transduce.cli.options import (
    NO_CORPUS,
    Assignments,
    CorpusWords,
    DevWords,
    changed_by_options,
    corpora_of,
    dev_sets_of,
    replayed,
    run_config,
    run_files,
    text_files,
    with_corpora,
    with_dev_sets,
)
from transduce.cli.terminal import Files, Force, ProgressDisplay
from transduce.data.corpus_files import MAIN_DEV, CorpusFiles
from transduce.data.corpus_mixture import CorpusConfig, CorpusMixture
from transduce.data.prepared_corpus import PreparedCorpus
from transduce.data.treebank import AugmentationConfig, TreebankFiles
from transduce.device import choose_hardware
from transduce.errors import (
    WEEK,
    ConfigError,
    RequestError,
    counted,
    duration,
    missing_package,
    percent,
)
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import Consent, RunResult, RunStart
from transduce.experiments.pipeline import resume as resume_run
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.presets import (
    ADAPT,
    FITTING,
    RunConfig,
    require_start,
    require_task,
)
from transduce.experiments.run_folder import (
    TENSORBOARD,
    RunFiles,
    RunFolder,
    is_run,
    precision_of,
    refuse_changed_files,
    refuse_changed_settings,
    settings_of,
)
from transduce.experiments.start_model import StartModel, open_start, settings_from
from transduce.machine import Precision, describe_threads
from transduce.processes import PYTHON
from transduce.text.languages import english_name
from transduce.text.pair_changes import SHARES, TextAugmentationConfig
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import is_distributed, local_rank, process_group
from transduce.training.memory import MicroBatchSize
from transduce.training.trainer import StepReport

BUSY_SHARE = 0.1
"""Share of time lost to other programs above which a forecast is uncertain."""
SMOOTHING = 0.95
"""Weight of the previous value in the displayed speed."""
FLUSH_SECONDS = 2
"""Seconds between two writes; a crash loses at most these."""


def _threads(start: RunStart) -> str:
    """Describe the threads of a training on a CPU."""
    return f", {describe_threads()}" if start.hardware.device.type == "cpu" else ""


class TrainingDisplay(ProgressDisplay):
    """Progress and result of a training run."""

    def __init__(self) -> None:
        super().__init__()
        self._num_steps = 0
        self._tokens_per_second = 0.0
        self._is_by_reward = False
        self._stage: int | None = None

    def trying(self) -> None:
        self.console.print("Trying an update, to forecast memory and time ...")

    def started(self, start: RunStart) -> None:
        if start.corpus is not None:
            self._show_corpus(start, start.corpus)
            if start.corpus.target_vocab_size is None:  # text, not trees
                self.console.print(_languages(start.config))
        self.console.print(
            f"Model: {start.num_parameters:,} parameters, vocabulary of "
            f"{start.config.model.vocab_size:,}, on {start.hardware}{_threads(start)}"
        )
        if start.origin is not None:
            self.console.print(_origin(start))
            self.console.print(_adaptation(start.config.training))
        if start.config.augmentation.used:
            self.console.print(_text_changes(start.config.augmentation))
        self.console.print(_forecast(start))
        self.console.print(_checkpoints(start.config.training))
        self._advise(start)
        if start.micro_batch.compile_error is not None:
            self.warned(
                "PyTorch cannot compile the layers here, which would make training "
                f"faster: {start.micro_batch.compile_error}"
            )
        if start.steps_done:
            self.console.print(f"Continuing after step {start.steps_done:,}.")
        self._num_steps = start.config.training.steps
        self.begin(start.steps_done, self._num_steps)

    def _advise(self, start: RunStart) -> None:
        """Print the warnings of `transduce check` before the first step."""
        for advice in start.advice:
            self.warned(str(advice))
        if start.advice:
            self.console.print("`transduce check` shows the details and the lines.")
        if start.seconds_left > WEEK:
            self.warned(
                f"training takes about {duration(start.seconds_left)} here; choose a "
                "smaller preset, fewer steps (training.steps) or a GPU."
            )

    def _show_corpus(self, start: RunStart, corpus: PreparedCorpus) -> None:
        self.console.print(f"Training pairs: {corpus.training}")
        for line in _mixture(start.config, corpus):
            self.console.print(line)
        if corpus.target_vocab_size is not None:
            augmentation = start.config.treebank.augmentation
            self.console.print(_augmented(corpus.training.total, augmentation))
        if corpus.dev is None:
            self.console.print("Dev pairs: none, so nothing is scored while training")
        elif corpus.is_held_out:
            self.console.print(
                f"Dev pairs: {corpus.dev}, held out of the {_first_corpus(corpus)} "
                "(--no-dev trains on all)"
            )
        else:
            name = "" if corpus.dev_name == MAIN_DEV else f" of {corpus.dev_name}"
            self.console.print(f"Dev pairs{name}: {corpus.dev}")
        for name, counts in corpus.dev_sets.items():
            self.console.print(f"Dev pairs of {name}: {counts}")
        if corpus.shared_with is not None:
            self.console.print(
                f"Prepared corpus, shared with other runs: {corpus.shared_with}"
            )

    def stepped(self, report: StepReport) -> None:
        speed = report.num_target_tokens / report.seconds
        before = self._tokens_per_second or speed
        self._tokens_per_second = SMOOTHING * before + (1 - SMOOTHING) * speed
        figures = [
            f"loss {report.loss:.3f}",
            f"perplexity {report.perplexity:.1f}",
            f"{self._tokens_per_second:,.0f} tokens/s",
        ]
        if report.shares is not None:
            figures.append(_shares(report.shares))
        if self._stage is not None and report.stage != self._stage:
            self.console.print(f"step {report.step:,}: stage {report.stage} begins.")
        self._stage = report.stage
        if report.reward is not None:
            self._show_reward(report.step)
            figures.insert(0, f"reward {report.reward:.3f}")
        self.show(f"step {report.step:,}/{self._num_steps:,}", figures, report.step)

    def _show_reward(self, step: int) -> None:
        """Print once that updates by reward begin."""
        if not self._is_by_reward:
            self._is_by_reward = True
            self.console.print(
                f"step {step:,}: from here on updates raise the expected reward of "
                "samples (training.reward); they take longer."
            )

    def scored(self, score: DevScore) -> None:
        step = f"step {score.step:,}" if score.step else "start"
        self.console.print(f"{step}: {score.name}: {_figures(score)}")

    def warned(self, message: str) -> None:
        self.console.print(f"Warning: {message}")

    def went_back(self, step: int) -> None:
        self._is_by_reward = False
        self.begin(step, self._num_steps)

    def finished(self, result: RunResult) -> None:
        """Print the result of the run."""
        what = f"The average of the last {result.num_averaged} checkpoints"
        if result.num_averaged == 1:
            what = "The model"
        if result.dev is not None:
            self.console.print(
                f"{what}: {result.dev.name}: {_figures(result.dev)}, by beam search\n  "
                f"{result.dev.quality.details}"
            )
            for score in result.dev_sets:
                self.console.print(f"  {score.name}: {_figures(score)}")
            if result.before:
                after = (result.dev, *result.dev_sets)
                self.console.print(_comparison(result.before, after))
        self.console.print(
            f"{what} is in {result.model}; the learning curve is {result.picture}."
        )


def _first_corpus(corpus: PreparedCorpus) -> str:
    """Name the corpus out of which the dev corpus is held."""
    first = next(iter(corpus.corpora), None)
    return "training corpus" if first is None else f"corpus {first}"


def _mixture(config: RunConfig, corpus: PreparedCorpus) -> Iterator[str]:
    """Describe the shares of the corpora of a mixture, stage by stage."""
    if not corpus.corpora:
        return
    sizes = [each.kept for each in corpus.corpora.values()]
    mixture = CorpusMixture(config.corpora, config.stages, sizes)
    for stage in mixture.stages:
        end = config.training.steps if stage.end is None else stage.end
        where = f"Stage {stage.number}, to update {end:,}"
        draws = dict(zip(mixture.names, stage.draws, strict=True))
        shares = {name: n / sum(stage.draws) for name, n in draws.items() if n}
        passes = ", ".join(
            f"{name} {draws[name] / size:.2g} times"
            for name, size in zip(mixture.names, sizes, strict=True)
            if draws[name]
        )
        yield (
            f"{where if config.stages else 'Mixture'}: {_shares(shares)} of the pairs; "
            f"an epoch has {sum(stage.draws):,} ({passes})"
        )


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share, 1)}" for name, share in shares.items())


def _comparison(before: Sequence[DevScore], after: Sequence[DevScore]) -> Table:
    """Table of the scores of the start and of the run's model on each dev set."""
    table = Table("dev set", "metric", box=None, pad_edge=False)
    for name in ("start", "model", "change"):
        table.add_column(name, justify="right")
    for old, new in zip(before, after, strict=True):
        for metric, (one, other) in _metrics(old, new).items():
            change = f"{other - one:+.2f}"
            table.add_row(new.name, metric, f"{one:.2f}", f"{other:.2f}", change)
    return table


def _metrics(old: DevScore, new: DevScore) -> dict[str, tuple[float, float]]:
    """Scores of two models by metric."""
    found = {new.quality.name: (old.quality.score, new.quality.score)}
    if "chrf" in new.quality.log:
        found["chrF2"] = (old.quality.log["chrf"], new.quality.log["chrf"])
    return {**found, "perplexity": (old.perplexity, new.perplexity)}


def _figures(score: DevScore) -> str:
    return f"loss {score.loss:.3f}, perplexity {score.perplexity:.2f}, {score.quality}"


def _origin(start: RunStart) -> str:
    """Describe the model that a run starts from."""
    optimizer = "continues" if start.keeps_optimizer else "starts anew"
    return (
        f"Start: {start.origin}, with its tokenizer, sizes and search; the optimizer "
        f"{optimizer}"
    )


def _adaptation(training: TrainingConfig) -> str:
    """Describe learning rate, warm-up and length of a run from a model."""
    rate = f"by equation 3, times {training.learning_rate_scale:g}"
    if training.learning_rate is not None:
        rate = f"{training.learning_rate:g} (training.learning_rate)"
    length = f"{counted(training.steps, 'update')} (training.steps)"
    if (patience := training.patience) is not None:
        length = (
            f"at most {length}, fewer after {counted(patience, 'checkpoint')} without "
            "a gain on the dev corpus (training.patience)"
        )
    return (
        f"Learning rate: {rate}, after a warm-up of "
        f"{counted(training.warmup_steps, 'update')} (training.warmup_steps)\n"
        f"Length: {length}"
    )


def _checkpoints(training: TrainingConfig) -> str:
    """Describe the interval of checkpoints, and the updates that the average covers."""
    kept, every = training.keep_checkpoints, training.checkpoint_steps
    if every is None:
        often = duration(60 * training.checkpoint_minutes)
        return f"Checkpoints: every {often}; the average is of the last {kept}"
    often, first = counted(every, "update"), training.likelihood_steps
    last = [*range(every, training.steps, every)[-kept:], training.steps][-kept:]
    # With a reward, only checkpoints after an update by reward are averaged.
    averaged = [step for step in last if step > first or training.reward == "none"]
    if len(averaged) == 1:
        return f"Checkpoints: every {often}, without an average"
    before = (averaged[0] - 1) // every * every
    share = percent(1 - before / training.steps)
    return (
        f"Checkpoints: every {often}; the average is of the last {len(averaged)}, from "
        f"the last {share} of the training"
    )


def _languages(config: RunConfig) -> str:
    """Describe the model's languages, and how to set missing ones."""
    languages = config.languages
    options = ["--source-language"] * (languages.source is None)
    options += ["--target-language"] * (languages.target is None)
    hint = f" (name them by {' and '.join(options)})" if options else ""
    others = [
        english_name(language)
        for language in dict.fromkeys(each.target_language for each in config.corpora)
        if language is not None and language != languages.target
    ]
    among = f", and {', '.join(others)} (--target-language chooses)" if others else ""
    return f"Languages: {languages}{among}{hint}"


def _augmented(total: int, config: AugmentationConfig) -> str:
    """Describe the number of variants among the training trees, and their kinds."""
    if not config.copies:
        return "Variants of trees: none (treebank.augmentation.copies)"
    num_trees = total // (config.copies + 1)
    return (
        f"Variants of trees: {config.copies:,} of each of the "
        f"{counted(num_trees, 'tree')}, {total - num_trees:,} in all "
        f"(treebank.augmentation): {percent(config.cut)} are a constituent alone, "
        f"{percent(config.replaced_constituents)} of the others have one of another "
        f"tree, and {percent(config.replaced_words)} of the words are replaced"
    )


def _text_changes(config: TextAugmentationConfig) -> str:
    """Describe the changes of the training pairs."""
    rates = {
        name: percent(value) if name in SHARES else f"{value:g}"
        for name, value in config.used.items()
    }
    named = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return f"Augmentation: {named}, new in each epoch"


def _forecast(start: RunStart) -> str:
    """Describe an update, and the forecast of the run's time."""
    (source, target), fit = start.update_tokens, start.micro_batch
    num_steps = start.config.training.steps - start.steps_done
    among = f" on {start.num_processes} processes" if start.num_processes > 1 else ""
    cut = f", cut to {fit.max_positions:,} positions at a time" if fit.was_cut else ""
    time_left = duration(start.seconds_left)
    time_left = time_left if time_left.startswith("less") else f"about {time_left}"
    return (
        f"Updates: {num_steps:,} of about {source:,} source and {target:,} target "
        f"tokens{among}{cut}\n"
        f"Forecast: {fit.peak_bytes / 1e9:.1f} GB of memory per process, {time_left}, "
        f"without checkpoints{_reservation(fit)}"
    )


def _reservation(fit: MicroBatchSize) -> str:
    """Describe the uncertainty of a forecast made while other programs ran."""
    if fit.waiting_share < BUSY_SHARE:
        return ""
    return (
        f"; other programs used the processor for {percent(fit.waiting_share)} of "
        "the trial, and are not in the forecast"
    )


class TensorBoardLog:
    """Observer that writes a run's figures for TensorBoard."""

    def __init__(self, run: Path) -> None:
        """Open the log; `RequestError` if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RequestError(
                missing_package("`--tensorboard`", "tensorboard", "tensorboard")
            ) from None
        self._new_writer = SummaryWriter
        self._folder = run / TENSORBOARD
        self._writer: Any = None  # until the run has a folder

    def started(self, start: RunStart) -> None:
        self._go_on_after(start.steps_done)

    def stepped(self, report: StepReport) -> None:
        figures = {
            "loss": report.loss,
            "perplexity": report.perplexity,
            "learning_rate": report.learning_rate,
            "tokens_per_second": report.num_target_tokens / report.seconds,
            "padding": report.padding,
        }
        for name in ("gradient_norm", "reward"):
            if (value := getattr(report, name)) is not None:
                figures[name] = value
        self._write("training", figures, report.step)
        if report.shares is not None:
            self._write("share", dict(report.shares), report.step)

    def scored(self, score: DevScore) -> None:
        figures = {
            "loss": score.loss,
            "perplexity": score.perplexity,
            score.quality.metric: score.quality.score,
        }
        self._write(score.name, figures, score.step)

    def warned(self, message: str) -> None: ...

    def went_back(self, step: int) -> None:
        self._writer.close()
        self._go_on_after(step)

    def finished(self, result: RunResult) -> None:
        self._writer.close()

    def _go_on_after(self, step: int) -> None:
        # Hide what was written after this step before a crash.
        self._writer = self._new_writer(
            self._folder, purge_step=step + 1, flush_secs=FLUSH_SECONDS
        )

    def _write(self, group: str, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)


def train(
    *,
    out: Path,
    preset: str | None = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    keep_optimizer: Annotated[bool, Parameter(negative="")] = False,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    trees: Files = (),
    dev_trees: Files = (),
    corpus: CorpusWords = (),
    replay: tuple[Path, Path] | None = None,
    replay_share: float | None = None,
    dev: DevWords = (),
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
    corpus
        A corpus of a mixture, as NAME SOURCE TARGET [WEIGHT]; repeat it for each. The
        weight is its share of the training pairs, relative to the others' weights;
        without any, the share of its size. More settings of the corpus may follow:
        tag=bt puts the token <bt> before its sources, target_language=de the token
        >>de<<. Each corpus has the latter if the files end in different languages.
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
        given = locals()
        with naming_resume_command(out, device, devices, tensorboard=tensorboard):
            sys.exit(run_processes(command_of(given), devices))
    end_with_launcher()
    files = run_files(
        text_files(source, target, dev_source, dev_target),
        TreebankFiles(trees=trees, dev_trees=dev_trees),
    )
    start = open_start(from_, keep_optimizer=keep_optimizer) if from_ else None
    run, files = _with_mixture(
        _run_config(out if resume else None, preset, config, settings, files, start),
        files,
        corpora_of(corpus),
        replayed(files, replay, replay_share),
        is_new=not resume,
    )
    if not resume and files is None:
        raise ConfigError(NO_CORPUS)
    files = with_dev_sets(files, dev_sets_of(dev))
    given_tags = {"source": source_language, "target": target_language}
    run = replace(run, languages=run.languages.given(given_tags))
    run = _without_dev(run, files, out if resume else None) if no_dev else run
    if resume and precision == "auto":
        precision = precision_of(out)
    hardware = choose_hardware(device, precision, local_rank(), run.model.d_model)
    steps = _steps_of_resumed(out, run, files, config, settings) if resume else None
    log = (TensorBoardLog(out),) if tensorboard else ()
    with (
        naming_resume_command(out, device, devices, tensorboard=tensorboard),
        process_group(hardware.device) as processes,
        TrainingDisplay() as display,
        errors_printed_once(processes, devices),
    ):
        observers = (display, *log)
        if resume or files is None:
            resume_run(out, hardware, *observers, processes=processes, steps=steps)
        else:
            consent = Consent(
                is_chosen=preset is not None or start is not None or however_long,
                is_length_chosen=however_long
                or start is not None
                # A refusal would come when the old run is gone.
                or (force and is_run(out))
                or sets_steps(run, config, settings),
                overwrites=force,
            )
            train_run(
                files,
                run,
                out,
                hardware,
                *observers,
                processes=processes,
                consent=consent,
                start=start,
            )


def sets_steps(run: RunConfig, config: Path | None, settings: tuple[str, ...]) -> bool:
    """Whether a file or an assignment sets `training.steps`, even to the same value."""
    other = 1 if run.training.steps > 1 else 2
    others = replace(run, training=replace(run.training, steps=other))
    changed = changed_by_options(others, config, settings)
    return changed.training.steps == run.training.steps


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

    A resumed run has its files from its record.
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
        option = f"--{name.strip('_').replace('_', '-')}"
        if value is True:
            command.append(option)
        elif isinstance(value, tuple):
            option = "--set" if name == "settings" else option
            command += _words(option, [str(each) for each in value])
        elif value is not None and value is not False:
            command.append(f"{option}={value}")  # it may begin with dashes
    return command


def _words(option: str, values: Sequence[str]) -> list[str]:
    """Return the words of an option with several values, which may begin with -."""
    if any(value.startswith("-") for value in values):
        return [f"{option}={value}" for value in values]
    return [option, *values] if values else []


def _run_config(
    resumed: Path | None,
    preset: str | None,
    config: Path | None,
    settings: tuple[str, ...],
    files: RunFiles | None,
    start: StartModel | None,
) -> RunConfig:
    """Return the requested settings, based on a preset, a start or a resumed run."""
    if preset is not None and files is not None:
        require_task(preset, files.task)
    if resumed is not None and preset is not None and RunFolder.open(resumed)[0].start:
        raise ConfigError(
            f"{resumed}: the run to resume started from a model, from which its "
            "settings follow; leave the preset out."
        )
    if resumed is not None and preset is None:
        return changed_by_options(settings_of(resumed), config, settings)
    if start is not None:
        base = settings_from(start, preset or ADAPT)
        return changed_by_options(base, config, settings)
    large, _ = FITTING["translation" if files is None else files.task]
    return run_config(preset or large, config, settings)


def _steps_of_resumed(
    out: Path,
    run: RunConfig,
    files: RunFiles | None,
    config: Path | None,
    settings: tuple[str, ...],
) -> int:
    """Number of updates that a resumed run is to make.

    Raises `ConfigError` if the run was started with different input or settings, or if
    the number follows from a preset, not from --set or --config.
    """
    recorded = settings_of(out)
    refuse_changed_settings(out, run)
    if files is not None:
        refuse_changed_files(out, files)
    steps = changed_by_options(recorded, config, settings).training.steps
    if run.training.steps != steps:
        raise ConfigError(
            f"{out}: `training.steps` of the run to resume is "
            f"{recorded.training.steps:,}, but {run.training.steps:,} in the preset; "
            "leave the preset out, or add --set training.steps=NUMBER."
        )
    return steps
