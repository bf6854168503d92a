"""State of a training, from which it continues bit for bit, beside a saved model."""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from torch import Tensor

from transduce.checkpoint import Checkpoint, load_tensors, save_tensors, write_model
from transduce.errors import CheckpointError
from transduce.files import atomic_directory, read_json
from transduce.model_folder import current_name

RISE = 0.2
"""Rise of the recent loss that may be the beginning of divergence."""
STATE_TENSORS, STATE_PROGRESS = "training.safetensors", "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Position in training."""

    step: int = 0
    """Number of updates made."""
    epoch: int = 0
    update: int = 0
    """Number of updates made in this epoch."""
    recent_loss: float = math.inf
    """Moving average of the loss over about fifty updates."""
    lowest_loss: float = math.inf
    """Minimum of the recent loss."""
    flops: int = 0
    """FLOPs of the updates made, without padding and without lost updates. Those of
    updates by reward include their samples."""
    earlier_updates: int = 0
    """Number of updates of the optimizer before the run, whose moments it continues."""
    rate_factor: float = 1.0
    """Factor on the learning rate, lowered when training has diverged."""
    plateau_factor: float = 1.0
    """Factor on the learning rate, lowered when the dev loss has not fallen."""
    lowest_dev_loss: float = math.inf
    """Lowest dev loss of a checkpoint, by the schedule plateau."""
    corpus_pairs: tuple[int, ...] = ()
    """Number of pairs of each corpus of a mixture in this stage; empty without one."""

    @property
    def is_rising(self) -> bool:
        """Whether the loss may have begun to diverge."""
        return self.recent_loss > self.lowest_loss + RISE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """State from which training continues bit for bit, beside the weights."""

    progress: Progress
    tensors: dict[str, Tensor]


def save_training(checkpoint: Checkpoint, state: TrainingState, folder: Path) -> None:
    """Write a model and its training state into a folder, atomically."""
    with atomic_directory(folder) as new:
        write_model(checkpoint, new)
        save_tensors(state.tensors, new / STATE_TENSORS)
        text = json.dumps(asdict(state.progress)) + "\n"
        (new / STATE_PROGRESS).write_text(text, encoding="utf-8")


def load_training_state(folder: Path) -> TrainingState:
    """Read the training state beside a model; raise `CheckpointError` if damaged."""
    content = read_json(folder / STATE_PROGRESS)
    try:
        pairs = tuple(content.pop("corpus_pairs", ()))
        progress = Progress(**content, corpus_pairs=pairs)
        _require_numbers(progress)
    except TypeError:
        raise CheckpointError(
            f"{folder / STATE_PROGRESS}: must hold a run's progress, but does not; "
            "use another checkpoint."
        ) from None
    tensors = load_tensors(folder / STATE_TENSORS)
    return TrainingState(
        progress=progress, tensors={current_name(n): t for n, t in tensors.items()}
    )


def _require_numbers(progress: Progress) -> None:
    """Raise `TypeError` unless all values are numbers of their types, 0 or above."""
    default = Progress()
    for field in fields(Progress):
        value, usual = getattr(progress, field.name), getattr(default, field.name)
        is_several = isinstance(usual, tuple)
        numbers, kind = (value, int) if is_several else ([value], type(usual))
        # NaN fails every comparison.
        if not all(type(number) is kind and number >= 0 for number in numbers):
            raise TypeError
