"""The compiled kernels of training, if this installation has them."""

import ctypes
from contextlib import suppress
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from transduce.kernels.loading import fastest_library
from transduce.machine import has_matrix_unit, processor_flags
from transduce.model.operators.kernels.fields import (
    AttentionFields,
    CrossEntropyFields,
    MaskingFields,
    OrthogonalizationFields,
    ResidualFields,
    StackFields,
    UnitLossFields,
)

FOLDER = Path(__file__).parent
WHOLE = 16
"""Numbers of a row: most kernels want a multiple, so that lanes are full."""
FIELDS: tuple[type[ctypes.Structure], ...] = (
    AttentionFields,
    MaskingFields,
    OrthogonalizationFields,
    CrossEntropyFields,
    ResidualFields,
    StackFields,
    UnitLossFields,
)


@cache
def kernels() -> ctypes.CDLL | None:
    """The library, or none where it was not compiled or the processor cannot run it."""
    return fastest_library(FOLDER, _declare, FIELDS)


def has_products() -> bool:
    """Whether there are kernels, and a BLAS of PyTorch's whose products they call."""
    return kernels() is not None and products_of_torch() is not None


@cache
def uses_matrix_unit() -> bool:
    """Whether there are kernels, and from now on they have a unit of the processor's
    multiply in bf16; without it they do so too, but slowly."""
    library = kernels()
    rounds = (
        "avx512_bf16" in processor_flags()
    )  # what goes into the unit, and comes out
    if library is None or not rounds or not has_matrix_unit("bf16"):
        return False
    return bool(library.transduce_use_matrix_unit(True))


def loaded_kernels() -> ctypes.CDLL:
    """The library, which must be there."""
    library = kernels()
    assert library is not None
    return library


def _declare(library: ctypes.CDLL) -> None:
    library.transduce_use_matrix_unit.argtypes = [c_int]
    library.transduce_use_products.argtypes = [c_void_p]
    library.transduce_use_products(products_of_torch())
    library.transduce_lanes.argtypes = []
    library.transduce_attention_room.argtypes = [c_void_p]
    library.transduce_orthogonal_room.argtypes = [c_void_p]
    library.transduce_residual_groups.argtypes = [c_void_p]
    library.transduce_stack_states.argtypes = [c_void_p]
    library.transduce_stack_room.argtypes = [c_void_p]
    for count in (
        library.transduce_lanes,
        library.transduce_attention_room,
        library.transduce_orthogonal_room,
        library.transduce_residual_groups,
        library.transduce_stack_states,
        library.transduce_stack_room,
    ):
        count.restype = c_int64
    library.transduce_unit_loss_room.argtypes = [c_void_p, c_int]
    library.transduce_unit_loss_room.restype = c_int64
    for kernel in (
        library.transduce_attend,
        library.transduce_form_attention_gradients,
        library.transduce_drop,
        library.transduce_mask,
        library.transduce_orthogonalize,
        library.transduce_form_cross_entropy,
        library.transduce_normalize_sum,
        library.transduce_differentiate_normalized_sum,
        library.transduce_pack_layers,
        library.transduce_form_layers,
        library.transduce_differentiate_layers,
        library.transduce_pack_output,
        library.transduce_form_unit_loss,
    ):
        kernel.argtypes = [c_void_p, c_int]
        kernel.restype = None


@cache
def products_of_torch() -> int | None:
    """Where PyTorch has BLAS's `sgemm`, if others can find it."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        return ctypes.cast(ctypes.CDLL(str(library)).sgemm_, c_void_p).value
    return None
