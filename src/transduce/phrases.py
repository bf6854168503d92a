"""Phrases that many messages share: counts, durations, packages that are missing."""

MINUTE, HOUR, DAY, WEEK = 60, 3_600, 86_400, 604_800


def counted(number: int, noun: str, several: str | None = None) -> str:
    """A number with its noun: "1 line", "2 lines", "1,000 lines".

    `several` is the noun's plural, where that is not the noun and an "s".
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def duration(seconds: float) -> str:
    """A length of time in words, as exact as a forecast can be.

    Such as "less than a minute", "1 minute", "3.5 hours", "12.0 days", "14 weeks".
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


def missing_package(task: str, package: str, extra: str) -> str:
    """The sentence that says which package a task lacks, and how to install it."""
    return (
        f"{task} needs the package `{package}`, which is not installed; install it by "
        f"pip install '.[{extra}]' in the folder of transduce's source."
    )
