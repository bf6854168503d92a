"""A bracket score in EVALB's own layout, for whatever reads that."""

from collections.abc import Iterator

from transduce.parsing.bracket_f1 import (
    SHORT,
    BracketFigures,
    BracketScore,
    SentenceCounts,
)

# The spelling is EVALB's.
HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
"""
RULE = "=" * 76
STATUS = {"valid": 0, "error": 1, "skip": 2}


def evalb_report(score: BracketScore) -> str:
    """The table of sentences and the summary, as EVALB prints them."""
    return "\n".join(_lines(score))


def _lines(score: BracketScore) -> Iterator[str]:
    yield HEAD + RULE
    for number, sentence in enumerate(score.sentences, start=1):
        yield _row(number, sentence)
    yield RULE
    yield _totals(score.all)
    yield "=== Summary ==="
    yield "\n-- All --\n" + _summary(score.all)
    yield f"\n-- len<={SHORT} --\n" + _summary(score.short)


def _row(number: int, counts: SentenceCounts) -> str:
    return (
        f"{number:4}  {counts.length:3}    {STATUS[counts.status]}  "
        f"{counts.recall:6.2f} {counts.precision:6.2f}   {counts.matched:3}    "
        f"{counts.gold:3}  {counts.predicted:3}    {counts.crossing:3}   "
        f"{counts.words:4}  {counts.correct_tags:4}   {counts.tagging_accuracy:6.2f}"
    )


def _totals(figures: BracketFigures) -> str:
    brackets = ""
    if figures.gold and figures.predicted:
        brackets = (
            f"{'':16}{figures.recall:6.2f} {figures.precision:6.2f} "
            f"{figures.matched:6} {figures.gold:5} {figures.predicted:5}  "
            f"{figures.crossing:5}"
        )
    return (
        f"{brackets}  {figures.words:5} {figures.correct_tags:5}   "
        f"{figures.tagging_accuracy:6.2f}"
    )


def _summary(figures: BracketFigures) -> str:
    return f"""\
Number of sentence        = {figures.sentences:6}
Number of Error sentence  = {figures.errors:6}
Number of Skip  sentence  = {figures.skipped:6}
Number of Valid sentence  = {figures.valid:6}
Bracketing Recall         = {figures.recall:6.2f}
Bracketing Precision      = {figures.precision:6.2f}
Bracketing FMeasure       = {figures.f1:6.2f}
Complete match            = {figures.complete_match:6.2f}
Average crossing          = {figures.average_crossing:6.2f}
No crossing               = {figures.no_crossing:6.2f}
2 or less crossing        = {figures.few_crossing:6.2f}
Tagging accuracy          = {figures.tagging_accuracy:6.2f}"""
