"""Report of a survey of attention heads, with tables and pictures."""

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from transduce.analysis.figures import draw_heads
from transduce.analysis.grammar_heads import (
    AlignmentError,
    AnnotatedSurvey,
    Linking,
    LinkSurvey,
)
from transduce.analysis.heads import (
    LEGEND,
    PAIR,
    HeadName,
    HeadSurvey,
    statistics_table,
)
from transduce.errors import counted, percent
from transduce.model.config import ATTENTION_KINDS
from transduce.report.report import Part, Picture, Report, Section, Table, columns


def as_report(
    survey: HeadSurvey,
    annotated: AnnotatedSurvey | None,
    model: str,
    corpus: str,
    unit: str = PAIR,
) -> Report:
    """Report on all heads; `annotated` is for the built-in grammar only.

    `unit` names the unit of the corpus, such as "pair".
    """
    sections = [
        Section(title="Heads that follow positions", parts=tuple(_positional(survey))),
        Section(title="Statistics of the heads", parts=tuple(_statistics(survey))),
    ]
    if annotated is not None:
        sections += [
            Section(title="Pronouns and syntax", parts=tuple(_links(annotated))),
            Section(title="Alignment", parts=tuple(_alignment(annotated))),
        ]
    sections.append(Section(title="Pruning", parts=tuple(_pruning(survey))))
    pairs = counted(survey.num_pairs, unit)
    return Report(
        title=f"The heads of {model} on {pairs} of {corpus}",
        sections=tuple(sections),
    )


def _positional(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        "The relative position around which each head has the most weight. The share "
        "is the weight on this position and its two neighbours; the last column is the "
        "same for uniform attention over all unmasked tokens. Position 0 is the token "
        "itself, -1 the previous one."
    )
    ranked = sorted(survey.offsets, key=lambda each: each.share, reverse=True)
    yield Table(
        columns=columns("head", "position", "share", "if uniform"),
        rows=tuple(
            (
                str(each.head),
                f"{each.offset:+d}" if each.offset else "0",
                f"{each.share:.2f}",
                f"{each.even_share:.2f}",
            )
            for each in ranked
        ),
    )
    values = [(each.head, each.share) for each in survey.offsets]
    yield _picture("positions", "Weight around the preferred position", values)


def _statistics(survey: HeadSurvey) -> Iterator[Part]:
    yield f"Means over all tokens. {LEGEND}"
    yield statistics_table(survey.statistics)
    yield _picture(
        "sharpness",
        "Sharpness: greatest weight of a query",
        [(each.head, each.sharpness) for each in survey.statistics],
    )


def _links(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Accuracy of the two best heads for each kind of link: how often the linked "
        "word has the greatest weight, apart from the word itself and the end token. "
        "Weight is the best head's mean weight on the linked word. For "
        "comparison, the last columns are the most frequent distance of the linked "
        "word and the accuracy of always choosing that distance. Translations of "
        "pronouns attend to the source at the step that outputs them."
    )
    heads = ("links", "best head", "accuracy", "weight", "second", "accuracy")
    yield Table(
        columns=columns("link", *heads, "distance", "accuracy"),
        rows=tuple(map(_link_row, annotated.links)),
    )
    for survey in annotated.links:
        if survey.kind.startswith("it "):
            values = [(each.head, each.accuracy) for each in survey.heads]
            yield _picture("antecedents", f"{survey.kind}: accuracy", values)


def _link_row(survey: LinkSurvey) -> tuple[str, ...]:
    best, second = survey.heads[0], survey.heads[min(1, len(survey.heads) - 1)]
    return (
        survey.kind,
        f"{survey.num_links:,}",
        str(best.head),
        percent(best.accuracy),
        f"{best.weight:.2f}",
        str(second.head),
        percent(second.accuracy),
        f"{survey.offset:+d}",
        percent(survey.offset_accuracy),
    )


def _alignment(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Alignment error rate (Och and Ney, 2003) of cross-attention between "
        "words, against the grammar's alignment; 0 % means that all links are found "
        "and right. The attention of a target word is taken at the step that outputs "
        "it (written), or at the next step, whose input it is (read). By target, each "
        "target word is linked to the source word of the greatest weight; by source, "
        "each source word to the target word of the greatest weight; by either, both."
    )
    heads = [f"{p}, by {b}" for p in ("written", "read") for b in get_args(Linking)]
    by_head: dict[tuple[int, bool, int], list[AlignmentError]] = {}
    for each in annotated.alignment:
        # The mean of a layer's heads comes after them.
        place = (each.layer, each.head is None, each.head or 0)
        by_head.setdefault(place, []).append(each)
    yield Table(
        columns=columns("encoder-decoder", *heads),
        rows=tuple(_error_row(by_head[key]) for key in sorted(by_head)),
    )


def _error_row(errors: Sequence[AlignmentError]) -> tuple[str, ...]:
    first = errors[0]
    name = f"head {first.head}" if first.head else "mean of heads"
    return (
        f"layer {first.layer}, {name}",
        *(percent(each.error_rate, 1) for each in errors),
    )


def _pruning(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        f"The loss of the whole model is {survey.loss:.4f} nats per target token. The "
        "table has the loss with one head masked, so that its output is 0 (Michel et "
        "al., 2019)."
    )
    yield Table(
        columns=columns("head", "loss", "increase"),
        rows=tuple(
            (str(each.head), f"{each.loss:.4f}", f"{each.loss - survey.loss:+z.4f}")
            for each in survey.pruned
        ),
    )
    values = [(each.head, each.loss - survey.loss) for each in survey.pruned]
    title = "Increase of the loss without each head, in nats per target token"
    yield _picture("pruning", title, values)


def _picture(name: str, title: str, values: list[tuple[HeadName, float]]) -> Picture:
    grids = {}
    for kind in ATTENTION_KINDS:
        by_place = {(h.layer, h.head): v for h, v in values if h.kind == kind}
        if by_place:
            ordered = [by_place[place] for place in sorted(by_place)]
            grids[kind] = np.reshape(ordered, max(by_place))
    return draw_heads(name, title, grids)
