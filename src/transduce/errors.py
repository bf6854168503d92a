"""What can go wrong and is not our mistake: one sentence says what, where, what to do.

TransduceError
  ConfigError          a setting is impossible
  DataError            a file cannot be used: path and line are said
  CheckpointError      missing or damaged
    VersionError         ... or sound, but saved by another version of transduce
  RequestError         the caller asked for what the model or machine cannot do
    BusyError            ... now, because of what others have asked for
      OverdueError         ... which waited for too long
    TooLongError         ... at once
    TimeLimitError       ... in the time limit of a request

Some belong to what they end, and stand there: training that is stopped or diverges,
one process of several that is killed, an export's proof that fails, a reproduction that
is stopped or has failed runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class TransduceError(Exception):
    """The base of all errors a user can mend."""


class ConfigError(TransduceError):
    """A setting is impossible."""


class DataError(TransduceError):
    """A file cannot be used; the message says which, and the line if there is one."""


class CheckpointError(TransduceError):
    """A checkpoint is missing or damaged."""


class VersionError(CheckpointError):
    """A checkpoint is sound, but was saved by another version of transduce."""


class RequestError(TransduceError):
    """The caller asked for what the model or the machine cannot do."""


class BusyError(RequestError):
    """The caller asked for what could be done, but not now."""


class OverdueError(BusyError):
    """The request had no turn within the time that a request may wait."""


class TooLongError(RequestError):
    """The caller asked for more at once than is done; in parts it could be."""


class TimeLimitError(RequestError):
    """The request takes longer than a request may."""


SHOWN_CHARACTERS = 80
"""Most characters of a text that a `repr` shows."""
MINUTE, HOUR, DAY, WEEK = 60, 3_600, 86_400, 604_800


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Format a number with its noun: "1 line", "2 lines", "1,000 lines".

    `several` is the plural if it is not the noun with an "s".
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def in_seconds(number: float) -> str:
    """Format a limit of time exactly: "1 second", "0.5 seconds"."""
    return f"{number:g} second{'' if number == 1 else 's'}"


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
    """The beginning of a text in quotes, as a `repr` of one line shows it."""
    whole = len(text) <= SHOWN_CHARACTERS
    return repr(text if whole else f"{text[: SHOWN_CHARACTERS - 1]}…")


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
    """Package of others whose absence caused an error; None if there is none such."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            package = error.name.partition(".")[0]
            return None if package == OWN_PACKAGE else package
        error = error.__cause__
    return None
