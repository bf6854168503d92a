"""Table 3 as a report: our figures beside the paper's, and the protocol."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple

from transduce.data.dataset import open_dataset
from transduce.errors import counted
from transduce.experiments.run_folder import (
    RunFolder,
    known_languages,
    settings_of,
)
from transduce.experiments.table3 import Experiment, RowRun
from transduce.experiments.table3_rows import (
    PAPER_ROWS,
    changes,
    row_config,
    scaled_base,
    settings,
)
from transduce.machine import Precision
from transduce.metrics.bleu import corpus_bleu
from transduce.metrics.significance import (
    SIGNIFICANT_P,
    PairedScores,
    PooledBleu,
    SystemScore,
    Trials,
    paired_scores,
    pooled,
)
from transduce.metrics.tokenization import Tokenization, choose_tokenization
from transduce.model.cost import count_parameters
from transduce.report.chart import Chart, Series, draw
from transduce.report.content import (
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
    """A row of our Table 3."""

    row: str
    changes: dict[str, Any]
    """What it has otherwise than base, by full name."""
    seeds: tuple[int, ...]
    """Whose figures are pooled: those that are done, of base as well."""
    parameters: int
    steps: int
    passes: int
    """Whole ones over the training text."""
    slowed_seeds: tuple[int, ...]
    """Whose loss diverged, so that they went on at a lower learning rate."""
    perplexity: float
    """Of a target token of the dev text, over all seeds."""
    bleu: SystemScore
    """Of the dev text; its difference is from base."""
    bleu_by_seed: tuple[float, ...]

    @property
    def direction(self) -> Literal["agrees", "opposes"] | None:
        """Whether it differs from base as in the paper; none if either does not."""
        ours, paper = self.bleu.difference, PAPER_ROWS[self.row].difference
        if self.p is None or not ours or not paper:
            return None
        return "agrees" if (ours > 0) == (paper > 0) else "opposes"

    @property
    def p(self) -> float | None:
        """The larger of both tests; none if there is no base to be beside."""
        by_bootstrap, by_shuffles = self.bleu.bootstrap_p, self.bleu.randomisation_p
        if by_bootstrap is None or by_shuffles is None:
            return None
        return max(by_bootstrap, by_shuffles)

    @property
    def is_significant(self) -> bool:
        """Whether both tests say so."""
        return self.p is not None and self.p < SIGNIFICANT_P


@dataclass(frozen=True, slots=True, kw_only=True)
class Table3:
    """All that the table is made of."""

    settings: dict[str, Any]
    """Of the base."""
    files: dict[str, list[str]]
    precision: Precision
    num_pairs: int
    """Of the training text."""
    num_sentences: int
    """Of the dev text."""
    signatures: tuple[str, ...]
    """Of BLEU with the paired bootstrap, and of approximate randomisation."""
    rows: tuple[RowResult, ...]
    """Of which at least one run is done."""
    failures: dict[str, str]
    """Why runs have none, by name."""


def collect(
    experiment: Experiment,
    runs: Sequence[RowRun],
    failures: Mapping[str, str],
    trials: Trials,
) -> Table3:
    """The figures of the runs that are done; of at least one seed, or there is no row.

    `DataError` if a text of translations is not that of the dev text.
    """
    done = [run for run in runs if run.is_done]
    references = list(read_text([done[0].references])) if done else []
    base = [run for run in done if run.row == "base"]
    tokenization = _tokenization(experiment, references)
    of_rows = [[run for run in done if run.row == row] for row in PAPER_ROWS]
    rows, signatures = [], ("", "")
    for its_runs in of_rows:
        if its_runs:
            shared = _with_seeds_of(base, its_runs) or its_runs
            beside = _with_seeds_of(shared, base)
            metric = PooledBleu(tokenization)
            scores = _scores(shared, beside, references, metric, trials)
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
    """The row beside base, or alone if it is base or there is none."""
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
    """BLEU of all seeds together."""
    by_seed: tuple[float, ...]


def _result(experiment: Experiment, runs: Sequence[RowRun], bleu: RowBleu) -> RowResult:
    row = runs[0].row
    config = row_config(experiment.base, row)
    perplexities = [run.last_entry("dev", "perplexity")["perplexity"] for run in runs]
    return RowResult(
        row=row,
        changes=changes(config, experiment.base),
        seeds=tuple(run.seed for run in runs),
        parameters=count_parameters(settings_of(runs[0].path).model).total,
        steps=config.training.steps,
        passes=runs[0].last_entry("step", "epoch")["epoch"],
        slowed_seeds=tuple(run.seed for run in runs if _was_slowed(run)),
        # JSON has no infinity, and the log nothing in its place.
        perplexity=geometric_mean(
            math.inf if each is None else each for each in perplexities
        ),
        bleu=bleu.pooled,
        bleu_by_seed=bleu.by_seed,
    )


def _was_slowed(run: RowRun) -> bool:
    """Whether it ended at a lower learning rate than it was to have."""
    last, config = run.last_entry("step", "learning_rate"), run.config
    asked = scheduled_rate(last["step"], config.model.d_model, config.training)
    return last["learning_rate"] < asked and not math.isclose(
        last["learning_rate"], asked
    )


LARGE = 0.7
"""BLEU by which a row of the paper differs surely: some 2.5 times what the scores of
one training differ by among themselves."""

PROTOCOL = (
    "Ours: sacreBLEU of the dev text, by beam search with the last checkpoint of each "
    "training, not averaged, as in the paper. The paper's: newstest2013, tokenised, of "
    "single trainings. Change: difference from base."
)
TESTS = (
    "Several seeds are pooled: a sentence counts with all its translations, and is "
    "drawn with all of them. p: how likely so large a change is by chance, the larger "
    "of the paired bootstrap's over sentences and approximate randomisation's; "
    f"significant below {SIGNIFICANT_P}. Both know nothing of how other seeds would "
    "differ, and are not corrected for there being many rows."
)
COUNTED = (
    "Passes are whole ones over the training text. Perplexity is of a target token, "
    "over all seeds. The paper's parameters are of a vocabulary of 40,960 pieces, and "
    "with a vector for each of 32 target spaces, which are not ours; its 213 million "
    "of big would need some 36,000 pieces."
)
SEEN = (
    "Why a row may not agree: the paper has 4.5 million pairs, which base sees some 20 "
    "times. After few passes little is learned by heart yet, so that dropout and "
    "smoothing slow more than they help, and what is deep or has much to learn is not "
    "done; after many passes over little text, what is small or has more dropout does "
    "better."
)
RULE = (
    "The scale is a factor on d_model, d_ff, d_k, d_v and the vocabulary; heads and "
    "layers keep their numbers. What a row changes in size or in steps, it changes by "
    "the paper's factor; dropout, smoothing and positions are as the row has them."
)


def as_report(table: Table3) -> Report:
    """The table, a picture of it, what failed, and how it was made."""
    return Report(
        title="Table 3: the base model varied",
        sections=(
            Section(title="Differences from base", parts=_differences(table.rows)),
            Section(title="Figures", parts=_figures(table)),
            *([_failed(table)] if table.failures else []),
            Section(title="What was trained", parts=_settings(table)),
        ),
    )


def _differences(rows: Sequence[RowResult]) -> tuple[Part, ...]:
    heads = columns("row", "BLEU", "95 %", "paper", "change", "paper", "p")
    verdict = Column(name="direction", is_text=True)
    told = tuple(_difference_cells(row) for row in rows)
    parts: list[Part] = [PROTOCOL, Table(columns=(*heads, verdict), rows=told), TESTS]
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
        _verdict(row),
    )


def _verdict(row: RowResult) -> str:
    direction = row.direction or "none to agree with"
    return f"{direction}, significant" if row.is_significant else direction


def _summary(rows: Sequence[RowResult]) -> str:
    large = [row for row in rows if abs(PAPER_ROWS[row.row].difference) >= LARGE]
    agreeing = [row for row in large if row.direction == "agrees"]
    others = ", ".join(row.row for row in large if row not in agreeing)
    told = f"; not {others}." if others else "."
    return (
        f"Of the {len(large)} rows here that in the paper differ by {LARGE} BLEU or "
        f"more, {len(agreeing)} agree in direction{told}"
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
            "The loss of these diverged, and they went on from their last checkpoint "
            f"at half the learning rate: {', '.join(slowed)}."
        )
    return tuple(parts)


def _figure_table(rows: Sequence[RowResult]) -> Table:
    heads = columns(
        "row", "parameters", "paper, millions", "steps", "passes", "perplexity", "paper"
    )
    seeds = Column(name="BLEU by seed", is_text=True)
    told = tuple(
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
    return Table(columns=(*heads, seeds), rows=told)


def _failed(table: Table3) -> Section:
    heads = (Column(name="run", is_text=True), Column(name="why", is_text=True))
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
        SEEN,
        _base(table),
        RULE,
        Table(title="What the rows change", columns=heads, rows=changed),
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
        return "The base is the paper's, in every setting."
    heads = columns("setting", "ours", "paper")
    return Table(
        title="The base, where it is not the paper's", columns=heads, rows=rows
    )
