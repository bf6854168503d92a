"""Batches as tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor
from torch.nn import functional

from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Padded ids of sentence pairs."""

    source: Int[Tensor, "batch source"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, from which a GPU copies asynchronously."""
        return self._with(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return self._with(lambda each: each.to(device, non_blocking=True))

    def repeated(self, number: int) -> "Batch":
        """Return all pairs `number` times, one copy of the batch after another."""
        return self._with(lambda each: each.repeat(number, 1))

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            source=change(self.source),
            target_in=change(self.target_in),
            target_out=change(self.target_out),
        )

    def packed(self) -> "PackedBatch":
        """Return the same sentences without padding."""
        # NumPy is faster here: PyTorch shares such small work among all cores.
        source, target_out = self.source.numpy(), self.target_out.numpy()
        is_source, is_target = source != PAD, target_out != PAD
        return as_packed(
            source[is_source],
            _starts(is_source),
            self.target_in.numpy()[is_target],
            target_out[is_target],
            _starts(is_target),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSide:
    """Ids of sentences that follow each other without padding between them."""

    ids: Int[Tensor, " rows"]
    positions: Int[Tensor, " rows"]
    """Position of each token in its sentence."""
    starts: Int[Tensor, " sentences_and_one"]
    """First row of each sentence, and the number of rows, in int32."""
    longest: int
    """Upper bound of the lengths."""
    mean_length: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors of the sentences."""
        return self.ids, self.positions, self.starts

    def padded_to_bucket(self, buckets: int, longest: int) -> "PackedSide":
        """Add sentences of padding up to the next bucket of numbers of rows.

        There are `buckets` from one power of two to the next. No sentence of padding is
        longer than `longest`.
        """
        rows, count = len(self.ids), len(self.starts) - 1
        power_of_two = 1 << (rows.bit_length() - 1)
        step = max(power_of_two // buckets, 1)
        missing = -rows % step
        padded = rows + missing
        ends = [*range(rows + longest, padded, longest), padded] if missing else []
        padding = torch.tensor(ends, dtype=torch.int32)
        return PackedSide(
            ids=functional.pad(self.ids, (0, missing), value=PAD),
            positions=torch.cat([self.positions, torch.arange(missing) % longest]),
            starts=torch.cat([self.starts, padding]),
            longest=longest,
            mean_length=rounded_up(max(rows // count, SHORTEST_MEAN)),
        )

    def with_sentences(self, count: int) -> "PackedSide":
        """Add empty sentences up to a number of sentences."""
        missing = count + 1 - len(self.starts)
        starts = torch.cat([self.starts, self.starts[-1:].expand(missing)])
        return replace(self, starts=starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Ids of sentence pairs without padding between them."""

    source: PackedSide
    target: PackedSide
    """Input of the decoder."""
    target_out: Int[Tensor, " target_rows"]
    """Tokens to predict; -1 for none."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the batch."""
        return *self.source.tensors, *self.target.tensors, self.target_out

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers that determine the work of a GPU: equal ones can share a graph."""
        return (
            *(len(each) for each in self.tensors),
            self.source.longest,
            self.target.longest,
            self.source.mean_length,
            self.target.mean_length,
        )

    def pinned(self) -> "PackedBatch":
        """Return the batch in pinned memory, from which a GPU copies asynchronously."""
        return self._with([each.pin_memory() for each in self.tensors])

    def to(self, device: torch.device) -> "PackedBatch":
        """Return the batch on a device."""
        return self._with([each.to(device, non_blocking=True) for each in self.tensors])

    def padded_to_bucket(self) -> "PackedBatch":
        """Add padding up to one of a few shapes, as a CUDA graph has a fixed one.

        The padding forms sentences after the others; some of them are empty.
        """
        longest = rounded_up(max(self.source.longest, self.target.longest, SHORTEST))
        source = self.source.padded_to_bucket(SOURCE_BUCKETS, longest)
        target = self.target.padded_to_bucket(TARGET_BUCKETS, longest)
        count = rounded_up(max(len(source.starts), len(target.starts)) - 1)
        missing = len(target.ids) - len(self.target_out)
        return PackedBatch(
            source=source.with_sentences(count),
            target=target.with_sentences(count),
            target_out=functional.pad(self.target_out, (0, missing), value=-1),
        )

    def _with(self, tensors: Sequence[Tensor]) -> "PackedBatch":
        ids, positions, starts, *target_tensors, target_out = tensors
        source = replace(self.source, ids=ids, positions=positions, starts=starts)
        ids, positions, starts = target_tensors
        target = replace(self.target, ids=ids, positions=positions, starts=starts)
        return PackedBatch(source=source, target=target, target_out=target_out)


SOURCE_BUCKETS, TARGET_BUCKETS = 8, 16
"""Buckets of numbers of rows from one power of two to the next. With more of them there
is less padding, but more CUDA graphs; a row of a target costs more than one of a
source."""
SHORTEST, SHORTEST_MEAN = 64, 32
"""Smallest bucket of the longest sentence, and of the mean length."""


def rounded_up(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()


def as_batch(
    source: Integer[np.ndarray, "batch source"],
    target_in: Integer[np.ndarray, "batch target"],
    target_out: Integer[np.ndarray, "batch target"],
) -> Batch:
    """Return a batch that shares the memory of these arrays."""
    return Batch(
        source=torch.from_numpy(source),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target_out),
    )


def as_packed(
    source: Integer[np.ndarray, " source_rows"],
    source_starts: Integer[np.ndarray, " sentences_and_one"],
    target_in: Integer[np.ndarray, " target_rows"],
    target_out: Integer[np.ndarray, " target_rows"],
    target_starts: Integer[np.ndarray, " sentences_and_one"],
) -> PackedBatch:
    """Return a packed batch that shares the memory of the arrays of ids."""
    return PackedBatch(
        source=_packed_side(source, source_starts),
        target=_packed_side(target_in, target_starts),
        target_out=torch.from_numpy(target_out),
    )


def _packed_side(
    ids: Integer[np.ndarray, " rows"],
    starts: Integer[np.ndarray, " sentences_and_one"],
) -> PackedSide:
    lengths = np.diff(starts)
    positions = np.arange(len(ids)) - np.repeat(starts[:-1], lengths)
    return PackedSide(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts.astype(np.int32)),
        longest=int(lengths.max()),
        mean_length=len(ids) // len(lengths),
    )


def _starts(
    is_token: Bool[np.ndarray, "batch length"],
) -> Integer[np.ndarray, " sentences_and_one"]:
    return np.concatenate([[0], np.cumsum(is_token.sum(axis=1))])


def pad_rows(rows: list[list[int]]) -> Int[Tensor, "batch length"]:
    """Return rows of ids as one tensor, padded at the end."""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
