"""Kernels of this machine: which there are, and how tensors and weights reach them.

`nn_api()` has the functions of the native library for training (`td_nn_api` of
transduce.h). Structs are made by `ffi.new`, and share their memory with tensors. In
bf16 the library reads packed weights, which `packed_once` keeps during an update.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce import native
from transduce.errors import warn_caller
from transduce.native import LAYERS, ffi

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
    return None if api is None else api.nn


def loaded_nn_api() -> Any:
    """Return the functions for this processor, which must exist."""
    api = nn_api()
    assert api is not None
    return api


def check(status: int) -> None:
    """Raise the errors of `native.check` unless a status is `TD_OK`."""
    native.check(status, LAYERS)


def has_fp32_products() -> bool:
    """Whether fp32 matrices are multiplied natively: with AVX2 or AVX-512.

    On other processors PyTorch multiplies them. On a Mac it uses the matrix unit.
    """
    api = native.api()
    return api is not None and native.string(api.isa).startswith("avx")


def bf16_unit() -> str | None:
    """Return the instructions by which native functions multiply bf16 matrices.

    They are "amx" or "avx512_bf16"; None where slow loops compute the products.
    """
    api, library = nn_api(), native.library()
    if api is None or library is None:
        return None
    names = {library.TD_BF16_AMX: "amx", library.TD_BF16_AVX512: "avx512_bf16"}
    return names.get(api.bf16_unit())


def has_bf16_products() -> bool:
    """Whether the native functions multiply bf16 matrices fast."""
    return bf16_unit() is not None


@cache
def has_triton() -> bool:
    """Whether Triton's kernels run on this machine's GPU; warn once if they should.

    PyTorch's builds for GPUs bring Triton along, but it needs a C compiler.
    """
    if find_spec("triton") is None:
        return False
    from transduce.nn.gpu_kernels import launch_fault

    if (fault := launch_fault()) is None:
        return True
    warn_caller(
        "The GPU is without Triton's kernels, so training takes several times as long "
        f"and decoding longer: {fault}"
    )
    return False


def is_native(tensor: Tensor) -> bool:
    """Whether native functions can read a tensor, whatever its dtype."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and nn_api() is not None
    )


def new_floats(*shape: int) -> Float[Tensor, "*shape"]:
    """Allocate fp32 numbers for native functions, whatever PyTorch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def tensor_pointer(
    tensor: Tensor,
    dtype: torch.dtype = torch.float32,
    shape: Sequence[int] | None = None,
) -> Any:
    """Return a pointer to the elements of a contiguous tensor of this dtype.

    It is valid as long as the tensor is kept. Raises `ValueError` if the tensor has
    another dtype or, if one is given, another shape.
    """
    if tensor.dtype != dtype or (shape is not None and tensor.shape != tuple(shape)):
        sizes = "" if shape is None else f" {list(shape)}"
        raise ValueError(
            f"A native function must get {dtype}{sizes}, but gets "
            f"{tensor.dtype} {list(tensor.shape)}."
        )
    assert tensor.is_contiguous()
    return ffi.cast(POINTER_TYPES[dtype], tensor.data_ptr())


def split_like(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into views with the shapes of others."""
    pieces = flat.split([each.numel() for each in like])
    # Pieces have one axis already; a view of each bias would take time.
    return [
        piece if each.dim() == 1 else piece.view_as(each)
        for piece, each in zip(pieces, like, strict=True)
    ]


PANEL_WIDTH = 32
"""Rows of bf16 matrices have a multiple of this many elements."""


NUM_DIRECTIONS = 2
"""A weight is packed for the forward and for the backward pass."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight, held so that its address is not reused, and its packed elements."""

    weight: Tensor
    elements: Tensor


class _PackedWeights(dict[tuple[int, int, torch.dtype], _Packed]):
    """Packed weights by address, size and dtype, for all threads of an update."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
        """Held while a weight is packed, so that no other thread packs it too."""


_packed_weights: ContextVar[_PackedWeights | None] = ContextVar(
    "_packed_weights", default=None
)


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Pack each weight only once until the context ends, as no weight changes.

    PyTorch cannot say when a weight has changed, as fused optimizers do not record it.
    """
    token = _packed_weights.set(_PackedWeights())
    try:
        yield
    finally:
        _packed_weights.reset(token)


def packed_once(
    weight: Tensor,
    size: int,
    pack: Callable[[Tensor], None],
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, " {size}"]:
    """Return `size` elements that `pack` has filled for this weight.

    Of several weights that are packed together, pass the first. Only parameters are
    cached: other tensors are new in each call.
    """
    cached = _packed_weights.get() if isinstance(weight, nn.Parameter) else None

    def packed() -> Tensor:
        elements = weight.new_empty(size, dtype=dtype)
        pack(elements)
        return elements

    if cached is None:
        return packed()
    key = (weight.data_ptr(), size, dtype)
    with cached.lock:
        if key not in cached:
            cached[key] = _Packed(weight, packed())
        return cached[key].elements
