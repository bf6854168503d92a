"""Glossaries of the server, which requests choose by name."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving_client import RunningServer, running, served
from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, DataError, TransduceError
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import QueueConfig, RequestQueue, _log_unplaced
from transduce.serving.served_models import (
    ServedGlossary,
    ServedModel,
    read_glossaries,
    require_usable,
)
from transduce.text.glossary import Glossary, find_word

TEXTS = ["one two", "three four", "five two one"]
EN_DE = {"source": "en", "target": "de"}


def glossary(name: str, forms: str, source: str = "", target: str = "") -> Any:
    """Glossary of the term two, for all languages or for one pair."""
    return ServedGlossary(
        name=name,
        terms=Glossary({"two": forms}),
        source=source or None,
        target=target or None,
    )


GLOSSARIES = (
    glossary("default", "paar"),
    glossary("law", "zwo", "en", "de"),
    glossary("law", "duo", "de", "en"),
)


def with_glossaries(
    checkpoint: Checkpoint, name: str, glossaries: tuple[ServedGlossary, ...]
) -> ServedModel:
    return replace(served(checkpoint, name), glossaries=glossaries)


@pytest.fixture(scope="module")
def http(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint
) -> Iterator[RunningServer]:
    models = [
        with_glossaries(trained_checkpoint, name, GLOSSARIES)
        for name in ("en-de", "de-en")
    ]
    with running([*models, served(parsing_checkpoint, "trees")]) as server:
        yield server


def texts_with(checkpoint: Checkpoint, form: str | None) -> list[str]:
    """Translate offline, with a form of the term two or without a glossary."""
    translator = Translator(checkpoint, "cpu")
    if form is not None:
        translator = translator.with_glossary({"two": form})
    return [each.text for each in translator.translate(TEXTS)]


def streamed(answer: bytes) -> str:
    return "".join(json.loads(line)["translation"] for line in answer.splitlines())


@pytest.mark.parametrize(
    ("name", "model", "form"),
    [
        (None, "en-de", "paar"),
        ("", "en-de", "paar"),
        ("default", "en-de", "paar"),
        ("none", "en-de", None),
        ("law", "en-de", "zwo"),
        ("law", "de-en", "duo"),
    ],
)
def test_a_request_is_translated_with_the_glossary_of_its_name_and_languages(
    http: RunningServer,
    trained_checkpoint: Checkpoint,
    name: str | None,
    model: str,
    form: str | None,
) -> None:
    expected = texts_with(trained_checkpoint, form)
    source, target = model.split("-")
    body = {"q": TEXTS, "source": source, "target": target, "glossary": name}
    assert http.post("/translate", body).json["translatedText"] == expected
    lines = {"q": "\n".join(TEXTS), "model": model, "glossary": name}
    assert streamed(http.post("/v1/translate", lines).body) == "\n".join(expected)


def test_a_form_has_a_glossary_too(
    http: RunningServer, trained_checkpoint: Checkpoint
) -> None:
    body = b"q=one+two&source=en&target=de&glossary=law"
    form = http.post(
        "/translate", body, content_type="application/x-www-form-urlencoded"
    )
    expected = texts_with(trained_checkpoint, "zwo")[0]
    assert form.json == {"translatedText": expected}


def test_an_unknown_glossary_is_refused_with_those_there_are(
    http: RunningServer,
) -> None:
    for path, body in (("/translate", EN_DE), ("/v1/translate", {"model": "en-de"})):
        answer = http.post(path, {"q": "one two", "glossary": "x" * 99, **body})
        assert answer.status == 400
        assert answer.json["error"] == (
            "`glossary` must be a glossary from en to de (default, law, none), but is "
            f"'{'x' * 40}…'."
        )


def test_a_server_without_glossaries_refuses_a_name(
    trained_checkpoint: Checkpoint,
) -> None:
    with running([served(trained_checkpoint, "en-de")]) as server:
        assert server.get("/v1/glossaries").json == []
        body = {"q": "one two", **EN_DE}
        answer = server.post("/translate", body | {"glossary": "law"})
        assert (answer.status, answer.json["error"]) == (
            400,
            "`glossary` must be a glossary from en to de (none), but is 'law'.",
        )
        assert server.post("/translate", body | {"glossary": "none"}).status == 200


def test_glossaries_are_listed_for_each_model_and_target(http: RunningServer) -> None:
    found = http.get("/v1/glossaries").json
    assert found[1] == {
        "name": "law", "model": "en-de", "source": "en", "target": "de", "num_terms": 1,
    }  # fmt: skip
    assert [(each["model"], each["name"]) for each in found] == [
        ("en-de", "default"), ("en-de", "law"), ("de-en", "default"), ("de-en", "law"),
    ]  # fmt: skip


def test_a_sentence_with_a_term_has_no_alternatives(http: RunningServer) -> None:
    body = {"q": ["one two", "three four"], **EN_DE, "alternatives": 2}
    answer = http.post("/translate", body).json
    assert [len(each) for each in answer["alternatives"]] == [0, 2]


def test_tags_stay_around_a_term(
    http: RunningServer, trained_checkpoint: Checkpoint
) -> None:
    html = '<p>one <b title="two">two</b></p>'
    body = {"q": html, "format": "html", "glossary": "law"}
    answer = http.post("/translate", body | EN_DE).json["translatedText"]
    plain = texts_with(trained_checkpoint, "zwo")[0]
    assert (
        answer.replace('<b title="two">', "").replace("</b>", "") == f"<p>{plain}</p>"
    )
    streaming = http.post("/v1/translate", body | {"model": "en-de"})
    assert streamed(streaming.body) == answer


def test_copied_text_with_a_term_stays_as_it_is_once(http: RunningServer) -> None:
    body = {"q": "<p>one <code>two</code></p>", "format": "html", **EN_DE}
    answer = http.post("/translate", body).json["translatedText"]
    assert answer.count("<code>two</code>") == 1
    assert answer.count("paar") <= 1


def test_requests_with_different_glossaries_do_not_change_each_other(
    trained_checkpoint: Checkpoint,
) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    law, medicine = Glossary({"two": "zwo"}), Glossary({"two": ["paar", "Paare"]})
    expected = [
        translator.with_glossary(law).translate(TEXTS),
        translator.translate(TEXTS),
        translator.with_glossary(medicine).translate(TEXTS),
    ]
    with RequestQueue(translator, QueueConfig(batch_size=4)) as queue:
        futures = [
            queue.submit(TEXTS, glossary=each) for each in (law, None, medicine) * 3
        ]
        found = [[future.result() for future in each] for each in futures]
    assert found == expected * 3  # with the scores and all tokens


@pytest.mark.parametrize("target", ["de", "fr"])
def test_a_glossary_is_for_one_target_language_of_several(
    tagged_checkpoint: Checkpoint, target: str
) -> None:
    glossaries = (glossary("default", "paar", "en", "de"),)
    model = with_glossaries(tagged_checkpoint, "many", glossaries)
    body = {"q": "one two", "target": target}
    with running([model]) as server:
        [listed] = server.get("/v1/glossaries").json
        found = [
            server.post("/translate", body | {"source": "en"}).json["translatedText"],
            server.post("/v1/translate", body).json["translation"],
        ]
    assert listed["target"] == "de"
    plain = Translator(tagged_checkpoint, "cpu").into(target)
    with_term = plain.with_glossary({"two": "paar"})
    expected = (with_term if target == "de" else plain).translate("one two").text
    assert found == [expected, expected]


@pytest.mark.parametrize(
    ("source", "target", "form"),
    [("en-US", "de", "zwei"), ("en", "de-AT", "zwo"), ("en", "fr", "deux"),
     ("nl", "de", "all")],
)  # fmt: skip
def test_the_glossary_with_the_nearest_languages_counts(
    trained_checkpoint: Checkpoint, source: str, target: str, form: str
) -> None:
    glossaries = (
        glossary("law", "all"),
        glossary("law", "zwei", "en", "de"),
        glossary("law", "zwo", "en", "de-AT"),
        glossary("law", "deux", "en", "fr"),
    )
    model = replace(
        with_glossaries(trained_checkpoint, "mine", glossaries),
        source=source,
        target=target,
    )
    found = model.step(model.target, "", "law").glossary
    assert found is not None
    assert found.terms_in("two")[0].forms == (form,)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{file}", "default"),
        ("law={file}", "law"),
        ("en:de={file}", "en:de:default"),
        ("EN:pt_br:law-2={file}", "en:pt-BR:law-2"),
    ],
)
def test_a_glossary_has_a_name_and_languages(
    tmp_path: Path, text: str, shown: str
) -> None:
    file = tmp_path / "a=b.tsv"
    file.write_text("two\tpaar\n")
    found = ServedGlossary.read(text.format(file=file))
    assert (str(found), len(found.terms)) == (shown, 1)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ConfigError, "must be a file, or a name"),
        ("law=", ConfigError, "must be a file, or a name"),
        ("a:b:c:d=x", ConfigError, "must be a file, or a name"),
        ("none=x", ConfigError, "another name than 'none'"),
        ("en:de:=x", ConfigError, "but is ''"),
        ("la w=x", ConfigError, "The name of a glossary must be letters"),
        ("1:de=terms.tsv", ConfigError, "but is '1'"),
        ("law=nowhere.tsv", DataError, "nowhere"),
    ],
)
def test_a_glossary_that_cannot_be_read_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    error: type[TransduceError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("two\n")
    (tmp_path / "terms.tsv").write_text("two\n")
    with pytest.raises(error, match=message):
        ServedGlossary.read(text)


@pytest.mark.parametrize(
    ("glossaries", "message"),
    [
        ([("en-de", "", "")], "not be named like a model or its languages, but is"),
        ([("EN-de", "", "")], "write languages as in en:de=FILE"),
        ([("law", "en", "fr")], r"\(en:de\), but 'en:fr:law' has others"),
        ([("law", "", ""), ("law", "en", "de")], "but 'law' has others, or another"),
    ],
)
def test_a_glossary_that_no_model_can_use_is_refused(
    trained_checkpoint: Checkpoint,
    parsing_checkpoint: Checkpoint,
    glossaries: list[tuple[str, ...]],
    message: str,
) -> None:
    several = tuple(glossary(name, "paar", *pair) for name, *pair in glossaries)
    models = [
        served(parsing_checkpoint, "trees"),
        with_glossaries(trained_checkpoint, "en-de", several),
    ]
    with pytest.raises(ConfigError, match=message):
        require_usable(several, models)


def test_two_glossaries_of_one_name_and_languages_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("two\tpaar\n")
    with pytest.raises(ConfigError, match="different names, but two are 'law'"):
        read_glossaries([f"en:de:law={file}", f"en:de:law={file}"])
    read = read_glossaries([f"en:de:law={file}", f"law={file}", f"x={file}"])
    assert list(map(str, read)) == ["en:de:law", "law", "x"]


def test_one_glossary_can_be_standard_input() -> None:
    with pytest.raises(DataError, match="Standard input must stand for one file"):
        read_glossaries(["-", "law=-"])


def test_a_model_without_cross_attention_is_named(
    trained_checkpoint: Checkpoint,
) -> None:
    torch.manual_seed(1)
    tokenizer = trained_checkpoint.tokenizer
    config = ByteNetConfig(vocab_size=tokenizer.vocab_size, num_blocks=1, d_hidden=4)
    other = Checkpoint(
        config=config, weights=build(config).state_dict(), tokenizer=tokenizer, step=1
    )
    for pair, is_usable in ((("", ""), False), (("en", "de"), True)):
        glossaries = (glossary("law", "paar", *pair),)
        models = [
            with_glossaries(each, name, glossaries)
            for each, name in ((trained_checkpoint, "en-de"), (other, "en-fr"))
        ]
        if is_usable:
            require_usable(glossaries, models)
        else:
            with pytest.raises(ConfigError, match="but en-fr has none"):
                require_usable(glossaries, models)


TOO_LONG = SearchConfig(
    beam_size=1, min_length=MAX_ALIGNED_TOKENS, max_length=MAX_ALIGNED_TOKENS + 50
)


def test_an_answer_tells_that_terms_may_be_missing(
    trained_checkpoint: Checkpoint,
) -> None:
    model = with_glossaries(
        replace(trained_checkpoint, search=TOO_LONG), "en-de", GLOSSARIES
    )
    with running([model]) as server:
        one = server.post("/translate", EN_DE | {"q": "one"}).json
        two = server.post("/translate", EN_DE | {"q": "two"}).json
        both = server.post("/translate", EN_DE | {"q": ["one", "one. two"]}).json
        lines = server.post("/v1/translate", {"q": "one\ntwo"}).body.splitlines()
    assert "mayLackTerms" not in one
    assert two["mayLackTerms"] is True
    assert both["mayLackTerms"] == [False, True]
    told = [json.loads(line)["may_lack_terms"] for line in lines]
    assert (told[0], told[-1]) == (False, True)


def test_a_translation_that_cannot_be_aligned_is_logged_once(
    trained_checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    _log_unplaced.cache_clear()
    with RequestQueue(Translator(trained_checkpoint, "cpu")) as queue:
        for _ in range(2):
            [future] = queue.submit(
                ["two"], TOO_LONG, glossary=Glossary({"two": "paar"})
            )
            assert find_word(future.result().text, "paar") < 0
    [record] = caplog.records
    assert "may lack terms of its glossary" in record.getMessage()
