"""End of a command's process, and closed or lost output streams."""

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

OUTPUT_LOST = 2
"""Exit code if what was said could not be written."""
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
"""File descriptors of the standard streams."""


def open_closed_streams() -> bool:
    """Open closed standard streams on the null device; whether output was closed.

    For a closed stream Python has None. The next file to be opened would get the
    stream's descriptor, and libraries would write into it.
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
    """Print a last message on standard error, unless that cannot be written."""
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
        """Stream on which the failure is reported; None if it is not."""

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
    """Go on after a terminal has closed, or the reader of a pipe has ended.

    Losing standard error never ends a command. Losing standard output does, unless it
    is only a display of work whose results are in files.
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
    """End with what is in here, if it made this process one of several.

    PyTorch keeps gloo's threads as long as the process; one that is still at something
    while the interpreter goes down may abort it, and so make a failure of a success.
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
    """Whether all that was said has been taken, or nobody wants it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return True  # the reader has gone, as `head` does
    except OSError as error:
        say_on_errors(f"transduce: The output: cannot be written ({error.strerror}).")
        discard_output()
        return False
    return True


def discard_output() -> None:
    """Keep Python from trying to write the rest when it ends, and failing again."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _has_joined() -> bool:
    """What has not been imported has joined nothing, and importing it takes long."""
    module = sys.modules.get("transduce.training.distributed")
    return module is not None and module.HAS_JOINED.is_set()


def _told(error: BaseException) -> int:
    """The exit code, after what Python tells of such an end."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
