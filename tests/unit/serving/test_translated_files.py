"""Files that clients of LibreTranslate send to be translated."""

import asyncio
import http.client
from typing import Any

import pytest

from serving_client import Answer, RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import TooLongError
from transduce.serving.admission import AdmissionConfig
from transduce.serving.translated_files import (
    BYTES_OF_ENTRY,
    TranslatedFile,
    TranslatedFiles,
)

EN_DE = {"source": "en", "target": "de"}
KIND = "multipart/form-data; boundary=xx"


def form(content: bytes, name: str, kind: str = "text/plain", **fields: str) -> bytes:
    parts = [
        f'--xx\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in (EN_DE | fields).items()
    ]
    head = (
        f'--xx\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        f"Content-Type: {kind}\r\n\r\n"
    )
    return "".join([*parts, head]).encode() + content + b"\r\n--xx--\r\n"


def send(server: RunningServer, *given: Any, **fields: str) -> Answer:
    return server.post("/translate_file", form(*given, **fields), content_type=KIND)


def download(server: RunningServer, answer: Answer) -> Answer:
    assert answer.status == 200, answer.body
    address = answer.json["translatedFileUrl"]
    assert address.startswith(f"{server.address}/download_file/")
    return server.get(address.removeprefix(server.address))


@pytest.fixture(scope="module")
def german(http: RunningServer) -> dict[str, str]:
    """Translation of each text."""
    translator = http.models[0].queue.translator
    return {text: translator.translate(text).text for text in ("one two", "three")}


def test_a_text_is_translated_and_downloaded(
    http: RunningServer, german: dict[str, str]
) -> None:
    answer = send(http, b"one two\r\n\r\nthree", "letter.txt")
    found = download(http, answer)
    assert found.body.decode() == f"{german['one two']}\r\n\r\n{german['three']}"
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    named = "attachment; filename*=UTF-8''letter.de.txt"
    assert found.headers["content-disposition"] == named
    assert answer.json["translatedFileUrl"].endswith(".letter.de.txt")
    assert download(http, answer).body == found.body  # as often as it is wanted


def test_a_page_keeps_its_tags_and_does_not_run(
    http: RunningServer, german: dict[str, str]
) -> None:
    page = b"<p>one <b>two</b><script>alert(1)</script>"
    found = download(http, send(http, page, "page.HTM", "text/html"))
    assert found.body.startswith(b"<p>")
    assert found.body.count(b"<b>") == 1
    assert found.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["content-disposition"].startswith("attachment;")


@pytest.mark.parametrize("name", ["film.srt", "film.vtt"])
def test_subtitles_keep_their_times(
    http: RunningServer, german: dict[str, str], name: str
) -> None:
    times = "00:00:01.000 --> 00:00:02.000\n"
    found = download(http, send(http, f"{times}one two\n".encode(), name))
    assert found.body.decode() == f"{times}{german['one two']}\n"


@pytest.mark.parametrize(
    ("content", "name", "kind"),
    [
        ("one two".encode("utf-16"), "a.txt", ""),
        (b"\xef\xbb\xbfone two", "a.txt", ""),
        (b"<meta charset=latin1>\xe9<p>one two", "a.html", ""),
        (b"one two\n\xe9\xe9", "a.txt", "text/plain; charset=windows-1252"),
    ],
)
def test_a_file_may_be_in_another_charset_but_its_translation_is_in_utf_8(
    http: RunningServer, german: dict[str, str], content: bytes, name: str, kind: str
) -> None:
    found = download(http, send(http, content, name, kind)).body.decode()
    assert german["one two"] in found
    assert found.startswith("\ufeff") == (not kind)


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("../../etc/pass%2fwd.txt", "pass_2fwd.de.txt"),
        ("C:\\\\x\\\\Grüße 文.txt", "Gr%C3%BC%C3%9Fe%20%E6%96%87.de.txt"),
        ("....txt", "file.de.txt"),
        ("a;b.txt", "a_b.de.txt"),
        ("x" * 300 + ".txt", "x" * 100 + ".de.txt"),
    ],
)
def test_the_name_of_a_file_leads_nowhere(
    http: RunningServer, name: str, saved: str
) -> None:
    answer = send(http, b"one", name)
    found = download(http, answer)
    named = f"attachment; filename*=UTF-8''{saved}"
    assert found.headers["content-disposition"] == named
    assert answer.json["translatedFileUrl"].endswith(f".{saved}")


@pytest.mark.parametrize(
    ("content", "name", "status", "error"),
    [
        (b"one", "a.docx", 400, "`file` must be one of .txt, .html, .htm, .srt, .vtt"),
        (b"one", "txt", 400, "must be one of"),
        (b"PK\x03\x04\0\0", "a.txt", 400, '"a.txt" has control characters'),
        (b"\xff\xfeo\0n", "a.txt", 400, "is in another; save it in UTF-8"),
        (b"caf\xe9", "a.txt", 400, "must be text in UTF-8 or UTF-16"),
        (b"one", "a.srt", 400, "must have lines of times"),
        (b"a" * 100, "a.txt", 413, "at most 99 characters of text, but has 100"),
        (b"<br>" * 5_000, "a.html", 413, "The body must have at most 11,188 bytes"),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(
    trained_checkpoint: Checkpoint, content: bytes, name: str, status: int, error: str
) -> None:
    config = AdmissionConfig(max_characters=99)
    with running([served(trained_checkpoint, "en-de")], config) as server:
        answer = send(server, content, name)
    assert answer.status == status
    assert error in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (b'{"file": {"name": "a.txt", "content": "one"}}', "application/json",
         "file: Input should be one file with a name"),
        (b"file=one&target=de", "application/x-www-form-urlencoded",
         "file: Input should be one file"),
        (form(b"one", "a.txt").replace(b'; filename="a.txt"', b""), KIND,
         "file: Input should be one file"),
        (form(b"one", "a.txt").replace(b'"file"', b'"source"'), KIND,
         "`source` must be text, but is a file"),
        (form(b"one", "a.txt")[:-9], KIND, "end is missing"),
        (form(b"one", "a.txt", target="xx"), KIND, "must be languages of a model"),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_request_without_a_file_is_refused(
    http: RunningServer, body: bytes, kind: str, error: str
) -> None:
    answer = http.post("/translate_file", body, content_type=kind)
    assert answer.status == 400
    assert error in answer.json["error"]


@pytest.mark.parametrize(
    "name", ["x", "x.letter.de.txt", "..%2f..%2fetc%2fpasswd", "%00"]
)
def test_an_unknown_address_has_no_file(http: RunningServer, name: str) -> None:
    answer = http.get(f"/download_file/{name}")
    assert answer.status == 404
    assert set(answer.json) == {"error"}


def test_a_key_is_needed_to_translate_but_not_to_download(
    trained_checkpoint: Checkpoint,
) -> None:
    config = AdmissionConfig(api_keys=("sesame",))
    with running([served(trained_checkpoint, "en-de")], config) as server:
        assert send(server, b"one", "a.txt").status == 403
        answer = send(server, b"one", "a.txt", api_key="sesame")
        assert download(server, answer).status == 200


def test_the_address_has_the_host_of_the_request(
    trained_checkpoint: Checkpoint,
) -> None:
    with running([served(trained_checkpoint, "en-de")]) as server:
        for host, status in (("example.org:81", 200), ("a b", 400), ("x/y?", 400)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request(
                "POST",
                "/translate_file",
                form(b"one", "a.txt"),
                {"host": host, "content-type": KIND},
            )
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            assert answer.status == status
            if status == 200:
                assert '"http://example.org:81/download_file/' in body


def test_a_file_is_translated_through_a_pivot(trained_checkpoint: Checkpoint) -> None:
    models = [served(trained_checkpoint, name) for name in ("en-de", "de-fr")]
    translator = Translator(trained_checkpoint, "cpu")
    expected = translator.translate(translator.translate("one two").text).text
    with running(models, pivots=["de"]) as server:
        answer = send(server, b"one two", "a.txt", target="fr")
        assert download(server, answer).body.decode() == expected


def kept(content: bytes) -> TranslatedFile:
    return TranslatedFile(name="a.txt", media_type="text/plain", content=content)


def test_files_are_kept_for_a_time_and_the_oldest_make_room() -> None:
    async def check() -> None:
        files = TranslatedFiles(max_bytes=3 * BYTES_OF_ENTRY, life_s=0.05)
        with pytest.raises(TooLongError, match="fewer than 3,000 bytes"):
            files.add(kept(b"x" * 3 * BYTES_OF_ENTRY))
        keys = [files.add(kept(bytes([i]))) for i in range(3)]
        found = [files.get(key) for key in keys]
        assert found == [None, kept(b"\x01"), kept(b"\x02")]
        while any(map(files.get, keys)):
            await asyncio.sleep(0.01)
        again = files.add(kept(b"x" * (3 * BYTES_OF_ENTRY - BYTES_OF_ENTRY)))
        assert files.get(again) is not None

    asyncio.run(check())
