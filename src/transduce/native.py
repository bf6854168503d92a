"""Binding of the native library, whose interface is the header transduce.h.

cffi reads the header itself, and the library tells a hash of the header that it was
compiled with: a library of another version is not used.
"""

import hashlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI
from jaxtyping import Shaped

from transduce.errors import RequestError
from transduce.kernels.openmp import gomp_parallel

LIBRARY, HEADER = "libtransduce.so", "transduce.h"
CACHE_LINE = 64
"""Bytes that a processor reads at once."""

ffi = FFI()
"""Types and memory of the native library."""


@cache
def library() -> Any | None:
    """Return the native library, or None if it is missing or of another version.

    Installing from source without a C compiler leaves it out.
    """
    found = _find(LIBRARY), _find(HEADER)
    if found[0] is None or found[1] is None:
        return None
    path, header = found
    text = header.read_bytes()
    ffi.cdef(_declarations(text.decode()))
    try:
        loaded = ffi.dlopen(str(path))
        same = string(loaded.td_header_hash()) == hashlib.sha256(text).hexdigest()
    except (OSError, AttributeError):
        return None
    if not same:
        return None
    if (run := gomp_parallel()) is not None:
        loaded.td_use_openmp(ffi.cast("void *", run))
    return loaded


@cache
def api() -> Any | None:
    """Return the kernels for this processor (`td_api`), or None if there are none.

    The environment variable TRANSDUCE_ISA chooses an instruction set by name.
    """
    loaded = library()
    found = None if loaded is None else loaded.td_load()
    return found or None


def check(status: int) -> None:
    """Raise the error of a status other than `TD_OK`.

    `RequestError` if memory is lacking, `IndexError` for an id outside the vocabulary,
    `ValueError` for other arguments.
    """
    if status == 0:
        return
    loaded = library()
    assert loaded is not None
    name, message = (
        string(tell(status))
        for tell in (loaded.td_status_name, loaded.td_status_message)
    )
    if status == loaded.TD_OUT_OF_MEMORY:
        raise RequestError(
            "Decoding needs memory for a step, but there is none left; give fewer or "
            "shorter sentences at once, or search with a smaller beam."
        )
    if status == loaded.TD_BAD_TOKEN:
        raise IndexError(message)
    raise ValueError(f"{message} ({name})")


def string(text: Any) -> str:
    """Decode a C string."""
    decoded: bytes = ffi.string(text)
    return decoded.decode()


def pointer(array: Shaped[np.ndarray, "..."], kind: str) -> Any:
    """Return a pointer to the numbers of a contiguous array, such as "float *".

    It is valid as long as the array is kept.
    """
    assert array.flags.c_contiguous
    return ffi.cast(kind, array.__array_interface__["data"][0])


def empty_aligned(
    *shape: int, dtype: type[np.generic] = np.float32
) -> Shaped[np.ndarray, "..."]:
    """Return an uninitialised array aligned to a cache line."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    space = np.empty(num_bytes + CACHE_LINE, dtype=np.uint8)
    first = -space.__array_interface__["data"][0] % CACHE_LINE
    return space[first : first + num_bytes].view(dtype).reshape(shape)


def _find(name: str) -> Path | None:
    """Return a file of the package, wherever an installation has put it."""
    for folder in sys.modules["transduce"].__path__:
        if (path := Path(folder) / name).is_file():
            return path
    return None


def _declarations(header: str) -> str:
    """Return what cffi reads of a header: all but comments and the preprocessor's."""
    without_comments = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return re.sub(r"^\s*#.*$", "", without_comments, flags=re.MULTILINE)
