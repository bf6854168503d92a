"""Connections, tested by raw sockets that misbehave as clients should not."""

import errno
import json
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest
from fastapi import FastAPI, Response

from serving_client import RunningServer, running, running_app, served
from transduce.checkpoint import Checkpoint
from transduce.errors import ConfigError, RequestError
from transduce.serving import connection
from transduce.serving.admission import AccessConfig, AdmissionConfig
from transduce.serving.connection import AcceptFailures, ConnectionConfig
from transduce.serving.served_models import ServedModel
from transduce.serving.server import ServerConfig, listen, within_open_files
from waiting import PATIENCE_S, wait_until

HOST = b"host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
BODY = json.dumps({"q": "one", "source": "en", "target": "de"}).encode()


CHUNKED = (
    b"POST /translate HTTP/1.1\r\ncontent-type: application/json\r\n"
    + HOST
    + b"transfer-encoding: chunked\r\n\r\n"
)


def post(path: str = "/translate", version: str = "1.1", body: bytes = BODY) -> bytes:
    head = f"POST {path} HTTP/{version}\r\ncontent-type: application/json\r\n"
    return head.encode() + HOST + b"content-length: %d\r\n\r\n" % len(body) + body


@contextmanager
def connected(server: RunningServer) -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", server.port), timeout=PATIENCE_S
    ) as client:
        yield client


def everything(client: socket.socket) -> bytes:
    """Everything that the server sends until it ends the connection."""
    parts = iter(lambda: client.recv(65536), b"")
    return b"".join(parts)


def answered(server: RunningServer, request: bytes, *, ends: bool = True) -> bytes:
    with connected(server) as client:
        client.sendall(request)
        if ends:
            client.shutdown(socket.SHUT_WR)
        return everything(client)


def error_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    error = json.loads(body)["error"]
    assert isinstance(error, str)
    return error


@contextmanager
def held(model: ServedModel) -> Iterator[None]:
    """Model whose work is blocked."""
    opened, at_work = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        at_work.set()
        opened.wait()

    model.queue.on_batch = hold
    model.queue.submit(["one"])
    at_work.wait()
    try:
        yield
    finally:
        model.queue.on_batch = lambda _: None
        opened.set()


def num_connections(server: RunningServer) -> int:
    return len(server.server.server_state.connections)


def test_an_accepted_socket_sends_without_delay(http: RunningServer) -> None:
    with connected(http) as client:
        client.sendall(HEALTH)
        client.recv(1)
        for each in http.server.server_state.connections:
            there = each.transport.get_extra_info("socket")  # type: ignore[union-attr] # set once connected
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("path", ["/translate", "/v1/translate"])
def test_a_half_closed_client_is_answered(
    http: RunningServer, path: str, version: str
) -> None:
    body = b'{"q": "one", "target": "de", "model": "en-de"}'
    answer = answered(http, post(path, version, body))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b'"translat' in answer


def test_requests_in_a_row_are_answered_in_their_order(http: RunningServer) -> None:
    answer = answered(http, post() + HEALTH + post())
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    first = answer.index(b"translatedText")
    assert first < answer.index(b'"models"') < answer.rindex(b"translatedText")


def test_empty_lines_between_requests_are_skipped(http: RunningServer) -> None:
    answer = answered(http, post() + b"\r\n" + HEALTH + b"\r\n\n" + HEALTH)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    with connected(http) as client:
        for half in (b"\r", b"\n" + HEALTH):
            client.sendall(half)
        client.shutdown(socket.SHUT_WR)
        assert everything(client).startswith(b"HTTP/1.1 200 OK")


def test_a_half_closed_client_can_wait_for_its_answer(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEFT_AFTER_S", 0.05)
    model = served(trained_checkpoint, "en-de")
    with running([model]) as server, connected(server) as client:
        with held(model):
            client.sendall(post())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert everything(client).startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_ends_early_is_refused(http: RunningServer) -> None:
    answer = answered(http, post()[:-5])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer) == "The body must be sent whole, but ends early."


@pytest.mark.parametrize(
    ("request_", "status", "error"),
    [
        (b"\x16\x03\x01\x02\r\n\r\n", 400, "must be valid HTTP/1.1, but is not."),
        (b"GET /health\r\n\r\n", 400, "must be valid HTTP/1.1"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "must be valid HTTP/1.1"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "valid HTTP"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"x: " + b"a" * 500_000, 431,
         "at most 16,384 bytes are read"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: gzip\r\n\r\n", 501,
         "must be chunked, or none"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"content-length: -5\r\n\r\n", 400, "valid"),
        (post().replace(b"content-length: ", b"content-length: 9999999999999999999999"),
         400, "valid HTTP"),
        (b"POST /translate HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
         b"ZZ\r\n", 400, "valid HTTP"),
        (post().replace(b"host:", b"transfer-encoding: chunked\r\nhost:"), 400,
         "either a content-length or a transfer-encoding, but has both"),
        (post().replace(b"content-length:", b"content-length: 5\r\ncontent-length:"),
         400, "valid HTTP"),
        (post().replace(b"content-length:", b"content-length: 5,"), 400, "valid HTTP"),
        (post().replace(b"content-length:", b"content-length :"), 400, "valid HTTP"),
        (post().replace(b"content-length: ", b"content-length: +"), 400, "valid HTTP"),
        (HEALTH.replace(b"host:", b" x: y\r\nhost:"), 400, "valid HTTP"),
        (post().replace(b"host:", b"x: a\rtransfer-encoding: chunked\r\nhost:"), 400,
         "valid HTTP"),
        (post().replace(b"host:", b"x: a\0b\r\nhost:"), 400, "valid HTTP"),
        (CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n", 400,
         "HTTP/1.0 must have no transfer-encoding"),
        (CHUNKED + b"5;a\nb\r\n", 400, "valid HTTP"),
        (CHUNKED + b"5;" + b"a" * 500_000, 431, "at most 16,384 bytes are read"),
        (CHUNKED + b"1\r\naa\r\n", 400, "valid HTTP"),
        (HEALTH.replace(b"1.1", b"9.9"), 505, "must be 1.x, but is 9.9."),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "but is 2.0."),
        (b"GET /health HTTP/1.2\r\n\r\n", 400, "valid HTTP"),
        (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", 400, "valid HTTP"),
        (b"GET http:///health HTTP/1.1\r\n" + HOST + b"\r\n", 400, "valid HTTP"),
        (b"OPTIONS health HTTP/1.1\r\n" + HOST + b"\r\n", 400, "valid HTTP"),
        (b"\r\r\n" + HEALTH, 400, "valid HTTP"),
        (b"CONNECT a.org:443 HTTP/1.1\r\nhost: a.org:443\r\n\r\n", 501, "no proxy."),
        (HEALTH.replace(b"host:", b"a:\r\n" * 4_000 + b"host:"), 431,
         "at most 16,384 bytes are read"),
        (b"GET /" + b"a" * 500_000, 414, "at most 16,384 bytes are read"),
        (HEALTH.replace(b"health", b"a" * 20_000), 414, "at most 16,384 bytes"),
        (HEALTH.replace(b"host:", b"x: " + b"a" * 20_000 + b"\r\nhost:"), 431,
         "at most 16,384 bytes are read"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused_in_json(
    http: RunningServer, request_: bytes, status: int, error: str
) -> None:
    answer = answered(http, request_, ends=False)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert error in error_of(answer)


@pytest.mark.parametrize(
    "refused",
    [
        post().replace(b"host:", b"transfer-encoding: chunked\r\nhost:"),
        HEALTH.replace(b"GET", b"CONNECT"),
        b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
def test_a_refused_request_ends_its_connection(
    http: RunningServer, refused: bytes
) -> None:
    answer = answered(http, refused + HEALTH, ends=False)
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "request_",
    [
        HEALTH.replace(b"\r\n", b"\n"),
        HEALTH.replace(b"1.1", b"1.9"),
        b"\r\n\n\r\n" + HEALTH,
        HEALTH.replace(b"host:", b"x: a\r\n  b\r\nhost:"),
        HEALTH.replace(b"/health", b"/health?x=http://a"),
        HEALTH.replace(b"/health", b"http://localhost/health"),
        HEALTH.replace(b"/health", b"HTTP://localhost:80/health?x"),
        post().replace(b"content-length", b"content-length: %d\r\ncontent-length"
                       % len(BODY)),
        CHUNKED + b"%x;a=b\r\n" % len(BODY) + BODY + b"\r\n0\r\nx: y\r\n\r\n",
    ],
)  # fmt: skip
def test_an_unusual_but_valid_request_is_answered(
    http: RunningServer, request_: bytes
) -> None:
    assert answered(http, request_).startswith(b"HTTP/1.1 200 ")


def test_an_absolute_target_names_the_host(trained_checkpoint: Checkpoint) -> None:
    models = [served(trained_checkpoint, "en-de")]
    request = HEALTH.replace(b"/health", b"http://evil.example/health")
    with running(models, None, AccessConfig(is_local=True)) as server:
        answer = answered(server, request)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert "evil.example" in error_of(answer)


def test_a_client_may_wait_before_it_sends_the_body(http: RunningServer) -> None:
    head, _, body = post().partition(b"\r\n\r\n")
    with connected(http) as client:
        client.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/translate", 413, "The body must have at most 130,000 bytes"),
        ("/nowhere", 404, "The path must be one that"),
    ],
)
def test_a_refused_client_that_waits_with_its_body_is_answered_and_its_connection_ends(
    http: RunningServer, path: str, status: int, error: str
) -> None:
    head, _, _ = post(path, body=b" " * 200_000).partition(b"\r\n\r\n")
    with connected(http) as client:
        client.sendall(head + b"\r\nexpect: 100-Continue\r\n\r\n")
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer.lower()
    assert error_of(answer).startswith(error)


@pytest.mark.parametrize(
    "expect", [b"100-continue", b"x, 100-Continue", b"x\r\nexpect: 100-continue"]
)
def test_a_client_that_waits_before_a_body_that_is_too_long_gets_its_refusal(
    http: RunningServer, expect: bytes
) -> None:
    """The length of a body in chunks is not known before it comes."""
    chunk = b"%x\r\n%s\r\n" % (1_000_000, b" " * 1_000_000)
    with connected(http) as client:
        client.sendall(CHUNKED[:-2] + b"expect: " + expect + b"\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
        client.sendall(chunk * 4 + b"0\r\n\r\n" + HEALTH)
        client.shutdown(socket.SHUT_WR)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"HTTP/1.1 200 " in answer  # to the next request


def test_a_client_of_http_1_0_cannot_wait_with_its_body(http: RunningServer) -> None:
    head, _, body = post("/nowhere", "1.0", b" " * 4_000_000).partition(b"\r\n\r\n")
    with connected(http) as client:
        client.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n" + body)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert error_of(answer).startswith("The path must be one that")


@pytest.mark.parametrize(
    ("path", "status"), [("/translate", 413), ("/suggest", 403), ("/no", 404)]
)
def test_a_refused_client_that_does_not_wait_with_its_body_is_answered(
    http: RunningServer, path: str, status: int
) -> None:
    request = post(path, body=b" " * 4_000_000)
    with connected(http) as client:
        client.sendall(request.replace(b"host:", b"expect: 100-continue\r\nhost:"))
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


def test_a_client_gets_its_last_answer_while_it_sends_more_requests(
    http: RunningServer,
) -> None:
    last = HEALTH.replace(b"host:", b"connection: close\r\nhost:")
    with connected(http) as client:
        client.sendall(last + HEALTH * 40_000)
        answer = everything(client)
    assert answer.count(b"HTTP/1.1 200 ") == 1


def send_again_and_again(
    client: socket.socket, drop: bytes, times: Iterable[int]
) -> None:
    for _ in times:
        client.sendall(drop)


@pytest.mark.parametrize(
    ("most_bytes", "most_seconds", "drop", "times"),
    [(1_000_000, PATIENCE_S, 100_000, range(1_000)), (2**40, 0.2, 1, count())],
    ids=["bytes", "seconds"],
)
def test_the_input_after_the_last_answer_is_read_within_limits(
    http: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    most_seconds: float,
    drop: int,
    times: Iterable[int],
) -> None:
    monkeypatch.setattr(connection, "DRAIN_BYTES", most_bytes)
    monkeypatch.setattr(connection, "DRAIN_S", most_seconds)
    head, _, _ = post("/nowhere", body=b" " * 10**7).partition(b"\r\n\r\n")
    with connected(http) as client:
        client.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 404 ")
        with pytest.raises(ConnectionError):
            send_again_and_again(client, b" " * drop, times)
    wait_until(lambda: num_connections(http) == 0)


def test_a_connection_whose_input_is_drained_is_not_idle(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", PATIENCE_S)
    limits = ServerConfig(connections=ConnectionConfig(idle_timeout_s=0.1))
    model = served(trained_checkpoint, "en-de")
    head, _, _ = post("/nowhere", body=b" " * 99).partition(b"\r\n\r\n")
    with running([model], taking=limits) as server, connected(server) as client:
        client.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 404 ")
        time.sleep(0.3)
        assert num_connections(server) == 1


@pytest.mark.parametrize(
    ("path", "encoding", "status"),
    [
        ("/translate", "", 413),
        ("/translate", "gzip", 415),
        ("/suggest", "", 403),
        ("/health", "", 405),
        ("/nowhere", "", 404),
    ],
)
def test_a_client_gets_its_refusal_however_long_its_body(
    http: RunningServer, path: str, encoding: str, status: int
) -> None:
    headers = {"content_encoding": encoding} if encoding else {}
    # The client also asks for the end of the connection.
    assert http.post(path, bytes(5_000_000), **headers).status == status


@pytest.fixture
def quick(trained_checkpoint: Checkpoint) -> Iterator[RunningServer]:
    """Server with short time limits for slow clients."""
    limits = ConnectionConfig(
        header_timeout_s=0.3, idle_timeout_s=0.3, write_timeout_s=0.3
    )
    config, taking = (
        AdmissionConfig(body_timeout_s=0.3),
        ServerConfig(connections=limits),
    )
    with running([served(trained_checkpoint, "en-de")], config, None, taking) as server:
        yield server


def dripped(client: socket.socket, drop: bytes) -> bytes:
    """Answer to a client that sends the same bytes again and again for a while."""
    has_answer = threading.Event()

    def drip() -> None:
        while not has_answer.wait(0.02):
            try:
                client.sendall(drop)
            except OSError:
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        return client.recv(65536)
    finally:
        has_answer.set()
        dripping.join()


def test_headers_that_do_not_arrive_time_out(quick: RunningServer) -> None:
    with connected(quick) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        answer = dripped(client, b"x: y\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert error_of(answer) == "The headers must come within 0.3 seconds."


@pytest.mark.parametrize("before", [b"", HEALTH])
def test_an_idle_connection_times_out(quick: RunningServer, before: bytes) -> None:
    with connected(quick) as client:
        client.sendall(before)
        answer = everything(client)
    assert answer.count(b"HTTP/1.1 ") == (before != b"")
    wait_until(lambda: num_connections(quick) == 0)


def test_the_rest_of_a_refused_body_times_out(
    quick: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", 0.3)
    with connected(quick) as client:
        client.sendall(
            b"POST /nowhere HTTP/1.1\r\n" + HOST + b"content-length: 10000000\r\n\r\n"
        )
        assert dripped(client, b"a").startswith(b"HTTP/1.1 404 ")
        while client.recv(65536):
            client.sendall(b"a")
        wait_until(lambda: num_connections(quick) == 0)


def test_a_client_that_does_not_read_times_out(quick: RunningServer) -> None:
    document = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", quick.port))
        client.sendall(document * 250)  # megabytes, more than the system takes
        wait_until(lambda: num_connections(quick) == 1)
        wait_until(lambda: num_connections(quick) == 0)


LARGE = bytes(16_000_000)
"""Answer that is larger than what the system takes of it before its client reads."""


@contextmanager
def large_answer(write_timeout_s: float) -> Iterator[RunningServer]:
    """Server of an answer that is written at once, and must be read in time."""
    limits = ConnectionConfig(write_timeout_s=write_timeout_s)
    app = FastAPI()
    app.add_route("/", lambda _: Response(LARGE), methods=["GET", "POST"])
    with running_app(app, taking=ServerConfig(connections=limits)) as server:
        yield server


@pytest.mark.parametrize("rest", [b"content-length: 9\r\n\r\n", b"\r\n" + HEALTH])
def test_a_connection_ends_after_a_long_last_answer_though_its_client_stays(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", 0.1)
    last = b"POST / HTTP/1.1\r\nconnection: close\r\n" + HOST
    with large_answer(60) as server, connected(server) as client:
        client.sendall(last + rest)
        assert len(everything(client)) > len(LARGE)
        wait_until(lambda: num_connections(server) == 0)


def test_the_end_of_a_last_answer_must_be_read_in_time() -> None:
    with large_answer(0.5) as server, connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nconnection: close\r\n" + HOST + b"\r\n")
        wait_until(lambda: num_connections(server) == 1)
        [there] = server.server.server_state.connections
        wait_until(lambda: there.transport.is_closing())
        # As the event loop does when only the end of the answer is left to write.
        there.loop.call_soon_threadsafe(there.resume_writing)
        wait_until(lambda: num_connections(server) == 0)


def test_an_address_of_ipv6_is_named_with_its_brackets() -> None:
    with pytest.raises(RequestError, match=r"^\[2001:db8::1\]:80 must be free"):
        listen("2001:db8::1", 80)


def few(number: int) -> ServerConfig:
    return ServerConfig(connections=ConnectionConfig(max_connections=number))


def test_a_new_connection_replaces_the_longest_idle_one(
    trained_checkpoint: Checkpoint,
) -> None:
    model = served(trained_checkpoint, "en-de")
    with running([model], taking=few(1)) as server, connected(server) as first:
        wait_until(lambda: num_connections(server) == 1)
        assert server.get("/health").status == 200
        with suppress(ConnectionResetError):
            assert first.recv(1) == b""


def test_a_connection_beyond_the_limit_is_refused_if_all_are_busy(
    trained_checkpoint: Checkpoint,
) -> None:
    model = served(trained_checkpoint, "en-de")
    with running([model], taking=few(1)) as server, connected(server) as client:
        with held(model):
            client.sendall(post())
            wait_until(lambda: model.queue.num_waiting > 0)
            refused = answered(server, HEALTH, ends=False)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert "All 1 connections" in error_of(refused)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_refused_connection_beyond_the_room_for_refusals_is_closed_at_once(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", PATIENCE_S)
    monkeypatch.setattr(
        "transduce.serving.server.within_open_files", lambda limits: (limits, 1)
    )
    model = served(trained_checkpoint, "en-de")
    with running([model], taking=few(1)) as server, connected(server) as busy:
        with held(model):
            busy.sendall(post())
            wait_until(lambda: model.queue.num_waiting > 0)
            with connected(server) as kept, connected(server) as closed:
                for refused in (kept, closed):
                    assert refused.recv(65536).startswith(b"HTTP/1.1 503 ")
                wait_until(lambda: num_connections(server) == 2)
        assert busy.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_refusals_that_connections_make_are_counted(
    trained_checkpoint: Checkpoint,
) -> None:
    model = served(trained_checkpoint, "en-de")
    with running([model], taking=few(1)) as server:
        with connected(server) as client, held(model):
            client.sendall(post())
            wait_until(lambda: model.queue.num_waiting > 0)
            answered(server, HEALTH, ends=False)
        wait_until(lambda: num_connections(server) == 0)
        answered(server, b"no request\r\n\r\n", ends=False)
        wait_until(lambda: num_connections(server) == 0)
        counts = server.get("/metrics").body.decode().splitlines()
    for status in (400, 503):
        counter = 'transduce_requests_total{path="other",status="%d"}'
        assert f"{counter % status} 1.0" in counts


def test_connections_are_limited_by_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, set_ = [(256, 4096), (64, 64), (8, 8), (16, 100_000)], []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_.append(pair))
    wanted = ConnectionConfig(max_connections=1000)
    assert within_open_files(wanted) == (wanted, 512)
    assert set_.pop()[0] > 1000 + 2 * 512
    del limits[0]
    found, backlog = within_open_files(wanted)
    assert 0 < found.max_connections + 2 * backlog < 64
    assert backlog > 0
    del limits[0]
    with pytest.raises(
        RequestError, match=r"but the limit is 8; raise it \(ulimit -n\)"
    ):
        within_open_files(wanted)


def test_a_lack_of_file_descriptors_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tell, told = AcceptFailures(), []

    class Loop:
        def default_exception_handler(self, context: object) -> None:
            told.append(context)

    full = {"message": "", "exception": OSError(24, os.strerror(24))}
    other = {"message": "", "exception": OSError(5, os.strerror(5))}
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        for context in (full, full, other, full):
            tell(Loop(), context)  # type: ignore[arg-type] # as far as it needs one
    assert caplog.text.count("No connection can be accepted") == 1
    assert told == [other]


@pytest.mark.parametrize(
    "setting",
    [
        {"max_connections": 0},
        {"header_timeout_s": 0.0},
        {"idle_timeout_s": float("inf")},
        {"write_timeout_s": float("nan")},
    ],
)
def test_an_impossible_limit_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(setting))}` must be"):
        ConnectionConfig(**setting)  # type: ignore[arg-type]


def test_a_server_with_a_refused_request_answers_the_others_before_its_end(
    trained_checkpoint: Checkpoint,
) -> None:
    model = served(trained_checkpoint, "en-de")
    both = CHUNKED.replace(HOST, HOST + b"content-length: 1\r\n")
    with running([model]) as server, connected(server) as refused:
        [listening] = server.server.servers
        with connected(server) as client:
            with held(model):
                client.sendall(post())
                wait_until(lambda: model.queue.num_waiting == 1)
                refused.sendall(both)
                assert refused.recv(65536).startswith(b"HTTP/1.1 400")
                server.stop()
                wait_until(lambda: not listening.is_serving())
            assert everything(client).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_is_accepted_during_the_shutdown_is_refused(
    trained_checkpoint: Checkpoint,
) -> None:
    clients: list[socket.socket] = []
    with running([served(trained_checkpoint, "en-de")]) as server:

        def connect_and_stop() -> None:
            address = ("127.0.0.1", server.port)
            clients.append(socket.create_connection(address, timeout=PATIENCE_S))
            server.stop()
            time.sleep(0.2)  # the event loop then stops before it opens the connection

        [listening] = server.server.servers
        listening.get_loop().call_soon_threadsafe(connect_and_stop)
        wait_until(lambda: bool(clients))
        with clients[0] as client:
            answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert error_of(answer) == "The server is shutting down; try again later."


def test_a_refused_client_may_have_gone(
    trained_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    transport = "asyncio.selector_events._SelectorSocketTransport"
    monkeypatch.setattr(f"{transport}.write_eof", fail)
    model = served(trained_checkpoint, "en-de")
    limits = ServerConfig(connections=ConnectionConfig(max_connections=1))
    with (
        running([model], taking=limits) as server,
        connected(server) as busy,
        held(model),
    ):
        busy.sendall(post())
        wait_until(lambda: model.queue.num_waiting == 1)
        with connected(server) as refused:
            assert refused.recv(65536).startswith(b"HTTP/1.1 503")
    assert caplog.records == []
