"""`transduce average`: the plain mean of checkpoints' weights."""

from pathlib import Path

from transduce.checkpoint import load_model, save_model
from transduce.cli.options import require_new
from transduce.errors import ConfigError
from transduce.model_folder import find_model
from transduce.training.averaging import average as average_checkpoints


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
    folders = [find_model(path) for path in (checkpoint, *more)]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(
            "Checkpoints to average must be different ones, but one is given twice: "
            f"{', '.join(map(str, folders))}."
        )
    members = [load_model(folder) for folder in folders]
    save_model(average_checkpoints(members), out)
    print(f"The average of {len(members)} checkpoints is in {out}.")
