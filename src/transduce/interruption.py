"""Signals that end a process, turned into a request to stop or into an error.

The signals are SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closing terminal sends. A
process that ignores SIGHUP, as under nohup, continues to ignore it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WATCH_SECONDS = 0.5
"""Seconds between two checks that the parent still runs."""


def terminations() -> list[signal.Signals]:
    """Return SIGTERM, and SIGHUP unless it is ignored or unknown to the system."""
    hangup = getattr(signal, "SIGHUP", None)  # missing on Windows
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hangup]


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once a signal has been received.

    A second Ctrl-C acts as usual. The other signals may come twice, for example SIGTERM
    from a scheduler and from a parent that forwards it. Outside the main thread signals
    cannot be caught, and the function always returns False.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    previous = {
        number: signal.getsignal(number) for number in (signal.SIGINT, *terminations())
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
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that partial work is undone.

    Outside the main thread, they end the program at once, as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in terminations()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """Handle the signals that arrive within the block after it.

    Python ignores an exception that a handler raises during a fork, so that a signal
    that should end the program would be lost there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    previous = {
        number: signal.signal(number, hold)
        for number in (signal.SIGINT, *terminations())
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for arrived in dict.fromkeys(held):
            signal.raise_signal(arrived)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal as soon as its parent has ended.

    A killed process cannot end its children itself.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
