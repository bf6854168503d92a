"""Signals that end a process, turned into a request to stop or into an error.

The signals are SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closing terminal sends. A
process that ignores SIGHUP, as under nohup, continues to ignore it.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

REPEATED_SECONDS = 2.0
"""Seconds within which a second signal to end counts as a repetition of the first."""
IMPORT_SECONDS = 60.0
"""Most seconds for which a signal waits for the end of an import."""
POSTPONED_SECONDS = 0.05
"""Seconds after which a signal that arrived during an import is sent again."""
IMPORT_MACHINERY = "<frozen importlib"
"""Beginning of the file name of the code that imports modules."""
WATCH_SECONDS = 0.5
"""Seconds between two checks that the parent still runs."""


# The handlers of this module call the earlier ones once their block has been left: a
# signal that another thread receives may run a handler while it is being replaced.


def terminations() -> list[signal.Signals]:
    """Return SIGTERM, and SIGHUP unless it is ignored or unknown to the system."""
    hangup = getattr(signal, "SIGHUP", None)  # missing on Windows
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hangup]


def _handlers_of_python(numbers: Iterable[int]) -> dict[int, Any]:
    """Return the handlers of signals, without those that C code has set.

    Python cannot restore these, so the functions of this module leave them in place.
    """
    found = {number: signal.getsignal(number) for number in numbers}
    return {number: each for number, each in found.items() if each is not None}


def _restore(handlers: Mapping[int, Any], arrived: list[int]) -> None:
    """Set all handlers before one of them runs, then raise the signals that arrived.

    Each is removed from `arrived`.

    A handler that raises an exception would otherwise keep the others from being set.
    Blocking the signals prevents that unless another thread receives one.
    """
    set_mask = getattr(signal, "pthread_sigmask", None)  # missing on Windows
    before = set_mask(signal.SIG_BLOCK, ()) if set_mask else None
    try:
        if set_mask:
            set_mask(signal.SIG_BLOCK, handlers)
        _set(handlers)
    except BaseException:
        _set(handlers)
        raise
    finally:
        while arrived:
            signal.raise_signal(arrived.pop(0))  # handled once it is not blocked
        if set_mask:
            set_mask(signal.SIG_SETMASK, before)


def _set(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
    is_left = False
    previous = _handlers_of_python((signal.SIGINT, *terminations()))

    def request(number: int, _frame: FrameType | None) -> None:
        if is_left or (number == signal.SIGINT and requested.is_set()):
            _restore(previous, [number])
        requested.set()

    try:
        for number in previous:
            signal.signal(number, request)
        yield requested.is_set
    finally:
        is_left = True
        _restore(previous, [])


@contextmanager
def unwound_on_termination() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that partial work is undone.

    A second signal soon after the first is ignored: `timeout`, for example, signals a
    program and then its group, and the second must not interrupt the undoing.

    Outside the main thread, they end the program at once, as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    last = -math.inf
    is_left = False

    def unwind(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        if is_left:
            _restore(previous, [number])
            return
        now = time.monotonic()
        if now - last >= REPEATED_SECONDS:
            last = now
            raise SystemExit(128 + number)

    previous = _handlers_of_python(terminations())
    try:
        for number in previous:
            signal.signal(number, unwind)
        yield
    finally:
        is_left = True
        _restore(previous, [])


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
    is_left = False
    previous = _handlers_of_python((signal.SIGINT, *terminations()))

    def hold(number: int, _frame: FrameType | None) -> None:
        if number not in held:
            held.append(number)
        if is_left:
            _restore(previous, held)

    try:
        for number in previous:
            signal.signal(number, hold)
        yield
    finally:
        is_left = True
        _restore(previous, held)


@contextmanager
def signals_after_imports() -> Iterator[None]:
    """Delay signals that arrive during an import until it has ended.

    Modules in C ignore an exception that a handler raises while they are imported, so
    that the program continues, or they remain incomplete and fail later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: dict[int, float] = {}
    is_left = False
    handlers = _handlers_of_python((signal.SIGINT, *terminations()))
    previous = {n: handler for n, handler in handlers.items() if callable(handler)}

    def postpone(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        waited = now - arrived.setdefault(number, now)
        if waited < IMPORT_SECONDS and _is_importing(frame):
            _send_again(number)
            return
        del arrived[number]
        if is_left:
            _restore(previous, [number])
        else:
            previous[number](number, frame)

    try:
        for number in previous:
            signal.signal(number, postpone)
        yield
    finally:
        is_left = True
        _restore(previous, [])


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame runs within the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORT_MACHINERY):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send the main thread a signal a little later."""
    main = threading.main_thread().ident
    timer = threading.Timer(POSTPONED_SECONDS, signal.pthread_kill, (main, number))
    timer.daemon = True
    timer.start()


def call_interruptibly(function: Callable[[], Result]) -> Result:
    """Call a long native function in a thread, so that signals act meanwhile.

    Python runs handlers of signals in the main thread, between two of its own
    instructions. If a handler raises an exception, the function goes on until it or the
    process ends, and its result is lost.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal as soon as its parent has ended.

    A killed process cannot end its children itself.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
