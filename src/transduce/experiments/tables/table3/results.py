"""What came of the runs of Table 3, and whether rows differ from base."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple

from transduce.data.dataset import open_dataset
from transduce.evaluation.bleu import corpus_bleu
from transduce.evaluation.pooling import PooledBleu, pooled
from transduce.evaluation.significance import (
    SIGNIFICANT_P,
    PairedScores,
    SystemScore,
    Trials,
    paired_scores,
)
from transduce.evaluation.tokenization import Tokenization, choose_tokenization
from transduce.experiments.run_folder import (
    RunFolder,
    known_languages,
    settings_of,
)
from transduce.experiments.tables.table3.experiment import Experiment, RowRun
from transduce.experiments.tables.table3.paper import PAPER_ROWS
from transduce.experiments.tables.table3.rows import (
    changes,
    row_config,
    settings,
)
from transduce.machine import Precision
from transduce.model.cost import count_parameters
from transduce.text.corpus import read_text
from transduce.training.schedule import scheduled_rate


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
