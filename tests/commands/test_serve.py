"""`transduce serve` in its own process, with independent clients."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from libretranslatepy import LibreTranslateAPI

from transduce.decoding.translator import load
from transduce.errors import missing_package
from transduce.serving.admission import AdmissionConfig
from transduce.serving.connection import ConnectionConfig
from transduce.serving.request_queue import QueueConfig
from waiting import PATIENCE_S, wait_until


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    process: subprocess.Popen[str]
    address: str

    def translate(self, text: str) -> str:
        return LibreTranslateAPI(self.address).translate(text, "en", "de")

    def stop(self, how: signal.Signals) -> tuple[int, str]:
        """Stop the server; return its exit code and its output."""
        self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@contextmanager
def running(model: str, *options: str) -> Iterator[Served]:
    """Start a server of a model from English to German, and kill it in the end."""
    command = [sys.executable, "-m", "transduce", "serve", f"en-de={model}"]
    with subprocess.Popen(
        [*command, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving en-de at http://127.0.0.1:")
        yield Served(process=process, address=line.split()[-1])
        process.kill()


@pytest.fixture
def serving(model: Path) -> Iterator[Served]:
    """Server that a test may stop."""
    with running(str(model)) as served:
        yield served


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Served]:
    """Server of all tests that leave it running."""
    with running(str(model)) as served:
        yield served


def test_clients_of_libretranslate_work_unchanged(shared: Served, model: Path) -> None:
    offline = [each.text for each in load(model).translate(["one two", "three"])]
    client = LibreTranslateAPI(shared.address)
    assert client.translate("one two", "en", "de") == offline[0]
    assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
    assert client.detect("one") == [{"confidence": 0.0, "language": "en"}]

    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed; what libretranslatepy asks was answered")
    form = ["-d", "q=three", "-d", "source=en", "-d", "target=de"]
    url = f"{shared.address}/translate"
    done = subprocess.run([curl, "-sS", url, *form], capture_output=True, check=True)
    assert json.loads(done.stdout) == {"translatedText": offline[1]}


def test_an_ensemble_is_served_as_one_model(model: Path, other_model: Path) -> None:
    text = "one two"
    expected, alone = (
        load(*models).translate(text).text
        for models in ((model, other_model), (model,))
    )
    assert expected != alone
    with running(f"{model},{other_model}") as served:
        assert served.translate(text) == expected


def test_clients_of_libretranslate_get_the_terms_of_the_default_glossary(
    model: Path, tmp_path: Path
) -> None:
    terms, law = tmp_path / "terms.tsv", tmp_path / "law.tsv"
    terms.write_text("two\tpaar\n")
    law.write_text("two\tzwo\n")
    expected = load(model).with_glossary({"two": "paar"}).translate("one two").text
    options = ("--glossary", str(terms), "--glossary", f"en:de:law={law}")
    with running(str(model), *options) as served:
        assert served.translate("one two") == expected
        with urllib.request.urlopen(f"{served.address}/v1/glossaries") as answer:
            assert [each["name"] for each in json.load(answer)] == ["default", "law"]


@pytest.mark.parametrize(
    ("glossaries", "message"),
    [
        (["nowhere.tsv"], "nowhere.tsv"),
        (["none=terms.tsv"], "must have another name than 'none'"),
        (["a=terms.tsv", "a=terms.tsv"], "but two are 'a'"),
        (["fr:de=terms.tsv"], "must have the languages of a model"),
        (["spaces.tsv"], "spaces.tsv:1: a tab must separate"),
    ],
)
def test_a_glossary_that_cannot_be_served_is_refused(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    glossaries: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("terms.tsv").write_text("two\tpaar\n")
    Path("spaces.tsv").write_text("two  paar\n")
    options = [each for text in glossaries for each in ("--glossary", text)]
    assert message in refuses("serve", f"en-de={model}", "--port", "0", *options)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_server_after_its_last_response(
    serving: Served, how: signal.Signals
) -> None:
    text = "\n".join(["one two three four five six seven eight"] * 150)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(serving.translate(text)))
    asking.start()
    wait_until(lambda: waiting_sentences(serving) > 0)
    code, errors = serving.stop(how)
    asking.join()
    assert answers[0].count("\n") == 149
    assert (code, errors) == (0, "")


def test_a_second_interrupt_ends_the_server_at_once(serving: Served) -> None:
    port = int(serving.address.rpartition(":")[2])
    kind = "Content-Type: application/x-www-form-urlencoded"
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        # The body does not come, so that the server would wait for it.
        client.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
        serving.translate("one")  # by now it has read the head
        serving.process.send_signal(signal.SIGINT)
        wait_until(lambda: not is_open(port))
        code, errors = serving.stop(signal.SIGINT)
    assert (code, errors) == (2, "transduce: Interrupted.\n")


def is_open(port: int) -> bool:
    """Return whether a server listens at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def waiting_sentences(serving: Served) -> float:
    with urllib.request.urlopen(f"{serving.address}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("transduce_waiting_sentences{"):
                return float(line.split()[-1])
    return 0.0


def test_a_port_in_use_is_refused(
    shared: Served, refuses: Callable[..., str], model: Path
) -> None:
    port = shared.address.rpartition(":")[2]
    message = refuses("serve", model, "--port", port)
    assert message == (
        f"127.0.0.1:{port} must be free to listen at, but is not (Address already in "
        "use); choose another host or port."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "At least one model must be given before the options, but none is."),
        (("missing",), "missing: must be a model or a run"),
        (("a=missing", "a=other"), "must be different, but two are 'a'"),
        (("?=missing",), "but is '?'; name it as in en-de=FOLDER."),
        (
            ("missing", "--port", "99999"),
            "must be from 0 to 65535, but is 99999",
        ),
        (("missing", "--host", "no.such.invalid"), "but is 'no.such.invalid' ("),
        (("missing", "--host", "127..0.0.1"), "machine, but is '127..0.0.1'; choose"),
        (("missing", "--host", "a" * 64), "an address of this machine, but is 'aaa"),
        (("missing", "--host", ""), "an address of this machine, but is '' ("),
        (("missing", "--max-waiting", "0"), "`max_waiting` must be at least 1"),
        (("missing", "--timeout", "nan"), "The timeout must be above 0 seconds"),
        (("missing", "--max-characters", "0"), "`max_characters` must be at least 1"),
        (("missing", "--requests-per-minute", "0"), "must be at least 1, but is 0"),
        (("missing", "--max-tokens", "0"), "`max_tokens` must be at least 1, but is 0"),
        (("missing", "--timeout", "1e300"), "at most 86,400, but is 1e+300"),
        (("missing", "--max-connections", "0"), "`max_connections` must be at least 1"),
        (
            ("missing", "--client-timeout", "0"),
            "client timeout must be above 0 seconds",
        ),
        (("missing", "--client-timeout", "1e20"), "at most 86,400, but is 1e+20"),
        (("missing", "--allowed-hosts", "http://a"), "but one is 'http://a'"),
        (("missing", "--cors-origins", "a"), "must be origins such as"),
        (("missing", "--trusted-proxies", "a"), "must be addresses or networks"),
        (("missing", "--trusted-proxies", "10.0.0.0/8", "a"), "but one is 'a'"),
        (("missing", "--allowed-hosts", "a", "http://b"), "but one is 'http://b'"),
        (("zh-hans-pt-br=missing",), "write them as SOURCE:TARGET=FOLDER"),
        (("x1:de=missing",), "A language must be a BCP 47 tag, but is 'x1'"),
        (("missing", "--api-keys", "nowhere"), "nowhere: the file cannot be read"),
        (("missing", "--port", "x"), 'must be a whole number, but is "x".'),
    ],
    ids=str,
)
def test_a_bad_command_is_refused(
    refuses: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    port = () if "--port" in arguments else ("--port", "0")
    assert message in refuses("serve", *arguments, *port)


@pytest.mark.parametrize(
    "option",
    [("--no-repeat-ngram", 3), ("--repetition-penalty", 2), ("--shortlist",)],
    ids=lambda option: option[0],
)
def test_parsers_alone_have_no_options_of_translation(
    refuses: Callable[..., str],
    parsing_model: Path,
    tmp_path: Path,
    option: tuple[object, ...],
) -> None:
    parser = shutil.copytree(parsing_model, tmp_path / "parser")
    (parser / "model.safetensors").write_bytes(b"not loaded")
    assert refuses("serve", parser, "--port", 0, *option) == (
        f"{option[0]} is for models that translate, but all of these parse; leave it "
        "out."
    )


def test_a_missing_package_is_named_with_its_extra(
    refuses: Callable[..., str],
    model: Path,
    import_anew: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import_anew("transduce.serving")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert refuses("serve", model, "--port", "0") == missing_package(
        "`transduce serve`", "fastapi", "serve"
    )


def test_the_command_has_the_defaults_of_the_server() -> None:
    from inspect import signature

    from transduce.cli.serve import serve

    options = {n: p.default for n, p in signature(serve).parameters.items()}
    queueing, admitting = QueueConfig(), AdmissionConfig()
    assert options["max_waiting"] == queueing.max_waiting
    assert options["timeout"] == queueing.timeout_s
    assert options["batch_size"] == queueing.batch_size
    assert options["max_tokens"] == queueing.max_tokens
    assert options["max_characters"] == admitting.max_characters
    assert options["client_timeout"] == admitting.body_timeout_s
    assert options["client_timeout"] == ConnectionConfig().header_timeout_s
    assert options["max_connections"] == ConnectionConfig().max_connections


CURLED = {"q": "one two", "source": "en", "target": "de"}


@pytest.mark.parametrize(
    "body",
    [
        ["-H", "content-type: application/json", "-d", json.dumps(CURLED)],
        ["-H", "content-type: application/json; charset=utf-8", "-d",
         json.dumps(CURLED | {"api_key": None, "format": None})],
        [each for name in CURLED for each in ("-d", f"{name}={CURLED[name]}")],
        [each for name in CURLED for each in ("-F", f"{name}={CURLED[name]}")],
        ["--http1.0", "-d", "q=one two&source=EN&target=de-AT"],
        ["-H", "transfer-encoding: chunked", "-d", "q=one two&source=en&target=de"],
        ["-H", "expect: 100-continue", "-F", "q=one two", "-F", "target=de"],
    ],
    ids=["json", "nulls", "form", "form data", "http1.0", "chunked", "expect"],
)  # fmt: skip
def test_curl_sends_a_body_of_any_kind(
    shared: Served, model: Path, body: list[str]
) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed")
    url = f"{shared.address}/translate"
    done = subprocess.run([curl, "-sS", url, *body], capture_output=True, check=True)
    [offline] = load(model).translate(["one two"])
    assert json.loads(done.stdout)["translatedText"] == offline.text


def test_a_site_does_not_reach_the_server_through_a_browser(shared: Served) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        form = b"q=one&source=en&target=de"
        request = urllib.request.Request(f"{shared.address}/translate", form, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as answer:
            assert answer.code == 403
            assert set(json.loads(answer.read())) == {"error"}


def test_streams_end_in_order_at_a_shutdown(serving: Served) -> None:
    text = "\n".join(["one two three four five six seven eight"] * 150)
    body = json.dumps({"q": text, "alternatives": 4}).encode()
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(f"{serving.address}/v1/translate", body, kind)
    with urllib.request.urlopen(request) as answer:
        first = answer.readline()
        serving.process.send_signal(signal.SIGTERM)
        lines = [first, *answer]
    assert len([json.loads(line) for line in lines]) == 299
    assert serving.process.wait(60) == 0


def test_few_open_files_are_enough_for_many_clients(model: Path) -> None:
    """Waiting connections leave no message in the log."""
    command = [sys.executable, "-m", "transduce", "serve", f"en-de={model}"]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        port = int(address.rpartition(":")[2])
        with ExitStack() as clients:
            for _ in range(200):
                idle = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
                clients.enter_context(idle)
            assert Served(process=process, address=address).translate("one")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
