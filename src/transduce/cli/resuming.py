"""How to go on with a run that was broken off."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.cli.launching import ProcessKilledError
from transduce.training.distributed import ProcessLostError
from transduce.training.trainer import TrainingStoppedError


@contextmanager
def telling_how_to_go_on(
    out: Path, device: str = "auto", devices: int = 1
) -> Iterator[None]:
    """Add the command that goes on with a run to what is said when it is broken off."""
    try:
        yield
    except (TrainingStoppedError, ProcessKilledError, ProcessLostError) as error:
        command = ["transduce", "train", "--out", str(out), "--resume"]
        if device != "auto":
            command += ["--device", device]
        if devices != 1:
            command += ["--devices", str(devices)]
        raise type(error)(f"{error} Go on with: {shlex.join(command)}") from None
