"""Lines out of archives, streamed: nothing is unpacked on disk. Knows no network."""

import gzip
import html
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from transduce.errors import DataError
from transduce.text.corpus import BYTE_ORDER_MARK, Line

SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[\da-f]+);", re.IGNORECASE)
"""With its semicolon only: in `?a=1&lt=2` of an address there is none."""
WHITE_SPACE = re.compile(r"[ \t\r\n]+")


def lines_of(archive: Path, member: str | None = None) -> Iterator[Line]:
    """The lines of a gzip file, or of a member of a tar; `DataError` if it is damaged.

    A member is gzip or SGML if its name ends so; a segment of SGML is a line.
    """
    place = archive / member if member else archive
    try:
        with _opened(archive, member) as file:
            yield from _numbered(place, _contents(file, place))
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(
            f"{place}: the archive is damaged; delete it and run the command again."
        ) from None
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({error.strerror}).") from None


@contextmanager
def _opened(archive: Path, member: str | None) -> Iterator[IO[bytes]]:
    if member is None:
        with gzip.open(archive) as file:
            yield cast(IO[bytes], file)
    elif archive.suffix == ".tar":
        with tarfile.open(archive, "r|") as tar:
            yield _find(tar, member, archive)
    else:
        with tarfile.open(archive, "r|gz") as tar:
            yield _find(tar, member, archive)


def _find(tar: tarfile.TarFile, member: str, archive: Path) -> IO[bytes]:
    for entry in tar:
        if entry.isreg() and entry.name.removeprefix("./") == member:
            file = tar.extractfile(entry)
            assert file is not None
            return file
    raise DataError(
        f"{archive}: must hold {member}, but does not; delete it and run the command "
        "again."
    )


def _contents(file: IO[bytes], place: Path) -> Iterable[bytes]:
    if place.suffix == ".sgm":
        return _segments(file.read())
    if place.suffix == ".gz" and not isinstance(file, gzip.GzipFile):
        return gzip.GzipFile(fileobj=file)
    return file


def _segments(sgml: bytes) -> Iterator[bytes]:
    # What is not UTF-8 comes out as it went in, and is told by its line.
    text = sgml.decode("utf-8", "surrogateescape")
    for segment in SEGMENT.findall(text):
        decoded = ENTITY.sub(lambda entity: html.unescape(entity[0]), segment)
        line = WHITE_SPACE.sub(" ", decoded).strip(" ")
        yield line.encode("utf-8", "surrogateescape")


def _numbered(place: Path, contents: Iterable[bytes]) -> Iterator[Line]:
    for number, content in enumerate(contents, start=1):
        if number == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        yield Line(path=place, number=number, content=content)
