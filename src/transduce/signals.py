"""Signals that end this process.

A signal becomes a request to stop, or an error. The signals are SIGINT (Ctrl-C),
SIGTERM, and SIGHUP, which a closing terminal sends. A process that ignores SIGHUP, as
under nohup, continues to ignore it. In commands, SIGUSR1, SIGUSR2 and SIGXCPU are like
SIGTERM.
"""

import math
import os
import signal
import sys
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
"""Seconds before a signal that came too early to take effect is sent again."""
IMPORT_MACHINERY = "<frozen importlib"
"""Beginning of the file name of the code that imports modules."""
WATCH_SECONDS = 0.5
"""Seconds between two checks that the parent still runs."""


SCHEDULER_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)
"""Signals by which schedulers announce the end of a job, and the kernel that the CPU
time is spent (`ulimit -S -t`); Windows has none of them."""


def terminations() -> list[signal.Signals]:
    """Return SIGTERM, SIGHUP unless it is ignored or unknown to the system, and within
    `ended_by_schedulers` also the signals of schedulers."""
    found = [signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # missing on Windows
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        found.append(hangup)
    handlers = {number: signal.getsignal(number) for number in SCHEDULER_SIGNALS}
    return found + [number for number, each in handlers.items() if _is_own(each)]


def _is_own(handler: object) -> bool:
    """Return whether a handler is of this package."""
    name = getattr(handler, "__module__", None)
    return isinstance(name, str) and name.startswith("transduce.")


@contextmanager
def ended_by_schedulers() -> Iterator[None]:
    """Handle the signals of schedulers like SIGTERM, unless they have another handler.

    They would end the process in any case. This is for commands: a program that imports
    the package may use these signals itself, even without a handler that Python knows.
    """
    handlers = _handlers_of_python(SCHEDULER_SIGNALS)
    unused = [number for number, each in handlers.items() if each == signal.SIG_DFL]
    _set(dict.fromkeys(unused, _end_as_usual))
    try:
        yield
    finally:
        _set(dict.fromkeys(unused, signal.SIG_DFL))


def _end_as_usual(number: int, _frame: FrameType | None) -> None:
    """End the process by a signal, as without a handler."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _handlers_of_python(numbers: Iterable[int]) -> dict[int, Any]:
    """Return the handlers of signals that this thread can replace and restore.

    Handlers that C code has set are left out. Outside the main thread there are none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in numbers}
    return {number: each for number, each in found.items() if each is not None}


def _restore(handlers: Mapping[int, Any], arrived: list[int]) -> None:
    """Set all handlers before one of them runs, then raise the signals that arrived.

    Raised signals are removed from `arrived`. The signals are blocked meanwhile, since
    a handler that raises an exception would keep the others from being set. Only a
    signal that another thread receives can still do so.
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
def _replaced(
    previous: Mapping[int, Any],
    handle: Callable[[int, FrameType | None], object],
    held: list[int],
) -> Iterator[None]:
    """Let a function handle the signals of `previous` in the block.

    Their handlers are restored after it, and then get the signals in `held`. A signal
    that another thread receives may still run the replaced handler after the block; it
    then goes to the earlier handler.
    """
    is_left = False

    def handler(number: int, frame: FrameType | None) -> None:
        if not is_left:
            handle(number, frame)
            return
        if number not in held:
            held.append(number)
        _restore(previous, held)

    try:
        _set(dict.fromkeys(previous, handler))
        yield
    finally:
        is_left = True
        _restore(previous, held)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once a signal has been received.

    A second Ctrl-C acts as usual. The other signals may come twice, for example SIGTERM
    from a scheduler and from a parent that forwards it. Outside the main thread signals
    cannot be caught, and the function always returns False.
    """
    requested = threading.Event()
    previous = _handlers_of_python((signal.SIGINT, *terminations()))

    def request(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and requested.is_set():
            _restore(previous, [number])
        requested.set()

    with _replaced(previous, request, []):
        yield requested.is_set


@contextmanager
def unwound_on_termination() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that partial work is undone.

    A second signal soon after the first is ignored, unless it is Ctrl-C: `timeout`, for
    example, signals a program and then its group, and the second signal must not
    interrupt the undoing. A later SIGXCPU is always ignored. Outside the main thread,
    the signals end the program at once, as usual.

    If Python or a library ignores the exception, it is raised again soon, or at the end
    of the block, in place of a fault that follows from it. The same holds for
    `KeyboardInterrupt`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = terminations()
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        numbers.append(signal.SIGINT)
    interruption = _Interruption()
    with (
        _replaced(_handlers_of_python(numbers), interruption.arrive, []),
        interruption.raised_at_end(),
        interruption.sent_again(),
    ):
        yield


class _Interruption:
    """Exception by which the last signal ends the program."""

    def __init__(self) -> None:
        self._error: _TerminationError | KeyboardInterrupt | None = None
        self._last = -math.inf
        """Time of the last signal that took effect, in seconds."""
        self._timers: list[threading.Timer] = []
        self._report = sys.unraisablehook

    def arrive(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception of a signal, unless it repeats the last one."""
        if any(each.f_code is self._handle.__code__ for each in _callers(frame)):
            self._timers.append(_send_again(number))
            return
        now = time.monotonic()
        if number == signal.SIGINT:
            self._error = KeyboardInterrupt()
        elif now - self._last >= REPEATED_SECONDS and not self._is_expected(number):
            self._error = _TerminationError(number)
        else:
            return
        self._last = now
        raise self._error

    def _is_expected(self, number: int) -> bool:
        """Return whether the kernel sends a signal again and again: SIGXCPU, for each
        second of CPU time beyond the soft limit."""
        repeats = number == getattr(signal, "SIGXCPU", None)  # missing on Windows
        return repeats and self._last > -math.inf

    @contextmanager
    def raised_at_end(self) -> Iterator[None]:
        """Raise the exception again unless the block ends by it or reports it."""
        try:
            yield
        except Exception as error:
            if self._error is None or _comes_from(error, self._error):
                raise
            raise self._error from error
        if self._error is not None:
            raise self._error

    @contextmanager
    def sent_again(self) -> Iterator[None]:
        """Send a signal again if Python has ignored the exception of its handler.

        Python ignores exceptions while it deletes a generator or another object, and
        within callbacks of weak references and of C. The end of the block waits for the
        signals that are being sent.
        """
        sys.unraisablehook = self._handle
        try:
            yield
            while self._timers:
                self._timers.pop().join()
        finally:
            for timer in self._timers:
                timer.cancel()
            sys.unraisablehook = self._report

    def _handle(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Handle an exception that Python ignores."""
        error = unraisable.exc_value
        if threading.current_thread() is not threading.main_thread():
            self._report(unraisable)
        elif isinstance(error, _TerminationError):
            self._last = -math.inf
            self._timers.append(_send_again(error.number))
        elif isinstance(error, KeyboardInterrupt):
            self._timers.append(_send_again(signal.SIGINT))
        else:
            self._report(unraisable)


class _TerminationError(SystemExit):
    """End of the program by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def _comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Return whether an error was raised while another one was handled."""
    while error is not None and error is not origin:
        error = error.__cause__ or error.__context__
    return error is origin


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals that arrive within the block, and handle them after the block.

    Python ignores an exception that a handler raises during a fork. A signal that
    should end the program would be lost there.
    """
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if number not in held:
            held.append(number)

    previous = _handlers_of_python((signal.SIGINT, *terminations()))
    with _replaced(previous, hold, held):
        yield


@contextmanager
def signals_after_imports() -> Iterator[None]:
    """Delay signals that arrive during an import until it has ended.

    Modules in C ignore an exception that a handler raises while they are imported, so
    that the program continues, or they remain incomplete and fail later.
    """
    arrived: dict[int, float] = {}
    handlers = _handlers_of_python((signal.SIGINT, *terminations()))
    previous = {n: handler for n, handler in handlers.items() if callable(handler)}

    def postpone(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        waited = now - arrived.setdefault(number, now)
        if waited < IMPORT_SECONDS and _is_importing(frame):
            _send_again(number)
            return
        del arrived[number]
        previous[number](number, frame)

    with _replaced(previous, postpone, []):
        yield


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame runs within the import of a module."""
    return any(
        each.f_code.co_filename.startswith(IMPORT_MACHINERY) for each in _callers(frame)
    )


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _send_again(number: int) -> threading.Timer:
    """Send the main thread a signal a little later."""
    main = threading.main_thread().ident
    timer = threading.Timer(POSTPONED_SECONDS, signal.pthread_kill, (main, number))
    timer.daemon = True
    timer.start()
    return timer


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
