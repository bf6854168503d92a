"""A server of the tests' own, which breaks off, refuses and lies when told to."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from transduce.corpora import download
from transduce.corpora.download import RemoteFile
from transduce.corpora.named_corpora import NamedCorpus

PAUSES = (0.001, 0.002)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one answer."""

    status: int | None = None
    breaks_after: int | None = None
    """Bytes of the body."""
    announced: int | None = None
    """A wrong length."""
    content_type: str = "application/octet-stream"
    content_range: str | None = None
    raw: bytes | None = None
    """Sent instead of an answer."""


SOUND = Fault()


@dataclass
class FileServer:
    """Files by their path, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    """Of the answers to come, in order; those after them are sound."""
    knows_ranges: bool = True
    announces_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of each request."""

    def offer(self, name: str, content: bytes) -> RemoteFile:
        self.files[f"/{name}"] = content
        return RemoteFile(url=f"{self.address}/{name}")

    def answer_once(self, **how: Any) -> None:
        """Spoil the next answer that is not spoilt yet."""
        self.faults.append(Fault(**how))

    @property
    def ranges(self) -> list[str | None]:
        return [range_ for _, range_ in self.asked]


def answer(server: FileServer, handler: BaseHTTPRequestHandler) -> None:
    server.asked.append((handler.path, handler.headers["Range"]))
    fault = server.faults.pop(0) if server.faults else SOUND
    if fault.raw is not None:
        handler.wfile.write(fault.raw)
        return
    content = server.files.get(handler.path)
    if fault.status or content is None:
        handler.send_error(fault.status or 404)
        return
    start = 0
    if server.knows_ranges and handler.headers["Range"]:
        start = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            handler.send_error(416)
            return
    body = content[start:]
    handler.send_response(206 if start else 200)
    place = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if start:
        handler.send_header("Content-Range", fault.content_range or place)
    if server.announces_length:
        length = len(body) if fault.announced is None else fault.announced
        handler.send_header("Content-Length", str(length))
    handler.send_header("Content-Type", fault.content_type)
    handler.end_headers()
    handler.wfile.write(body[: fault.breaks_after])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSES_S", PAUSES)
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            answer(files, self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        # A client that was interrupted is no fault of the server.
        http.handle_error = lambda *_: None
        http.daemon_threads = False
        files.address = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield files
        http.shutdown()
        thread.join()


@dataclass
class Record:
    """An observer that keeps what it is told."""

    received_bytes: list[tuple[int, int | None]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)

    def received(self, file: RemoteFile, num_bytes: int, total: int | None) -> None:
        self.received_bytes.append((num_bytes, total))

    def waiting(self, file: RemoteFile, reason: str, seconds: float) -> None:
        self.reasons.append(reason)

    def assembled(self, split: str, num_lines: int) -> None:
        self.lines.append((split, num_lines))


@pytest.fixture
def observer() -> Record:
    return Record()


def unchecked(corpus: NamedCorpus) -> NamedCorpus:
    """The same paths and members, with any content."""

    def free(split):
        parts = tuple(
            tuple(
                replace(text, file=replace(text.file, size_bytes=None, checksum=None))
                for text in part
            )
            for part in split.parts
        )
        return replace(split, parts=parts, num_pairs=None)

    return replace(
        corpus,
        train=free(corpus.train),
        dev=free(corpus.dev),
        tests=tuple(free(split) for split in corpus.tests),
    )


@pytest.fixture
def without_checks() -> Callable[[NamedCorpus], NamedCorpus]:
    return unchecked


@pytest.fixture
def listed(tmp_path: Path) -> Callable[[], list[str]]:
    """The names of all files there are now."""

    def names() -> list[str]:
        paths = (path for path in tmp_path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(tmp_path)) for path in paths)

    return names
