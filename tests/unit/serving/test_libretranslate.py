"""Requests as clients of LibreTranslate send them, and answers as they read them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.serving.admission import FORM, JSON, AdmissionConfig

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
         "can't decode byte 0xff"),
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
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": "de", "name": "German"},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }
    config = AdmissionConfig(api_keys=("sesame",), max_characters=99)
    with running([served(trained_checkpoint, "en-de")], config) as server:
        told = server.get("/frontend/settings").json
    assert (told["apiKeys"], told["keyRequired"], told["charLimit"]) == (True, True, 99)


@pytest.mark.parametrize("path", ["/suggest", "/translate_file"])
def test_unsupported_requests_are_refused_in_json(
    http: RunningServer, path: str
) -> None:
    answer = http.post(path, multipart(FIELDS), content_type="multipart/form-data")
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
        ("gbk", (f"{JSON}; charset=gbk", f"{FORM};charset=GBK")),
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


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", "; charset=base64"])
def test_json_in_an_unnamed_encoding_is_refused(
    http: RunningServer, charset: str
) -> None:
    kind = f"{JSON}{charset}"
    answer = http.post("/translate", b'{"q": "h\xe9"}', content_type=kind)
    assert answer.status == 400
    assert answer.json["error"].startswith("The body must be in UTF-8, or its charset")
