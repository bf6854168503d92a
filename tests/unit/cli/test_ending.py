"""How the process of a command ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, os, sys
from transduce.cli import main
from transduce.cli.ending import ended_at_once_if_joined
from transduce.training.distributed import HAS_JOINED

class Aborting:
    def __del__(self):
        os.abort()

kept = Aborting()
atexit.register(print, "written", end="")
with ended_at_once_if_joined():
    if {has_joined}:
        HAS_JOINED.set()
    print("done", end=" ")
    {work}
"""


def ended(*, has_joined: bool, work: str) -> "subprocess.CompletedProcess[str]":
    """In a process that is aborted while its interpreter goes down."""
    script = SCRIPT.format(has_joined=has_joined, work=work)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [
        ("pass", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('so')", 1, "so\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("main(['train', '--preset', 'none'])", 2, "--out requires an argument"),
    ],
)
def test_a_joined_process_ends_before_it_can_be_aborted(
    work: str, code: int, told: str
) -> None:
    result = ended(has_joined=True, work=work)
    assert result.returncode == code
    assert result.stdout == "done written"
    assert told in result.stderr
    assert bool(told) == bool(result.stderr)


def test_another_ends_as_it_would() -> None:
    result = ended(has_joined=False, work="sys.exit(2)")
    assert result.returncode == -signal.SIGABRT
    assert result.stdout == "done written"


def test_one_that_had_joined_before_goes_on() -> None:
    work = "\n    ".join(
        ["with ended_at_once_if_joined():", "    pass", "print('on', end=' ')"]
    )
    result = ended(has_joined=True, work=work)
    assert result.stdout == "done on written"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_output_that_cannot_be_written_is_no_success() -> None:
    script = SCRIPT.format(has_joined=True, work="pass")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # else it is told before
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert "The output: cannot be written (No space left on device)" in result.stderr
