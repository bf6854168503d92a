"""Compressed text, recognised by its first bytes whatever its name."""

import bz2
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from transduce.errors import DataError

ENDINGS = frozenset({".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd"})
"""Endings of the names of compressed files."""
MAGIC_BYTES = 10
"""Length of the longest beginning by which a format is recognised."""
READ_BYTES = 2**16
"""Number of compressed bytes that are read at once."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of reading a file that is damaged or cut short."""
ARCHIVES = {
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "compress": re.compile(rb"\x1f\x9d"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
    "lzip": re.compile(rb"LZIP[\0\x01]"),
    "rar": re.compile(rb"Rar!\x1a\x07"),
    "zip": re.compile(rb"PK\x03\x04"),
}
"""Beginnings of files in formats that are not read."""


class Decompressor(Protocol):
    """Decompressor of one stream, as those of `bz2`, `lzma` and `compression.zstd`."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether the next call needs more of the stream."""

    @property
    def unused_data(self) -> bytes:
        """Bytes given that follow the stream."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most `max_length` bytes more of the content."""


class _Streams(RawIOBase):
    """Content of a file of concatenated streams of one format.

    Whatever follows a stream must be another one or zeros: `BZ2File` and `LZMAFile`
    silently leave out anything else, such as a damaged second stream.
    """

    def __init__(
        self,
        file: BufferedReader,
        new: Callable[[], Decompressor],
        error: type[Exception],
    ) -> None:
        self._file = file
        self._new = new
        self._error = error
        self._current = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read content into a buffer; raise `EOFError` for damage."""
        view = memoryview(buffer)
        content = b""
        while not content:
            data = self._next_data()
            if data is None:
                return 0
            try:
                content = self._current.decompress(data, len(view))
            except self._error as error:
                raise EOFError(str(error)) from None
        view[: len(content)] = content
        return len(content)

    def _next_data(self) -> bytes | None:
        """Return what the decompressor needs, perhaps nothing; None at the end."""
        if not self._current.eof:
            if not self._current.needs_input:
                return b""
            if data := self._file.read1(READ_BYTES):
                return data
            raise EOFError("the stream has no end")
        data = self._current.unused_data or self._file.read1(READ_BYTES)
        while data and not (data := data.lstrip(b"\0")):  # padding
            data = self._file.read1(READ_BYTES)
        if not data:
            return None
        self._current = self._new()
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Format of compression."""

    name: str
    magic: re.Pattern[bytes]
    """Pattern of the first bytes of a file."""
    reader: Callable[[BufferedReader], BinaryIO]
    """Function that returns the content of a file; reading it raises `DAMAGE`."""
    writer: Callable[[BinaryIO], BinaryIO]
    """Function that returns a file whose content is compressed into another."""


def _gzip_writer(file: BinaryIO) -> BinaryIO:
    # Without name and time, so that the same text gives the same file.
    zipped = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
    return cast(BinaryIO, zipped)


def _reader(
    file: BufferedReader, new: Callable[[], Decompressor], error: type[Exception]
) -> BinaryIO:
    return BufferedReader(_Streams(file, new, error), READ_BYTES)


def _zstd() -> Any:
    """Return Python's module for zstd; `ImportError` before Python 3.14."""
    return import_module("compression.zstd")


def _zstd_reader(file: BufferedReader) -> BinaryIO:
    module = _zstd()
    return _reader(file, module.ZstdDecompressor, module.ZstdError)


COMPRESSIONS = (
    Compression(
        name="gzip",
        magic=re.compile(rb"\x1f\x8b"),
        reader=lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
        writer=_gzip_writer,
    ),
    Compression(
        name="xz",
        magic=re.compile(rb"\xfd7zXZ\0"),
        reader=lambda file: _reader(
            file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), lzma.LZMAError
        ),
        writer=lambda file: cast(BinaryIO, lzma.LZMAFile(file, "wb")),  # noqa: SIM115 # the caller closes it
    ),
    Compression(
        name="bzip2",
        magic=re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
        reader=lambda file: _reader(file, bz2.BZ2Decompressor, OSError),
        writer=lambda file: cast(BinaryIO, bz2.BZ2File(file, "wb")),
    ),
    Compression(
        name="zstd",
        # Some programs begin with a frame to be skipped, as pzstd does.
        magic=re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        reader=_zstd_reader,
        writer=lambda file: cast(BinaryIO, _zstd().ZstdFile(file, "wb")),
    ),
)


def compression_of(beginning: bytes, path: Path) -> Compression | None:
    """Return the compression of a file that begins with these bytes; None if plain.

    Raises `DataError` for a format that cannot be read.
    """
    for name, magic in ARCHIVES.items():
        if magic.match(beginning):
            raise DataError(
                f"{path}: text must be plain or compressed by gzip, xz, bzip2 or zstd, "
                f"but this is {name}; unpack it first."
            )
    found = next((each for each in COMPRESSIONS if each.magic.match(beginning)), None)
    if found is not None and found.name == "zstd":
        _require_zstd(path)
    return found


def _require_zstd(path: Path) -> None:
    try:
        _zstd()
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise DataError(
            f"{path}: text compressed by zstd needs Python 3.14 or newer, but this is "
            f"{version}; decompress it first."
        ) from None
