"""Ctrl-C and SIGTERM as a request to stop at the next good moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a request that the given function tells of.

    A second Ctrl-C acts as it would have without this; SIGTERM may come twice, from a
    scheduler and from a parent that passes it on. Outside the main thread nothing can
    be caught, and the function never says yes.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    previous = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def request(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and requested.is_set():
            restore()
            signal.raise_signal(number)
        requested.set()

    for number in previous:
        signal.signal(number, request)
    try:
        yield requested.is_set
    finally:
        restore()


@contextmanager
def unwound_on_termination() -> Iterator[None]:
    """Let SIGTERM end the program as an error would, so that what is begun is undone.

    Outside the main thread it ends the program at once, as it would without this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
