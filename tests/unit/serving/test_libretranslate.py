"""Requests as clients of LibreTranslate send them, and answers as they read them."""

import asyncio
import encodings
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.serving.admission import Admission, AdmissionConfig
from transduce.serving.messages import (
    CODECS,
    FORM,
    JSON,
    RefusedError,
    TranslateRequest,
)

FIELDS = {"q": "one two", "source": "en", "target": "de", "format": "text"}


@pytest.fixture(scope="module")
def many(trained_checkpoint: Checkpoint) -> Iterator[RunningServer]:
    """Server of language pairs with scripts and regions."""
    names = ["en-de", "de-en", "zh-Hans-pt-BR", "zh-Hant-pt-PT", "en-no"]
    with running([served(trained_checkpoint, name) for name in names]) as server:
        yield server


def multipart(fields: dict[str, str]) -> bytes:
    parts = (
        f'--xx\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    return ("".join(parts) + "--xx--\r\n").encode()


def post_form_data(server: RunningServer, fields: dict[str, str]) -> Any:
    kind = "multipart/form-data; boundary=xx"
    return server.post("/translate", multipart(fields), content_type=kind).json


def test_mastodons_requests_for_lists_of_html_and_languages_are_answered(
    http: RunningServer,
) -> None:
    texts = ["<p>one two</p>", "", "three &amp; four"]
    body = {"q": texts, "source": "auto", "target": "de", "format": "html"}
    answer = http.post("/translate", body | {"api_key": None}).json
    assert len(answer["translatedText"]) == 3
    assert answer["translatedText"][0].startswith("<p>")
    assert answer["translatedText"][1] == ""
    assert answer["detectedLanguage"] == [{"confidence": 0.0, "language": "en"}] * 3
    assert "alternatives" not in answer


@pytest.mark.parametrize("blank", [None, ""])
@pytest.mark.parametrize("field", ["api_key", "format", "source", "alternatives"])
def test_blank_fields_count_as_missing(
    http: RunningServer, field: str, blank: str | None
) -> None:
    body = {"q": "one two", "target": "de"}
    expected = http.post("/translate", body).json
    assert "translatedText" in expected
    assert http.post("/translate", body | {field: blank}).json == expected


@pytest.mark.parametrize("path", ["/translate", "/v1/translate"])
@pytest.mark.parametrize("name", ["HTML", "Html "])
def test_a_format_may_be_in_any_case(http: RunningServer, path: str, name: str) -> None:
    body = {"q": "<p>one</p>", "target": "de", "model": "en-de", "format": "html"}
    expected = http.post(path, body)
    assert expected.status == 200
    assert http.post(path, body | {"format": name}).body == expected.body


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/parse"])
def test_blank_fields_count_as_missing_in_every_request(
    http: RunningServer, path: str
) -> None:
    body = {"q": "one", "model": "en-de" if "translate" in path else "trees"}
    expected = http.post(path, body)
    assert expected.status == 200
    blanks = {"api_key": None, "format": None, "alternatives": None, "constrained": ""}
    assert http.post(path, body | blanks).body == expected.body


def test_the_page_of_libretranslate_sends_form_data(http: RunningServer) -> None:
    fields = FIELDS | {"alternatives": "3", "api_key": "", "q": "one\r\ntwo ä 世"}
    answer = post_form_data(http, fields)
    assert set(answer) == {"translatedText", "alternatives"}
    assert answer == http.post("/translate", fields).json
    assert isinstance(answer["alternatives"], list)


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (multipart(FIELDS)[:-9], "multipart/form-data; boundary=xx", "end is missing"),
        (multipart(FIELDS), "multipart/form-data", "No boundary given"),
        (multipart(FIELDS), "multipart/form-data; boundary=yy", "cannot be read"),
        (b"x" + multipart(FIELDS), "multipart/form-data; boundary=xx", "cannot be"),
        (multipart(FIELDS).replace(b"one", b"\xff"), "multipart/form-data; boundary=xx",
         "The body must be in UTF-8, or its charset"),
        (multipart(FIELDS).replace(b'"q"', b'"q"; filename="q.txt"'),
         "multipart/form-data; boundary=xx", "`q` must be text, but is a file"),
        (multipart({f"f{i}": "" for i in range(1500)}),
         "multipart/form-data; boundary=xx", "Max number of fields exceeded"),
        (b"--xx\r\n" + b"a: b\r\n" * 5000 + b"\r\n\r\n--xx--",
         "multipart/form-data; boundary=xx", "cannot be read"),
    ],
    ids=range(8),
)  # fmt: skip
def test_form_data_that_cannot_be_read_is_refused(
    http: RunningServer,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    kind: str,
    error: str,
) -> None:
    answer = http.post("/translate", body, content_type=kind)
    assert answer.status == 400
    assert error in answer.json["error"]
    assert caplog.text == ""


def test_fields_may_be_in_the_query_and_in_the_form(http: RunningServer) -> None:
    path = "/translate?source=en&target=de"
    answer = http.post(path, b"q=one+two", content_type=FORM)
    assert answer.json == http.post("/translate", FIELDS).json


@pytest.mark.parametrize(
    ("source", "target", "served_pair"),
    [
        ("EN", "DE", "en-de"),
        ("en-US", "de", "en-de"),
        ("en_GB", "de-AT", "en-de"),
        (" en ", "De", "en-de"),
        ("AUTO", "en", "de-en"),
        ("zh-Hans", "pt-BR", "zh-Hans-pt-BR"),
        ("ZH_HANS", "pt_br", "zh-Hans-pt-BR"),
        ("zh_CN", "pt-BR", "zh-Hans-pt-BR"),
        ("zh", "pt-PT", "zh-Hant-pt-PT"),
        ("zh-TW", "pt", "zh-Hans-pt-BR"),
        ("zt", "pt", "zh-Hans-pt-BR"),
        ("ZT", "pt-PT", "zh-Hant-pt-PT"),
        ("zh", "pb", "zh-Hans-pt-BR"),
        ("auto", "pt-PT", "zh-Hant-pt-PT"),
        ("auto", "pt", "zh-Hans-pt-BR"),
        ("en", "nb", "en-no"),
        ("en", "pt", None),
        ("de", "de", None),
        ("english", "de", None),
        ("🙂", "de", None),
    ],
)
def test_a_language_is_found_by_any_of_its_tags(
    many: RunningServer, source: str, target: str, served_pair: str | None
) -> None:
    chosen: list[str] = []
    for model in many.models:
        model.queue.on_batch = lambda _, name=model.name: chosen.append(name)  # type: ignore[misc] # bound now
    body = {"q": "one", "source": source, "target": target}
    answer = many.post("/translate", body)
    if served_pair is None:
        assert answer.status == 400
        assert "must be languages of a model (en to de" in answer.json["error"]
    else:
        assert answer.status == 200
        assert chosen == [served_pair]


def test_languages_have_names_and_canonical_tags(many: RunningServer) -> None:
    found = {each["code"]: each for each in many.get("/languages").json}
    assert found["zh-Hans"]["name"] == "Chinese (Simplified)"
    assert found["zh-Hans"]["targets"] == ["pt-BR"]
    assert found["en"]["targets"] == ["de", "no"]
    assert all(set(each) == {"code", "name", "targets"} for each in found.values())


def test_a_model_reports_its_languages(trained_checkpoint: Checkpoint) -> None:
    own = replace(trained_checkpoint, source_language="en", target_language="pt-BR")
    with running([served(own, "mine"), served(own, "fr-it")]) as server:
        pairs = [(m["source"], m["target"]) for m in server.get("/v1/models").json]
        assert pairs == [("en", "pt-BR")] * 2
        body = {"q": "one", "source": "en", "target": "pt"}
        assert server.post("/translate", body).status == 200


def test_settings_have_the_form_that_a_page_expects(
    http: RunningServer, trained_checkpoint: Checkpoint
) -> None:
    settings = http.get("/frontend/settings").json
    assert settings == {
        "apiKeys": False,
        "charLimit": 10_000,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": "de", "name": "German"},
        },
        "suggestions": False,
        "supportedFilesFormat": [".txt", ".html", ".htm", ".srt", ".vtt"],
    }
    config = AdmissionConfig(
        api_keys=("sesame",), max_characters=99, translates_files=False
    )
    with running([served(trained_checkpoint, "en-de")], config) as server:
        told = server.get("/frontend/settings").json
        refused = server.post("/translate_file", b"")
    assert (told["filesTranslation"], told["supportedFilesFormat"]) == (False, [])
    assert (refused.status, refused.json["error"][:11]) == (403, "This server")
    assert (told["apiKeys"], told["keyRequired"], told["charLimit"]) == (True, True, 99)


def test_a_suggestion_is_refused_in_json(http: RunningServer) -> None:
    answer = http.post(
        "/suggest", multipart(FIELDS), content_type="multipart/form-data"
    )
    assert answer.status == 403
    assert set(answer.json) == {"error"}
    assert answer.json["error"].startswith("This server ")


def test_the_interface_has_libretranslates_path(http: RunningServer) -> None:
    assert http.get("/spec").json == http.get("/openapi.json").json


def test_the_answer_has_the_shape_of_the_request(
    http: RunningServer,
) -> None:
    body = {"source": "auto", "target": "de", "alternatives": 2}
    single = http.post("/translate", body | {"q": "one"}).json
    several = http.post("/translate", body | {"q": ["one", "two"]}).json
    assert isinstance(single["translatedText"], str)
    assert isinstance(single["detectedLanguage"], dict)
    assert all(isinstance(each, str) for each in single["alternatives"])
    assert several["translatedText"][0] == single["translatedText"]
    assert several["alternatives"][0] == single["alternatives"]
    assert several["detectedLanguage"] == [single["detectedLanguage"]] * 2
    nothing = http.post("/translate", body | {"q": []}).json
    assert nothing == {"translatedText": [], "alternatives": [], "detectedLanguage": []}


def test_the_last_of_repeated_json_fields_is_used(http: RunningServer) -> None:
    body = b'{"q": "one", "q": "two", "source": "en", "target": "de"}'
    expected = http.post("/translate", json.loads(body)).json
    assert http.post("/translate", body).json == expected


KINDS = (JSON, f"{JSON}; charset=x", f"{JSON}; charset=latin1", FORM)


@pytest.mark.parametrize(
    ("encoding", "kinds"),
    [
        ("utf-8", KINDS),
        ("utf-8-sig", KINDS[:3]),
        ("utf-16", KINDS[:3]),
        ("utf-16-le", KINDS[:3]),
        ("latin-1", (f'{JSON};Charset="ISO-8859-1"', f"{FORM}; charset=windows-1252")),
        ("gbk", (f"{JSON}; charset=gbk", f"{FORM};charset=GB2312")),
    ],
)
def test_a_body_may_be_in_any_encoding_that_its_type_names(
    http: RunningServer, encoding: str, kinds: tuple[str, ...]
) -> None:
    text = "one é" if encoding != "gbk" else "one 世"
    expected = http.post("/translate", FIELDS | {"q": text})
    assert expected.status == 200
    for kind in kinds:
        if kind.startswith(FORM):
            body = f"q={text}&source=en&target=de"
        else:
            body = json.dumps(FIELDS | {"q": text}, ensure_ascii=False)
        answer = http.post("/translate", body.encode(encoding), content_type=kind)
        assert answer.json == expected.json


def test_an_escaped_form_may_be_in_the_encoding_that_its_type_names(
    http: RunningServer,
) -> None:
    body, kind = b"q=one+%E9&source=en&target=de", f"{FORM}; charset=iso-8859-1"
    expected = http.post("/translate", FIELDS | {"q": "one é"}).json
    assert http.post("/translate", body, content_type=kind).json == expected


def test_form_data_may_be_in_the_encoding_that_its_type_names(
    http: RunningServer,
) -> None:
    fields = FIELDS | {"q": "one é"}
    kind = "multipart/form-data; boundary=xx"
    body = multipart(fields).decode().encode("latin-1")
    answer = http.post("/translate", body, content_type=f"{kind}; charset=iso-8859-1")
    assert answer.json == post_form_data(http, fields)


NOT_UTF_8 = (
    (b'{"q": "h\x81"}', JSON),
    (b"q=h\x81", FORM),
    (b"q=h%81", FORM),
    (multipart({"q": "h%"}).replace(b"%", b"\x81"), "multipart/form-data; boundary=xx"),
)


@pytest.mark.parametrize(("body", "kind"), NOT_UTF_8)
@pytest.mark.parametrize(
    ("charset", "error"),
    [
        ("", "The body must be in UTF-8, or its charset must be named in the"),
        ("; charset=UTF8", "The body must be in UTF-8, or its charset must be named"),
        ("; charset=base64", 'the content-type names "base64"; send it in UTF-8.'),
        ("; charset=latin1", "or in the charset that its content-type names, but is"),
    ],
)
def test_a_body_in_an_unknown_encoding_is_refused_in_plain_words(
    http: RunningServer, body: bytes, kind: str, charset: str, error: str
) -> None:
    answer = http.post("/translate", body, content_type=f"{kind}{charset}")
    assert answer.status == (415 if "base64" in charset else 400)
    assert error in answer.json["error"]


def admitted(body: bytes, kind: str, *headers: tuple[bytes, bytes]) -> list[str]:
    """Texts of a request as the server reads them."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    scope = {
        "type": "http",
        "server": ("localhost", 5000),
        "path": "/translate",
        "query_string": b"",
        "headers": [(b"content-type", kind.encode()), *headers],
    }
    message = Admission(AdmissionConfig()).admit(
        Request(scope, receive), TranslateRequest
    )
    return list(asyncio.run(message).texts)


def read(text: str, codec: str, charset: str) -> list[str]:
    """Texts of a request in JSON as the server reads them."""
    body = json.dumps(FIELDS | {"q": text}, ensure_ascii=False).encode(codec)
    return admitted(body, f"{JSON}; charset={charset}")


def escaped(text: str, codec: str) -> bytes:
    return urlencode({**FIELDS, "q": text}, encoding=codec).encode()


@pytest.mark.parametrize("charset", ["ISO-8859-1", "latin1", "us-ascii", "cp1252"])
def test_latin_1_is_read_as_windows_means_it(charset: str) -> None:
    assert read("“é…”", "cp1252", charset) == ["“é…”"]


@pytest.mark.parametrize(
    ("text", "codec", "charsets"),
    [
        ("Привет", "koi8-r", ["koi8-r", "KOI8_R"]),
        ("İş", "cp1254", ["windows-1254", "iso-8859-9", "ISO_8859-9"]),
        ("世界", "gb2312", ["gb2312", "gbk", "gb18030"]),
        ("①～髙", "cp932", ["shift_jis", "Shift-JIS", "windows-31j", "cp932"]),
        ("세계", "cp949", ["euc-kr", "ks_c_5601-1987"]),
        ("世界", "big5", ["big5"]),
        ("世界", "iso2022_jp", ["iso-2022-jp", "csISO2022JP"]),
        ("世界", "utf-32", ["utf-32"]),
    ],
)
def test_the_usual_labels_of_encodings_are_known(
    text: str, codec: str, charsets: list[str]
) -> None:
    for charset in charsets:
        assert read(text, codec, charset) == [text]


@pytest.mark.parametrize("text", ["世界", "世界 & one=テスト+", "one"])
@pytest.mark.parametrize(
    ("codec", "charset"),
    [("iso2022_jp", "ISO-2022-JP"), ("cp932", "shift_jis"), ("utf-8", "iso-2022-jp")],
)
def test_an_escaped_form_in_japanese_is_read(
    text: str, codec: str, charset: str
) -> None:
    kind = f"{FORM}; charset={charset}"
    assert admitted(escaped(text, codec), kind) == [text]


@pytest.mark.parametrize("codec", ["iso2022_jp", "utf-16", "utf-16-le", "utf-32"])
def test_a_form_may_look_like_utf_8_though_it_is_in_another_charset(codec: str) -> None:
    body = "q=one+世界%20%C3%A9&source=en&target=de".encode(codec)
    if codec == "iso2022_jp":
        body = body.replace(b"%20%C3%A9", b"%20")
    [text] = admitted(body, f"{FORM}; charset={codec}")
    assert text == ("one 世界 " if codec == "iso2022_jp" else "one 世界 é")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-le", "iso2022_jp"])
def test_a_part_of_a_form_may_name_its_own_charset(codec: str) -> None:
    label = codec.removesuffix("-sig").replace("iso2022_", "iso-2022-")
    head = f'"q"\r\ncontent-type: text/plain; charset={label}'
    body = multipart({**FIELDS, "q": "Q"}).replace(b'"q"', head.encode())
    body = body.replace(b"Q", "世界".encode(codec))
    assert admitted(body, "multipart/form-data; boundary=xx") == ["世界"]


@pytest.mark.parametrize("text", ["Hallo!", "Hallo", "Grüße"])
@pytest.mark.parametrize("charset", ["utf-16", "utf-16le", "utf-32"])
def test_a_part_in_utf_8_is_read_though_the_form_names_a_wide_charset(
    text: str, charset: str
) -> None:
    kind = f"multipart/form-data; boundary=xx; charset={charset}"
    assert admitted(multipart(FIELDS | {"q": text}), kind) == [text]
    wide = multipart(FIELDS | {"q": "Q"}).replace(b"Q", "Grüße".encode(charset))
    assert admitted(wide, kind) == ["Grüße"]


@pytest.mark.parametrize(
    "charset",
    ["utf-7", "UTF7", "hz-gb-2312", "ISO-2022-KR", "iso-2022-cn-ext", "iso-2022-jp-2"],
)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps(FIELDS | {"q": "one"}).encode(), JSON),
        (escaped("one", "ascii"), FORM),
        (multipart(FIELDS | {"q": "one"}), "multipart/form-data; boundary=xx"),
    ],
)
def test_a_charset_whose_text_looks_like_ascii_is_refused(
    body: bytes, kind: str, charset: str
) -> None:
    with pytest.raises(RefusedError, match=f'names "{charset}"; send it in UTF-8'):
        admitted(body, f"{kind}; charset={charset}")


def test_a_part_of_a_form_in_an_unknown_transfer_encoding_is_refused() -> None:
    head = b'"q"\r\ncontent-transfer-encoding: uuencode'
    body = multipart(FIELDS | {"q": "one"}).replace(b'"q"', head)
    with pytest.raises(RefusedError, match="form cannot be read .*uuencode"):
        admitted(body, "multipart/form-data; boundary=xx")


@pytest.mark.parametrize(
    ("values", "is_read"),
    [
        ([b"identity", b""], True),
        ([b"identity, Identity"], True),
        ([b"identity", b"gzip"], False),
        ([b"", b"br"], False),
    ],
)
def test_each_encoding_of_the_content_counts(
    values: list[bytes], is_read: bool
) -> None:
    body = json.dumps(FIELDS | {"q": "one"}).encode()
    headers = [(b"content-encoding", value) for value in values]
    if is_read:
        assert admitted(body, JSON, *headers) == ["one"]
        return
    with pytest.raises(RefusedError, match="without content-encoding"):
        admitted(body, JSON, *headers)


def test_form_data_may_be_followed_by_text_but_must_end() -> None:
    kind = "multipart/form-data; boundary=xx"
    body = multipart({"target": "de", "q": "one--"})
    assert admitted(body + b"the end", kind) == ["one--"]
    with pytest.raises(RefusedError, match="its end is missing"):
        admitted(body.removesuffix(b"\r\n--xx--\r\n"), kind)


def test_each_charset_has_a_codec_of_text() -> None:
    for label, codec in CODECS.items():
        assert label == re.sub("[^a-z0-9]", "", label)
        assert bytes(4).decode(codec)


def test_an_unknown_charset_leaves_nothing_in_memory() -> None:
    known = encodings._cache  # type: ignore[attr-defined]  # noqa: SLF001 - memory shows in no result
    before = len(known)
    for number in range(9):
        with pytest.raises(RefusedError):
            read("é", "latin-1", f"x-unknown-{number}")
    assert len(known) == before
