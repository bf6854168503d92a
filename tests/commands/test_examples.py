"""The examples run as described in their first lines, with small models."""

import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from email.message import Message
from io import BytesIO
from itertools import product
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError, URLError

import pytest

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.serving.admission import AdmissionConfig
from transduce.serving.served_models import ModelName
from waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERS = ("one", "two", "three", "four", "five")


def example(name: str, *arguments: object, **variables: str) -> list[str]:
    """Run an example, which must succeed; return its output lines."""
    program = [sys.executable] if name.endswith(".py") else ["sh"]
    folder = Path(sys.executable).parent
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    done = subprocess.run(
        [*program, str(EXAMPLES / name), *map(str, arguments)],
        input="one two\nthree\n",
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PATH": path, "no_proxy": "*", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def http(trained_checkpoint: Checkpoint) -> Iterator[RunningServer]:
    config = AdmissionConfig(api_keys=("key-1",))
    with running([served(trained_checkpoint, "en-de")], config) as server:
        yield server


def test_the_example_of_translation_prints_three_translations_a_line(
    model: Path,
) -> None:
    lines = [line.split("\t") for line in example("translate.py", model)]
    assert len(lines) == 6
    assert {"eins zwei", "drei"} <= {text for _, text in lines}
    scores = [float(score) for score, _ in lines]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_the_example_of_training_ends_with_scores_and_translations(
    tmp_path: Path,
) -> None:
    numbers = [" ".join(words) for words in product(NUMBERS, repeat=4)]
    for name in ("my.en", "my.de"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in numbers))
    run = tmp_path / "run"
    files = (tmp_path / "my.en", tmp_path / "my.de", run)
    small = ("--preset", "tiny", "--device", "cpu", "--set", "training.steps=2")
    lines = example("train.sh", *files, *small, "search.beam_size=1", TEST_PAIRS="9")
    assert any(line.startswith("sacreBLEU = ") for line in lines)
    assert (run / "averaged" / "model.safetensors").is_file()
    assert len((tmp_path / "run.parts" / "test.de").read_text().splitlines()) == 9


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_example_of_curl_prints_the_server_s_answer(http: RunningServer) -> None:
    variables = {"TRANSDUCE_URL": http.address, "TRANSDUCE_KEY": "key-1"}
    lines = example("client.sh", "one two", "en", "de", **variables)
    assert lines == ['{"translatedText":"eins zwei"}']


def test_the_example_of_a_client_keeps_the_lines_of_a_file(
    http: RunningServer, tmp_path: Path
) -> None:
    text = tmp_path / "letter.txt"
    text.write_text("one two\n\nthree\n")
    variables = {"TRANSDUCE_URL": http.address, "TRANSDUCE_KEY": "key-1"}
    assert example("client.py", text, **variables) == ["eins zwei", "", "drei"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": "The text is too long."}', "The text is too long."),
        (b"<html>Bad Gateway</html>", "502 Bad Gateway"),
        (b"[]", "502 Bad Gateway"),
        (b"\xff", "502 Bad Gateway"),
        (None, "cannot be reached: Connection refused."),
    ],
)
def test_the_example_of_a_client_ends_with_the_sentence_of_a_server_or_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None, expected: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        if body is None:
            raise URLError("Connection refused")
        raise HTTPError("http://h", 502, "Bad Gateway", Message(), BytesIO(body))

    (tmp_path / "letter.txt").write_text("one two\n")
    main = runpy.run_path(str(EXAMPLES / "client.py"))["main"]
    monkeypatch.setitem(main.__globals__, "urlopen", refuse)
    monkeypatch.setattr(sys, "argv", ["client.py", str(tmp_path / "letter.txt")])
    with pytest.raises(SystemExit, match=expected):
        main()


WHOLE = b'{"translation": "eins"}\n'
HEAD = b"HTTP/1.1 200 OK\r\n"
IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        IN_CHUNKS + b"%x\r\n%b\r\n" % (len(WHOLE), WHOLE),
        IN_CHUNKS + b"99\r\n" + WHOLE,
        HEAD + b"Content-Length: 99\r\n\r\n" + WHOLE,
        HEAD + b"Content-Length: 6\r\n\r\n<html>",
        HEAD + b"Content-Length: 2\r\n\r\n[]",
        b"",
    ],
    ids=["between chunks", "in a chunk", "length", "page", "other JSON", "no answer"],
)
def test_the_example_of_a_client_ends_with_a_sentence_if_no_whole_answer_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    (tmp_path / "letter.txt").write_text("one two\n")
    monkeypatch.setattr(sys, "argv", ["client.py", str(tmp_path / "letter.txt")])
    monkeypatch.setenv("no_proxy", "*")

    def reply(server: socket.socket) -> None:
        client, _ = server.accept()
        client.settimeout(PATIENCE_S)
        with client:
            while (part := client.recv(65_536)) and not part.endswith(b"}"):
                pass
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("TRANSDUCE_URL", address)
        main = runpy.run_path(str(EXAMPLES / "client.py"))["main"]
        server.settimeout(PATIENCE_S)
        thread = Thread(target=reply, args=(server,), daemon=True)
        thread.start()
        with pytest.raises(SystemExit) as ended:
            main()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    sentence = f"{address}: no whole answer of a server of transduce came: "
    assert str(ended.value).startswith(sentence)


def test_the_example_of_a_client_names_a_file_that_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letter.txt").write_bytes("Grüße".encode("latin-1"))
    monkeypatch.setattr(sys, "argv", ["client.py", str(tmp_path / "letter.txt")])
    main = runpy.run_path(str(EXAMPLES / "client.py"))["main"]
    with pytest.raises(SystemExit, match=r"letter\.txt: the text must be UTF-8"):
        main()


def test_the_health_check_of_the_image_needs_no_proxy(http: RunningServer) -> None:
    text = (EXAMPLES.parent / "Dockerfile").read_text(encoding="utf-8")
    lines = text.partition("HEALTHCHECK ")[2].replace("\\\n", "").splitlines()
    _, *command = json.loads(lines[0].partition(" CMD ")[2])
    assert ":5000/health" in command[-1]
    command[-1] = command[-1].replace("http://127.0.0.1:5000", http.address)
    proxies = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, *command], check=True, env=proxies)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_reads_the_example_of_a_service(tmp_path: Path) -> None:
    unit = (EXAMPLES / "transduce.service").read_text(encoding="utf-8")
    assert "ExecStart=/opt/transduce/bin/transduce serve " in unit
    copy = tmp_path / "transduce.service"
    copy.write_text(unit.replace("/opt/transduce/bin/transduce", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "file", ["Dockerfile", "compose.yaml", "examples/transduce.service"]
)
def test_a_server_of_the_examples_takes_the_languages_of_its_model(file: str) -> None:
    text = (EXAMPLES.parent / file).read_text(encoding="utf-8")
    [model] = re.findall(
        r"\bserve\b[\", ]+([^\s\"]+)", text.partition("FROM")[2] or text
    )
    name = ModelName.parse(model)
    assert (name.name, name.stated) == ("mine", None)
