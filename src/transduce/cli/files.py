"""Files of commands: options that name them, and output, replaced only by --force."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from errno import EISDIR, ENOENT
from pathlib import Path
from typing import TextIO

from transduce.cli.terminal import OUTPUT_DESCRIPTOR, plain_console, table_console
from transduce.errors import OVERWRITE, ConfigError, DataError, TransduceError
from transduce.files import (
    atomic_directory,
    atomic_file,
    is_disk_full,
    real_file,
    require_place,
    without_infinity,
)
from transduce.report.report import Report, as_page, write_markdown
from transduce.report.terminal import show

Files = tuple[Path, ...]
"""One file or several, one after the other."""
STANDARD_OUTPUT = Path("-")
"""File name that stands for standard output."""


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
    if not real_file(output).parent.exists():
        raise DataError(f"{output}: cannot be written ({os.strerror(ENOENT)}).")
    if replaceable(output) and not is_standard_output(output):
        require_place(output)
    if not force and _is_regular_file(output) and output.stat().st_size > 0:
        raise ConfigError(
            f"{output}: the output must be new or empty, but is not; choose another "
            f"name, or {OVERWRITE}."
        )


def require_one_standard_output(outputs: Iterable[Path | None]) -> None:
    """Raise `ConfigError` if standard output stands for several outputs."""
    named = [each for each in outputs if each is not None and str(each) != os.devnull]
    if sum(map(is_standard_output, named)) > 1:
        raise ConfigError(
            "Standard output must stand for one output, but stands for several, which "
            "would be mixed; name a file for one of them."
        )


@contextmanager
def writer(output: Path | None, *, overwrite: bool) -> Iterator[TextIO]:
    """Open standard output, or a file that appears once it is complete.

    Raises `DataError` if the file cannot be written, but not for a pipe whose reader
    has gone, and `ConfigError` if another command has written it meanwhile and must not
    be overwritten.
    """
    if output is None or is_standard_output(output):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr] # a text stream
        yield sys.stdout
        return
    with unwritable_as_data_error(output), ExitStack() as stack:
        path = output
        if replaceable(output):
            path = stack.enter_context(atomic_file(output, overwrite=overwrite))
        yield stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))


@contextmanager
def unwritable_as_data_error(output: Path) -> Iterator[None]:
    """Turn errors of writing into `DataError`, except for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "; free some space and try again" if is_disk_full(error) else ""
        raise DataError(
            f"{output}: cannot be written ({error.strerror}){remedy}."
        ) from None


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


def _is_regular_file(output: Path) -> bool:
    return output.is_file() and not is_standard_output(output)


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths name one file; two paths of one device do not count."""
    if one.exists() and other.exists():
        return one.samefile(other) and one.is_file()
    return os.path.realpath(one) == os.path.realpath(other)


class ReportInterruptedError(TransduceError):
    """The work for a report was stopped by the user before the report was written."""


@contextmanager
def lost_if_interrupted(out: Path) -> Iterator[None]:
    """Report at Ctrl-C that the work for the report in a folder starts anew."""
    try:
        yield
    except KeyboardInterrupt:
        raise ReportInterruptedError(
            f"Interrupted. Nothing was written to {out}: the same command starts from "
            "the beginning."
        ) from None


def finish_report(
    report: Report,
    figures: Mapping[str, object],
    out: Path,
    command: str,
    *,
    overwrite: bool,
) -> None:
    """Print the report, and write it as Markdown, page and JSON.

    The last word of the command names the files. An older report is replaced only with
    `overwrite`. The report is printed even if it cannot be written, since it may be the
    work of hours.
    """
    name = command.split()[-1]
    console = table_console()
    try:
        with atomic_directory(out, command, overwrite=overwrite) as folder:
            write_markdown(report, folder, name)
            (folder / f"{name}.html").write_text(as_page(report), encoding="utf-8")
            text = json.dumps(without_infinity(figures), indent=2) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    finally:
        show(report, console)
    plain_console().print(
        f"The report is in {out}: {name}.md, {name}.html, {name}.json."
    )
