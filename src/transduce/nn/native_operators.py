"""Functions of the native library for training, and memory that they share with torch.

`nn_api()` is `td_nn_api` of transduce.h; structs are made by `ffi.new`.
"""

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def uses_amx() -> bool:
    """Whether the native functions multiply bf16 matrices by AMX."""
    api = nn_api()
    return api is not None and bool(api.uses_amx())


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
