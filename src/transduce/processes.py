"""Python processes that this one starts, and that work for it."""

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

from transduce.machine import READ_BY_PYTORCH
from transduce.signals import SCHEDULER_SIGNALS, terminations

PYTHON = (sys.executable, "-P")
"""Beginning of a command that runs Python, without modules of the current folder."""


def environment_of_python() -> dict[str, str]:
    """Return the environment in which `PYTHON` finds this package."""
    package = str(Path(__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
EXIT_SECONDS = 10
"""Seconds to wait for the exit code of a process that has closed its pipe."""


class WorkerLostError(Exception):
    """A worker process has ended; the message completes a sentence: "was killed"."""


class WorkerProcess(Generic[Arguments, Result]):
    """Process that applies a function to arguments, one call after the other.

    The function, its arguments and its results are pickled. Unlike the processes of
    `multiprocessing` that are not forks, it does not run the user's script again.
    """

    def __init__(
        self, function: Callable[Arguments, Result], niceness: int = 0
    ) -> None:
        """Start the process; raise `OSError` if the system does not allow it."""
        self._process = subprocess.Popen(
            [*PYTHON, "-c", f"from {__name__} import serve; serve({niceness})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # signals of the terminal do not reach it
            env={
                **environment_of_python(),
                "TOKENIZERS_PARALLELISM": "false",
                **dict.fromkeys(READ_BY_PYTORCH, "1"),
            },
        )
        # Sent with the first arguments.
        self._function: Callable[Arguments, Result] | None = function
        self.has_worked = False

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Return the function's result; `WorkerLostError` if the process has ended.

        An exception of the function is raised here.
        """
        tasks, results = self._process.stdin, self._process.stdout
        assert tasks is not None
        assert results is not None
        try:
            if self._function is not None:
                pickle.dump(self._function, tasks)
                self._function = None
            pickle.dump((args, kwargs), tasks)
            tasks.flush()
            result: Result | Exception = pickle.load(results)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            # The pipe is closed, maybe by `end`.
            raise WorkerLostError(self._ending()) from None
        self.has_worked = True
        if isinstance(result, Exception):
            raise result
        return result

    def _ending(self) -> str:
        """Describe how the process has ended."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "no longer answers"
        return described_exit(code)

    def end(self) -> None:
        """End the process, even within a call."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def described_exit(code: int) -> str:
    """Describe how a process has ended, by its exit code or the signal -code."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == getattr(signal, "SIGKILL", None):
        return "was killed, as happens when memory runs out"
    return f"was ended by signal {-code}"


def serve(niceness: int) -> None:
    """Apply a function to the arguments that come from standard input."""
    # A cluster sends signals to all processes; only the first one handles them.
    for number in (signal.SIGINT, *terminations(), *SCHEDULER_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(niceness)
    tasks = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Text that a library prints must not mix with the results.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # The first process has ended if there is no further task.
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        function = pickle.load(tasks)
        while True:
            args, kwargs = pickle.load(tasks)
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # raised again in the first process
                error.add_note(traceback.format_exc())
                result = error
            pickle.dump(result, results)
            results.flush()
    os._exit(0)  # without another attempt to write to the first process
