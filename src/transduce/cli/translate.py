"""`transduce translate`: raw text in, raw text out."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from transduce.decoding.search_config import SearchConfig
from transduce.decoding.translator import Translation, load
from transduce.errors import ConfigError, DataError
from transduce.text.corpus import read_stream, read_text


def translate(
    model: Path,
    /,
    *,
    input: Path | None = None,
    output: Path | None = None,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    nbest: int = 1,
    jsonl: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
) -> None:
    """Translate raw text, one line for one line, in order.

    Parameters
    ----------
    model
        A model or run folder.
    input
        A text file, one sentence a line; standard input by default.
    output
        Where to write; standard output by default.
    beam_size
        Hypotheses kept at each step; 1 is greedy.
    length_penalty
        Alpha of ((5 + length) / 6)^alpha (Wu et al., 2016).
    nbest
        How many translations of each line, best first, one a line.
    jsonl
        Write a JSON object a line, with scores.
    device
        auto, cpu or cuda.
    """
    config = SearchConfig(beam_size=beam_size, length_penalty=length_penalty)
    if not 1 <= nbest <= beam_size:
        raise ConfigError(
            f"`nbest` must be from 1 to the beam size {beam_size}, but is {nbest}."
        )
    if input and output and output.exists() and input.samefile(output):
        raise ConfigError(
            f"{output}: the output must be another file than the input, but is the "
            "same; choose another name."
        )
    translator = load(model, device)
    lines = read_stream(sys.stdin.buffer) if input is None else read_text([input])
    with _writer(output) as file:
        for translation in translator.translate_stream(lines, config):
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
def _writer(output: Path | None) -> Iterator[TextIO]:
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
