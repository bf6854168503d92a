"""End of the process, and closed or lost output streams."""

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

OUTPUT_LOST = 2
"""Exit code if output could not be written."""
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
"""File descriptors of the standard streams."""


def open_closed_streams() -> bool:
    """Open closed standard streams on the null device; return whether output was
    closed.

    Python sets a closed stream to None. The next opened file would get the stream's
    descriptor, and libraries would write into it.
    """
    is_closed = sys.stdout is None
    if sys.stderr is None:
        sys.stderr = _nowhere(STANDARD_ERROR)
    if is_closed:
        sys.stdout = _nowhere(STANDARD_OUTPUT)
    return is_closed


def _nowhere(descriptor: int) -> TextIO:
    _discard(descriptor)
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def _discard(descriptor: int) -> None:
    """Redirect a file descriptor to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def say_on_errors(message: str) -> None:
    """Print a final message on standard error, ignoring failures."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _discard(STANDARD_ERROR)


class _LastingStream:
    """Stream that discards its text once writing has failed."""

    def __init__(self, stream: TextIO, name: str, errors: TextIO | None) -> None:
        self._stream = stream
        self._name = name
        self._errors = errors
        """Stream on which the failure is reported; None for no report."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        errors, self._errors = self._errors, None
        _discard(self._stream.fileno())
        if errors is not None:
            print(
                f"Warning: {self._name} cannot be written ({error.strerror}); the "
                "command goes on without it.",
                file=errors,
                flush=True,
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams(*, is_output_display: bool) -> Iterator[None]:
    """Continue after the terminal or the reader of a pipe has closed.

    The loss of standard error never ends a command. The loss of standard output does,
    unless it only displays progress of work whose results are in files.
    """
    output, errors = sys.stdout, sys.stderr
    lasting_errors = cast(TextIO, _LastingStream(errors, "Standard error", None))
    sys.stderr = lasting_errors
    if is_output_display:
        lasting = _LastingStream(output, "Standard output", lasting_errors)
        sys.stdout = cast(TextIO, lasting)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = output, errors


@contextmanager
def ended_at_once_if_joined() -> Iterator[None]:
    """Exit immediately after the block if it joined a process group.

    PyTorch keeps gloo's threads until the process ends. A thread that still runs during
    the interpreter's shutdown may abort it, which turns success into failure.
    """
    if _has_joined():
        yield
        return
    code = 0
    try:
        yield
    except BaseException as error:
        if not _has_joined():
            raise
        code = _told(error)
    if _has_joined():
        code = code if _is_written() else code or OUTPUT_LOST
        try:
            atexit._run_exitfuncs()
        except Exception as error:
            code = code or _told(error)
        os._exit(code if _is_written() else code or OUTPUT_LOST)


def _is_written() -> bool:
    """Flush the output; return whether it was written, or its reader has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return True  # the reader has gone, as with `head`
    except OSError as error:
        say_on_errors(f"transduce: The output: cannot be written ({error.strerror}).")
        discard_output()
        return False
    return True


def discard_output() -> None:
    """Discard unwritten output, so that Python does not fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _has_joined() -> bool:
    """Return whether this process joined a group, without importing PyTorch."""
    module = sys.modules.get("transduce.training.distributed")
    return module is not None and module.HAS_PROCESS_GROUP.is_set()


def _told(error: BaseException) -> int:
    """Print what Python prints for an exception; return the exit code."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
