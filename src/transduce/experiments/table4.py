"""Table 4: F1 of English constituency parsers, the paper's and ours (section 6.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transduce.data.treebank import before_number, read_both, read_gold
from transduce.decoding.parser import score_parses
from transduce.decoding.translator import load
from transduce.errors import DataError, RequestError
from transduce.report.report import Column, Report, Section, Table, columns
from transduce.text.corpus import name_of
from transduce.trees.bracket_f1 import (
    BracketFigures,
    bracket_f1,
    with_tags_of,
)
from transduce.trees.trees import Tree, normalized

Setting = Literal["WSJ only", "semi-supervised"]
"""Training data of the paper's parser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """Row of the table as the paper prints it."""

    parser: str
    training: str
    f1: float
    """F1 on section 23 of the Wall Street Journal."""


PAPER_ROWS = (
    PaperRow(
        parser="Vinyals & Kaiser et al. (2014)",
        training="WSJ only, discriminative",
        f1=88.3,
    ),
    PaperRow(
        parser="Petrov et al. (2006)", training="WSJ only, discriminative", f1=90.4
    ),
    PaperRow(parser="Zhu et al. (2013)", training="WSJ only, discriminative", f1=90.4),
    PaperRow(parser="Dyer et al. (2016)", training="WSJ only, discriminative", f1=91.7),
    PaperRow(
        parser="Transformer (4 layers)", training="WSJ only, discriminative", f1=91.3
    ),
    PaperRow(parser="Zhu et al. (2013)", training="semi-supervised", f1=91.3),
    PaperRow(parser="Huang & Harper (2009)", training="semi-supervised", f1=91.3),
    PaperRow(parser="McClosky et al. (2006)", training="semi-supervised", f1=92.1),
    PaperRow(
        parser="Vinyals & Kaiser et al. (2014)", training="semi-supervised", f1=92.1
    ),
    PaperRow(parser="Transformer (4 layers)", training="semi-supervised", f1=92.7),
    PaperRow(parser="Luong et al. (2015)", training="multi-task", f1=93.0),
    PaperRow(parser="Dyer et al. (2016)", training="generative", f1=93.3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OurRow:
    """Scores of our parses, as a row of Table 4."""

    setting: Setting
    gold: str
    """File of the gold trees."""
    predicted: str
    """File of the predicted trees, or the run or model that predicted them."""
    figures: BracketFigures
    mended: float | None
    """Percentage of outputs that were no tree over the sentence and were repaired; None
    for a file of trees."""
    beam_size: int | None = None
    """Beam size of the model's search, 1 if it is greedy; None for a file of trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table4:
    """Our rows, and the test data that they are for."""

    ours: tuple[OurRow, ...]
    treebank: str
    """Treebank of the gold trees."""
    split: str
    """Part of the treebank."""


def our_rows(
    given: Sequence[tuple[Setting, Path, Path]], device: str
) -> tuple[OurRow, ...]:
    """Score pairs of a file of gold trees and a parser: a file of trees, or a model.

    All files are read, and all models opened, before the first model parses.
    """
    rows_of_files = [
        None if predicted.is_dir() else our_parses(setting, gold, predicted)
        for setting, gold, predicted in given
    ]
    gold_trees = dict[Path, list[Tree]]()  # read once, as a file may be a pipe
    for _, gold, predicted in given:
        if predicted.is_dir():
            if gold not in gold_trees:
                gold_trees[gold] = read_gold(gold)
            try:
                load(predicted, device=device).parser()
            except RequestError as error:  # it translates
                raise RequestError(f"{predicted}: {error}") from None
    return tuple(
        our_parser(setting, gold, gold_trees[gold], predicted, device)
        if row is None
        else row
        for row, (setting, gold, predicted) in zip(rows_of_files, given, strict=True)
    )


def our_parser(
    setting: Setting, gold: Path, trees: Sequence[Tree], model: Path, device: str
) -> OurRow:
    """Parse the sentences of the gold trees with a run or a model by its own search.

    `gold` is the file of the trees.
    """
    translator = load(model, device=device)
    parser = translator.parser()
    found = score_parses(trees, list(parser.parse_stream(tree.words for tree in trees)))
    return OurRow(
        setting=setting,
        gold=name_of(gold),
        predicted=str(model),
        figures=found.brackets.all,
        mended=found.mended,
        beam_size=translator.search.beam_size,
    )


def our_parses(setting: Setting, gold: Path, predicted: Path) -> OurRow:
    """Score a file of trees; `DataError` if their words are not the gold trees'."""
    gold_trees, trees = (
        list(map(normalized, each)) for each in read_both(gold, predicted)
    )
    score = bracket_f1(gold_trees, list(map(with_tags_of, gold_trees, trees)))
    for number, sentence in enumerate(score.sentences, start=1):
        if sentence.fault:
            raise DataError(
                f"{before_number(predicted, len(trees))}{number}: a tree must have the "
                f"words of the gold tree, but: {sentence.fault}."
            )
    return OurRow(
        setting=setting,
        gold=name_of(gold),
        predicted=name_of(predicted),
        figures=score.all,
        mended=None,
    )


def as_report(table: Table4) -> Report:
    """Report with the paper's rows and ours."""
    data = f"Treebank: {table.treebank}; split: {table.split}. {TAGGED}"
    return Report(
        title="Table 4: constituency parsing of English",
        sections=(
            Section(title="The paper's table", parts=(PROTOCOL, _paper_table())),
            Section(title="Our parses", parts=(data, _our_table(table))),
        ),
    )


PROTOCOL = (
    "F1 on section 23 of the Wall Street Journal. WSJ only: about 40,000 training "
    "sentences; semi-supervised: about 17 million automatically parsed sentences as "
    "well."
)
TAGGED = (
    "F1 is counted as EVALB does with COLLINS.prm, on trees with one root TOP, without "
    "traces and function labels; predicted words get the tags of the gold trees. Runs "
    "parse by the search of their settings; the paper's beam size is 21. Repaired: "
    "outputs that were no tree over the sentence. F1 can be compared only on the same "
    "treebank and split."
)


def _paper_table() -> Table:
    heads = (
        Column(name="parser", is_text=True),
        Column(name="training", is_text=True),
        Column(name="WSJ 23 F1"),
    )
    rows = tuple((row.parser, row.training, f"{row.f1:.1f}") for row in PAPER_ROWS)
    return Table(columns=heads, rows=rows)


def _our_table(table: Table4) -> Table:
    heads = columns(
        *("trees", "F1", "paper", "recall", "precision"),
        *("beam size", "repaired, %", "sentences"),
    )
    training = Column(name="training", is_text=True)
    rows = tuple(
        (
            row.predicted,
            row.setting,
            f"{row.figures.f1:.2f}",
            f"{_paper_f1(row.setting):.1f}",
            f"{row.figures.recall:.2f}",
            f"{row.figures.precision:.2f}",
            "" if row.beam_size is None else str(row.beam_size),
            "" if row.mended is None else f"{row.mended:.2f}",
            f"{row.figures.sentences:,}",
        )
        for row in table.ours
    )
    return Table(columns=(heads[0], training, *heads[1:]), rows=rows)


def _paper_f1(setting: Setting) -> float:
    """F1 of the paper's parser in that setting."""
    return next(
        row.f1
        for row in PAPER_ROWS
        if row.training.startswith(setting) and row.parser.startswith("Transformer")
    )
