"""Table 3 as a report: our figures beside the paper's, and the protocol."""

from collections.abc import Sequence
from pathlib import Path

from transduce.evaluation.significance import SIGNIFICANT_P
from transduce.experiments.tables.table3.paper import PAPER_ROWS
from transduce.experiments.tables.table3.results import RowResult, Table3
from transduce.experiments.tables.table3.rows import scaled_base, settings
from transduce.phrases import counted
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
