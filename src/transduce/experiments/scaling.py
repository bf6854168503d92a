"""Additive, scaled and unscaled attention at growing d_k (section 3.2.1, footnote 4).

The first part measures scores of random queries and keys: their variance, and what the
softmax makes of them. The second trains a model with each kind of score and each d_k.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log
from pathlib import Path
from statistics import geometric_mean
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.architectures.config import num_parameters
from transduce.data.corpus_files import CorpusFiles
from transduce.device import torch_defaults
from transduce.errors import counted
from transduce.experiments.experiment import (
    Experiment,
    PresetRun,
    failed_runs,
    settings,
    with_seed,
)
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.quickstart import quickstart_files, write_corpus
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import Scores
from transduce.report.chart import Chart, Series, draw
from transduce.report.report import Part, Picture, Report, Section, Table, columns

KINDS: tuple[Scores, ...] = get_args(Scores)
PRESET = "quickstart"
MEASURED_WIDTHS = (4, 16, 64, 256, 1024)
"""Values of d_k for which scores are measured."""
NUM_QUERIES, NUM_KEYS = 512, 32
SEED = 1
MAX_HEADS, MAX_WIDTH = 64, 4096
EXPERIMENT_FORMAT = 1
EXPERIMENT = "scaling.json"
VARIANCE_DIGITS = 4
"""Significant digits of a variance in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStatistics:
    """Scores of random queries and keys, and their softmax.

    Components of queries and keys are independent, with mean 0 and variance 1, as in
    footnote 4.
    """

    kind: Scores
    d_k: int
    variance: float
    """Variance of a score; by the footnote d_k for dot products, and 1 if scaled."""
    entropy: float
    """Mean entropy of a query's weights, in nats."""
    largest_weight: float
    """Mean of the largest weight of a query."""
    gradient: float
    """Mean Frobenius norm of the Jacobian of the softmax."""


@torch_defaults()
def measure_scores(
    widths: Sequence[int], on_progress: Callable[[str], object]
) -> tuple[ScoreStatistics, ...]:
    """Measure all kinds of scores at each d_k, with the same queries and keys.

    Calls `on_progress` with the name of each step before it.
    """
    measured = []
    for d_k in widths:
        on_progress(f"Measuring scores at d_k = {d_k:,}...")
        generator = torch.Generator().manual_seed(SEED)
        query = torch.randn(NUM_QUERIES, 1, 1, d_k, generator=generator)
        key = torch.randn(NUM_QUERIES, 1, NUM_KEYS, d_k, generator=generator)
        for kind in KINDS:
            with torch.random.fork_rng(devices=()), torch.inference_mode():
                torch.manual_seed(SEED)  # of the additive score's weights
                attention = MultiHeadAttention(d_k, 1, d_k, d_k, kind)
                scores = attention.compute_scores(query, key)[:, 0, 0]
            measured.append(statistics_of(kind, d_k, scores))
    return tuple(measured)


def statistics_of(
    kind: Scores, d_k: int, scores: Float[Tensor, "queries keys"]
) -> ScoreStatistics:
    """Return the statistics of the scores of each query for all keys."""
    scores = scores.double()
    weights = scores.softmax(-1)
    squares = weights.square().sum(-1)
    # The Jacobian is diag(p) - p p^T.
    norm = squares - 2 * weights.pow(3).sum(-1) + squares.square()
    return ScoreStatistics(
        kind=kind,
        d_k=d_k,
        variance=float(scores.var()),
        entropy=float(torch.special.entr(weights).sum(-1).mean()),
        largest_weight=float(weights.amax(-1).mean()),
        gradient=float(norm.clamp(min=0).sqrt().mean()),
    )


def base_config(steps: int) -> RunConfig:
    """Settings of all trainings: small, and without dropout."""
    base = PRESETS[PRESET]
    return replace(
        base,
        model=replace(base.model, num_layers=1),
        batching=replace(base.batching, source_tokens=1_024, target_tokens=1_024),
        training=replace(
            base.training,
            steps=steps,
            warmup_steps=max(steps // 3, 1),
            checkpoint_steps=steps,
            keep_checkpoints=1,
        ),
        # The fastest: translations of the dev corpus are not part of the report.
        search=replace(base.search, beam_size=1),
    )


def varied(base: RunConfig, kind: Scores, d_k: int, heads: int) -> RunConfig:
    """Return the settings with one kind of score and one d_k.

    The whole model grows with d_k, as in the paper: d_model is the number of heads
    times d_k. Otherwise the initial weights (Glorot and Bengio, 2010) would shrink
    queries and keys as d_k grows, and with them the variance of scores.
    """
    d_model = heads * d_k
    model = replace(
        base.model,
        scores=kind,
        num_heads=heads,
        d_k=d_k,
        d_v=d_k,
        d_model=d_model,
        d_ff=2 * d_model,
    )
    return replace(base, model=model)


@dataclass(frozen=True, kw_only=True)
class ScoresRun(PresetRun):
    """Training with one kind of score, one d_k and one seed."""

    kind: Scores
    d_k: int


def scores_runs(
    folder: Path,
    base: RunConfig,
    widths: Sequence[int],
    heads: int,
    seeds: Sequence[int],
) -> list[ScoresRun]:
    """Return the runs of all kinds and widths, ordered by seed and then by width.

    Raises `ConfigError` if a width or a seed is impossible.
    """
    return [
        ScoresRun(
            row=f"{kind}-dk{d_k}",
            preset=PRESET,
            seed=seed,
            config=with_seed(varied(base, kind, d_k, heads), seed),
            folder=folder,
            kind=kind,
            d_k=d_k,
        )
        for seed in dict.fromkeys(seeds)
        for d_k in sorted(set(widths))
        for kind in KINDS
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingExperiment(Experiment):
    """Trainings of all kinds of scores and widths."""

    base: RunConfig
    heads: int

    def begin(self) -> None:
        """Record the settings; `ConfigError` if the folder has other ones."""
        self.record_settings(EXPERIMENT, EXPERIMENT_FORMAT, self.base, heads=self.heads)


def built_in_corpus(folder: Path) -> CorpusFiles:
    """Return the built-in English-German corpus in a folder, written if necessary."""
    if not folder.exists():
        write_corpus(folder, "en-de")
    return quickstart_files(folder, "en-de")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """Figures of the trainings with one kind of score and one d_k."""

    kind: Scores
    d_k: int
    d_model: int
    parameters: int
    seeds: tuple[int, ...]
    perplexity: float
    """Geometric mean over the seeds of the perplexity on the dev corpus."""
    perplexities: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Measured scores, and the figures of all trainings."""

    statistics: tuple[ScoreStatistics, ...]
    rows: tuple[TrainedRow, ...]
    failures: dict[str, str]
    """Reasons of failed runs by their names."""
    settings: dict[str, Any]
    machine: str


def collect(
    experiment: ScalingExperiment,
    statistics: Sequence[ScoreStatistics],
    runs: Sequence[ScoresRun],
    failures: Mapping[str, str],
    machine: str,
) -> Scaling:
    """Read the figures of all runs that are done."""
    done = [run for run in runs if run.name not in failures]
    keys = dict.fromkeys((run.d_k, run.kind) for run in done)
    rows = [
        trained_row(*(r for r in done if (r.d_k, r.kind) == (d_k, kind)))
        for d_k, kind in keys
    ]
    return Scaling(
        statistics=tuple(statistics),
        rows=tuple(rows),
        failures=dict(failures),
        settings=settings(experiment.base),
        machine=machine,
    )


def trained_row(first: ScoresRun, *others: ScoresRun) -> TrainedRow:
    """Read the figures of runs with different seeds; the first has the settings.

    Raises `CheckpointError` if they are damaged.
    """
    runs = first, *others
    perplexities = tuple(run.perplexity for run in runs)
    return TrainedRow(
        kind=first.kind,
        d_k=first.d_k,
        d_model=first.config.model.d_model,
        parameters=num_parameters(first.recorded_settings().model),
        seeds=tuple(run.seed for run in runs),
        perplexity=geometric_mean(perplexities),
        perplexities=perplexities,
    )


def as_report(scaling: Scaling) -> Report:
    """Report with the measured scores, the trainings, and their settings."""
    sections = [
        Section(title="Scores", parts=tuple(_score_parts(scaling.statistics))),
        Section(title="Trainings", parts=tuple(_training_parts(scaling))),
    ]
    if scaling.failures:
        sections.append(failed_runs(scaling.failures))
    sections.append(Section(title="Settings", parts=tuple(_settings(scaling))))
    return Report(
        title="Scaled, unscaled and additive attention (section 3.2.1)",
        sections=tuple(sections),
    )


def _score_parts(statistics: Sequence[ScoreStatistics]) -> Iterator[Part]:
    yield (
        f"Scores of {NUM_QUERIES:,} random queries for {NUM_KEYS} keys each, whose "
        "components have mean 0 and variance 1. By footnote 4 the variance of a dot "
        "product is d_k; scaled by 1/sqrt(d_k) it is 1. The additive score has its "
        f"initial weights. Entropy is that of a query's weights (equal weights: "
        f"{log(NUM_KEYS):.2f} nats), and gradient is the norm of the Jacobian of the "
        "softmax: both vanish as one key takes all the weight."
    )
    heads = ("d_k", "variance", "theory", "entropy", "largest weight", "gradient")
    rows = [
        (
            each.kind,
            f"{each.d_k:,}",
            f"{each.variance:,.{VARIANCE_DIGITS}g}",
            {"scaled": "1", "unscaled": f"{each.d_k:,}"}.get(each.kind, ""),
            f"{each.entropy:.3f}",
            f"{each.largest_weight:.3f}",
            f"{each.gradient:.3f}",
        )
        for each in sorted(statistics, key=lambda s: KINDS.index(s.kind))
    ]
    yield Table(columns=columns("scores", *heads), rows=tuple(rows))
    for figure, title in (
        ("variance", "Variance of a score against d_k"),
        ("gradient", "Norm of the softmax's Jacobian against d_k"),
    ):
        points = {
            kind: [(s.d_k, getattr(s, figure)) for s in statistics if s.kind == kind]
            for kind in KINDS
        }
        yield _picture(figure, title, points)


def _training_parts(scaling: Scaling) -> Iterator[Part]:
    yield (
        "The paper: for small d_k the two mechanisms perform similarly; without "
        "scaling, dot products fall behind additive attention as d_k grows. Perplexity "
        "on the dev corpus after the last update; models of one row differ in their "
        "scores only."
    )
    if not scaling.rows:
        yield "No training has ended."
        return
    yield _perplexity_table(scaling.rows)
    numbers = sorted({len(row.seeds) for row in scaling.rows})
    if numbers[-1] > 1:
        how_many = counted(numbers[-1], "seed")
        if len(numbers) > 1:
            how_many = f"{numbers[0]} to {how_many}, since some trainings have failed"
        yield (
            f"Geometric means of {how_many}; in brackets the lowest and the highest."
        )
    points = {
        kind: [
            (row.d_k, row.perplexity)
            for row in scaling.rows
            if row.kind == kind and isfinite(row.perplexity)
        ]
        for kind in KINDS
    }
    if any(points.values()):
        title = "Perplexity on the dev corpus against d_k"
        yield _picture("perplexity", title, points)


def _perplexity_table(rows: Sequence[TrainedRow]) -> Table:
    """Table with a row for each d_k, and a column for each kind of score."""
    cells = []
    for d_k in dict.fromkeys(row.d_k for row in rows):
        by_kind = {row.kind: row for row in rows if row.d_k == d_k}
        first = next(iter(by_kind.values()))
        cells.append(
            (
                f"{d_k:,}",
                f"{first.d_model:,}",
                f"{first.parameters / 1e6:.2f}",
                *(_perplexity(by_kind.get(kind)) for kind in KINDS),
            )
        )
    heads = columns("d_k", "d_model", "parameters, millions", *KINDS)
    return Table(columns=heads, rows=tuple(cells))


def _perplexity(row: TrainedRow | None) -> str:
    if row is None:
        return ""
    if len(row.perplexities) == 1:
        return f"{row.perplexity:.2f}"
    lowest, highest = min(row.perplexities), max(row.perplexities)
    return f"{row.perplexity:.2f} ({lowest:.2f} to {highest:.2f})"


def _picture(
    figure: str, title: str, points: Mapping[Scores, Sequence[tuple[int, float]]]
) -> Picture:
    """Draw a figure against d_k: points and a line for each kind of score."""
    series: list[Series] = []
    for colour, (kind, found) in enumerate(points.items()):
        x, y = [d_k for d_k, _ in found], [value for _, value in found]
        series += [
            Series(label=kind, x=x, y=y, colour=colour),
            Series(label="", x=x, y=y, colour=colour, drawn="line"),
        ]
    return draw(
        Chart(
            name=f"scaling-{figure}",
            title=title,
            x_label="d_k",
            y_label=figure,
            series=tuple(series),
            scale="log",
        )
    )


def _settings(scaling: Scaling) -> Iterator[Part]:
    names = (
        "model.num_layers",
        "training.steps",
        "training.warmup_steps",
        "batching.target_tokens",
        "tokenizer.vocab_size",
    )
    known = [n for n in names if n in scaling.settings]
    yield "; ".join(f"{name} = {scaling.settings[name]:,}" for name in known) + "."
    yield scaling.machine
