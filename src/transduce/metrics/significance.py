"""Whether a system is better than another, or only lucky in its test sentences.

sacreBLEU's own paired tests (Post, 2018): the bootstrap (Koehn, 2004) draws the test
sentences anew; approximate randomisation (Riezler and Maxwell, 2005) swaps the lines of
two systems.
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
from transduce.settings import MOST_WHOLE, require_between

SEED_VARIABLE = "SACREBLEU_SEED"
"""Of the environment: the only place from which sacreBLEU takes it."""

SIGNIFICANT_P = 0.05
"""Below it, a difference is taken for more than luck."""


MOST_TRIALS = 100_000
"""Greatest number of trials of a test, whose draws are all in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How often, and from which seed, chance is tried."""

    resamples: int = 1000
    """Test sets drawn by the bootstrap."""
    shuffles: int = 10_000
    """Times that approximate randomisation swaps lines."""
    seed: int = 12345
    """sacreBLEU's own."""

    def __post_init__(self) -> None:
        # sacreBLEU takes 0 for its default, and a seed of 0 for none at all.
        for name in ("resamples", "shuffles"):
            require_between(name, getattr(self, name), 1, MOST_TRIALS)
        require_between("seed", self.seed, 1, MOST_WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemScore:
    """A system's score by one metric, beside that of the baseline."""

    score: float
    """In percent."""
    interval: float
    """Half the width of the 95 % interval around the bootstrap's mean, in percent."""
    difference: float
    """From the baseline's score."""
    bootstrap_p: float | None
    """How likely so large a difference is by chance; none for the baseline itself."""
    randomisation_p: float | None
    """The same by approximate randomisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """The scores of all systems by one metric, the baseline's first."""

    metric: str
    systems: tuple[SystemScore, ...]
    bootstrap_signature: str
    """The protocol of scores, intervals and `bootstrap_p`, as sacreBLEU writes it."""
    randomisation_signature: str
    """That of `randomisation_p`."""


def paired_scores(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    metrics: Sequence[Metric],
    trials: Trials,
) -> tuple[PairedScores, ...]:
    """Score systems by each metric, and test each against the first."""
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
    """A column of sacreBLEU's table that is not the one of names."""
    return [cell for cell in column if isinstance(cell, Result)]


def _beside_first(
    drawn: Sequence[Result], shuffled: Sequence[Result]
) -> tuple[SystemScore, ...]:
    return tuple(
        SystemScore(
            score=by_bootstrap.score,
            interval=float(by_bootstrap.ci or 0.0),  # of numpy's kind
            difference=by_bootstrap.score - drawn[0].score,
            bootstrap_p=_p_value(by_bootstrap, drawn[0]),
            randomisation_p=_p_value(by_shuffling, drawn[0]),
        )
        for by_bootstrap, by_shuffling in zip(drawn, shuffled, strict=True)
    )


def _p_value(result: Result, baseline: Result) -> float | None:
    """sacreBLEU's, but for equal scores: no difference is always met by chance."""
    if result.p_value is not None and result.score == baseline.score:
        return 1.0  # sacreBLEU counts only larger differences, and finds none
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
    """sacreBLEU's, of units as `pooled` makes them; each counts with all its lines."""

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
    """Units of all translations of a sentence, and of as many copies of its reference.

    `DataError` unless each text has a line for each reference.
    """
    for text in translations:
        require_pairs(text, references)
    units = ["\n".join(lines) for lines in zip(*translations, strict=True)]
    return units, ["\n".join([line] * len(translations)) for line in references]
