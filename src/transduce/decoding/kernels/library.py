"""The compiled kernels, if this installation has them.

They are compiled as the package is installed, where there is a C compiler.
"""

import ctypes
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from transduce.device import has_int8_products
from transduce.errors import RequestError

FOLDER = Path(__file__).parent


@cache
def kernels() -> ctypes.CDLL | None:
    """The library, or none where it was not compiled or the processor cannot run it."""
    if not has_int8_products():
        return None
    for path in sorted(FOLDER.glob("compiled*.so")):
        try:
            return _declared(ctypes.CDLL(str(path)))
        except OSError:  # made for another system
            continue
    return None


def loaded_kernels() -> ctypes.CDLL:
    """The library, which must be there."""
    library = kernels()
    assert library is not None
    return library


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor's numbers begin; these must follow each other."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def require_memory(status: int) -> None:
    """`RequestError` if a kernel had too little."""
    if status:
        raise RequestError(
            "Decoding must have memory for a step, but there is none left; give fewer "
            "or shorter sentences at once, or search with a smaller beam."
        )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = c_void_p, c_int64
    library.transduce_use_threads.argtypes = [pointer]
    library.transduce_packed_bytes.argtypes = [number, number]
    library.transduce_packed_bytes.restype = number
    library.transduce_pack.argtypes = [pointer, number, number, *[pointer] * 3]
    library.transduce_linear.argtypes = [pointer, pointer, number, pointer, c_int]
    library.transduce_encode.argtypes = [*[pointer] * 3, c_int]
    library.transduce_step.argtypes = [*[pointer] * 3, c_int]
    library.transduce_best.argtypes = [
        pointer, number, number, pointer, pointer, number, number, *[pointer] * 3
    ]  # fmt: skip
    library.transduce_use_threads(_threads_of_torch())
    return library


def _threads_of_torch() -> int | None:
    """How PyTorch's own OpenMP runs a function in its threads, if it is GCC's."""
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("libgomp*"):
        run = ctypes.CDLL(str(path)).GOMP_parallel
        return ctypes.cast(run, c_void_p).value
    return None
