"""`transduce parse`: constituency trees of sentences."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.cli.files import (
    STANDARD_OUTPUT,
    Files,
    require_new,
    require_one_standard_output,
    writer,
)
from transduce.cli.lines import decoding_of, search_of, source_lines
from transduce.cli.resumable_output import Destination, Origin
from transduce.cli.terminal import counted_lines, warn
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.parser import Parse
from transduce.decoding.translations import Pace
from transduce.decoding.translator import interdependent_lines, load
from transduce.errors import DataError
from transduce.model_folder import model_sum
from transduce.text.corpus import STANDARD_INPUT, name_of
from transduce.text.languages import best_match, english_name
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import (
    NO_PARSE,
    WORD,
    Constituent,
    Leaf,
    Tree,
    TreeReader,
    indented,
    svg,
)


def parse(
    model: Path,
    /,
    *,
    ensemble: Files = (),
    input: Path | None = None,
    output: Path | None = None,
    force: bool = False,
    resume: bool = False,
    tokenized: bool = False,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    extra_length: int | None = None,
    constrained: bool = False,
    pretty: bool = False,
    svg_file: Annotated[Path | None, Parameter(name="--svg")] = None,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Parse sentences: one tree per line, in order, over exactly their words.

    Unset search options default to the model's settings.

    For example:

        echo "The old lamp fell." | transduce parse runs/parser --pretty

    Parameters
    ----------
    model
        A model or run folder, trained on trees.
    ensemble
        Further models; each symbol is chosen by the mean of all models' probabilities.
    input
        A text file, one sentence per line; - is standard input, the default.
    output
        A file to write; - is standard output, the default. Lines are kept in
        OUTPUT.part until all are done.
    force
        Overwrite the output, and the picture, if it exists.
    resume
        Continue an interrupted output of the same model, input and options.
    tokenized
        The words of each line are already separated by spaces. By default lines are raw
        English text, which is tokenized as in the Penn Treebank.
    beam_size
        Number of hypotheses kept at each step; 1 is greedy search.
    length_penalty
        Exponent alpha of the length penalty; 0 ranks by probability alone.
    extra_length
        Maximum number of a tree's symbols beyond the number of its sentence's tokens.
    constrained
        Restrict the search to well-formed trees over the words, so that no repairs are
        needed. In the paper, any symbol may follow any other.
    pretty
        Write each tree on several lines, indented.
    svg_file
        File for a drawing of all trees as one SVG picture.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    processes
        Number of processes that share the sentences, each on one core; by default one
        for each core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    """
    require_one_standard_output((output or STANDARD_OUTPUT, svg_file))
    destination = Destination(output=output, force=force, resume=resume)
    destination.require_usable(input)
    require_new(
        svg_file, force=force, others=(input, output), called="input and output"
    )
    words_of = WORD.findall if tokenized else penn_words
    source = source_lines(input)
    lines = without_trees(source.lines, name_of(input or STANDARD_INPUT))
    translator = load(
        model,
        *ensemble,
        device=device,
        precision=precision,
        num_processes=processes,
    )
    settings = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "extra_length": extra_length,
    }
    config, parser = search_of(translator.search, settings), translator.parser()
    language = translator.source_language
    if not tokenized and language and not best_match("en", [language]):
        warn(
            f"the parser reads {english_name(language)}, but raw text is cut into "
            "words by English rules; with --tokenized, spaces separate the words."
        )
    together = interdependent_lines(translator, with_scores=False)

    def origin() -> Origin:
        return {
            "command": "parse",
            "models": [model_sum(each) for each in (model, *ensemble)],
            "search": asdict(config),
            "tokenized": tokenized,
            "constrained": constrained,
            "pretty": pretty,
            "drawn": svg_file is not None,
            **decoding_of(translator, together),
        }

    with (
        destination.opened(origin, together) as out,
        counted_lines(destination.is_on_screen) as count_line,
    ):
        drawn = list(map(_from_note, out.notes)) if svg_file is not None else []
        sentences = map(words_of, out.reading(lines))
        pace = Pace(windows=source.windows, on_line=count_line)
        parses = parser.parse_stream(
            sentences, config, constrained=constrained, pace=pace
        )
        for tree in _trees(parses, out.num_done + 1):
            note = None if svg_file is None else (tree.leaves, tree.constituents)
            out.write((indented(tree) if pretty else str(tree)) + "\n", note)
            if svg_file is not None:
                drawn.append(tree)
        # Before the output is complete, so that --resume can draw it again.
        if svg_file is not None:
            with writer(svg_file, overwrite=force) as file:
                file.write(svg(drawn))


LINES_LOOKED_AT = 100
"""Number of lines in which trees are sought."""


def without_trees(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield lines of text; `DataError` if they are trees in brackets.

    The text is a treebank if all lines so far can be read as trees, apart from blank
    lines and failed parses, if there are at least two trees or the whole text is one,
    and if a tree has inner brackets. Until that is clear, the lines from the first tree
    on are held back.
    """
    lines, held, is_treebank = iter(lines), list[str](), False
    reader, num_trees = TreeReader(name), 0
    for line in islice(lines, LINES_LOOKED_AT):
        held.append(line)
        if reader.is_within_a_tree or not NO_PARSE.fullmatch(line):
            try:
                tree = reader.read(line)
            except DataError:
                is_treebank = False
                break
            if tree is not None:
                num_trees += 1
                is_treebank |= len(tree.leaves) > 1 or len(tree.constituents) > 1
                if is_treebank and num_trees > 1:
                    break
        if not is_treebank and not reader.is_within_a_tree:
            yield from held
            held.clear()
    if is_treebank:
        raise DataError(
            f"{name}: text must be sentences, but these are trees in brackets; remove "
            "brackets and tags, or let `transduce evaluate-parses` with --model parse "
            "the words of the trees and score the result. Brackets of a sentence may "
            "be written -LRB- and -RRB-."
        )
    yield from held
    yield from lines


def _trees(parses: Iterable[Parse], first: int) -> Iterator[Tree]:
    """Yield the trees; a message names sentences that are too long."""
    for number, each in enumerate(parses, start=first):
        if each.is_overlong:
            warn(f"line {number:,} is too long to parse, and its tree is flat.")
        yield each.tree


def _from_note(note: list[Any]) -> Tree:
    """Return the tree of a note.

    Its text would lack a tree without words, and would change brackets in words.
    """
    leaves, constituents = note
    return Tree(
        leaves=tuple(Leaf(*each) for each in leaves),
        constituents=tuple(Constituent(*each) for each in constituents),
    )
