"""Micro-batches: parts of an update that fit in memory (section 5.1).

The settings determine the pairs of an update, and memory how they are divided.
`MicroBatchReader` splits each update into micro-batches and loads those that this
process computes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Integer

from transduce.checkpoint import Progress
from transduce.data.batches import Batcher, Update
from transduce.data.tensors import SOURCE_BUCKETS, Batch, PackedBatch
from transduce.device import Hardware
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.reward import MAX_EXTRA_TOKENS, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Pairs of an update for one backward pass: a batch, or a part of one."""

    number: int
    """Number within the update."""
    indices: Integer[np.ndarray, " pairs"]
    is_counted: bool
    """Whether its gradient belongs to the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMicroBatch:
    """A micro-batch with its data."""

    update: Update
    micro_batch: MicroBatch
    batch: Batch | PackedBatch
    is_last: bool
    """Whether it is the last one of this process in the update."""
    is_alone: bool
    """Whether it is the only one of this process in the update."""
    samples: Samples | None = None
    """Samples of the batch, if the update is by reward."""


MIN_TOKEN_SHARE = 1 / (1 + 1 / SOURCE_BUCKETS)
"""Smallest share of tokens in a batch that is padded to a bucket."""


def padded_parts(
    update: Update, max_positions: int | None, num_samples: int = 0
) -> list[Integer[np.ndarray, " _"]]:
    """Split each batch of an update into parts of at most `max_positions`.

    In updates by reward, each pair has `num_samples` samples beside it.
    """
    if max_positions is None:
        return list(update.batches)
    parts: list[Integer[np.ndarray, " _"]] = []
    for batch in update.batches:
        width = update.dataset.num_positions(batch) // len(batch)
        width += num_samples * (width + MAX_EXTRA_TOKENS)
        num_pairs = max(max_positions // width, 1)
        parts += np.split(batch, range(num_pairs, len(batch), num_pairs))
    return parts


def packed_parts(
    update: Update, max_positions: int | None, num_processes: int
) -> list[Integer[np.ndarray, " _"]]:
    """Join the batches of an update, and split it into parts to compute as packed.

    Products of many rows are faster, and without padding lengths may differ. A part has
    at most `max_positions` if no pair is longer. All processes have equally many parts
    if there are enough pairs.
    """
    pairs = np.concatenate(update.batches)
    lengths = update.source_lengths + update.target_lengths
    tokens, count = np.cumsum(lengths), 1
    if max_positions is not None:
        # A part has whole pairs, and is padded to a bucket.
        bound = max(max_positions * MIN_TOKEN_SHARE - lengths.max(), 1)
        count = math.ceil(tokens[-1] / bound)
    count = -(-count // num_processes) * num_processes
    ends = np.linspace(0, tokens[-1], count + 1)[1:-1]
    parts = np.split(pairs, np.searchsorted(tokens, ends))
    return [part for part in parts if len(part) > 0]


def own_micro_batches(
    batches: Sequence[Integer[np.ndarray, " _"]], processes: ProcessGroup
) -> list[MicroBatch]:
    """Return this process's micro-batches of an update, at least one.

    A batch is split only if there are fewer batches than processes. Each part has
    dropout masks of its own.
    """
    parts = list(batches)
    while len(parts) < processes.world_size and max(map(len, parts)) > 1:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[largest : largest + 1] = np.array_split(parts[largest], 2)
    every = [
        MicroBatch(number=number, indices=indices, is_counted=True)
        for number, indices in enumerate(parts)
    ]
    # A process without pairs also takes part in every all-reduce.
    idle = replace(every[0], is_counted=False)
    return every[processes.rank :: processes.world_size] or [idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Largest parts of an update that fit in memory."""

    max_positions: int | None = None
    """Largest micro-batch in updates by likelihood, in positions; None if whole batches
    fit."""
    reward_positions: int | None = None
    """Largest micro-batch in updates by reward, in positions, samples included; None
    for the positions of the longest batch."""
    fits_beside_another: bool = True
    """Whether there is memory for two batches at once."""


class MicroBatchReader:
    """Reader of this process's micro-batches of each update."""

    def __init__(
        self,
        batcher: Batcher,
        config: TrainingConfig,
        hardware: Hardware,
        processes: ProcessGroup,
    ) -> None:
        self._batcher = batcher
        self._config = config
        self._hardware = hardware
        self._processes = processes
        self.limits = MemoryLimits()
        self.can_pack = False
        """Whether updates by likelihood compute sentences without padding. It must not
        change within an epoch."""

    def epoch(self, start: Progress) -> Iterator[LoadedMicroBatch]:
        """Load this process's part of the remaining updates of an epoch."""
        updates = self._batcher.epoch(
            start.epoch, first=start.update, steps_before=start.step - start.update
        )
        for step, update in enumerate(updates, start.step + 1):
            own = own_micro_batches(self._parts(update, step), self._processes)
            for each in own:
                yield LoadedMicroBatch(
                    update=update,
                    micro_batch=each,
                    batch=self._load(update, each, is_packed=self.is_packed(step)),
                    is_last=each is own[-1],
                    is_alone=len(own) == 1,
                )

    def is_packed(self, step: int) -> bool:
        """Return whether an update computes its sentences without padding."""
        return self.can_pack and not self._config.is_by_reward(step)

    @cached_property
    def longest_positions(self) -> int:
        """Number of positions of the longest batch."""
        batcher = self._batcher.longest_possible()
        return batcher.dataset.num_positions(batcher.longest_batch())

    def _parts(self, update: Update, step: int) -> list[Integer[np.ndarray, " _"]]:
        """Split the pairs of an update into parts that fit in memory."""
        limits, config = self.limits, self._config
        if config.is_by_reward(step):
            max_positions = limits.reward_positions or self.longest_positions
            return padded_parts(update, max_positions, config.reward_samples)
        if self.is_packed(step):
            return packed_parts(
                update, limits.max_positions, self._processes.world_size
            )
        return padded_parts(update, limits.max_positions)

    def _load(
        self, update: Update, micro_batch: MicroBatch, *, is_packed: bool
    ) -> Batch | PackedBatch:
        """Return the ids of a micro-batch; for a GPU in pinned memory."""
        dataset, pairs = update.dataset, micro_batch.indices
        batch: Batch | PackedBatch
        if is_packed:
            batch = dataset.load_packed(pairs).padded_to_bucket()
        else:
            batch = dataset.load(pairs)
        return batch.pinned() if self._hardware.device.type == "cuda" else batch
