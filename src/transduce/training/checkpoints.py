"""Checkpoints of a run: saved with the training state, and averaged (section 6.1)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from transduce.checkpoint import Checkpoint, load_tensors, save_tensors, write_model
from transduce.errors import CheckpointError
from transduce.files import atomic_directory, read_json
from transduce.model_folder import current_name
from transduce.training.trainer import Progress, TrainingState

STATE_TENSORS, STATE_PROGRESS = "training.safetensors", "training.json"


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
        if not all(type(number) is int and number >= 0 for number in pairs):
            raise TypeError
        for name, value in asdict(Progress()).items():
            found = getattr(progress, name)
            if name == "corpus_pairs":
                continue
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


def average(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Average the weights of checkpoints of one run (section 6.1).

    Raises `CheckpointError` if there are none, or if they are of different models or
    runs.
    """
    if not checkpoints:
        raise CheckpointError(
            "An average must have at least one checkpoint, but has 0."
        )
    last = checkpoints[-1]
    for other in checkpoints:
        if _identity(other) != _identity(last):
            raise CheckpointError(
                "Averaged checkpoints must be of one model, but those of step "
                f"{other.step} and {last.step} have different settings or tokenizers."
            )
    trained = [c for c in checkpoints if c.run is not None]
    if any(c.run != trained[0].run for c in trained):
        raise CheckpointError(
            "Averaged checkpoints must be of one run, but are of several; weights of "
            "different runs have no useful average."
        )
    mean = {
        name: _mean([c.weights[name] for c in checkpoints]) for name in last.weights
    }
    return replace(last, weights=mean)


def _identity(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.config, checkpoint.tokenizer, checkpoint.symbols


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """Average in double precision, so that the mean of equal weights is that weight."""
    total = weights[0].double()
    for weight in weights[1:]:
        total = total + weight
    return (total / len(weights)).float()
