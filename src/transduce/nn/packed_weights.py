"""Weights packed in bf16 for AMX, cached while weights do not change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PANEL_WIDTH = 32
"""Elements of a row that AMX loads at a time."""
NUM_DIRECTIONS = 2
"""A weight is packed for the forward and for the backward pass."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight, held so that its address is not reused, and its packed elements."""

    weight: Tensor
    elements: Tensor


_cache: ContextVar[dict[tuple[int, int], _Packed] | None] = ContextVar(
    "_cache", default=None
)


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Pack each weight only once until the context ends, as no weight changes.

    PyTorch cannot say when a weight has changed, as fused optimizers do not record it.
    """
    token = _cache.set({})
    try:
        yield
    finally:
        _cache.reset(token)


def packed_once(weight: Tensor, size: int, pack: Callable[[Tensor], None]) -> Tensor:
    """Return `size` bf16 elements that `pack` has filled for this weight.

    Of several weights that are packed together, pass the first. Only packed parameters
    are cached: other tensors are new in each call.
    """
    cached = _cache.get() if isinstance(weight, nn.Parameter) else None
    key = (weight.data_ptr(), size)
    if cached is not None and key in cached:
        return cached[key].elements
    elements = weight.new_empty(size, dtype=torch.bfloat16)
    pack(elements)
    if cached is not None:
        cached[key] = _Packed(weight, elements)
    return elements
