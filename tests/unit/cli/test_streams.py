"""The end of a command's process."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fork_server import ForkServer, Result, fork_server
from transduce.cli import system_error_sentence
from transduce.cli.terminal import discard_output, lasting_streams

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, os, sys
from transduce.cli import main
from transduce.cli.terminal import exiting_at_once_if_distributed
from transduce.training.data_parallel import HAS_PROCESS_GROUP

class Aborting:
    def __del__(self):
        os.abort()

kept = Aborting()
atexit.register(print, "written", end="")
with exiting_at_once_if_distributed():
    if {has_joined}:
        HAS_PROCESS_GROUP.set()
    print("done", end=" ")
    {work}
"""


Ended = Callable[[bool, str], Result]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with fork_server(modules=("transduce.training.data_parallel",)) as server:
        yield server


@pytest.fixture
def ended(server: ForkServer) -> Ended:
    """Function that runs work in a process that aborts during interpreter shutdown."""
    return lambda has_joined, work: server.run(
        SCRIPT.format(has_joined=has_joined, work=work)
    )


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [
        ("pass", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('so')", 1, "so\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("main(['train', '--preset', 'none'])", 2, "--out must be given."),
    ],
)
def test_a_joined_process_ends_before_the_shutdown_can_abort(
    ended: Ended, work: str, code: int, told: str
) -> None:
    result = ended(True, work)
    assert result.returncode == code
    assert result.stdout == "done written"
    assert told in result.stderr
    assert bool(told) == bool(result.stderr)


def test_a_process_that_has_not_joined_ends_as_usual(ended: Ended) -> None:
    result = ended(False, "sys.exit(2)")
    assert result.returncode == -signal.SIGABRT
    assert result.stdout == "done written"


def test_a_process_that_joined_before_the_block_continues(ended: Ended) -> None:
    work = "\n    ".join(
        ["with exiting_at_once_if_distributed():", "    pass", "print('on', end=' ')"]
    )
    result = ended(True, work)
    assert result.stdout == "done on written"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_unwritable_output_gives_a_failing_exit_code() -> None:
    script = SCRIPT.format(has_joined=True, work="pass")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # else the error comes earlier
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert "The output: cannot be written (No space left on device)" in result.stderr


@contextmanager
def unread() -> Iterator[int]:
    """Writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full() -> Iterator[int]:
    """File on a full disk."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


Lost = Callable[[], "contextmanager[int]"]


@pytest.mark.parametrize(
    ("lost", "reason"),
    [(unread, "Broken pipe"), (full, "No space left on device")],
)
def test_a_lost_display_is_reported_once_and_the_command_continues(
    lost: Lost, reason: str, capsys, monkeypatch
) -> None:
    with lost() as descriptor, open(descriptor, "w", closefd=False) as stream:
        monkeypatch.setattr("sys.stdout", stream)
        with lasting_streams(is_output_progress=True):
            for _ in range(3):
                print("said", flush=True)
                sys.stdout.writelines(["said\n"])
        assert sys.stdout is stream
        os.write(descriptor, b"libraries may go on writing, too")
    assert capsys.readouterr().err == (
        f"Warning: Standard output cannot be written ({reason}); the command continues "
        "without it.\n"
    )


def test_a_command_continues_without_standard_error(capsys, monkeypatch) -> None:
    with unread() as descriptor, open(descriptor, "w", closefd=False) as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with lasting_streams(is_output_progress=False):
            print("said", file=sys.stderr, flush=True)
            print("done")
    assert capsys.readouterr().out == "done\n"


def test_a_command_continues_without_both_streams(monkeypatch) -> None:
    with unread() as descriptor, open(descriptor, "w", closefd=False) as stream:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.stderr", stream)
        with lasting_streams(is_output_progress=True):
            print("said", flush=True)
            print("said", file=sys.stderr, flush=True)


def test_a_lost_result_ends_the_command(monkeypatch) -> None:
    with unread() as descriptor, open(descriptor, "w", closefd=False) as stream:
        monkeypatch.setattr("sys.stdout", stream)
        with (
            pytest.raises(BrokenPipeError),
            lasting_streams(is_output_progress=False),
        ):
            print("said")  # fails when it is flushed at the end
        discard_output()


def test_modules_truncated_by_a_full_disk_are_named(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def quantize() -> subprocess.CompletedProcess[str]:
        given = ("quantize", "none", "--out", "new")  # without PyTorch
        return subprocess.run(
            [sys.executable, "-m", "transduce", *given],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert "none: must be" in quantize().stderr
    [compiled] = tmp_path.rglob("transduce/cli/quantize.*.pyc")
    compiled.write_bytes(compiled.read_bytes()[:100])
    done = quantize()
    assert done.returncode == 2
    assert done.stderr.startswith("transduce: Python's compiled modules are cut short")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_is_not_blamed_for_the_number_of_open_files() -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "PIL/BmpImagePlugin.py")
    assert system_error_sentence(error) == (
        "Too many files are open; raise the limit of open files (ulimit -n) and try "
        "again."
    )


def test_a_missing_folder_for_temporary_files_is_named_as_such(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["missing"])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    assert system_error_sentence(caught.value) == (
        "There must be a folder for temporary files, but none can be written; free "
        "some space, or name a folder by the environment variable TMPDIR."
    )
