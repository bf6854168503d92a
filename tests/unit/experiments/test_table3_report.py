"""Report on Table 3 for given results."""

from dataclasses import replace

import pytest

from transduce.experiments.experiment import settings
from transduce.experiments.table3 import RowResult, Table3, as_report, scaled_base
from transduce.metrics.comparison import SystemScore
from transduce.report.report import Report, Table, plain


def result(row: str, difference: float, p: float | None) -> RowResult:
    return RowResult(
        row=row,
        changes={} if row == "base" else {"model.num_heads": 1, "model.d_k": 64},
        seeds=(1, 2),
        parameters=1_234_567,
        steps=2_000,
        passes=13,
        slowed_seeds=(2,) if row == "C-N2" else (),
        perplexity=8.126,
        bleu=SystemScore(
            score=30 + difference,
            interval=1.25,
            difference=difference,
            bootstrap_p=p,
            randomisation_p=p,
        ),
        bleu_by_seed=(29.5, 30.25),
    )


TABLE = Table3(
    settings=settings(scaled_base(0.25, 2_000)),
    files={"source": ["/data/a.en"], "dev_target": ["/d.de"]},
    precision="bf16",
    num_pairs=29_000,
    num_sentences=1_014,
    signatures=("by bootstrap", "by shuffles"),
    rows=(
        result("base", 0.0, None),
        result("A-h1", -1.5, 0.01),
        result("A-h16", 0.25, 0.4),
        result("C-N2", 0.5, 0.03),
    ),
    failures={"big-seed1": "It was killed (SIGKILL)."},
)


def tables(report: Report) -> list[list[list[str]]]:
    parts = (part for section in report.sections for part in section.parts)
    return [
        [[plain(cell) for cell in row] for row in part.rows]
        for part in parts
        if isinstance(part, Table)
    ]


def test_rows_are_shown_beside_the_papers() -> None:
    differences, figures, *_ = tables(as_report(TABLE))
    assert differences == [
        ["base", "30.00", "±1.25", "25.8", "", "", "", ""],
        [
            "A-h1", "28.50", "±1.25", "24.9", "-1.50", "-0.9", "0.0100",
            "agrees, significant",
        ],
        [
            "A-h16", "30.25", "±1.25", "25.8", "+0.25", "+0.0", "0.4000",
            "no change to compare",
        ],
        [
            "C-N2", "30.50", "±1.25", "23.7", "+0.50", "-2.1", "0.0300",
            "opposes, significant",
        ],
    ]  # fmt: skip
    assert figures[1] == [
        "A-h1", "1,234,567", "65", "2,000", "13", "8.13", "5.29",
        "1: 29.50, 2: 30.25",
    ]  # fmt: skip


def test_the_report_names_the_search_that_scored() -> None:
    assert "on the dev text, by beam search" in str(as_report(TABLE))
    greedy = replace(TABLE, settings={**TABLE.settings, "search.beam_size": 1})
    assert "on the dev text, by greedy search" in str(as_report(greedy))


def test_large_differences_are_summarized() -> None:
    text = str(as_report(TABLE))
    assert (
        "2 of these rows differed from base by 0.7 BLEU or more in the paper; 1 of "
        "them agreed in direction; these did not: C-N2."
    ) in text


def test_failures_are_reported_with_their_reasons() -> None:
    assert ["big-seed1", "It was killed (SIGKILL)."] in tables(as_report(TABLE))[2]
    without = as_report(replace(TABLE, failures={}))
    assert "Runs that failed" not in [section.title for section in without.sections]


def test_the_report_has_the_settings_that_differ_from_the_papers() -> None:
    *_, base, changed = tables(as_report(TABLE))
    assert base == [
        ["tokenizer.vocab_size", "9250", "37000"],
        ["model.d_model", "128", "512"],
        ["model.d_ff", "512", "2048"],
        ["model.d_k", "16", "64"],
        ["model.d_v", "16", "64"],
        ["training.steps", "2000", "100000"],
        ["training.warmup_steps", "400", "4000"],
    ]
    assert changed[0] == ["A-h1", "model.num_heads=1, model.d_k=64"]


def test_the_report_states_whether_the_base_is_the_papers() -> None:
    report = as_report(replace(TABLE, settings=settings(scaled_base())))
    assert "The base has the paper's settings throughout." in str(report)


@pytest.mark.parametrize(
    "said",
    [
        "source: a.en; dev target: d.de. The training text has 29,000 pairs",
        "1,014 sentences. Matrix products in bf16.",
        "at half the learning rate: C-N2-seed2.",
        "by bootstrap",
    ],
)
def test_the_report_has_the_protocol(said: str) -> None:
    assert said in str(as_report(TABLE))


def test_the_picture_has_the_names_of_the_rows() -> None:
    [picture] = as_report(TABLE).pictures()
    for row in ("A-h1", "A-h16", "C-N2"):
        assert f">{row}<" in picture.svg
    assert ">base<" in picture.svg  # the line


def test_a_report_without_comparisons_has_no_picture() -> None:
    for rows in ((), TABLE.rows[:1]):
        assert as_report(replace(TABLE, rows=rows)).pictures() == []
