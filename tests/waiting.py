"""Waiting with a time limit for other threads and processes."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 300
PAUSE_S = 0.005


def runs(pid: int) -> bool:
    """Whether a process or one of its threads still runs, by Linux's /proc."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A process that is killed can be waited for once all of its threads have ended.
    return status.rpartition(")")[2].split()[0] != "Z" or len(threads) > 1


def children_of(pid: int) -> list[int]:
    """Ids of the processes that the first thread of a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(number) for number in found.split()]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
