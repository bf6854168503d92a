"""Named corpora (section 5.1): their download, and the files made of their archives.

Downloads over HTTP are resumed and checked, and archives are read as streams.

Sizes and checksums of archives are those that other projects publish for the same
files: TensorFlow Datasets (training parts of WMT), sacreBLEU (its test sets), torchtext
(Multi30k). Where none was found, the size that the server announces is checked instead.

Archives are assembled into line-aligned files, one per language. The folder holds
files such as `train.en`, and `corpus.json`, which lists them; `downloads/` keeps the
archives. The files appear once all of them are complete.
"""

import gzip
import hashlib
import html
import json
import re
import shutil
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal, Protocol, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from transduce.errors import ConfigError, DataError, unknown_name
from transduce.files import folder_in_use, parse_json, path_lock, read_bounded, sync
from transduce.text.corpus import Line, stream_lines

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
"""Lowest HTTP status of the server's own errors, which may be temporary."""


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
        if fault := _file_fault(file, path):
            raise DataError(f"{path}: {fault}; delete it and run the command again.")
        return
    part = path.with_name(f"{path.name}.part")
    _complete(file, part, observer)
    if fault := _file_fault(file, part):
        part.unlink()
        raise DataError(
            f"{file.url}: {fault}; what came is removed, so run the command again, or "
            "name another server by `transduce data --mirror`."
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
                    "which keeps what has come, or name another server by `transduce "
                    "data --mirror`."
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
                "another server by `transduce data --mirror`."
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
    is_known = file.size_bytes is not None and offer.total is not None
    if is_known and offer.total != file.size_bytes:
        raise DataError(
            f"{file.url}: must be {file.size_bytes:,} bytes long, but the server "
            f"announces {offer.total:,}; name another server by `transduce data "
            "--mirror`."
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
        "sends more; the partial download is removed; name another server by "
        "`transduce data --mirror`."
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


def _file_fault(file: RemoteFile, path: Path) -> str | None:
    """Return the fault of a downloaded file; None if it has none."""
    size = _size(path)
    if file.size_bytes is not None and size != file.size_bytes:
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


def lines_of(archive: Path, member: str | None) -> Iterator[Line]:
    """Yield the lines of a gzip file, or of a tar's member; `DataError` if damaged.

    The member's suffix tells gzip and SGML; a segment of SGML is a line.
    """
    place = archive / member if member else archive
    try:
        with _opened(archive, member) as file:
            yield from stream_lines(_text_stream(file, place).readline, place)
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
    else:
        mode: Literal["r|", "r|gz"] = "r|" if archive.suffix == ".tar" else "r|gz"
        with tarfile.open(archive, mode) as tar:
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


def _text_stream(file: IO[bytes], place: Path) -> IO[bytes]:
    """Return text of an archive as lines: unpacked, and one for a segment of SGML."""
    if place.suffix == ".sgm":
        return BytesIO(b"".join(line + b"\n" for line in _segments(file.read())))
    if place.suffix == ".gz" and not isinstance(file, gzip.GzipFile):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return file


def _segments(sgml: bytes) -> Iterator[bytes]:
    # Bytes that are not UTF-8 pass unchanged; the caller reports their line.
    text = sgml.decode("utf-8", "surrogateescape")
    for segment in SEGMENT.findall(text):
        decoded = ENTITY.sub(lambda entity: html.unescape(entity[0]), segment)
        line = WHITE_SPACE.sub(" ", decoded).strip(" ")
        yield line.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Lines of one language: a gzip file, or a member of a tar."""

    file: RemoteFile
    member: str | None = None


Part = tuple[Text, ...]
"""Texts that are translations of each other, one per language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Parts that make up one file per language."""

    name: str
    parts: tuple[Part, ...]
    num_pairs: int | None = None
    """Number of pairs; None if not known exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCorpus:
    """Corpus that can be downloaded."""

    name: str
    languages: tuple[str, ...]
    """Languages: source, target, then others."""
    train: Split
    dev: Split
    tests: tuple[Split, ...]
    preset: str
    """Suggested preset."""
    terms: str
    """Terms of use."""

    @property
    def splits(self) -> tuple[Split, ...]:
        return (self.train, self.dev, *self.tests)

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Files to download, each once."""
        parts = (part for split in self.splits for part in split.parts)
        return tuple(dict.fromkeys(text.file for part in parts for text in part))


def named_corpus(name: str) -> NamedCorpus:
    """Return the corpus of that name; `ConfigError` suggests the nearest name."""
    if name not in NAMED_CORPORA:
        # Swapped languages are the likeliest mistake.
        raise ConfigError(unknown_name("corpus", name, NAMED_CORPORA, key=_in_order))
    return NAMED_CORPORA[name]


def _in_order(name: str) -> str:
    return "-".join(sorted(name.split("-")))


def _members(file: RemoteFile, *members: str) -> Part:
    return tuple(Text(file=file, member=member) for member in members)


EUROPARL = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    size_bytes=657_632_379,
    checksum="sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    size_bytes=918_311_367,
    checksum="sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
UNITED_NATIONS = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-un.tgz",
    size_bytes=2_365_634_246,
    checksum="sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
NEWS_COMMENTARY = RemoteFile(
    url="https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    size_bytes=80_418_416,
    checksum="sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
GIGA_FREN = RemoteFile(
    url="https://www.statmt.org/wmt10/training-giga-fren.tar",
    size_bytes=2_595_102_720,
    checksum="sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
NEWSTEST_2013 = RemoteFile(
    url="https://www.statmt.org/wmt13/test.tgz",
    checksum="md5:48eca5d02f637af44e85186847141f67",
)
NEWSTEST_2014 = RemoteFile(
    url="https://www.statmt.org/wmt14/test-full.tgz",
    checksum="md5:a8cd784e006feb32ac6f3d9ec7eb389a",
)
WMT14_TERMS = (
    "released for research; each part has terms of its own, see "
    "https://www.statmt.org/wmt14/translation-task.html"
)


def _wmt14(target: str, preset: str, *training: Part) -> NamedCorpus:
    """Return a corpus of WMT 2014 from English, with the parts of its training text."""
    return NamedCorpus(
        name=f"wmt14-en-{target}",
        languages=("en", target),
        train=Split(name="train", parts=training),
        dev=Split(
            name="newstest2013",
            parts=(
                _members(
                    NEWSTEST_2013,
                    "test/newstest2013-src.en.sgm",
                    f"test/newstest2013-src.{target}.sgm",
                ),
            ),
            num_pairs=3_000,
        ),
        tests=(
            Split(
                name="newstest2014",
                parts=(
                    _members(
                        NEWSTEST_2014,
                        f"test-full/newstest2014-{target}en-src.en.sgm",
                        f"test-full/newstest2014-{target}en-ref.{target}.sgm",
                    ),
                ),
                num_pairs=3_003,
            ),
        ),
        preset=preset,
        terms=WMT14_TERMS,
    )


def _multi30k(name: str, num_pairs: int, **md5: str) -> Split:
    """Return a split of Multi30k, with the checksum of each language's file."""
    folder = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    files = (
        RemoteFile(url=f"{folder}/{name}.{language}.gz", checksum=f"md5:{digest}")
        for language, digest in md5.items()
    )
    part = tuple(Text(file=file) for file in files)
    return Split(name=name, parts=(part,), num_pairs=num_pairs)


NAMED_CORPORA = {
    # About 4.5 million pairs.
    "wmt14-en-de": _wmt14(
        "de",
        "base",
        _members(
            EUROPARL, "training/europarl-v7.de-en.en", "training/europarl-v7.de-en.de"
        ),
        _members(COMMON_CRAWL, "commoncrawl.de-en.en", "commoncrawl.de-en.de"),
        _members(
            NEWS_COMMENTARY,
            "training/news-commentary-v9.de-en.en",
            "training/news-commentary-v9.de-en.de",
        ),
    ),
    # Unlike the paper: English-French has nearly 41 million pairs; the paper has 36
    # million and does not say which it omits. On by default.
    "wmt14-en-fr": _wmt14(
        "fr",
        "base-en-fr",
        _members(
            EUROPARL, "training/europarl-v7.fr-en.en", "training/europarl-v7.fr-en.fr"
        ),
        _members(COMMON_CRAWL, "commoncrawl.fr-en.en", "commoncrawl.fr-en.fr"),
        _members(UNITED_NATIONS, "un/undoc.2000.fr-en.en", "un/undoc.2000.fr-en.fr"),
        _members(
            NEWS_COMMENTARY,
            "training/news-commentary-v9.fr-en.en",
            "training/news-commentary-v9.fr-en.fr",
        ),
        _members(
            GIGA_FREN,
            "giga-fren.release2.fixed.en.gz",
            "giga-fren.release2.fixed.fr.gz",
        ),
    ),
    # Elliott et al., 2016 and 2017.
    "multi30k": NamedCorpus(
        name="multi30k",
        languages=("en", "de", "fr"),
        train=_multi30k(
            "train",
            num_pairs=29_000,
            en="0065d13af80720a55ca8153d126e6627",
            de="81ff90b99829c0cd4b1b587d394afd39",
            fr="6cb767741dcad3931f966fefbc05203f",
        ),
        dev=_multi30k(
            "val",
            num_pairs=1_014,
            en="2b69aa9253948ac9f67e94917272dd40",
            de="6e0e229eb049e3fc99a1ef02fb2d5f91",
            fr="93fc564584b7e5ba410c761ea5a1c682",
        ),
        tests=(
            _multi30k(
                "test_2016_flickr",
                num_pairs=1_000,
                en="ff2c0fcb4893a13bd73414306bc250ae",
                de="efd67d314d98489b716b145475101932",
                fr="08dc7cd4a662f31718412de95ca9bfe3",
            ),
            _multi30k(
                "test_2017_flickr",
                num_pairs=1_000,
                en="005396bac545d880abe6f00bbb7dbbb4",
                de="6a8d5c87f6ae19e3d35681aa6fd16571",
                fr="cb09af7d2b501f9112f2d6a59fa1360d",
            ),
            _multi30k(
                "test_2017_mscoco",
                num_pairs=461,
                en="a7b684e0edbef1d4a23660c8e8e743fd",
                de="e8cd6ec2bc8a11fc846fa48a46e3d0bb",
                fr="4995d10954a804d3cdfd907b9fd093e8",
            ),
        ),
        preset="multi30k",
        terms="for research and education, not for commerce, as Flickr30k",
    ),
}


CORPUS_RECORD, DOWNLOADS = "corpus.json", "downloads"
REPORT_LINES = 10_000
"""Lines between two calls of the observer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """Numbers of kept and dropped lines of a split."""

    num_pairs: int
    """Number of pairs written."""
    num_empty: int = 0
    """Number of pairs dropped because a side is empty."""
    num_no_text: int = 0
    """Number of pairs dropped because a side is not UTF-8, holds a NUL byte, or is too
    long for a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledCorpus:
    """Named corpus on disk."""

    corpus: NamedCorpus
    folder: Path
    counts: dict[str, SplitCounts]
    """Counts by name of the split."""
    is_new: bool
    """Whether it was assembled now; False if it existed already."""

    def path(self, split: Split, language: str) -> Path:
        return _path(self.folder, split, language)


class PreparationObserver(DownloadObserver, Protocol):
    """Observer of the progress of downloads and assembly."""

    def assembled(self, split: str, num_lines: int) -> None:
        """Report the number of lines of a split read so far."""


def assemble(
    corpus: NamedCorpus,
    folder: Path,
    observer: PreparationObserver,
    mirror: str | None = None,
) -> AssembledCorpus:
    """Download and assemble a corpus, unless the folder holds it already.

    Raises `ConfigError` if the folder holds something else or another process is
    assembling a corpus there, and `DataError` for other failures. Downloads are kept,
    and the next call continues from there.
    """
    existing = _existing_counts(corpus, folder)
    if existing is None:
        with _locked(folder):
            existing = _existing_counts(corpus, folder)
            if existing is None:
                downloads = folder / DOWNLOADS
                for file in corpus.files:
                    source = file.on(mirror) if mirror else file
                    fetch(source, downloads / file.name, observer)
                counts = _assemble(corpus, folder, observer)
                return AssembledCorpus(
                    corpus=corpus, folder=folder, counts=counts, is_new=True
                )
    return AssembledCorpus(corpus=corpus, folder=folder, counts=existing, is_new=False)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create the folder if necessary, and lock it; no empty folder is left behind."""
    refusal = ConfigError(
        f"{folder}: another command is preparing a corpus in this folder; wait for it "
        "to end, or choose another folder."
    )
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        with ExitStack() as stack:
            with _write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(path_lock(folder, refusal))
            yield
    finally:
        for each in missing:
            with suppress(OSError):  # it is in use
                each.rmdir()


def _existing_counts(
    corpus: NamedCorpus, folder: Path
) -> dict[str, SplitCounts] | None:
    """Read the counts of an assembled corpus; None if it is not yet assembled."""
    if not (folder / CORPUS_RECORD).exists():
        _refuse_other_contents(folder)
        return None
    try:
        record = parse_json(read_bounded(folder / CORPUS_RECORD))
        name = record["corpus"]
        counts = {
            split: SplitCounts(**entry) for split, entry in record["splits"].items()
        }
        if name == corpus.name:
            _require_counts(counts, corpus)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"{folder / CORPUS_RECORD}: the file is damaged; delete it and the texts "
            "beside it, and run the command again."
        ) from None
    if name != corpus.name:
        raise ConfigError(
            f"{folder}: the output folder must be new or hold {corpus.name}, but holds "
            f"{name}; choose another folder."
        )
    return counts if all(path.exists() for path in _paths(corpus, folder)) else None


def _require_counts(counts: dict[str, SplitCounts], corpus: NamedCorpus) -> None:
    """Raise `ValueError` unless there are numbers for each split."""
    numbers = [number for each in counts.values() for number in asdict(each).values()]
    has_splits = counts.keys() == {split.name for split in corpus.splits}
    if not has_splits or not all(type(number) is int for number in numbers):
        raise ValueError("there must be numbers of pairs for each split")


def _refuse_other_contents(folder: Path) -> None:
    if folder.is_dir():
        is_free = {path.name for path in folder.iterdir()} <= {DOWNLOADS}
    else:
        is_free = not folder.exists()
    if not is_free:
        raise folder_in_use(folder)


def _assemble(
    corpus: NamedCorpus, folder: Path, observer: PreparationObserver
) -> dict[str, SplitCounts]:
    new = folder / DOWNLOADS / "unfinished"
    shutil.rmtree(new, ignore_errors=True)
    try:
        with _write_errors(folder):
            new.mkdir(parents=True)
            counts = {
                split.name: _write_split(corpus, split, new, observer)
                for split in corpus.splits
            }
            _put_in_place(corpus, counts, new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return counts


def _put_in_place(
    corpus: NamedCorpus, counts: dict[str, SplitCounts], new: Path, folder: Path
) -> None:
    """Move all files into place; the record first, so that a crash can be repaired."""
    splits = {name: asdict(each) for name, each in counts.items()}
    record = json.dumps({"corpus": corpus.name, "splits": splits}, indent=2)
    (new / CORPUS_RECORD).write_text(record + "\n", encoding="utf-8")
    sync(new)
    for path in (new / CORPUS_RECORD, *_paths(corpus, new)):
        path.replace(folder / path.name)


def _write_split(
    corpus: NamedCorpus, split: Split, new: Path, observer: PreparationObserver
) -> SplitCounts:
    downloads, is_training = new.parent, split == corpus.train
    tally: Counter[str] = Counter()
    with ExitStack() as stack:
        paths = [_path(new, split, language) for language in corpus.languages]
        files = [stack.enter_context(path.open("wb")) for path in paths]
        rows = chain.from_iterable(_rows(part, downloads) for part in split.parts)
        for number, lines in enumerate(rows, start=1):
            fault = _fault(lines) if is_training else None
            tally[fault or "none"] += 1
            if fault is None:
                for file, line in zip(files, lines, strict=True):
                    file.write(line.text().encode("utf-8") + b"\n")
            if number % REPORT_LINES == 0:
                observer.assembled(split.name, number)
    counts = SplitCounts(
        num_pairs=tally["none"], num_empty=tally["empty"], num_no_text=tally["no text"]
    )
    if split.num_pairs is not None and counts.num_pairs != split.num_pairs:
        raise DataError(
            f"{downloads}: {split.name} must have {split.num_pairs:,} pairs, but has "
            f"{counts.num_pairs:,}; delete the archives and run the command again."
        )
    return counts


def _rows(part: Part, downloads: Path) -> Iterator[list[Line]]:
    texts = [lines_of(downloads / text.file.name, text.member) for text in part]
    for number, row in enumerate(zip_longest(*texts), start=1):
        lines = [line for line in row if line is not None]
        if len(lines) < len(row):
            ended = part[row.index(None)]
            raise DataError(
                f"{downloads / ended.file.name / (ended.member or '')}: must have as "
                f"many lines as {lines[0].path}, but has {number - 1:,}; delete the "
                "archive and run the command again."
            )
        yield lines


def _fault(lines: Sequence[Line]) -> str | None:
    """Return why training cannot use a pair, or None."""
    try:
        texts = [line.text() for line in lines]
    except DataError:
        return "no text"
    return None if all(text.strip() for text in texts) else "empty"


def _paths(corpus: NamedCorpus, folder: Path) -> list[Path]:
    return [
        _path(folder, split, language)
        for split in corpus.splits
        for language in corpus.languages
    ]


def _path(folder: Path, split: Split, language: str) -> Path:
    return folder / f"{split.name}.{language}"


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: the texts cannot be written ({error.strerror or error}); "
            "correct that and run the command again, which keeps the downloads."
        ) from None
