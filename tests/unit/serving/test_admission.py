import asyncio
import http.client
import json
import socket
import threading
from pathlib import Path

import pytest
from starlette.requests import Request

from serving_client import running, served
from transduce.checkpoint import Checkpoint
from transduce.errors import ConfigError
from transduce.serving import admission
from transduce.serving.admission import (
    AdmissionConfig,
    RateLimit,
    RefusedError,
    is_known,
    read_keys,
    while_connected,
)
from transduce.serving.request_queue import QueueConfig
from waiting import wait_until

BODY = {"q": "one", "source": "en", "target": "de"}


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


@pytest.mark.parametrize("path", ["/translate", "/v1/score", "/v1/attention"])
def test_a_request_to_a_busy_model_times_out(
    trained_checkpoint: Checkpoint, path: str
) -> None:
    model = served(trained_checkpoint, "en-de", QueueConfig(timeout_s=0.3))
    opened, held = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        held.set()
        opened.wait()

    bodies = {
        "/translate": BODY,
        "/v1/score": {"source": ["one"], "target": ["eins"]},
        "/v1/attention": {"source": "one", "target": "eins"},
    }
    with running([model]) as server:
        model.queue.on_batch = hold
        model.queue.submit(["one"])
        held.wait()
        late = server.post(path, bodies[path])
        stream = server.post("/v1/translate", {"q": "one"})
        opened.set()
    assert late.status == 503
    assert late.headers["retry-after"] == "1"
    assert "had no turn within 0.3 seconds" in late.json["error"]
    assert stream.json["error"] == late.json["error"]


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
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        slow.putrequest("POST", "/translate")
        slow.putheader("content-length", "100")
        slow.endheaders(b"{")
        answer = slow.getresponse()
        assert answer.status == 408
        assert "must come within 0.2 seconds" in json.loads(answer.read())["error"]
        slow.close()


@pytest.mark.parametrize(
    ("path", "status"), [("/translate", "499"), ("/v1/translate", "200")]
)
def test_sentences_of_a_disconnected_client_are_not_translated(
    trained_checkpoint: Checkpoint, path: str, status: str
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
        counted = f'path="{path}",status="{status}"'
        wait_until(lambda: counted in server.get("/metrics").body.decode())
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


def test_known_keys_are_accepted_and_others_are_not() -> None:
    assert is_known("b", ["a", "b"])
    assert not is_known("", ["a"])
    assert not is_known("\udcff", ["a"])


def test_a_file_of_keys_has_one_per_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(" one \n\ntwo\n", encoding="utf-8")
    assert read_keys(tmp_path / "keys") == ("one", "two")
    (tmp_path / "none").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="none: must hold a key a line"):
        read_keys(tmp_path / "none")


def test_rates_recover_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(admission, "MAX_CLIENTS", 1)
    assert [rate.seconds_to_wait(client) for client in "ba"] == [0, 0]


@pytest.mark.parametrize("name", ["requests_per_minute", "max_characters"])
def test_an_impossible_limit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least 1, but is 0"):
        AdmissionConfig(**{name: 0})
