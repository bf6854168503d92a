"""Where commands write text to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from transduce.errors import DataError
from transduce.interruption import unwound_on_termination

STREAMS = "/dev", "/proc"
"""Where names are those of streams, as /dev/stdout is, whatever they lead to."""


@contextmanager
def writer(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when all is written.

    `DataError` if the file cannot be written, but not if it is a pipe whose reader
    has gone.
    """
    if output is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr] # a text stream
        yield sys.stdout
    else:
        try:
            with _file_writer(output) as file:
                yield file
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DataError(
                f"{output}: cannot be written ({error.strerror})."
            ) from None


@contextmanager
def _file_writer(output: Path) -> Iterator[TextIO]:
    if _is_stream(output):
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    output = output.resolve()  # else a link would be replaced, not what it leads to
    new = output.with_name(f".{output.name}.transduce-new")
    with unwound_on_termination():
        try:
            with new.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            new.replace(output)
        finally:
            new.unlink(missing_ok=True)


def _is_stream(output: Path) -> bool:
    """Whether it is a pipe or a device, which no file can take the place of."""
    if any(map(output.absolute().is_relative_to, STREAMS)):
        return True
    return output.exists() and not output.is_file()
