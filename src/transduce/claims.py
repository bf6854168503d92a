"""Locks on folders and files, for one process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transduce.errors import TransduceError


@contextmanager
def claim(folder: Path, refusal: TransduceError) -> Iterator[tuple[int, ...]]:
    """Keep other processes from working in a folder; the refusal if one does.

    What it gives are open files, none on Windows. The claim ends with its process or,
    if they are left open in child processes, with the last of these.
    """
    if os.name == "nt":  # Windows cannot open a folder
        yield ()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        claim_file(descriptor, refusal)
        yield (descriptor,)
    finally:
        os.close(descriptor)


def claim_file(descriptor: int, refusal: TransduceError) -> None:
    """Lock an open file; raise `refusal` if another process has locked it."""
    if os.name == "nt":
        return
    import fcntl  # which Windows has not

    with suppress(OSError):  # not every network disk supports locks
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
