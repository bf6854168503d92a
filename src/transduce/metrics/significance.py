"""Significance tests for the difference of two systems.

These are sacreBLEU's paired tests (Post, 2018): the bootstrap (Koehn, 2004) resamples
the test sentences; approximate randomisation (Riezler and Maxwell, 2005) swaps lines
between two systems.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from transduce.metrics.bleu import require_pairs
from transduce.metrics.tokenization import Tokenization
from transduce.settings import MAX_WHOLE, require_between

SEED_VARIABLE = "SACREBLEU_SEED"
"""Environment variable from which sacreBLEU reads its seed."""

SIGNIFICANT_P = 0.05
"""Differences with a smaller p-value count as significant."""


MAX_TRIALS = 100_000
"""Maximum number of trials; a test holds all its draws in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Number of trials of the significance tests, and their seed."""

    resamples: int = 1000
    """Number of bootstrap resamples."""
    shuffles: int = 10_000
    """Number of shuffles of approximate randomisation."""
    seed: int = 12345
    """Seed of both tests; the default is sacreBLEU's."""

    def __post_init__(self) -> None:
        # sacreBLEU treats 0 trials as its default, and a seed of 0 as no seed.
        for name in ("resamples", "shuffles"):
            require_between(name, getattr(self, name), 1, MAX_TRIALS)
        require_between("seed", self.seed, 1, MAX_WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemScore:
    """Score of a system by one metric, compared with the baseline's."""

    score: float
    """Score in percent."""
    interval: float
    """Half the width of the 95 % interval around the bootstrap's mean, in percent."""
    difference: float
    """Difference from the baseline's score."""
    bootstrap_p: float | None
    """p-value of the paired bootstrap; None for the baseline itself."""
    randomisation_p: float | None
    """p-value of approximate randomisation; None for the baseline itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Scores of all systems by one metric, the baseline's first."""

    metric: str
    systems: tuple[SystemScore, ...]
    bootstrap_signature: str
    """sacreBLEU's signature of the scores, intervals and `bootstrap_p`."""
    randomisation_signature: str
    """sacreBLEU's signature of `randomisation_p`."""


def paired_scores(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    metrics: Sequence[Metric],
    trials: Trials,
) -> tuple[PairedScores, ...]:
    """Score systems by each metric, and test each against the first.

    Raises `DataError` unless all have a line for each reference.
    """
    named, documents = list(systems.items()), [list(references)]
    keyed = {str(number): metric for number, metric in enumerate(metrics)}
    with _seeded(trials.seed):
        bootstrap = PairedTest(named, keyed, documents, "bs", trials.resamples)
        shuffling = PairedTest(named, keyed, documents, "ar", trials.shuffles)
    bootstrap_signatures, drawn = bootstrap()
    shuffling_signatures, shuffled = shuffling()
    return tuple(
        PairedScores(
            metric=name,
            systems=_beside_first(_results(drawn[name]), _results(shuffled[name])),
            bootstrap_signature=str(signature),
            randomisation_signature=str(shuffling_signatures[name]),
        )
        for name, signature in bootstrap_signatures.items()
    )


def _results(column: Sequence[str | Result]) -> list[Result]:
    """Return a column of sacreBLEU's table as results."""
    return [cell for cell in column if isinstance(cell, Result)]


def _beside_first(
    drawn: Sequence[Result], shuffled: Sequence[Result]
) -> tuple[SystemScore, ...]:
    return tuple(
        SystemScore(
            score=by_bootstrap.score,
            interval=float(by_bootstrap.ci or 0.0),  # a NumPy float
            difference=by_bootstrap.score - drawn[0].score,
            bootstrap_p=_p_value(by_bootstrap, drawn[0]),
            randomisation_p=_p_value(by_shuffling, drawn[0]),
        )
        for by_bootstrap, by_shuffling in zip(drawn, shuffled, strict=True)
    )


def _p_value(result: Result, baseline: Result) -> float | None:
    """Return sacreBLEU's p-value, or 1 for equal scores."""
    if result.p_value is not None and result.score == baseline.score:
        return 1.0  # sacreBLEU counts only larger differences, so it would say 0
    return result.p_value


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        del os.environ[SEED_VARIABLE]
        if before is not None:
            os.environ[SEED_VARIABLE] = before


class PooledBleu(BLEU):
    """sacreBLEU's BLEU over units of `pooled`: several translations of a sentence
    each."""

    def __init__(self, tokenization: Tokenization | None = None) -> None:
        name = (tokenization or Tokenization()).name
        super().__init__(tokenize=name, force=True)

    def _extract_corpus_statistics(
        self,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]] | None,
    ) -> list[list[Any]]:
        assert references is not None
        return [
            self._of_unit(*unit) for unit in zip(hypotheses, *references, strict=True)
        ]

    def _of_unit(self, hypotheses: str, *references: str) -> list[Any]:
        statistics = super()._extract_corpus_statistics(
            hypotheses.split("\n"), [each.split("\n") for each in references]
        )
        return [sum(column) for column in zip(*statistics, strict=True)]


def pooled(
    translations: Sequence[Sequence[str]], references: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Join all translations of each sentence into a unit, and copies of its reference.

    Raises `DataError` unless each text has a line for each reference.
    """
    for text in translations:
        require_pairs(text, references)
    units = ["\n".join(lines) for lines in zip(*translations, strict=True)]
    return units, ["\n".join([line] * len(translations)) for line in references]
