"""`transduce average`: mean of the weights of checkpoints."""

from pathlib import Path

from transduce.checkpoint import average as average_checkpoints
from transduce.checkpoint import load_model, save_model
from transduce.cli.terminal import warn
from transduce.errors import CheckpointError, ConfigError, counted
from transduce.experiments.run_folder import SAVED, RunFolder, is_run
from transduce.experiments.run_training import is_by_reward, last_of_phase
from transduce.files import (
    maker_of,
    real_path,
    require_new_folder,
    require_other_folder,
)
from transduce.model_folder import AVERAGED, checkpoints_of, find_model

COMMAND = "average"
"""Name of this command in the folders that it writes."""


def average(
    checkpoint: Path,
    /,
    *more: Path,
    out: Path,
    force: bool = False,
    last: int | None = None,
) -> None:
    """Average the weights of checkpoints of one run (section 6.1).

    A run folder stands for its last checkpoints, a model folder for its model.

    For example:

        transduce average runs/mine --last 5 --out averaged

    Parameters
    ----------
    checkpoint
        A run folder, or a checkpoint or model folder.
    more
        Further folders of the same run.
    out
        The folder of the new model.
    force
        Overwrite an older average in that folder.
    last
        Number of newest checkpoints of a run to average; by default its setting
        training.keep_checkpoints, without those before its updates by reward.
    """
    require_new_folder(out, overwrite=force, made_by=COMMAND)
    given = (checkpoint, *more)
    if last is not None and not any(map(is_run, given)):
        raise ConfigError(
            f"--last must be used with a run folder, but {checkpoint} is not one; "
            "leave out --last, or give the run."
        )
    folders = [member for path in given for member in _members(path, last)]
    if len({real_path(folder) for folder in folders}) < len(folders):
        raise ConfigError(
            "Checkpoints to average must be different ones, but one is given twice: "
            f"{', '.join(map(str, folders))}."
        )
    require_other_folder(out, folders)
    members = [load_model(folder) for folder in folders]
    mean = average_checkpoints(members, list(map(str, folders)))
    for folder in folders:
        if len(folders) > 1 and _is_average(real_path(folder)):
            warn(
                f"{folder} is an average itself, so its weight in the new average is "
                "that of one checkpoint."
            )
    save_model(mean, out, COMMAND, overwrite=force)
    print(f"The average of {counted(len(members), 'checkpoint')} is in {out}:")
    for folder, member in zip(folders, members, strict=True):
        print(f"  {folder} (step {member.step:,})")


def _is_average(folder: Path) -> bool:
    """Whether a model is the average of a run or one that this command wrote."""
    return folder.name == AVERAGED or maker_of(folder) == COMMAND


def _members(path: Path, last: int | None) -> list[Path]:
    """Return the last checkpoints of a run, or the folder itself if it is a model."""
    if not is_run(path):
        return [find_model(path)]
    saved = checkpoints_of(path)
    if not saved:
        raise CheckpointError(
            f"{path}: the run must have checkpoints to average, but has none yet; "
            "train on by `transduce train --resume`."
        )
    if last is not None and not 1 <= last <= len(saved):
        raise ConfigError(
            f"--last must be from 1 to {len(saved)}, the checkpoints that {path} "
            f"holds, but is {last}; a run keeps training.keep_checkpoints of them."
        )
    folder, config = RunFolder.open(path)
    logged = folder.saved_checkpoints()
    if _is_unfinished(logged[-1], folder):
        logged.pop()
    training = config.training
    members = last_of_phase(logged, training) if last is None else logged[-last:]
    for member in members:
        if not member.exists():
            raise CheckpointError(
                f"{member}: must be averaged with the run's other checkpoints, but is "
                "missing; restore it, or name the others in place of the run."
            )
    if len({is_by_reward(member, training) for member in members}) > 1:
        warn(
            f"some of the last {last} checkpoints of {path} are from before its "
            "updates by reward; leave out --last to average only those after."
        )
    return members


def _is_unfinished(checkpoint: Path, folder: RunFolder) -> bool:
    """Whether a run has only begun to save a checkpoint, and may have been killed."""
    kinds = [entry["kind"] for entry in folder.log.read()]
    return kinds[-1:] == [SAVED] and not checkpoint.exists()
