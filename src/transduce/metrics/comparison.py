"""Comparison of several systems on the same sentences.

It reports scores with significance tests, scores by sentence length, the accuracy of
rare and frequent words (after Neubig et al., 2019), and the sentences that differ most.
The significance tests are sacreBLEU's paired tests (Post, 2018): the bootstrap (Koehn,
2004) resamples the test sentences; approximate randomisation (Riezler and Maxwell,
2005) swaps lines between two systems.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import ne
from typing import Any
from unicodedata import normalize

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from transduce.errors import DataError
from transduce.metrics.scores import ScoredTexts, Tokenization, require_pairs
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


ONE_TRIAL = Trials(resamples=1, shuffles=1)
"""Trials for scores alone, whose tests are not used."""


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
    """p-value of approximate randomisation; None for the baseline itself. It is
    sacreBLEU's, but at least 2 ** (1 - k) where k sentences differ, and 1 for equal
    scores."""

    @property
    def p(self) -> float | None:
        """Larger p-value of the two tests; None for the baseline itself."""
        if self.bootstrap_p is None or self.randomisation_p is None:
            return None
        return max(self.bootstrap_p, self.randomisation_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Scores of all systems by one metric, the baseline's first."""

    metric: str
    systems: tuple[SystemScore, ...]
    bootstrap_signature: str
    """sacreBLEU's signature of the scores, intervals and `bootstrap_p`."""
    randomisation_signature: str
    """sacreBLEU's signature of the test that `randomisation_p` is from."""


def paired_scores(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    metrics: Sequence[Metric],
    trials: Trials,
    more_references: Sequence[Sequence[str]] = (),
) -> tuple[PairedScores, ...]:
    """Score systems by each metric, and test each against the first.

    Raises `DataError` unless all have a line for each reference.
    """
    texts = ScoredTexts.of([*systems.values(), references, *more_references])
    named = list(zip(systems, texts.columns, strict=False))
    for _, hypotheses in named:
        for lines in texts.columns[len(named) :]:
            require_pairs(hypotheses, lines)
    documents = [list(lines) for lines in texts.columns[len(named) :]]
    baseline = named[0][1]
    num_different = [sum(map(ne, lines, baseline)) for _, lines in named]
    keyed = {str(number): metric for number, metric in enumerate(metrics)}
    with _seeded(trials.seed):
        bootstrap = PairedTest(named, keyed, documents, "bs", trials.resamples)
        shuffling = PairedTest(named, keyed, documents, "ar", trials.shuffles)
    bootstrap_signatures, drawn = bootstrap()
    shuffling_signatures, shuffled = shuffling()
    return tuple(
        PairedScores(
            metric=name,
            systems=_scores_of_systems(
                _results(drawn[name]), _results(shuffled[name]), num_different
            ),
            bootstrap_signature=texts.signed(signature),
            randomisation_signature=texts.signed(shuffling_signatures[name]),
        )
        for name, signature in bootstrap_signatures.items()
    )


def _results(column: Sequence[str | Result]) -> list[Result]:
    """Return a column of sacreBLEU's table as results."""
    return [cell for cell in column if isinstance(cell, Result)]


def _scores_of_systems(
    drawn: Sequence[Result],
    shuffled: Sequence[Result],
    num_different: Sequence[int],
) -> tuple[SystemScore, ...]:
    """Join the results of both tests; the first system is the baseline."""
    return tuple(
        SystemScore(
            score=by_bootstrap.score,
            interval=float(by_bootstrap.ci or 0.0),  # a NumPy float
            difference=by_bootstrap.score - drawn[0].score,
            bootstrap_p=_p_value(by_bootstrap, drawn[0]),
            randomisation_p=_p_value(by_shuffling, drawn[0], _least_p(number)),
        )
        for by_bootstrap, by_shuffling, number in zip(
            drawn, shuffled, num_different, strict=True
        )
    )


def _least_p(num_different: int) -> float:
    """Return the chance that all sentences that differ are swapped, or that none is.

    Both outcomes are as extreme as the observed one. sacreBLEU counts only more extreme
    ones, so a single sentence that differs would make a significant difference.
    """
    return min(2.0 ** (1 - num_different), 1.0)


def _p_value(result: Result, baseline: Result, minimum: float = 0.0) -> float | None:
    """Return sacreBLEU's p-value, at least `minimum`, or 1 for equal scores."""
    if result.p_value is None:
        return None
    if result.score == baseline.score:
        return 1.0  # sacreBLEU counts only larger differences, so it would say 0
    return max(result.p_value, minimum)


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


def pooled_scores(
    systems: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[str],
    tokenization: Tokenization,
    trials: Trials,
) -> PairedScores:
    """BLEU of systems that have translated a text equally often, over all translations.

    Each system is tested against the first. The tests draw sentences, each with all its
    translations. Raises `DataError` unless each text has a line for each reference.
    """
    pools = {name: pooled(each, references) for name, each in systems.items()}
    units = {name: translations for name, (translations, _) in pools.items()}
    _, copies = next(iter(pools.values()))
    [scores] = paired_scores(units, copies, [PooledBleu(tokenization)], trials)
    return scores


LENGTH_BOUNDS = (0, 5, 10, 15, 20, 30, 40, 60)
"""Upper bounds of reference lengths in words; a last bucket has no bound."""
FREQUENCY_BOUNDS = (0, 1, 2, 4, 9, 99, 999)
"""Upper bounds of word frequencies; a last bucket has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Range of numbers, both ends included."""

    first: int
    last: int | None
    """None for no bound."""

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first:,} or more"
        return f"{self.first:,}" + (f"-{self.last:,}" if self.last > self.first else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScores:
    """Scores of the sentences whose references have similar lengths."""

    words: Bucket
    num_sentences: int
    bleu: tuple[float, ...]
    """BLEU of each system in percent."""
    chrf: tuple[float, ...]
    """chrF of each system in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordAccuracy:
    """Counts of matched words, clipped as in BLEU."""

    num_met: int
    num_written: int
    """Number of words in the system's translations."""
    num_wanted: int
    """Number of words in the references."""

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall in percent."""
        return 200 * self.num_met / max(self.num_written + self.num_wanted, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyScores:
    """Accuracy of words of similar frequency, for each system."""

    occurrences: Bucket
    systems: tuple[WordAccuracy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A sentence that a system and the baseline translate differently."""

    line: int
    """Number, from 1."""
    source: str | None
    """None if the sources are not given."""
    reference: str
    """The first, if there are several."""
    baseline: str
    hypothesis: str
    baseline_chrf: float
    """chrF of this sentence in percent."""
    hypothesis_chrf: float

    @property
    def difference(self) -> float:
        return self.hypothesis_chrf - self.baseline_chrf


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemExamples:
    """Sentences where a system differs most from the baseline, largest first."""

    system: str
    better: tuple[Example, ...]
    worse: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of comparing systems with the first of them, the baseline."""

    systems: tuple[str, ...]
    """The baseline first, here and in every tuple of scores."""
    num_sentences: int
    scores: tuple[PairedScores, ...]
    """Scores by BLEU and by chrF."""
    by_length: tuple[LengthScores, ...]
    by_frequency: tuple[FrequencyScores, ...]
    examples: tuple[SystemExamples, ...]
    """Examples of each system but the baseline."""


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    training: Iterable[str] | None = None,
    more_references: Sequence[Sequence[str]] = (),
    tokenize: str = "13a",
    trials: Trials | None = None,
    num_examples: int = 5,
) -> Comparison:
    """Compare systems with the first of them.

    Raises `DataError` for fewer than two systems, and unless all texts have equally
    many lines.

    sacreBLEU's tokenizer defines the words. Word frequencies come from the training
    text, or else from the references. Scores are against all references of a sentence;
    lengths and word accuracies are of the first.
    """
    if len(systems) < 2:
        raise DataError(
            f"The number of systems must be at least 2, but is {len(systems)}; "
            "`transduce evaluate` scores one by itself."
        )
    if sources is not None and len(sources) != len(references):
        raise DataError(
            f"The number of sources must be {len(references)}, that of the references, "
            f"but is {len(sources)}."
        )
    every = [references, *more_references]
    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()
    scores = paired_scores(
        systems, references, [bleu, chrf], trials or Trials(), more_references
    )
    texts = ScoredTexts.of([*systems.values(), *every]).columns
    systems = dict(zip(systems, texts, strict=False))
    references, *_ = every = texts[len(systems) :]

    def words(line: str) -> list[str]:
        return bleu.tokenizer(line.strip()).split()

    frequencies = Counter(
        word
        for line in (references if training is None else training)
        for word in words(normalize("NFC", line))
    )
    return Comparison(
        systems=tuple(systems),
        num_sentences=len(references),
        scores=scores,
        by_length=_by_length(systems, every, words, bleu, chrf),
        by_frequency=_by_frequency(systems, references, words, frequencies),
        examples=_examples(systems, every, sources, chrf, num_examples),
    )


def _buckets(bounds: Sequence[int]) -> list[Bucket]:
    """Return a bucket up to each bound, and one beyond the last."""
    inner = [Bucket(first=low + 1, last=high) for low, high in pairwise(bounds)]
    beyond = Bucket(first=bounds[-1] + 1, last=None)
    return [Bucket(first=0, last=bounds[0]), *inner, beyond]


def _by_length(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    words: Callable[[str], list[str]],
    bleu: BLEU,
    chrf: CHRF,
) -> tuple[LengthScores, ...]:
    """Score the buckets that hold a sentence."""
    places = [bisect_left(LENGTH_BOUNDS, len(words(line))) for line in references[0]]
    found = []
    for place, bucket in enumerate(_buckets(LENGTH_BOUNDS)):
        lines = [i for i, own in enumerate(places) if own == place]
        if not lines:
            continue
        wanted = [[each[i] for i in lines] for each in references]
        written = [[hypotheses[i] for i in lines] for hypotheses in systems.values()]
        found.append(
            LengthScores(
                words=bucket,
                num_sentences=len(lines),
                bleu=tuple(bleu.corpus_score(each, wanted).score for each in written),
                chrf=tuple(chrf.corpus_score(each, wanted).score for each in written),
            )
        )
    return tuple(found)


def _by_frequency(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    words: Callable[[str], list[str]],
    frequencies: Mapping[str, int],
) -> tuple[FrequencyScores, ...]:
    """Score the buckets that hold a word of the references."""

    def counts(bags: Iterable[Counter[str]]) -> Counter[int]:
        """Count the words in each bucket."""
        total: Counter[int] = Counter()
        for bag in bags:
            for word, count in bag.items():
                total[bisect_left(FREQUENCY_BOUNDS, frequencies.get(word, 0))] += count
        return total

    bags = [Counter(words(line)) for line in references]
    wanted, accuracies = counts(bags), []
    for hypotheses in systems.values():
        others = [Counter(words(line)) for line in hypotheses]
        met = counts(one & other for one, other in zip(bags, others, strict=True))
        accuracies.append((met, counts(others)))
    return tuple(
        FrequencyScores(
            occurrences=bucket,
            systems=tuple(
                WordAccuracy(
                    num_met=met[place],
                    num_written=written[place],
                    num_wanted=wanted[place],
                )
                for met, written in accuracies
            ),
        )
        for place, bucket in enumerate(_buckets(FREQUENCY_BOUNDS))
        if wanted[place]
    )


def _examples(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    chrf: CHRF,
    num_examples: int,
) -> tuple[SystemExamples, ...]:
    scores = {
        name: [
            chrf.sentence_score(hypothesis, wanted).score
            for hypothesis, *wanted in zip(hypotheses, *references, strict=True)
        ]
        for name, hypotheses in systems.items()
    }
    baseline, *others = systems

    def example(name: str, i: int) -> Example:
        return Example(
            line=i + 1,
            source=sources[i] if sources is not None else None,
            reference=references[0][i],
            baseline=systems[baseline][i],
            hypothesis=systems[name][i],
            baseline_chrf=scores[baseline][i],
            hypothesis_chrf=scores[name][i],
        )

    found = []
    for name in others:
        # Of equal differences, the first line stays first.
        examples = sorted(
            (example(name, i) for i in range(len(references[0]))),
            key=lambda each: -abs(each.difference),
        )
        better = [each for each in examples if each.difference > 0]
        worse = [each for each in examples if each.difference < 0]
        found.append(
            SystemExamples(
                system=name,
                better=tuple(better[:num_examples]),
                worse=tuple(worse[:num_examples]),
            )
        )
    return tuple(found)
