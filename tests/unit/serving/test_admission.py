"""Admission by hosts, origins, keys and limits, and answers to unexpected failures."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from serving_client import Answer, RunningServer, running, served
from transduce.analysis import sentence_attention
from transduce.checkpoint import Checkpoint
from transduce.errors import (
    AccessError,
    CheckpointError,
    ConfigError,
    LackOfMemoryError,
    TransduceError,
    VersionError,
)
from transduce.serving import admission
from transduce.serving.admission import (
    AccessConfig,
    AdmissionConfig,
    RateLimit,
    is_accepted,
    read_keys,
    refusal_of,
    while_connected,
)
from transduce.serving.messages import RefusedError
from transduce.serving.request_queue import QueueConfig
from transduce.serving.server import ServerConfig
from waiting import PATIENCE_S, wait_until

BODY = {"q": "one", "source": "en", "target": "de"}
LOCAL = AccessConfig(
    is_local=True,
    allowed_hosts=("proxy.example",),
    cors_origins=("https://friend.example", "http://localhost:3000"),
)


@pytest.fixture(scope="module")
def local(trained_checkpoint: Checkpoint) -> Iterator[RunningServer]:
    with running([served(trained_checkpoint, "en-de")], None, LOCAL) as server:
        yield server


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:5000", "localhost.", "127.0.0.1", "127.1.2.3:5000"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:2]:80"),
        *("[::1]", "[::1]:5000", "proxy.example", "Proxy.Example:443", "a.localhost"),
    ],
)
def test_a_local_server_answers_to_its_own_names(
    local: RunningServer, host: str
) -> None:
    assert local.post("/translate", BODY, host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:5000", "localhost.evil.example", "0.0.0.0"),
        *(
            "localhost@evil.example",
            "[::1",
            "127.0.0.1.evil.example",
            "[::ffff:10.0.0.1]",
        ),
        *("xlocalhost", "[::2]:80", "localhost:evil.example"),
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/health", "/"])
def test_a_local_server_does_not_answer_to_other_names(
    local: RunningServer, host: str, path: str
) -> None:
    answer = local.post(path, BODY, host=host)
    assert answer.status == 403
    assert "must be a name of this server, but is" in answer.json["error"]


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:5000", "http://localhost:5000", 200),
        ("localhost", "http://localhost:80", 200),
        ("localhost:5000", "http://localhost:5001", 403),
        ("localhost:5000", "http://127.0.0.1:5000", 403),
        ("localhost:5000", "http://evil.example", 403),
        ("localhost:5000", "null", 403),
        ("localhost:5000", "http://localhost:5000@evil.example", 403),
        ("localhost:5000", "file://localhost:5000", 403),
        ("localhost:5000", "https://friend.example", 200),
        ("localhost:5000", "https://friend.example.evil.example", 403),
        ("localhost:5000", "http://localhost:3000", 200),
        ("127.0.0.1:5000", "https://proxy.example", 200),
    ],
)
def test_a_local_server_answers_its_own_pages_and_allowed_origins(
    local: RunningServer, host: str, origin: str, status: int
) -> None:
    form = b"q=one&source=en&target=de"
    kind = "application/x-www-form-urlencoded"
    answer = local.post("/translate", form, content_type=kind, host=host, origin=origin)
    assert answer.status == status
    if status == 403:
        assert "Pages of other sites need permission" in answer.json["error"]


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        ("moz-extension://6f0a", "allow it by `transduce serve --cors-origins`."),
        (
            "chrome-extension://localhost",
            "allow it by `transduce serve --cors-origins`.",
        ),
        (
            "null",
            "allow it by `transduce serve --cors-origins '*'`, which allows all sites.",
        ),
    ],
)
def test_a_refusal_of_an_origin_names_an_option_that_allows_it(
    local: RunningServer, origin: str, remedy: str
) -> None:
    answer = local.post("/translate", BODY, host="localhost", origin=origin)
    assert answer.status == 403
    assert answer.json["error"].endswith(f'"{origin}" has none; {remedy}')


def test_a_request_to_another_host_is_refused_after_its_body_and_counted(
    local: RunningServer,
) -> None:
    def count() -> float:
        text = local.get("/metrics").body.decode()
        refused = 'transduce_requests_total{path="other",status="403"}'
        lines = [line for line in text.splitlines() if line.startswith(refused)]
        return sum(float(line.split()[-1]) for line in lines)

    before = count()
    assert local.post("/translate", bytes(5_000_000), host="a.org").status == 403
    assert count() == before + 1


@pytest.mark.parametrize(
    ("allowed", "origin"),
    [
        ("moz-extension://6f0a", "moz-extension://6f0a"),
        ("safari-web-extension://6F0A", "safari-web-extension://6F0A"),
        # A user may copy it in lower case.
        ("safari-web-extension://6f0a", "safari-web-extension://6F0A"),
        ("app://notes", "app://notes"),
    ],
)
def test_the_origin_of_an_extension_can_be_allowed(
    trained_checkpoint: Checkpoint, allowed: str, origin: str
) -> None:
    access = AccessConfig(is_local=True, cors_origins=(allowed,))
    with running([served(trained_checkpoint, "en-de")], None, access) as server:
        answer = server.post("/translate", BODY, host="localhost", origin=origin)
        before = preflight(server, origin)
    assert (answer.status, before.status) == (200, 200)
    for each in (answer, before):
        assert each.headers["access-control-allow-origin"] == origin


def preflight(
    server: RunningServer, origin: str, method: str = "POST", **headers: str
) -> Answer:
    return server.ask(
        "OPTIONS",
        "/translate",
        origin=origin,
        access_control_request_method=method,
        access_control_request_headers="content-type, authorization",
        **headers,
    )


def test_an_allowed_origin_may_use_a_private_network(local: RunningServer) -> None:
    asks = {"access_control_request_private_network": "true"}
    asked = preflight(local, "https://friend.example", **asks)
    assert asked.status == 200
    assert asked.headers["access-control-allow-private-network"] == "true"
    plain = preflight(local, "https://friend.example")
    assert "access-control-allow-private-network" not in plain.headers
    refused = preflight(local, "https://friend.example", "DELETE", **asks)
    assert refused.status == 400
    assert "access-control-allow-private-network" not in refused.headers


def test_an_allowed_origin_may_read_answers(local: RunningServer) -> None:
    asked = preflight(local, "https://friend.example")
    assert asked.status == 200
    allowed = asked.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type"} <= set(allowed.split(", "))
    assert "POST" in asked.headers["access-control-allow-methods"]
    for body, status in ((BODY, 200), ({}, 400)):
        answer = local.post("/translate", body, origin="https://friend.example")
        assert answer.status == status
        origin = answer.headers["access-control-allow-origin"]
        assert origin == "https://friend.example"
        assert answer.headers["vary"] == "Origin"


def test_other_origins_may_not_read_answers(
    trained_checkpoint: Checkpoint, http: RunningServer
) -> None:
    """Without CORS, or from an unlisted origin, a preflight gets no permission."""
    refused = preflight(http, "https://friend.example")
    assert refused.status == 405
    assert "access-control-allow-origin" not in refused.headers
    access = AccessConfig(cors_origins=("https://friend.example",))
    with running([served(trained_checkpoint, "en-de")], None, access) as server:
        stranger = preflight(server, "https://evil.example")
        assert stranger.status == 400
        assert stranger.json == {"error": "Disallowed CORS origin."}
        assert "access-control-allow-origin" not in stranger.headers
        assert preflight(server, "https://friend.example", "DELETE").status == 400


def test_every_origin_may_read_answers_if_all_are_allowed(
    trained_checkpoint: Checkpoint,
) -> None:
    access = AccessConfig(is_local=True, cors_origins=("*",))
    with running([served(trained_checkpoint, "en-de")], None, access) as server:
        answer = server.post("/translate", BODY, origin="https://evil.example")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert preflight(server, "null").status == 200


def test_a_server_on_the_network_answers_to_any_name(
    trained_checkpoint: Checkpoint, http: RunningServer
) -> None:
    assert http.post("/translate", BODY, host="any.example").status == 200
    access = AccessConfig(allowed_hosts=("one.example",))
    with running([served(trained_checkpoint, "en-de")], None, access) as server:
        assert server.post("/translate", BODY, host="one.example").status == 200
        assert server.post("/translate", BODY, host="any.example").status == 403


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"allowed_hosts": ("https://a.example",)}, "names without scheme and port"),
        ({"allowed_hosts": ("a.example:80",)}, "but one is 'a.example:80'"),
        ({"allowed_hosts": ("",)}, "but one is ''"),
        ({"cors_origins": ("a.example",)}, "but one is 'a.example'"),
        ({"cors_origins": ("https://a.example/path",)}, "must be origins such as"),
        ({"cors_origins": ("https://a.example:x",)}, "must be origins such as"),
    ],
)
def test_a_malformed_host_name_is_refused(
    setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AccessConfig(**setting)


def statuses(server: RunningServer, forwarded: Sequence[str]) -> list[int]:
    return [
        server.post("/translate", BODY, x_forwarded_for=each).status
        for each in forwarded
    ]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_server_on_all_addresses_trusts_a_proxy_of_ipv4(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(requests_per_minute=1)
    taking = ServerConfig(trusted_proxies=("127.0.0.0/8", "10.0.0.1"))
    models = [served(trained_checkpoint, "en-de")]
    with running(models, config, None, taking, "::") as server:
        told = ["1.1.1.1", "2.2.2.2", "9.9.9.9, 1.1.1.1, 10.0.0.1"]
        assert statuses(server, told) == [200, 200, 429]


def test_a_client_cannot_forge_its_address(trained_checkpoint: Checkpoint) -> None:
    config = AdmissionConfig(requests_per_minute=2)
    others = ["1.1.1.1", "2.2.2.2", "3.3.3.3, 127.0.0.1"]
    with running([served(trained_checkpoint, "en-de")], config) as server:
        assert statuses(server, others) == [200, 200, 429]


def test_a_trusted_proxy_may_state_the_clients_address(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(requests_per_minute=1)
    taking = ServerConfig(trusted_proxies=("127.0.0.0/8", "10.0.0.1"))
    with running([served(trained_checkpoint, "en-de")], config, None, taking) as server:
        # The last address that is not a proxy's counts as the client's.
        told = ["1.1.1.1", "2.2.2.2", "9.9.9.9, 1.1.1.1, 10.0.0.1", "3.3.3.3"]
        assert statuses(server, told) == [200, 200, 429, 200]


def test_an_ipv6_network_counts_as_one_client(trained_checkpoint: Checkpoint) -> None:
    config = AdmissionConfig(requests_per_minute=1)
    taking = ServerConfig(trusted_proxies=("127.0.0.1",))
    with running([served(trained_checkpoint, "en-de")], config, None, taking) as server:
        told = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::1", "2001:db8:1:3::1"]
        assert statuses(server, told) == [200, 429, 200]
        assert statuses(server, ["4.4.4.4", "::ffff:4.4.4.4"]) == [200, 429]


@pytest.mark.parametrize("proxy", ["proxy", "1.1.1", "10.0.0.1/8", "*"])
def test_a_proxy_without_an_address_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"must be addresses or networks"):
        ServerConfig(trusted_proxies=(proxy,))


class Panic(BaseException):
    """Exception like those of a library in another language."""


def fail(error: BaseException) -> Callable[..., Any]:
    def failing(*_: object, **__: object) -> Any:
        raise error

    return failing


@pytest.mark.parametrize(
    "error", [Panic("at the disco"), ValueError("no"), SystemExit(3)]
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/translate", BODY),
        ("/v1/translate", {"q": "one. two"}),
        ("/v1/score", {"source": ["one"], "target": ["eins"]}),
        ("/v1/attention", {"source": "one", "target": "eins"}),
    ],
)
def test_every_failure_is_answered_in_json(
    trained_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: object,
    error: BaseException,
) -> None:
    model = served(trained_checkpoint, "en-de")
    with running([model]) as server:
        with monkeypatch.context() as patch:
            tokenizer = model.queue.translator.tokenizer
            patch.setattr(tokenizer, "encode_sources", fail(error))
            while_counting = server.post(path, body)
        with monkeypatch.context() as patch:
            patch.setattr(model.queue.translator, "translate_stream", fail(error))
            patch.setattr(model.queue.translator, "score_stream", fail(error))
            # The server keeps the function that it has imported.
            attend, errors = sentence_attention.attend, [error]

            def attending(*arguments: Any) -> Any:
                return fail(error)() if errors else attend(*arguments)

            patch.setattr(sentence_attention, "attend", attending)
            at_work = server.post(path, body)
            errors.clear()
        after = server.post(path, body)
    for answer in (while_counting, at_work):
        *_, last = answer.body.splitlines()
        assert "The server failed (" in json.loads(last)["error"]
    assert while_counting.status == 500
    assert at_work.status == (200 if path == "/v1/translate" else 500)
    assert after.status == 200
    assert type(error).__name__ in caplog.text


def test_only_requests_with_a_known_key_are_admitted(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(api_keys=("sesame", "ключ"))
    with running([served(trained_checkpoint, "en-de")], config) as server:
        refused = server.post("/translate", BODY)
        assert refused.status == 403
        assert refused.json == {
            "error": "`api_key` must be a key of this server, but is not."
        }
        assert server.post("/translate", BODY | {"api_key": "sesam"}).status == 403
        assert server.post("/translate", BODY | {"api_key": "ключ"}).status == 200
        bearer = server.post("/translate", BODY, authorization="Bearer sesame")
        assert bearer.status == 200
        for scheme in ("bearer sesame", "BEARER  sesame ", " beaReR sesame"):
            answer = server.post("/translate", BODY, authorization=scheme)
            assert answer.status == 200
        for scheme in ("sesame", "Basic sesame", "Bearer", "Bearer sesame x"):
            answer = server.post("/translate", BODY, authorization=scheme)
            assert answer.status == 403
        assert server.get("/health").status == 200


@pytest.mark.parametrize("key", ["schlüssel", "alice 1234", "voilà"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_any_key_may_stand_in_the_header(
    trained_checkpoint: Checkpoint, key: str, encoding: str
) -> None:
    config = AdmissionConfig(api_keys=(key,))
    sent = key.encode(encoding).decode("latin-1")
    with running([served(trained_checkpoint, "en-de")], config) as server:
        for header, status in ((f"Bearer {sent} ", 200), (f"bearer {sent[:-1]}", 403)):
            answer = server.post("/translate", BODY, authorization=header)
            assert answer.status == status


def test_a_client_above_its_rate_gets_a_retry_time(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(requests_per_minute=2)
    with running([served(trained_checkpoint, "en-de")], config) as server:
        statuses = [server.post("/translate", BODY).status for _ in range(2)]
        refused = server.post("/translate", BODY)
    assert statuses == [200, 200]
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert "At most 2 requests a minute" in refused.json["error"]


def test_guesses_of_keys_are_limited(trained_checkpoint: Checkpoint) -> None:
    config = AdmissionConfig(api_keys=("sesame",), requests_per_minute=2)
    with running([served(trained_checkpoint, "en-de")], config) as server:
        guesses = [BODY | {"api_key": f"guess {i}"} for i in range(4)]
        statuses = [server.post("/translate", guess).status for guess in guesses]
        assert statuses == [403, 403, 429, 429]
        known = server.post("/translate", BODY | {"api_key": "sesame"})
        assert known.status == 200


def test_malformed_requests_count_towards_the_limit(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_REFUSED_PER_MINUTE", 2)
    with running([served(trained_checkpoint, "en-de")]) as server:
        statuses = [server.post("/translate", b"{").status for _ in range(3)]
        assert statuses == [400, 400, 429]
        assert server.post("/translate", BODY).status == 200


def test_requests_to_a_busy_model_time_out(trained_checkpoint: Checkpoint) -> None:
    model = served(trained_checkpoint, "en-de", QueueConfig(timeout_s=1))
    _ = model.queue.translator.torch_model  # or loading it may take the time
    opened, held = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        held.set()
        opened.wait()

    bodies = {
        "/translate": BODY,
        "/v1/translate": {"q": "one"},
        "/v1/score": {"source": ["one"], "target": ["eins"]},
        "/v1/attention": {"source": "one", "target": "eins"},
    }
    with running([model]) as server, ThreadPoolExecutor(len(bodies)) as clients:
        model.queue.on_batch = hold
        model.queue.submit(["one"])
        held.wait()
        answers = list(clients.map(server.post, bodies, bodies.values()))
        opened.set()
    for path, late in zip(bodies, answers, strict=True):
        assert "had no turn within 1 second" in late.json["error"], path
        if path != "/v1/translate":  # a stream, which has begun by then
            assert late.status == 503, path
            assert late.headers["retry-after"] == "1", path


def test_a_full_queue_is_reported(trained_checkpoint: Checkpoint) -> None:
    model = served(trained_checkpoint, "en-de", QueueConfig(max_waiting=1))
    opened, held = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        held.set()
        opened.wait()

    with running([model]) as server:
        model.queue.on_batch = hold
        first = model.queue.submit(["one"])
        held.wait()
        second = model.queue.submit(["two"])
        refused = server.post("/translate", BODY)
        opened.set()
        second[0].result()
        answered = server.post("/translate", BODY).status
    assert refused.status == 429
    assert refused.headers["retry-after"] == "1"
    assert answered == 200
    assert first[0].done()


def test_a_body_that_does_not_arrive_times_out(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(body_timeout_s=0.2)
    with running([served(trained_checkpoint, "en-de")], config) as server:
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        slow.putrequest("POST", "/translate")
        slow.putheader("content-length", "100")
        slow.endheaders(b"{")
        answer = slow.getresponse()
        assert answer.status == 408
        assert "must come within 0.2 seconds" in json.loads(answer.read())["error"]
        # Another request would count as the rest of the body.
        assert answer.getheader("connection") == "close"
        slow.close()


@pytest.mark.parametrize("is_half_closed", [False, True])
@pytest.mark.parametrize(
    ("path", "status"), [("/translate", "499"), ("/v1/translate", "200")]
)
def test_sentences_of_a_disconnected_client_are_not_translated(
    trained_checkpoint: Checkpoint, path: str, status: str, *, is_half_closed: bool
) -> None:
    """The answer to a stream has begun by then."""
    model = served(trained_checkpoint, "en-de")
    opened, held = threading.Event(), threading.Event()
    batches = []

    with running([model]) as server:

        def hold(size: int) -> None:
            batches.append(size)
            held.set()
            opened.wait()

        model.queue.on_batch = hold
        [first] = model.queue.submit(["one"])
        held.wait()
        body = json.dumps(BODY).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}"
            kind = "content-type: application/json"
            gone.sendall(f"{head}\r\n{kind}\r\n\r\n".encode() + body)
            wait_until(lambda: model.queue.num_waiting > 0)
            if is_half_closed:
                gone.shutdown(socket.SHUT_WR)
                gone.recv(1, socket.MSG_PEEK)  # the probe, or the head of a stream
        counted = f'path="{path}",status="{status}"'
        wait_until(lambda: counted in server.get("/metrics").body.decode())
        assert not first.done()  # the time limit would end the request as well
        opened.set()
        first.result()
        assert server.post("/translate", BODY).status == 200
    assert batches == [1, 1]


def test_work_ends_before_a_disconnection_is_reported() -> None:
    given_up = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # as the awaited work is cancelled one turn later
            given_up.append(True)

    async def leave() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def answered() -> None:
        await while_connected(Request({"type": "http"}, leave), work())

    with pytest.raises(RefusedError) as refused:
        asyncio.run(answered())
    assert refused.value.status == 499
    assert given_up == [True]


@pytest.mark.parametrize("kind", [CheckpointError, VersionError, AccessError])
def test_errors_of_the_servers_files_are_for_its_log(
    kind: type[TransduceError], caplog: pytest.LogCaptureFixture
) -> None:
    refusal = refusal_of(kind("/srv/models/mine: the weights were overwritten."))
    assert refusal.status == 500
    assert f"The server failed ({kind.__name__})" in str(refusal)
    assert "/srv" not in str(refusal)
    assert "/srv/models/mine" in caplog.text


def test_a_lack_of_memory_may_pass_but_is_not_to_be_tried_again_by_itself() -> None:
    refusal = refusal_of(LackOfMemoryError("The search needs 9 GB."))
    assert (refusal.status, str(refusal)) == (503, "The search needs 9 GB.")
    assert refusal.retry_after_s is None


def test_known_keys_are_accepted_and_others_are_not() -> None:
    assert is_accepted("b", ["a", "b"])
    assert not is_accepted("", ["a"])
    assert not is_accepted("\udcff", ["a"])


def test_a_file_of_keys_has_one_per_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(" one \n\ntwo\n", encoding="utf-8")
    assert read_keys(tmp_path / "keys") == ("one", "two")
    (tmp_path / "none").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="none: must hold a key a line"):
        read_keys(tmp_path / "none")


def test_rates_recover_with_time() -> None:
    now = 0.0
    rate = RateLimit(2, clock=lambda: now)
    assert [rate.seconds_to_wait("a") for _ in range(3)] == [0, 0, 30]
    assert rate.seconds_to_wait("b") == 0
    now = 29.0
    assert rate.seconds_to_wait("a") == 1
    now = 30.0
    assert rate.seconds_to_wait("a") == 0
    now = 3000.0
    assert [rate.seconds_to_wait("a") for _ in range(3)] == [0, 0, 30]
    # Only the last 10,000 clients are known.
    assert not any(rate.seconds_to_wait(f"client {i}") for i in range(10_000))
    assert rate.seconds_to_wait("a") == 0


@pytest.mark.parametrize(
    "name",
    [
        *("*", "*.example.org", ".example.org", "a.org,b.org", "a b"),
        *("bücher.example", "[::1]:80", "::1::"),
    ],
)
def test_a_host_name_that_no_request_could_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AccessConfig(allowed_hosts=(name,))
    assert f"such as example.org, but one is {name!r}." in str(refused.value)
    assert ("xn--" in str(refused.value)) is not name.isascii()


@pytest.mark.parametrize(
    "name", ["a.org", "A.org", "a_b", "10.0.0.1", "[::1]", "xn--a"]
)
def test_a_host_name_or_an_address_may_be_allowed(name: str) -> None:
    assert AccessConfig(is_local=True, allowed_hosts=(name,)).allows_host(f"{name}:80")


@pytest.mark.parametrize("name", ["2001:db8::1", "[2001:DB8::1]", "2001:DB8:0:0::1"])
def test_an_ipv6_address_may_be_allowed_in_any_form(name: str) -> None:
    config = AccessConfig(is_local=True, allowed_hosts=(name,))
    for host in ("[2001:db8::1]", "[2001:db8::1]:80", "[2001:DB8:0::1]:80"):
        assert config.allows_host(host)
    assert not config.allows_host("[2001:db8::2]")
    assert config.allows_origin("http://[2001:db8::1]", "localhost")


@pytest.mark.parametrize(
    "origin",
    [
        *("https://*.example.org", "https://bücher.example", "null", "file://"),
        *("https://a.org,https://b.org", "https://", ""),
    ],
)
def test_an_origin_that_no_page_could_have_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AccessConfig(cors_origins=(origin,))
    assert f"such as https://example.org, or *, but one is {origin!r}." in str(
        refused.value
    )


@pytest.mark.parametrize("name", ["requests_per_minute", "max_characters"])
def test_an_impossible_limit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least 1, but is 0"):
        AdmissionConfig(**{name: 0})
