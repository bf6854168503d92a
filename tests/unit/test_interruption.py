"""Ctrl-C and SIGTERM: the first is a request, a second Ctrl-C acts as ever."""

import signal
import threading

import pytest

from transduce.interruption import stop_on_signal

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def received():
    """The signals that reach whoever listened before."""
    seen: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, _: seen.append(number))
        for number in SIGNALS
    }
    yield seen
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_request(received, number):
    with stop_on_signal() as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
    assert received == []


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_ctrl_c_acts_as_ever(received, first):
    with stop_on_signal() as should_stop:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
    assert received == [signal.SIGINT]


@pytest.mark.parametrize("first", SIGNALS)
def test_termination_may_be_asked_for_twice(received, first):
    with stop_on_signal() as should_stop:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
    assert received == []


@pytest.mark.parametrize("number", SIGNALS)
def test_afterwards_signals_act_as_ever(received, number):
    with stop_on_signal():
        pass
    signal.raise_signal(number)
    assert received == [number]


def test_after_a_failure_signals_act_as_ever(received):
    with pytest.raises(ValueError, match="slip"), stop_on_signal():
        raise ValueError("slip")
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT]


def test_outside_the_main_thread_nothing_is_caught(received):
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
