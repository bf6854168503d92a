"""Standard streams: closed ones, lost ones, and messages on standard error."""

import atexit
import codecs
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, NoReturn, TextIO, cast

from transduce.errors import TransduceWarning

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would obey."""


OUTPUT_LOST = 2
"""Exit code if output could not be written."""


OUTPUT_DESCRIPTOR, ERROR_DESCRIPTOR = 1, 2
"""File descriptors of the standard streams."""


def open_closed_streams() -> bool:
    """Open closed standard streams on the null device; return whether output was
    closed.

    Python sets a closed stream to None. The next opened file would get the stream's
    descriptor, and libraries would write into it.
    """
    is_closed = sys.stdout is None
    if sys.stderr is None:
        sys.stderr = _nowhere(ERROR_DESCRIPTOR)
    if is_closed:
        sys.stdout = _nowhere(OUTPUT_DESCRIPTOR)
    return is_closed


def escape_output() -> None:
    """Let standard output escape the characters that its encoding lacks.

    The names of files need not be UTF-8, nor need the terminal be.
    """
    output = sys.stdout
    if not isinstance(output, TextIOWrapper):
        return
    # In the locale C, Python's handler passes the bytes of names through, but refuses
    # letters outside ASCII.
    lacks_letters = codecs.lookup(output.encoding).name != "utf-8"
    if output.errors == "strict" or (
        output.errors == "surrogateescape" and lacks_letters
    ):
        output.reconfigure(errors="backslashreplace")


def _nowhere(descriptor: int) -> TextIO:
    _discard(descriptor)
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def _discard(descriptor: int) -> None:
    """Redirect a file descriptor to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print the package's warnings by `warn`, without the code that gives them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", TransduceWarning)
        show_other = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *place: Any, **to: Any
        ) -> None:
            if issubclass(category, TransduceWarning):
                warn(message)
            else:
                show_other(message, category, *place, **to)

        warnings.showwarning = show
        yield


def warn(message: object) -> None:
    """Print a warning on standard error, like a message."""
    print_message(f"Warning: {message}")


def print_message(message: str) -> None:
    """Print a message on one line of standard error, ignoring failures.

    Control characters, such as a line end in the name of a file, are escaped.
    """
    message = CONTROL.sub(lambda found: repr(found[0])[1:-1], message)
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _discard(ERROR_DESCRIPTOR)


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
                "command continues without it.",
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
def exiting_at_once_if_distributed() -> Iterator[None]:
    """Exit immediately after the block if it joined a process group.

    PyTorch keeps gloo's threads until the process ends. A thread that still runs during
    the interpreter's shutdown may abort it, which turns success into failure.
    """
    if _is_distributed():
        yield
        return
    code = 0
    try:
        yield
    except BaseException as error:
        if not _is_distributed():
            raise
        code = _exit_code_of(error)
    if _is_distributed():
        _exit_at_once(code)


def _exit_at_once(code: int) -> NoReturn:
    """End the process without the interpreter's shutdown, but with exit functions."""
    code = _code_after_flush(code)
    try:
        atexit._run_exitfuncs()
    except Exception as error:
        code = code or _exit_code_of(error)
    os._exit(_code_after_flush(code))


def _code_after_flush(code: int) -> int:
    """Flush the output; return the exit code, which tells if output was lost."""
    return code if _is_written() else code or OUTPUT_LOST


def _is_written() -> bool:
    """Flush the output; return whether it was written, or its reader has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return True  # the reader has gone, as with `head`
    except OSError as error:
        print_message(f"transduce: The output: cannot be written ({error.strerror}).")
        discard_output()
        return False
    return True


def discard_output() -> None:
    """Discard unwritten output, so that Python does not fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _is_distributed() -> bool:
    """Return whether this process joined a group, without importing PyTorch."""
    module = sys.modules.get("transduce.training.data_parallel")
    return module is not None and module.HAS_PROCESS_GROUP.is_set()


def _exit_code_of(error: BaseException) -> int:
    """Print what Python prints for an exception; return the exit code."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
