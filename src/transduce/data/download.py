"""Downloads over HTTP, resumed and checked, and streaming of their archives."""

import gzip
import hashlib
import html
import re
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from transduce.errors import ConfigError, DataError
from transduce.text.corpus import BYTE_ORDER_MARK, Line

PAUSES_S = (1.0, 5.0, 25.0)
"""Pauses in seconds before further attempts; they restart after any progress."""
TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 18
MAX_BYTES = 1 << 28
"""Maximum size in bytes of a file of unknown size, far above the largest such file."""
MAX_DIGITS = 18
"""Maximum number of digits of an announced size."""
SIZE = rf"\d{{1,{MAX_DIGITS}}}"
MAY_PASS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
SERVER_FAULT = 500
"""HTTP status from which on an error may be temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """File on a server, with its expected size and checksum."""

    url: str
    size_bytes: int | None = None
    """Size in bytes; None if unknown, then the announced size counts."""
    checksum: str | None = None
    """Algorithm and hexadecimal digits, such as `sha256:…`; None if unknown."""

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def max_bytes(self) -> int:
        """Number of bytes after which a download stops."""
        return MAX_BYTES if self.size_bytes is None else self.size_bytes

    def on(self, mirror: str) -> "RemoteFile":
        """Return the same file on a mirror; `ConfigError` if that is not an address."""
        if not _is_address(mirror):
            raise ConfigError(
                "The mirror must be an address such as https://example.org/mirror, "
                f"but is {mirror!r}."
            )
        return replace(self, url=mirror.rstrip("/") + urlsplit(self.url).path)


class DownloadObserver(Protocol):
    """Observer of the progress of a download."""

    def received(self, file: RemoteFile, num_bytes: int, total: int | None) -> None:
        """Report the bytes present, including those of earlier attempts."""

    def waiting(self, file: RemoteFile, reason: str, seconds: float) -> None: ...


def fetch(file: RemoteFile, path: Path, observer: DownloadObserver) -> None:
    """Download a file to `path`, unless it exists; `DataError` on failure.

    Partial content is kept beside it as `.part`, and the next call requests only the
    rest. `path` appears once size and checksum are right.
    """
    if path.exists():
        if fault := _fault(file, path):
            raise DataError(f"{path}: {fault}; delete it and run the command again.")
        return
    part = path.with_name(f"{path.name}.part")
    _complete(file, part, observer)
    if fault := _fault(file, part):
        part.unlink()
        raise DataError(
            f"{file.url}: {fault}; what came is removed, so run the command again, or "
            "name another server by --mirror."
        )
    part.replace(path)


class _TransferError(Exception):
    """Error of network or server that may be temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """Range that a server announces to send."""

    start: int
    """Position of its first byte in the file."""
    total: int | None
    """Size of the whole file in bytes; None if unknown."""


def _complete(file: RemoteFile, part: Path, observer: DownloadObserver) -> None:
    pauses = iter(PAUSES_S)
    while (before := _size(part)) != file.size_bytes:
        try:
            _receive(file, part, observer)
            return
        except _TransferError as error:
            if _size(part) > before:
                pauses = iter(PAUSES_S)
            pause = next(pauses, None)
            if pause is None:
                raise DataError(
                    f"{file.url}: cannot be fetched ({error}); run the command again, "
                    "which keeps what has come, or name another server by --mirror."
                ) from None
            observer.waiting(file, str(error), pause)
            time.sleep(pause)


def _receive(file: RemoteFile, part: Path, observer: DownloadObserver) -> None:
    """Append the rest, or start again if the server does not send ranges."""
    with _ask(file.url, part) as response:
        offer = _offer(file, response, _size(part))
        size = offer.start
        if (offer.total or 0) > file.max_bytes:
            raise _too_much(file, part)
        with _opened_to_extend(part) as stream:
            stream.truncate(offer.start)
            for chunk in _chunks(response):
                stream.write(chunk)
                size += len(chunk)
                observer.received(file, size, offer.total)
                if size > file.max_bytes:
                    break
    if file.size_bytes is None and size > file.max_bytes:
        raise _too_much(file, part)
    if offer.total is not None and size < offer.total:
        raise _TransferError(
            f"the connection broke off after {size:,} of {offer.total:,} bytes"
        )


def _ask(url: str, part: Path) -> HTTPResponse:
    request = Request(url, headers={"User-Agent": "transduce"})
    if start := _size(part):
        request.add_header("Range", f"bytes={start}-")
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT_S)
    except HTTPError as error:
        with error:
            answer = f"{error.code} {error.reason}"
        if start and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing is left to send, so the partial content belongs to another file.
            part.unlink()
        elif error.code not in MAY_PASS and error.code < SERVER_FAULT:
            raise DataError(
                f"{url}: the server must send the file, but answers {answer}; name "
                "another server by --mirror."
            ) from None
        raise _TransferError(f"the server answered {answer}") from None
    except (OSError, HTTPException) as error:
        raise _TransferError(_reason(error)) from None
    return response


def _offer(file: RemoteFile, response: HTTPResponse, asked_from: int) -> _Offer:
    if response.headers.get_content_type() == "text/html":
        raise DataError(
            f"{file.url}: the server must send the file, but sends a web page; is "
            "there a log-in page between here and the network?"
        )
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        offer = _partial_offer(response, asked_from)
    else:
        length = response.headers.get("Content-Length", "")
        offer = _Offer(start=0, total=_size_in(length))
    if file.size_bytes not in (None, offer.total) and offer.total is not None:
        raise DataError(
            f"{file.url}: must be {file.size_bytes:,} bytes long, but the server "
            f"announces {offer.total:,}; name another server by --mirror."
        )
    return replace(offer, total=offer.total or file.size_bytes)


def _size_in(header: str) -> int | None:
    """Size that a header announces; None if it is not a number of bytes."""
    is_size = header.isdecimal() and len(header) <= MAX_DIGITS
    return int(header) if is_size else None


def _too_much(file: RemoteFile, part: Path) -> DataError:
    part.unlink(missing_ok=True)
    return DataError(
        f"{file.url}: must be at most {file.max_bytes:,} bytes long, but the server "
        "sends more; the partial download is removed; name another server by --mirror."
    )


def _partial_offer(response: HTTPResponse, asked_from: int) -> _Offer:
    place = response.headers.get("Content-Range", "")
    match = re.fullmatch(rf"bytes ({SIZE})-{SIZE}/({SIZE})", place)
    if match is None or int(match[1]) > asked_from:
        raise _TransferError("the server sent other bytes than requested")
    return _Offer(start=int(match[1]), total=int(match[2]))


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the content in chunks as they arrive."""
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, HTTPException) as error:
            raise _TransferError(_reason(error)) from None
        if not chunk:
            return
        yield chunk


@contextmanager
def _opened_to_extend(path: Path) -> Iterator[BinaryIO]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            yield file
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); correct that and "
            "run the command again, which continues from there."
        ) from None


def _fault(file: RemoteFile, path: Path) -> str | None:
    """Return what is wrong with a downloaded file, or None."""
    size = _size(path)
    if file.size_bytes not in (None, size):
        return f"must be {file.size_bytes:,} bytes long, but is {size:,}"
    if file.checksum is None:
        return None
    algorithm, _, expected = file.checksum.partition(":")
    with path.open("rb") as stream:
        digest = partial(hashlib.new, algorithm, usedforsecurity=False)
        found = hashlib.file_digest(stream, digest).hexdigest()
    if found == expected:
        return None
    return f"must have the {algorithm} sum {expected}, but has {found}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    strerror = cause.strerror if isinstance(cause, OSError) else None
    return strerror or str(cause) or type(cause).__name__


def _is_address(mirror: str) -> bool:
    try:
        parts = urlsplit(mirror)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets or the port
        return False
    is_http = parts.scheme in ("http", "https")
    return is_http and has_host and not re.search(r"\s", mirror)


SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[\da-f]+);", re.IGNORECASE)
"""Entities with their semicolon, so that `?a=1&lt=2` in an address is none."""
WHITE_SPACE = re.compile(r"[ \t\r\n]+")


def lines_of(archive: Path, member: str | None = None) -> Iterator[Line]:
    """Yield the lines of a gzip file, or of a tar's member; `DataError` if damaged.

    The member's suffix tells gzip and SGML; a segment of SGML is a line.
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
    # Bytes that are not UTF-8 pass unchanged; the caller reports their line.
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
