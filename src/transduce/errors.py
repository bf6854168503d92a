"""Errors that the user can correct, and phrases that messages share.

TransduceError
  ConfigError          a setting is impossible
    OverwriteError       an output exists and is kept unless the caller allows otherwise
  DataError            a file cannot be used; the message names file and line
  CheckpointError      a checkpoint is missing or damaged
    VersionError         it is intact, but saved by another version of transduce
  AccessError          a file cannot be opened now; it may be intact
  RequestError         the model or the machine cannot do what was requested
    BusyError            not now, because of other requests (HTTP 429)
      OverdueError         the request waited for too long (HTTP 503)
    TooLongError         not in one request (HTTP 413)
    TimeLimitError       not within the time limit of a request (HTTP 504)
    LackOfMemoryError    not with the free memory; less at once may fit (HTTP 503)

A command ends with exit code 2 after any of them (`transduce.cli`). The server answers
with the HTTP status given above, with 500 for a `CheckpointError` or an `AccessError`,
as the files are the server's, or else with 400 (`refusal_of` in
`transduce.serving.admission`).

Each message is one sentence: what is wrong, where, and what to do. It reads right from
Python and from the command line. For a remedy that is an argument in Python and an
option of a command, a message has a phrase such as `OVERWRITE`, to which
`transduce.cli` adds the option. A whole command may be named as it is. More specific
errors stand beside the code that raises them: training that diverges or is stopped, a
worker process that is killed, an export whose proof fails.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

NO_MEMORY = r"can(?:no|')t allocate memory"
NO_GPU_MEMORY = r"out of memory|ALLOC(?:ATION)?_FAILED"
"""Patterns of PyTorch's plain errors for too little memory: on a CPU, and on a GPU
where CUDA, one of its libraries or Triton allocates it."""


class TransduceError(Exception):
    """Base class of all errors that the user can correct."""


class TransduceWarning(UserWarning):
    """A warning to the user, of one sentence or more."""


PACKAGE_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Beginning of the file names of the package's code."""


def warn_caller(message: str) -> None:
    """Give a `TransduceWarning` at the line that calls the package.

    Python shows a warning once for each line, and may filter warnings by the module.
    Both need the line of the program, however deep in the package the warning is given.
    """
    frame = caller = sys._getframe(1)
    while frame.f_back is not None:
        is_inside = frame.f_code.co_filename.startswith(PACKAGE_FOLDER)
        frame = frame.f_back
        if is_inside:
            caller = frame
    while caller.f_back is not None and _is_import(caller.f_code.co_filename):
        caller = caller.f_back
    warnings.warn_explicit(
        message,
        TransduceWarning,
        caller.f_code.co_filename,
        caller.f_lineno,
        module=caller.f_globals.get("__name__", "<unknown>"),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_import(name: str) -> bool:
    """Whether the code of this file name is Python's own, which imports modules."""
    return "importlib" in name and "_bootstrap" in name


class ConfigError(TransduceError):
    """A setting is impossible."""


class OverwriteError(ConfigError):
    """An output exists, and may be overwritten only if the caller allows it."""


class DataError(TransduceError):
    """A file cannot be used; the message names the file and, if known, the line."""


class CheckpointError(TransduceError):
    """A checkpoint is missing or damaged."""


class VersionError(CheckpointError):
    """A checkpoint is intact, but was saved by another version of transduce."""


class AccessError(TransduceError):
    """A file cannot be opened by this process; whether it is intact is unknown."""


class RequestError(TransduceError):
    """The model or the machine cannot do what was requested."""


class BusyError(RequestError):
    """The request cannot be served now, because of other requests."""


class OverdueError(BusyError):
    """The request waited longer than the queue allows."""


class TooLongError(RequestError):
    """The request is too long; split into parts, it could be served."""


class TimeLimitError(RequestError):
    """The request took longer than its time limit."""


class LackOfMemoryError(RequestError):
    """The native library lacks memory for its work; less at once may fit."""


OVERWRITE = "overwrite it"
RESUME = "resume that run"
START_OVER = "start the run over"
START_FROM_RUN = "start another run from the run's model"
NAME_START = "name the model to start from"
LIST_CORPORA = "list the corpora with their names in `corpora`"
"""Remedies that are an argument in Python and an option of a command."""

OWN_PACKAGE = "transduce"


def missing_package(task: str, package: str, extra: str) -> str:
    """Return the sentence for a missing package, with the command to install it."""
    return (
        f"{task} needs the package `{package}`, which is not installed; install it by "
        f"pip install '.[{extra}]' in the folder of transduce's source."
    )


@contextmanager
def packages_for(task: str, extra: str = "train") -> Iterator[None]:
    """Raise `RequestError` for a package that is missing for a task.

    The message names the package and the extra that installs it.
    """
    try:
        yield
    except ImportError as error:
        package = missing_in(error)
        if package is None:
            raise
        raise RequestError(missing_package(task, package, extra)) from None


def missing_in(error: BaseException | None) -> str | None:
    """Return the missing third-party package that caused an error, or None."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            package = error.name.partition(".")[0]
            return None if package == OWN_PACKAGE else package
        error = error.__cause__
    return None


SHOWN_CHARACTERS = 80
"""Maximum number of characters of a text in a `repr`."""
MAX_DIGITS = 6
"""Maximum number of digits after the point of a percentage."""
MINUTE, HOUR, DAY, WEEK = 60, 3_600, 86_400, 604_800


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Format a number with its noun: "1 line", "2 lines", "1,000 lines".

    `several` is the plural; the default appends "s" to the noun.
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def listed_lines(numbers: Sequence[int]) -> str:
    """Format the numbers of lines: "line 5", or "3 lines, the first of them line 5"."""
    first = f"line {numbers[0]:,}"
    if len(numbers) == 1:
        return first
    return f"{counted(len(numbers), 'line')}, the first of them {first}"


def unknown_name(
    kind: str,
    name: str,
    known: Iterable[str],
    listing: str = "",
    key: Callable[[str], str] = str.lower,
) -> str:
    """Return the sentence for a name that is not known, with the nearest that is.

    `listing` is a sentence that leads to the known names; the default names them all.
    Names are compared by `key`.
    """
    by_key = {key(each): each for each in known}
    listing = listing or f"known are {', '.join(by_key.values())}."
    near = get_close_matches(key(name), by_key, n=1)
    if near:
        capital = f"{listing[0].upper()}{listing[1:]}"
        listing = f"did you mean `{by_key[near[0]]}`? {capital}"
    return f"There is no {kind} `{name[:SHOWN_CHARACTERS]}`; {listing}"


def neither_or_both(*, are_given: bool) -> str:
    """Return the end of a message that exactly one of two options must be given."""
    return "both are; leave one out." if are_given else "neither is; add one."


def in_seconds(number: float) -> str:
    """Format a limit of time exactly: "1 second", "0.5 seconds"."""
    return f"{number:g} second{'' if number == 1 else 's'}"


def percent(share: float, digits: int = 0) -> str:
    """Format a share in percent: "0%" and "100%" mean none and all.

    Another share that would be rounded to these gets more digits: "0.2%", "99.7%".
    """
    for more in range(digits, MAX_DIGITS + 1):
        text = f"{share:.{more}%}"
        if float(text[:-1]) not in (0.0, 100.0) or share in (0.0, 1.0):
            return text
    return f"{share:.{digits}%}"


def duration(seconds: float) -> str:
    """Format a length of time in words, as exact as a forecast can be.

    Examples: "less than a minute", "1 minute", "3.5 hours", "12.0 days", "14 weeks".
    """
    if round(seconds / MINUTE) < 1:
        return "less than a minute"
    if seconds < HOUR - MINUTE / 2:
        return counted(round(seconds / MINUTE), "minute")
    for unit, name, limit in ((HOUR, "hour", 2 * DAY), (DAY, "day", 4 * WEEK)):
        if seconds < limit:
            text = f"{seconds / unit:.1f}"
            return f"1 {name}" if text == "1.0" else f"{text} {name}s"
    return counted(round(seconds / WEEK), "week")


def shortened(text: str) -> str:
    """Quote the beginning of a text in one line, as a `repr` does."""
    whole = len(text) <= SHOWN_CHARACTERS
    return repr(text if whole else f"{text[: SHOWN_CHARACTERS - 1]}…")
