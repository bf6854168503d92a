"""Output files and folders of commands; only --force overwrites."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from transduce.cli.ending import STANDARD_OUTPUT as DESCRIPTOR
from transduce.errors import ConfigError, DataError

STANDARD_OUTPUT = Path("-")
"""File name that stands for standard output."""

Force = Annotated[bool, Parameter(negative="")]
"""Option to overwrite an output that exists."""


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


def require_new_folder(out: Path, *, force: bool, holding: str) -> None:
    """Raise `ConfigError` if an output folder holds files that would be lost.

    Even force overwrites only a folder that the same command wrote: one with a file
    named `holding`, and without folders.
    """
    if not _exists(out):
        return
    if not out.is_dir():
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is a file; choose "
            "another name."
        )
    there = sorted(out.iterdir())
    if not there:
        return
    if not force:
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is not; choose "
            "another, or overwrite it with --force."
        )
    if not (out / holding).is_file() or any(each.is_dir() for each in there):
        raise ConfigError(
            f"{out}: --force overwrites only what the same command wrote, but the "
            f"folder has other content (folders in it, or no {holding}); choose "
            "another."
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
    with told_if_unwritable(output), _file_writer(output) as file:
        yield file


@contextmanager
def told_if_unwritable(output: Path) -> Iterator[None]:
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
    output = real_file(output)
    new = output.with_name(f".{output.name}.transduce-new")
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        new.replace(output)
    finally:
        new.unlink(missing_ok=True)


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
        return os.path.samestat(output.stat(), os.fstat(DESCRIPTOR))
    except OSError:
        return False


def _keeps_what_is_written(output: Path) -> bool:
    return output.is_file() and not is_standard_output(output)


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths name one file; two of one device do not count."""
    if one.exists() and other.exists():
        return one.samefile(other) and one.is_file()
    return os.path.realpath(one) == os.path.realpath(other)
