"""Access by hosts, origins and proxies, and answers to unexpected failures."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from serving_client import Answer, RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.errors import ConfigError
from transduce.serving.access import AccessConfig
from transduce.serving.admission import AdmissionConfig
from transduce.serving.server import ServerConfig

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
        *("localhost@evil.example", "[::1", "127.0.0.1.evil.example", "10.0.0.1"),
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


def preflight(server: RunningServer, origin: str, method: str = "POST") -> Answer:
    return server.ask(
        "OPTIONS",
        "/translate",
        origin=origin,
        access_control_request_method=method,
        access_control_request_headers="content-type, authorization",
    )


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
            attend = "transduce.analysis.sentence_attention.attend"
            patch.setattr(attend, fail(error))
            at_work = server.post(path, body)
        after = server.post(path, body)
    for answer in (while_counting, at_work):
        *_, last = answer.body.splitlines()
        assert "The server failed (" in json.loads(last)["error"]
    assert while_counting.status == 500
    assert at_work.status == (200 if path == "/v1/translate" else 500)
    assert after.status == 200
    assert type(error).__name__ in caplog.text
