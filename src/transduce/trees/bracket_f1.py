"""Labelled bracket precision, recall and F1 as EVALB counts them (Sekine and Collins).

The parameters are those of COLLINS.prm. A sentence whose words differ from those of its
gold tree is dropped: only the numbers of errors and skipped sentences count it, so look
at these first.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transduce.errors import DataError, counted
from transduce.trees.linearization import PUNCTUATION
from transduce.trees.trees import (
    ROOT,
    TRACE,
    Constituent,
    Leaf,
    Tree,
    without_leaves,
    without_traces,
)

Status = Literal["valid", "error", "skip"]
DELETED = PUNCTUATION | {ROOT, TRACE}
"""Words with these tags and brackets with these labels are not compared."""
EQUIVALENT = {"PRT": "ADVP"}
SHORT = 40
"""Maximum length of the sentences that are also scored separately."""
FEW = 2
"""Maximum number of crossing brackets counted as few."""
FUNCTION = re.compile(r"[-=].*")
"""Function tags and indices, removed from labels even if nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceCounts:
    """Counts of one sentence; all but its length are 0 if it is dropped."""

    length: int
    """Number of words of the gold tree, with punctuation, without traces."""
    status: Status = "valid"
    """error: the words differ from the gold tree's; skip: there are none."""
    fault: str = ""
    """Reason why the sentence is dropped; empty if nothing of it is ever compared, as
    with punctuation alone."""
    matched: int = 0
    """Number of brackets that both trees have."""
    gold: int = 0
    """Number of brackets of the gold tree."""
    predicted: int = 0
    """Number of brackets of the predicted tree."""
    crossing: int = 0
    """Number of predicted brackets that cross a gold bracket."""
    words: int = 0
    """Number of words without punctuation."""
    correct_tags: int = 0

    @property
    def recall(self) -> float:
        """Labelled recall in percent."""
        return percentage(self.matched, self.gold)

    @property
    def precision(self) -> float:
        return percentage(self.matched, self.predicted)

    @property
    def tagging_accuracy(self) -> float:
        return percentage(self.correct_tags, self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class BracketFigures:
    """Figures of a corpus: counts over its valid sentences, and rates in percent."""

    sentences: int
    """Number of sentences, valid or not."""
    errors: int
    """Number of sentences dropped because their words differ."""
    skipped: int
    """Number of sentences dropped for lack of a parse."""
    valid: int
    matched: int
    gold: int
    predicted: int
    crossing: int
    words: int
    correct_tags: int
    recall: float
    """Over all brackets of the corpus together."""
    precision: float
    f1: float
    """0 if nothing matches."""
    complete_match: float
    """Share of sentences."""
    average_crossing: float
    """Number of crossing brackets per sentence."""
    no_crossing: float
    """Share of sentences."""
    few_crossing: float
    """Share of sentences with at most 2 crossing brackets."""
    tagging_accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BracketScore:
    """EVALB's counts and figures."""

    sentences: tuple[SentenceCounts, ...]
    all: BracketFigures
    short: BracketFigures
    """Figures of the sentences of at most 40 words."""


def bracket_f1(gold: Sequence[Tree], predicted: Sequence[Tree]) -> BracketScore:
    """Score predicted trees, one for each gold tree; `DataError` if the numbers differ.

    Pass the trees unchanged: this function drops what EVALB drops.
    """
    if len(gold) != len(predicted) or not gold:
        raise DataError(
            "There must be as many predicted trees as gold trees, and at least one, "
            f"but there are {len(predicted):,} and {len(gold):,}."
        )
    sentences = tuple(map(compare, gold, predicted))
    return BracketScore(
        sentences=sentences,
        all=_figures(sentences),
        short=_figures([one for one in sentences if one.length <= SHORT]),
    )


def with_tags_of(gold: Tree, predicted: Tree) -> Tree:
    """Return the predicted tree with the gold tags, if both have the same words.

    EVALB finds punctuation by its tags, which a parser without tags does not write. The
    predicted tree may have all traces of the gold tree, or others, which are removed.
    """
    if gold.words == predicted.words:
        return replace(predicted, leaves=gold.leaves)
    gold, spoken = without_traces(gold), without_traces(predicted)
    if gold.words != spoken.words:
        return predicted
    return replace(spoken, leaves=gold.leaves)


def compare(gold: Tree, predicted: Tree) -> SentenceCounts:
    """Count the common brackets of the two trees of a sentence."""
    spoken = without_traces(gold).leaves
    length = len(spoken)
    expected, found = _compared(gold), _compared(predicted)
    fault = _fault(expected.leaves, found.leaves)
    if fault and found.leaves and len(expected.leaves) != len(found.leaves):
        # Where one tree has other tags for punctuation, the numbers say little.
        fault = _different_word(spoken, without_traces(predicted).leaves) or fault
    if fault or not found.leaves:
        status: Status = "error" if found.leaves else "skip"
        return SentenceCounts(length=length, status=status, fault=fault)
    matches = Counter(expected.constituents) & Counter(found.constituents)
    tags = zip(expected.leaves, found.leaves, strict=True)
    return SentenceCounts(
        length=length,
        matched=matches.total(),
        gold=len(expected.constituents),
        predicted=len(found.constituents),
        crossing=_crossing(expected, found),
        words=len(expected.leaves),
        correct_tags=sum(_same(one.tag) == _same(other.tag) for one, other in tags),
    )


def _compared(tree: Tree) -> Tree:
    """Return the leaves and brackets of a tree that are compared."""
    tree = without_leaves(tree, DELETED)
    brackets = [
        Constituent(_same(FUNCTION.sub("", label)), start, end)
        for label, start, end in tree.constituents
    ]
    return replace(
        tree, constituents=tuple([one for one in brackets if one.label not in DELETED])
    )


def _same(label: str) -> str:
    return EQUIVALENT.get(label, label)


def _fault(expected: Sequence[Leaf], found: Sequence[Leaf]) -> str:
    if expected and not found:
        return "no words"
    if len(expected) != len(found):
        return f"{counted(len(found), 'word')} for {len(expected)}"
    return _different_word(expected, found)


def _different_word(expected: Sequence[Leaf], found: Sequence[Leaf]) -> str:
    """Describe the first word that differs, if both have equally many words."""
    if len(expected) != len(found):
        return ""
    for leaf, other in zip(expected, found, strict=True):
        if leaf.word != other.word:
            return f"`{other.word}` for `{leaf.word}`"
    return ""


def _crossing(gold: Tree, predicted: Tree) -> int:
    # Gold brackets around a boundary between words are nested. If a bracket that begins
    # or ends there crosses one of them, it crosses the innermost.
    innermost = _innermost(gold)

    def crosses(start: int, end: int) -> bool:
        at_start, at_end = innermost[start], innermost[end]
        is_left = at_start is not None and at_start.end < end
        return is_left or (at_end is not None and start < at_end.start)

    return sum(crosses(one.start, one.end) for one in predicted.constituents)


def _innermost(tree: Tree) -> list[Constituent | None]:
    """Find the innermost bracket around each boundary between words, if there is one.

    A bracket that begins or ends at a boundary is not around it.
    """
    found: list[Constituent | None] = []
    around: list[Constituent] = []
    """Brackets around the boundary; they are in preorder, so the last is innermost."""
    later = deque(tree.constituents)
    for boundary in range(len(tree.leaves) + 1):
        while around and around[-1].end <= boundary:
            around.pop()
        found.append(around[-1] if around else None)
        while later and later[0].start == boundary:
            around.append(later.popleft())
    return found


def _figures(sentences: Sequence[SentenceCounts]) -> BracketFigures:
    valid = [one for one in sentences if one.status == "valid"]
    matched = sum(one.matched for one in valid)
    gold = sum(one.gold for one in valid)
    predicted = sum(one.predicted for one in valid)
    crossing = sum(one.crossing for one in valid)
    words = sum(one.words for one in valid)
    correct_tags = sum(one.correct_tags for one in valid)
    recall, precision = percentage(matched, gold), percentage(matched, predicted)
    complete = [one for one in valid if one.matched == one.gold == one.predicted]
    return BracketFigures(
        sentences=len(sentences),
        errors=sum(one.status == "error" for one in sentences),
        skipped=sum(one.status == "skip" for one in sentences),
        valid=len(valid),
        matched=matched,
        gold=gold,
        predicted=predicted,
        crossing=crossing,
        words=words,
        correct_tags=correct_tags,
        recall=recall,
        precision=precision,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete_match=percentage(len(complete), len(valid)),
        average_crossing=crossing / max(len(valid), 1),
        no_crossing=percentage(sum(not one.crossing for one in valid), len(valid)),
        few_crossing=percentage(sum(one.crossing <= FEW for one in valid), len(valid)),
        tagging_accuracy=percentage(correct_tags, words),
    )


def percentage(part: int, whole: int) -> float:
    """Return a share in percent; 0 if the whole is 0."""
    # EVALB's order of operations: another one rounds some figures differently.
    return 100.0 * part / whole if whole else 0.0


# EVALB's own spelling.
HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
"""
RULE = "=" * 76
STATUS = {"valid": 0, "error": 1, "skip": 2}


def evalb_report(score: BracketScore) -> str:
    """Format the table of sentences and the summary as EVALB does."""
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
