"""The checkpoints of a run: which are kept, gone on from and averaged."""

from collections.abc import Callable
from pathlib import Path

from transduce.checkpoint import Checkpoint, load_model
from transduce.errors import CheckpointError, VersionError
from transduce.experiments.run_folder import RunFolder
from transduce.files import remove_folder
from transduce.model.transformer import Transformer
from transduce.model_folder import AVERAGED, CHECKPOINTS, newest_first
from transduce.training.config import TrainingConfig
from transduce.training.optimizer import require_moments
from transduce.training.saving import load_training_state, save_training
from transduce.training.trainer import TrainingState

RISEN = "was saved when the loss had begun to rise."


class RunCheckpoints:
    """The last few of the schedule, and where the run was stopped after them."""

    def __init__(self, folder: RunFolder, config: TrainingConfig) -> None:
        self._folder = folder
        self._config = config
        self._num_kept = config.keep_checkpoints

    def newest_sound(
        self,
        set_aside: Callable[[Path, CheckpointError], None],
        has_diverged: bool = False,
    ) -> tuple[Transformer, TrainingState] | None:
        """Where the run can go on from; none if nothing is saved.

        What is damaged is handed over with its error and, if training has diverged and
        there is something older, what was saved when that had begun. `CheckpointError`
        if there is nothing that is sound.
        """
        saved = newest_first(self._folder.path)
        risen: list[Path] = []
        for checkpoint in saved:
            try:
                found = self._load(checkpoint)
            except VersionError:
                raise
            except CheckpointError as error:
                set_aside(checkpoint, error)
                continue
            if not has_diverged or not found[1].progress.is_on_the_rise:
                for each in risen:
                    set_aside(each, CheckpointError(f"{each}: {RISEN}"))
                return found
            risen.append(checkpoint)
        if risen:
            return self._load(risen[0])
        if saved:
            raise CheckpointError(
                f"{self._folder.path}: no checkpoint can be used; all are set aside in "
                f"{self._folder.path / CHECKPOINTS}. Begin another run."
            )
        return None

    def _load(self, checkpoint: Path) -> tuple[Transformer, TrainingState]:
        model = load_model(checkpoint).build()
        state = load_training_state(checkpoint)
        require_moments(model, self._config, state.tensors)
        return model, state

    def save(self, checkpoint: Checkpoint, state: TrainingState) -> None:
        """Save one of the schedule, and drop what is no longer needed."""
        # Logged first, as a run forgets what it logged after the checkpoint it goes on
        # from: so what the log names was saved, whenever a crash comes.
        self._folder.log("saved", step=checkpoint.step)
        save_training(checkpoint, state, self._folder.checkpoint(checkpoint.step))
        self.drop_old()

    def drop_old(self) -> None:
        """Drop what the newest one has taken the place of."""
        if self._folder.stopped.exists():
            remove_folder(self._folder.stopped)
        for old in self._folder.checkpoints()[: -self._num_kept]:
            remove_folder(old)

    def save_stopped(self, checkpoint: Checkpoint, state: TrainingState) -> None:
        """Save where the run is stopped, in place of where it was before."""
        save_training(checkpoint, state, self._folder.stopped)

    def members(self) -> list[Checkpoint]:
        """Those to be averaged; `CheckpointError` if one of them cannot be."""
        return [self._member(path) for path in self._last()]

    def _last(self) -> list[Path]:
        """By the log and, as older versions did not log them, by what is there."""
        logged = {
            self._folder.checkpoint(entry["step"])
            for entry in self._folder.read_log()
            if entry["kind"] == "saved"
        }
        return sorted(logged.union(self._folder.checkpoints()))[-self._num_kept :]

    def _member(self, path: Path) -> Checkpoint:
        try:
            return load_model(path)
        except VersionError:
            raise
        except CheckpointError:
            raise CheckpointError(
                f"{path}: must be averaged with the other checkpoints, but is missing "
                "or damaged; the run is trained and stays saved: average the others by "
                "`transduce average CHECKPOINT... --out "
                f"{self._folder.path / AVERAGED}`."
            ) from None
