"""Files of commands: outputs, which only --force overwrites, and standard streams."""

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

from cyclopts import Parameter

from transduce.errors import ConfigError, DataError
from transduce.files import atomic_file
from transduce.files import require_new_folder as require_new_folder

Files = Annotated[
    tuple[Path, ...],
    Parameter(consume_multiple=True, negative="", show_default=False),
]
"""One file or several, one after the other."""
Force = Annotated[bool, Parameter(negative="")]
"""Option to overwrite an output that exists."""
STANDARD_OUTPUT = Path("-")
"""File name that stands for standard output."""
OUTPUT_LOST = 2
"""Exit code if output could not be written."""
OUTPUT_DESCRIPTOR, ERROR_DESCRIPTOR = 1, 2
"""File descriptors of the standard streams."""


def require_new(
    output: Path | None,
    *,
    force: bool,
    others: Iterable[Path | None] = (),
    called: str = "the input",
) -> None:
    """Raise `ConfigError` if an output would overwrite a file, or is a folder.

    Inputs and other outputs are never overwritten, older files only by force. Empty
    files, pipes and devices hold nothing to lose.
    """
    if output is None or output == STANDARD_OUTPUT:
        return
    if any(_is_same(output, other) for other in others if other is not None):
        raise ConfigError(
            f"{output}: the output must be another file than {called}, but is the "
            "same; choose another name."
        )
    if output.is_dir():
        raise DataError(f"{output}: cannot be written ({os.strerror(EISDIR)}).")
    if not force and _keeps_what_is_written(output) and output.stat().st_size > 0:
        raise ConfigError(
            f"{output}: the output must be new or empty, but is not; choose another "
            "name, or overwrite it with --force."
        )


@contextmanager
def writer(output: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears once it is complete.

    Raises `DataError` if the file cannot be written, but not for a pipe whose reader
    has gone.
    """
    if output is None or is_standard_output(output):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr] # a text stream
        yield sys.stdout
        return
    with unwritable_as_data_error(output), _file_writer(output) as file:
        yield file


@contextmanager
def unwritable_as_data_error(output: Path) -> Iterator[None]:
    """Turn errors of writing into `DataError`, except for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{output}: cannot be written ({error.strerror}).") from None


@contextmanager
def _file_writer(output: Path) -> Iterator[TextIO]:
    if not replaceable(output):
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    with (
        atomic_file(output) as new,
        new.open("w", encoding="utf-8", newline="\n") as file,
    ):
        yield file


def real_file(output: Path) -> Path:
    """Return the target of a symbolic link; any other path unchanged."""
    return Path(os.path.realpath(output)) if output.is_symlink() else output


def replaceable(output: Path) -> bool:
    """Return whether a file can replace a path; pipes and devices cannot be
    replaced."""
    return output.is_file() or not output.exists()


def is_standard_output(output: Path) -> bool:
    """Return whether a path names standard output, as - and /dev/stdout do.

    Such a file is not replaced, since other programs may also write to it.
    """
    if output == STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(output.stat(), os.fstat(OUTPUT_DESCRIPTOR))
    except OSError:
        return False


def _keeps_what_is_written(output: Path) -> bool:
    return output.is_file() and not is_standard_output(output)


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths name one file; two of one device do not count."""
    if one.exists() and other.exists():
        return one.samefile(other) and one.is_file()
    return os.path.realpath(one) == os.path.realpath(other)


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


def _nowhere(descriptor: int) -> TextIO:
    _discard(descriptor)
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def _discard(descriptor: int) -> None:
    """Redirect a file descriptor to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def print_message(message: str) -> None:
    """Print a final message on standard error, ignoring failures."""
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
        code = code if _is_written() else code or OUTPUT_LOST
        try:
            atexit._run_exitfuncs()
        except Exception as error:
            code = code or _exit_code_of(error)
        os._exit(code if _is_written() else code or OUTPUT_LOST)


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
    module = sys.modules.get("transduce.training.distributed")
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
