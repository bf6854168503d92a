"""Libraries of kernels that this processor can run, if this installation has them.

They are compiled as the package is installed, where there is a C compiler.
"""

import ctypes
import math
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_int64, c_void_p
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from transduce.kernels.openmp import run_in_threads
from transduce.machine import processor_flags

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
BUILDS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"},
    "avx_vnni": {"avx2", "avx_vnni", "fma"},
    "avx2": {"avx2", "fma"},
}
"""What a processor must be able to do, for each library; the fastest comes first."""

MOST_FIELDS = 64
"""Structures that a library of any version reads, at most."""
CACHE_LINE = 64
"""Bytes that a processor reads at once."""


def fastest_library(
    folder: Path,
    declare: Callable[[ctypes.CDLL], None],
    fields: Sequence[type[ctypes.Structure]],
) -> ctypes.CDLL | None:
    """The folder's library, or none where there is none that this processor can run.

    `declare` names its kernels and what they read. One that lacks a kernel, or reads
    other fields, is left of another version of this package, and passed over.
    """
    for build, needed in BUILDS.items():
        if not needed <= processor_flags():
            continue
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(folder / f"{build}{SUFFIX}"))
            declare(library)
            library.transduce_use_threads.argtypes = [c_void_p]
            library.transduce_use_threads(run_in_threads())
            if _reads(library, fields):
                return library
    return None


def room_for(
    *shape: int, dtype: type[np.generic] = np.float32
) -> Shaped[np.ndarray, "..."]:
    """An array without numbers that begins with a cache line, as kernels like it."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(num_bytes + CACHE_LINE, dtype=np.uint8)
    first = -room.__array_interface__["data"][0] % CACHE_LINE
    return room[first : first + num_bytes].view(dtype).reshape(shape)


def address(
    array: Shaped[np.ndarray, "..."], dtype: type[np.generic] = np.float32
) -> int:
    """Where an array's numbers begin; they must be such, and follow each other.

    It is good for as long as the array is kept.
    """
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    first: int = array.__array_interface__["data"][0]
    return first


def _reads(library: ctypes.CDLL, fields: Sequence[type[ctypes.Structure]]) -> bool:
    sizes = (c_int64 * MOST_FIELDS)()
    library.transduce_sizes.argtypes = [c_void_p]
    library.transduce_sizes(sizes)
    ours = list(map(ctypes.sizeof, fields))
    return list(sizes) == ours + [0] * (MOST_FIELDS - len(ours))
