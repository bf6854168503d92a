"""A checkpoint of a run: the model, and all that is needed to go on."""

import json
from dataclasses import asdict
from pathlib import Path

from transduce.checkpoint import Checkpoint, load_tensors, save_tensors, write_model
from transduce.errors import CheckpointError
from transduce.files import atomic_directory, read_json
from transduce.model_folder import current_name
from transduce.training.trainer import Progress, TrainingState

STATE_TENSORS, STATE_PROGRESS = "training.safetensors", "training.json"


def save_training(checkpoint: Checkpoint, state: TrainingState, folder: Path) -> None:
    """Write model and state, whole or not at all."""

    with atomic_directory(folder) as new:
        write_model(checkpoint, new)
        save_tensors(state.tensors, new / STATE_TENSORS)
        text = json.dumps(asdict(state.progress)) + "\n"
        (new / STATE_PROGRESS).write_text(text, encoding="utf-8")


def load_training_state(folder: Path) -> TrainingState:
    """Read the state that stands beside a model; `CheckpointError` if damaged."""
    content = read_json(folder / STATE_PROGRESS)
    try:
        progress = Progress(**content)
        for name, value in asdict(Progress()).items():
            found = getattr(progress, name)
            # NaN fails every comparison.
            if type(found) is not type(value) or not found >= 0:
                raise TypeError
    except TypeError:
        raise CheckpointError(
            f"{folder / STATE_PROGRESS}: must hold a run's progress, but does not; "
            "use another checkpoint."
        ) from None
    tensors = load_tensors(folder / STATE_TENSORS)
    return TrainingState(
        progress=progress, tensors={current_name(n): t for n, t in tensors.items()}
    )
