"""Message that says how to resume an interrupted run."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.cli.launching import ProcessKilledError
from transduce.experiments.run_folder import RECORD
from transduce.training.distributed import ProcessLostError
from transduce.training.trainer import TrainingStoppedError


@contextmanager
def telling_how_to_go_on(
    out: Path, device: str = "auto", devices: int = 1
) -> Iterator[None]:
    """Add the command that resumes a run to the error that interrupted it."""
    command = ["transduce", "train", "--out", str(out), "--resume"]
    if device != "auto":
        command += ["--device", device]
    if devices != 1:
        command += ["--devices", str(devices)]
    how = f"Go on with: {shlex.join(command)}"
    try:
        yield
    except (TrainingStoppedError, ProcessKilledError, ProcessLostError) as error:
        raise type(error)(f"{error} {how}") from None
    except KeyboardInterrupt:
        if not (out / RECORD).is_file():
            raise  # before the run existed
        raise TrainingStoppedError(
            f"Interrupted; the last checkpoint is kept. {how}"
        ) from None
