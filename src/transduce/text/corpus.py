"""Parallel corpora: read line-aligned text files (section 5.1), whole or in windows.

A line ends at LF or CRLF and nowhere else, so that line counts agree with `wc -l`:
U+2028, U+0085, form feed and a lone CR are characters of the line. Files are UTF-8,
with or without a byte order mark, plain or compressed by gzip, xz, bzip2 or zstd; their
first bytes tell which, whatever their names.
"""

import bz2
import gzip
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BufferedReader, RawIOBase
from itertools import islice, zip_longest
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any, BinaryIO, Protocol, TypeVar, cast, runtime_checkable

from transduce.errors import DataError, RequestError, shortened

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = b"\xff\xfe", b"\xfe\xff"
"""Beginnings of files in UTF-16, the first also of UTF-32; never of UTF-8."""
ESCAPE = b"\x1b"
ISO_2022 = re.compile(rb"\x1b\$(?:[@AB]|[(-/][@-~])")
"""Pattern of the bytes by which text in ISO-2022-JP, -KR or -CN begins an alphabet of
two bytes a character. These are ASCII, so they would count as UTF-8."""
STANDARD_INPUT = Path("-")
"""File name that stands for standard input."""
MAX_LINE_BYTES = 1_000_000
"""Maximum length of a line in bytes; a longer one shows that the file is not text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePair:
    """Source sentence with its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a file without its line end; `number` counts from 1."""

    path: Path
    number: int
    content: bytes
    """Bytes of the line. A line above `MAX_LINE_BYTES` is cut, but stays above it."""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number}"

    def text(self) -> str:
        """Decode the line; `DataError` if it is too long, not UTF-8, or holds a NUL
        byte or a part in ISO-2022."""
        if len(self.content) > MAX_LINE_BYTES:
            raise DataError(
                f"{self.place}: a line must be at most {MAX_LINE_BYTES:,} bytes long, "
                "but this one is longer; split it into sentences, or drop it: "
                "`transduce clean` drops such pairs."
            )
        return self.text_of_any_length()

    def text_of_any_length(self) -> str:
        """Decode the line; `DataError` as by `text`, but not for its length."""
        if self.number == 1 and self.content.startswith(UTF_16_MARKS):
            raise DataError(
                f"{self.place}: a line must be valid UTF-8, but this file begins like "
                "UTF-16, the Unicode text of Windows; convert it to UTF-8."
            )
        if b"\0" in self.content:
            raise DataError(
                f"{self.place}: a line must be text, but this one holds a NUL byte; "
                "remove it or convert the file to UTF-8."
            )
        if is_iso_2022(self.content):
            raise DataError(
                f"{self.place}: a line must be valid UTF-8, but this one is in "
                "ISO-2022, such as ISO-2022-JP; convert the file to UTF-8."
            )
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.place}: a line must be valid UTF-8, but byte "
                f"{error.start + 1} of this one is 0x{self.content[error.start]:02x}; "
                "convert the file to UTF-8."
            ) from None


def is_iso_2022(content: bytes) -> bool:
    """Whether bytes are text in ISO-2022-JP, ISO-2022-KR or ISO-2022-CN."""
    return ESCAPE in content and ISO_2022.search(content) is not None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the raw lines of a plain or compressed file; `-` is standard input."""
    with _opened(path) as stream:
        yield from stream_lines(stream.readline, Path(name_of(path)))


def read_document(path: Path) -> str:
    """Read a plain or compressed file as one text, with its line ends.

    Raises `DataError` for a line that is no text, as `Line.text` does, but not for its
    length: a whole page of HTML may be one line.
    """
    with _opened(path) as stream:
        content = stream.read().removeprefix(BYTE_ORDER_MARK)
    lines = enumerate(content.split(b"\n"), start=1)
    named = Path(name_of(path))
    return "\n".join(
        Line(path=named, number=number, content=line).text_of_any_length()
        for number, line in lines
    )


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain or compressed file; `DataError` if it cannot be read."""
    is_standard = path == STANDARD_INPUT
    file = standard_input() if is_standard else None
    path = Path(name_of(path))
    compression = None
    try:
        # Open it once: a pipe can be read only once.
        with file or path.open("rb") as file:
            beginning, whole = _beginning_of(file)
            compression = compression_of(beginning, path)
            yield whole if compression is None else compression.reader(whole)
    except DAMAGE:
        kind = "" if compression is None else f"{compression.name} "
        raise DataError(
            f"{path}: the {kind}file is damaged or cut short; fetch it again."
        ) from None
    except OSError as error:
        what = "" if is_standard else "the file "
        raise DataError(f"{path}: {what}cannot be read ({error.strerror}).") from None


def _beginning_of(file: BufferedReader) -> tuple[bytes, BufferedReader]:
    """Return the first bytes of a file, and the file as if they were not read.

    A pipe may have fewer bytes at first than tell a format: the others are awaited, up
    to the end of a line.
    """
    beginning = b""
    rest: BufferedReader | None = file
    while rest and len(beginning) < MAGIC_BYTES and b"\n" not in beginning:
        more = rest.read1(READ_BYTES)
        beginning += more
        rest = rest if more else None
    return beginning, BufferedReader(_Rejoined(beginning, rest), READ_BYTES)


class _Rejoined(RawIOBase):
    """Bytes that were read from a file, and the rest of the file, if there is more.

    The end of a terminal is not read twice, since it would have to be typed again.
    """

    def __init__(self, beginning: bytes, rest: BufferedReader | None) -> None:
        self._beginning = beginning
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read bytes into a buffer; return their number, 0 at the end."""
        view = memoryview(buffer)
        content = self._beginning[: len(view)]
        self._beginning = self._beginning[len(view) :]
        if not content and self._rest is not None:
            content = self._rest.read1(len(view))
        view[: len(content)] = content
        return len(content)


def name_of(path: Path) -> str:
    """Return a file's name in messages: "standard input" for `-`."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def standard_input(option: str = "") -> BufferedReader:
    """Return standard input as bytes; `DataError` suggests `option` if it is closed."""
    if sys.stdin is None:  # Python's value for a closed stream
        instead = f": {option}" if option else "."
        raise DataError(
            f"Standard input must be open, but is closed; name a file{instead}"
        )
    # Not `sys.stdin` itself: Python closes that at its end, and cannot while a thread
    # that reads ahead still waits for a line of it.
    return open(sys.stdin.fileno(), "rb", closefd=False)


def read_text(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of several files in order as text."""
    for path in paths:
        for line in read_lines(path):
            yield line.text()


def require_characters(text: str) -> None:
    """Raise `RequestError` if a text has half of a surrogate pair, as Python's can.

    Text of files has none: `Line.text` decodes UTF-8.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"Text must be valid Unicode, but character {error.start + 1:,} of "
            f"{shortened(text)} is {text[error.start]!r}, half of a surrogate pair; "
            "remove it, or decode the text by its own encoding."
        ) from None


def require_text(path: Path, lines: Iterable[str]) -> None:
    """Raise `DataError` if all lines of a file are blank."""
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: at least one line must have text, but none has.")


def require_one_standard_input(paths: Sequence[Path]) -> None:
    """Raise `DataError` if several files to read are standard input."""
    if sum(map(_is_standard_input, paths)) > 1:
        raise DataError(
            "Standard input must stand for one file, as it is read once, but stands "
            "for several; name the others."
        )


def _is_standard_input(path: Path) -> bool:
    """Whether a path names standard input, as - and /dev/stdin do.

    A name other than - counts only for a pipe or a terminal: a file is read from its
    beginning under each name, and a device such as /dev/null ends for all readers.
    """
    if path == STANDARD_INPUT:
        return True
    if sys.stdin is None:
        return False
    try:
        given, standard = path.stat(), os.fstat(sys.stdin.fileno())
    except OSError:
        return False
    is_stream = stat.S_ISFIFO(given.st_mode) or sys.stdin.isatty()
    return is_stream and os.path.samestat(given, standard)


def aligned_lines(
    source: Sequence[Path],
    target: Sequence[Path],
    names: tuple[str, str] = ("source", "target"),
) -> Iterator[tuple[Line, Line]]:
    """Yield the lines of both sides in step; `DataError` where one side ends first.

    Files are paired in order, so that a wrong number of lines is reported for its own
    file, and does not shift the files after it. Errors call the sides `names`.
    """
    sides = " and ".join(names)
    if len(source) != len(target):
        raise DataError(
            f"{sides.capitalize()} must have equally many files, but have "
            f"{len(source)} and {len(target)}."
        )
    require_one_standard_input([*source, *target])
    for source_path, target_path in zip(source, target, strict=True):
        pairs = zip_longest(read_lines(source_path), read_lines(target_path))
        for number, (source_line, target_line) in enumerate(pairs, start=1):
            if source_line is None:
                raise _unequal(sides, source_path, number - 1, target_path, pairs)
            if target_line is None:
                raise _unequal(sides, target_path, number - 1, source_path, pairs)
            yield source_line, target_line


def read_pairs(
    source: Sequence[Path],
    target: Sequence[Path],
    names: tuple[str, str] = ("source", "target"),
) -> Iterator[SentencePair]:
    """Yield the sentence pairs of line-aligned files; a side may have several files."""
    for source_line, target_line in aligned_lines(source, target, names):
        yield SentencePair(source=source_line.text(), target=target_line.text())


def line_in_file(content: bytes, *, is_first: bool) -> bytes:
    """Return a line with its end, as a file has it: `read_lines` then yields `content`.

    A line that ends in CR gets CRLF, since its CR and LF would be a line end, and a
    first line that begins with a byte order mark gets another one.
    """
    mark = BYTE_ORDER_MARK if is_first and content.startswith(BYTE_ORDER_MARK) else b""
    return mark + content + (b"\r\n" if content.endswith(b"\r") else b"\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, which `read_lines` then reads unchanged."""
    with path.open("wb") as file:
        for number, line in enumerate(lines):
            file.write(line_in_file(line.encode(), is_first=number == 0))


def stream_lines(readline: Callable[[int], bytes], path: Path) -> Iterator[Line]:
    """Yield the lines of a stream; `readline` takes a maximum of bytes."""
    limit = MAX_LINE_BYTES + len(BYTE_ORDER_MARK + b"\r\n")
    read = partial(readline, limit)
    for number, part in enumerate(iter(read, b""), start=1):
        content = part.removeprefix(BYTE_ORDER_MARK) if number == 1 else part
        yield Line(path=path, number=number, content=_without_end(content))
        while len(part) == limit and not part.endswith(b"\n"):
            part = read()  # the rest of a line that is too long


def _without_end(content: bytes) -> bytes:
    if content.endswith(b"\r\n"):
        return content[:-2]
    return content.removesuffix(b"\n")


def _unequal(
    sides: str, shorter: Path, num_lines: int, longer: Path, rest: Iterator[object]
) -> DataError:
    total = num_lines + 1 + sum(1 for _ in rest)
    return DataError(
        f"{shorter}:{num_lines + 1}: {sides} must have equally many lines, but "
        f"{shorter} has {num_lines:,} and {longer} has {total:,}."
    )


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


class _CompressedStreams(RawIOBase):
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
    return BufferedReader(_CompressedStreams(file, new, error), READ_BYTES)


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


Item = TypeVar("Item")

WINDOW_LINES = 2_048
"""Lines that are read ahead and used together."""
PAUSE_S = 0.02
"""Seconds without a new line after which an incomplete window is used."""


@runtime_checkable
class Windows(Protocol):
    """Function that cuts a stream into non-empty windows."""

    def __call__(self, lines: Iterable[Item], /) -> Iterator[list[Item]]: ...


def full_windows(
    lines: Iterable[Item], size: int = WINDOW_LINES
) -> Iterator[list[Item]]:
    """Cut a stream into windows of `size` lines, however long it takes to read one.

    Only the last window may be shorter.
    """
    stream = iter(lines)
    while window := list(islice(stream, size)):
        yield window


def arriving_windows(
    lines: Iterable[Item], size: int = WINDOW_LINES, pause_s: float = PAUSE_S
) -> Iterator[list[Item]]:
    """Cut a stream that is still being written into windows of the lines available.

    A window ends after `size` lines, or after `pause_s` seconds without a new one. A
    separate thread reads up to `size` lines ahead.
    """
    arrived: Queue[Item | _End] = Queue(size)
    Thread(target=_read_into, args=(lines, arrived), daemon=True).start()
    while True:
        window, end = _next_window(arrived, size, pause_s)
        if end is not None and end.error is not None:
            raise end.error
        if window:
            yield window
        if end is not None:
            return


@dataclass(frozen=True, slots=True)
class _End:
    """End of a stream, and the exception that ended it, if any."""

    error: Exception | None


def _read_into(lines: Iterable[Item], arrived: Queue[Item | _End]) -> None:
    """Put the lines of a stream into a queue, and then its end."""
    try:
        for line in lines:
            arrived.put(line)
    except Exception as error:  # raised again in the thread that waits for lines
        arrived.put(_End(error))
    else:
        arrived.put(_End(None))


def _next_window(
    arrived: Queue[Item | _End], size: int, pause_s: float
) -> tuple[list[Item], _End | None]:
    """Return the lines available, after waiting for one line or the end."""
    window: list[Item] = []
    with suppress(Empty):
        while len(window) < size:
            line = arrived.get(timeout=pause_s if window else None)
            if isinstance(line, _End):
                return window, line
            window.append(line)
    return window, None
