"""Batches as tensors."""

from collections.abc import Sequence
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
        return Batch(
            source=self.source.pin_memory(),
            target_in=self.target_in.pin_memory(),
            target_out=self.target_out.pin_memory(),
        )

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            target_in=self.target_in.to(device, non_blocking=True),
            target_out=self.target_out.to(device, non_blocking=True),
        )

    def packed(self) -> "PackedBatch":
        """Return the same sentences without padding."""
        # NumPy is faster here: PyTorch shares such small work among all cores.
        source, target_out = self.source.numpy(), self.target_out.numpy()
        is_target = target_out != PAD
        return PackedBatch(
            source=_packed(source, source != PAD),
            target=_packed(self.target_in.numpy(), is_target),
            target_out=torch.from_numpy(target_out[is_target]),
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

    def with_tensors(
        self, ids: Tensor, positions: Tensor, starts: Tensor
    ) -> "PackedSide":
        """Return the same sentences with other tensors."""
        return replace(self, ids=ids, positions=positions, starts=starts)

    def filled(self, steps: int) -> "PackedSide":
        """Return a side with one of a few shapes, as a CUDA graph has a fixed one.

        There are `steps` numbers of rows from one power of two to the next. Padding is
        in further sentences, of which some may be empty.
        """
        step = max((1 << len(self.ids).bit_length() - 1) // steps, 1)
        missing = -len(self.ids) % step
        longest = 1 << (max(self.longest, SHORTEST_GRID) - 1).bit_length()
        count = len(self.starts) - 1 + -(-missing // longest)
        starts = torch.full(((1 << count.bit_length()) + 1,), len(self.ids) + missing)
        starts[: len(self.starts)] = self.starts
        fillers = len(self.ids) + longest * torch.arange(-(-missing // longest))
        starts[len(self.starts) - 1 : count] = fillers
        positions = torch.arange(missing) % longest
        return PackedSide(
            ids=functional.pad(self.ids, (0, missing), value=PAD),
            positions=torch.cat([self.positions, positions]),
            starts=starts.to(torch.int32),
            longest=longest,
            mean_length=1 << (max(self.mean_length, SHORTEST_MEAN) - 1).bit_length(),
        )


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

    def filled(self) -> "PackedBatch":
        """Return the batch with one of a few shapes."""
        source, target = (
            self.source.filled(SOURCE_STEPS),
            self.target.filled(TARGET_STEPS),
        )
        count = max(len(source.starts), len(target.starts))
        missing = len(target.ids) - len(self.target_out)
        return PackedBatch(
            source=_with_sentences(source, count),
            target=_with_sentences(target, count),
            target_out=functional.pad(self.target_out, (0, missing), value=-1),
        )

    def _with(self, tensors: Sequence[Tensor]) -> "PackedBatch":
        *sides, target_out = tensors
        return PackedBatch(
            source=self.source.with_tensors(*sides[:3]),
            target=self.target.with_tensors(*sides[3:]),
            target_out=target_out,
        )


SOURCE_STEPS, TARGET_STEPS = 8, 16
"""Numbers of rows of filled batches from one power of two to the next. More of them
waste less, but need more graphs; a row of a target costs more than one of a source."""
SHORTEST_GRID, SHORTEST_MEAN = 64, 32
"""Smallest upper bound of the lengths of a filled batch, and smallest mean length."""


def _with_sentences(side: PackedSide, count: int) -> PackedSide:
    """Add empty sentences."""
    missing = count - len(side.starts)
    starts = torch.cat([side.starts, side.starts[-1:].expand(missing)])
    return replace(side, starts=starts)


def _packed(
    ids: Integer[np.ndarray, "batch length"], is_token: Bool[np.ndarray, "batch length"]
) -> PackedSide:
    """Return the tokens of padded sentences."""
    lengths = is_token.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    _, positions = np.nonzero(is_token)
    return PackedSide(
        ids=torch.from_numpy(ids[is_token]),
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts),
        longest=int(lengths.max()),
        mean_length=int(starts[-1]) // len(ids),
    )


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


def pad_rows(rows: list[list[int]]) -> Int[Tensor, "batch length"]:
    """Return rows of ids as one tensor, padded at the end."""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
