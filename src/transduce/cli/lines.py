"""Lines of text in, translations out, as several commands have them."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from transduce.decoding.translator import Translation
from transduce.errors import ConfigError, DataError
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
    with output_file(output) as file:
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
                "hypotheses": best,
            },
            ensure_ascii=False,
        )
    elif nbest == 1:
        yield translation.text
    else:
        found = [h.text for h in translation.hypotheses[:nbest]]
        yield from found + [""] * (nbest - len(found))


@contextmanager
def output_file(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when all is written."""
    if output is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr] # a text stream
        yield sys.stdout
    else:
        try:
            with _file_writer(output) as file:
                yield file
        except OSError as error:
            raise DataError(
                f"{output}: cannot be written ({error.strerror})."
            ) from None


@contextmanager
def _file_writer(output: Path) -> Iterator[TextIO]:
    if output.exists() and not output.is_file():
        # A pipe or a device, which cannot be put in place of another.
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    new = output.with_name(f".{output.name}.transduce-new")
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        new.replace(output)
    finally:
        new.unlink(missing_ok=True)
