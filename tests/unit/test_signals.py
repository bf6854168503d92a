"""Ctrl-C, SIGTERM and SIGHUP are requests to stop; a second Ctrl-C interrupts."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from importlib import import_module

import pytest

from transduce.errors import ConfigError
from transduce.signals import (
    call_interruptibly,
    ended_by_schedulers,
    signals_after_imports,
    signals_held,
    stop_on_signal,
    unwound_on_termination,
)
from waiting import PATIENCE_S, wait_until

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
TERMINATIONS = [signal.SIGTERM, signal.SIGHUP]
ENDS = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: SystemExit,
    signal.SIGHUP: SystemExit,
}


@pytest.fixture(autouse=True)
def received():
    """Signals that reach the previous handlers."""
    seen: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, _: seen.append(number))
        for number in SIGNALS
    }
    yield seen
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_request_to_stop(received, number):
    with stop_on_signal() as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
    assert received == []


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_ctrl_c_interrupts(received, first):
    with stop_on_signal() as should_stop:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
    assert received == [signal.SIGINT]


@pytest.mark.parametrize("second", TERMINATIONS)
@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_sigterm_is_harmless(received, first, second):
    with stop_on_signal() as should_stop:
        signal.raise_signal(first)
        signal.raise_signal(second)
        assert should_stop()
    assert received == []


@pytest.mark.parametrize("context", [stop_on_signal, unwound_on_termination])
def test_a_process_that_ignores_sighup_continues_to_ignore_it(context):
    """SIGHUP stays ignored if it was before, as under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with context() as should_stop:
        signal.raise_signal(signal.SIGHUP)
        assert should_stop is None or not should_stop()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("number", TERMINATIONS)
def test_a_termination_runs_clean_up_code(received, number):
    undone = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            undone.append(number)

    with pytest.raises(SystemExit) as ended, unwound_on_termination():
        work()
    assert ended.value.code == 128 + number
    assert (undone, received) == ([number], [])


def within_del(number: int) -> None:
    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Deleted()


def within_generator(number: int) -> None:
    def numbers():
        try:
            yield 1
        finally:
            signal.raise_signal(number)

    next(numbers())


def within_weak_reference(number: int) -> None:
    class Referred: ...

    referred = Referred()
    reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
    del referred
    assert reference() is None


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "interrupt_within", [within_del, within_generator, within_weak_reference]
)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_signal_whose_exception_python_ignores_ends_the_work(
    capsys, monkeypatch, number, interrupt_within, is_last
):
    """Python prints exceptions of finalizers and continues."""
    monkeypatch.setattr("transduce.signals.POSTPONED_SECONDS", 0.01)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = sys.unraisablehook
    undone = []

    def work() -> None:
        try:
            interrupt_within(number)
            if not is_last:
                time.sleep(5.0)
                pytest.fail("The signal did not end the work.")
        finally:
            undone.append(number)

    with pytest.raises(ENDS[number]) as ended, unwound_on_termination():
        work()
    if number != signal.SIGINT:
        assert ended.value.code == 128 + number
    assert undone == [number]
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_a_signal_that_arrives_as_python_reports_an_exception_ends_the_work(
    monkeypatch,
):
    """Python ignores exceptions of the function that reports ignored ones, too."""
    monkeypatch.setattr("transduce.signals.POSTPONED_SECONDS", 0.01)

    class Deleted:
        def __del__(self) -> None:
            raise ValueError

    monkeypatch.setattr(
        sys, "unraisablehook", lambda _: signal.raise_signal(signal.SIGTERM)
    )

    def work() -> None:
        Deleted()
        time.sleep(5.0)
        pytest.fail("The signal did not end the work.")

    with pytest.raises(SystemExit) as ended, unwound_on_termination():
        work()
    assert ended.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("fault", [False, True])
def test_a_signal_whose_exception_a_library_ignores_ends_the_program_after_it(
    number, fault
):
    """Some C code clears exceptions, and may then raise others."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def library() -> None:
        with suppress(BaseException):
            signal.raise_signal(number)
        if fault:
            raise TypeError("incompatible function arguments")

    with pytest.raises(ENDS[number]) as ended, unwound_on_termination():
        library()
    if number != signal.SIGINT:
        assert ended.value.code == 128 + number
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_an_error_that_reports_a_signal_stays():
    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise ConfigError("What is done is kept.") from None

    with pytest.raises(ConfigError), unwound_on_termination():
        work()


def test_other_exceptions_that_python_ignores_are_reported(monkeypatch):
    class Deleted:
        def __del__(self) -> None:
            raise ValueError

    reported = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type)
    )
    with unwound_on_termination():
        Deleted()
    assert reported == [ValueError]


CHILD = """
import os, sys, time
from transduce.signals import end_with_parent
end_with_parent(int(sys.argv[1]) or os.getppid())
print(flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, "0"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_ends_with_a_parent_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "\n"  # it watches its parent
        os.kill(child, 0)  # it runs
        parent.kill()
        assert parent.stdout.read() == ""  # until the child has closed it as well


def test_a_process_ends_if_its_parent_has_ended_before_the_watch():
    gone = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], capture_output=True, timeout=PATIENCE_S
    )
    assert gone.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_an_import_takes_effect_after_it(
    tmp_path, monkeypatch, received, number
):
    module = f"interrupted_by_{number.name.lower()}"
    (tmp_path / f"{module}.py").write_text(
        f"import signal\nsignal.raise_signal({int(number)})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with signals_after_imports():
        import_module(module)
        assert received == []
        wait_until(lambda: bool(received))
        assert received == [number]
        signal.raise_signal(number)
        assert received == [number, number]


def test_ctrl_c_before_the_command_line_is_imported_ends_the_program_at_once():
    program = """if True:
        import signal, sys
        from transduce.__main__ import main

        class Finder:
            def find_spec(self, name, *_):
                if name == "transduce.cli":
                    signal.raise_signal(signal.SIGINT)

        sys.meta_path.insert(0, Finder())
        main()
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == b""


@pytest.mark.parametrize("is_within", [True, False])
def test_ctrl_c_after_the_end_of_the_command_ends_the_program_without_a_trace(
    is_within,
):
    program = f"""if True:
        import atexit, signal, sys
        from transduce import cli
        from transduce.__main__ import main

        run = cli._run

        def run_and_interrupt(arguments):
            run(arguments)
            if {is_within}:  # while the handlers of the signals are restored
                signal.raise_signal(signal.SIGINT)

        cli._run = run_and_interrupt
        atexit.register(signal.raise_signal, signal.SIGINT)
        sys.argv = ["transduce", "--version"]
        main()
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout
    assert ended.stderr == b""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_signal_of_a_scheduler_stops_a_command(number):
    with ended_by_schedulers(), unwound_on_termination():
        with stop_on_signal() as should_stop:
            signal.raise_signal(number)
            assert should_stop()
        with pytest.raises(SystemExit) as ended, unwound_on_termination():
            signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("is_command", [False, True])
def test_a_program_may_use_the_signals_of_schedulers_itself(is_command):
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        with (
            ended_by_schedulers() if is_command else nullcontext(),
            stop_on_signal() as should_stop,
        ):
            signal.raise_signal(signal.SIGUSR1)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


@pytest.mark.parametrize("number", SIGNALS)
def test_handlers_are_restored_afterwards(received, number):
    with stop_on_signal():
        pass
    signal.raise_signal(number)
    assert received == [number]


def test_handlers_are_restored_after_an_error(received):
    with pytest.raises(ValueError, match="slip"), stop_on_signal():
        raise ValueError("slip")
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT]


def test_no_signal_is_caught_outside_the_main_thread(received):
    answers: list[bool] = []

    def work() -> None:
        with stop_on_signal() as should_stop:
            answers.append(should_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_held_signal_is_handled_once_after_the_block(number):
    handled = []
    before = signal.signal(number, lambda *_: handled.append(number))
    try:
        with signals_held():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            assert handled == []
        assert handled == [number]
    finally:
        signal.signal(number, before)


@pytest.fixture
def disturbed(monkeypatch):
    """Return a function that lets a signal arrive after a handler has been set."""
    is_over = threading.Event()
    other = threading.Thread(target=is_over.wait)
    other.start()
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    before = signal.set_wakeup_fd(waking.fileno())

    def disturb(after: int, arriving: int, *, is_other_thread: bool = False) -> None:
        change = signal.signal

        def changed(number: int, handler: object) -> object:
            before = change(number, handler)
            if number == after:
                monkeypatch.setattr(signal, "signal", change)
                if is_other_thread:
                    signal.pthread_kill(other.ident, arriving)
                    # Once it has arrived, the handler runs here, in the main thread.
                    assert select.select([woken], [], [], 5)[0]
                else:
                    signal.raise_signal(arriving)
            return before

        monkeypatch.setattr(signal, "signal", changed)

    yield disturb
    signal.set_wakeup_fd(before)
    woken.close()
    waking.close()
    is_over.set()
    other.join()


def interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(number)


@pytest.mark.parametrize("first", SIGNALS)
def test_a_repeated_signal_does_not_interrupt_the_undoing(
    first: signal.Signals,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    undone = []

    def work() -> None:
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            undone.append(1)

    with pytest.raises(ENDS[first]) as ended, unwound_on_termination():
        work()
    if first != signal.SIGINT:
        assert ended.value.code == 128 + first
    assert undone == [1]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGXCPU])
def test_the_undoing_outlasts_further_seconds_of_cpu_time(
    monkeypatch: pytest.MonkeyPatch, first: signal.Signals
) -> None:
    """The kernel sends SIGXCPU for each of them."""
    monkeypatch.setattr("transduce.signals.REPEATED_SECONDS", 0.0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    undone = []

    def work() -> None:
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(signal.SIGXCPU)
            undone.append(1)

    with (
        pytest.raises((KeyboardInterrupt, SystemExit)),
        ended_by_schedulers(),
        unwound_on_termination(),
    ):
        work()
    assert undone == [1]


def test_a_later_signal_ends_an_undoing_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transduce.signals.REPEATED_SECONDS", 0.0)

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGHUP)

    with pytest.raises(SystemExit) as ended, unwound_on_termination():
        work()
    assert ended.value.code == 128 + signal.SIGHUP


@pytest.mark.parametrize(
    "held",
    [signals_held, unwound_on_termination, stop_on_signal, signals_after_imports],
)
@pytest.mark.parametrize("is_other_thread", [False, True])
@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize(
    ("after", "arriving"),
    [
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGHUP),
    ],
)
def test_a_signal_at_any_time_leaves_the_earlier_handlers(
    disturbed, held, is_within, is_other_thread, after, arriving
):
    for number in SIGNALS:
        signal.signal(number, interrupt)
    with suppress(KeyboardInterrupt, SystemExit):
        if not is_within:
            disturbed(after, arriving, is_other_thread=is_other_thread)
        with held():
            if is_within:
                disturbed(after, arriving, is_other_thread=is_other_thread)
    assert [signal.getsignal(number) for number in SIGNALS] == [interrupt] * 3
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_signal_during_the_restoring_keeps_those_held(disturbed, received):
    with signals_held():
        signal.raise_signal(signal.SIGTERM)
        disturbed(signal.SIGINT, signal.SIGHUP)
    assert sorted(received) == [signal.SIGHUP, signal.SIGTERM]


def test_a_handler_left_by_a_race_delivers_what_is_held_once(received):
    with signals_held():
        signal.raise_signal(signal.SIGTERM)
        left = signal.getsignal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    signal.signal(signal.SIGINT, left)
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize(
    "held",
    [signals_held, unwound_on_termination, stop_on_signal, signals_after_imports],
)
def test_a_handler_left_by_a_race_calls_the_earlier_one(received, held):
    with held():
        left = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, left)
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) != left


@pytest.mark.parametrize(
    "held",
    [signals_held, unwound_on_termination, stop_on_signal, signals_after_imports],
)
def test_handlers_of_c_code_stay(monkeypatch, held):
    """Python names them None, and cannot restore them."""
    change = signal.signal
    handler_of = signal.getsignal
    changed = []
    monkeypatch.setattr(
        signal, "getsignal", lambda n: None if n == signal.SIGTERM else handler_of(n)
    )
    monkeypatch.setattr(
        signal, "signal", lambda n, handler: (changed.append(n), change(n, handler))[1]
    )
    with held():
        pass
    assert signal.SIGTERM not in changed
    assert signal.SIGHUP in changed


def test_an_exception_of_a_handler_does_not_wait_for_a_native_function() -> None:
    ready, callers = threading.Event(), list[threading.Thread]()

    def function() -> None:
        callers.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGUSR1)
        ready.wait()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_interruptibly(function)
        [caller] = callers
        assert caller.is_alive()
    finally:
        signal.signal(signal.SIGUSR1, previous)
        ready.set()


def test_a_native_function_in_a_thread_has_its_result_and_its_errors() -> None:
    assert call_interruptibly(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        call_interruptibly(lambda: 1 // 0)
