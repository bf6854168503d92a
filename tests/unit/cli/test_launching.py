"""Of several processes one tells what has happened, and the others end with it."""

import sys

import pytest

from transduce.cli.launching import (
    LEFT_BEHIND,
    ProcessKilledError,
    one_voice,
    run_processes,
)
from transduce.errors import ConfigError
from transduce.training.distributed import LOST, Processes, ProcessLostError
from transduce.training.trainer import TrainingStoppedError

HEAD = "import os, signal, sys, time\nis_first = os.environ['RANK'] == '0'\n"
END_WITH_ANOTHER = f"time.sleep(0.3); sys.exit({LEFT_BEHIND})"


def run(first: str, others: str, count: int = 2) -> int:
    """Processes of which the first does one thing, and the others another."""
    return run_processes(
        [sys.executable, "-c", f"{HEAD}exec({first!r} if is_first else {others!r})"],
        count,
    )


def say(text: str, code: int) -> str:
    return f"sys.stderr.write({text!r}); sys.exit({code})"


def test_processes_that_all_end_well_are_done():
    assert run("pass", "pass", count=3) == 0


def test_the_one_that_is_killed_is_named():
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    message = r"but process 2 of 2 was killed \(SIGKILL\), and the others were ended"
    with pytest.raises(ProcessKilledError, match=message):
        run(END_WITH_ANOTHER, kill)


def test_what_is_the_cause_is_shown_though_another_ended_first(capfd):
    assert run(f"sys.exit({LEFT_BEHIND})", "time.sleep(0.3); " + say("why", 2)) == 2
    assert capfd.readouterr().err == "why"


@pytest.mark.parametrize("pause", ["", "time.sleep(0.3); "], ids=["first", "last"])
def test_what_all_say_is_shown_once(capfd, pause):
    assert run(pause + say("why", 2), say("why", 2)) == 2
    assert capfd.readouterr().err == "why"


def test_a_fault_that_none_admits_is_told():
    with pytest.raises(ProcessLostError, match="the connection between two of them is"):
        run(END_WITH_ANOTHER, END_WITH_ANOTHER)


def test_ctrl_c_interrupts_those_that_are_started():
    """Of which each gets it from the terminal."""
    interrupted = """
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(5)
"""
    assert run(interrupted, interrupted) == 5


def test_there_must_be_a_process():
    with pytest.raises(ConfigError, match="`--devices` must be at least 1, but is 0"):
        run("pass", "pass", count=0)


@pytest.mark.parametrize(
    ("devices", "rank", "raised"),
    [(1, 0, ProcessLostError), (1, 1, SystemExit), (2, 0, SystemExit)],
    ids=["the first by torchrun", "another by torchrun", "by us"],
)
def test_that_a_connection_is_lost_is_told_once(devices, rank, raised, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    processes = Processes(rank=2 + rank, count=4)
    with pytest.raises(raised), one_voice(processes, devices):
        raise ProcessLostError(LOST)


@pytest.mark.parametrize(
    ("rank", "raised"), [(0, TrainingStoppedError), (1, SystemExit)]
)
def test_the_first_process_tells_that_all_have_stopped(rank, raised):
    with pytest.raises(raised), one_voice(Processes(rank=rank, count=2), 2):
        raise TrainingStoppedError("Stopped.")
