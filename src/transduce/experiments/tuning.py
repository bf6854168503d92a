"""Choice of beam size and length penalty on the dev set (sections 6.1 and 6.3).

Each cell of the grid is a search of its own. Rescoring the hypotheses of one search for
all penalties would give other results, since the penalty also decides when search ends,
and so which hypotheses there are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.decoding.parser import score_parses
from transduce.decoding.translator import Translator
from transduce.experiments.dev_corpus import ENOUGH_4_GRAMS
from transduce.metrics.comparison import Trials, paired_scores
from transduce.metrics.scores import Tokenization, corpus_bleu, corpus_chrf
from transduce.search_config import SearchConfig
from transduce.trees.bracket_f1 import SentenceCounts
from transduce.trees.trees import Tree

TRIALS = 1_000
SEED = 12345
ROUNDING = 0.005
"""Difference of scores below which they print the same, so the faster search wins."""

MetricName = Literal["BLEU", "chrF", "F1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Grid of search settings."""

    beam_sizes: tuple[int, ...] = (1, 2, 4, 8)
    length_penalties: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)
    patiences: tuple[float | None, ...] = ()
    """Patiences besides the model's own."""

    def searches(self, now: SearchConfig) -> list[SearchConfig]:
        """Return the model's own settings and all others, each with `num_best` 1.

        Greedy search is tried once, with the model's penalty and patience, as they do
        not change it. With a coverage penalty, which needs a beam, it is not tried.
        """
        now = replace(now, num_best=1)
        beams = {*self.beam_sizes, now.beam_size}
        penalties = sorted({*self.length_penalties, now.length_penalty})
        patiences = tuple(dict.fromkeys((now.patience, *self.patiences)))
        searches = [now]
        is_greedy_new = 1 in beams and now.beam_size > 1
        if is_greedy_new and not self.lacks_greedy(now):
            searches.append(replace(now, beam_size=1))
        for beam, penalty, patience in product(
            sorted(beams - {1}), penalties, patiences
        ):
            searches.append(
                replace(now, beam_size=beam, length_penalty=penalty, patience=patience)
            )
        return list(dict.fromkeys(searches))

    def lacks_greedy(self, now: SearchConfig) -> bool:
        """Return whether greedy search is wanted, but impossible with a model's
        settings."""
        return 1 in self.beam_sizes and now.coverage_penalty != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Search settings with their score on the dev set."""

    search: SearchConfig
    score: float
    """Score in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Scores of a grid of search settings on the dev set."""

    metric: MetricName
    protocol: str
    """Signature of the metric."""
    num_sentences: int
    p: float | None
    """Probability of a difference this large between the best and the model's own
    settings by chance; None if they are the same."""
    cells: tuple[Cell, ...]
    """Cells of the grid, the model's own settings first."""

    @property
    def now(self) -> Cell:
        """Cell of the model's own settings."""
        return self.cells[0]

    @property
    def best(self) -> Cell:
        """Cell of the highest score.

        Among scores that print the same, the model's own settings are preferred, then
        the smallest beam, then the smallest penalty.
        """
        highest = max(cell.score for cell in self.cells)
        tied = [c for c in self.cells if c.score > highest - ROUNDING]
        if self.now in tied:
            return self.now
        return min(tied, key=lambda c: (c.search.beam_size, c.search.length_penalty))

    @property
    def gain(self) -> float:
        """Difference between the best score and that of the model's own settings."""
        return self.best.score - self.now.score


OnSearch = Callable[[int, int, SearchConfig], object]
"""Callback before each search: its number, the number of searches, its settings."""


def tune_translation(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    tokenization: Tokenization,
    grid: Grid,
    on_search: OnSearch,
) -> Tuning:
    """Score translations by BLEU, or by chrF if too few 4-grams match for BLEU.

    Raises `RequestError` if the model is a parser.
    """
    searches = grid.searches(translator.search)
    texts = []
    for search in _announced(searches, on_search):
        translations = translator.translate_stream(sources, search)
        texts.append([each.text for each in translations])
    bleus = [corpus_bleu(t, references, tokenization=tokenization) for t in texts]
    scores = [bleu.score for bleu in bleus]
    protocol = bleus[0].signature
    by_chrf = max(bleu.matched_4_grams for bleu in bleus) < ENOUGH_4_GRAMS
    if by_chrf:
        chrfs = [corpus_chrf(text, references) for text in texts]
        scores, protocol = [chrf.score for chrf in chrfs], chrfs[0].signature
    tuning = Tuning(
        metric="chrF" if by_chrf else "BLEU",
        protocol=protocol,
        num_sentences=len(references),
        cells=_cells(searches, scores),
        p=None,
    )
    if tuning.best is tuning.now:
        return tuning
    best = texts[tuning.cells.index(tuning.best)]
    metric = CHRF() if by_chrf else BLEU(tokenize=tokenization.name, force=True)
    return replace(tuning, p=_p_of_difference(texts[0], best, references, metric))


def _p_of_difference(
    now: Sequence[str],
    best: Sequence[str],
    references: Sequence[str],
    metric: BLEU | CHRF,
) -> float:
    """Return the larger p-value of two tests that one system scores better."""
    [paired] = paired_scores(
        {"now": now, "best": best},
        references,
        [metric],
        Trials(resamples=TRIALS, shuffles=TRIALS, seed=SEED),
    )
    p = paired.systems[1].p
    assert p is not None  # only the baseline has none
    return p


def tune_parsing(
    translator: Translator,
    gold: Sequence[Tree],
    grid: Grid,
    on_search: OnSearch,
    *,
    constrained: bool = False,
) -> Tuning:
    """Score parses by labelled bracket F1; `RequestError` if the model is no parser."""
    parser = translator.parser()
    searches = grid.searches(translator.search)
    scores = []
    for search in _announced(searches, on_search):
        words = (tree.words for tree in gold)
        parses = list(parser.parse_stream(words, search, constrained=constrained))
        scores.append(score_parses(gold, parses).brackets)
    protocol = "labelled brackets as EVALB counts them with COLLINS.prm"
    if constrained:
        protocol += "; searches constrained to trees"
    tuning = Tuning(
        metric="F1",
        protocol=protocol,
        num_sentences=len(gold),
        cells=_cells(searches, [score.all.f1 for score in scores]),
        p=None,
    )
    if tuning.best is tuning.now:
        return tuning
    best = scores[tuning.cells.index(tuning.best)]
    return replace(tuning, p=paired_f1_p(scores[0].sentences, best.sentences))


def paired_f1_p(now: Sequence[SentenceCounts], best: Sequence[SentenceCounts]) -> float:
    """Probability of a difference of F1 this large by chance.

    By approximate randomisation (Riezler and Maxwell, 2005), which swaps the two parses
    of random sentences.
    """
    counts = np.array(
        [[(s.matched, s.gold + s.predicted) for s in side] for side in (now, best)],
        dtype=np.int64,
    )
    observed = abs(_f1(counts[1].sum(0)) - _f1(counts[0].sum(0)))
    generator = np.random.default_rng(SEED)
    as_extreme = 0
    for _ in range(TRIALS):
        swapped = generator.random(len(now)) < 0.5
        one = np.where(swapped[:, None], counts[1], counts[0]).sum(0)
        other = np.where(swapped[:, None], counts[0], counts[1]).sum(0)
        as_extreme += abs(_f1(other) - _f1(one)) >= observed
    return (as_extreme + 1) / (TRIALS + 1)


def _f1(counts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> float:
    """F1 in percent from the matched brackets and the brackets of both sides."""
    return 200 * float(counts[0]) / max(float(counts[1]), 1.0)


def _announced(
    searches: Sequence[SearchConfig], on_search: OnSearch
) -> Iterator[SearchConfig]:
    for number, search in enumerate(searches, start=1):
        on_search(number, len(searches), search)
        yield search


def _cells(
    searches: Sequence[SearchConfig], scores: Sequence[float]
) -> tuple[Cell, ...]:
    return tuple(
        Cell(search=search, score=score)
        for search, score in zip(searches, scores, strict=True)
    )


def tuned(stored: SearchConfig, best: SearchConfig) -> SearchConfig:
    """Replace the tuned values in the model's search settings."""
    return replace(
        stored,
        beam_size=best.beam_size,
        length_penalty=best.length_penalty,
        patience=best.patience,
        num_best=min(stored.num_best, best.beam_size),
    )
