"""Translation by two models with a pivot language between them."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError
from transduce.search_config import SearchConfig
from transduce.serving.admission import AdmissionConfig
from transduce.serving.request_queue import QueueConfig
from transduce.serving.served_models import ServedGlossary, find_routes
from transduce.text.glossary import Glossary

TEXTS = ["one two", "three four", "five two one"]
DE_FR = {"source": "de", "target": "fr"}
NAME = "de-en+en-fr"


@pytest.fixture(scope="module")
def other_checkpoint(trained_checkpoint: Checkpoint) -> Checkpoint:
    """Model that translates otherwise than the trained one."""
    return replace(trained_checkpoint, search=SearchConfig(beam_size=1, min_length=7))


@pytest.fixture(scope="module")
def http(
    trained_checkpoint: Checkpoint,
    other_checkpoint: Checkpoint,
    parsing_checkpoint: Checkpoint,
) -> Iterator[RunningServer]:
    """Server of German to English to French, and of German to Dutch directly."""
    models = [
        served(trained_checkpoint, "de-en"),
        served(other_checkpoint, "en-fr"),
        served(trained_checkpoint, "en-nl"),
        served(other_checkpoint, "de-nl"),
        served(parsing_checkpoint, "trees"),
    ]
    with running(models, pivots=["en"]) as server:
        yield server


def through(first: Translator, last: Translator, texts: list[str]) -> list[str]:
    pivot = [each.text for each in first.translate(texts)]
    return [each.text for each in last.translate(pivot)]


@pytest.fixture(scope="module")
def expected(trained_checkpoint: Checkpoint, other_checkpoint: Checkpoint) -> list[str]:
    first = Translator(trained_checkpoint, "cpu")
    return through(first, Translator(other_checkpoint, "cpu"), TEXTS)


def lines_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


@pytest.mark.parametrize("source", ["de", "DE", "de-AT"])
def test_texts_are_translated_by_both_models_in_a_row(
    http: RunningServer, expected: list[str], source: str
) -> None:
    body = {"q": TEXTS, **DE_FR, "source": source}
    assert http.post("/translate", body).json == {"translatedText": expected}


def test_sentences_are_streamed_with_their_text_in_the_pivot_language(
    http: RunningServer, trained_checkpoint: Checkpoint, expected: list[str]
) -> None:
    body = {"q": "\n".join(TEXTS), "model": NAME, "alternatives": 2}
    found = lines_of(http.post("/v1/translate", body).body)
    assert "".join(each["translation"] for each in found) == "\n".join(expected)
    pivot = [
        each.text for each in Translator(trained_checkpoint, "cpu").translate(TEXTS)
    ]
    assert [each["pivot"] for each in found] == [
        pivot[0],
        None,
        pivot[1],
        None,
        pivot[2],
    ]
    assert [len(each["alternatives"]) for each in found] == [2, 0, 2, 0, 2]


def test_a_direct_model_is_preferred(
    http: RunningServer, other_checkpoint: Checkpoint
) -> None:
    direct = [
        each.text for each in Translator(other_checkpoint, "cpu").translate(TEXTS)
    ]
    for target in ("nl", "nl-BE"):
        body = {"q": TEXTS, "source": "de", "target": target}
        assert http.post("/translate", body).json["translatedText"] == direct
    # English is read by the only model from it; German would need the pivot.
    body = {"q": TEXTS, "source": "auto", "target": "fr"}
    assert http.post("/translate", body).json["detectedLanguage"][0]["language"] == "en"


def test_languages_models_and_glossaries_are_listed_with_their_pivot(
    http: RunningServer,
) -> None:
    found = {each["code"]: each["targets"] for each in http.get("/languages").json}
    assert found == {"de": ["en", "nl", "fr"], "en": ["fr", "nl"], "fr": [], "nl": []}
    listed = {each["name"]: each for each in http.get("/v1/models").json}
    assert list(listed) == ["de-en", "en-fr", "en-nl", "de-nl", "trees", NAME]
    assert listed[NAME]["models"] == ["de-en", "en-fr"]
    assert (listed[NAME]["pivot"], listed[NAME]["targets"]) == ("en", ["fr"])
    assert (listed["de-en"]["pivot"], listed["de-en"]["models"]) == (None, ["de-en"])
    assert listed["trees"]["task"] == "parse"


def test_scores_and_attention_are_of_single_models(http: RunningServer) -> None:
    for path in ("/v1/score", "/v1/attention"):
        answer = http.post(path, {"source": "one", "target": "two", "model": NAME})
        assert answer.status == 400
        assert answer.json["error"].startswith("`model` must be one of de-en, en-fr, ")


def test_a_pair_that_no_pivot_joins_is_refused(http: RunningServer) -> None:
    answer = http.post("/translate", {"q": "one", "source": "fr", "target": "de"})
    assert (answer.status, answer.json["error"]) == (
        400,
        "`source` and `target` must be languages of a model (de to en or nl or fr, en "
        "to fr or nl), but are 'fr' and 'de'.",
    )
    refused = http.post("/v1/translate", {"q": "one", "model": NAME, "target": "nl"})
    assert "target language of the model (fr), but is 'nl'" in refused.json["error"]


def test_without_the_option_there_is_no_pivot(trained_checkpoint: Checkpoint) -> None:
    models = [served(trained_checkpoint, name) for name in ("de-en", "en-fr")]
    with running(models) as server:
        assert server.post("/translate", {"q": "one", **DE_FR}).status == 400
        assert len(server.get("/v1/models").json) == 2


@pytest.mark.parametrize("alternatives", [0, 2])
def test_tags_of_html_go_through_both_models(
    http: RunningServer, expected: list[str], alternatives: int
) -> None:
    html = '<p title="x">five <b>two</b> one</p><p>one two</p>'
    body = {"q": html, **DE_FR, "format": "html", "alternatives": alternatives}
    answer = http.post("/translate", body).json
    for each in (answer["translatedText"], *answer.get("alternatives", ())):
        assert each.startswith('<p title="x">')
        assert (each.count("<b>"), each.count("</b>")) == (1, 1)
    plain = answer["translatedText"].replace("<b>", "").replace("</b>", "")
    assert plain == f'<p title="x">{expected[2]}</p><p>{expected[0]}</p>'
    streamed = http.post("/v1/translate", {"q": html, "model": NAME, "format": "html"})
    lines = lines_of(streamed.body)
    assert "".join(each["translation"] for each in lines) == answer["translatedText"]


def test_links_of_words_lead_through_the_pivot_language() -> None:
    from transduce.text.inline_tags import WordLinks

    first = WordLinks(
        source=((0, 1), (2, 3)), target=((0, 2), (3, 4)), source_of=(1, 0)
    )
    last = WordLinks(
        source=((0, 2), (3, 4)),
        target=((0, 1), (1, 2), (2, 3)),
        source_of=(0, None, 1),
    )
    found = first.then(last)
    assert found.source_of == (1, None, 0)
    assert (found.source, found.target) == (first.source, last.target)


def glossary(name: str, term: str, form: str, source: str, target: str) -> Any:
    return ServedGlossary(
        name=name, terms=Glossary({term: form}), source=source, target=target
    )


def test_each_model_uses_the_glossary_of_its_languages(
    trained_checkpoint: Checkpoint, other_checkpoint: Checkpoint
) -> None:
    glossaries = (
        glossary("law", "two", "zwo", "de", "en"),
        glossary("law", "zwo", "deux", "en", "fr"),
        glossary("default", "one", "un", "en", "fr"),
    )
    models = [
        replace(served(checkpoint, name), glossaries=glossaries)
        for checkpoint, name in (
            (trained_checkpoint, "de-en"),
            (other_checkpoint, "en-fr"),
        )
    ]
    first = Translator(trained_checkpoint, "cpu").with_glossary({"two": "zwo"})
    last = Translator(other_checkpoint, "cpu").with_glossary({"zwo": "deux"})
    with running(models, pivots=["en"]) as server:
        body = {"q": TEXTS, **DE_FR, "glossary": "law"}
        found = server.post("/translate", body).json["translatedText"]
        assert found == through(first, last, TEXTS)
        listed = server.get("/v1/glossaries").json
        own = {e["name"]: e["num_terms"] for e in listed if e["model"] == NAME}
        assert own == {"law": 2, "default": 1}
        refused = server.post("/translate", body | {"glossary": "x"})
        assert refused.json["error"] == (
            "`glossary` must be a glossary from de to fr (law, default, none), but is "
            "'x'."
        )


def test_tags_stay_around_the_words_for_terms_of_both_models(
    trained_checkpoint: Checkpoint, other_checkpoint: Checkpoint
) -> None:
    glossaries = (
        glossary("default", "two", "zwo", "de", "en"),
        glossary("default", "zwo", "deux", "en", "fr"),
    )
    models = [
        replace(served(checkpoint, name), glossaries=glossaries)
        for checkpoint, name in (
            (trained_checkpoint, "de-en"),
            (other_checkpoint, "en-fr"),
        )
    ]
    with running(models, pivots=["en"]) as server:
        for html in ("<b>two</b> one five", "five <b>two</b> one", "one <b>two</b>"):
            body = {"q": html, **DE_FR, "format": "html"}
            found = server.post("/translate", body).json["translatedText"]
            assert "<b>deux</b>" in found
            body = {"q": html, "model": NAME, "format": "html"}
            [line] = lines_of(server.post("/v1/translate", body).body)
            assert line["translation"] == found


def test_an_answer_tells_that_terms_of_the_first_model_may_be_missing(
    trained_checkpoint: Checkpoint,
) -> None:
    unaligned = SearchConfig(
        beam_size=1, min_length=MAX_ALIGNED_TOKENS, max_length=MAX_ALIGNED_TOKENS + 50
    )
    short = SearchConfig(beam_size=1, max_length=3)
    models = [
        replace(
            served(replace(trained_checkpoint, search=search), name),
            glossaries=(glossary("default", "two", "zwo", "de", "en"),),
        )
        for search, name in ((unaligned, "de-en"), (short, "en-fr"))
    ]
    with running(models, pivots=["en"]) as server:
        answer = server.post("/translate", {"q": ["one", "two"], **DE_FR}).json
        assert answer["mayLackTerms"] == [False, True]
        body = {"q": "one\ntwo", "model": NAME}
        lines = lines_of(server.post("/v1/translate", body).body)
        assert [each["may_lack_terms"] for each in lines] == [False, False, True]


def test_a_model_of_several_languages_translates_from_the_pivot_and_into_it(
    trained_checkpoint: Checkpoint, tagged_checkpoint: Checkpoint
) -> None:
    single = Translator(trained_checkpoint, "cpu")
    many = Translator(tagged_checkpoint, "cpu")
    models = [served(trained_checkpoint, "nl-en"), served(tagged_checkpoint, "many")]
    with running(models, pivots=["en"]) as server:
        [*_, pair] = server.get("/v1/models").json
        assert (pair["name"], pair["targets"]) == ("nl-en+many", ["de", "fr"])
        for target in ("de", "fr"):
            body = {"q": TEXTS, "source": "nl", "target": target}
            found = server.post("/translate", body).json["translatedText"]
            assert found == through(single, many.into(target), TEXTS)
    models = [served(tagged_checkpoint, "many"), served(trained_checkpoint, "fr-nl")]
    with running(models, pivots=["fr"]) as server:
        body = {"q": TEXTS, "source": "en", "target": "nl"}
        found = server.post("/translate", body).json["translatedText"]
        assert found == through(many.into("fr"), single, TEXTS)


@pytest.mark.parametrize("pivots", [["fr"], ["en", "en"], ["nl"], ["de"]])
def test_a_pivot_that_joins_no_new_pair_is_refused(
    http: RunningServer, pivots: list[str]
) -> None:
    with pytest.raises(ConfigError, match=r"\(de:en, en:fr, .*joins none into a new"):
        find_routes(http.models, pivots)


def test_the_first_of_two_pivots_counts(trained_checkpoint: Checkpoint) -> None:
    names = ["de-en", "en-fr", "en-es", "de-nl", "nl-fr", "nl-it"]
    models = [served(trained_checkpoint, name) for name in names]
    found = [each.name for each in find_routes(models, ["nl", "en"])[len(names) :]]
    assert found == ["de-nl+nl-fr", "de-nl+nl-it", "de-en+en-es"]
    for model in models:
        model.queue.close()


def test_limits_of_both_queues_hold_before_the_work_begins(
    trained_checkpoint: Checkpoint,
) -> None:
    few = QueueConfig(max_waiting=1)
    models = [
        served(trained_checkpoint, "de-en"),
        served(trained_checkpoint, "en-fr", few),
    ]
    started = list[int]()
    models[0].queue.on_batch = started.append
    with running(models, AdmissionConfig(max_characters=99), pivots=["en"]) as server:
        answer = server.post("/translate", {"q": ["one", "two"], **DE_FR})
        assert (answer.status, answer.json["error"]) == (
            413, "A request must have at most 1 sentence, but has 2; send it in parts.",
        )  # fmt: skip
        assert server.post("/translate", {"q": "a" * 100, **DE_FR}).status == 413
        models[0].queue.on_batch = lambda _: None
        assert started == []


def test_a_full_second_queue_lets_accepted_sentences_in(
    trained_checkpoint: Checkpoint,
) -> None:
    """They were accepted, and the first model has translated them."""
    few = QueueConfig(max_waiting=4)
    models = [
        served(trained_checkpoint, "de-en"),
        served(trained_checkpoint, "en-fr", few),
    ]
    release, reached = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        reached.set()
        assert release.wait(60)

    answers = list[Any]()
    with running(models, pivots=["en"]) as server:

        def ask(body: dict[str, Any]) -> threading.Thread:
            thread = threading.Thread(
                target=lambda: answers.append(server.post("/translate", body))
            )
            thread.start()
            return thread

        models[0].queue.on_batch = hold
        waiting = [ask({"q": TEXTS, **DE_FR})]
        assert reached.wait(60)
        reached.clear()
        models[1].queue.on_batch = hold
        waiting.append(ask({"q": "one", "source": "en", "target": "fr"}))
        assert reached.wait(60)
        futures = models[1].queue.submit(["one"] * 4)
        refused = server.post("/translate", {"q": "one", **DE_FR})
        release.set()
        for thread in waiting:
            thread.join()
        assert len([each.result() for each in futures]) == 4
    assert refused.status == 429
    assert [each.status for each in answers] == [200, 200]
