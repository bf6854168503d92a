"""Functions of the native library for training, and memory that they share with torch.

`nn_api()` is `td_nn_api` of transduce.h; structs are made by `ffi.new`.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce import native
from transduce.native import ffi

ROW_MULTIPLE = 16
"""Most functions need rows of a multiple of this many elements, to fill registers."""
POINTER_TYPES = {
    torch.float32: "float *",
    torch.bfloat16: "td_bf16 *",
    torch.int64: "int64_t *",
    torch.uint8: "uint8_t *",
    torch.bool: "uint8_t *",
}


@cache
def nn_api() -> Any | None:
    """Return the functions for this processor; None if there is no native library."""
    api = native.api()
    if api is None:
        return None
    api.nn.use_sgemm(ffi.cast("void *", sgemm_of_torch() or 0))
    return api.nn


def loaded_nn_api() -> Any:
    """Return the functions for this processor, which must exist."""
    api = nn_api()
    assert api is not None
    return api


def has_sgemm() -> bool:
    """Whether fp32 matrices can be multiplied: by the BLAS that torch links."""
    return nn_api() is not None and sgemm_of_torch() is not None


def bf16_unit() -> str | None:
    """Return the instructions by which native functions multiply bf16 matrices.

    They are "amx" or "avx512_bf16"; None where slow loops compute the products.
    """
    api, library = nn_api(), native.library()
    if api is None or library is None:
        return None
    names = {library.TD_BF16_AMX: "amx", library.TD_BF16_AVX512: "avx512_bf16"}
    return names.get(api.bf16_unit())


def has_bf16_products() -> bool:
    """Whether the native functions multiply bf16 matrices fast."""
    return bf16_unit() is not None


def tensor_pointer(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Any:
    """Return a pointer to the elements of a contiguous tensor of this dtype.

    It is valid as long as the tensor is kept.
    """
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return ffi.cast(POINTER_TYPES[dtype], tensor.data_ptr())


@cache
def sgemm_of_torch() -> int | None:
    """Return the address of `sgemm_` in the BLAS that torch links; None if hidden."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        return ctypes.cast(ctypes.CDLL(str(path)).sgemm_, ctypes.c_void_p).value
    return None


PANEL_WIDTH = 32
"""Rows of bf16 matrices have a multiple of this many elements."""
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

    Of several weights that are packed together, pass the first. Only parameters are
    cached: other tensors are new in each call.
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
