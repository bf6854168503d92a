"""Processes of a run on this machine: started and ended together, and resumed."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from transduce.cli import USER_ERROR
from transduce.cli.terminal import PROGRAM, program
from transduce.errors import TransduceError
from transduce.experiments.run_folder import RUN_CONFIG
from transduce.machine import num_cores, threads_of_each
from transduce.model_folder import newest_first
from transduce.processes import environment_of_python
from transduce.settings import require_between
from transduce.signals import end_with_parent, signals_held, terminations
from transduce.training.data_parallel import (
    LOST,
    ProcessGroup,
    ProcessLostError,
    is_distributed,
    local_rank,
)
from transduce.training.trainer import TrainingStoppedError

POLL_SECONDS = 0.1
MAX_DEVICES = 16
"""Maximum number of processes on a machine."""
GRACE_SECONDS = 10.0
"""Seconds for other processes to end by themselves after one has failed."""
LEFT_BEHIND = 3
"""Exit code of a process that ends because another one has ended."""
LAUNCHER = "TRANSDUCE_LAUNCHER"
"""Environment variable with the process id of a worker's launcher."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets for its workers."""


class ProcessKilledError(TransduceError):
    """A process of the run was killed from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    """Captured standard error; empty for the first process, which prints its own."""

    @property
    def has_failed(self) -> bool:
        return self.process.poll() not in (None, 0)

    @property
    def is_at_fault(self) -> bool:
        """Whether it failed by itself."""
        return self.process.returncode > 0 and self.process.returncode != LEFT_BEHIND


@contextmanager
def errors_printed_once(processes: ProcessGroup, devices: int) -> Iterator[None]:
    """End the processes of a run so that only one of them prints the error."""
    try:
        yield
    except TrainingStoppedError:
        # All stop as soon as one of them has noticed that the launcher was killed. The
        # first may notice it only now, and still has to print where the run stopped.
        if processes.world_size > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if processes.is_first:
            raise
        sys.exit(USER_ERROR)
    except ProcessLostError:
        # With one device here, torchrun or similar started the processes. One process
        # of each machine prints, since the first may be lost with its machine.
        if devices == 1 and local_rank() == 0:
            raise
        sys.exit(LEFT_BEHIND)


def end_with_launcher() -> None:
    """Save and stop this worker if its launcher is killed.

    Otherwise it would continue, and the run could not be resumed.
    """
    if not is_distributed():
        return
    if launcher := os.environ.get(LAUNCHER):
        end_with_parent(int(launcher))
    elif TORCHRUN in os.environ:
        end_with_parent(os.getppid())


def run_processes(command: Sequence[str], count: int) -> int:
    """Run a command as `count` processes of one group; return the exit code.

    The processes connect by torchrun's environment variables. If one fails, the others
    are ended, and its exit code is returned. Raises `ProcessKilledError` if a process
    was killed, and `ProcessLostError` for an unknown cause. The first process prints
    its errors; the errors of another are printed only if it failed first. A signal that
    ends the processes ends this one alike: Ctrl-C raises `KeyboardInterrupt`, and the
    exit code for signal n is 128 + n.
    """
    require_between("--devices", count, 1, max(num_cores(), MAX_DEVICES))
    with ExitStack() as stack:
        port = _free_port()
        workers: list[_Worker] = []
        with _signals_passed_on(workers) as arrived:
            try:
                with signals_held():  # one that comes now must reach all workers
                    for rank in range(count):
                        errors = stack.enter_context(tempfile.TemporaryFile())
                        workers.append(_start(command, rank, count, port, errors))
                failed = _wait(workers)
            finally:
                _end(workers)
        return _exit_code(workers, failed, arrived)


def _start(
    command: Sequence[str], rank: int, count: int, port: int, errors: IO[bytes]
) -> _Worker:
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHER: str(os.getpid()),
        PROGRAM: program(),
    }
    process = subprocess.Popen(
        command,
        env={**environment_of_python(), **threads_of_each(count), **variables},
        stderr=None if rank == 0 else errors,
    )
    return _Worker(process=process, errors=errors)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _signals_passed_on(workers: Sequence[_Worker]) -> Iterator[list[int]]:
    """Forward signals to the workers as SIGTERM; yield those that have arrived.

    The terminal sends Ctrl-C to the workers, too, but a program that runs this one may
    send it here alone. SIGTERM soon after Ctrl-C changes nothing for a worker.
    """
    arrived: list[int] = []

    def terminate(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)
        for worker in workers:
            worker.process.terminate()

    numbers = (signal.SIGINT, *terminations())
    before = {number: signal.signal(number, terminate) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until all are done or some have failed; return the failed ones."""
    while True:
        is_over = all(worker.process.poll() is not None for worker in workers)
        failed = [worker for worker in workers if worker.has_failed]
        if is_over or failed:
            return failed
        time.sleep(POLL_SECONDS)


def _end(workers: Sequence[_Worker]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _exit_code(
    workers: Sequence[_Worker], failed: Sequence[_Worker], arrived: Sequence[int]
) -> int:
    """Return the exit code, or raise an error, for the processes that failed first.

    `arrived` are the signals that were forwarded to all processes.
    """
    if not failed:
        return 0
    forwarded = {-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGTERM}
    expected = forwarded if arrived else set()
    for number, worker in enumerate(workers, start=1):
        code = worker.process.returncode
        if worker in failed and code < 0 and code not in expected:
            raise ProcessKilledError(
                f"Process {number} of {len(workers)} was killed "
                f"({signal.Signals(-code).name}), and the others were ended."
            )
    cause = next((worker for worker in workers if worker.is_at_fault), None)
    causes = failed if cause is None else [cause]
    if expected.intersection(each.process.returncode for each in causes):
        if arrived[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return 128 + arrived[0]
    if cause is None:
        raise ProcessLostError(LOST)
    if cause is not workers[0]:
        cause.errors.seek(0)
        os.write(2, cause.errors.read())
    return cause.process.returncode


@contextmanager
def naming_resume_command(
    out: Path, device: str = "auto", devices: int = 1, *, tensorboard: bool = False
) -> Iterator[None]:
    """Add the command that resumes a run to the error that interrupted it."""
    named = [f"--out={out}"] if str(out).startswith("-") else ["--out", str(out)]
    options = ["train", *named, "--resume"]
    if device != "auto":
        options += ["--device", device]
    if devices != 1:
        options += ["--devices", str(devices)]
    if tensorboard:
        options += ["--tensorboard"]
    how = f"Continue with: {program()} {shlex.join(options)}"
    try:
        yield
    except TrainingStoppedError as error:
        raise type(error)(f"{error} {how}") from None
    except (ProcessKilledError, ProcessLostError, KeyboardInterrupt) as error:
        if not (out / RUN_CONFIG).is_file():
            raise  # before the run existed
        if not isinstance(error, KeyboardInterrupt):
            raise type(error)(f"{error} {how}") from None
        kept = "last checkpoint" if newest_first(out) else "prepared corpus"
        raise TrainingStoppedError(f"Interrupted; the {kept} is kept. {how}") from None
