"""Batches of similar lengths, and updates of about N tokens (section 5.1).

"Sentence pairs were batched together by approximate sequence length": an epoch's pairs
are sorted by length and cut into batches; an update is a random draw of batches, as
many as its token budget holds. With the paper's budget of 25,000 tokens and batches of
3,125 that makes eight, one for each of its devices. How many devices and how much
memory there are changes nothing of this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from transduce.data.dataset import Dataset
from transduce.errors import ConfigError
from transduce.special_ids import BOS, EOS, PAD


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
        for name in ("source_tokens", "target_tokens", "batch_tokens", "max_length"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(
                    f"`batching.{name}` must be at least 1, but is {value}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sentence pairs side by side, padded at the end."""

    source: Int[Tensor, "batch source"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]

    def to(self, device: torch.device) -> "Batch":
        """The same batch in the device's memory."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            target_in=self.target_in.to(device, non_blocking=True),
            target_out=self.target_out.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The pairs of one optimizer step, cut into batches of indices."""

    batches: tuple[Integer[np.ndarray, " _"], ...]
    num_source_tokens: int
    num_target_tokens: int
    num_positions: int
    """Source and target positions of all batches, padding included."""


class Batcher:
    """Cuts a dataset into updates, the same for the same seed and epoch."""

    def __init__(self, dataset: Dataset, config: BatchingConfig, seed: int) -> None:
        self._dataset = dataset
        self._config = config
        self._seed = seed
        # Each side has one more token than ids: its end.
        self._source_lengths = dataset.source.lengths() + 1
        self._target_lengths = dataset.target.lengths() + 1

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Update]:
        """The updates of an epoch in their random order, from the first-th on."""
        random = np.random.default_rng((self._seed, epoch))
        batches = self._batches(random.permutation(len(self._dataset)))
        batches = [batches[i] for i in random.permutation(len(batches))]
        bounds = self._update_bounds(batches)
        for start, end in list(pairwise(bounds))[first:]:
            yield self._update(batches[start:end])

    def in_order(self) -> Iterator[Batch]:
        """All pairs once, similar lengths together, for measuring a loss."""
        return map(self.load, self._batches(np.arange(len(self._dataset))))

    def _batches(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> list[Integer[np.ndarray, " _"]]:
        """Sort pairs by length and cut them where a batch is full."""
        source, target = self._source_lengths[indices], self._target_lengths[indices]
        # Sources grow and shrink by turns, so that they do not leap where the length
        # of the targets changes.
        turned = np.where(target % 2, source, -source)
        indices = indices[np.lexsort((turned, target))]
        longest = np.maximum(
            self._source_lengths[indices], self._target_lengths[indices]
        ).tolist()
        starts, widest = [0], 0
        for i, length in enumerate(longest):
            widest = max(widest, length)
            if (i + 1 - starts[-1]) * widest > self._config.batch_tokens and i > starts[
                -1
            ]:
                starts.append(i)
                widest = length
        return np.split(indices, starts[1:])

    def _update_bounds(self, batches: list[Integer[np.ndarray, " _"]]) -> list[int]:
        """Where one update ends and the next begins; all are filled alike."""
        shares = [
            max(
                self._source_lengths[batch].sum() / self._config.source_tokens,
                self._target_lengths[batch].sum() / self._config.target_tokens,
            )
            for batch in batches
        ]
        filled = np.concatenate([[0.0], np.cumsum(shares)])
        num_updates = max(round(filled[-1]), 1)
        ends = np.linspace(0, filled[-1], num_updates + 1)[1:-1]
        bounds = [0, *np.searchsorted(filled, ends).tolist(), len(batches)]
        return sorted(set(bounds))

    def _update(self, batches: list[Integer[np.ndarray, " _"]]) -> Update:
        pairs = np.concatenate(batches)
        return Update(
            batches=tuple(batches),
            num_source_tokens=int(self._source_lengths[pairs].sum()),
            num_target_tokens=int(self._target_lengths[pairs].sum()),
            num_positions=sum(len(batch) * self._width(batch) for batch in batches),
        )

    def load(self, indices: Integer[np.ndarray, " batch"]) -> Batch:
        """The ids of a batch, padded, with their special tokens."""
        source = [[*self._dataset.source[i].tolist(), EOS] for i in indices.tolist()]
        target = [self._dataset.target[i].tolist() for i in indices.tolist()]
        return Batch(
            source=pad_rows(source),
            target_in=pad_rows([[BOS, *ids] for ids in target]),
            target_out=pad_rows([[*ids, EOS] for ids in target]),
        )

    def _width(self, batch: Integer[np.ndarray, " batch"]) -> int:
        return int(
            self._source_lengths[batch].max() + self._target_lengths[batch].max()
        )


def pad_rows(rows: list[list[int]]) -> Int[Tensor, "batch length"]:
    """Rows of ids as one tensor, padded at the end."""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
