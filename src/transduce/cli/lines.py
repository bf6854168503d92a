"""Lines of text in, translations out, as several commands have them."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from transduce.cli.output import writer
from transduce.cli.terminal import counted_lines
from transduce.decoding.translator import Translation
from transduce.errors import ConfigError
from transduce.text.corpus import read_stream, read_text


def source_lines(input: Path | None, output: Path | None) -> Iterator[str]:
    """Those of the file, or of standard input; `ConfigError` if it is the output."""
    if input is None:
        return read_stream(sys.stdin.buffer)
    if output and output.exists() and input.samefile(output):
        raise ConfigError(
            f"{output}: the output must be another file than the input, but is the "
            "same; choose another name."
        )
    return read_text([input])


def write_translations(
    translations: Iterable[Translation], output: Path | None, nbest: int, jsonl: bool
) -> None:
    """Write each as soon as it is there: as text, the n best, or as JSON.

    Of an over-long line it is said that it was translated in parts.
    """
    is_on_screen = output is None and sys.stdout.isatty()
    with writer(output) as file, counted_lines(is_on_screen) as count_line:
        for number, translation in enumerate(translations, start=1):
            if translation.num_parts > 1:
                print(
                    f"Warning: line {number:,} is over-long, and is translated in "
                    f"{translation.num_parts} parts.",
                    file=sys.stderr,
                )
            file.writelines(line + "\n" for line in _lines(translation, nbest, jsonl))
            file.flush()
            count_line()


def _lines(translation: Translation, nbest: int, jsonl: bool) -> Iterator[str]:
    if jsonl:
        best = [asdict(h) for h in translation.hypotheses[:nbest]]
        yield json.dumps(
            {
                "text": translation.text,
                "score": translation.score,
                "hypotheses": best,
            },
            ensure_ascii=False,
        )
    elif nbest == 1:
        yield translation.text
    else:
        found = [h.text for h in translation.hypotheses[:nbest]]
        yield from found + [""] * (nbest - len(found))
