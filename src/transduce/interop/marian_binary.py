"""Weights in Marian's binary format (model.bin), which its decoder loads fast.

All numbers are little-endian. A file holds, one after the other:

- the version of the format and the number of arrays, in 64 bits each;
- the header of each array, four numbers of 64 bits: length of its name, type, number of
  axes, and length of its content in bytes;
- the names, each with a zero byte at its end;
- the shapes, in 32 bits for each axis;
- a number of 64 bits, and as many bytes without a meaning;
- the contents, which may be longer than their arrays.

Quantized matrices (intgemm8 and intgemm16) are whole numbers, and behind them the scale
by which the weights were multiplied, in fp32. They are stored transposed, except
embeddings, although the shape is that of the matrix itself.
"""

import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transduce.errors import CheckpointError, RequestError
from transduce.files import access_errors, reason, require_file
from transduce.foreign_models import MARIAN_BINARY
from transduce.settings import shown

HEADER = np.dtype(
    [("name", "<u8"), ("type", "<u8"), ("axes", "<u8"), ("content", "<u8")]
)
"""Header of an array: three lengths, and the type."""
PLAIN: dict[int, np.dtype[Any]] = {
    0x0101: np.dtype("i1"),
    0x0402: np.dtype("<f2"),
    0x0404: np.dtype("<f4"),
}
"""Types that are stored as they are: int8 (the options, a text), fp16 and fp32."""
QUANTIZED: dict[int, np.dtype[Any]] = {
    0x4101: np.dtype("i1"),
    0x4102: np.dtype("<i2"),
    0x10001: np.dtype("i1"),
    0x10002: np.dtype("<i2"),
}
"""Types intgemm8 and intgemm16; those of the project browsermt have other numbers than
those of Marian itself."""
PACKED = {
    0x0802: "packed16",
    0x1801: "packed8avx2",
    0x2801: "packed8avx512",
    0x18001: "intgemm8ssse3",
    0x11001: "intgemm8avx2",
    0x12001: "intgemm8avx512",
    0x13001: "intgemm8avx512vnni",
    0x14002: "intgemm16sse2",
    0x11002: "intgemm16avx2",
    0x12002: "intgemm16avx512",
}
"""Names of types whose order of numbers is that of one kind of processor."""
EMBEDDING = "Wemb"
"""Part of the names of embeddings, which are not transposed."""
SCALE = np.dtype("<f4")
MIN_SCALE = 1e-30
"""Scales above it have a finite inverse; those of models are far above it."""
MAX_ARRAYS, MAX_NAME_BYTES, MAX_AXES = 100_000, 1_000, 8
"""Limits of a file; those of Marian's models are far smaller."""


def read_binary(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of a file by name; quantized ones become fp32.

    A quantized weight becomes the product of its number and the inverse of its scale,
    as in Marian's own embeddings. Memory stays below five times the file's size.

    Raises `CheckpointError` if the file is missing or damaged, `RequestError` if its
    arrays are packed for one kind of processor.
    """
    try:
        require_file(path)
        with access_errors(path), path.open("rb") as file:
            return _read(_BoundedFile(file), path)
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(
            f"{path}: the weights are missing or damaged ({reason(error)}); fetch the "
            "file again."
        ) from None


class _BoundedFile:
    """File of which no more is read than it has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def take(self, size: int) -> bytes:
        """Return the next bytes; `ValueError` if there are fewer."""
        if size > self._left:
            raise ValueError(
                f"it must have {size:,} more bytes, but has {self._left:,}"
            )
        self._left -= size
        content = self._file.read(size)
        if len(content) < size:
            raise ValueError("it became shorter while it was read")
        return content

    def take_number(self) -> int:
        """Return the next number of 64 bits."""
        return int.from_bytes(self.take(8), "little")


def _read(file: _BoundedFile, path: Path) -> dict[str, np.ndarray]:
    if file.take(len(MARIAN_BINARY)) != MARIAN_BINARY:
        raise ValueError("it does not begin as Marian's binary format does")
    if (number := file.take_number()) > MAX_ARRAYS:
        raise ValueError(f"it must have at most {MAX_ARRAYS:,} arrays")
    headers = np.frombuffer(file.take(number * HEADER.itemsize), HEADER)
    if (headers["name"] > MAX_NAME_BYTES).any() or (headers["axes"] > MAX_AXES).any():
        raise ValueError("the header of an array has an impossible length")
    names = [_name(file.take(int(length))) for length in headers["name"]]
    if len({*names}) < len(names):
        raise ValueError("an array stands in it twice")
    shapes = [
        tuple(np.frombuffer(file.take(4 * int(axes)), "<i4").tolist())
        for axes in headers["axes"]
    ]
    file.take(file.take_number())  # padding
    arrays: dict[str, np.ndarray] = {}
    for name, shape, header in zip(names, shapes, headers, strict=True):
        kind, length = int(header["type"]), int(header["content"])
        _require_known(kind, name, path)
        if not shape or min(shape) < 1:
            raise ValueError(f"the shape of {shown(name)} is {shape}")
        arrays[name] = _array(name, shape, kind, file.take(length))
    return arrays


def _name(stored: bytes) -> str:
    if not stored.endswith(b"\0"):
        raise ValueError("a name has no end")
    return stored[:-1].decode("utf-8")


def _require_known(kind: int, name: str, path: Path) -> None:
    """Raise `RequestError` for a type that cannot be read."""
    if kind in PLAIN or kind in QUANTIZED:
        return
    what = f"of the unknown type {kind:#x}"
    if kind in PACKED:
        what = f"packed for one kind of processor ({PACKED[kind]})"
    raise RequestError(
        f"{path}: {shown(name)} must be numbers in fp32, fp16 or the type intgemm8, "
        f"but is {what}; import the model.npz that the file was made of."
    )


def _array(name: str, shape: tuple[int, ...], kind: int, content: bytes) -> np.ndarray:
    """Return an array from its content, which may be longer."""
    dtype = PLAIN.get(kind) or QUANTIZED[kind]
    size = math.prod(shape)
    needed = size * dtype.itemsize + (SCALE.itemsize if kind in QUANTIZED else 0)
    if needed > len(content):
        raise ValueError(
            f"{shown(name)} must have {needed:,} bytes by its shape {shape}, but has "
            f"{len(content):,}"
        )
    numbers = np.frombuffer(content, dtype, size)
    if kind in PLAIN:
        return numbers.reshape(shape).copy()  # PyTorch needs memory to write to
    [scale] = np.frombuffer(content, SCALE, 1, offset=size * dtype.itemsize)
    if not MIN_SCALE < scale < math.inf:
        raise ValueError(f"the scale of {shown(name)} is {scale}")
    values = numbers * (np.float32(1) / scale)
    if EMBEDDING in name:
        return values.reshape(shape)
    return values.reshape(shape[-1], -1).T.reshape(shape)
