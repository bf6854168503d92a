"""Reproduction of Table 3: its rows, their runs, and our results beside the paper's.

Each row's change is applied to a base of any scale. The scale is a factor on the
dimensions `d_model`, `d_ff`, `d_k` and `d_v` and on the vocabulary. The numbers of
heads and layers stay, so that heads times `d_k` remains `d_model` and every row exists.
A row's change of a size or of the steps is applied as the paper's factor; dropout,
smoothing and positions are the row's own values.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Literal, TypeVar

from transduce.architectures.config import ArchitectureConfig, num_parameters
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import DEV, DEV_SOURCE, DEV_TARGET
from transduce.errors import ConfigError, TransduceError, counted, unknown_name
from transduce.experiments.experiment import (
    Experiment,
    PresetRun,
    changes,
    described_files,
    failed_runs,
    read_references,
    settings,
    translated_lines,
    with_seed,
)
from transduce.experiments.presets import BASE, MODEL, TABLE_3, RunConfig
from transduce.experiments.resuming import refuse_changed_settings
from transduce.experiments.run_corpus import known_languages
from transduce.experiments.run_folder import RunFolder
from transduce.machine import Precision
from transduce.metrics.comparison import (
    ONE_TRIAL,
    SIGNIFICANT_P,
    SystemScore,
    Trials,
    pooled_scores,
)
from transduce.metrics.scores import Tokenization, choose_tokenization, corpus_bleu
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
from transduce.training.config import TrainingConfig

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
BY_FACTOR = (*WIDTHS, "num_heads", "num_layers", "steps")
"""Settings that a row changes by a factor."""
WITH_SIZES = {"num_layers": "decoder_layers"}
"""Settings that change by a size's factor too, if the base sets them."""
PARTS = 8
"""The scale is a multiple of 1/8, so that all sizes of all rows are whole numbers, and
the heads of A-h32 have a width of 2 at least."""
WARMUP_SHARE = 5
"""Smallest ratio of all steps to those of warm-up in runs shorter than the paper's."""

MULTI30K_SCALE, MULTI30K_STEPS = 0.25, 2_000
"""About 2 million tokens in five epochs: on one core without matrix instructions, base
takes 8 minutes and all rows four hours."""

Config = TypeVar("Config", ArchitectureConfig, TrainingConfig)


def scaled_base(scale: float = 1.0, steps: int | None = None) -> RunConfig:
    """Scale the paper's base model, and set its number of steps.

    A run keeps one checkpoint, as Table 3 averages none. Raises `ConfigError` if the
    scale is not a multiple of 1/8 between 1/8 and 1.
    """
    if not 1 <= scale * PARTS <= PARTS or scale * PARTS % 1:
        raise ConfigError(
            f"`scale` must be a multiple of 1/{PARTS} from 1/{PARTS} to 1, but is "
            f"{scale:g}."
        )
    if steps is None:
        steps = BASE.training.steps
    widths: dict[str, Any] = {
        name: int(getattr(BASE.model, name) * scale) for name in WIDTHS
    }
    warmup_steps = min(BASE.training.warmup_steps, max(steps // WARMUP_SHARE, 1))
    return replace(
        BASE,
        tokenizer=replace(
            BASE.tokenizer, vocab_size=int(BASE.tokenizer.vocab_size * scale)
        ),
        model=replace(BASE.model, **widths),
        training=replace(
            BASE.training, steps=steps, warmup_steps=warmup_steps, keep_checkpoints=1
        ),
    )


def base_for(corpus: str | None, scale: float | None, steps: int | None) -> RunConfig:
    """Base model at a scale, which defaults to one that fits the corpus.

    The default is the paper's base model, except for Multi30k, which is too small for
    it: there it has a quarter of the dimensions, half the layers and small updates, for
    which two cores are enough.
    """
    if corpus != "multi30k" or scale is not None:
        return scaled_base(1.0 if scale is None else scale, steps)
    base = scaled_base(MULTI30K_SCALE, MULTI30K_STEPS if steps is None else steps)
    return replace(
        base,
        tokenizer=replace(base.tokenizer, vocab_size=6_000),
        model=replace(base.model, num_layers=MODEL.num_layers // 2),
        batching=replace(
            base.batching, source_tokens=1_024, target_tokens=1_024, batch_tokens=1_024
        ),
    )


def row_config(base: RunConfig, row: str, chosen: Collection[str] = ()) -> RunConfig:
    """Apply a row's change of the paper's base to another base.

    `chosen` has the full names of the settings that the user has given for all rows,
    also if their values are the defaults. Raises `ConfigError` if the row's change is
    impossible, or changes nothing.
    """
    paper, paper_base = TABLE_3[row], BASE.training
    training = replace(paper.training, keep_checkpoints=paper_base.keep_checkpoints)
    checkpoint_steps = paper_base.checkpoint_steps
    is_chosen = "training.checkpoint_steps" in chosen
    if is_chosen or base.training.checkpoint_steps != checkpoint_steps:
        training = replace(training, checkpoint_steps=checkpoint_steps)
    config = replace(
        base,
        model=_changed(base.model, BASE.model, paper.model, row),
        training=_changed(base.training, paper_base, training, row),
    )
    if row != "base" and config == base:
        raise ConfigError(
            f"Row {row} must differ from base, but with these settings does not; leave "
            "the row out, or change the settings."
        )
    return config


def require_rows(rows: tuple[str, ...]) -> list[str]:
    """Put the named rows, and base, in the paper's order; without names, all rows.

    For an unknown row, raises `ConfigError`, which suggests the nearest.
    """
    for row in rows:
        if row not in TABLE_3:
            raise ConfigError(unknown_name("row", row, TABLE_3))
    return [row for row in TABLE_3 if not rows or row in (*rows, "base")]


def _changed(base: Config, paper_base: Config, paper_row: Config, row: str) -> Config:
    new: dict[str, Any] = {}
    for name in (field.name for field in fields(base)):
        before, after = getattr(paper_base, name), getattr(paper_row, name)
        if after != before:
            is_size = name in BY_FACTOR
            ours = getattr(base, name)
            new[name] = _sized(row, name, ours, before, after) if is_size else after
            other = WITH_SIZES.get(name)
            if other is not None and (own := getattr(base, other)) is not None:
                new[other] = _sized(row, other, own, before, after)
    return replace(base, **new)


def _sized(row: str, name: str, ours: int, before: int, after: int) -> int:
    factor = Fraction(after, before)
    size = factor * ours
    if size.denominator > 1:
        raise ConfigError(
            f"`{name}` of row {row} must be a whole number, but is {factor} of the "
            f"base's {ours}; leave the row out, or set another base."
        )
    return int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """Results of a row in the paper, on newstest2013 from English to German."""

    perplexity: float
    """Perplexity per sub-word of the paper's byte-pair encoding."""
    bleu: float
    """BLEU by beam search, without averaging of checkpoints."""
    millions: int
    """Millions of parameters; rows without a number have those of base."""

    @property
    def difference(self) -> float:
        """Difference from base in BLEU."""
        return round(self.bleu - PAPER_ROWS["base"].bleu, 1)


PAPER_ROWS = {
    "base": PaperRow(perplexity=4.92, bleu=25.8, millions=65),
    "A-h1": PaperRow(perplexity=5.29, bleu=24.9, millions=65),
    "A-h4": PaperRow(perplexity=5.00, bleu=25.5, millions=65),
    "A-h16": PaperRow(perplexity=4.91, bleu=25.8, millions=65),
    "A-h32": PaperRow(perplexity=5.01, bleu=25.4, millions=65),
    "B-dk16": PaperRow(perplexity=5.16, bleu=25.1, millions=58),
    "B-dk32": PaperRow(perplexity=5.01, bleu=25.4, millions=60),
    "C-N2": PaperRow(perplexity=6.11, bleu=23.7, millions=36),
    "C-N4": PaperRow(perplexity=5.19, bleu=25.3, millions=50),
    "C-N8": PaperRow(perplexity=4.88, bleu=25.5, millions=80),
    "C-d256": PaperRow(perplexity=5.75, bleu=24.5, millions=28),
    "C-d1024": PaperRow(perplexity=4.66, bleu=26.0, millions=168),
    "C-ff1024": PaperRow(perplexity=5.12, bleu=25.4, millions=53),
    "C-ff4096": PaperRow(perplexity=4.75, bleu=26.2, millions=90),
    "D-drop0": PaperRow(perplexity=5.77, bleu=24.6, millions=65),
    "D-drop0.2": PaperRow(perplexity=4.95, bleu=25.5, millions=65),
    "D-smooth0": PaperRow(perplexity=4.67, bleu=25.3, millions=65),
    "D-smooth0.2": PaperRow(perplexity=5.47, bleu=25.7, millions=65),
    "E-learned": PaperRow(perplexity=4.92, bleu=25.7, millions=65),
    "big": PaperRow(perplexity=4.33, bleu=26.4, millions=213),
}
"""Rows by the name of our preset, in the paper's order."""


EXPERIMENT_FORMAT = 2
EXPERIMENT = "experiment.json"
TRANSLATIONS = "dev_translations.txt"


@dataclass(frozen=True, kw_only=True)
class RowRun(PresetRun):
    """Run of one row with one seed, in a folder of its own."""

    @property
    def translations(self) -> Path:
        """Translations of the dev text, written when the run is done."""
        return self.path / TRANSLATIONS

    @property
    def sources(self) -> Path:
        """Sources of the dev text."""
        return self.path / DEV / DEV_SOURCE

    @property
    def references(self) -> Path:
        """References of the dev text."""
        return self.path / DEV / DEV_TARGET

    @property
    def is_done(self) -> bool:
        """Whether the dev text is translated."""
        return self.translations.is_file()

    def next_options(self, files: CorpusFiles, precision: Precision) -> list[str]:
        """Options to train or, by the last checkpoint, to translate the dev text."""
        if not self.is_trained:
            return super().next_options(files, precision)
        checkpoint = RunFolder(self.path).checkpoint(self.last_entry("dev")["step"])
        options = ["translate", str(checkpoint), "--input", str(self.sources)]
        # Start over after an interruption, as the dev text is short.
        return [*options, "--output", str(self.translations), "--force"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table3Experiment(Experiment):
    """Runs of Table 3's rows."""

    base: RunConfig

    def begin(self) -> None:
        """Record the settings; `ConfigError` if the folder has other ones."""
        self.record_settings(EXPERIMENT, EXPERIMENT_FORMAT, self.base)


def row_runs(
    folder: Path,
    base: RunConfig,
    rows: Sequence[str],
    seeds: Sequence[int],
    chosen: Collection[str] = (),
) -> list[RowRun]:
    """Runs of all rows, ordered by seed, so that the first whole table is done early.

    `chosen` is that of `row_config`. Raises `ConfigError` if a row or a seed is
    impossible.
    """
    return [
        RowRun(
            row=row,
            preset=row,
            seed=seed,
            config=with_seed(row_config(base, row, chosen), seed),
            folder=folder,
        )
        for seed in seeds
        for row in rows
    ]


def require_same_rows(runs: Sequence[RowRun]) -> None:
    """Raise `ConfigError` if a run that has begun has other settings than its row.

    The record of the experiment has only the settings of the base. A row's settings
    also depend on which settings the user has named (`chosen` of `row_config`).
    """
    for run in runs:
        if not run.has_begun:
            continue
        try:
            run.recorded_settings()
        except TransduceError:
            continue  # the run fails for this reason, without ending the others
        remedy = "give the same settings, or remove this folder to train the run anew"
        refuse_changed_settings(run.path, run.config, remedy)


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
    """Updates made, the mean over the seeds."""
    passes: int
    """Complete epochs, the mean over the seeds."""
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
        return self.bleu.p

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
    experiment: Table3Experiment,
    runs: Sequence[RowRun],
    failures: Mapping[str, str],
    trials: Trials,
) -> Table3:
    """Collect the results of the runs that are done and have not failed.

    Raises `DataError` if the translations or the references do not match the dev text.
    """
    done = [run for run in runs if run.is_done and run.name not in failures]
    texts = [read_references(run.sources, run.references) for run in done]
    references = texts[0] if texts else []
    base = [run for run in done if run.row == "base"]
    tokenization = _tokenization(experiment, references)
    rows, signatures = [], ("", "")
    for row in PAPER_ROWS:
        row_runs = [run for run in done if run.row == row]
        if not row_runs:
            continue
        row_runs = _with_seeds_of(base, row_runs) or row_runs
        translations = {
            each[0].row: [
                translated_lines(run.translations, len(references)) for run in each
            ]
            for each in (_with_seeds_of(row_runs, base), row_runs)
            if each
        }
        scores = pooled_scores(translations, references, tokenization, trials)
        signatures = scores.bootstrap_signature, scores.randomisation_signature
        by_seed = tuple(
            corpus_bleu(text, references, tokenization=tokenization).score
            for text in translations[row]
        )
        rows.append(_result(experiment, row_runs, scores.systems[-1], by_seed))
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


def read_row(experiment: Table3Experiment, run: RowRun) -> None:
    """Read all results of a run that is done.

    Raises `CheckpointError` or `DataError` if they are damaged.
    """
    collect(experiment, [run], {}, ONE_TRIAL)


def _with_seeds_of(others: Sequence[RowRun], runs: Sequence[RowRun]) -> list[RowRun]:
    """Return the runs with a seed that some other run has."""
    seeds = {run.seed for run in others}
    return [run for run in runs if run.seed in seeds]


def _tokenization(
    experiment: Table3Experiment, references: Sequence[str]
) -> Tokenization:
    config = experiment.base
    language = known_languages(config.languages, experiment.files).target
    return choose_tokenization(config.evaluation.tokenize, language, references)


def _result(
    experiment: Table3Experiment,
    runs: Sequence[RowRun],
    bleu: SystemScore,
    by_seed: tuple[float, ...],
) -> RowResult:
    config = with_seed(runs[0].config, experiment.base.training.seed)
    updates = [run.last_entry("step", "epoch") for run in runs]
    return RowResult(
        row=runs[0].row,
        changes=changes(config, experiment.base),
        seeds=tuple(run.seed for run in runs),
        parameters=num_parameters(runs[0].recorded_settings().model),
        steps=round(fmean(each["step"] for each in updates)),
        passes=round(fmean(each["epoch"] for each in updates)),
        slowed_seeds=tuple(run.seed for run in runs if run.has_diverged),
        perplexity=geometric_mean(run.perplexity for run in runs),
        bleu=bleu,
        bleu_by_seed=by_seed,
    )


LARGE = 0.7
"""Least difference in BLEU of a row that clearly differs from base in the paper: about
2.5 times the variation between checkpoints of one training."""

PROTOCOL = (
    "Ours is sacreBLEU on the dev text, by {search} search with the last checkpoint of "
    "each run, not averaged, as in the paper. The paper's is tokenized BLEU on "
    "newstest2013, by beam search, with one run per row. Change is the difference from "
    "base."
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
            Section(title="Differences from base", parts=_differences(table)),
            Section(title="Results by row", parts=_figures(table)),
            *([failed_runs(table.failures)] if table.failures else []),
            Section(title="Data and settings", parts=_settings(table)),
        ),
    )


def _differences(table: Table3) -> tuple[Part, ...]:
    rows = table.rows
    is_greedy = table.settings["search.beam_size"] == 1
    protocol = PROTOCOL.format(search="greedy" if is_greedy else "beam")
    heads = columns("row", "BLEU", "95 %", "paper", "change", "paper", "p")
    direction = Column(name="direction", is_text=True)
    cells = tuple(_difference_cells(row) for row in rows)
    shown = Table(columns=(*heads, direction), rows=cells)
    parts: list[Part] = [protocol, shown, TESTS]
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
        f"{row.bleu.difference:+z.2f}",
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
    but = f"; these did not: {others}." if others else "."
    return (
        f"{len(large)} of these rows differed from base by {LARGE} BLEU or more in the "
        f"paper; {len(agreeing)} of them agreed in direction{but}"
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


def _settings(table: Table3) -> tuple[Part, ...]:
    changed = tuple(
        (row.row, ", ".join(f"{name}={value}" for name, value in row.changes.items()))
        for row in table.rows
        if row.changes
    )
    heads = (Column(name="row", is_text=True), Column(name="change", is_text=True))
    return (
        f"{described_files(table.files)}. The training text has "
        f"{counted(table.num_pairs, 'pair')}, the dev text "
        f"{counted(table.num_sentences, 'sentence')}. Matrix products in "
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
