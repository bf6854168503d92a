"""How good parses are: their brackets, and how many had to be mended to be trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from transduce.decoding.parsing.parser import Parse
from transduce.parsing.bracket_f1 import (
    BracketScore,
    bracket_f1,
    percentage,
    with_tags_of,
)
from transduce.parsing.delinearization import Repairs
from transduce.parsing.trees import Tree
from transduce.phrases import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseScore:
    """The score of a parser's trees, which have the tags of the gold ones."""

    brackets: BracketScore
    mended: float
    """Sentences whose symbols were no tree over their words, in percent."""
    repairs: Repairs
    """Of all sentences."""

    def __str__(self) -> str:
        figures = self.brackets.all
        return (
            f"F1 = {figures.f1:.2f} (recall {figures.recall:.2f}, precision "
            f"{figures.precision:.2f}, complete match {figures.complete_match:.2f}, "
            f"{figures.valid} of {counted(figures.sentences, 'sentence')}, "
            f"{self.mended:.2f} % "
            "mended)"
        )


def score_parses(gold: Sequence[Tree], parses: Sequence[Parse]) -> ParseScore:
    """Score parses of the words of the gold trees."""
    trees = [parse.tree for parse in parses]
    mended = sum(parse.repairs.total > 0 for parse in parses)
    return ParseScore(
        brackets=bracket_f1(gold, list(map(with_tags_of, gold, trees))),
        mended=percentage(mended, len(parses)),
        repairs=reduce(add, (parse.repairs for parse in parses)),
    )
