"""Number of threads on a CPU, which PyTorch and the native library share."""

import ctypes
import os
import sys
from contextlib import suppress
from ctypes import c_void_p
from functools import cache
from types import ModuleType

from transduce.machine import num_cores, num_whole_cores, torch_folder

READ_BY_PYTORCH = "OMP_NUM_THREADS", "MKL_NUM_THREADS"
"""Once, as it is loaded."""


def gomp_parallel() -> int | None:
    """Address of GOMP_parallel in the OpenMP that PyTorch has; None if it is not GCC's.

    Without it the native library uses threads of its own.
    """
    library = _openmp()
    if library is None:
        return None
    return ctypes.cast(library.GOMP_parallel, c_void_p).value


def num_threads() -> int:
    """As many as PyTorch computes with, or would."""
    if (torch := _loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return _Threads.asked or _usual_number()


def use_threads(number: int) -> None:
    """From here on compute with so many, in PyTorch too, also if it is loaded later."""
    _Threads.asked = number
    if (torch := _loaded_torch()) is not None:
        torch.set_num_threads(number)
        return
    for name in READ_BY_PYTORCH:
        os.environ[name] = str(number)
    if (library := _openmp()) is not None:
        library.omp_set_num_threads(number)


def _loaded_torch() -> ModuleType | None:
    """None also while another thread is still loading it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


class _Threads:
    """How many of them."""

    asked: int | None = None


def leave_a_core() -> None:
    """Compute on all cores but one, unless the environment sets a number of threads.

    Where another program wants that core, threads on all of them would wait, actively,
    for the one that has lost its own.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        use_threads(max(num_threads() - 1, 1))


@cache
def _usual_number() -> int:
    """Default number of threads: one for each core, or what the environment sets.

    MKL_NUM_THREADS comes before OMP_NUM_THREADS, as it does in PyTorch.
    """
    library = _openmp()
    most = num_cores() if library is None else library.omp_get_max_threads()
    for name in READ_BY_PYTORCH if library is None else ("MKL_NUM_THREADS",):
        with suppress(KeyError, ValueError):
            most = int(os.environ[name]) or most
    return max(min(filter(None, [most, num_whole_cores()]), default=1), 1)


@cache
def _openmp() -> ctypes.CDLL | None:
    """GCC's: the very one that PyTorch has, or will have, if it has that one."""
    folder = torch_folder()
    own = [] if folder is None else sorted((folder / "lib").glob("libgomp*"))
    # PyTorch may bring its own, have the system's, or have it loaded already.
    for path in [*map(str, own), None, "libgomp.so.1"]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            _ = library.GOMP_parallel, library.omp_get_max_threads
            return library
    return None
