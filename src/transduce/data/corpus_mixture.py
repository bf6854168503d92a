"""Mixtures of corpora: shares of the training pairs, and stages of training.

Each corpus of a mixture has a weight, which is its share of the training pairs of an
epoch. Stages change the weights at given updates. Within a stage, all pairs of a corpus
are drawn once, in random order, before one is drawn again. What an epoch draws depends
only on the seed, the number of the epoch and the stage, so a resumed training draws the
same. `Batcher` draws the pairs of an epoch (`draw`), sorts them into batches, and puts
these into the order of `in_even_order`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Integer

from transduce.errors import LIST_CORPORA, ConfigError, counted
from transduce.files import require_file_name
from transduce.settings import Bounds, convert_and_check
from transduce.text.languages import canonical, guess_all
from transduce.text.vocabulary import corpus_tag

CANDIDATES = 16
"""Number of batches among which the next is chosen."""
MAX_WEIGHT = 10**9
"""Maximum weight of a corpus, which keeps sums and products finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """Corpus of a mixture."""

    name: str
    """Name in the log and in the weights of stages."""
    source: str | tuple[str, ...]
    """Text file, or several, one sentence per line."""
    target: str | tuple[str, ...]
    """Text file with the translation of each source line, or several."""
    weight: float | None = None
    """Share of the training pairs, relative to the other weights; without any weight,
    each corpus has the share of its size."""
    tag: str | None = None
    """Token before each source, such as <bt> for back-translations; None for none."""
    target_language: str | None = None
    """Language of the target, as BCP 47 tag, whose token such as >>de<< is put before
    each source; None if all corpora have one target language."""

    def __post_init__(self) -> None:
        for side in ("source", "target"):
            object.__setattr__(self, side, _names(getattr(self, side)))
        convert_and_check(self, "corpora.")
        if self.tag is not None:
            object.__setattr__(self, "tag", corpus_tag(self.tag))
        if self.target_language is not None:
            language = canonical(self.target_language)
            object.__setattr__(self, "target_language", language)
        if not self.name.strip():
            raise ConfigError("Each corpus must have a name, but one is empty.")
        for side in ("source", "target"):
            if not getattr(self, side):
                raise ConfigError(
                    f"`{side}` of corpus {self.name} must name a file, but is empty."
                )
            for path in _files(getattr(self, side)):
                require_file_name(f"corpora.{self.name}.{side}", str(path))
        _require_positive(self.name, self.weight)

    @property
    def source_files(self) -> tuple[Path, ...]:
        return _files(self.source)

    @property
    def target_files(self) -> tuple[Path, ...]:
        return _files(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """Stage of training: weights of the corpora for a number of updates."""

    steps: Annotated[int, Bounds(1, 10**9)] | None = None
    """Number of updates; the last stage may leave it out and lasts to the end."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by the names of corpora; others are not drawn. Without any, the corpora
    have their own weights."""

    def __post_init__(self) -> None:
        convert_and_check(self, "stages.")
        for name, weight in self.weights.items():
            _require_positive(name, weight)


def with_absolute_files(corpora: Sequence[CorpusConfig]) -> tuple[CorpusConfig, ...]:
    """Return the corpora with absolute file names, as a run records them."""
    return tuple(
        replace(
            corpus,
            source=tuple(str(path.absolute()) for path in corpus.source_files),
            target=tuple(str(path.absolute()) for path in corpus.target_files),
        )
        for corpus in corpora
    )


def with_target_languages(
    corpora: Sequence[CorpusConfig],
) -> tuple[CorpusConfig, ...]:
    """Return the corpora with their target languages, if these are several.

    A language that is not given is guessed from the files' endings. Raises
    `ConfigError` if one is unknown beside others.
    """
    languages = [
        corpus.target_language or guess_all(corpus.target_files) for corpus in corpora
    ]
    given = [corpus.target_language for corpus in corpora]
    known = sorted(language for language in set(languages) if language is not None)
    if not any(given) and len(known) < 2:
        return tuple(corpora)
    if None in languages:
        name = corpora[languages.index(None)].name
        raise ConfigError(
            "Each corpus must have a target language if one has, or if there are "
            f"several ({', '.join(known)}), but {name} has none; add "
            "target_language=LANGUAGE to it."
        )
    return tuple(
        replace(corpus, target_language=language)
        for corpus, language in zip(corpora, languages, strict=True)
    )


def _names(side: object) -> object:
    """Return paths of files as text, as records hold them."""
    if isinstance(side, list | tuple):
        return tuple(map(_names, side))
    return str(side) if isinstance(side, Path) else side


def _files(side: str | tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, (side,) if isinstance(side, str) else side))


def _require_positive(name: str, weight: float | None) -> None:
    if weight is None or 0 < weight <= MAX_WEIGHT:
        return
    if weight > MAX_WEIGHT:
        raise ConfigError(
            f"The weight of corpus {name} must be at most {MAX_WEIGHT:,}, but is "
            f"{weight:g}; weights are relative to each other, so divide all by the "
            "same number."
        )
    raise ConfigError(
        f"The weight of corpus {name} must be above 0, but is {weight:g}; leave the "
        "corpus out to train without it."
    )


def require_mixture(
    corpora: Sequence[CorpusConfig], stages: Sequence[StageConfig], num_steps: int
) -> None:
    """Raise `ConfigError` if corpora and stages contradict each other."""
    if stages and not corpora:
        raise ConfigError(
            "`stages` are weights of corpora, but no corpus has a name; "
            f"{LIST_CORPORA}."
        )
    names = [corpus.name for corpus in corpora]
    _require_stages(stages, names)
    _require_corpora(corpora, stages, names)
    if stages:
        _require_steps(stages, num_steps)


def _require_stages(stages: Sequence[StageConfig], names: list[str]) -> None:
    for number, stage in enumerate(stages, start=1):
        for name in stage.weights:
            if name not in names:
                raise ConfigError(
                    f"Stage {number} has a weight for the corpus {name}, which is not "
                    f"among the corpora: {', '.join(names)}."
                )
        if stage.steps is None and number < len(stages):
            raise ConfigError(
                f"`steps` of stage {number} must be given, as another stage follows."
            )


def _require_corpora(
    corpora: Sequence[CorpusConfig], stages: Sequence[StageConfig], names: list[str]
) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Each corpus must have a name of its own, but {names.count(name)} are "
                f"named {name}; give several files of one corpus as a list in "
                "`corpora`."
            )
    given = [corpus.weight is not None for corpus in corpora]
    needed = not stages or not all(stage.weights for stage in stages)
    if needed and any(given) and not all(given):
        raise ConfigError(
            "All corpora must have a weight, or none, but "
            f"{names[given.index(False)]} has none; add it."
        )
    for name in names:
        if stages and not any(name in (each.weights or names) for each in stages):
            raise ConfigError(
                f"Each corpus must be in a stage, but {name} is in none; add it to the "
                "`weights` of a stage, or leave the corpus out."
            )


def _require_steps(stages: Sequence[StageConfig], num_steps: int) -> None:
    total = sum(stage.steps or 0 for stage in stages)
    is_open = stages[-1].steps is None
    if (total < num_steps) if is_open else (total == num_steps):
        return
    raise ConfigError(
        f"The stages must take {'fewer than' if is_open else 'exactly'} the "
        f"{counted(num_steps, 'update')} of `training.steps`, but take {total:,}; "
        "change one of them, or leave out `steps` of the last stage."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Stage of training with its draws."""

    number: int
    """Number of the stage, from 1."""
    steps_before: int
    """Number of updates before the stage."""
    end: int | None
    """Number of updates up to its end; None for the last stage."""
    draws: tuple[int, ...]
    """Number of pairs of each corpus in an epoch."""


class CorpusMixture:
    """Mixture of corpora that lie one after the other in a dataset."""

    def __init__(
        self,
        corpora: Sequence[CorpusConfig],
        stages: Sequence[StageConfig],
        sizes: Sequence[int],
    ) -> None:
        """Plan the draws; `sizes` are the numbers of pairs of the corpora."""
        self.names = tuple(corpus.name for corpus in corpora)
        self._sizes = tuple(sizes)
        self._starts = (0, *accumulate(sizes))
        own = {each.name: each.weight for each in corpora if each.weight is not None}
        planned = [stage.weights or own for stage in stages] or [own]
        # The last stage lasts to the end, also if training is prolonged.
        ends = [*accumulate(stage.steps or 0 for stage in stages[:-1]), None]
        bounds = pairwise([0, *ends])
        self.stages = tuple(
            Stage(
                number=number,
                steps_before=first or 0,
                end=end,
                draws=self._draws(weights),
            )
            for number, ((first, end), weights) in enumerate(
                zip(bounds, planned, strict=True), start=1
            )
        )

    def stage_at(self, step: int) -> Stage:
        """Return the stage of the update that follows after `step` updates."""
        return next(each for each in self.stages if each.end is None or step < each.end)

    def stages_of(self, steps: range) -> tuple[list[Stage], list[int]]:
        """Return the stages of some updates, and how many of them each stage has.

        Without any update, it is the stage of the one that would follow.
        """
        found = list[Stage]()
        numbers = list[int]()
        for stage in self.stages:
            end = steps.stop if stage.end is None else min(steps.stop, stage.end)
            number = end - max(steps.start, stage.steps_before)
            if number > 0:
                found.append(stage)
                numbers.append(number)
        return (found, numbers) if found else ([self.stage_at(steps.start)], [1])

    def begins_stage(self, step: int) -> bool:
        """Return whether the update that follows after `step` updates is a stage's
        first."""
        return self.stage_at(step).steps_before == step

    def draw(self, epoch: int, stage: Stage, seed: int) -> Integer[np.ndarray, " _"]:
        """Return the indices of an epoch's pairs, corpus by corpus.

        The pairs of a corpus form an endless sequence of random passes. Epoch n takes
        its n-th part; parts are as long as the stage's draws, so that another stage
        continues at another place of the sequence.
        """
        parts = [
            start + _passes(size, epoch * draws, draws, (seed, number))
            for number, (start, size, draws) in enumerate(
                zip(self._starts, self._sizes, stage.draws, strict=False)
            )
        ]
        return np.concatenate(parts).astype(np.uint32)

    def used_in(self, stages: Sequence[Stage]) -> Integer[np.ndarray, " _"]:
        """Return the indices of all pairs of the corpora that some stages draw."""
        return np.concatenate(
            [
                np.arange(*bounds)
                for number, bounds in enumerate(pairwise(self._starts))
                if any(stage.draws[number] for stage in stages)
            ]
        )

    def tokens_drawn(
        self, stage: Stage, offsets: Integer[np.ndarray, " pairs_and_one"]
    ) -> float:
        """Return about how many tokens, ends included, an epoch of a stage draws.

        `offsets` are those of a side of the dataset: where its sentences begin, and
        where the last one ends.
        """
        bounds = zip(pairwise(self._starts), self._sizes, stage.draws, strict=True)
        return sum(
            draws * (int(offsets[end] - offsets[start]) / size + 1)
            for (start, end), size, draws in bounds
        )

    def count(self, indices: Integer[np.ndarray, " _"]) -> tuple[int, ...]:
        """Return the number of pairs of each corpus among the indices."""
        places = np.searchsorted(self._starts, indices, side="right") - 1
        return tuple(np.bincount(places, minlength=len(self._sizes)).tolist())

    def in_even_order(self, batches: Sequence[Integer[np.ndarray, " _"]]) -> list[int]:
        """Return an order of batches that keeps the shares of corpora even throughout.

        The batches come in random order. The next one is chosen from the first
        `CANDIDATES` that are left: the one that brings the shares so far nearest to
        those of all batches. In random order the shares would vary, because batches of
        short sentences have many pairs.
        """
        counts = np.array([self.count(batch) for batch in batches], dtype=float)
        totals = counts.sum(axis=1, keepdims=True)
        excess = counts - totals * (counts.sum(axis=0) / counts.sum())
        candidates, order = list(range(min(CANDIDATES, len(batches)))), list[int]()
        so_far = np.zeros(len(self.names))
        for following in range(len(candidates), len(batches) + len(candidates)):
            distances = np.abs(so_far + excess[candidates]).max(axis=1)
            chosen = candidates.pop(int(distances.argmin()))
            so_far += excess[chosen]
            order.append(chosen)
            if following < len(batches):
                candidates.append(following)
        return order

    def _draws(self, weights: Mapping[str, float]) -> tuple[int, ...]:
        """Return the number of pairs of each corpus in an epoch.

        An epoch has as many pairs as the corpora that have a weight, or a few more,
        since it draws at least one pair of each corpus.
        """
        if not weights:
            return self._sizes
        shares = np.array([weights.get(name, 0.0) for name in self.names])
        num_pairs = int(sum(np.array(self._sizes)[shares > 0]))
        exact = num_pairs * shares / shares.sum()
        draws = np.maximum(np.floor(exact).astype(int), shares > 0)
        by_remainder = np.argsort(draws - exact, kind="stable")
        draws[by_remainder[: max(num_pairs - draws.sum(), 0)]] += 1
        return tuple(draws.tolist())


def _passes(
    size: int, first: int, number: int, seed: tuple[int, int]
) -> Integer[np.ndarray, " number"]:
    """Return some elements of an endless sequence of permutations of a corpus."""
    passes = range(first // size, -(-(first + number) // size))
    if not number:
        return np.empty(0, dtype=np.int64)
    orders = [np.random.default_rng((*seed, each)).permutation(size) for each in passes]
    start = first - passes.start * size
    return np.concatenate(orders)[start : start + number]
