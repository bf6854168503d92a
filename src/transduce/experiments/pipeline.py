"""From two text files to a trained, averaged, scored model (sections 5 and 6.1)."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from transduce.analysis.learning_curve import draw_learning_curve
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.data.batches import Batcher
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import open_dataset, require_ids_below
from transduce.data.held_out import MOST
from transduce.data.prepared_corpus import PreparedCorpus
from transduce.device import Hardware
from transduce.errors import WEEK, CheckpointError, ConfigError, duration
from transduce.experiments.computing import changes, computing_of, recorded
from transduce.experiments.contradictions import (
    refuse_contradictions,
    settings_without_effect,
)
from transduce.experiments.corpus_check import (
    Advice,
    advise,
    advise_on_treebank,
    check_prepared,
    require_fitting,
)
from transduce.experiments.dev_corpus import DevCorpus, DevHistory, DevScore
from transduce.experiments.observation import (
    Observers,
    RunObserver,
    RunResult,
    RunStart,
)
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_checkpoints import RunCheckpoints
from transduce.experiments.run_folder import (
    PICTURE,
    RunFiles,
    RunFolder,
    known_languages,
    refuse_changed_precision,
)
from transduce.files import remove_folder
from transduce.interruption import stop_on_signal, unwound_on_termination
from transduce.machine import WaitingMeter, keep_freed_memory
from transduce.metrics.tokenization import choose_tokenization
from transduce.model.transformer import Transformer
from transduce.model_folder import AVERAGED, BEST
from transduce.text.corpus import read_text
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from transduce.training.averaging import average
from transduce.training.distributed import ALONE, Processes
from transduce.training.guided_attention import Guidance, word_beginnings
from transduce.training.micro_batch import Fit, require_memory
from transduce.training.trainer import (
    DivergedError,
    StepReport,
    Trainer,
    TrainingState,
)

LOG_STEPS = 10
"""Updates between lines of the log."""
SLOWER = 0.5
"""Factor on the learning rate after the loss has diverged."""


class TooLongTrainingError(ConfigError):
    """Default settings would train for more than a week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """User's consent to a long training and to overwriting a run."""

    is_chosen: bool = True
    """Whether the user chose the settings, or accepts any length of training."""
    overwrites: bool = False
    """Whether the run may replace an older one."""


ALL_CHOSEN = Consent()


def train(
    files: RunFiles,
    config: RunConfig,
    out: Path,
    hardware: Hardware,
    observer: RunObserver,
    processes: Processes = ALONE,
    *,
    consent: Consent = ALL_CHOSEN,
) -> None:
    """Train a new run in the folder `out`, which may overwrite an older run.

    `ConfigError` if the model cannot fit in memory, or settings contradict each other
    or the corpus. If the user did not choose the settings, also if they are for much
    larger corpora, or training would take more than a week.
    """
    largest = replace(config.model, vocab_size=config.tokenizer.vocab_size)
    require_memory(largest, hardware)
    config = replace(config, languages=known_languages(config.languages, files))
    _require_consistent(files, config)
    corpus, advice = None, list[Advice]()

    def accept(folder: Path, prepared: PreparedCorpus) -> None:
        report = check_prepared(folder, prepared, config, files.task)
        if not consent.is_chosen:
            require_fitting(report, files.task)
        is_text = files.task == "translation"
        advice.extend(advise(report) if is_text else advise_on_treebank(report))

    if processes.is_first:
        for each in settings_without_effect(config):
            observer.warned(each)
        with unwound_on_termination():  # so that half a corpus is not left behind
            precision = hardware.precision
            _, corpus = RunFolder.create(
                out, files, config, precision, accept, overwrite=consent.overwrites
            )
    processes.wait()
    folder, _ = RunFolder.open(out)
    limit = math.inf if consent.is_chosen else float(WEEK)
    try:
        with _claimed(folder, processes):
            run = _Run(folder, config, hardware, observer, processes)
            run.train(corpus, tuple(advice), limit)
    except TooLongTrainingError:
        if processes.is_first:
            remove_folder(out)
        raise


def _require_consistent(files: RunFiles, config: RunConfig) -> None:
    """Raise `ConfigError` if settings contradict each other, or the corpus."""
    refuse_contradictions(config, files)
    will_have_dev = files.has_dev or config.evaluation.hold_out
    if isinstance(files, CorpusFiles) and will_have_dev:
        # Find missing packages of scoring now, not at the first checkpoint.
        references = islice(read_text(files.dev_target or files.target), MOST)
        language = config.languages.target
        choose_tokenization(config.evaluation.tokenize, language, references)


def resume(
    out: Path,
    hardware: Hardware,
    observer: RunObserver,
    processes: Processes = ALONE,
) -> None:
    """Go on with the run in the folder `out`, from its newest sound checkpoint.

    `ConfigError` if it was begun in another precision.
    """
    folder, config = RunFolder.open(out)
    refuse_changed_precision(folder, hardware.precision)
    with _claimed(folder, processes):
        _Run(folder, config, hardware, observer, processes).train()


def _claimed(folder: RunFolder, processes: Processes) -> AbstractContextManager[object]:
    return folder.claimed() if processes.is_first else nullcontext()


class _Run:
    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        hardware: Hardware,
        observer: RunObserver,
        processes: Processes,
    ) -> None:
        self._folder = folder
        self._tokenizer = load_tokenizer(folder.path / TOKENIZER_FILE)
        self._symbols = folder.symbols()
        model = replace(
            config.model,
            vocab_size=self._tokenizer.vocab_size,
            target_vocab_size=self._symbols.vocab_size if self._symbols else None,
        )
        self._config = replace(config, model=model)
        self._hardware = hardware
        self._processes = processes
        self._observer = observer if processes.is_first else Observers()
        self._dev = DevCorpus.open(folder, self._config, hardware.device)
        self._checkpoints = RunCheckpoints(folder, config.training)
        self._meter = WaitingMeter()

    def train(
        self,
        corpus: PreparedCorpus | None = None,
        advice: tuple[Advice, ...] = (),
        limit_seconds: float = math.inf,
    ) -> None:
        keep_freed_memory()
        trainer = self._restored_trainer()
        fitted = trainer.fit(self._earlier_cut())
        start = RunStart(
            config=self._config,
            corpus=corpus,
            num_parameters=trainer.model.num_parameters(),
            hardware=self._hardware,
            num_processes=self._processes.count,
            fit=fitted,
            first_step=trainer.progress.step,
            advice=advice,
        )
        is_too_long = start.seconds_left > limit_seconds
        if self._processes.any(is_too_long, self._hardware.device):
            raise TooLongTrainingError(
                f"Training by default settings must end within a week, but would "
                f"take about {duration(start.seconds_left)} here; name a preset, take "
                "fewer steps (training.steps) or a GPU, or add --however-long."
            )
        self._observer.started(start)
        if self._processes.is_first:
            self._warn_of_other_bits()
            self._score_if_missed(trainer)
            self._log_start(trainer.progress.step, fitted)
        self._train_to_the_end(trainer)
        if self._processes.is_first:
            self._observer.finished(self._finish(trainer))

    def _earlier_cut(self) -> int | None:
        """Positions at a time when the run was last gone on with, if it was cut.

        So it goes on: cut otherwise, it would have other dropout.
        """
        starts = self._folder.entries("start", "was_cut")
        if not starts or not starts[-1]["was_cut"]:
            return None
        return int(starts[-1].get("max_positions") or 0) or None

    def _warn_of_other_bits(self) -> None:
        """Warn if hardware or software has changed, which changes the run's bits."""
        starts = self._folder.entries("start")
        before = recorded(starts[-1]) if starts else None
        if before is None:
            return
        now = computing_of(self._hardware, self._processes.count)
        if (told := changes(before, now)) is not None:
            self._observer.warned(
                "The run goes on with other hardware or software, so that its weights "
                "will not be bit for bit those of a run that was never interrupted "
                f"({told})."
            )

    def _log_start(self, step: int, fitted: Fit) -> None:
        """On what the run goes on, unless it is done."""
        if step < self._config.training.steps:
            self._folder.log(
                "start",
                step=step,
                device=self._hardware.device.type,
                precision=self._hardware.precision,
                num_processes=self._processes.count,
                max_positions=fitted.max_positions,
                was_cut=fitted.was_cut,
                computing=asdict(computing_of(self._hardware, self._processes.count)),
            )
            self._meter = WaitingMeter()

    def _train_to_the_end(self, trainer: Trainer) -> None:
        """Train; once, if the loss diverges, from a good checkpoint more slowly."""
        while (diverged := self._train(trainer)) is not None:
            if trainer.progress.rate_factor < 1:
                raise DivergedError(
                    f"{diverged} That was at a lowered learning rate; begin another "
                    "run with a lower `training.learning_rate_scale`."
                )
            # Unlike the paper: it says nothing of runs that diverge; this one goes back
            # to its last good checkpoint, once, and on at half the learning rate.
            model, state = self._start(has_diverged=True)
            trainer.model.load_state_dict(model.state_dict())
            trainer.restore(state)
            trainer.lower_learning_rate(SLOWER)
            self._observer.warned(
                f"{diverged} Going back to step {trainer.progress.step:,}, and on at "
                f"{SLOWER} times the learning rate."
            )
            self._observer.went_back(trainer.progress.step)

    def _train(self, trainer: Trainer) -> DivergedError | None:
        """Train to the end, or until the loss diverges."""
        is_over = self._processes.is_first and self._is_patience_spent()
        if self._processes.any(is_over, self._hardware.device):
            return None
        try:
            with stop_on_signal() as should_stop:
                trainer.train(
                    on_step=self._stepped,
                    save=lambda: self._save(trainer),
                    on_checkpoint=lambda: self._score(trainer),
                    should_stop=should_stop,
                )
        except DivergedError as error:
            return error
        return None

    def _restored_trainer(self) -> Trainer:
        model, state = self._start()
        dataset = open_dataset(self._folder.corpus)
        model_config = self._config.model
        target_size = model_config.target_vocab_size or model_config.vocab_size
        require_ids_below(
            dataset, self._folder.corpus, model_config.vocab_size, target_size
        )
        batcher = Batcher(dataset, self._config.batching, self._config.training.seed)
        trainer = Trainer(
            model,
            batcher,
            self._config.training,
            self._hardware,
            self._processes,
            self._guidance(),
        )
        trainer.restore(state)
        return trainer

    def _guidance(self) -> Guidance | None:
        """What attention is taught, if a parser's is to be."""
        weight = self._config.treebank.guidance
        if self._symbols is None or weight == 0:
            return None
        pieces = self._tokenizer.pieces(range(self._tokenizer.vocab_size))
        device = self._hardware.device
        return Guidance(
            weight=weight,
            begins_word=word_beginnings(pieces).to(device),
            takes_word=torch.tensor(self._symbols.takes_word, device=device),
        )

    def _start(
        self, *, has_diverged: bool = False
    ) -> tuple[Transformer, TrainingState | None]:
        """The newest checkpoint that is sound, or the beginning.

        Damaged ones are set aside, as are those whose loss is on the rise, if it has
        diverged. `CheckpointError` if there is none but such.
        """
        if self._processes.is_first:
            self._folder.clear_leftovers()
        else:
            self._processes.wait()  # until what is damaged is set aside
        found = self._checkpoints.newest_sound(self._set_aside, has_diverged)
        torch.manual_seed(self._config.training.seed)
        model, state = found or (Transformer(self._config.model), None)
        step = 0 if state is None else state.progress.step
        if self._processes.is_first:
            self._folder.forget_log_after(step)
            self._processes.wait()
        if self._processes.least(float(step), self._hardware.device) != step:
            raise CheckpointError(
                f"{self._folder.path}: all processes must see the same checkpoints, "
                "but do not; wait for the shared disk, and resume."
            )
        return model, state

    def _set_aside(self, damaged: Path, error: CheckpointError) -> None:
        if not self._processes.is_first:
            raise error
        self._observer.warned(f"{error} Going on from the one before.")
        self._folder.set_aside(damaged)

    def _stepped(self, report: StepReport) -> None:
        is_last = report.step == self._config.training.steps
        if self._processes.is_first and (report.step % LOG_STEPS == 0 or is_last):
            self._folder.log("step", **asdict(report), waited=self._meter.share())
            self._meter = WaitingMeter()
        self._observer.stepped(report)

    def _save(self, trainer: Trainer) -> None:
        if not self._processes.is_first:
            return
        checkpoint = self._at_rest(trainer.model, trainer.progress.step)
        if trainer.is_checkpoint_due:
            self._checkpoints.save(checkpoint, trainer.state())
        else:
            self._checkpoints.save_stopped(checkpoint, trainer.state())

    def _score_if_missed(self, trainer: Trainer) -> None:
        """Score the checkpoint gone on from, if the run was stopped before it could."""
        step = trainer.progress.step
        scored = {entry["step"] for entry in self._history().entries}
        if self._folder.checkpoint(step).exists() and step not in scored:
            self._score(trainer)

    def _score(self, trainer: Trainer) -> bool:
        """Score the model on the dev corpus, keep it if it is the best, and draw.

        Whether the run has gone on in vain for long enough to end.
        """
        if not self._processes.is_first:
            return False
        if self._dev is not None:
            checkpoint = self._at_rest(trainer.model, trainer.progress.step)
            score = self._dev.score(checkpoint, trainer, self._config.search.greedy())
            if self._history().is_best(score.entry()):
                save_model(checkpoint, self._folder.path / BEST)
            # Logged last: what the log calls best is saved, even after a crash here.
            self._folder.log("dev", **score.entry())
            self._observer.scored(score)
        self._draw()
        return self._is_patience_spent()

    def _history(self) -> DevHistory:
        entries = self._folder.entries("dev", "loss")
        return DevHistory(entries=entries, best_by=self._config.training.best_by)

    def _is_patience_spent(self) -> bool:
        patience = self._config.training.patience
        return patience is not None and self._history().since_best() >= patience

    def _finish(self, trainer: Trainer) -> RunResult:
        """Average the last checkpoints (section 6.1), and score the average.

        If the best checkpoint alone does better, that is the run's model.
        """
        self._checkpoints.drop_old()  # a crash may have come before that
        members = self._checkpoints.members()
        model, folder = average(members), AVERAGED
        dev = self._dev_score(trainer, model, len(members))
        best = self._best_alone(trainer, members) if dev else None
        # Unlike the paper: the best checkpoint is the model if it alone does better on
        # the dev corpus than the average, by its score and clearly by its loss.
        if dev and best and self._history().beats_surely(best.entry(), dev.entry()):
            self._observer.warned(f"{dev.behind(best)}, and is not kept.")
            folder, dev = BEST, best
            if (self._folder.path / AVERAGED).exists():
                remove_folder(self._folder.path / AVERAGED)
        else:
            if dev and best and self._is_ahead(best, dev):
                self._observer.warned(dev.kept_behind(best))
            save_model(model, self._folder.path / AVERAGED)
        # A run that was done already says so again, but does not log it.
        is_logged = any(e["kind"] == "final" for e in self._folder.read_log())
        if dev is not None and not is_logged:
            self._folder.log("final", **dev.entry())
        self._draw()
        return RunResult(
            model=self._folder.path / folder,
            num_averaged=len(members) if folder == AVERAGED else 1,
            dev=dev,
            picture=self._folder.path / PICTURE,
        )

    def _is_ahead(self, best: DevScore, dev: DevScore) -> bool:
        is_better = self._history().beats(best.entry(), dev.entry())
        return is_better and not dev.is_level(best)

    def _best_alone(
        self, trainer: Trainer, averaged: Sequence[Checkpoint]
    ) -> DevScore | None:
        """The best checkpoint's score; none if it is all that the average is of."""
        try:
            best = load_model(self._folder.path / BEST)
        except CheckpointError as error:
            self._observer.warned(f"{error} The average is kept, unrivalled.")
            return None
        if [best.step] == [member.step for member in averaged]:
            return None
        return self._dev_score(trainer, best, 1)

    def _dev_score(
        self, trainer: Trainer, model: Checkpoint, num_averaged: int
    ) -> DevScore | None:
        """By beam search: greedy search would not show what users will see."""
        if self._dev is None:
            return None
        trainer.model.load_state_dict(dict(model.weights))
        search = replace(self._config.search, num_best=1)
        score = self._dev.score(model, trainer, search)
        return replace(score, num_averaged=num_averaged)

    def _at_rest(self, model: Transformer, step: int) -> Checkpoint:
        return Checkpoint(
            config=self._config.model,
            weights={name: w.detach() for name, w in model.state_dict().items()},
            tokenizer=self._tokenizer,
            step=step,
            symbols=self._symbols,
            run=self._folder.id,
            search=self._config.search,
            source_language=self._config.languages.source,
            target_language=self._config.languages.target,
        )

    def _draw(self) -> None:
        draw_learning_curve(self._folder.read_log(), self._folder.path / PICTURE)
