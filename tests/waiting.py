"""Waiting for what another thread or process does, but not for ever."""

import time
from collections.abc import Callable

PATIENCE_S = 300
PAUSE_S = 0.001


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
