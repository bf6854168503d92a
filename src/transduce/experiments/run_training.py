"""Training of a run: its trainer, its checkpoints and its final model.

`new_trainer` makes the trainer, with batches, augmentation and losses by the run's
settings. `RunCheckpoints` keeps the checkpoints from which the run continues and from
which its final model is made. That model is the average of the last checkpoints
(section 6.1), unless `FinalModelChoice` finds the best checkpoint better.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import (
    Checkpoint,
    TrainingState,
    average,
    build,
    build_with_weights,
    load_model,
    load_training_state,
    save_model,
    save_training,
    with_search_and_shortlist_of,
)
from transduce.data.augmentation import (
    Augmentation,
    PairAugmenter,
    largest_length,
    processes_per_training,
)
from transduce.data.batches import Batcher
from transduce.data.corpus_mixture import CorpusMixture
from transduce.data.dataset import Dataset, open_dataset, require_ids_below
from transduce.data.prepared_corpus import corpus_sizes
from transduce.decoding.torch_decoder import ModelSampler
from transduce.device import Hardware
from transduce.errors import START_OVER, CheckpointError, VersionError
from transduce.experiments.dev_corpus import DevScore, DevScoring
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RUN_CONFIG, SAVED, START, RunFolder
from transduce.experiments.start_model import initial_weights
from transduce.files import remove_folder
from transduce.model_folder import (
    AVERAGED,
    BEST,
    CHECKPOINTS,
    MODEL_FILES,
    STATE_PROGRESS,
    ModelFolder,
    load_dictionary,
    newest_first,
    open_model,
    step_of,
)
from transduce.search_config import SamplingConfig
from transduce.text.alignment import WordDictionary
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
    own_target_size,
)
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.loss import GuidedAttention, word_beginnings
from transduce.training.optimizer import require_moments
from transduce.training.reward import REWARDS, Refinement
from transduce.training.trainer import Trainer
from transduce.trees.linearization import SymbolVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """Folder of a run, with its settings and vocabularies."""

    folder: RunFolder
    config: RunConfig
    """Settings with the sizes of the vocabularies."""
    tokenizer: Tokenizer
    symbols: SymbolVocabulary | None
    """Symbols of a parser's linearized trees; None for translation."""
    dictionary: WordDictionary | None
    """Dictionary of the model that the run started from, if that has one."""

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig) -> "LoadedRun":
        """Load the vocabularies of a run with these settings."""
        tokenizer = load_tokenizer(folder.path / TOKENIZER_FILE)
        symbols = folder.symbols()
        target_size = symbols.vocab_size if symbols else own_target_size(tokenizer)
        model = replace(
            config.model,
            vocab_size=tokenizer.vocab_size,
            target_vocab_size=target_size,
        )
        return cls(
            folder=folder,
            config=replace(config, model=model),
            tokenizer=tokenizer,
            symbols=symbols,
            dictionary=load_dictionary(folder.path),
        )

    def checkpoint(self, model: TransductionModel, step: int) -> Checkpoint:
        """Return a model with the weights after an update as a checkpoint."""
        return Checkpoint(
            config=self.config.model,
            weights={name: w.detach() for name, w in model.state_dict().items()},
            tokenizer=self.tokenizer,
            step=step,
            symbols=self.symbols,
            run=self.folder.id,
            search=self.config.search,
            source_language=self.config.languages.source,
            target_language=self.config.languages.target,
            dictionary=self.dictionary,
        )


def open_training_set(run: LoadedRun) -> Dataset:
    """Open the encoded training pairs.

    Raises `DataError` if they are damaged, and `AccessError` as `access_errors` does.
    """
    dataset = open_dataset(run.folder.corpus)
    model = run.config.model
    target_size = model.target_vocab_size or model.vocab_size
    require_ids_below(dataset, run.folder.corpus, model.vocab_size, target_size)
    return dataset


def new_trainer(
    run: LoadedRun,
    model: TransductionModel,
    dataset: Dataset,
    augmentation: Augmentation | None,
    hardware: Hardware,
    processes: ProcessGroup,
) -> Trainer:
    """Return a trainer of a model on the pairs of a run, before its first update."""
    config = run.config
    mixture = _mixture(run, len(dataset))
    batcher = Batcher(
        dataset, config.batching, config.training.seed, mixture, augmentation
    )
    return Trainer(
        model,
        batcher,
        config.training,
        hardware,
        processes,
        _guided_attention(run, hardware.device),
        refinement_of(config.training),
    )


def augmentation_of(
    run: LoadedRun,
    dataset: Dataset,
    processes: ProcessGroup,
    warn: Callable[[str], None],
) -> Augmentation | None:
    """Return the augmentation of a run's training pairs, if the run has one."""
    config = run.config
    if not config.augmentation.used:
        return None
    augment = PairAugmenter(
        config.augmentation,
        run.tokenizer,
        config.languages,
        largest_length(dataset, config.batching.max_length),
    )
    return Augmentation(
        augment, processes_per_training(processes.local_world_size), warn
    )


def _mixture(run: LoadedRun, num_pairs: int) -> CorpusMixture | None:
    """Return the mixture of a run's corpora; None for a single corpus."""
    corpora = run.config.corpora
    if not corpora:
        return None
    names = [corpus.name for corpus in corpora]
    sizes = corpus_sizes(run.folder.path, names, num_pairs)
    return CorpusMixture(corpora, run.config.stages, sizes)


def _guided_attention(run: LoadedRun, device: torch.device) -> GuidedAttention | None:
    """Return the guided attention of a parser, if its weight is not 0."""
    weight = run.config.treebank.guidance
    if run.symbols is None or weight == 0:
        return None
    pieces = run.tokenizer.pieces(range(run.tokenizer.vocab_size))
    return GuidedAttention(
        weight=weight,
        begins_word=word_beginnings(pieces).to(device),
        takes_word=torch.tensor(run.symbols.takes_word, device=device),
    )


def refinement_of(config: TrainingConfig) -> Refinement | None:
    """Return sampler and reward of a run's updates by reward; None without them."""
    if config.reward == "none":
        return None
    sampling = SamplingConfig(number=config.reward_samples, seed=config.seed)
    return Refinement(
        sampler=ModelSampler(sampling),
        reward=REWARDS[config.reward],
        likelihood_weight=config.likelihood_weight,
    )


class TrainingPoint(NamedTuple):
    """Model and state from which training goes on."""

    model: TransductionModel
    state: TrainingState | None
    """State of the training; None before the first update of an optimizer."""

    @property
    def step(self) -> int:
        """Number of updates made before."""
        return 0 if self.state is None else self.state.progress.step


class RunCheckpoints:
    """Checkpoints of a run: the last few, and one where the run was stopped."""

    def __init__(
        self, run: LoadedRun, set_aside: Callable[[Path, CheckpointError], None]
    ) -> None:
        """Call `set_aside` with each unusable checkpoint and its error."""
        self._folder = run.folder
        self._config = run.config
        self._tokenizer = run.tokenizer
        self._set_aside = set_aside

    def newest(self) -> TrainingPoint | None:
        """Return the newest undamaged checkpoint; None if nothing is saved.

        Raises `CheckpointError` if all are damaged.
        """
        return next((point for _, point in self._undamaged()), None)

    def newest_before_divergence(self) -> TrainingPoint | None:
        """Return the newest checkpoint from before the loss began to rise.

        Later checkpoints are set aside. If the loss was rising in all undamaged ones,
        returns the newest of them.
        """
        rising: list[Path] = []
        for path, point in self._undamaged():
            assert point.state is not None
            if not point.state.progress.is_rising:
                for later in rising:
                    message = f"{later}: was saved when the loss had begun to rise."
                    self._set_aside(later, CheckpointError(message))
                return point
            rising.append(path)
        return self._load(rising[0]) if rising else None

    def _undamaged(self) -> Iterator[tuple[Path, TrainingPoint]]:
        """Load the checkpoints, newest first, and set damaged ones aside.

        Raises `CheckpointError` if all are damaged.
        """
        saved = newest_first(self._folder.path)
        self._require_own_files(saved)
        num_damaged = 0
        for path in saved:
            try:
                point = self._load(path)
            except VersionError:
                raise
            except CheckpointError as error:
                self._set_aside(path, error)
                num_damaged += 1
                continue
            yield path, point
        if saved and num_damaged == len(saved):
            raise CheckpointError(
                f"{self._folder.path}: no checkpoint can be used; all are set aside in "
                f"{self._folder.path / CHECKPOINTS}; restore one, or "
                f"{self._folder.remedy_without_checkpoint}."
            )

    def _load(self, checkpoint: Path) -> TrainingPoint:
        """Load a checkpoint; `CheckpointError` if it is damaged or does not fit."""
        model = self._own(checkpoint).build()
        state = load_training_state(checkpoint)
        step = state.progress.step
        if checkpoint not in (self._folder.checkpoint(step), self._folder.stopped):
            raise CheckpointError(
                f"{checkpoint}: must be of the update in its name, but is of update "
                f"{step:,}; use another checkpoint."
            )
        require_moments(model, self._config.training, state.tensors, step)
        pairs = state.progress.corpus_pairs
        if pairs and len(pairs) != len(self._config.corpora):
            raise CheckpointError(
                f"{checkpoint / STATE_PROGRESS}: must count the pairs of each corpus "
                "of the run, but does not; use another checkpoint."
            )
        return TrainingPoint(model, state)

    def _require_own_files(self, saved: Sequence[Path]) -> None:
        """Raise `CheckpointError` if the files in the run's folder are of another run.

        No checkpoint would fit such files, although the checkpoints are sound.
        """
        readable: list[ModelFolder] = []
        for path in saved:
            with suppress(CheckpointError):
                readable.append(open_model(path))
        own = [model for model in readable if self._is_own(model)]
        if readable and not own:
            raise CheckpointError(
                f"{self._folder.path / RUN_CONFIG}: must be of the run whose "
                "checkpoints are beside it, but is of another; restore the file."
            )
        if own and all(model.tokenizer != self._tokenizer for model in own):
            raise CheckpointError(
                f"{self._folder.path / TOKENIZER_FILE}: must be the tokenizer of the "
                "run's checkpoints, but is another; restore the file: each checkpoint "
                "has a copy."
            )

    def _is_own(self, model: ModelFolder | Checkpoint) -> bool:
        """Whether a model is of this run; older versions recorded no run."""
        run = self._folder.id
        return None in (model.run, run) or model.run == run

    def _own(self, path: Path) -> Checkpoint:
        """Load a checkpoint; `CheckpointError` if it is damaged or of another run."""
        checkpoint = load_model(path)
        if not self._is_own(checkpoint) or checkpoint.tokenizer != self._tokenizer:
            raise _of_another_run(path)
        return checkpoint

    def first(self) -> TrainingPoint:
        """Return the model before the first update: a new one, or the start model."""
        if not self._folder.start:
            return TrainingPoint(build(self._config.model), None)
        path, state = self._folder.path / START, None
        try:
            weights = initial_weights(load_model(path), self._config.model)
            model = build_with_weights(self._config.model, weights)
            if self._folder.start.get("keeps_optimizer"):
                state = load_training_state(path)
        except VersionError:
            raise
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} The run starts from this model and has no checkpoint yet; "
                f"{START_OVER}."
            ) from None
        return TrainingPoint(model, state)

    def save(self, checkpoint: Checkpoint, state: TrainingState) -> None:
        """Save a checkpoint of the schedule, and remove those no longer needed."""
        # Log first. A crash in between leaves a line without its checkpoint, which
        # resuming drops; the other order could leave a checkpoint missing in the log.
        self._folder.log.append(SAVED, step=checkpoint.step)
        save_training(checkpoint, state, self._folder.checkpoint(checkpoint.step))
        self.drop_old()

    def drop_old(self) -> None:
        """Remove checkpoints that newer ones replace."""
        if self._folder.stopped.exists():
            remove_folder(self._folder.stopped, MODEL_FILES)
        num_kept = self._config.training.keep_checkpoints
        for old in self._folder.checkpoints()[:-num_kept]:
            remove_folder(old, MODEL_FILES)

    def save_stopped(self, checkpoint: Checkpoint, state: TrainingState) -> None:
        """Save a run that is stopped between checkpoints, replacing the last stop."""
        save_training(checkpoint, state, self._folder.stopped)

    def averaged(self) -> list[Checkpoint]:
        """Return the checkpoints to average.

        Raises `CheckpointError` if one is missing or damaged.
        """
        saved = self._folder.saved_checkpoints()
        last = last_of_phase(saved, self._config.training)
        return [self._averaged(path) for path in last]

    def _averaged(self, path: Path) -> Checkpoint:
        """Load a checkpoint of the average."""
        try:
            return self._own(path)
        except VersionError:
            raise
        except CheckpointError:
            raise CheckpointError(
                f"{path}: must be averaged with the other checkpoints, but is missing, "
                "damaged or of another run; the run is trained and stays saved: "
                "average the others by `transduce average CHECKPOINT... --out "
                f"{self._folder.path / AVERAGED}`."
            ) from None


def _of_another_run(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: must be of the run that it is in, but is of another run; use another "
        "checkpoint."
    )


def last_of_phase(checkpoints: Sequence[Path], training: TrainingConfig) -> list[Path]:
    """Return the last checkpoints of a run, to be averaged (section 6.1).

    Checkpoints before the first update by reward are left out if there are later ones,
    since they would be most of the average.
    """
    last = list(checkpoints[-training.keep_checkpoints :])
    return [path for path in last if is_by_reward(path, training)] or last


def is_by_reward(checkpoint: Path, training: TrainingConfig) -> bool:
    """Return whether the last update before a run's checkpoint was by reward."""
    return training.is_by_reward(step_of(checkpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalModel:
    """Saved model of a finished run."""

    path: Path
    """Folder of the average, or of the best checkpoint."""
    num_averaged: int
    """Number of checkpoints in the average; 1 for the best checkpoint."""
    scores: list[DevScore]
    """Scores on the dev sets by the model's own search, the main one first."""


class FinalModelChoice:
    """Choice between the average of a run's last checkpoints and its best one."""

    def __init__(
        self,
        run: LoadedRun,
        scoring: DevScoring,
        trainer: Trainer,
        warn: Callable[[str], None],
    ) -> None:
        """Prepare the choice; scoring puts a model's weights into the trainer's."""
        self._folder = run.folder
        self._config = run.config
        self._scoring = scoring
        self._trainer = trainer
        self._warn = warn

    def save(self, members: Sequence[Checkpoint]) -> FinalModel:
        """Save the average of checkpoints, or keep the best checkpoint alone.

        An older model of the run, if there is one, passes on its search and shortlist.
        """
        scoring, best_folder = self._scoring, self._folder.path / BEST
        averaged, older = self._folder.path / AVERAGED, self._folder.last_model
        mean = average(members)
        scores = scoring.search(self._trainer, mean, scoring.dev_sets, len(members))
        best = self._best_alone(members) if scores else None
        # Unlike the paper: the best checkpoint becomes the model if it is better on the
        # dev corpus than the average, by its score and clearly by its loss. On by
        # default; `--no-dev`, without a dev corpus, turns it off.
        if best and scoring.is_chosen(best, scores[0]):
            self._warn(scores[0].dropped_for(best))
            model = load_model(best_folder)
            further = scoring.search(self._trainer, model, scoring.dev_sets[1:])
            if averaged.exists():
                save_model(with_search_and_shortlist_of(model, averaged), best_folder)
                remove_folder(averaged, MODEL_FILES)
            return FinalModel(path=best_folder, num_averaged=1, scores=[best, *further])
        if best and (message := scoring.kept_despite(best, scores[0])):
            self._warn(message)
        save_model(with_search_and_shortlist_of(mean, older), averaged)
        return FinalModel(path=averaged, num_averaged=len(members), scores=scores)

    def _best_alone(self, averaged: Sequence[Checkpoint]) -> DevScore | None:
        """Score the best checkpoint by its own search, to compare it with the average.

        Returns None if it is damaged or of another run, if it alone was averaged, or if
        one of the two is from updates by reward and the other is not.
        """
        path, newest = self._folder.path / BEST, averaged[-1]
        try:
            best = load_model(path)
            if (best.run, best.config) != (newest.run, newest.config):
                raise _of_another_run(path)
        except CheckpointError as error:
            self._warn(
                f"{error} Keeping the average: the best checkpoint could not be read."
            )
            return None
        if [best.step] == [member.step for member in averaged]:
            return None
        is_by_reward = self._config.training.is_by_reward
        if is_by_reward(best.step) != is_by_reward(averaged[-1].step):
            return None
        main, *_ = self._scoring.search(self._trainer, best, self._scoring.dev_sets[:1])
        return main

    def scores_of_start(self) -> list[DevScore]:
        """Score the model that the run started from, if there is one.

        Its loss and its search follow the run's settings.
        """
        if not self._folder.start or not self._scoring.dev_sets:
            return []
        try:
            start = load_model(self._folder.path / START)
        except CheckpointError as error:
            self._warn(f"{error} The model that the run started from is not scored.")
            return []
        config = self._config.model
        weights = initial_weights(start, config)
        # Without a shortlist, as the run's own models have none to be compared with.
        model = replace(start, step=0, config=config, weights=weights, shortlist=None)
        return self._scoring.search(self._trainer, model, self._scoring.dev_sets)
