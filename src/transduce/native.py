"""Binding of the native library, whose interface is the header transduce.h.

cffi reads the header: when the library is built (native_header), or else here. The
library reports a hash of the header that it was compiled with; a library with another
header is not used.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int64, Shaped

from transduce.errors import LackOfMemoryError, RequestError, warn_caller
from transduce.machine import free_memory, gomp_parallel
from transduce.native_header import declarations, hash_of

LIBRARY, HEADER, INTERFACE = "libtransduce.so", "transduce.h", "transduce.ffi"
CACHE_LINE = 64
"""Bytes of a line of the processor's caches."""
LARGE_ALLOCATION = 2**28
"""Bytes of the smallest allocation that is checked against free memory: a check takes
longer than a decoding step."""


MISMATCH = (
    "The native library is damaged or of another version of transduce, so that PyTorch "
    "computes instead, several times slower; reinstall transduce."
)


def load(folder: Path) -> tuple[Any, Any | None]:
    """Return the types and the functions of the native library in a folder.

    The functions are None if the library is missing. They are also None, and a warning
    is issued, if the library cannot be loaded or does not match its header.
    """
    for types, header_hash in _interfaces(folder):
        with suppress(OSError, AttributeError):
            loaded = types.dlopen(str(folder / LIBRARY))
            if types.string(loaded.td_header_hash()).decode() == header_hash:
                return types, loaded
    if (folder / LIBRARY).is_file():
        warn_caller(MISMATCH)
    from cffi import FFI

    return FFI(), None


def _interfaces(folder: Path) -> Iterator[tuple[Any, str]]:
    """Yield types with the hash of their header: from the build, then parsed here."""
    for name, read in ((INTERFACE, _built_interface), (HEADER, _parsed_header)):
        if (path := folder / name).is_file():
            found = None
            with suppress(Exception):  # a damaged file may raise anything
                found = read(path.read_bytes())
            if found is not None:
                yield found


def _built_interface(source: bytes) -> tuple[Any, str]:
    module: dict[str, Any] = {}
    exec(source, module)
    return module["ffi"], module["HEADER_HASH"]


def _parsed_header(text: bytes) -> tuple[Any, str]:
    from cffi import FFI

    types = FFI()
    types.cdef(declarations(text.decode()))
    return types, hash_of(text)


def library_folder() -> Path:
    """Return the package folder with the library, or the first if none has it."""
    folders = [Path(each) for each in sys.modules["transduce"].__path__]
    return next((each for each in folders if (each / LIBRARY).is_file()), folders[0])


ffi, _library = load(library_folder())
"""Types of the native library, and functions for its pointers and structs."""


class Work(NamedTuple):
    """Work of the library, as errors name it, and the remedy for lack of memory."""

    name: str
    remedy: str


DECODING = Work(
    "Decoding",
    "give fewer or shorter sentences at once, or search with a smaller beam",
)
LOADING = Work("Loading the model", "end other programs, or take a smaller model")
LAYERS = Work(
    "Computing a batch",
    "end other programs, or take smaller batches or a smaller model",
)


class _Refusal(threading.local):
    """Reason for which the last allocation in this thread was refused."""

    sizes: str = ""
    error: BaseException | None = None
    """Error within the check, such as an interrupt by Ctrl-C."""

    def take(self) -> str:
        """Return the sizes and clear them."""
        sizes, self.sizes = self.sizes, ""
        return sizes

    def raise_error(self) -> None:
        """Raise the error within the last check, if there was one."""
        if (error := self.error) is not None:
            self.error = None
            raise error


_refusal = _Refusal()


def _is_free(num_bytes: int) -> int:
    """Return whether so much memory is free; if not, keep the sizes."""
    free = free_memory(1)
    if num_bytes <= free:
        return 1
    _refusal.sizes = (
        f"{num_bytes / 2**30:,.1f} GiB at once, but {free / 2**30:,.1f} GiB are free"
    )
    return 0


def _keep_error(_kind: Any, error: BaseException, _traceback: Any) -> None:
    """Keep an error of `_is_free` for `check`: C code cannot pass it on."""
    _refusal.error = error


_may_allocate = ffi.callback("int(int64_t)", _is_free, error=0, onerror=_keep_error)


@cache
def library() -> Any | None:
    """Return the native library, or None if it is missing or does not match its header.

    It is missing after an installation from source without a C compiler. It is also
    None if the environment variable TRANSDUCE_ISA is "none".
    """
    if _library is None or os.environ.get("TRANSDUCE_ISA") == "none":
        return None
    if (run := gomp_parallel()) is not None:
        _library.td_use_openmp(ffi.cast("void *", run))
    check_allocations(LARGE_ALLOCATION)
    return _library


def check_allocations(min_bytes: int) -> None:
    """Make the library refuse allocations that exceed the free memory.

    Allocations of fewer than `min_bytes` bytes are not checked.
    """
    assert _library is not None
    _library.td_use_allocation_check(_may_allocate, min_bytes)


@cache
def api() -> Any | None:
    """Return the functions for this processor (`td_api`), or None without a library.

    The environment variable TRANSDUCE_ISA selects an instruction set by name, or "none"
    to do without the library. Raises `RequestError` if the library or the processor
    does not have the set.
    """
    loaded = library()
    if loaded is None:
        return None
    found = loaded.td_load()
    if not found and (name := os.environ.get("TRANSDUCE_ISA")):
        raise RequestError(
            f"TRANSDUCE_ISA is {name}, but this processor or this build does not "
            f"have it; the build has {', '.join(isa_names())}."
        )
    return found or None


def isa_names() -> list[str]:
    """Return the names of all instruction sets in the library, fastest first."""
    loaded = library()
    return [] if loaded is None else string(loaded.td_isa_names()).split()


def has_amx_int8() -> bool:
    """Whether products in int8 use AMX."""
    loaded = library()
    return loaded is not None and bool(loaded.td_has_amx_int8())


def check(status: int, work: Work = DECODING) -> None:
    """Raise an error unless a status is `TD_OK`.

    Raises `LackOfMemoryError` if memory for the work is lacking, `IndexError` for a
    token id outside the vocabulary, and `ValueError` otherwise. An error that ended a
    check of free memory, such as `KeyboardInterrupt`, is raised whatever the status; an
    object that the call returned all the same is then not freed.
    """
    _refusal.raise_error()
    if status == 0:
        return
    loaded = library()
    assert loaded is not None
    name, message = (
        string(describe(status))
        for describe in (loaded.td_status_name, loaded.td_status_message)
    )
    if status == loaded.TD_OUT_OF_MEMORY:
        sizes = _refusal.take() or "more memory, but there is none left"
        raise LackOfMemoryError(f"{work.name} needs {sizes}; {work.remedy}.")
    if status == loaded.TD_BAD_TOKEN:
        raise IndexError(message)
    raise ValueError(f"{message} ({name})")


def require_free(num_bytes: int, work: Work) -> None:
    """Raise `LackOfMemoryError` if a large array of the work exceeds the free memory.

    Linux grants more memory than it has, and would kill the process that uses it.
    """
    if num_bytes >= LARGE_ALLOCATION and not _is_free(num_bytes):
        raise LackOfMemoryError(f"{work.name} needs {_refusal.take()}; {work.remedy}.")


def string(text: Any) -> str:
    """Decode a C string."""
    decoded: bytes = ffi.string(text)
    return decoded.decode()


DTYPES = {
    "float *": (np.dtype(np.float32),),
    "double *": (np.dtype(np.float64),),
    "int8_t *": (np.dtype(np.int8),),
    "int32_t *": (np.dtype(np.int32),),
    "int64_t *": (np.dtype(np.int64),),
    "uint8_t *": (np.dtype(np.bool_), np.dtype(np.uint8)),
}
"""Dtypes of the arrays that a pointer may point to."""


def pointer(
    array: Shaped[np.ndarray, "..."] | None,
    kind: str,
    shape: tuple[int, ...] | None = None,
) -> Any:
    """Return a pointer of type `kind`, such as "float *", to a contiguous array.

    It is valid as long as the array exists. None gives NULL. Raises `ValueError` if the
    array has another dtype or, if one is given, another shape.
    """
    if array is None:
        return ffi.NULL
    if array.dtype not in DTYPES[kind] or shape not in (None, array.shape):
        sizes = "" if shape is None else f" {list(shape)}"
        dtypes = " or ".join(map(str, DTYPES[kind]))
        raise ValueError(
            f"The native library must get {dtypes}{sizes}, but gets {array.dtype} "
            f"{list(array.shape)}."
        )
    assert array.flags.c_contiguous
    return ffi.cast(kind, array.__array_interface__["data"][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTokens:
    """Tokens of several rows, one row after another, as the library reads them."""

    offsets: Int64[np.ndarray, " rows_and_one"]
    """Place of each row's first token; at the end, the number of tokens."""
    tokens: Int64[np.ndarray, " tokens"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "RowTokens":
        """Store the tokens of rows."""
        return cls(
            offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
            tokens=np.array([i for row in rows for i in row], dtype=np.int64),
        )

    @property
    def rows(self) -> Int64[np.ndarray, " tokens"]:
        """Row of each token."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def native_logits(
    logits: Float[Any, "sentences group vocab"],
) -> Float32[np.ndarray, "sentences group vocab"] | None:
    """Return logits as an array for the native library.

    Returns None without the library, or if the logits are not in fp32 on a CPU.
    """
    if api() is None:
        return None
    if not isinstance(logits, np.ndarray):
        if logits.device.type != "cpu" or not logits.dtype.is_floating_point:
            return None
        if logits.dtype.itemsize != np.dtype(np.float32).itemsize:
            return None
        logits = logits.detach().numpy()
    return logits if logits.dtype == np.float32 else None


def empty_aligned(
    *shape: int, dtype: type[np.generic] = np.float32
) -> Shaped[np.ndarray, "..."]:
    """Return an uninitialized array aligned to a cache line."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.empty(num_bytes + CACHE_LINE, dtype=np.uint8)
    first = -block.__array_interface__["data"][0] % CACHE_LINE
    return block[first : first + num_bytes].view(dtype).reshape(shape)
