"""Where commands write text to."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from transduce.errors import DataError
from transduce.interruption import unwound_on_termination

STANDARD_OUTPUT = Path("-")
"""The name that stands for it, as for most programs."""
DESCRIPTOR = 1
"""Its number as a file."""


@contextmanager
def writer(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when all is written.

    `DataError` if the file cannot be written, but not if it is a pipe whose reader
    has gone.
    """
    if output is None or output == STANDARD_OUTPUT or _is_standard_output(output):
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
    if output.exists() and not output.is_file():
        # A pipe or a device, which cannot be put in place of another.
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    # Else a link would be replaced, not what it leads to.
    output = Path(os.path.realpath(output))
    new = output.with_name(f".{output.name}.transduce-new")
    with unwound_on_termination():
        try:
            with new.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            new.replace(output)
        finally:
            new.unlink(missing_ok=True)


def _is_standard_output(output: Path) -> bool:
    """Whether it is a name of that, as /dev/stdout is.

    Such a file is not replaced: others may have written to it, or do so later.
    """
    try:
        return os.path.samestat(output.stat(), os.fstat(DESCRIPTOR))
    except OSError:
        return False
