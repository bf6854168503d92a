"""Start the processes of a run on this machine, and end them together."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from transduce.device import num_cores
from transduce.errors import ConfigError, TransduceError
from transduce.training.distributed import GONE

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
"""For the others to end by themselves when one has ended badly."""


class ProcessKilledError(TransduceError):
    """A process of the run was killed from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    """What it says on standard error, if it is not the first."""

    @property
    def has_failed(self) -> bool:
        return self.process.poll() not in (None, 0)


def run_processes(command: Sequence[str], count: int) -> int:
    """Run a command as so many processes that know of each other; the exit code.

    They find each other by the variables of torchrun. If one ends badly the others are
    ended too: `ProcessKilledError` if it was killed, else its exit code. The first one
    prints; what others say is shown only if they are the cause.
    """
    if count < 1:
        raise ConfigError(f"`--devices` must be at least 1, but is {count}.")
    with ExitStack() as stack:
        port = _free_port()
        workers: list[_Worker] = []
        with _signals_passed_on(workers):
            try:
                for rank in range(count):
                    errors = stack.enter_context(tempfile.TemporaryFile())
                    workers.append(_start(command, rank, count, port, errors))
                failed = _wait(workers)
            finally:
                _end(workers)
        return _exit_code(workers, failed)


def _start(
    command: Sequence[str], rank: int, count: int, port: int, errors: IO[bytes]
) -> _Worker:
    cores = num_cores() or count
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    threads = {"OMP_NUM_THREADS": str(max(cores // count, 1))}
    process = subprocess.Popen(
        command,
        env={**threads, **os.environ, **variables},
        stderr=None if rank == 0 else errors,
    )
    return _Worker(process=process, errors=errors)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _signals_passed_on(workers: Sequence[_Worker]) -> Iterator[None]:
    """Ctrl-C reaches the workers by the terminal, and SIGTERM through here."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        for worker in workers:
            worker.process.terminate()

    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: terminate}
    before = {
        number: signal.signal(number, handler)  # type: ignore[arg-type] # either kind
        for number, handler in handlers.items()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(workers: Sequence[_Worker]) -> int | None:
    """Until all are done, or one has failed; its rank."""
    while any(worker.process.poll() is None for worker in workers):
        for rank, worker in enumerate(workers):
            if worker.has_failed:
                return rank
        time.sleep(POLL_SECONDS)
    failed = (rank for rank, worker in enumerate(workers) if worker.has_failed)
    return next(failed, None)


def _end(workers: Sequence[_Worker]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _exit_code(workers: Sequence[_Worker], failed: int | None) -> int:
    if failed is None:
        return 0
    code = workers[failed].process.returncode
    if code < 0:
        raise ProcessKilledError(
            f"All processes must go on together, but process {failed + 1} of "
            f"{len(workers)} was killed ({signal.Signals(-code).name}), and the others "
            "were ended."
        )
    for worker in workers[1:]:
        worker.errors.seek(0)
        said = worker.errors.read()
        if GONE.encode() not in said:
            os.write(2, said)
    return int(code)
