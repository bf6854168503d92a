"""Matrices in bf16 as a matrix unit reads them, kept while weights stay the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PANEL_WIDTH = 32
"""Numbers of a row that the unit reads at a time."""
NUM_WAYS = 2
"""That numbers go through a matrix: forwards and backwards."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """What was made of a weight, which is held here so that no other has its place."""

    weight: Tensor
    numbers: Tensor


_kept: ContextVar[dict[tuple[int, int], _Packed] | None] = ContextVar(
    "_kept", default=None
)


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Until it ends no weight changes: so each is packed but once.

    PyTorch does not say when a weight has changed, as its fused optimizers do not tell.
    """
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def packed_once(weight: Tensor, size: int, pack: Callable[[Tensor], None]) -> Tensor:
    """So many numbers in bf16 that `pack` fills, or what it filled for this weight.

    Where several weights are packed together, it is the first of them. What is no
    parameter is made anew each time, and so is never kept.
    """
    kept = _kept.get() if isinstance(weight, nn.Parameter) else None
    key = (weight.data_ptr(), size)
    if kept is not None and key in kept:
        return kept[key].numbers
    numbers = weight.new_empty(size, dtype=torch.bfloat16)
    pack(numbers)
    if kept is not None:
        kept[key] = _Packed(weight, numbers)
    return numbers
