"""Signals that end a process: turned into a request to stop, or into an error.

The signals are SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closing terminal sends. A
process that ignores SIGHUP, as under nohup, goes on ignoring it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WATCH_SECONDS = 0.5
"""Seconds between two checks whether the parent still runs."""


def terminations() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP unless this process ignores it or the system has none."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hangup]


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a request that the given function tells of.

    A second Ctrl-C acts as it would have without this; the others may come twice, such
    as SIGTERM from a scheduler and from a parent that passes it on. Outside the main
    thread nothing can be caught, and the function never says yes.
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
    """Let SIGTERM and SIGHUP end the program like an error, which undoes partial work.

    Outside the main thread they end the program at once, as they would without this.
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


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal as soon as its parent has ended.

    A process that is killed cannot end its children itself.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
