"""Phrases that messages share: numbers with nouns, lengths of time, quotations."""

SHOWN_CHARACTERS = 80
"""Maximum number of characters of a text in a `repr`."""
MINUTE, HOUR, DAY, WEEK = 60, 3_600, 86_400, 604_800


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Format a number with its noun: "1 line", "2 lines", "1,000 lines".

    `several` is the plural; the default appends "s" to the noun.
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
    """Quote the beginning of a text in one line, as a `repr` does."""
    whole = len(text) <= SHOWN_CHARACTERS
    return repr(text if whole else f"{text[: SHOWN_CHARACTERS - 1]}…")
