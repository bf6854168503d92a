"""Libraries of kernels that this processor can run, if this installation has them.

They are compiled as the package is installed, where there is a C compiler.
"""

import ctypes
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from transduce.device import processor_flags

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
BUILDS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"},
    "avx_vnni": {"avx2", "avx_vnni", "fma"},
    "avx2": {"avx2", "fma"},
}
"""What a processor must be able to do, for each library; the fastest comes first."""

MOST_FIELDS = 64
"""Structures that a library of any version reads, at most."""


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
            library.transduce_use_threads(threads_of_torch())
            if _reads(library, fields):
                return library
    return None


def address(tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where a tensor's numbers begin; they must be such, and follow each other.

    It is good for as long as the tensor is kept.
    """
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def threads_of_torch() -> int | None:
    """How PyTorch's own OpenMP runs a function in its threads, if it is GCC's.

    Without it a kernel has one thread.
    """
    folder = Path(torch.__file__).parent / "lib"
    for path in [*map(str, folder.glob("libgomp*")), None]:  # or what is loaded
        with suppress(OSError, AttributeError):
            run = ctypes.CDLL(path).GOMP_parallel
            return ctypes.cast(run, c_void_p).value
    return None


def _reads(library: ctypes.CDLL, fields: Sequence[type[ctypes.Structure]]) -> bool:
    sizes = (c_int64 * MOST_FIELDS)()
    library.transduce_sizes.argtypes = [c_void_p]
    library.transduce_sizes(sizes)
    ours = list(map(ctypes.sizeof, fields))
    return list(sizes) == ours + [0] * (MOST_FIELDS - len(ours))
