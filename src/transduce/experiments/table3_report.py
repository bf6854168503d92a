"""Report on Table 3: our results beside the paper's, and the protocol."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple

from transduce.architectures.config import num_parameters
from transduce.data.batches import open_dataset
from transduce.errors import counted
from transduce.experiments.run_folder import (
    RunFolder,
    known_languages,
    settings_of,
)
from transduce.experiments.run_processes import changes, settings
from transduce.experiments.table3 import (
    PAPER_ROWS,
    Experiment,
    RowRun,
    row_config,
    scaled_base,
)
from transduce.machine import Precision
from transduce.metrics.bleu import corpus_bleu
from transduce.metrics.comparison import (
    SIGNIFICANT_P,
    PairedScores,
    PooledBleu,
    SystemScore,
    Trials,
    paired_scores,
    pooled,
)
from transduce.metrics.tokenization import Tokenization, choose_tokenization
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
from transduce.text.corpus import read_text
from transduce.training.optimizer import scheduled_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Results of a row over its seeds."""

    row: str
    changes: dict[str, Any]
    """Settings that differ from base, by full name."""
    seeds: tuple[int, ...]
    """Pooled seeds: those for which this row and base are done."""
    parameters: int
    steps: int
    passes: int
    """Complete epochs."""
    slowed_seeds: tuple[int, ...]
    """Seeds whose loss diverged, so that they continued at a lower learning rate."""
    perplexity: float
    """Perplexity per target token of the dev text, over all seeds."""
    bleu: SystemScore
    """Pooled BLEU on the dev text, with its difference from base."""
    bleu_by_seed: tuple[float, ...]

    @property
    def direction(self) -> Literal["agrees", "opposes"] | None:
        """Whether the sign of the difference from base is the paper's.

        None if either difference is 0 or missing.
        """
        ours, paper = self.bleu.difference, PAPER_ROWS[self.row].difference
        if self.p is None or not ours or not paper:
            return None
        return "agrees" if (ours > 0) == (paper > 0) else "opposes"

    @property
    def p(self) -> float | None:
        """Larger p-value of the two tests; None without base."""
        by_bootstrap, by_shuffles = self.bleu.bootstrap_p, self.bleu.randomisation_p
        if by_bootstrap is None or by_shuffles is None:
            return None
        return max(by_bootstrap, by_shuffles)

    @property
    def is_significant(self) -> bool:
        """Whether both tests are significant."""
        return self.p is not None and self.p < SIGNIFICANT_P


@dataclass(frozen=True, slots=True, kw_only=True)
class Table3:
    """Results of all rows, with settings and data."""

    settings: dict[str, Any]
    """Settings of the base."""
    files: dict[str, list[str]]
    precision: Precision
    num_pairs: int
    """Number of training pairs."""
    num_sentences: int
    """Number of dev sentences."""
    signatures: tuple[str, ...]
    """Signatures of BLEU with paired bootstrap and with approximate randomisation."""
    rows: tuple[RowResult, ...]
    """Rows with at least one run done."""
    failures: dict[str, str]
    """Reason of each failure, by the run's name."""


def collect(
    experiment: Experiment,
    runs: Sequence[RowRun],
    failures: Mapping[str, str],
    trials: Trials,
) -> Table3:
    """Collect the results of the runs that are done.

    Raises `DataError` if the translations do not match the dev text.
    """
    done = [run for run in runs if run.is_done]
    references = list(read_text([done[0].references])) if done else []
    base = [run for run in done if run.row == "base"]
    tokenization = _tokenization(experiment, references)
    by_row = [[run for run in done if run.row == row] for row in PAPER_ROWS]
    rows, signatures = [], ("", "")
    for row_runs in by_row:
        if row_runs:
            shared = _with_seeds_of(base, row_runs) or row_runs
            compared = _with_seeds_of(shared, base)
            metric = PooledBleu(tokenization)
            scores = _scores(shared, compared, references, metric, trials)
            signatures = scores.bootstrap_signature, scores.randomisation_signature
            bleu = RowBleu(
                pooled=scores.systems[-1],
                by_seed=_bleu_by_seed(shared, references, tokenization),
            )
            rows.append(_result(experiment, shared, bleu))
    return Table3(
        settings=settings(experiment.base),
        files=experiment.files.absolute_names(),
        precision=experiment.precision,
        num_pairs=len(open_dataset(RunFolder(done[0].path).corpus)) if done else 0,
        num_sentences=len(references),
        signatures=signatures,
        rows=tuple(rows),
        failures=dict(failures),
    )


def _with_seeds_of(others: Sequence[RowRun], runs: Sequence[RowRun]) -> list[RowRun]:
    seeds = {run.seed for run in others}
    return [run for run in runs if run.seed in seeds]


def _scores(
    runs: Sequence[RowRun],
    base: Sequence[RowRun],
    references: Sequence[str],
    metric: PooledBleu,
    trials: Trials,
) -> PairedScores:
    """Scores of a row compared with base, or alone if it is base or base is missing."""
    systems: dict[str, list[str]] = {}
    units: list[str] = []
    for each in (base, runs) if base and base != runs else (runs,):
        texts = [list(read_text([run.translations])) for run in each]
        systems[each[0].row], units = pooled(texts, references)
    [scores] = paired_scores(systems, units, [metric], trials)
    return scores


def _tokenization(experiment: Experiment, references: Sequence[str]) -> Tokenization:
    config = experiment.base
    language = known_languages(config.languages, experiment.files).target
    return choose_tokenization(config.evaluation.tokenize, language, references)


def _bleu_by_seed(
    runs: Sequence[RowRun], references: Sequence[str], tokenization: Tokenization
) -> tuple[float, ...]:
    texts = (list(read_text([run.translations])) for run in runs)
    return tuple(
        corpus_bleu(text, references, tokenization=tokenization).score for text in texts
    )


class RowBleu(NamedTuple):
    """BLEU of a row, pooled over its seeds and for each seed."""

    pooled: SystemScore
    by_seed: tuple[float, ...]


def _result(experiment: Experiment, runs: Sequence[RowRun], bleu: RowBleu) -> RowResult:
    row = runs[0].row
    config = row_config(experiment.base, row)
    perplexities = [run.last_entry("dev", "perplexity")["perplexity"] for run in runs]
    return RowResult(
        row=row,
        changes=changes(config, experiment.base),
        seeds=tuple(run.seed for run in runs),
        parameters=num_parameters(settings_of(runs[0].path).model),
        steps=config.training.steps,
        passes=runs[0].last_entry("step", "epoch")["epoch"],
        slowed_seeds=tuple(run.seed for run in runs if _was_slowed(run)),
        # JSON has no infinity, so the log has null in its place.
        perplexity=geometric_mean(
            math.inf if each is None else each for each in perplexities
        ),
        bleu=bleu.pooled,
        bleu_by_seed=bleu.by_seed,
    )


def _was_slowed(run: RowRun) -> bool:
    """Whether the run ended at a lower learning rate than scheduled."""
    last, config = run.last_entry("step", "learning_rate"), run.config
    scheduled = scheduled_rate(last["step"], config.model.d_model, config.training)
    return last["learning_rate"] < scheduled and not math.isclose(
        last["learning_rate"], scheduled
    )


LARGE = 0.7
"""Difference in BLEU from which on a row of the paper clearly differs from base: about
2.5 times the variation between checkpoints of one training."""

PROTOCOL = (
    "Ours is sacreBLEU on the dev text, by beam search with the last checkpoint of "
    "each run, not averaged, as in the paper. The paper's is tokenized BLEU on "
    "newstest2013, with one run per row. Change is the difference from base."
)
TESTS = (
    "Seeds are pooled: each sentence is scored and resampled together with its "
    "translations by all seeds. p is the probability of a change this large by chance, "
    "the larger value of the paired bootstrap and of approximate randomisation over "
    f"sentences; a change is significant below {SIGNIFICANT_P}. Neither test covers "
    "the variation between seeds, and neither is corrected for the number of rows."
)
COUNTED = (
    "Epochs are complete ones. Perplexity is per target token, over all seeds. The "
    "paper's parameters include a vocabulary of 40,960 sub-words and a vector for each "
    "of 32 target spaces, which our models do not have; the 213 million of big would "
    "fit about 36,000 sub-words."
)
WHY_ROWS_DIFFER = (
    "Why a row may not agree: the paper trains base for about 20 epochs of 4.5 million "
    "pairs. After few epochs a model does not overfit yet, so dropout and smoothing "
    "slow it more than they help, and deep or large models have not converged. After "
    "many epochs of a small corpus, small models and more dropout do better."
)
RULE = (
    "The scale is a factor on d_model, d_ff, d_k, d_v and the vocabulary; the numbers "
    "of heads and layers stay. A row's change of a size or of the steps is applied as "
    "the paper's factor; dropout, smoothing and positions are the row's own values."
)


def as_report(table: Table3) -> Report:
    """Report with the results, a picture, the failures and the protocol."""
    return Report(
        title="Table 3: variations of the base model",
        sections=(
            Section(title="Differences from base", parts=_differences(table.rows)),
            Section(title="Results by row", parts=_figures(table)),
            *([_failed(table)] if table.failures else []),
            Section(title="Data and settings", parts=_settings(table)),
        ),
    )


def _differences(rows: Sequence[RowResult]) -> tuple[Part, ...]:
    heads = columns("row", "BLEU", "95 %", "paper", "change", "paper", "p")
    direction = Column(name="direction", is_text=True)
    cells = tuple(_difference_cells(row) for row in rows)
    table = Table(columns=(*heads, direction), rows=cells)
    parts: list[Part] = [PROTOCOL, table, TESTS]
    compared = [row for row in rows if row.p is not None]
    if compared:
        parts += [_summary(compared), _picture(compared)]
    return tuple(parts)


def _difference_cells(row: RowResult) -> tuple[str, ...]:
    paper = PAPER_ROWS[row.row]
    cells = (
        row.row,
        f"{row.bleu.score:.2f}",
        f"±{row.bleu.interval:.2f}",
        f"{paper.bleu:.1f}",
    )
    if row.p is None:
        return (*cells, "", "", "", "")
    return (
        *cells,
        f"{row.bleu.difference:+.2f}",
        f"{paper.difference:+.1f}",
        f"{row.p:.4f}",
        _direction(row),
    )


def _direction(row: RowResult) -> str:
    direction = row.direction or "no change to compare"
    return f"{direction}, significant" if row.is_significant else direction


def _summary(rows: Sequence[RowResult]) -> str:
    large = [row for row in rows if abs(PAPER_ROWS[row.row].difference) >= LARGE]
    agreeing = [row for row in large if row.direction == "agrees"]
    others = ", ".join(row.row for row in large if row not in agreeing)
    but = f"; these do not: {others}." if others else "."
    return (
        f"{len(large)} of these rows differ from base by {LARGE} BLEU or more in the "
        f"paper; {len(agreeing)} of them agree in direction{but}"
    )


def _picture(rows: Sequence[RowResult]) -> Picture:
    at = range(len(rows))
    ours = [row.bleu.difference for row in rows]
    paper = [PAPER_ROWS[row.row].difference for row in rows]
    chart = Chart(
        name="table3-differences",
        title="Difference from base in BLEU, ours and the paper's",
        x_label="row",
        y_label="BLEU",
        series=(
            Series(label="the paper", x=at, y=paper, colour=1),
            Series(label="ours", x=at, y=ours),
            Series(label="base", x=at, y=[0.0] * len(rows), colour=2, drawn="line"),
        ),
        names=tuple(row.row for row in rows),
    )
    return draw(chart)


def _figures(table: Table3) -> tuple[Part, ...]:
    parts: list[Part] = [_figure_table(table.rows), COUNTED]
    slowed = [
        f"{row.row}-seed{seed}" for row in table.rows for seed in row.slowed_seeds
    ]
    if slowed:
        parts.append(
            "These runs diverged and continued from their last checkpoint at half the "
            f"learning rate: {', '.join(slowed)}."
        )
    return tuple(parts)


def _figure_table(rows: Sequence[RowResult]) -> Table:
    heads = columns(
        "row", "parameters", "paper, millions", "steps", "epochs", "perplexity", "paper"
    )
    seeds = Column(name="BLEU by seed", is_text=True)
    cells = tuple(
        (
            row.row,
            f"{row.parameters:,}",
            f"{PAPER_ROWS[row.row].millions}",
            f"{row.steps:,}",
            f"{row.passes:,}",
            f"{row.perplexity:.2f}",
            f"{PAPER_ROWS[row.row].perplexity:.2f}",
            ", ".join(
                f"{seed}: {bleu:.2f}"
                for seed, bleu in zip(row.seeds, row.bleu_by_seed, strict=True)
            ),
        )
        for row in rows
    )
    return Table(columns=(*heads, seeds), rows=cells)


def _failed(table: Table3) -> Section:
    heads = (Column(name="run", is_text=True), Column(name="reason", is_text=True))
    failures = Table(columns=heads, rows=tuple(table.failures.items()))
    return Section(title="Runs that failed", parts=(failures,))


def _settings(table: Table3) -> tuple[Part, ...]:
    texts = "; ".join(
        f"{part.replace('_', ' ')}: {', '.join(Path(name).name for name in names)}"
        for part, names in table.files.items()
    )
    changed = tuple(
        (row.row, ", ".join(f"{name}={value}" for name, value in row.changes.items()))
        for row in table.rows
        if row.changes
    )
    heads = (Column(name="row", is_text=True), Column(name="change", is_text=True))
    return (
        f"{texts}. The training text has {counted(table.num_pairs, 'pair')}, the dev "
        f"text {counted(table.num_sentences, 'sentence')}. Matrix products in "
        f"{table.precision}.",
        WHY_ROWS_DIFFER,
        _base(table),
        RULE,
        Table(title="Changes of the rows", columns=heads, rows=changed),
        *table.signatures,
    )


def _base(table: Table3) -> Part:
    paper = settings(scaled_base())
    rows = tuple(
        (name, str(value), str(paper[name]))
        for name, value in table.settings.items()
        if value != paper[name]
    )
    if not rows:
        return "The base has the paper's settings throughout."
    heads = columns("setting", "ours", "paper")
    return Table(
        title="Settings of the base that differ from the paper's",
        columns=heads,
        rows=rows,
    )
