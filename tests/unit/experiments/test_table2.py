"""Training costs of the paper, our own counts, and forecasts."""

from dataclasses import replace

import pytest

from transduce.analysis.cost import Cluster, estimate_flops, forecast, utilisation
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.experiments.resuming import Environment
from transduce.experiments.table2 import (
    P100S,
    PAPER_HOURS,
    PAPER_ROWS,
    OurRow,
    Table2,
    as_report,
    training_cost,
)
from transduce.metrics.scores import corpus_bleu, paper_bleu
from transduce.report.report import Report, Table, plain

ROWS = {row.model: row for row in PAPER_ROWS}
MODELS = {"base": "Transformer (base model)", "big": "Transformer (big)"}
OURS = OurRow(
    run="runs/mine",
    bleu=corpus_bleu(["ein Hund läuft"], ["ein Hund rennt weg"]),
    paper_bleu=paper_bleu(["ein Hund läuft hier"], ["ein Hund läuft hier"]),
    seconds=9000.0,
    flops=1.8e15,
)
TABLE = Table2(
    ours=(OURS,),
    costs=(training_cost("base"), training_cost("multi30k")),
    cluster=Cluster(name="Abacus", tflops=2.0, num_devices=1),
)


def tables(report: Report) -> list[list[list[str]]]:
    parts = (part for section in report.sections for part in section.parts)
    return [
        [[plain(cell) for cell in row] for row in part.rows]
        for part in parts
        if isinstance(part, Table)
    ]


@pytest.mark.parametrize("name", PAPER_HOURS)
def test_the_papers_costs_follow_from_its_time_and_devices(name: str) -> None:
    row = ROWS[MODELS[name]]
    estimated = estimate_flops(3600 * PAPER_HOURS[name], P100S)
    assert row.flops_en_de == row.flops_en_fr == pytest.approx(estimated, rel=0.01)


@pytest.mark.parametrize(
    ("name", "flops", "share"), [("base", 9.5e17, 0.29), ("big", 9.7e18, 0.42)]
)
def test_counted_flops_are_a_share_of_the_papers(
    name: str, flops: float, share: float
) -> None:
    cost = training_cost(name)
    assert cost.flops == pytest.approx(flops, rel=0.01)
    used = utilisation(cost.flops, 3600 * PAPER_HOURS[name], P100S)
    assert used == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("name", PAPER_HOURS)
def test_the_forecast_explains_the_papers_time(name: str) -> None:
    least, most = forecast(training_cost(name).flops, P100S)
    assert least <= 3600 * PAPER_HOURS[name] <= most
    assert most < 1.6 * least


def test_costs_are_of_the_whole_training() -> None:
    base = PRESETS["base"]
    cost = training_cost("base")
    pairs = base.training.steps * base.batching.target_tokens / 27
    assert cost.flops == pytest.approx(3 * cost.by_part.total * pairs)


@pytest.mark.parametrize(
    "name",
    ["gnmt-en-de", "moe-en-de", "convs2s-en-fr", "bytenet-en-de", "deep-att-en-fr"],
)
def test_presets_of_all_architectures_have_a_forecast(name: str) -> None:
    cost = training_cost(name)
    assert cost.by_part is None
    tables_of_both = tables(
        as_report(replace(TABLE, costs=(training_cost("base"), cost)))
    )
    assert [row[0] for row in tables_of_both[3]] == ["base"]
    assert [row[0] for row in tables_of_both[4]] == ["base", name]
    assert tables_of_both[4][1][1] == f"{cost.flops:.1e}".replace("e+", "e")
    alone = as_report(replace(TABLE, costs=(cost,)))
    assert "FLOPs by part" not in [section.title for section in alone.sections]


def test_french_has_its_own_vocabulary() -> None:
    ratio = training_cost("base-en-fr").by_part.output / (
        training_cost("base").by_part.output
    )
    assert ratio == pytest.approx(32_000 / 37_000)


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean `base`"):
        training_cost("bsae")


def test_a_preset_without_a_model_of_its_own_has_no_cost() -> None:
    with pytest.raises(ConfigError, match="`adapt` has the model that a run starts"):
        training_cost("adapt")


def test_transformers_lead_for_german_without_ensembles() -> None:
    german = {row.model: row.bleu_en_de for row in PAPER_ROWS if row.bleu_en_de}
    assert max(german, key=german.__getitem__) == "Transformer (big)"
    others = [score for model, score in german.items() if "Transformer" not in model]
    # "more than 2.0 BLEU" better than the best before, ensembles included.
    assert german["Transformer (big)"] - max(others) > 2.0
    assert len(PAPER_ROWS) == 10


def test_the_report_has_every_table() -> None:
    paper, ours, trainings, parts, forecasts = tables(as_report(TABLE))
    assert ["GNMT + RL", "24.60", "39.92", "2.3e19", "1.4e20"] in paper
    assert ["ByteNet", "23.75", "", "", ""] in paper
    assert ours == [
        [
            "runs/mine", "100.00", f"{OURS.bleu.score:.2f}", "2.5 hours",
            "1.8e16", "1.8e15", "10.0%",
        ]
    ]  # fmt: skip
    assert trainings[0][2:] == ["3.3e18", "9.5e17", "29.0%"]
    assert trainings[1][2:] == ["2.3e19", "9.7e18", "42.1%"]
    assert [row[0] for row in parts] == ["base", "multi30k"]
    shares = [float(cell.rstrip("%")) for cell in parts[0][1:5]]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert forecasts[0][:3] == ["base", "9.5e17", "8.1 hours - 12.4 hours"]


def test_scores_are_shown_with_their_protocols() -> None:
    text = str(as_report(TABLE))
    assert OURS.bleu.signature in text
    assert OURS.paper_bleu.signature in text
    assert "Cost on 1 x Abacus of 2 TFLOPS." in text


def test_a_report_without_runs_has_no_table_of_runs() -> None:
    report = as_report(replace(TABLE, ours=()))
    assert [section.title for section in report.sections] == [
        "The paper's table",
        "Training in the paper",
        "FLOPs by part",
        "Forecast",
    ]


@pytest.mark.parametrize(
    ("load", "is_told"), [(None, False), (0.2, False), (3.0, True)]
)
def test_a_speed_measured_under_load_causes_a_warning(
    load: float | None, is_told: bool
) -> None:
    text = str(as_report(replace(TABLE, load=load)))
    assert ("the measured speed may be far too low" in text) == is_told


def test_the_papers_machine_is_shown_once() -> None:
    *_, forecasts = tables(as_report(replace(TABLE, cluster=P100S)))
    assert {len(row) for row in forecasts} == {3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1.5 seconds"),
        (119.0, "119.0 seconds"),
        (120.0, "2.0 minutes"),
        (43_200.0, "12.0 hours"),
        (302_400.0, "3.5 days"),
        (86_400_000.0, "1,000.0 days"),
    ],
)
def test_a_time_is_shown_in_a_readable_unit(seconds: float, text: str) -> None:
    ours = replace(OURS, seconds=seconds)
    assert tables(as_report(replace(TABLE, ours=(ours,))))[1][0][3] == text


HERE = Environment(
    device="cpu", processor="Abacus", precision="fp32", num_processes=1,
    num_threads=2, instructions="avx2", torch="2", transduce="1",
)  # fmt: skip
RUN_HERE = replace(OURS, computing=HERE, waited=0.01)
MEASURED = replace(TABLE, ours=(RUN_HERE,), measured=HERE, waited=0.02)


def told_utilisation(table: Table2) -> tuple[str, str]:
    """Cell of the utilisation and text of the report."""
    text = str(as_report(table))
    [row] = [
        row
        for part in tables(as_report(table))
        for row in part
        if row[0] == "runs/mine"
    ]
    reason = text.partition("utilisation is not shown, as ")[2]
    return row[-1], reason


def test_utilisation_is_shown_for_a_run_on_the_measured_hardware() -> None:
    assert told_utilisation(MEASURED) == ("10.0%", "")
    two = replace(HERE, num_processes=2, num_threads=1)  # the same number of threads
    same = replace(MEASURED, ours=(replace(RUN_HERE, computing=two),))
    assert told_utilisation(same)[0] == "10.0%"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (replace(MEASURED, waited=0.5), "this machine was busy when its speed was"),
        (
            replace(MEASURED, ours=(replace(RUN_HERE, waited=0.4),)),
            "the machine was busy during training: 40% of the time",
        ),
        (replace(MEASURED, ours=(OURS,)), "its log is from an older version"),
        (
            replace(MEASURED, measured=replace(HERE, num_threads=1)),
            "its threads or devices was 2, but the speed was measured with 1",
        ),
        (
            replace(MEASURED, measured=replace(HERE, precision="bf16")),
            "its precision was fp32, but the speed was measured with bf16",
        ),
        (
            replace(MEASURED, measured=replace(HERE, processor="Pascaline")),
            "its processor was Abacus, but the speed was measured with Pascaline",
        ),
        (
            replace(MEASURED, ours=(replace(RUN_HERE, flops=3.6e16),)),
            "it would be 200%",
        ),
        (
            replace(TABLE, ours=(replace(OURS, flops=3.6e16),)),
            "it would be 200%",
        ),
    ],
)
def test_utilisation_is_not_shown_if_hardware_differs(
    table: Table2, reason: str
) -> None:
    told, said = told_utilisation(table)
    assert told == "–"
    assert said.startswith(reason)
