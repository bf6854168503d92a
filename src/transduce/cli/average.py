"""`transduce average`: the plain mean of checkpoints' weights."""

from pathlib import Path

from transduce.checkpoint import average as average_checkpoints
from transduce.checkpoint import load_model, save_model
from transduce.cli.options import require_new


def average(checkpoint: Path, /, *more: Path, out: Path) -> None:
    """Average the weights of checkpoints of one run (section 6.1).

    Parameters
    ----------
    checkpoint
        A checkpoint or model folder.
    more
        Further ones.
    out
        The folder of the new model.
    """
    require_new(out)
    members = [load_model(path) for path in (checkpoint, *more)]
    save_model(average_checkpoints(members), out)
    print(f"The average of {len(members)} checkpoints is in {out}.")
