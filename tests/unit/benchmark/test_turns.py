"""Workers take turns, and one that ends early is an error."""

import multiprocessing
import operator
import os
from functools import partial

import pytest
import torch

from transduce.benchmark import measurement
from transduce.benchmark import measurement as turns_module
from transduce.benchmark.measurement import Turns, Worker
from transduce.errors import RequestError, TransduceError
from transduce.machine import respect_cpu_quota

CPU = torch.device("cpu")


def test_results_are_reported_turn_by_turn(take_all_turns):
    def count(turns):
        turns.begin()
        for number in range(10):
            turns.done(number)

    turns = take_all_turns(count, 4)
    assert [turn.outcome for turn in turns] == [0, 1, 2, 3]
    assert all(turn.seconds > 0 and turn.peak_bytes > 0 for turn in turns)


def test_peak_memory_counts_the_growth_of_gpu_memory_during_turns(
    take_all_turns, monkeypatch
):
    # Memory at the start, when ready, and before and after each turn.
    used = iter([10**12, 3 * 10**12, 5 * 10**12, 9 * 10**12, 7 * 10**12, 8 * 10**12])
    monkeypatch.setattr(turns_module, "used_memory", lambda _: next(used, 0))
    monkeypatch.setattr(turns_module, "memory_of_children", lambda: 0)

    def work(turns):
        turns.begin()
        turns.done("first")
        turns.done("second")

    peaks = [turn.peak_bytes for turn in take_all_turns(work, 2)]
    assert peaks == [6 * 10**12, 7 * 10**12]


def test_peak_memory_includes_child_processes(take_all_turns, monkeypatch):
    held = iter([10**12, 3 * 10**12, 2 * 10**12])
    monkeypatch.setattr(turns_module, "memory_of_children", lambda: next(held))
    monkeypatch.setattr(turns_module, "peak_memory", lambda _: 10**12)

    def work(turns):
        turns.begin()
        turns.done("first")
        turns.done("second")

    peaks = [turn.peak_bytes for turn in take_all_turns(work, 2)]
    assert peaks == [4 * 10**12, 4 * 10**12]


def test_waiting_is_not_part_of_a_turn(take_all_turns, monkeypatch):
    clock = iter([10.0, 12.0, 50.0, 55.0, 90.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    def work(turns):
        turns.begin()
        turns.done("first")
        turns.done("second")

    assert [turn.seconds for turn in take_all_turns(work, 3)] == [2.0, 5.0]


def test_a_worker_works_in_a_process_of_its_own(cpu):
    work = partial(measurement.measure_matrix_rates, cpu)
    with Worker("The rate", work, CPU) as worker:
        turns = [worker.take_turn() for _ in range(2)]
        [process] = multiprocessing.active_children()
        assert process.is_alive()
    assert not process.is_alive()
    assert process.exitcode == 0
    assert all(turn.outcome > 0 and turn.seconds > 0 for turn in turns)


def report_spins(turns: Turns[str | None]) -> None:
    turns.begin()
    turns.done(os.environ.get("GOMP_SPINCOUNT"))


def test_a_worker_gets_the_variables_of_its_environment(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    with Worker("The spins", report_spins, CPU, {"GOMP_SPINCOUNT": "7"}) as worker:
        assert worker.take_turn().outcome == "7"
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


def test_work_within_the_quota_has_as_many_threads(
    take_all_turns, monkeypatch, tmp_path
):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("150000 100000")
    monkeypatch.setattr("transduce.machine.CONTROL_GROUPS", tmp_path)
    respect = partial(respect_cpu_quota, tmp_path)
    monkeypatch.setattr(measurement, "respect_cpu_quota", respect)

    def work(turns: Turns[int]) -> None:
        turns.begin()
        turns.done(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        turns = take_all_turns(partial(measurement.within_quota, work), 1)
    finally:
        torch.set_num_threads(before)
    assert [turn.outcome for turn in turns] == [2]


def test_a_worker_that_ends_before_its_turn_is_an_error():
    begin_only = operator.methodcaller("begin")
    with Worker("the lazy system", begin_only, CPU) as worker:
        message = "The process of the lazy system ended with exit code 0 during"
        with pytest.raises(TransduceError, match=message):
            worker.take_turn()


def test_a_failing_worker_prints_its_error(capfd):
    worker = Worker("the wrong system", operator.methodcaller("no_such_method"), CPU)
    message = "The process of the wrong system ended with exit code 1 during"
    with pytest.raises(TransduceError, match=message):
        worker.__enter__()
    assert "has no attribute 'no_such_method'" in capfd.readouterr().err


def refuse(_turns: Turns[None]) -> None:
    raise RequestError("The program ended with exit code 1.")


def test_a_worker_that_refuses_prints_one_sentence(capfd):
    message = "The process of the refusing system ended with exit code 1 during"
    with pytest.raises(TransduceError, match=message):
        Worker("the refusing system", refuse, CPU).__enter__()
    assert capfd.readouterr().err == "The program ended with exit code 1.\n"
