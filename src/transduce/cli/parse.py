"""`transduce parse`: sentences in, constituency trees out."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.analysis.tree_drawing import indented, svg
from transduce.cli.lines import source_lines
from transduce.cli.output import STANDARD_OUTPUT, writer
from transduce.cli.terminal import counted_lines
from transduce.decoding.next_token_models.ready_model import DecodingPrecision
from transduce.decoding.parsing.parser import Parse
from transduce.decoding.parsing.penn_words import penn_words
from transduce.decoding.streaming.windows import Pace
from transduce.decoding.translator import load
from transduce.errors import ConfigError
from transduce.parsing.trees import WORD, Tree


def parse(
    model: Path,
    /,
    *,
    input: Path | None = None,
    output: Path | None = None,
    tokenized: Annotated[bool, Parameter(negative="")] = False,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    extra_length: int | None = None,
    constrained: Annotated[bool, Parameter(negative="")] = False,
    pretty: Annotated[bool, Parameter(negative="")] = False,
    svg_file: Annotated[Path | None, Parameter(name="--svg")] = None,
    device: str = "auto",
    precision: DecodingPrecision = "fp32",
    processes: int | None = None,
) -> None:
    """Parse sentences: one tree a line, in order, over exactly their words.

    What is not said of the search is as in the model's run: `search` in its settings.

    Parameters
    ----------
    model
        A model or run folder, trained on trees.
    input
        A text file, one sentence a line; standard input by default, or by -.
    output
        A file to write; standard output by default, or by -.
    tokenized
        The words of a line are parted by spaces already. By default it is raw English
        text, which is cut as the Penn Treebank is.
    beam_size
        Hypotheses kept at each step; 1 is greedy.
    length_penalty
        Alpha: what length counts for when hypotheses are ranked.
    extra_length
        Symbols of a tree at most, beyond the tokens of its sentence.
    constrained
        Search among trees over the words only, so that nothing need be mended; in the
        paper all symbols may follow all.
    pretty
        Write each tree on several lines, indented.
    svg_file
        Draw the trees too, as one SVG picture.
    device
        auto, cpu or cuda.
    precision
        Of matrix products: fp32 is exact; bf16 and int8 are up to several times as
        fast on a processor that is made for them.
    processes
        Copies of the program that search at the same time, each on one core, where
        there are many sentences; by default one for each core, or as many as
        OMP_NUM_THREADS says, and at most 16.
    """
    _require_other(svg_file, input, output)
    words_of = WORD.findall if tokenized else penn_words
    source = source_lines(input, output)
    sentences = map(words_of, source.lines)
    translator = load(
        model, device=device, precision=precision, num_processes=processes
    )
    settings = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "extra_length": extra_length,
    }
    config, parser = translator.search.given(settings), translator.parser()
    drawn: list[Tree] = []
    is_on_screen = output in (None, STANDARD_OUTPUT) and sys.stdout.isatty()
    with writer(output) as file, counted_lines(is_on_screen) as count_line:
        pace = Pace(windows=source.windows, on_line=count_line)
        parses = parser.parse_stream(
            sentences, config, constrained=constrained, pace=pace
        )
        for tree in _trees(parses):
            file.write((indented(tree) if pretty else str(tree)) + "\n")
            file.flush()
            if svg_file is not None:
                drawn.append(tree)
    if svg_file is not None:
        with writer(svg_file) as file:
            file.write(svg(drawn))


def _require_other(
    svg_file: Path | None, input: Path | None, output: Path | None
) -> None:
    if svg_file is not None and svg_file in (input, output):
        raise ConfigError(
            f"{svg_file}: the picture must be another file than input and output, but "
            "is the same; choose another name."
        )


def _trees(parses: Iterable[Parse]) -> Iterator[Tree]:
    """The trees; of sentences that are too long to be read, it is said."""
    for number, each in enumerate(parses, start=1):
        if each.is_overlong:
            print(
                f"Warning: line {number:,} is over-long, and its tree is flat.",
                file=sys.stderr,
            )
        yield each.tree
