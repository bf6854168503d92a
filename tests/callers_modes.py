"""Modes of PyTorch that a program may have set when it calls the package."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make a dtype the default inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "default device": partial(torch.device, "meta"),
    "default dtype": partial(default_dtype, torch.float64),
}
"""Modes that must not change a result."""
