"""Code blocks of a tutorial: read from its page, run by bash, compared with the page.

Comments in the page say what a block is:

    <!-- file: NAME -->       the block is a file that the reader writes
    <!-- run -->              bash runs the block
    <!-- output -->           the block is what the last one printed
    <!-- output within N -->  the same, but numbers may differ by N
    <!-- output but numbers -->  the same, but numbers may be any

In an output, a line of three dots stands for any lines, and the sign … for any text.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"^(?P<indent> *)<!-- (?P<kind>file|run|output)(?P<more>[^\n]*?) -->\n"
    r"(?:\s*\n)?(?P=indent)```[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
SNIPPET = re.compile(r'^--8<-- "(.*)"$', re.MULTILINE)
"""A file of the repository, which the page includes."""
ROOT = Path(__file__).parents[1]
LIMIT_S = 3600
"""Longest time of a page, against hangs only: other programs may slow a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A marked block of code of a page."""

    kind: str
    """file, run or output."""
    more: str
    """Rest of the mark after the kind."""
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The marked blocks of a page, in their order."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        indent = len(match["indent"])
        lines = SNIPPET.sub(_included, match["text"]).splitlines(keepends=True)
        yield Block(
            kind=match["kind"],
            more=match["more"].strip(": "),
            text="".join(line[indent:] if line.strip() else "\n" for line in lines),
        )


def _included(match: re.Match[str]) -> str:
    return (ROOT / match[1]).read_text(encoding="utf-8").rstrip("\n")


def run_page(
    page: Path,
    folder: Path,
    environment: Mapping[str, str],
    replaced: Mapping[str, str],
    limit_s: float = LIMIT_S,
) -> Iterator[tuple[Block, Block | None, str]]:
    """Each block that is run, what the page shows of its output, and its output.

    All blocks run in one bash, which ends at the first command that fails; `replaced`
    has other text for parts of the commands, such as a port.
    """
    found = list(blocks(page))
    runs: list[tuple[Block, Block | None]] = []
    script = ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.kind == "file":
            path = folder / block.more
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "run":
            shown = after if after is not None and after.kind == "output" else None
            text = block.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            script.append(f"exec >{folder}/output.{len(runs)} 2>&1\n{text}")
            runs.append((block, shown))
    with subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    ) as started:
        try:
            status = started.wait(limit_s)
        finally:
            # What still runs would write into the outputs of the next page.
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    for i, (block, shown) in enumerate(runs):
        output = folder / f"output.{i}"
        printed = output.read_text(encoding="utf-8") if output.exists() else ""
        for old, new in replaced.items():
            printed = printed.replace(new, old)
        yield block, shown, printed
    assert status == 0, f"The commands of {page.name} must succeed."


def difference(shown: Block, printed: str) -> str | None:
    """Message on how a page's output differs from the real one, or None."""
    pattern, numbers = _pattern(shown.text)
    match = re.fullmatch(pattern, printed.rstrip() + "\n")
    if match is None:
        return f"The page shows:\n{shown.text}\nBut the commands print:\n{printed}"
    if shown.more == "but numbers":
        return None
    within = float(shown.more.removeprefix("within ")) if shown.more else 0.0
    for expected, got in zip(numbers, match.groups(), strict=True):
        if abs(_value(expected) - _value(got)) > within:
            return f"The page shows {expected}, but it is {got}:\n{printed}"
    return None


def _pattern(text: str) -> tuple[str, list[str]]:
    """Regular expression with a group for each number, and these numbers."""
    parts, numbers = [], []
    for line in text.rstrip("\n").split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
            continue
        pattern, end = "", 0
        for match in NUMBER.finditer(line):
            pattern += _escaped(line[end : match.start()]) + f"({NUMBER.pattern})"
            numbers.append(match[0])
            end = match.end()
        parts.append(f"{pattern}{_escaped(line[end:])}\n")
    return "".join(parts), numbers


def _escaped(text: str) -> str:
    words = re.escape(text).replace("…", r"[^\n]*?")
    return re.sub(r"(?:\\ )+", r" +", words)  # columns may have other widths


def _value(number: str) -> float:
    return float(number.replace(",", ""))
