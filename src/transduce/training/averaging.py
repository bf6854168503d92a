"""The average of checkpoints, which a training ends with (section 6.1)."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.errors import CheckpointError


def average(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """The plain mean of the weights (section 6.1); all must be of one run."""
    if not checkpoints:
        raise CheckpointError(
            "An average must have at least one checkpoint, but has 0."
        )
    last = checkpoints[-1]
    for other in checkpoints:
        if _kind(other) != _kind(last):
            raise CheckpointError(
                "Averaged checkpoints must be of one model, but those of step "
                f"{other.step} and {last.step} have different settings or tokenizers."
            )
    trained = [c for c in checkpoints if c.run is not None]
    if any(c.run != trained[0].run for c in trained):
        raise CheckpointError(
            "Averaged checkpoints must be of one run, but are of several; weights that "
            "were learned apart have no mean that is of use."
        )
    mean = {
        name: _mean([c.weights[name] for c in checkpoints]) for name in last.weights
    }
    return replace(last, weights=mean)


def _kind(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.config, checkpoint.tokenizer, checkpoint.symbols


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """In double precision, so that the mean of equal weights is that weight."""
    total = weights[0].double()
    for weight in weights[1:]:
        total = total + weight
    return (total / len(weights)).float()
