"""Input lines and output of translations, shared by several commands."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from transduce.cli.output import STANDARD_OUTPUT
from transduce.cli.partial_output import Destination, Origin, RecordOutput
from transduce.cli.terminal import counted_lines
from transduce.decoding.streaming import (
    WINDOW_LINES,
    Pace,
    Windows,
    arriving_windows,
    full_windows,
)
from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator
from transduce.text.corpus import STANDARD_INPUT, read_stream, read_text, standard_input


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLines:
    """Lines to translate, and how they are grouped."""

    lines: Iterator[str]
    windows: Windows
    """Windows of lines: full ones of a file; a stream's lines are not awaited."""


def source_lines(input: Path | None) -> SourceLines:
    """Return the lines of a file or of standard input; `DataError` if that is
    closed."""
    if input is None or input == STANDARD_INPUT:
        lines = read_stream(standard_input("--input FILE"))
        return SourceLines(lines=lines, windows=arriving_windows)
    windows = full_windows if input.is_file() else arriving_windows
    return SourceLines(lines=read_text([input]), windows=windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Output format of translations."""

    num_best: int = 1
    """Number of translations of each line."""
    jsonl: bool = False
    """Whether each line is a JSON object with scores and tokens."""


def write_translations(
    translate: Callable[[RecordOutput, Pace], Iterable[Translation]],
    windows: Windows,
    destination: Destination,
    origin: Callable[[], Origin],
    form: Form,
    batch_lines: int,
) -> None:
    """Write each translation as soon as it is ready: as text, n-best, or JSON.

    A message names each long line that was translated in parts.
    """
    is_on_screen = destination.output in (None, STANDARD_OUTPUT) and sys.stdout.isatty()
    with (
        destination.opened(
            lambda: {**origin(), "form": asdict(form)}, batch_lines
        ) as output,
        counted_lines(is_on_screen) as count_line,
    ):
        first = output.num_done
        pace = Pace(windows=windows, on_line=count_line, first_line=first)
        for number, each in enumerate(translate(output, pace), start=first + 1):
            if each.num_parts > 1:
                print(
                    f"Warning: line {number:,} is over-long, and is translated in "
                    f"{each.num_parts} parts.",
                    file=sys.stderr,
                )
            output.write("".join(line + "\n" for line in _lines(each, form)))


def lines_found_together(translator: Translator, precision: str, *, told: bool) -> int:
    """Number of lines whose results may depend on each other by rounding.

    It is 1 on a CPU in fp32, and in int8 if no score is written.
    """
    is_exact = precision == "fp32" or (precision == "int8" and not told)
    return 1 if translator.device == "cpu" and is_exact else WINDOW_LINES


def _lines(translation: Translation, form: Form) -> Iterator[str]:
    if form.jsonl:
        best = [asdict(h) for h in translation.hypotheses[: form.num_best]]
        yield json.dumps(
            {
                "text": translation.text,
                "score": translation.score,
                "num_parts": translation.num_parts,
                "hypotheses": best,
            },
            ensure_ascii=False,
        )
    elif form.num_best == 1:
        yield translation.text
    else:
        found = [h.text for h in translation.hypotheses[: form.num_best]]
        yield from found + [""] * (form.num_best - len(found))
