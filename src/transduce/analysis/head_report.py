"""A survey of heads as tables, words and pictures."""

from collections.abc import Iterator, Sequence
from typing import get_args

from transduce.analysis.figures import HeadValues, draw_heads
from transduce.analysis.head_annotation import AlignmentError, Linking, LinkSurvey
from transduce.analysis.head_statistics import (
    LEGEND,
    HeadName,
    statistics_table,
)
from transduce.analysis.head_survey import AnnotatedSurvey, HeadSurvey
from transduce.errors import counted
from transduce.model.config import ATTENTION_KINDS
from transduce.report.content import (
    Part,
    Picture,
    Report,
    Section,
    Table,
    columns,
)


def as_report(
    survey: HeadSurvey, annotated: AnnotatedSurvey | None, model: str, corpus: str
) -> Report:
    """All that was found; some of it only of the built-in grammar."""
    sections = [
        Section(title="Heads that follow positions", parts=tuple(_positional(survey))),
        Section(title="What each head does", parts=tuple(_statistics(survey))),
    ]
    if annotated is not None:
        sections += [
            Section(title="Pronouns and syntax", parts=tuple(_links(annotated))),
            Section(title="Alignment", parts=tuple(_alignment(annotated))),
        ]
    sections.append(Section(title="Without a head", parts=tuple(_pruning(survey))))
    pairs = counted(survey.num_pairs, "pair")
    return Report(
        title=f"The heads of {model} on {pairs} of {corpus}",
        sections=tuple(sections),
    )


def _positional(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        "The relative position around which a head has most weight: the share of the "
        "weight on it and the two beside it, and what would be there if each token "
        "attended alike to all that it may. 0 is a token itself, -1 the one before."
    )
    ranked = sorted(survey.offsets, key=lambda each: each.share, reverse=True)
    yield Table(
        columns=columns("head", "around", "share", "if even"),
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
    yield _picture("positions", "Share of the weight around one position", values)


def _statistics(survey: HeadSurvey) -> Iterator[Part]:
    yield f"Means over all tokens. {LEGEND}"
    yield statistics_table(survey.statistics)
    yield _picture(
        "sharpness",
        "Sharpness: the greatest weight of a token",
        [(each.head, each.sharpness) for each in survey.statistics],
    )


def _links(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "How often the most accurate heads attend to the right word most of all, "
        "themselves and the end left out; how much of their weight is on it; and how "
        "often a look at a fixed distance would find it. A translation looks from "
        "where the decoder writes it into the source."
    )
    heads = ("links", "best head", "right", "weight", "second", "right")
    yield Table(
        columns=columns("link", *heads, "distance", "right"),
        rows=tuple(map(_link_row, annotated.links)),
    )
    for survey in annotated.links:
        if survey.kind.startswith("it "):
            values = [(each.head, each.accuracy) for each in survey.heads]
            yield _picture("antecedents", f"{survey.kind}: how often right", values)


def _link_row(survey: LinkSurvey) -> tuple[str, ...]:
    best, second = survey.heads[0], survey.heads[min(1, len(survey.heads) - 1)]
    return (
        survey.kind,
        f"{survey.num_links:,}",
        str(best.head),
        f"{best.accuracy:.0%}",
        f"{best.weight:.2f}",
        str(second.head),
        f"{second.accuracy:.0%}",
        f"{survey.offset:+d}",
        f"{survey.offset_accuracy:.0%}",
    )


def _alignment(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Alignment error rate (Och and Ney, 2003) of the encoder-decoder attention, "
        "between words, against the grammar's own alignment: 0 % if all links are "
        "there and right. A target word attends where the decoder writes it, or where "
        "it reads it, a step later. It is linked to the source word that it attends to "
        "most (by target), a source word to the target word that attends most to it "
        "(by source), or either."
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
        *(f"{each.error_rate:.1%}" for each in errors),
    )


def _pruning(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        f"The loss of the whole model is {survey.loss:.4f} nats per target token. One "
        "head at a time is masked, so that it adds nothing to what its layer puts out "
        "(Michel et al., 2019)."
    )
    yield Table(
        columns=columns("head", "loss", "more by"),
        rows=tuple(
            (str(each.head), f"{each.loss:.4f}", f"{each.loss - survey.loss:+.4f}")
            for each in survey.pruned
        ),
    )
    values = [(each.head, each.loss - survey.loss) for each in survey.pruned]
    yield _picture("pruning", "Loss without each head: nats per target token", values)


def _picture(name: str, title: str, values: list[tuple[HeadName, float]]) -> Picture:
    present = {head.kind for head, _ in values}
    kinds = [kind for kind in ATTENTION_KINDS if kind in present]
    grids = [
        HeadValues(
            kind=kind,
            values={(h.layer, h.head): v for h, v in values if h.kind == kind},
        )
        for kind in kinds
    ]
    return draw_heads(name, title, grids)
