"""One of several processes reports an error, and the others end with it."""

import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from transduce.cli import command_line
from transduce.cli.launching import (
    LEFT_BEHIND,
    ProcessKilledError,
    errors_printed_once,
    naming_resume_command,
    run_processes,
)
from transduce.cli.train import command_of
from transduce.errors import ConfigError
from transduce.experiments.run_folder import RUN_CONFIG
from transduce.processes import PYTHON
from transduce.training.data_parallel import LOST, ProcessGroup, ProcessLostError
from transduce.training.trainer import TrainingStoppedError

HEAD = "import os, signal, sys, time\nis_first = os.environ['RANK'] == '0'\n"
END_WITH_ANOTHER = f"time.sleep(0.3); sys.exit({LEFT_BEHIND})"


def run(first: str, others: str, count: int = 2) -> int:
    """Run processes, with one program for the first and another for the rest."""
    return run_processes(
        [sys.executable, "-c", f"{HEAD}exec({first!r} if is_first else {others!r})"],
        count,
    )


def say(text: str, code: int) -> str:
    return f"sys.stderr.write({text!r}); sys.exit({code})"


def test_processes_that_all_succeed_give_exit_code_zero():
    assert run("pass", "pass", count=3) == 0


def test_a_process_does_not_import_modules_in_the_current_folder(monkeypatch, tmp_path):
    (tmp_path / "transduce.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert run_processes(command_of({"help": True}), 1) == 0


def test_files_that_begin_with_dashes_reach_a_process():
    given = {
        "out": Path("--new"),
        "source": (Path("--a.en"), Path("b.en")),
        "target": (),
        "replay": (Path("-old.en"), Path("old.de")),
        "corpus": ("--one", "a", "b"),
    }
    first = len([*PYTHON, "-m", "transduce"])
    _, parsed, _ = command_line().parse_args(
        command_of(given)[first:], exit_on_error=False, print_error=False
    )
    found = parsed.arguments
    assert {name: found.get(name, ()) for name in given} == given


def test_the_command_that_resumes_a_folder_that_begins_with_dashes_can_be_run():
    with (
        pytest.raises(TrainingStoppedError, match="train --out=--new --resume$"),
        naming_resume_command(Path("--new")),
    ):
        raise TrainingStoppedError("Stopped.")


def test_the_command_that_resumes_is_named_as_it_was_called(monkeypatch, tmp_path):
    (tmp_path / "transduce").touch()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "transduce"), "train"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with (
        pytest.raises(TrainingStoppedError) as stopped,
        naming_resume_command(Path("new"), devices=2),
    ):
        raise TrainingStoppedError("Stopped.")
    how = f"{tmp_path / 'transduce'} train --out new --resume --devices 2"
    assert str(stopped.value) == f"Stopped. Continue with: {how}"


@pytest.mark.parametrize(
    "error", [ProcessKilledError, ProcessLostError, KeyboardInterrupt]
)
def test_no_command_resumes_a_run_that_does_not_exist_yet(tmp_path, error):
    with pytest.raises(error) as ended, naming_resume_command(tmp_path / "new"):
        raise error("Ended.")
    assert str(ended.value) == "Ended."


@pytest.mark.parametrize(
    ("saved", "kept"),
    [
        (None, "prepared corpus"),
        ("checkpoints/step-00000002", "last checkpoint"),
        ("stopped", "last checkpoint"),
    ],
)
def test_an_interruption_names_what_is_kept(tmp_path, saved, kept):
    (tmp_path / RUN_CONFIG).touch()
    if saved is not None:
        (tmp_path / saved).mkdir(parents=True)
    with (
        pytest.raises(TrainingStoppedError, match=f"^Interrupted; the {kept} is kept"),
        naming_resume_command(tmp_path),
    ):
        raise KeyboardInterrupt


def test_a_process_names_the_command_that_started_it(monkeypatch, tmp_path, capfd):
    (tmp_path / "transduce").touch()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "transduce"), "train"])
    name = "from transduce.cli.terminal import program; sys.stderr.write(program())"
    assert run(name, "pass") == 0
    assert capfd.readouterr().err == str(tmp_path / "transduce")


def test_a_killed_process_is_named():
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    message = r"Process 2 of 2 was killed \(SIGKILL\), and the others were ended"
    with pytest.raises(ProcessKilledError, match=message):
        run(END_WITH_ANOTHER, kill)


def test_the_cause_is_shown_even_if_another_process_ended_first(capfd):
    assert run(f"sys.exit({LEFT_BEHIND})", "time.sleep(0.3); " + say("why", 2)) == 2
    assert capfd.readouterr().err == "why"


@pytest.mark.parametrize("pause", ["", "time.sleep(0.3); "], ids=["first", "last"])
def test_a_message_of_all_processes_is_shown_once(capfd, pause):
    assert run(pause + say("why", 2), say("why", 2)) == 2
    assert capfd.readouterr().err == "why"


def test_a_lost_connection_without_a_cause_is_reported():
    with pytest.raises(ProcessLostError, match="the connection between two of them is"):
        run(END_WITH_ANOTHER, END_WITH_ANOTHER)


@pytest.fixture
def signal_at_start(monkeypatch):
    """Return a function that lets a signal arrive while a process starts."""

    def arrive(number: int) -> None:
        start = subprocess.Popen

        def interrupted(*arguments, **options):
            started = start(*arguments, **options)
            signal.raise_signal(number)
            return started

        monkeypatch.setattr(subprocess, "Popen", interrupted)

    return arrive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_while_a_process_starts_reaches_it(signal_at_start, number):
    signal_at_start(number)
    assert run("time.sleep(60)", "", count=1) == 128 + number


def test_ctrl_c_in_the_launcher_alone_reaches_a_process_that_starts(signal_at_start):
    signal_at_start(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run("time.sleep(60)", "", count=1)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 0)],
)
def test_processes_that_undo_their_work_end_the_launcher_by_its_own_signal(
    number, code, tmp_path
):
    undo = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
    ready = str(tmp_path / "ready")
    wait = f"while not os.path.exists({ready!r}): time.sleep(0.01)"
    end = f"os.kill(os.getppid(), {number:d}); time.sleep(60)"
    other = f"{undo}; open({ready!r}, 'w').close(); time.sleep(60)"
    interrupted = pytest.raises(KeyboardInterrupt) if code == 0 else nullcontext()
    with interrupted:
        assert run(f"{undo}\n{wait}\n{end}", other) == code


def test_a_process_that_explains_its_end_by_a_signal_gives_its_exit_code(capfd):
    told = "signal.signal(signal.SIGTERM, lambda *_: sys.exit('Stopped.'))"
    interrupt = "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    assert run(f"{told}; time.sleep(0.3); {interrupt}", "time.sleep(60)") == 1
    assert capfd.readouterr().err == "Stopped.\n"


def test_ctrl_c_interrupts_all_started_processes():
    """The terminal sends the signal to every process."""
    interrupted = """
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(5)
"""
    assert run(interrupted, interrupted) == 5


def test_zero_processes_are_refused():
    with pytest.raises(ConfigError, match="`--devices` must be at least 1, but is 0"):
        run("pass", "pass", count=0)


@pytest.mark.parametrize(
    ("devices", "rank", "raised"),
    [(1, 0, ProcessLostError), (1, 1, SystemExit), (2, 0, SystemExit)],
    ids=["the first by torchrun", "another by torchrun", "by us"],
)
def test_a_lost_connection_is_reported_by_one_process(
    devices, rank, raised, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    processes = ProcessGroup(rank=2 + rank, world_size=4)
    with pytest.raises(raised), errors_printed_once(processes, devices):
        raise ProcessLostError(LOST)


@pytest.mark.parametrize(
    ("rank", "raised"), [(0, TrainingStoppedError), (1, SystemExit)]
)
def test_the_first_process_reports_that_all_have_stopped(rank, raised):
    before = signal.getsignal(signal.SIGTERM)
    processes = ProcessGroup(rank=rank, world_size=2)
    try:
        with pytest.raises(raised), errors_printed_once(processes, 2):
            raise TrainingStoppedError("Stopped.")
        # The launcher's end may be noticed only now.
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
