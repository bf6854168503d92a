"""Updates of about N tokens, cut into batches of similar lengths (section 5.1).

An update is a random draw of sentence pairs, as many as its token budget holds,
whatever the hardware. Inside the update, pairs are sorted by length and cut into
batches that fit the device: "sentence pairs were batched together by approximate
sequence length". So devices and memory change only how an update is cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from transduce.data.dataset import Dataset
from transduce.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How many tokens make an update and how it is cut (section 5.1)."""

    source_tokens: int = 25_000
    """Source tokens of one update at most, padding not counted."""
    target_tokens: int = 25_000
    """Target tokens of one update at most, padding not counted."""
    batch_tokens: int = 4_096
    """Positions a side, padding included, that one batch may have: a matter of
    memory and speed, not of the result."""
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
class SpecialIds:
    """The ids that are no text."""

    pad: int
    bos: int
    eos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The pairs of one optimizer step, cut into batches of indices."""

    batches: tuple[Integer[np.ndarray, " batch"], ...]
    num_source_tokens: int
    num_target_tokens: int
    num_positions: int
    """Source and target positions of all batches, padding included."""


class Batcher:
    """Cuts a dataset into updates, the same for the same seed and epoch."""

    def __init__(
        self, dataset: Dataset, config: BatchingConfig, special: SpecialIds, seed: int
    ) -> None:
        self._dataset = dataset
        self._config = config
        self._special = special
        self._seed = seed
        # Each side has one more token than ids: its end.
        self._source_lengths = dataset.source.lengths() + 1
        self._target_lengths = dataset.target.lengths() + 1

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Update]:
        """The updates of an epoch in their random order, from the first-th on."""
        order = np.random.default_rng((self._seed, epoch)).permutation(
            len(self._dataset)
        )
        bounds = self._update_bounds(order)
        for start, end in list(zip(bounds, bounds[1:], strict=False))[first:]:
            yield self.cut(order[start:end])

    def in_order(self) -> Iterator[Batch]:
        """All pairs once, similar lengths together, for measuring a loss."""
        update = self.cut(np.arange(len(self._dataset)))
        return map(self.load, update.batches)

    def cut(self, indices: Integer[np.ndarray, " pairs"]) -> Update:
        """Sort the pairs of an update by length and cut them into batches."""
        source, target = self._source_lengths[indices], self._target_lengths[indices]
        order = np.lexsort((source, target, np.maximum(source, target)))
        longest = np.maximum(source, target)[order]
        sorted_indices = indices[order]
        batches, positions, end = [], 0, len(order)
        while end > 0:
            rows = max(self._config.batch_tokens // int(longest[end - 1]), 1)
            start = max(end - rows, 0)
            batch = sorted_indices[start:end]
            batches.append(batch)
            positions += len(batch) * self._width(batch)
            end = start
        return Update(
            batches=tuple(batches),
            num_source_tokens=int(source.sum()),
            num_target_tokens=int(target.sum()),
            num_positions=positions,
        )

    def load(self, indices: Integer[np.ndarray, " batch"]) -> Batch:
        """The ids of a batch, padded, with their special tokens."""
        pad, bos, eos = self._special.pad, self._special.bos, self._special.eos
        source = [[*self._dataset.source[i].tolist(), eos] for i in indices]
        target = [self._dataset.target[i].tolist() for i in indices]
        return Batch(
            source=pad_rows(source, pad),
            target_in=pad_rows([[bos, *ids] for ids in target], pad),
            target_out=pad_rows([[*ids, eos] for ids in target], pad),
        )

    def _width(self, batch: Integer[np.ndarray, " batch"]) -> int:
        return int(
            self._source_lengths[batch].max() + self._target_lengths[batch].max()
        )

    def _update_bounds(self, order: Integer[np.ndarray, " pairs"]) -> list[int]:
        """Where one update ends and the next begins; all are filled alike."""
        budgets = np.maximum(
            self._source_lengths[order] / self._config.source_tokens,
            self._target_lengths[order] / self._config.target_tokens,
        )
        filled = np.concatenate([[0.0], np.cumsum(budgets)])
        num_updates = max(round(filled[-1]), 1)
        ends = np.linspace(0, filled[-1], num_updates + 1)[1:-1]
        bounds = [0, *np.searchsorted(filled, ends).tolist(), len(order)]
        return sorted(set(bounds))


def pad_rows(rows: list[list[int]], pad: int) -> Int[Tensor, "batch length"]:
    """Rows of ids as one tensor, padded at the end."""
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])
