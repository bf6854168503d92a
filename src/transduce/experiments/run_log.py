"""Log of a run: an entry for each update, score and event, one JSON object a line."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transduce.errors import CheckpointError
from transduce.files import atomic_file, named_errors, without_infinity

FINAL, FINAL_DEV_SET, START_MODEL = "final", "final dev set", "start model"
"""Kinds of log entries with the scores at the end: of the run's model on the main dev
set and on further ones, and of the model that the run started from."""
RESULTS = (FINAL, FINAL_DEV_SET, START_MODEL)
SAVED = "saved"
"""Kind of log entry of a checkpoint that is about to be saved."""
LENGTHENED, EARLIER = "lengthened", "earlier"
"""Kind of log entry of a changed number of updates, and prefix of the kinds of the
scores at the end before."""
WENT_BACK = "went back"
"""Kind of log entry of a run that went back to a checkpoint after its loss diverged."""

NUMBERS = {
    *("epoch", "learning_rate", "gradient_norm", "reward", "seconds", "flops"),
    *("bleu", "f1", "chrf", "gleu", "matched_4_grams"),
}
"""Values of log entries that must be numbers."""
OPTIONAL_NUMBERS = {"loss", "perplexity", "max_positions", "reward_positions"}
"""Values that must be numbers, or null if infinite or unbounded."""
LARGEST = 1e100
"""Magnitude from which on a number in the log counts as damaged."""

Entry = dict[str, Any]
"""Log entry: its `kind`, its `step`, and values that depend on the kind."""


class RunLog:
    """Log file of a run. Entries have finite values: infinity is null, as in JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **values: Any) -> None:
        """Append an entry."""
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            entry = without_infinity({"kind": kind, **values})
            file.write(json.dumps(entry) + "\n")

    def append_results(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Append the scores at the end of the run: all of them, or after a crash none.

        They replace scores at the end that an older version had begun to log.
        """
        kept = [entry for entry in self.read() if entry["kind"] not in RESULTS]
        finite = [without_infinity(entry) for entry in results]
        self.replace([*kept, *finite])

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace all entries at once."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        with atomic_file(self.path) as new:
            new.write_text(text, encoding="utf-8")

    def read(self) -> Iterator[Entry]:
        """Yield the entries; a last line cut short by a crash is skipped.

        Raises `CheckpointError` if another line is damaged.
        """
        if not os.path.lexists(self.path):
            return
        if not self.path.is_file():
            raise CheckpointError(
                f"{self.path}: must be the log of the run, but is not a file; "
                "restore it, or remove it."
            )
        *lines, last = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            entry = _parsed(line)
            if entry is None:
                raise CheckpointError(
                    f"{self.path}:{number}: this line of the run's log is "
                    "damaged; restore the file, or remove the line."
                )
            yield entry
        if (entry := _parsed(last)) is not None:
            yield entry

    def entries(self, kind: str, *needed: str) -> list[Entry]:
        """Return entries of a kind; `CheckpointError` if one lacks a needed value."""
        entries = [entry for entry in self.read() if entry["kind"] == kind]
        for entry in entries:
            for name in needed:
                if name not in entry:
                    raise CheckpointError(
                        f"{self.path}: the line of kind {kind!r} at step "
                        f"{entry['step']:,} must have `{name}`, but does not; restore "
                        "the file."
                    )
        return entries

    @property
    def has_results(self) -> bool:
        """Whether the scores at the end are logged, as in a run with a dev corpus."""
        return any(entry["kind"] == FINAL for entry in self.read())

    def forget_after(
        self, step: int, *, keep_start: bool = False, is_lowered: bool = True
    ) -> None:
        """Drop the entries that a run which continues from a step will write again.

        They are all later ones and, without `keep_start`, that of a start at this step:
        a run that goes back after a divergence does not start again. `is_lowered` tells
        whether the state at this step has the lowered learning rate. If not, the run
        ended before it saved that state, and its `WENT_BACK` entry is dropped too.
        """

        def is_kept(entry: Entry) -> bool:
            if entry["kind"] == "start" and entry["step"] == step:
                return keep_start
            if entry["kind"] == WENT_BACK and not is_lowered:
                return False
            return entry["step"] <= step

        self.replace([entry for entry in self.read() if is_kept(entry)])

    def lengthened(self, made: int, before: int, now: int) -> list[Entry]:
        """Return the entries for another number of updates, after the updates `made`.

        Results that were final before are renamed.
        """
        entries = list(self.read())
        for entry in entries:
            if entry["kind"] in RESULTS:
                entry["kind"] = f"{EARLIER} {entry['kind']}"
        steps = {"before": before, "now": now}
        return [*entries, {"kind": LENGTHENED, "step": made, **steps}]


def _parsed(line: bytes) -> Entry | None:
    """Parse a line of the log; None if it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None
    has_numbers = _is_number(entry.get("step"), int) and all(
        _is_number(value, int, float) or (value is None and name in OPTIONAL_NUMBERS)
        for name, value in entry.items()
        if name in NUMBERS | OPTIONAL_NUMBERS
    )
    has_text = isinstance(entry.get("signature", ""), str)
    return entry if has_numbers and has_text and entry["step"] >= 0 else None


def _is_number(value: object, *kinds: type) -> bool:
    return type(value) in kinds and abs(value) < LARGEST  # type: ignore[arg-type] # a number
