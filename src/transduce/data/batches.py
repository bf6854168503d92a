"""Batches of similar lengths, and updates of about N tokens (section 5.1).

"Sentence pairs were batched together by approximate sequence length": an epoch's pairs
are sorted by length and cut into batches; an update is a random draw of batches, as
many as its token budget holds. How many devices and how much memory there are changes
nothing of this. Of a large corpus a random million pairs at a time are planned, so that
the plan of an epoch takes no more memory than theirs, and the order of all. Planning
needs no PyTorch.
"""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Integer

from transduce.data.dataset import Dataset
from transduce.settings import require_between
from transduce.text.vocabulary import BOS, EOS, PAD

if TYPE_CHECKING:
    import transduce.data.tensors

MOST_TOKENS = 10**9
"""Tokens of an update or a batch at most: more than any memory holds."""
MOST_LENGTH = 2**20
"""Tokens of a sentence at most."""
PLANNED_PAIRS = 2**20
"""Pairs sorted by length at a time."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How many tokens make an update and a batch (section 5.1)."""

    source_tokens: int = 25_000
    """Source tokens of one update, about; padding not counted."""
    target_tokens: int = 25_000
    """Target tokens of one update, about; padding not counted."""
    batch_tokens: int = 3_125
    """Positions a side, padding included, that a batch of similar lengths may have."""
    max_length: int = 256
    """Longer pairs, in tokens of either side with its end token, are left out."""

    def __post_init__(self) -> None:
        for name in ("source_tokens", "target_tokens", "batch_tokens"):
            require_between(f"batching.{name}", getattr(self, name), 1, MOST_TOKENS)
        require_between("batching.max_length", self.max_length, 1, MOST_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """The pairs of one optimizer step, cut into batches of indices."""

    batches: tuple[Integer[np.ndarray, " _"], ...]
    source_lengths: Integer[np.ndarray, " pairs"]
    """Tokens of each source, with its end."""
    target_lengths: Integer[np.ndarray, " pairs"]
    num_positions: int
    """Source and target positions of all batches, padding included."""

    @property
    def num_source_tokens(self) -> int:
        return int(self.source_lengths.sum())

    @property
    def num_target_tokens(self) -> int:
        return int(self.target_lengths.sum())


class Batcher:
    """Cuts a dataset into updates, the same for the same seed and epoch."""

    def __init__(self, dataset: Dataset, config: BatchingConfig, seed: int) -> None:
        self._dataset = dataset
        self._config = config
        self._seed = seed

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Update]:
        """The updates of an epoch in their random order, from the first-th on."""
        random = np.random.default_rng((self._seed, epoch))
        pairs = random.permutation(np.arange(len(self._dataset), dtype=np.uint32))
        for planned in _in_parts(pairs):
            batches = self._batches(planned)
            batches = [batches[i] for i in random.permutation(len(batches))]
            bounds = list(pairwise(self._update_bounds(batches)))
            for start, end in bounds[first:]:
                yield self._update(batches[start:end])
            first = max(first - len(bounds), 0)

    def in_order(self) -> "Iterator[transduce.data.tensors.Batch]":
        """All pairs once, similar lengths together, for measuring a loss."""
        for planned in _in_parts(np.arange(len(self._dataset))):
            yield from map(self.load, self._batches(planned))

    def _batches(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> list[Integer[np.ndarray, " _"]]:
        """Sort pairs by length and cut them where a batch is full."""
        source, target = self._lengths(indices)
        # Sources grow and shrink by turns, so that they do not leap where the length
        # of the targets changes.
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
        """Where one update ends and the next begins; all are filled alike."""
        tokens = np.array([[side.sum() for side in self._lengths(b)] for b in batches])
        budgets = (self._config.source_tokens, self._config.target_tokens)
        shares = (tokens / budgets).max(axis=1)
        filled = np.concatenate([[0.0], np.cumsum(shares)])
        num_updates = max(round(filled[-1]), 1)
        ends = np.linspace(0, filled[-1], num_updates + 1)[1:-1]
        bounds = [0, *np.searchsorted(filled, ends).tolist(), len(batches)]
        return sorted(set(bounds))

    def _update(self, batches: list[Integer[np.ndarray, " _"]]) -> Update:
        source, target = self._lengths(np.concatenate(batches))
        return Update(
            batches=tuple(batches),
            source_lengths=source,
            target_lengths=target,
            num_positions=sum(map(self.num_positions, batches)),
        )

    def load(
        self, indices: Integer[np.ndarray, " batch"]
    ) -> "transduce.data.tensors.Batch":
        """Tensors of the ids of a batch, padded, with their special tokens."""
        from transduce.data.tensors import as_batch

        source, target = self._lengths(indices)
        source_ids = self._dataset.source.padded(indices, PAD)
        target_ids = self._dataset.target.padded(indices, PAD)
        rows = np.arange(len(indices))
        target_in = np.roll(target_ids, 1, axis=1)
        target_in[:, 0] = BOS
        source_ids[rows, source - 1] = EOS
        target_ids[rows, target - 1] = EOS
        return as_batch(source_ids, target_in, target_ids)

    def longest_batch(self) -> Integer[np.ndarray, " pairs"]:
        """As many of the longest pairs as fill a batch: what takes most memory."""
        longest = np.empty(0, dtype=np.int64)
        for part in _in_parts(np.arange(len(self._dataset))):
            candidates = np.concatenate([longest, part])
            source, target = self._lengths(candidates)
            order = np.argsort(-(source + target), kind="stable")
            widest = max(source[order[0]], target[order[0]])
            num_pairs = max(self._config.batch_tokens // widest, 1)
            longest = candidates[order[:num_pairs]]
        return longest

    def num_positions(self, indices: Integer[np.ndarray, " batch"]) -> int:
        """Of both sides of a batch, padding included."""
        return len(indices) * sum(int(side.max()) for side in self._lengths(indices))

    def _lengths(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> tuple[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]]:
        """Tokens of the sources and of the targets, each with its end."""
        source, target = self._dataset.source, self._dataset.target
        return source.lengths(indices) + 1, target.lengths(indices) + 1


def _in_parts(
    indices: Integer[np.ndarray, " pairs"],
) -> list[Integer[np.ndarray, " _"]]:
    return np.array_split(indices, max(-(-len(indices) // PLANNED_PAIRS), 1))


def read_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items, each made while the one before it is in use."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item
