"""Lines of text in, translations out, as several commands have them."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from transduce.cli.output import STANDARD_OUTPUT, writer
from transduce.cli.terminal import counted_lines
from transduce.decoding.streaming.windows import (
    Pace,
    Windows,
    arriving_windows,
    full_windows,
)
from transduce.decoding.translation.translations import Translation
from transduce.errors import ConfigError
from transduce.text.corpus import STANDARD_INPUT, read_stream, read_text, standard_input


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLines:
    """What is to be read."""

    lines: Iterator[str]
    windows: Windows
    """Of a file full ones; what is still being written is not waited for."""


def source_lines(input: Path | None, output: Path | None) -> SourceLines:
    """Those of the file, or of standard input.

    `ConfigError` if it is the output, `DataError` if standard input is closed.
    """
    if input is None or input == STANDARD_INPUT:
        lines = read_stream(standard_input("--input FILE"))
        return SourceLines(lines=lines, windows=arriving_windows)
    if output and output.exists() and input.samefile(output):
        raise ConfigError(
            f"{output}: the output must be another file than the input, but is the "
            "same; choose another name."
        )
    windows = full_windows if input.is_file() else arriving_windows
    return SourceLines(lines=read_text([input]), windows=windows)


def write_translations(
    translate: Callable[[Pace], Iterable[Translation]],
    windows: Windows,
    output: Path | None,
    nbest: int,
    jsonl: bool,
) -> None:
    """Write each as soon as it is there: as text, the n best, or as JSON.

    Of an over-long line it is said that it was translated in parts.
    """
    is_on_screen = output in (None, STANDARD_OUTPUT) and sys.stdout.isatty()
    with writer(output) as file, counted_lines(is_on_screen) as count_line:
        translations = translate(Pace(windows=windows, on_line=count_line))
        for number, translation in enumerate(translations, start=1):
            if translation.num_parts > 1:
                print(
                    f"Warning: line {number:,} is over-long, and is translated in "
                    f"{translation.num_parts} parts.",
                    file=sys.stderr,
                )
            file.writelines(line + "\n" for line in _lines(translation, nbest, jsonl))
            file.flush()


def _lines(translation: Translation, nbest: int, jsonl: bool) -> Iterator[str]:
    if jsonl:
        best = [asdict(h) for h in translation.hypotheses[:nbest]]
        yield json.dumps(
            {
                "text": translation.text,
                "score": translation.score,
                "num_parts": translation.num_parts,
                "hypotheses": best,
            },
            ensure_ascii=False,
        )
    elif nbest == 1:
        yield translation.text
    else:
        found = [h.text for h in translation.hypotheses[:nbest]]
        yield from found + [""] * (nbest - len(found))
