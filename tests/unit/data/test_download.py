"""A file is downloaded over HTTP from a server of the test."""

import hashlib
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from file_size import limited_file_size
from transduce.data import named_corpora
from transduce.data.named_corpora import RemoteFile, fetch
from transduce.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 40
SIZE = len(CONTENT)
HALF = SIZE // 2


def sum_of(content: bytes, algorithm: str) -> str:
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "file.tgz"


@pytest.fixture
def part(path: Path) -> Callable[[bytes], Path]:
    """Write the partial file of an earlier attempt."""

    def write(content: bytes) -> Path:
        path.parent.mkdir()
        partial = path.with_name("file.tgz.part")
        partial.write_bytes(content)
        return partial

    return write


@pytest.fixture
def file(server) -> RemoteFile:
    """Remote file of known size and checksum."""
    offered = server.offer("wmt/file.tgz", CONTENT)
    return replace(offered, size_bytes=SIZE, checksum=sum_of(CONTENT, "sha256"))


@pytest.fixture
def unknown(file: RemoteFile) -> RemoteFile:
    """The same file without size or checksum."""
    return replace(file, size_bytes=None, checksum=None)


def test_a_file_is_downloaded_whole_and_nothing_else_is_left(
    file, path, observer, listed
):
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert listed() == ["downloads/file.tgz"]
    assert observer.received_bytes[-1] == (SIZE, SIZE)
    assert observer.reasons == []


def test_an_existing_file_is_not_requested(file, path, observer, server):
    fetch(file, path, observer)
    fetch(file, path, observer)
    assert server.ranges == [None]


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"short", f"must be {SIZE:,} bytes long, but is 5"), (b"x" * SIZE, "sha256 sum")],
)
def test_an_existing_file_is_checked(file, path, observer, content, fault):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=fault) as raised:
        fetch(file, path, observer)
    assert str(raised.value).startswith(f"{path}: ")
    assert path.read_bytes() == content


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_either_kind_of_checksum_is_checked(unknown, path, observer, algorithm):
    checksum = sum_of(CONTENT, algorithm)
    fetch(replace(unknown, checksum=checksum), path, observer)
    path.unlink()
    wrong = replace(unknown, checksum=sum_of(b"other", algorithm))
    with pytest.raises(DataError, match=f"must have the {algorithm} sum .* but has"):
        fetch(wrong, path, observer)


def test_after_a_broken_connection_only_the_rest_is_requested(
    file, path, observer, server
):
    server.answer_once(breaks_after=HALF)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]
    assert observer.reasons == [
        f"the connection broke off after {HALF:,} of {SIZE:,} bytes"
    ]


def test_a_later_call_continues_an_earlier_one(file, path, part, observer, server):
    part(CONTENT[:HALF])
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={HALF}-"]
    assert observer.received_bytes[0][0] > HALF


def test_a_complete_partial_file_is_not_requested(file, path, part, observer, server):
    part(CONTENT)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.asked == []


def test_a_server_without_ranges_sends_the_whole_file_again(
    file, path, part, observer, server
):
    server.knows_ranges = False
    part(b"?" * HALF)
    server.answer_once(breaks_after=100)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={HALF}-", "bytes=100-"]


@pytest.mark.parametrize("size", [SIZE, SIZE + 9])
def test_a_partial_file_that_is_too_long_is_downloaded_again(
    unknown, path, part, observer, server, size
):
    part(b"?" * size)
    fetch(unknown, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={size}-", None]


def test_attempts_are_counted_from_the_last_successful_read(
    file, path, observer, server
):
    for _ in range(6):
        server.answer_once(status=503)
        server.answer_once(breaks_after=100)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert len(observer.reasons) == 12


@pytest.mark.parametrize("status", [500, 503, 408, 429])
def test_a_temporary_error_is_retried_and_then_reported(
    file, path, part, observer, server, status
):
    partial = part(CONTENT[:HALF])
    for _ in range(3):
        server.answer_once(status=status)
    with pytest.raises(DataError, match=f"fetched .the server answered {status}"):
        fetch(file, path, observer)
    assert len(server.asked) == 3
    assert partial.read_bytes() == CONTENT[:HALF]
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [401, 403, 404, 410, 416])
def test_a_refusal_is_reported_at_once(file, path, observer, server, status, listed):
    server.answer_once(status=status)
    with pytest.raises(
        DataError,
        match=f"answers {status} .*another server by `transduce data --mirror`",
    ):
        fetch(file, path, observer)
    assert len(server.asked) == 1
    assert listed() == []


def test_an_unreachable_server_is_reported_in_one_sentence(
    path, observer, server, listed
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file.tgz"
    with pytest.raises(DataError) as raised:
        fetch(RemoteFile(url=url), path, observer)
    assert str(raised.value) == (
        f"{url}: cannot be fetched (Connection refused); run the command again, which "
        "keeps what has come, or name another server by `transduce data --mirror`."
    )
    assert len(observer.reasons) == 2
    assert listed() == []


def test_a_silent_server_is_reported_in_one_sentence(path, observer, server):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("transduce.data.named_corpora.TIMEOUT_S", 0.01)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.tgz"
        with pytest.raises(DataError, match=r"cannot be fetched \(timed out\)"):
            fetch(RemoteFile(url=url), path, observer)


@pytest.mark.parametrize("raw", [b"", b"HELLO\r\n"])
def test_an_answer_that_is_no_http_is_retried(file, path, observer, server, raw):
    server.answer_once(raw=raw)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert len(observer.reasons) == 1


def test_a_wrong_announced_size_is_reported_before_the_download(
    file, path, part, observer, server
):
    partial = part(CONTENT[:HALF])
    server.knows_ranges = False
    server.answer_once(announced=99)
    with pytest.raises(
        DataError, match=f"must be {SIZE:,} bytes long, but .* ann.* 99"
    ):
        fetch(file, path, observer)
    assert partial.read_bytes() == CONTENT[:HALF]


def test_a_file_of_wrong_content_is_removed(file, path, observer, server, listed):
    server.files["/wmt/file.tgz"] = b"?" * SIZE
    with pytest.raises(DataError, match="must have the sha256 sum .* is removed"):
        fetch(file, path, observer)
    assert listed() == []


def test_a_file_that_is_too_long_is_removed(file, path, observer, server, listed):
    server.announces_length = False
    server.files["/wmt/file.tgz"] = CONTENT + b"more"
    with pytest.raises(DataError, match=f"bytes long, but is {SIZE + 4:,}"):
        fetch(file, path, observer)
    assert listed() == []


def test_a_download_stops_at_the_known_size(
    file, path, observer, server, listed, monkeypatch
):
    monkeypatch.setattr(named_corpora, "CHUNK_BYTES", 1_000)
    server.announces_length = False
    server.files["/wmt/file.tgz"] = CONTENT * 1_000
    with pytest.raises(DataError, match=f"must be {SIZE:,} bytes long, but is"):
        fetch(file, path, observer)
    assert observer.received_bytes[-1][0] <= SIZE + 1_000
    assert listed() == []


@pytest.mark.parametrize("announces", [True, False])
def test_a_file_of_unknown_size_has_a_maximum(
    unknown, path, observer, server, listed, monkeypatch, announces
):
    monkeypatch.setattr(named_corpora, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(named_corpora, "MAX_BYTES", HALF)
    server.announces_length = announces
    with pytest.raises(DataError, match=f"at most {HALF:,} bytes long.*sends more"):
        fetch(unknown, path, observer)
    most = max((size for size, _ in observer.received_bytes), default=0)
    assert most <= (0 if announces else HALF + 1_000)
    assert listed() == []


def test_a_partial_file_beyond_the_maximum_is_removed(
    unknown, path, part, observer, server, listed, monkeypatch
):
    monkeypatch.setattr(named_corpora, "MAX_BYTES", HALF)
    server.announces_length = False
    part(CONTENT[: HALF + 1])
    with pytest.raises(DataError, match="the partial download is removed"):
        fetch(unknown, path, observer)
    assert listed() == []


@pytest.mark.parametrize("digits", ["9" * 30, "9" * 6_000, "-1", "ten"])
def test_a_malformed_content_length_is_ignored(unknown, path, observer, server, digits):
    server.answer_once(announced=digits)
    fetch(unknown, path, observer)
    assert path.read_bytes() == CONTENT


def test_the_announced_size_is_checked_if_no_size_is_known(
    unknown, path, observer, server
):
    server.answer_once(breaks_after=HALF)
    fetch(unknown, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]


def test_a_server_may_announce_no_size(unknown, path, observer, server):
    server.announces_length = False
    fetch(unknown, path, observer)
    assert path.read_bytes() == CONTENT
    assert observer.received_bytes[-1] == (SIZE, None)


def test_a_truncated_answer_without_a_length_is_found_by_the_known_size(
    file, path, observer, server
):
    server.announces_length = False
    server.answer_once(breaks_after=HALF)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]


@pytest.mark.parametrize("place", ["bytes 9999-10239/10240", "all of it"])
def test_a_wrong_range_is_refused(file, path, part, observer, server, place):
    part(CONTENT[:HALF])
    server.answer_once(content_range=place)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert observer.reasons == ["the server sent other bytes than requested"]


def test_a_log_in_page_is_not_taken_for_the_file(
    unknown, path, observer, server, listed
):
    server.answer_once(content_type="text/html; charset=utf-8")
    with pytest.raises(DataError, match="sends a web page; is there a log-in page"):
        fetch(unknown, path, observer)
    assert listed() == []


def test_a_full_disk_is_reported_and_the_next_call_continues(
    file, path, observer, server
):
    with (
        limited_file_size(3_000),
        pytest.raises(DataError, match=r"\.part: cannot be written \(File too la"),
    ):
        fetch(file, path, observer)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=3000-"]


def test_an_interruption_keeps_the_partial_file(
    file, path, server, observer, monkeypatch
):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transduce.data.named_corpora.CHUNK_BYTES", 1_000)
        patch.setattr(observer, "received", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(file, path, observer)
    fetch(file, path, observer)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


@pytest.mark.parametrize("mirror", ["http://m.org:8/a/b", "http://m.org:8/a/b/"])
def test_a_mirror_replaces_the_host(mirror):
    file = RemoteFile(url="https://www.statmt.org/wmt13/test.tgz", size_bytes=1)
    moved = RemoteFile(url="http://m.org:8/a/b/wmt13/test.tgz", size_bytes=1)
    assert file.on(mirror) == moved
    assert file.name == moved.name == "test.tgz"


@pytest.mark.parametrize(
    "mirror",
    ["m.org", "ftp://m.org", "file:///etc", "http://", "http://[::1", "http://m:x/",
     "http://m:0/", "http://m.org/a b", ""],
)  # fmt: skip
def test_a_malformed_mirror_is_refused(mirror):
    with pytest.raises(ConfigError, match="The mirror must be an address such as"):
        RemoteFile(url="https://www.statmt.org/a").on(mirror)
