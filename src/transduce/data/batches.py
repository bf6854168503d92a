"""Batches and updates of about N tokens (section 5.1).

"Sentence pairs were batched together by approximate sequence length": `Batcher` sorts
the pairs of an epoch by length and cuts them into batches; an update is a random
selection of batches that fills its token budget. The plan does not depend on the number
of devices or their memory. A large corpus is planned in random parts of a million
pairs, which bounds the memory of the plan. Planning needs no PyTorch.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, TypeVar

import numpy as np
from jaxtyping import Float64, Integer

from transduce.data.corpus_mixture import CorpusMixture
from transduce.data.dataset import OFFSET_TYPE, Dataset, EncodedSide
from transduce.settings import Bounds, convert_and_check

if TYPE_CHECKING:
    import transduce.data.tensors
    from transduce.data.augmentation import Augmentation


NumTokens = Annotated[int, Bounds(1, 10**9)]
PLANNED_PAIRS = 2**20
"""Number of pairs sorted by length at a time."""
AUGMENTED_PAIRS = 2**17
"""Number of pairs sorted by length at a time with augmentation. It is smaller, as
training waits until the first part is changed."""

Item = TypeVar("Item")
Indices = Integer[np.ndarray, " _"]
"""Numbers of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """Sizes of updates and batches in tokens (section 5.1)."""

    source_tokens: NumTokens = 25_000
    """Approximate number of source tokens of an update, without padding."""
    target_tokens: NumTokens = 25_000
    """Approximate number of target tokens of an update, without padding."""
    batch_tokens: NumTokens = 3_125
    """Maximum number of positions of a batch on each side, with padding."""
    max_length: Annotated[int, Bounds(1, 2**20)] = 256
    """Maximum length of either side in tokens, with the end token; longer pairs are
    dropped."""

    def __post_init__(self) -> None:
        convert_and_check(self, "batching.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """Sentence pairs of one optimizer step, as batches of indices."""

    dataset: Dataset
    """Dataset of the indices: that of the batcher, or a part of it with changes."""
    batches: tuple[Integer[np.ndarray, " _"], ...]
    source_lengths: Integer[np.ndarray, " pairs"]
    """Length of each source in tokens, with the end token."""
    target_lengths: Integer[np.ndarray, " pairs"]
    num_positions: int
    """Number of source and target positions of all batches, with padding."""
    corpus_pairs: tuple[int, ...] = ()
    """Number of pairs of each corpus of a mixture; empty without one."""

    @property
    def num_source_tokens(self) -> int:
        return int(self.source_lengths.sum())

    @property
    def num_target_tokens(self) -> int:
        return int(self.target_lengths.sum())


class Batcher:
    """Divides a dataset into updates, determined by seed and epoch."""

    def __init__(
        self,
        dataset: Dataset,
        config: BatchingConfig,
        seed: int,
        mixture: CorpusMixture | None = None,
        augmentation: "Augmentation | None" = None,
    ) -> None:
        """Draw each pair once an epoch, or as a mixture of corpora determines.

        With an augmentation, the pairs are changed anew in each epoch.
        """
        self.dataset = dataset
        self._config = config
        self._seed = seed
        self.mixture = mixture
        self._augmentation = augmentation

    def epoch(
        self, epoch: int, first: int = 0, steps_before: int = 0
    ) -> Iterator[Update]:
        """Yield the updates of an epoch in random order, starting at index `first`.

        `steps_before` is the number of updates of the training before the epoch. It
        determines the stage of a mixture, at whose end the epoch ends.
        """
        if self._augmentation is None:
            updates = self._updates(self._pairs(epoch, steps_before), epoch, first)
        else:
            updates = self._augmented(epoch, first, steps_before, self._augmentation)
        if self.mixture is None:
            return updates
        stage = self.mixture.stage_at(steps_before)
        if stage.end is None:
            return updates
        return islice(updates, max(stage.end - steps_before - first, 0))

    def _pairs(self, epoch: int, steps_before: int) -> Integer[np.ndarray, " pairs"]:
        """Return the pairs of an epoch, not yet in random order."""
        if self.mixture is None:
            return np.arange(len(self.dataset), dtype=np.uint32)
        stage = self.mixture.stage_at(steps_before)
        return self.mixture.draw(epoch, stage, self._seed)

    def _updates(
        self, pairs: Integer[np.ndarray, " pairs"], epoch: int, first: int
    ) -> Iterator[Update]:
        """Yield the updates of an epoch of unchanged pairs, from index `first` on."""
        random = np.random.default_rng((self._seed, epoch))
        pairs = random.permutation(pairs)
        for planned in _in_parts(pairs):
            batches = self._batches(planned)
            batches = [batches[i] for i in random.permutation(len(batches))]
            batches = self._in_even_order(batches)
            bounds = list(pairwise(self._update_bounds(batches)))
            for start, end in bounds[first:]:
                yield self._update(batches[start:end])
            first = max(first - len(bounds), 0)

    def _augmented(
        self, epoch: int, first: int, steps_before: int, augmentation: "Augmentation"
    ) -> Iterator[Update]:
        """Yield the updates of an epoch with changed pairs.

        The number of updates of a part does not depend on its changes, so that a
        resumed run need not make those of earlier parts.
        """
        parts = self._augmented_parts(epoch, steps_before)
        counts = [self._num_updates(part) for part in parts]
        end = self._end_of_epoch(steps_before, sum(counts))
        for number, (part, num_updates) in enumerate(zip(parts, counts, strict=True)):
            if first >= num_updates:
                first -= num_updates
                continue
            seed = (self._seed, epoch, number)
            changed = augmentation.augmented(self.dataset.picked(part), seed)
            # The next part is changed while this one is trained on.
            next_part, next_seed = self._part_after(parts, number, epoch, end)
            augmentation.begin(self.dataset.picked(next_part), next_seed)
            plan = Batcher(changed.pairs, self._config, self._seed)
            drawn = part[changed.numbers]
            updates = plan._exactly(
                num_updates, (epoch, number), partial(self._in_even_order, drawn=drawn)
            )
            for update in islice(updates, first, None):
                pairs = drawn[np.concatenate(update.batches)]
                yield replace(update, corpus_pairs=self._corpus_pairs(pairs))
            first = 0

    def _part_after(
        self, parts: list[Indices], number: int, epoch: int, end: int
    ) -> tuple[Indices, tuple[int, int, int]]:
        """Return the part after part `number` of an epoch, and the seed of its changes.

        After the last part it is the first of the next epoch, before which the training
        makes `end` updates.
        """
        if number + 1 < len(parts):
            return parts[number + 1], (self._seed, epoch, number + 1)
        return self._augmented_parts(epoch + 1, end)[0], (self._seed, epoch + 1, 0)

    def _in_even_order(
        self,
        batches: list[Integer[np.ndarray, " _"]],
        drawn: Integer[np.ndarray, " pairs"] | None = None,
    ) -> list[Integer[np.ndarray, " _"]]:
        """Put batches into an order in which the shares of a mixture are even.

        Batches have numbers of pairs in the corpora, or, with `drawn`, indices of such
        numbers in `drawn`.
        """
        if self.mixture is None:
            return batches
        pairs = batches if drawn is None else [drawn[batch] for batch in batches]
        return [batches[i] for i in self.mixture.in_even_order(pairs)]

    def _augmented_parts(
        self, epoch: int, steps_before: int
    ) -> list[Integer[np.ndarray, " _"]]:
        """Return the pairs of an epoch in random parts, each changed at once."""
        random = np.random.default_rng((self._seed, epoch))
        pairs = random.permutation(self._pairs(epoch, steps_before))
        return _in_parts(pairs, AUGMENTED_PAIRS)

    def _end_of_epoch(self, steps_before: int, num_updates: int) -> int:
        """Return the number of updates of the training up to the end of an epoch."""
        end = steps_before + num_updates
        if self.mixture is None:
            return end
        stage = self.mixture.stage_at(steps_before)
        return end if stage.end is None else min(end, stage.end)

    def _num_updates(self, pairs: Integer[np.ndarray, " pairs"]) -> int:
        """Return the number of updates for a part, from its tokens before any change.

        It is at most half the number of pairs: so many are left if augmentation joins
        all of them two by two.
        """
        number = round(max(self._num_budgets(pairs)))
        return max(min(number, len(pairs) // 2), 1)

    def _exactly(
        self,
        number: int,
        place: tuple[int, ...],
        in_even_order: Callable[[list[Indices]], list[Indices]],
    ) -> Iterator[Update]:
        """Yield all pairs in exactly `number` updates, which are equally full.

        `place` continues the seed of the order.
        """
        sequence = np.random.SeedSequence(self._seed, spawn_key=place)
        random = np.random.default_rng(sequence)
        batches = self._batches(np.arange(len(self.dataset)))
        while len(batches) < number:
            largest = max(range(len(batches)), key=lambda i: len(batches[i]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        batches = [batches[i] for i in random.permutation(len(batches))]
        batches = in_even_order(batches)
        filled = self._filled(batches)
        ends = np.searchsorted(filled, np.linspace(0, filled[-1], number + 1)[1:-1])
        # Each update has at least one batch: ends rise by one or more, and leave enough
        # batches for the updates after them.
        lowest = np.arange(1, number)
        ends = np.maximum.accumulate(np.maximum(ends - lowest, 0)) + lowest
        ends = np.minimum(ends, len(batches) - lowest[::-1])
        for start, end in pairwise([0, *ends.tolist(), len(batches)]):
            yield self._update(batches[start:end])

    def _num_budgets(self, pairs: Integer[np.ndarray, " _"]) -> tuple[float, float]:
        """Return how many updates the tokens of each side of some pairs would fill."""
        source, target = self.dataset.lengths(pairs)
        return (
            float(source.sum()) / self._config.source_tokens,
            float(target.sum()) / self._config.target_tokens,
        )

    def update_tokens(self, steps: range = range(1)) -> tuple[int, int]:
        """Return about how many source and target tokens an update has.

        They are at most the tokens of the corpus. For a mixture, whose stages may draw
        different corpora, they are the mean over the updates `steps` of the training.
        """
        sides = self.dataset.source.offsets, self.dataset.target.offsets
        mixture, config = self.mixture, self._config
        if mixture is None:
            numbers = [1]
            epochs = [tuple(float(each[-1] + len(self.dataset)) for each in sides)]
        else:
            stages, numbers = mixture.stages_of(steps)
            epochs = [
                tuple(mixture.tokens_drawn(stage, each) for each in sides)
                for stage in stages
            ]
        bounded = np.minimum(epochs, (config.source_tokens, config.target_tokens))
        source, target = np.average(bounded, axis=0, weights=numbers).tolist()
        return round(source), round(target)

    def in_order(self) -> "Iterator[transduce.data.tensors.Batch]":
        """Yield all pairs once, in batches of similar lengths, to measure a loss."""
        for planned in _in_parts(np.arange(len(self.dataset))):
            yield from map(self.dataset.load, self._batches(planned))

    def _batches(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> list[Integer[np.ndarray, " _"]]:
        """Sort pairs by length and divide them into full batches."""
        source, target = self.dataset.lengths(indices)
        # Source lengths rise and fall by turns, so that they do not jump where the
        # length of the targets changes.
        turned = np.where(target % 2, source, -source)
        order = np.lexsort((turned, target))
        longest = np.maximum(source, target)[order].tolist()
        starts, widest = [0], 0
        for i, length in enumerate(longest):
            widest = max(widest, length)
            size = i - starts[-1]
            if size > 0 and (size + 1) * widest > self._config.batch_tokens:
                starts.append(i)
                widest = length
        return np.split(indices[order], starts[1:])

    def _update_bounds(self, batches: list[Integer[np.ndarray, " _"]]) -> list[int]:
        """Return the bounds between updates, which are equally full."""
        filled = self._filled(batches)
        num_updates = max(round(filled[-1]), 1)
        ends = np.linspace(0, filled[-1], num_updates + 1)[1:-1]
        bounds = [0, *np.searchsorted(filled, ends).tolist(), len(batches)]
        return sorted(set(bounds))

    def _filled(
        self, batches: list[Integer[np.ndarray, " _"]]
    ) -> Float64[np.ndarray, " batches_and_one"]:
        """Return how many updates the first n batches fill, for each n from 0 on."""
        return np.cumsum([0.0, *(max(self._num_budgets(batch)) for batch in batches)])

    def _update(self, batches: list[Integer[np.ndarray, " _"]]) -> Update:
        """Return batches as one update, with the lengths of their pairs."""
        pairs = np.concatenate(batches)
        source, target = self.dataset.lengths(pairs)
        return Update(
            dataset=self.dataset,
            batches=tuple(batches),
            source_lengths=source,
            target_lengths=target,
            num_positions=sum(map(self.dataset.num_positions, batches)),
            corpus_pairs=self._corpus_pairs(pairs),
        )

    def _corpus_pairs(self, pairs: Integer[np.ndarray, " pairs"]) -> tuple[int, ...]:
        """Count the pairs of each corpus of a mixture; empty without one."""
        return self.mixture.count(pairs) if self.mixture else ()

    def longest_possible(self) -> "Batcher":
        """Return a batcher of pairs as long as augmentation can make them.

        Its longest batch needs as much memory as any of this batcher.
        """
        if self._augmentation is None:
            return self
        length = self._augmentation.max_length - 1
        number = max(self._config.batch_tokens // (length + 1), 1)
        offsets = length * np.arange(number + 1, dtype=OFFSET_TYPE)
        source, target = (
            EncodedSide(ids=np.resize(side.ids[:length], offsets[-1]), offsets=offsets)
            for side in (self.dataset.source, self.dataset.target)
        )
        longest = Dataset(source=source, target=target)
        return Batcher(longest, self._config, self._seed)

    def longest_batch(self) -> Integer[np.ndarray, " pairs"]:
        """Return the longest pairs that fill a batch: the batch that needs most
        memory."""
        longest = np.empty(0, dtype=np.int64)
        for part in _in_parts(np.arange(len(self.dataset))):
            candidates = np.concatenate([longest, part])
            source, target = self.dataset.lengths(candidates)
            order = np.argsort(-(source + target), kind="stable")
            widest = max(source[order[0]], target[order[0]])
            num_pairs = max(self._config.batch_tokens // widest, 1)
            longest = candidates[order[:num_pairs]]
        return longest

    def largest_update(self) -> Integer[np.ndarray, " pairs"]:
        """Repeat the longest pairs until each side has the tokens of any update."""
        pairs, config = self.longest_batch(), self._config
        filled = max(self._num_budgets(np.arange(len(self.dataset))))
        # Updates are equally full, by whole batches.
        share = max(filled / max(round(filled), 1), 1.0)
        times = [
            (share * budget + config.batch_tokens) / side.sum()
            for side, budget in zip(
                self.dataset.lengths(pairs),
                (config.source_tokens, config.target_tokens),
                strict=True,
            )
        ]
        return np.tile(pairs, math.ceil(max(times)))


def _in_parts(
    indices: Integer[np.ndarray, " pairs"], size: int | None = None
) -> list[Integer[np.ndarray, " _"]]:
    """Split indices into equal parts of at most `size`."""
    size = size or PLANNED_PAIRS
    return np.array_split(indices, max(-(-len(indices) // size), 1))


def read_ahead(items: Iterator[Item], number: int = 1) -> Generator[Item, None, None]:
    """Yield the same items; the next `number` are produced while one is in use."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = deque(reader.submit(next, items, None) for _ in range(number))
        while (item := coming.popleft().result()) is not None:
            coming.append(reader.submit(next, items, None))
            yield item
