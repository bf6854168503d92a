"""Report on Table 2 trained: the systems' quality over their cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.analysis.path_lengths import PathLengths
from transduce.errors import counted, duration
from transduce.experiments.table2 import PAPER_ROWS
from transduce.experiments.table2_training import (
    REFERENCE,
    SYSTEMS,
    CurvePoint,
    Match,
    SystemResult,
)
from transduce.machine import Precision
from transduce.report.chart import Chart, Series, draw
from transduce.report.report import (
    Column,
    Part,
    Picture,
    Report,
    Section,
    Table,
    columns,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTable2:
    """Results of all systems, with what they have in common."""

    machine: str
    files: dict[str, list[str]]
    precision: Precision
    match: Match
    results: tuple[SystemResult, ...]
    recipes: dict[str, dict[str, str]]
    """Preset of each system, and its changed settings by full name."""
    paths: dict[str, tuple[PathLengths, ...]]
    """Path lengths measured in each system's model."""
    failures: dict[str, str]
    """Reason of each failure, by the run's name."""


PROTOCOL = (
    "All systems are trained on the same pairs and scored on the same text. BLEU is "
    "sacreBLEU, pooled over the seeds, with a 95 % interval by the bootstrap over "
    "sentences; then BLEU as the paper computes it. FLOPs are counted: those of the "
    "matrix products of all updates, without padding. An ensemble averages the "
    "probabilities of the trainings with different seeds. The paper's BLEU is of "
    "newstest2014 from English to German, or to French where marked; its FLOPs are "
    "estimated from time and sustained speed."
)
MATCHED = {
    "parameters": (
        "All systems but the big Transformer have about as many parameters as the base "
        "Transformer."
    ),
    "flops": (
        "All systems but the big Transformer train for about as many FLOPs as the base "
        "Transformer."
    ),
    "none": "Each system has the size and the number of updates of its preset.",
}
CURVES = (
    "Likelihood of the dev text after each checkpoint, in bits per character, because "
    "tokens differ between systems; lower is better. A word vocabulary is not "
    "comparable: an unknown word costs it one token."
)
REACHED = (
    "Cost until the dev text takes at most this many bits per character: the least "
    "that all systems reach, and what the base Transformer reaches in the end."
)
PATHS = (
    "Operations that a signal passes between two positions that are n apart, measured "
    "in these very models: attention, a convolution, or a step of a recurrence counts "
    "as one. The longest path of the encoder, from source to target, and of the "
    "decoder; Table 1 gives their growth. A dash: some two positions have no path."
)


def as_report(table: TrainedTable2) -> Report:
    """Report with results, learning curves, path lengths and settings."""
    singles = [each for each in table.results if each.curve]
    sections = [Section(title="Table 2 on this text", parts=_results(table))]
    if singles:
        sections.append(Section(title="Learning curves", parts=_curves(singles)))
    if table.paths:
        sections.append(Section(title="Path lengths", parts=_paths(table.paths)))
    if table.failures:
        sections.append(_failed(table.failures))
    sections.append(Section(title="Data and settings", parts=_settings(table)))
    return Report(
        title="Table 2: the paper's systems, trained", sections=tuple(sections)
    )


def name_of(result: SystemResult) -> str:
    """Name of a row in the paper's table."""
    name = SYSTEMS[result.system].name
    return f"{name} Ensemble" if result.is_ensemble else name


def _results(table: TrainedTable2) -> tuple[Part, ...]:
    tests = [score.test for score in table.results[0].scores] if table.results else []
    heads = columns(
        "system",
        *(f"BLEU {test}" for test in tests),
        *(f"as the paper, {test}" for test in tests),
        *("FLOPs", "time", "parameters", "updates", "seeds"),
        *("paper's BLEU", "paper's FLOPs"),
    )
    rows = tuple(_row(result) for result in table.results)
    return PROTOCOL, MATCHED[table.match], Table(columns=heads, rows=rows)


def _row(result: SystemResult) -> tuple[str, ...]:
    name = name_of(result)
    paper = next((row for row in PAPER_ROWS if row.model == name), None)
    bleu, flops = "", ""
    if paper is not None:
        bleu = (
            f"{paper.bleu_en_de:.2f}"
            if paper.bleu_en_de is not None
            else f"{paper.bleu_en_fr:.2f} (en-fr)"
        )
        cost = paper.flops_en_de if paper.bleu_en_de is not None else paper.flops_en_fr
        flops = "" if cost is None else _power(cost)
    return (
        name,
        *(f"{score.bleu:.2f} ± {score.interval:.2f}" for score in result.scores),
        *(
            "" if score.paper_bleu is None else f"{score.paper_bleu:.2f}"
            for score in result.scores
        ),
        _power(result.flops),
        duration(result.seconds),
        f"{result.parameters:,}",
        f"{result.steps:,}",
        ", ".join(map(str, result.seeds)),
        bleu,
        flops,
    )


def _curves(results: Sequence[SystemResult]) -> tuple[Part, ...]:
    common = max(min(point.bits for point in each.curve) for each in results)
    levels = [common]
    reference = [each for each in results if each.system == REFERENCE]
    if reference:
        levels.append(min(point.bits for point in reference[0].curve))
    tables = [_reached(results, level) for level in dict.fromkeys(levels)]
    return (CURVES, *_pictures(results), REACHED, *tables)


def _pictures(results: Sequence[SystemResult]) -> list[Picture]:
    likelihood = Chart(
        name="table2-bits",
        title="Bits per character of the dev text over training FLOPs",
        x_label="FLOPs",
        y_label="bits per character",
        series=tuple(
            Series(
                label=name_of(each),
                x=[point.flops for point in each.curve],
                y=[point.bits for point in each.curve],
                colour=list(SYSTEMS).index(each.system),
                drawn="curve",
            )
            for each in results
        ),
        scale="log x",
    )
    pictures = [draw(likelihood)]
    scored = {
        each: [point for point in each.curve if point.bleu is not None]
        for each in results
    }
    if all(scored.values()):
        bleu = Chart(
            name="table2-bleu",
            title="Greedy BLEU of the dev text over training FLOPs",
            x_label="FLOPs",
            y_label="BLEU",
            series=tuple(
                Series(
                    label=name_of(each),
                    x=[point.flops for point in points],
                    y=[point.bleu or 0.0 for point in points],
                    colour=list(SYSTEMS).index(each.system),
                    drawn="curve",
                )
                for each, points in scored.items()
            ),
            scale="log x",
        )
        pictures.append(draw(bleu))
    return pictures


def _reached(results: Sequence[SystemResult], bits: float) -> Table:
    found = {each: each.reached(bits) for each in results}
    base = next((p for each, p in found.items() if each.system == REFERENCE), None)
    rows = tuple(
        (
            name_of(each),
            "–" if point is None else f"{point.step:,}",
            "–" if point is None else _power(point.flops),
            _ratio(point, base),
        )
        for each, point in found.items()
    )
    return Table(
        title=f"Cost until {bits:.3f} bits per character",
        columns=columns("system", "updates", "FLOPs", "times the Transformer's"),
        rows=rows,
    )


def _ratio(point: CurvePoint | None, base: CurvePoint | None) -> str:
    if point is None or base is None:
        return "–"
    return f"{point.flops / base.flops:.2f}"


def _paths(paths: Mapping[str, Sequence[PathLengths]]) -> tuple[Part, ...]:
    lengths = [each.n for each in next(iter(paths.values()))]
    kinds = ("encoder", "source to target", "decoder")
    heads = columns("system", *(f"{kind}, n = {n}" for kind in kinds for n in lengths))
    rows = tuple(
        (
            SYSTEMS[system].name,
            *(_length(each.encoder) for each in measured),
            *(_length(each.between) for each in measured),
            *(_length(each.decoder) for each in measured),
        )
        for system, measured in paths.items()
    )
    return PATHS, Table(columns=heads, rows=rows)


def _length(number: int | None) -> str:
    return "–" if number is None else str(number)


def _failed(failures: Mapping[str, str]) -> Section:
    heads = (Column(name="run", is_text=True), Column(name="reason", is_text=True))
    table = Table(columns=heads, rows=tuple(failures.items()))
    return Section(title="Runs that failed", parts=(table,))


def _settings(table: TrainedTable2) -> tuple[Part, ...]:
    texts = "; ".join(
        f"{part.replace('_', ' ')}: {', '.join(Path(name).name for name in names)}"
        for part, names in table.files.items()
    )
    heads = (Column(name="setting", is_text=True), Column(name="value", is_text=True))
    recipes = [
        Table(
            title=f"{SYSTEMS[system].name}: its preset, and what differs from it",
            columns=heads,
            rows=tuple(changed.items()),
        )
        for system, changed in table.recipes.items()
    ]
    return (
        f"{texts}. Matrix products in {table.precision}, on {table.machine}. "
        f"{counted(len(table.results), 'row')}.",
        *recipes,
    )


def _power(number: float) -> str:
    return f"{number:.1e}".replace("e+", "e")
