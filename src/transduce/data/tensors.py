"""Batches as tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

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
