"""Table 2: BLEU and training cost, the paper's and ours (section 6.1).

A second report has the systems that `table2_training` trains: quality over their cost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from transduce.analysis.cost import (
    SUSTAINED_TFLOPS,
    UTILISATION,
    Cluster,
    estimate_flops,
    forecast,
    utilisation,
)
from transduce.analysis.path_lengths import PathLengths
from transduce.decoding.translator import load
from transduce.errors import (
    CheckpointError,
    ConfigError,
    RequestError,
    counted,
    duration,
    percent,
)
from transduce.experiments.experiment import described_files, failed_runs
from transduce.experiments.presets import ADAPT, RunConfig, preset
from transduce.experiments.resuming import Environment, recorded_environment
from transduce.experiments.run_folder import Entry, RunFolder, is_run
from transduce.experiments.table2_training import (
    MEAN_LENGTH,
    REFERENCE,
    SYSTEMS,
    UNMATCHED,
    CurvePoint,
    LoggedCost,
    Match,
    SystemResult,
    logged_cost,
    logged_updates,
    training_flops,
)
from transduce.machine import BUSY_LOAD, Precision
from transduce.metrics.scores import (
    BleuScore,
    Tokenize,
    choose_tokenization,
    corpus_bleu,
    language_for_paper_bleu,
    paper_bleu,
)
from transduce.model.config import ForwardFlops, ModelConfig, forward_flops
from transduce.model_folder import open_model
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
from transduce.text.corpus import SentencePair
from transduce.text.vocabulary import find_language_tag, languages_of

P100S = Cluster(name="P100", tflops=SUSTAINED_TFLOPS["P100"], num_devices=8)
"""Machine of the paper (section 5.2)."""
PAPER_HOURS = {"base": 12.0, "big": 3.5 * 24}
"""Training time in the paper by preset (section 5.2)."""
MAX_MISMATCH = 0.2
"""Relative difference of two numbers of parameters that are not about the same."""
BUSY_SHARE = 0.1
"""Share of time spent waiting for a core above which speeds are not comparable."""
NOT_SHOWN = "–"
"""Cell for a figure that is not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """Row of the table as the paper prints it; empty cells are None."""

    model: str
    bleu_en_de: float | None = None
    bleu_en_fr: float | None = None
    flops_en_de: float | None = None
    flops_en_fr: float | None = None


PAPER_ROWS = (
    PaperRow(model="ByteNet", bleu_en_de=23.75),
    PaperRow(model="Deep-Att + PosUnk", bleu_en_fr=39.2, flops_en_fr=1.0e20),
    PaperRow(
        model="GNMT + RL", bleu_en_de=24.6, bleu_en_fr=39.92,
        flops_en_de=2.3e19, flops_en_fr=1.4e20,
    ),
    PaperRow(
        model="ConvS2S", bleu_en_de=25.16, bleu_en_fr=40.46,
        flops_en_de=9.6e18, flops_en_fr=1.5e20,
    ),
    PaperRow(
        model="MoE", bleu_en_de=26.03, bleu_en_fr=40.56,
        flops_en_de=2.0e19, flops_en_fr=1.2e20,
    ),
    PaperRow(
        model="Deep-Att + PosUnk Ensemble", bleu_en_fr=40.4, flops_en_fr=8.0e20
    ),
    PaperRow(
        model="GNMT + RL Ensemble", bleu_en_de=26.30, bleu_en_fr=41.16,
        flops_en_de=1.8e20, flops_en_fr=1.1e21,
    ),
    PaperRow(
        model="ConvS2S Ensemble", bleu_en_de=26.36, bleu_en_fr=41.29,
        flops_en_de=7.7e19, flops_en_fr=1.2e21,
    ),
    PaperRow(
        model="Transformer (base model)", bleu_en_de=27.3, bleu_en_fr=38.1,
        flops_en_de=3.3e18, flops_en_fr=3.3e18,
    ),
    PaperRow(
        model="Transformer (big)", bleu_en_de=28.4, bleu_en_fr=41.8,
        flops_en_de=2.3e19, flops_en_fr=2.3e19,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """FLOPs of training a preset, computed from its settings."""

    preset: str
    by_part: ForwardFlops | None
    """FLOPs of a Transformer's forward pass of one sentence pair; None for other
    architectures."""
    flops: float
    """FLOPs of the whole training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Language and tokenizer by which the translations of runs are scored."""

    language: str | None = None
    """BCP 47 tag; None for the run's language or, if unknown, the paper's German."""
    tokenize: Tokenize = "auto"
    """Tokenizer of sacreBLEU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OurRow:
    """BLEU and cost of one of our runs, as a row of Table 2."""

    run: str
    bleu: BleuScore
    paper_bleu: BleuScore | None
    """BLEU by the paper's protocol; None for languages without spaces between words,
    as the Moses tokenizer splits at spaces."""
    seconds: float
    """Training time: the mean of the logged updates times their number."""
    flops: float
    """FLOPs counted during training."""
    computing: Environment | None = None
    """Hardware and software of the run's last start; None in older logs."""
    waited: float | None = None
    """Share of time that the threads waited for a core; None in older logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table2:
    """Our runs, the cost of presets, and the machine of the forecast."""

    ours: tuple[OurRow, ...]
    costs: tuple[TrainingCost, ...]
    cluster: Cluster
    """Machine of our runs and of the forecast."""
    load: float | None = None
    """Load average of the minute before the speed was measured; None if it was not."""
    measured: Environment | None = None
    """Hardware and software that the speed was measured on; None if it was not."""
    waited: float | None = None
    """Share of time that the measurement waited for a core; None without one."""


@cache  # it builds the model
def training_cost(name: str) -> TrainingCost:
    """Training cost of a preset, for pairs of `MEAN_LENGTH` sub-words per side.

    Raises `ConfigError` if there is no such preset, or if it has no model of its own.
    """
    run = preset(name)
    if name == ADAPT:
        raise ConfigError(
            f"The cost of a preset must follow from its model, but `{ADAPT}` has the "
            "model that a run starts from; leave this preset out."
        )
    model, length = run.sized_model, np.array([MEAN_LENGTH])
    by_part = None
    if isinstance(model, ModelConfig):
        by_part = forward_flops(model, length, length)
    return TrainingCost(preset=name, by_part=by_part, flops=training_flops(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Run with a model and a log of its updates."""

    path: Path
    config: RunConfig
    updates: list[Entry]
    """Log entries of updates; at least one."""
    cost: LoggedCost
    starts: list[Entry]
    """Log entries of the run's starts."""
    into: str | None = None
    """Language to translate into, of a run with several target languages."""


def logged_run(run: Path, language: str | None = None) -> LoggedRun:
    """Open a run and read the cost of its training from its log.

    `language` is that of the references, into which a run with several target languages
    translates; by default its own. Raises `CheckpointError` if the folder is no run or
    has no model, `DataError` without a log, and `RequestError` if the run parses or
    does not translate into the language.
    """
    if not is_run(run):
        raise CheckpointError(
            f"{run}: must be the folder of a run, whose log has the cost of its "
            "training, but is not; give the run's folder, not a model's."
        )
    folder, config = RunFolder.open(run)
    updates = logged_updates(folder)
    model = open_model(run)
    if model.symbols is not None:
        raise RequestError(
            f"{run}: the runs of Table 2 must translate, but this one parses; leave it "
            "out, or see `transduce reproduce table4`."
        )
    into, tags = None, model.tokenizer.language_tags
    if tags:
        into = language or config.languages.target or languages_of(tags)[0]
        find_language_tag(into, tags, f"{run}: the target language")
    return LoggedRun(
        path=run,
        config=config,
        updates=updates,
        cost=logged_cost(folder),
        starts=folder.log.entries("start"),
        into=into,
    )


def our_row(
    run: LoggedRun, pairs: Sequence[SentencePair], scoring: Scoring, device: str
) -> OurRow:
    """Score a run by both protocols, and read its cost from its log.

    Its model translates with its own search. Unset values of `scoring` default to
    the run's.
    """
    config, cost = run.config, run.cost
    shares = [entry.get("waited") for entry in run.updates]
    waited = [share for share in shares if isinstance(share, float)]
    references = [pair.target for pair in pairs]
    language = scoring.language or config.languages.target
    tokenize = (
        config.evaluation.tokenize if scoring.tokenize == "auto" else scoring.tokenize
    )
    tokenization = choose_tokenization(tokenize, language, references)
    moses = language_for_paper_bleu(language, references)
    translator = load(run.path, device=device, target_language=run.into)
    search = replace(translator.search, num_best=1)
    sources = (pair.source for pair in pairs)
    texts = [each.text for each in translator.translate_stream(sources, search)]
    return OurRow(
        run=str(run.path),
        bleu=corpus_bleu(texts, references, tokenization=tokenization),
        paper_bleu=None if moses is None else paper_bleu(texts, references, moses),
        seconds=cost.seconds,
        flops=cost.flops,
        computing=recorded_environment(run.starts[-1]) if run.starts else None,
        waited=fmean(waited) if waited else None,
    )


def as_report(table: Table2) -> Report:
    """Report with the paper's rows and ours, their cost, and a forecast."""
    return Report(
        title="Table 2: BLEU and training cost",
        sections=(
            Section(title="The paper's table", parts=(PROTOCOL, _paper_table())),
            *([_our_section(table)] if table.ours else []),
            Section(title="Training in the paper", parts=(COUNTED, _paper_costs())),
            *_part_sections(table.costs),
            Section(
                title="Forecast",
                parts=(FORECAST, _forecast_table(table), *_warnings(table)),
            ),
        ),
    )


PROTOCOL = (
    "The paper's BLEU is of tokenized text with split compounds; sacreBLEU is about "
    "one point lower. The paper estimates FLOPs as time x devices x sustained speed. "
    "For the big model from English to French, its text says 41.0."
)
COUNTED = (
    "Estimated: as in the paper, from time and sustained speed. Counted: FLOPs of the "
    "model's matrix products, three times those of a forward pass, for sentences of "
    f"{MEAN_LENGTH} tokens without padding. Utilisation: counted over estimated."
)
PARTS = (
    "Share of each part in a forward pass of a Transformer; MFLOPs of that pass per "
    "source and target token; FLOPs of the whole training."
)
FORECAST = (
    f"Training time at {UTILISATION[1]:.0%} down to {UTILISATION[0]:.0%} utilisation, "
    "the range of published trainings of Transformers. The paper's base and big models "
    "took 12 hours and 3.5 days."
)


def _paper_table() -> Table:
    rows = tuple(
        (
            row.model,
            _bleu(row.bleu_en_de),
            _bleu(row.bleu_en_fr),
            _flops(row.flops_en_de),
            _flops(row.flops_en_fr),
        )
        for row in PAPER_ROWS
    )
    heads = ("BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr")
    return Table(columns=columns("model", *heads), rows=rows)


def _our_section(table: Table2) -> Section:
    heads = (
        "BLEU as in the paper",
        "sacreBLEU",
        "time",
        "FLOPs estimated",
        "counted",
        "utilisation",
    )
    rows = tuple(
        (
            row.run,
            _bleu(row.paper_bleu.score if row.paper_bleu else None),
            _bleu(row.bleu.score),
            _time(row.seconds),
            *_costs(row.flops, row.seconds, table.cluster)[:2],
            _utilisation(row, table),
        )
        for row in table.ours
    )
    parts: list[Part] = [
        f"Cost on {table.cluster}.",
        Table(columns=columns("run", *heads), rows=rows),
    ]
    parts += [f"{row.run}: {score}" for row in table.ours for score in _scores(row)]
    parts += [
        f"{row.run}: utilisation is not shown, as {reason}."
        for row in table.ours
        if (reason := _obstacle(row, table)) is not None
    ]
    return Section(title="Our runs", parts=tuple(parts))


def _utilisation(row: OurRow, table: Table2) -> str:
    if _obstacle(row, table) is not None:
        return NOT_SHOWN
    return f"{utilisation(row.flops, row.seconds, table.cluster):.1%}"


def _obstacle(row: OurRow, table: Table2) -> str | None:
    """Why a run's speed is not comparable with the cluster's; None if it is."""
    if table.measured is not None:
        if (table.waited or 0.0) > BUSY_SHARE:
            return (
                "this machine was busy when its speed was measured: "
                f"{percent(table.waited or 0.0)} of the time was spent waiting for a "
                "core"
            )
        if row.computing is None or row.waited is None:
            return "its log is from an older version, which did not record the hardware"
        if row.waited > BUSY_SHARE:
            return (
                "the machine was busy during training: "
                f"{percent(row.waited)} of the time was spent waiting for a core"
            )
        if (difference := _difference(row.computing, table.measured)) is not None:
            return difference
    if (share := utilisation(row.flops, row.seconds, table.cluster)) > 1:
        return f"it would be {percent(share)}: the run was faster than {table.cluster}"
    return None


def _difference(run: Environment, measured: Environment) -> str | None:
    """How a run's hardware differs from the measured one; None if it does not."""
    for name in ("device", "processor", "precision", "num_workers"):
        one, other = getattr(run, name), getattr(measured, name)
        if one != other:
            word = name.replace("num_", "").replace("workers", "threads or devices")
            return f"its {word} was {one}, but the speed was measured with {other}"
    return None


def _scores(row: OurRow) -> tuple[BleuScore, ...]:
    return (row.bleu,) if row.paper_bleu is None else (row.paper_bleu, row.bleu)


def _paper_costs() -> Table:
    rows = tuple(
        (
            name,
            f"{_time(3600 * hours)} on {P100S}",
            *_costs(training_cost(name).flops, 3600 * hours, P100S),
        )
        for name, hours in PAPER_HOURS.items()
    )
    heads = columns("model", "estimated", "counted", "utilisation")
    time = Column(name="training time", is_text=True)
    return Table(columns=(heads[0], time, *heads[1:]), rows=rows)


def _costs(flops: float, seconds: float, cluster: Cluster) -> tuple[str, str, str]:
    return (
        _flops(estimate_flops(seconds, cluster)),
        _flops(flops),
        f"{utilisation(flops, seconds, cluster):.1%}",
    )


def _part_sections(costs: Sequence[TrainingCost]) -> Iterator[Section]:
    """Section with the parts of the Transformers, if there are any."""
    parts = [field.name for field in fields(ForwardFlops)]
    rows = tuple(
        (
            cost.preset,
            *(f"{getattr(by_part, part) / by_part.total:.1%}" for part in parts),
            f"{by_part.total / MEAN_LENGTH / 1e6:,.1f}",
            _flops(cost.flops),
        )
        for cost in costs
        if (by_part := cost.by_part) is not None
    )
    if not rows:
        return
    names = [part.replace("_", "-") for part in parts]
    heads = columns("preset", *names, "MFLOPs", "training")
    shares = Table(columns=heads, rows=rows)
    yield Section(title="FLOPs by part", parts=(PARTS, shares))


def _forecast_table(table: Table2) -> Table:
    clusters = list(dict.fromkeys((P100S, table.cluster)))
    rows = tuple(
        (cost.preset, _flops(cost.flops), *(_range(cost.flops, c) for c in clusters))
        for cost in table.costs
    )
    heads = columns("preset", "FLOPs", *(str(cluster) for cluster in clusters))
    return Table(columns=heads, rows=rows)


def _warnings(table: Table2) -> Iterator[str]:
    if table.load is not None and table.load > BUSY_LOAD:
        yield (
            f"Other programs were running (load {table.load:.1f}) when the speed of "
            "this machine was measured; the measured speed may be far too low."
        )


def _range(flops: float, cluster: Cluster) -> str:
    shortest, longest = forecast(flops, cluster)
    return f"{_time(shortest)} - {_time(longest)}"


def _bleu(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"


def _flops(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}".replace("e+", "e")


def _time(seconds: float) -> str:
    """Format a duration in days, hours, minutes or seconds."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTable2:
    """Results of all systems, and their common settings."""

    processors: tuple[str, ...]
    """Processors or accelerators that trained the systems."""
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


TRAINED_PROTOCOL = (
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
    "none": (
        "Sizes and numbers of updates are not matched: each system has those of its "
        "preset. `transduce reproduce table2 --scale` multiplies widths and "
        "vocabularies; `transduce reproduce table2 --steps` changes all numbers of "
        "updates in the same proportion."
    ),
}
CURVES = (
    "Likelihood of the dev text after each checkpoint, in bits per character, because "
    "tokens differ between systems; lower is better. Systems with a vocabulary of "
    "words are left out: an unknown word is one token for them, whatever its letters."
)
REACHED_BY_ALL = (
    "Cost until the dev text takes at most this many bits per character, the least "
    "that all these systems reach."
)
REACHED = (
    "Cost until the dev text takes at most this many bits per character: the least "
    "that all these systems reach, and the least that the base Transformer reaches."
)
PATHS = (
    "Operations that a signal passes between two positions that are n apart, measured "
    "in these very models: attention, a convolution, or a step of a recurrence counts "
    "as one. The longest path of the encoder, from source to target, and of the "
    "decoder; Table 1 gives their growth. A dash: some two positions have no path."
)


def trained_report(table: TrainedTable2) -> Report:
    """Report with results, learning curves, path lengths and settings."""
    singles = [each for each in table.results if each.curve]
    sections = [Section(title="Table 2 on this text", parts=_results(table))]
    if curves := _curves(singles):
        sections.append(Section(title="Learning curves", parts=curves))
    if table.paths:
        sections.append(Section(title="Path lengths", parts=_paths(table.paths)))
    if table.failures:
        sections.append(failed_runs(table.failures))
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
    results = Table(columns=heads, rows=rows)
    return (
        TRAINED_PROTOCOL,
        MATCHED[table.match],
        results,
        *_size_mismatches(table),
        *_diverged(table.results),
    )


def _size_mismatches(table: TrainedTable2) -> Iterator[str]:
    """Yield a sentence on systems that are not of the reference's size after all.

    Sizes are matched by the settings, before the vocabularies are learned.
    """
    singles = [each for each in table.results if not each.is_ensemble]
    reference = [each for each in singles if each.system == REFERENCE]
    if table.match != "parameters" or not reference:
        return
    wanted = reference[0].parameters
    others = [
        f"{name_of(each)} has {each.parameters:,}"
        for each in singles
        if each.system != UNMATCHED
        and abs(each.parameters - wanted) > MAX_MISMATCH * wanted
    ]
    if others:
        yield (
            f"Parameters differ by more than {percent(MAX_MISMATCH)} from the "
            f"{wanted:,} of the base Transformer: {'; '.join(others)}. Widths are "
            "matched before the vocabularies are learned, which are smaller than set "
            "if there is little text."
        )


def _diverged(results: Iterable[SystemResult]) -> Iterator[str]:
    """Yield a sentence on each system with diverged runs."""
    for result in results:
        if result.diverged:
            noun = "seed" if len(result.diverged) == 1 else "seeds"
            seeds = ", ".join(map(str, result.diverged))
            yield (
                f"The loss of {name_of(result)} diverged with {noun} {seeds}: such a "
                "run went back to a good checkpoint and continued at half the learning "
                "rate of its recipe."
            )


def _row(result: SystemResult) -> tuple[str, ...]:
    name = name_of(result)
    return (
        name,
        *(f"{score.bleu:.2f} ± {score.interval:.2f}" for score in result.scores),
        *(
            "" if score.paper_bleu is None else f"{score.paper_bleu:.2f}"
            for score in result.scores
        ),
        _flops(result.flops),
        duration(result.seconds),
        f"{result.parameters:,}",
        f"{result.steps:,}",
        ", ".join(map(str, result.seeds)),
        *_paper_cells(name),
    )


def _paper_cells(name: str) -> tuple[str, str]:
    """BLEU and FLOPs of a system in the paper: to German or, if missing, to French."""
    row = next((row for row in PAPER_ROWS if row.model == name), None)
    if row is None:
        return "", ""
    if row.bleu_en_de is None:
        return f"{_bleu(row.bleu_en_fr)} (en-fr)", _flops(row.flops_en_fr)
    return _bleu(row.bleu_en_de), _flops(row.flops_en_de)


Curve = Sequence[tuple[float, float]]
"""FLOPs of each checkpoint, and a value."""


def _curves(results: Sequence[SystemResult]) -> tuple[Part, ...]:
    """Curves of systems, and the costs of those that have bits per character."""
    bits = {
        each: [(p.flops, p.bits) for p in each.curve if p.bits is not None]
        for each in results
    }
    bleu = {
        each: [(p.flops, p.bleu) for p in each.curve if p.bleu is not None]
        for each in results
    }
    compared = {each: curve for each, curve in bits.items() if curve}
    parts: list[Part] = []
    if compared:
        title = "Bits per character of the dev text over training FLOPs"
        bits_picture = _picture("table2-bits", title, "bits per character", compared)
        parts += [CURVES, bits_picture]
    if bleu and all(bleu.values()):
        title = "Greedy BLEU of the dev text over training FLOPs"
        parts.append(_picture("table2-bleu", title, "BLEU", bleu))
    return (*parts, *_costs_to_levels(compared))


def _picture(
    name: str, title: str, unit: str, curves: Mapping[SystemResult, Curve]
) -> Picture:
    chart = Chart(
        name=name,
        title=title,
        x_label="FLOPs",
        y_label=unit,
        series=tuple(
            Series(
                label=name_of(each),
                x=[flops for flops, _ in curve],
                y=[value for _, value in curve],
                colour=list(SYSTEMS).index(each.system),
                drawn="curve",
            )
            for each, curve in curves.items()
        ),
        scale="log x",
    )
    return draw(chart)


def _costs_to_levels(bits: Mapping[SystemResult, Curve]) -> tuple[Part, ...]:
    """Tables of the cost to a likelihood, for systems that have bits per character."""
    if not bits:
        return ()
    lowest = {each: min(value for _, value in curve) for each, curve in bits.items()}
    by_base = [value for each, value in lowest.items() if each.system == REFERENCE]
    levels = dict.fromkeys([max(lowest.values()), *by_base])
    tables = [_reached(list(bits), level) for level in levels]
    return (REACHED if by_base else REACHED_BY_ALL, *tables)


def _reached(results: Sequence[SystemResult], bits: float) -> Table:
    """Table of the cost of each system; the base Transformer reaches every level."""
    found = {each: each.reached(bits) for each in results}
    base = next((p for each, p in found.items() if each.system == REFERENCE), None)
    heads = ["system", "updates", "FLOPs"]
    if base is not None:
        heads.append("times the Transformer's")
    rows = tuple(
        (name_of(each), *_cost_to(point, base)) for each, point in found.items()
    )
    title = f"Cost until {bits:.3f} bits per character"
    return Table(title=title, columns=columns(*heads), rows=rows)


def _cost_to(point: CurvePoint | None, base: CurvePoint | None) -> Iterator[str]:
    """Yield updates and FLOPs up to a point, and their ratio to those of the base."""
    yield NOT_SHOWN if point is None else f"{point.step:,}"
    yield NOT_SHOWN if point is None else _flops(point.flops)
    if base is not None:
        yield NOT_SHOWN if point is None else f"{point.flops / base.flops:.2f}"


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
    return NOT_SHOWN if number is None else str(number)


def _settings(table: TrainedTable2) -> tuple[Part, ...]:
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
        f"{described_files(table.files)}. {_computing(table)} "
        f"{counted(len(table.results), 'row')}.",
        *recipes,
    )


def _computing(table: TrainedTable2) -> str:
    """Return sentences on the processors and the precision of all trainings."""
    products = f"Matrix products in {table.precision}"
    if not table.processors:
        return f"{products}."
    text = f"{products}, on {' and '.join(table.processors)}."
    if len(table.processors) > 1:
        text += " Times on different processors cannot be compared."
    return text
