"""The compiled kernels, if this installation has them.

They are compiled as the package is installed, where there is a C compiler.
"""

import ctypes
import sysconfig
from contextlib import suppress
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from transduce.decoding.kernels.fields import (
    BeamFields,
    BeamsFields,
    CandidateSearchFields,
    DecoderFields,
    EndFields,
    LayerFields,
    LinearFields,
    NeedsFields,
    StateFields,
)
from transduce.device import processor_flags
from transduce.errors import RequestError

FOLDER = Path(__file__).parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
BUILDS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"},
    "avx2": {"avx2", "fma"},
}
"""What a processor must be able to do, for each library; the fastest comes first."""
OUT_OF_MEMORY, NO_TOKEN, OTHER_GROUPS = 1, 2, 3
"""What a kernel returns if it has not done what it was to do."""


@cache
def kernels() -> ctypes.CDLL | None:
    """The library, or none where it was not compiled or the processor cannot run it.

    One that is left of another version of this package is none either.
    """
    runnable = (name for name, need in BUILDS.items() if need <= processor_flags())
    return next(filter(None, map(_loaded, runnable)), None)


def loaded_kernels() -> ctypes.CDLL:
    """The library, which must be there."""
    library = kernels()
    assert library is not None
    return library


def address(tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where a tensor's numbers begin; they must be such, and follow each other.

    It is good for as long as the tensor is kept.
    """
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def require_done(status: int) -> None:
    """`RequestError` if a kernel had too little memory, `IndexError` for no token."""
    if status == OUT_OF_MEMORY:
        raise RequestError(
            "Decoding must have memory for a step, but there is none left; give fewer "
            "or shorter sentences at once, or search with a smaller beam."
        )
    if status == NO_TOKEN:
        raise IndexError("Ids must be those of tokens, but one is too large.")


def _loaded(build: str) -> ctypes.CDLL | None:
    with suppress(OSError, AttributeError):
        library = _declared(ctypes.CDLL(str(FOLDER / f"{build}{SUFFIX}")))
        if _reads_our_fields(library):
            return library
    return None


def _reads_our_fields(library: ctypes.CDLL) -> bool:
    ours = [LinearFields, LayerFields, DecoderFields, StateFields]
    ours += [NeedsFields, CandidateSearchFields, EndFields, BeamFields, BeamsFields]
    sizes = (c_int64 * len(ours))()
    library.transduce_sizes(sizes)
    return list(sizes) == list(map(ctypes.sizeof, ours))


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = c_void_p, c_int64
    library.transduce_sizes.argtypes = [pointer]
    library.transduce_use_threads.argtypes = [pointer]
    library.transduce_padded.argtypes = [number]
    library.transduce_padded.restype = number
    library.transduce_packed_bytes.argtypes = [number, number, c_int]
    library.transduce_packed_bytes.restype = number
    library.transduce_pack.argtypes = [pointer, number, number, pointer]
    library.transduce_pack_int8.argtypes = [pointer, number, number, *[pointer] * 3]
    library.transduce_linear.argtypes = [pointer, pointer, number, pointer, c_int]
    library.transduce_encode.argtypes = [*[pointer] * 3, c_int]
    library.transduce_start.argtypes = [
        *[pointer] * 2,
        *[number] * 2,
        pointer,
        c_int,
    ]
    library.transduce_step.argtypes = [*[pointer] * 5, c_int]
    library.transduce_measure.argtypes = [pointer, pointer]
    library.transduce_gather.argtypes = [*[pointer] * 3, number]
    library.transduce_reorder.argtypes = [pointer, pointer, number]
    library.transduce_candidates.argtypes = [pointer]
    for grow in (library.transduce_grow, library.transduce_grow_greedily):
        grow.argtypes = [*[pointer] * 4, number, number]
        grow.restype = None
    library.transduce_use_threads(threads_of_torch())
    return library


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
