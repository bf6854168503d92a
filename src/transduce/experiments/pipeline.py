"""From two text files to a trained, averaged, scored model (sections 5 and 6.1)."""

import shutil
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from transduce.analysis.learning_curve import draw_learning_curve
from transduce.checkpoint import (
    AVERAGED,
    BEST,
    CHECKPOINTS,
    Checkpoint,
    average,
    load_model,
    remove_folder,
    save_model,
)
from transduce.data.batches import Batcher
from transduce.data.dataset import open_dataset
from transduce.decoding.beam_search import SearchConfig
from transduce.decoding.translator import Translator
from transduce.device import Hardware, keep_freed_memory
from transduce.errors import CheckpointError, ConfigError, VersionError
from transduce.evaluation.bleu import BleuScore, corpus_bleu
from transduce.experiments.preparation import CorpusFiles, Preparation
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import PICTURE, RunFolder, absolute_names
from transduce.model.transformer import Transformer
from transduce.text.corpus import read_text
from transduce.text.tokenizer import Tokenizer
from transduce.training.interruption import stop_on_signal
from transduce.training.saving import load_training_state, save_training
from transduce.training.trainer import (
    StepReport,
    Trainer,
    TrainingState,
    TrainingStoppedError,
)

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
LOG_STEPS = 10
"""Updates between lines of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    """How well a model does on the held-out corpus."""

    step: int
    loss: float
    perplexity: float
    """Of a target token."""
    bleu: BleuScore
    num_averaged: int = 1
    """Checkpoints that the model is the average of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a run begins with."""

    config: RunConfig
    preparation: Preparation | None
    """None if the run is resumed."""
    num_parameters: int
    hardware: Hardware
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run ends with."""

    model: Path
    """Folder of the averaged model."""
    num_averaged: int
    dev: DevScore | None
    """Of the averaged model; none without a dev corpus."""
    picture: Path


@runtime_checkable
class RunObserver(Protocol):
    """Who is told how a run goes."""

    def started(self, start: RunStart) -> None: ...
    def stepped(self, report: StepReport) -> None: ...
    def scored(self, score: DevScore) -> None: ...
    def warned(self, message: str) -> None: ...


def train(
    files: CorpusFiles,
    config: RunConfig,
    out: Path,
    hardware: Hardware,
    observer: RunObserver,
) -> RunResult:
    """Train a new run in the folder `out`.

    `ConfigError` if the model cannot fit in memory.
    """
    _require_memory(config, hardware)
    folder, preparation = RunFolder.create(out, files, config)
    return _Run(folder, config, hardware, observer).train(preparation)


def resume(out: Path, hardware: Hardware, observer: RunObserver) -> RunResult:
    """Go on with the run in the folder `out`, from its newest sound checkpoint."""
    folder, config = RunFolder.open(out)
    return _Run(folder, config, hardware, observer).train(None)


def settings_of(out: Path) -> RunConfig:
    """The settings that the run in the folder `out` was begun with."""
    return RunFolder.open(out)[1]


def refuse_changed_settings(out: Path, config: RunConfig) -> None:
    """`ConfigError` if a run to be resumed was begun with other settings."""
    begun = settings_of(out)
    # The tokenizer's, and not for the caller to choose.
    model = replace(config.model, vocab_size=begun.model.vocab_size)
    config = replace(config, model=model)
    for name in (field.name for field in fields(config)):
        ours, theirs = asdict(getattr(config, name)), asdict(getattr(begun, name))
        for key, value in ours.items():
            if value != theirs[key]:
                raise ConfigError(
                    f"{out}: `{name}.{key}` of the run to resume is {theirs[key]!r}, "
                    f"but {value!r} is asked for; leave the setting out, or begin "
                    "another run."
                )


def refuse_changed_files(out: Path, files: CorpusFiles) -> None:
    """`ConfigError` if a run to be resumed was begun with other files."""
    folder, _ = RunFolder.open(out)
    if (begun := folder.files()) != absolute_names(files):
        raise ConfigError(
            f"{out}: the run to resume was begun with other files "
            f"({', '.join(begun['source'] + begun['target'])}, ...); leave the files "
            "out, or begin another run."
        )


def _require_memory(config: RunConfig, hardware: Hardware) -> None:
    largest = replace(config.model, vocab_size=config.tokenizer.vocab_size)
    try:
        with torch.device("meta"):
            num_parameters = Transformer(largest).num_parameters()
    except RuntimeError:  # more than can be counted
        num_parameters = sys.maxsize
    needed, present = BYTES_PER_PARAMETER * num_parameters, hardware.memory_bytes()
    if needed > present:
        raise ConfigError(
            f"Training must fit in the {present / 1e9:,.0f} GB of memory, but a model "
            f"of {num_parameters:,} parameters takes {needed / 1e9:,.0f} GB; make "
            "`model.d_model`, `model.d_ff` or `model.num_layers` smaller."
        )


class _Run:
    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        hardware: Hardware,
        observer: RunObserver,
    ) -> None:
        self._folder = folder
        self._tokenizer = Tokenizer.load(folder.path / "tokenizer.json")
        model = replace(config.model, vocab_size=self._tokenizer.vocab_size)
        self._config = replace(config, model=model)
        self._hardware = hardware
        self._observer = observer
        self._dev = _Dev.open(folder, self._config, hardware.device)
        self._best_bleu = -1.0
        self._num_kept = config.training.keep_checkpoints

    def train(self, preparation: Preparation | None) -> RunResult:
        keep_freed_memory()
        trainer = self._restored_trainer()
        self._observer.started(
            RunStart(
                config=self._config,
                preparation=preparation,
                num_parameters=trainer.model.num_parameters(),
                hardware=self._hardware,
                first_step=trainer.progress.step,
            )
        )
        self._score_if_missed(trainer)
        try:
            with stop_on_signal() as should_stop:
                trainer.train(
                    on_step=self._stepped,
                    save=lambda: self._save(trainer),
                    on_checkpoint=lambda: self._score(trainer),
                    should_stop=should_stop,
                )
        except TrainingStoppedError as stopped:
            command = f"transduce train --out {self._folder.path} --resume"
            raise TrainingStoppedError(f"{stopped} Go on with: {command}") from None
        return self._finish(trainer)

    def _restored_trainer(self) -> Trainer:
        """A trainer at the newest checkpoint that is sound, or at the beginning.

        Damaged ones are set aside. `CheckpointError` if there is none but such.
        """
        # The next checkpoint removes what was saved when stopping, so that is newest.
        stopped = [self._folder.stopped] if self._folder.stopped.exists() else []
        checkpoints = [*stopped, *reversed(self._folder.checkpoints())]
        for checkpoint in checkpoints:
            try:
                trainer = self._trainer_at(checkpoint)
            except VersionError:
                raise
            except CheckpointError as error:
                self._observer.warned(f"{error} Going on from the one before.")
                self._folder.set_aside(checkpoint)
                continue
            self._folder.forget_log_after(trainer.progress.step)
            self._recall_best()
            return trainer
        if checkpoints:
            raise CheckpointError(
                f"{self._folder.path}: no checkpoint can be used; all are set aside in "
                f"{self._folder.path / CHECKPOINTS}. Begin another run."
            )
        self._folder.forget_log_after(0)
        torch.manual_seed(self._config.training.seed)
        return self._trainer(Transformer(self._config.model), None)

    def _trainer_at(self, checkpoint: Path) -> Trainer:
        model = load_model(checkpoint)
        return self._trainer(model.build(), load_training_state(checkpoint))

    def _trainer(self, model: Transformer, state: TrainingState | None) -> Trainer:
        batcher = Batcher(
            open_dataset(self._folder.corpus),
            self._config.batching,
            self._config.training.seed,
        )
        trainer = Trainer(model, batcher, self._config.training, self._hardware)
        if state is not None:
            trainer.restore(state)
        return trainer

    def _recall_best(self) -> None:
        scores = [e["bleu"] for e in self._folder.read_log() if e["kind"] == "dev"]
        self._best_bleu = max(scores, default=-1.0)

    def _stepped(self, report: StepReport) -> None:
        if report.step % LOG_STEPS == 0 or report.step == self._config.training.steps:
            self._folder.log("step", **asdict(report))
        self._observer.stepped(report)

    def _save(self, trainer: Trainer) -> None:
        """Save a checkpoint, and drop those that are no longer needed."""
        step = trainer.progress.step
        checkpoint = self._at_rest(trainer.model, step)
        if not trainer.is_checkpoint_due:
            save_training(checkpoint, trainer.state(), self._folder.stopped)
            return
        save_training(checkpoint, trainer.state(), self._folder.checkpoint(step))
        shutil.rmtree(self._folder.stopped, ignore_errors=True)
        for old in self._folder.checkpoints()[: -self._num_kept]:
            remove_folder(old)

    def _score_if_missed(self, trainer: Trainer) -> None:
        """Score the checkpoint gone on from, if the run was stopped before it could."""
        step = trainer.progress.step
        scored = {e["step"] for e in self._folder.read_log() if e["kind"] == "dev"}
        if self._folder.checkpoint(step).exists() and step not in scored:
            self._score(trainer)

    def _score(self, trainer: Trainer) -> None:
        """Score the model on the dev corpus, keep it if it is the best, and draw."""
        if self._dev is not None:
            checkpoint = self._at_rest(trainer.model, trainer.progress.step)
            greedy = replace(self._config.search, beam_size=1)
            score = self._dev.score(checkpoint, trainer, greedy)
            if score.bleu.score > self._best_bleu:
                self._best_bleu = score.bleu.score
                save_model(checkpoint, self._folder.path / BEST)
            # Logged last: what the log calls best is saved, even after a crash here.
            self._folder.log("dev", **_log_entry(score))
            self._observer.scored(score)
        self._draw()

    def _finish(self, trainer: Trainer) -> RunResult:
        """Average the last checkpoints (section 6.1), and score the average."""
        kept = self._folder.checkpoints()[-self._num_kept :]
        members = [load_model(folder) for folder in kept]
        mean = average(members)
        save_model(mean, self._folder.path / AVERAGED)
        dev = None
        if self._dev is not None:
            trainer.model.load_state_dict(dict(mean.weights))
            score = self._dev.score(mean, trainer, self._config.search)
            dev = replace(score, num_averaged=len(members))
            # A run that was done already says so again, but does not log it.
            if not any(e["kind"] == "averaged" for e in self._folder.read_log()):
                self._folder.log("averaged", **_log_entry(dev))
            self._observer.scored(dev)
        self._draw()
        return RunResult(
            model=self._folder.path / AVERAGED,
            num_averaged=len(members),
            dev=dev,
            picture=self._folder.path / PICTURE,
        )

    def _at_rest(self, model: Transformer, step: int) -> Checkpoint:
        return Checkpoint(
            config=self._config.model,
            weights={name: w.detach() for name, w in model.state_dict().items()},
            tokenizer=self._tokenizer,
            step=step,
        )

    def _draw(self) -> None:
        draw_learning_curve(self._folder.read_log(), self._folder.path / PICTURE)


class _Dev:
    """The held-out corpus of a run."""

    def __init__(
        self,
        batcher: Batcher,
        sources: list[str],
        references: list[str],
        device: torch.device,
    ) -> None:
        self._batcher = batcher
        self._device = device
        self._sources = sources
        self._references = references

    @classmethod
    def open(
        cls, folder: RunFolder, config: RunConfig, device: torch.device
    ) -> "_Dev | None":
        if (path := folder.dev_corpus) is None:
            return None
        batcher = Batcher(open_dataset(path), config.batching, seed=0)
        return cls(
            batcher,
            list(read_text([path / "source.txt"])),
            list(read_text([path / "target.txt"])),
            device,
        )

    def score(
        self, checkpoint: Checkpoint, trainer: Trainer, search: SearchConfig
    ) -> DevScore:
        """Loss by the trainer's model, BLEU by searching with the checkpoint's."""
        validation = trainer.validate(self._batcher)
        translator = Translator(checkpoint, self._device)
        hypotheses = [
            translation.text
            for translation in translator.translate_stream(self._sources, search)
        ]
        return DevScore(
            step=checkpoint.step,
            loss=validation.loss,
            perplexity=validation.perplexity,
            bleu=corpus_bleu(hypotheses, self._references),
        )


def _log_entry(score: DevScore) -> dict[str, Any]:
    return {
        "step": score.step,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "bleu": score.bleu.score,
        "signature": score.bleu.signature,
    }
