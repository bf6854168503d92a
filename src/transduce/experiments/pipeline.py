"""Training pipeline: text files to a trained, averaged, scored model.

Sections 5 and 6.1 of the paper. `train` prepares a run's folder and trains in it;
`resume` continues a run from its newest usable checkpoint.

Both use `_Run`. It loads the newest checkpoint (`_load_newest`), trains to the end, or
again from a checkpoint if the loss diverges (`_train_to_the_end`), scores each
checkpoint (`_score`), and makes the run's model (`_finish`). Its parts are in the
modules beside this one: `run_corpus` and `run_folder` read and write files,
`resuming` records each start of the run, `run_training` makes the trainer, keeps
checkpoints and chooses the final model, and `dev_corpus` scores them.
"""

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

import torch

from transduce.data.augmentation import Augmentation
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import with_absolute_files, with_target_languages
from transduce.data.prepared_corpus import PairEncoder, PreparedCorpus
from transduce.device import Hardware, torch_defaults
from transduce.errors import WEEK, CheckpointError, ConfigError, duration
from transduce.experiments.contradictions import (
    refuse_contradictions,
    settings_without_effect,
    without_default_patience,
)
from transduce.experiments.corpus_check import (
    Advice,
    CorpusReport,
    advise,
    advise_on_treebank,
    check_prepared,
    fitting_proposal,
    require_fitting,
    without_preset,
)
from transduce.experiments.dev_corpus import DevScore, DevScoring
from transduce.experiments.presets import ADAPT, RunConfig
from transduce.experiments.resuming import (
    current_environment,
    fitting_micro_batch,
    lengthen,
    log_start,
    refuse_changed_precision,
    warn_of_changes,
)
from transduce.experiments.run_corpus import (
    RunFiles,
    given_encoder,
    known_languages,
    require_scoring,
)
from transduce.experiments.run_folder import (
    DIVERGED,
    FINAL,
    FINAL_DEV_SET,
    PICTURE,
    START_MODEL,
    WENT_BACK,
    RunFolder,
)
from transduce.experiments.run_training import (
    FinalModelChoice,
    LoadedRun,
    RunCheckpoints,
    TrainingPoint,
    augmentation_of,
    new_trainer,
    open_training_set,
)
from transduce.experiments.start_model import (
    StartModel,
    changed_functions,
    coverage_advice,
    languages_from,
    new_languages,
    refuse_misfit,
    refuse_replacing,
    refuse_unknown_targets,
)
from transduce.files import atomic_file, remove_folder
from transduce.machine import (
    Precision,
    WaitingMeter,
    keep_freed_memory,
    objects_frozen,
    use_huge_pages,
    use_one_arena,
)
from transduce.model_folder import newest_first
from transduce.native import api
from transduce.signals import stop_on_signal, unwound_on_termination
from transduce.text.alignment import DICTIONARY_FILE, WordDictionary
from transduce.training.config import TrainingConfig, rate_setting
from transduce.training.data_parallel import ALONE, ProcessGroup
from transduce.training.memory import MicroBatchSize, require_memory
from transduce.training.trainer import DivergedError, StepReport, Trainer

LOG_STEPS = 10
"""Updates between lines of the log."""
DRAWN_SECONDS = 10.0
"""Least time between two drawings of the learning curve; the last is always made."""
DIVERGED_RATE_FACTOR = 0.5
"""Factor on the learning rate after the loss has diverged."""


SEEDING = Lock()
"""Lock of PyTorch's generator, which all threads share, for new weights."""


class TooLongTrainingError(ConfigError):
    """Training would take longer than the user agreed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """State of a run before its first update."""

    config: RunConfig
    corpus: PreparedCorpus | None
    """Prepared corpus of a new run; None if the run is resumed."""
    num_parameters: int
    hardware: Hardware
    num_processes: int
    update_tokens: tuple[int, int]
    """Approximate numbers of source and target tokens of an update."""
    micro_batch: MicroBatchSize
    """Micro-batch that fits in memory, the same in all processes."""
    steps_done: int
    """Updates made before."""
    origin: str | None = None
    """Folder of the model that the run started from; None for new weights."""
    keeps_optimizer: bool = False
    """Whether the run continues the optimizer of the run that it started from."""
    advice: tuple[Advice, ...] = ()
    """Warnings about the corpus and the settings of a new run."""

    @property
    def seconds_left(self) -> float:
        """Estimated seconds to the end of the run, without its checkpoints."""
        positions = sum(self.update_tokens)
        training = self.config.training
        num_steps = training.steps - self.steps_done
        by_reward = min(training.reward_steps or 0, num_steps)
        # In an update by reward, samples are scored beside each pair, in one pass.
        passes_by_reward = by_reward * (1 + training.reward_samples)
        num_updates = num_steps - by_reward + passes_by_reward / training.num_passes
        return num_updates * positions * self.micro_batch.seconds / self.num_processes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Model of a finished run."""

    model: Path
    """Folder of the averaged model, or of the best checkpoint if it is better."""
    num_averaged: int
    """Number of checkpoints in the average; 1 for the best checkpoint."""
    dev: DevScore | None
    """Score of the model by its own search; None without a dev corpus."""
    dev_sets: tuple[DevScore, ...] = ()
    """Scores of the model on the further dev sets."""
    before: tuple[DevScore, ...] = ()
    """Scores of the model that the run started from, on all dev sets."""
    picture: Path
    """Learning curve as PNG."""


@runtime_checkable
class RunObserver(Protocol):
    """Callbacks of a run, called in the first process only.

    A subclass defines those that it needs; the others do nothing.
    """

    def started(self, start: RunStart) -> None:
        """Report the run's data, sizes and forecast, before the first update."""
        return

    def stepped(self, report: StepReport) -> None:
        """Report an update: its number, its loss and its speed."""
        return

    def scored(self, score: DevScore) -> None:
        """Report the score of a checkpoint on a dev set."""
        return

    def warned(self, message: str) -> None:
        """Report a warning, a sentence or more."""
        return

    def went_back(self, step: int) -> None:
        """Report that the loss has diverged, and the step to which the run goes
        back."""
        return

    def finished(self, result: RunResult) -> None:
        """Report the model of the run."""
        return


@runtime_checkable
class TrialObserver(Protocol):
    """Observer that is also called before the trial of an update, which takes a while.

    The trial measures time and memory of an update, for the forecast of `RunStart`.
    """

    def trying(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """User's consent to a long training and to overwriting a run."""

    is_chosen: bool = True
    """Whether the user chose the settings, or accepts any length of training."""
    is_length_chosen: bool = True
    """Whether the user chose the number of updates, or accepts any length."""
    overwrites: bool = False
    """Whether the run may replace an older one."""

    @property
    def max_weeks(self) -> float:
        """Longest training in weeks, by its forecast; infinite if it was chosen."""
        if not self.is_chosen:
            return 1.0
        return math.inf if self.is_length_chosen else 2.0


ALL_CHOSEN = Consent()


def train(
    files: RunFiles,
    config: RunConfig,
    out: Path,
    hardware: Hardware,
    *observers: RunObserver,
    processes: ProcessGroup = ALONE,
    consent: Consent = ALL_CHOSEN,
    start: StartModel | None = None,
    encoder: PairEncoder | None = None,
    dictionary: WordDictionary | None = None,
) -> None:
    """Train a new run in the folder `out`, from random weights or from a model.

    The vocabulary is learned, unless an encoder, a model to start from or the file that
    the settings name has one. A dictionary of unknown words may be given beside an
    encoder.

    The checks that need no corpus come first, then the corpus is prepared in the new
    folder, then the run is trained. Raises `ConfigError` if the model cannot fit in
    memory, or if settings contradict each other or the corpus. Default settings also
    raise it if they are for much larger corpora, or would train for more than a week; a
    preset whose length the user did not choose, if it would train for more than two.
    """
    use_one_arena()  # before the threads that encode the corpus
    config, files = _with_recorded_corpora(config, files)
    if start is not None:
        refuse_replacing(start, out)
        encoder = start.encoder(config.corpora)
    elif encoder is None:
        encoder = given_encoder(config, files)
    request = _RunRequest(
        files=files,
        config=config,
        out=out,
        consent=consent,
        start=start,
        encoder=encoder,
        dictionary=dictionary,
    )
    config = checked_settings(config, files, hardware, start, request.encoder)
    new = None
    if processes.is_first:
        _warn_of_settings(config, files, start, observers)
        with unwound_on_termination():  # so that a half-prepared corpus is removed
            new = _prepared(request, config, hardware.precision, observers)
        folder, config = RunFolder(out), new.config
        processes.barrier()
    else:
        processes.barrier()  # until the first process has created the folder
        folder, config = RunFolder.open(out)
    try:
        with (
            _locked(folder, processes),
            closing(_Run(folder, config, hardware, observers, processes)) as run,
        ):
            run.train(consent, new)
    except TooLongTrainingError:
        if processes.is_first:
            remove_folder(out)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunRequest:
    """New run as the user requests it."""

    files: RunFiles
    config: RunConfig
    out: Path
    consent: Consent
    start: StartModel | None
    encoder: PairEncoder | None
    """Vocabulary in place of a learned one."""
    dictionary: WordDictionary | None
    """Translations of unknown words that come with a vocabulary of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewRun:
    """Prepared run before its first start."""

    config: RunConfig
    """Settings with the sizes of the vocabulary."""
    corpus: PreparedCorpus
    advice: tuple[Advice, ...]
    """Warnings about the corpus and the settings."""
    proposal: str
    """Name of a fitting preset; empty if the chosen one fits."""


def _prepared(
    request: _RunRequest,
    config: RunConfig,
    precision: Precision,
    observers: Sequence[RunObserver],
) -> _NewRun:
    """Prepare the corpus of a new run in its folder, and check it.

    `config` is the result of `checked_settings` for the request. Warns if the
    `patience` that was requested is left out. After an error the folder is as it was
    before.
    """
    files, start = request.files, request.start
    with RunFolder.create(
        request.out,
        files,
        config,
        precision,
        overwrite=request.consent.overwrites,
        encoder=request.encoder,
        start=start.record() if start else None,
    ) as (folder, config, corpus):
        if config.training.patience != request.config.training.patience:
            _warn_observers(observers, _no_patience(config.training))
        if start is not None:
            start.write(folder.path)
        if request.dictionary is not None:
            request.dictionary.save(folder.path / DICTIONARY_FILE)
        has_bytes = request.encoder is None
        report = check_prepared(
            folder.path, corpus, config, files.task, has_bytes=has_bytes
        )
        return _NewRun(
            config=config,
            corpus=corpus,
            advice=_advice(folder, report, request),
            proposal=fitting_proposal(report),
        )


def checked_settings(
    config: RunConfig,
    files: RunFiles,
    hardware: Hardware,
    start: StartModel | None,
    encoder: PairEncoder | None,
) -> RunConfig:
    """Check the settings of a new run, and return them with the run's languages.

    Languages that are not given are those of the files' endings, or of the model to
    start from. Raises `ConfigError` if settings contradict each other, the files or
    that model, or if the model cannot fit in memory, and `RequestError` if a score on
    the dev corpus needs a package that is missing.
    """
    languages, model = config.languages, config.model
    if start is None:
        config = replace(config, languages=known_languages(languages, files))
        model = config.sized_model
        if encoder is not None:
            model = replace(model, vocab_size=encoder.tokenizer.vocab_size)
    else:
        refuse_misfit(start, config, files)
        config = replace(config, languages=languages_from(start, languages, files))
        refuse_unknown_targets(start, config, files)
        if not (files.has_dev or config.evaluation.hold_out):
            config = without_default_patience(config)
    api()  # refuses a wrong TRANSDUCE_ISA now, not after the preparation
    require_memory(model, hardware)
    tokenizer = encoder.tokenizer if encoder else None
    refuse_contradictions(config, files, tokenizer)
    if isinstance(files, CorpusFiles):
        require_scoring(files, config, tokenizer)
    return config


def resume(
    out: Path,
    hardware: Hardware,
    *observers: RunObserver,
    processes: ProcessGroup = ALONE,
    steps: int | None = None,
) -> None:
    """Continue the run in the folder `out` from its newest usable checkpoint.

    With `steps` its number of updates is changed, also that of a finished run. Raises
    `ConfigError` if the run was started in another precision, or if it has made more
    updates, and `CheckpointError` if no checkpoint can be used.
    """
    use_one_arena()  # before the threads that read ahead
    folder, config = RunFolder.open(out)
    refuse_changed_precision(folder, hardware.precision)
    if steps is not None:
        steps = replace(config.training, steps=steps).steps
    with _locked(folder, processes):
        folder.require_checkpoints()
        if steps is not None:
            processes.barrier()  # until all have read the record that may change
            if processes.is_first and steps != config.training.steps:
                _require_readable(folder, config, hardware)
                _warn_observers(observers, *lengthen(folder, config, steps))
            processes.barrier()
            folder, config = RunFolder.open(out)
        with closing(_Run(folder, config, hardware, observers, processes)) as run:
            run.train()


def _require_readable(folder: RunFolder, config: RunConfig, hardware: Hardware) -> None:
    """Raise `CheckpointError` or `DataError` if a file that training reads is damaged.

    A run that cannot continue must not be changed first.
    """
    run = LoadedRun.of(folder, config)
    open_training_set(run)
    DevScoring(folder, run.config, hardware.device)


def _with_recorded_corpora(
    config: RunConfig, files: RunFiles
) -> tuple[RunConfig, RunFiles]:
    """Return settings and files with the corpora of a mixture as a run records them."""
    if not config.corpora or not isinstance(files, CorpusFiles):
        return config, files
    corpora = with_target_languages(config.corpora)
    recorded = with_absolute_files(corpora)
    return replace(config, corpora=recorded), replace(files, corpora=corpora)


def _warn_of_settings(
    config: RunConfig,
    files: RunFiles,
    start: StartModel | None,
    observers: Sequence[RunObserver],
) -> None:
    """Warn of settings without effect, and of changes by a start from a model."""
    messages = settings_without_effect(config, files)
    if start is not None:
        messages += changed_functions(start, config)
        messages += new_languages(start, config.languages)
    _warn_observers(observers, *messages)


def _warn_observers(observers: Sequence[RunObserver], *messages: str) -> None:
    for message in messages:
        for observer in observers:
            observer.warned(message)


def _no_patience(training: TrainingConfig) -> str:
    """Warning that the patience of the preset `adapt` is left out."""
    return (
        f"The patience of the preset {ADAPT} (`training.patience`) has no effect "
        f"without a dev corpus, so the run makes all {training.steps:,} updates."
    )


def _advice(
    folder: RunFolder, report: CorpusReport, request: _RunRequest
) -> tuple[Advice, ...]:
    """Warnings about the prepared corpus.

    Raises `ConfigError` if the default settings do not fit it.
    """
    task, start = request.files.task, request.start
    if start is not None:
        report = without_preset(report)
    elif not request.consent.is_chosen:
        require_fitting(report, task)
    advice = advise(report) if task == "translation" else advise_on_treebank(report)
    encoder = request.encoder
    return (*(coverage_advice(encoder, folder.path) if encoder else ()), *advice)


def _locked(
    folder: RunFolder, processes: ProcessGroup
) -> AbstractContextManager[object]:
    return folder.locked() if processes.is_first else nullcontext()


def _too_long(seconds: float, consent: Consent, proposal: str) -> TooLongTrainingError:
    """Error of a training that would take too long, with the ways out.

    The proposal is the name of a fitting preset; it is empty if the chosen one fits.
    """
    if not consent.is_chosen:
        return TooLongTrainingError(
            "Training by default settings must end within a week, but would take about "
            f"{duration(seconds)} here; name a preset, take fewer steps "
            "(training.steps) or a GPU, or accept any length by `transduce train "
            "--however-long`."
        )
    fitting = f"choose {proposal}, " if proposal else ""
    return TooLongTrainingError(
        "Training must end within two weeks unless its length is chosen, but would "
        f"take about {duration(seconds)} here; {fitting}set fewer steps "
        "(training.steps), train on a GPU, or accept any length by `transduce train "
        "--however-long`."
    )


class _Run:
    """A run in its folder, which is trained to its end."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        hardware: Hardware,
        observers: Sequence[RunObserver],
        processes: ProcessGroup,
    ) -> None:
        self._run = LoadedRun.of(folder, config)
        self._folder = folder
        self._config = self._run.config
        self._hardware = hardware
        self._processes = processes
        self._observers = observers if processes.is_first else ()
        self._scoring = DevScoring(folder, self._config, hardware.device)
        self._checkpoints = RunCheckpoints(self._run, self._set_aside)
        self._meter = WaitingMeter()
        self._unlogged: StepReport | None = None
        self._augmentation: Augmentation | None = None
        self._drawn_at = time.monotonic()

    def close(self) -> None:
        """End the processes that augment the corpus."""
        if self._augmentation is not None:
            self._augmentation.close()

    @torch_defaults()
    def train(self, consent: Consent = ALL_CHOSEN, new: _NewRun | None = None) -> None:
        """Train from the newest checkpoint, or from the start, to the end.

        Raises `TooLongTrainingError` if the forecast exceeds what the user agreed to.
        """
        keep_freed_memory()
        if self._hardware.device.type == "cpu":
            use_huge_pages()
        with objects_frozen(), self._hardware.kept_generators():
            self._train(consent, new)

    def _train(self, consent: Consent, new: _NewRun | None) -> None:
        trainer = self._trainer()
        start = self._forecast(trainer, new)
        is_too_long = start.seconds_left > consent.max_weeks * WEEK
        if self._processes.all_reduce_any(is_too_long, self._hardware.device):
            raise _too_long(start.seconds_left, consent, new.proposal if new else "")
        for observer in self._observers:
            observer.started(start)
        if self._processes.is_first:
            environment = current_environment(
                self._hardware, self._processes.world_size
            )
            warn_of_changes(environment, self._folder.log, self._warn)
            self._save_last_if_missed(trainer)
            self._score_start(trainer)
            self._score_if_missed(trainer)
            step, used = trainer.progress.step, self._config.augmentation.used
            if step < self._config.training.steps:
                log = self._folder.log
                log_start(log, step, environment, start.micro_batch, used)
                self._meter = WaitingMeter()
        self._train_to_the_end(trainer)
        if self._processes.is_first:
            result = self._finish(trainer)
            for observer in self._observers:
                observer.finished(result)

    def _trainer(self) -> Trainer:
        """Return a trainer in the state of the newest usable checkpoint."""
        model, state = self._load_newest()
        dataset = open_training_set(self._run)
        self._augmentation = augmentation_of(
            self._run, dataset, self._processes, self._warn
        )
        trainer = new_trainer(
            self._run,
            model,
            dataset,
            self._augmentation,
            self._hardware,
            self._processes,
        )
        trainer.restore(state)
        return trainer

    def _forecast(self, trainer: Trainer, new: _NewRun | None) -> RunStart:
        """Return the sizes and the forecast of the run, after trying an update."""
        for observer in self._observers:
            if isinstance(observer, TrialObserver):
                observer.trying()
        return RunStart(
            config=self._config,
            corpus=new.corpus if new else None,
            num_parameters=trainer.model.num_parameters(),
            hardware=self._hardware,
            num_processes=self._processes.world_size,
            update_tokens=trainer.update_tokens(),
            micro_batch=fitting_micro_batch(trainer, self._folder.log, self._warn),
            steps_done=trainer.progress.step,
            origin=self._folder.start.get("path"),
            keeps_optimizer=trainer.progress.earlier_updates > 0,
            advice=new.advice if new else (),
        )

    def _load_newest(self, *, has_diverged: bool = False) -> TrainingPoint:
        """Load the newest usable checkpoint, or a new model if nothing is saved.

        The first process sets damaged checkpoints aside and, after a divergence, those
        that were saved while the loss was rising; it also drops later entries of the
        log. Then the others load. Raises `CheckpointError` if no checkpoint is left, or
        if the processes find different ones.
        """
        if self._processes.is_first:
            self._folder.clear_leftovers()
            point = self._newest_point(has_diverged=has_diverged)
            state = point.state
            self._folder.log.forget_after(
                point.step,
                keep_start=has_diverged,
                is_lowered=state is not None and state.progress.rate_factor < 1,
            )
            self._processes.barrier()
        else:
            # The first process sets damaged checkpoints aside meanwhile.
            self._processes.barrier()
            point = self._newest_point(has_diverged=has_diverged)
        step = float(point.step)
        if self._processes.all_reduce_min(step, self._hardware.device) != step:
            raise CheckpointError(
                f"{self._folder.path}: all processes must find the same checkpoints, "
                "but do not; wait until the shared disk has them, and resume."
            )
        return point

    def _newest_point(self, *, has_diverged: bool) -> TrainingPoint:
        """Return the newest usable checkpoint, or else a new model, drawn by the seed.

        After a divergence, checkpoints with a rising loss cannot be used either.
        """
        if has_diverged:
            found = self._checkpoints.newest_before_divergence()
        else:
            found = self._checkpoints.newest()
        if found is not None:
            return found
        with SEEDING, torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(self._config.training.seed)
            return self._checkpoints.first()

    def _set_aside(self, damaged: Path, error: CheckpointError) -> None:
        if not self._processes.is_first:
            raise error
        has_others = newest_first(self._folder.path) != [damaged]
        goes_on = " Continuing from the previous checkpoint." if has_others else ""
        self._warn(f"{error}{goes_on}")
        self._folder.set_aside(damaged)

    def _warn(self, message: str) -> None:
        _warn_observers(self._observers, message)

    def _train_to_the_end(self, trainer: Trainer) -> None:
        """Train to the end; once, a loss that diverges lowers the learning rate."""
        while (diverged := self._train_until_divergence(trainer)) is not None:
            if trainer.progress.rate_factor < 1:
                if self._processes.is_first:
                    self._folder.log.append(DIVERGED, step=trainer.progress.step)
                raise DivergedError(
                    f"{diverged} This was at a reduced learning rate; start another "
                    f"run with a lower `{rate_setting(self._config.training)}`."
                )
            # Unlike the paper: a run whose loss diverges goes back to its last good
            # checkpoint, once, and continues at half the learning rate. The paper does
            # not mention such runs. On by default.
            model, state = self._load_newest(has_diverged=True)
            trainer.model.load_state_dict(model.state_dict())
            trainer.restore(state)
            trainer.lower_learning_rate(DIVERGED_RATE_FACTOR)
            self._warn(
                f"{diverged} Going back to step {trainer.progress.step:,}, and "
                f"continuing at {DIVERGED_RATE_FACTOR} times the learning rate."
            )
            if self._processes.is_first:
                self._folder.log.append(
                    WENT_BACK,
                    step=trainer.progress.step,
                    rate_factor=DIVERGED_RATE_FACTOR,
                )
            for observer in self._observers:
                observer.went_back(trainer.progress.step)

    def _train_until_divergence(self, trainer: Trainer) -> DivergedError | None:
        """Train to the end, or until the loss diverges; return that error."""
        self._decay_at_plateau(trainer)  # a checkpoint is saved before it is scored
        if self._processes.all_reduce_any(
            self._is_over(trainer), self._hardware.device
        ):
            return None
        try:
            with stop_on_signal() as should_stop:
                trainer.train(
                    on_step=self._stepped,
                    save=lambda: self._save(trainer),
                    on_checkpoint=lambda: self._checkpointed(trainer),
                    should_stop=should_stop,
                )
        except DivergedError as error:
            return error
        return None

    def _stepped(self, report: StepReport) -> None:
        """Report an update, and log every tenth."""
        is_last = report.step == self._config.training.steps
        self._unlogged = report
        if report.step % LOG_STEPS == 0 or is_last:
            self._log_step()
        for observer in self._observers:
            observer.stepped(report)

    def _log_step(self) -> None:
        """Log the last update, unless it is logged."""
        report, self._unlogged = self._unlogged, None
        if report is not None and self._processes.is_first:
            figures = {k: v for k, v in asdict(report).items() if v is not None}
            self._folder.log.append("step", **figures, waited=self._meter.share())
            self._meter = WaitingMeter()

    def _save(self, trainer: Trainer) -> None:
        """Save a checkpoint of the schedule, or one where the run is stopped."""
        if not self._processes.is_first:
            return
        checkpoint = self._run.checkpoint(trainer.model, trainer.progress.step)
        if trainer.is_checkpoint_due:
            self._checkpoints.save(checkpoint, trainer.state())
        else:
            self._checkpoints.save_stopped(checkpoint, trainer.state())

    def _save_last_if_missed(self, trainer: Trainer) -> None:
        """Save a last checkpoint, if the run was stopped where it is now to end."""
        step = trainer.progress.step
        is_over = step == self._config.training.steps
        if is_over and not self._folder.checkpoint(step).exists():
            checkpoint = self._run.checkpoint(trainer.model, step)
            self._checkpoints.save(checkpoint, trainer.state())

    def _score_start(self, trainer: Trainer) -> None:
        """Score the model that the run starts from, as if it were a checkpoint.

        It stays the best one if none is better.
        """
        is_new = trainer.progress.step == 0 and not self._scoring.is_scored(0)
        if self._folder.start and is_new:
            self._score(trainer)

    def _score_if_missed(self, trainer: Trainer) -> None:
        """Score the newest checkpoint, if the run was stopped before it was scored."""
        step = trainer.progress.step
        is_saved = self._folder.checkpoint(step).exists()
        if is_saved and not self._scoring.is_scored(step):
            self._score(trainer)

    def _checkpointed(self, trainer: Trainer) -> bool:
        """Score a checkpoint; return whether the run is to end."""
        if self._processes.is_first:
            self._score(trainer)
        self._decay_at_plateau(trainer)
        if is_over := self._is_over(trainer):
            self._log_step()  # the run's cost is that of its last update
        return is_over

    def _score(self, trainer: Trainer) -> None:
        """Score the model on the dev sets, and save it if it is the best so far."""
        checkpoint = self._run.checkpoint(trainer.model, trainer.progress.step)
        scores = self._scoring.score(checkpoint, trainer)
        for score in scores:
            for observer in self._observers:
                observer.scored(score)
        # With small models drawing takes as long as ten updates.
        if time.monotonic() - self._drawn_at >= DRAWN_SECONDS:
            self._draw()

    def _decay_at_plateau(self, trainer: Trainer) -> None:
        """Lower the learning rate if the dev loss of a checkpoint has not fallen.

        Only the schedule plateau does so, and only at a step with a checkpoint.
        """
        if self._config.training.schedule != "plateau":
            return
        loss = None
        if self._processes.is_first:
            step = trainer.progress.step
            loss = self._scoring.loss_at(step)
        device = self._hardware.device
        if self._processes.all_reduce_any(loss is not None, device):
            known = math.inf if loss is None else loss
            trainer.decay_at_plateau(self._processes.all_reduce_min(known, device))

    def _is_over(self, trainer: Trainer) -> bool:
        """Whether the run is to end early: its rate or its patience is spent.

        Only the first process scores checkpoints, and so knows the patience.
        """
        if trainer.is_rate_spent or not self._processes.is_first:
            return trainer.is_rate_spent
        return self._scoring.is_patience_spent(trainer.progress.step)

    def _finish(self, trainer: Trainer) -> RunResult:
        """Save the run's model, and log and report its scores."""
        self._checkpoints.drop_old()  # a crash may have come before that
        choice = FinalModelChoice(self._run, self._scoring, trainer, self._warn)
        model = choice.save(self._checkpoints.averaged())
        before = choice.scores_of_start()
        scores = model.scores
        # Resuming a finished run reports its result again, but does not log it again.
        if scores and not self._folder.log.has_results:
            self._folder.log.append_results(
                [
                    *({"kind": START_MODEL, **score.entry()} for score in before),
                    *({"kind": FINAL_DEV_SET, **score.entry()} for score in scores[1:]),
                    {"kind": FINAL, **scores[0].entry()},
                ]
            )
        self._draw()
        return RunResult(
            model=model.path,
            num_averaged=model.num_averaged,
            dev=scores[0] if scores else None,
            dev_sets=tuple(scores[1:]),
            before=tuple(before),
            picture=self._folder.path / PICTURE,
        )

    def _draw(self) -> None:
        from transduce.analysis.figures import draw_learning_curve  # slow to import

        with atomic_file(self._folder.path / PICTURE) as new:
            draw_learning_curve(self._folder.log.read(), new)
        self._drawn_at = time.monotonic()
