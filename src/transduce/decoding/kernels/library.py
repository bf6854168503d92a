"""The compiled kernels of decoding, if this installation has them."""

import ctypes
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from transduce.decoding.kernels.fields import (
    BeamFields,
    BeamsFields,
    CandidateSearchFields,
    DecoderFields,
    EncoderFields,
    EndFields,
    LayerFields,
    LinearFields,
    NeedsFields,
    SourceFields,
    StateFields,
    StepsFields,
)
from transduce.errors import RequestError
from transduce.kernels.loading import fastest_library
from transduce.machine import has_matrix_unit

FOLDER = Path(__file__).parent
FIELDS: tuple[type[ctypes.Structure], ...] = (
    LinearFields,
    LayerFields,
    DecoderFields,
    StateFields,
    NeedsFields,
    CandidateSearchFields,
    EndFields,
    BeamFields,
    BeamsFields,
    StepsFields,
    EncoderFields,
    SourceFields,
)
OUT_OF_MEMORY, NO_TOKEN, OTHER_GROUPS, NO_ROOM = 1, 2, 3, 4
"""What a kernel returns if it has not done what it was to do."""


@cache
def kernels() -> ctypes.CDLL | None:
    """The library, or none where it was not compiled or the processor cannot run it."""
    library = fastest_library(FOLDER, _declare, FIELDS)
    if library is not None and has_matrix_unit("int8"):
        library.transduce_use_matrix_unit(True)
    return library


def loaded_kernels() -> ctypes.CDLL:
    """The library, which must be there."""
    library = kernels()
    assert library is not None
    return library


def require_done(status: int) -> None:
    """`RequestError` if a kernel had too little memory, `IndexError` for no token."""
    if status == OUT_OF_MEMORY:
        raise RequestError(
            "Decoding must have memory for a step, but there is none left; give fewer "
            "or shorter sentences at once, or search with a smaller beam."
        )
    if status == NO_TOKEN:
        raise IndexError("Ids must be those of tokens, but one is not.")


def _declare(library: ctypes.CDLL) -> None:
    pointer, number = c_void_p, c_int64
    library.transduce_use_matrix_unit.argtypes = [c_int]
    library.transduce_padded.argtypes = [number]
    library.transduce_padded.restype = number
    library.transduce_packed_bytes.argtypes = [number, number, c_int]
    library.transduce_packed_bytes.restype = number
    library.transduce_pack.argtypes = [pointer, number, number, pointer, c_int]
    library.transduce_pack_int8.argtypes = [
        pointer,
        *[number] * 2,
        *[pointer] * 3,
        c_int,
    ]
    library.transduce_linear.argtypes = [pointer, pointer, number, pointer, c_int]
    library.transduce_encode.argtypes = [*[pointer] * 4, c_int]
    library.transduce_start.argtypes = [*[pointer] * 3, c_int]
    library.transduce_step.argtypes = [*[pointer] * 5, c_int]
    library.transduce_measure.argtypes = [*[pointer] * 3]
    library.transduce_gather.argtypes = [*[pointer] * 3, number]
    library.transduce_reorder.argtypes = [pointer, pointer, number]
    library.transduce_coverage.argtypes = [pointer, pointer]
    library.transduce_coverage.restype = None
    library.transduce_candidates.argtypes = [pointer, pointer]
    library.transduce_steps.argtypes = [pointer, c_int]
    for grow in (library.transduce_grow, library.transduce_grow_greedily):
        grow.argtypes = [*[pointer] * 4, number, number]
        grow.restype = None
    library.transduce_trace_best.argtypes = [pointer, number, number, pointer, pointer]
    library.transduce_trace_best.restype = None
