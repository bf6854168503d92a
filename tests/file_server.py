"""HTTP server whose answers break off, fail or are wrong on request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from transduce.data.named_corpora import NamedCorpus, RemoteFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault of one answer."""

    status: int | None = None
    breaks_after: int | None = None
    """Bytes of the body after which the connection closes."""
    announced: int | None = None
    """Wrong Content-Length."""
    content_type: str = "application/octet-stream"
    content_range: str | None = None
    raw: bytes | None = None
    """Bytes to send instead of an HTTP answer."""


SOUND = Fault()


@dataclass
class FileServer:
    """Files by path, faults of the answers, and the requests so far."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    """Faults of the next answers, in order; later answers are correct."""
    breaks_at: int | None = None
    """Byte of each file at which every answer breaks off."""
    knows_ranges: bool = True
    announces_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request."""

    def offer(self, name: str, content: bytes) -> RemoteFile:
        self.files[f"/{name}"] = content
        return RemoteFile(url=f"{self.address}/{name}")

    def answer_once(self, **how: Any) -> None:
        """Give the next answer without a fault this one."""
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
    body = content[start : server.breaks_at]
    handler.send_response(206 if start else 200)
    place = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if start:
        handler.send_header("Content-Range", fault.content_range or place)
    if server.announces_length:
        length = len(content) - start if fault.announced is None else fault.announced
        handler.send_header("Content-Length", str(length))
    handler.send_header("Content-Type", fault.content_type)
    handler.end_headers()
    handler.wfile.write(body[: fault.breaks_after])


@contextmanager
def serving() -> Iterator[FileServer]:
    """Server on this machine, until the end of the block."""
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            answer(files, self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        # An interrupted client is no error of the server.
        http.handle_error = lambda *_: None
        http.daemon_threads = False
        files.address = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield files
        http.shutdown()
        thread.join()


def unchecked(corpus: NamedCorpus) -> NamedCorpus:
    """Corpus of the same paths and members without known sizes or checksums."""

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
