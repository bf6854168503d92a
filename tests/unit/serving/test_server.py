import asyncio
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from urllib.parse import urlencode

import pytest
import uvicorn
from fastapi import FastAPI

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.metrics.scores import TargetScore
from transduce.search_config import SearchConfig
from transduce.serving.messages import FORM
from transduce.serving.request_queue import QueueConfig
from transduce.serving.server import http_server
from waiting import wait_until

EN_DE = {"source": "en", "target": "de"}


@pytest.fixture
def offline(http: RunningServer) -> Callable[[str], str]:
    translator: Translator = http.models[0].queue.translator
    return lambda text: translator.translate([text])[0].text


def test_a_text_has_its_offline_translation(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    answer = http.post("/translate", {"q": "one two three", **EN_DE})
    assert answer.status == 200
    assert answer.json == {"translatedText": offline("one two three")}


def test_a_list_is_answered_by_lists_in_order(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    texts = ["one", "", "two three", "eight"]
    body = {"q": texts, **EN_DE, "alternatives": 2}
    answer = http.post("/translate", body).json
    assert answer["translatedText"] == [offline(text) for text in texts]
    assert [len(each) <= 2 for each in answer["alternatives"]] == [True] * 4
    assert answer["alternatives"][1] == []


def test_alternatives_are_the_next_best(http: RunningServer) -> None:
    body = {"q": "one two", **EN_DE, "alternatives": 3}
    answer = http.post("/translate", body).json
    config = SearchConfig(num_best=4)
    translator = http.models[0].queue.translator
    [found] = translator.translate_stream(["one two"], config)
    texts = list(dict.fromkeys(each.text for each in found.hypotheses))
    assert [answer["translatedText"], *answer["alternatives"]] == texts
    assert len(texts) > 1


@pytest.mark.parametrize("kind", ["form", "address"])
def test_a_form_is_read_like_json(
    http: RunningServer, offline: Callable[[str], str], kind: str
) -> None:
    fields = "q=one+two&source=en&target=de&format=text&api_key=none"
    path = "/translate" if kind == "form" else f"/translate?{fields}"
    body = fields.encode() if kind == "form" else b""
    answer = http.post(path, body, content_type="application/x-www-form-urlencoded")
    assert answer.json == {"translatedText": offline("one two")}


def test_sentences_are_translated_one_by_one_and_line_ends_are_kept(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    text = "  one two. three!\n\n\tfour\r\n"
    answer = http.post("/translate", {"q": text, **EN_DE}).json
    one, three, four = map(offline, ("one two.", "three!", "four"))
    assert answer["translatedText"] == f"  {one} {three}\n\n\t{four}\r\n"


def test_a_sentence_of_html_is_translated_whole_and_keeps_its_tags(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    html = '<p title="a>b">one <b>two\n three</b></p><script>three</script>'
    answer = http.post("/translate", {"q": html, **EN_DE, "format": "html"}).json
    found = answer["translatedText"]
    assert re.sub("<b>|</b>", "", found) == (
        f'<p title="a>b">{offline("one two three")}</p><script>three</script>'
    )
    assert found.count("<b>") == found.count("</b>") == 1


def test_html_streams_like_a_single_answer(http: RunningServer) -> None:
    html = "<p>one <b>two</b> three. four</p> <i>five &amp; six</i>"
    asked = {"q": html, "format": "html", "alternatives": 1}
    answer = http.post("/v1/translate", {**asked, "model": "en-de"})
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(each["source"] for each in pieces) == html
    whole = http.post("/translate", {**asked, **EN_DE}).json
    written = "".join(each["translation"] for each in pieces)
    assert written == whole["translatedText"]
    assert "<b>" in pieces[1]["alternatives"][0]["text"]


@pytest.mark.parametrize("format", ["text", "html"])
def test_sentences_of_chinese_are_translated_with_space_between_them(
    http: RunningServer, offline: Callable[[str], str], format: str
) -> None:
    body = {"q": "one。two？three", "format": format, "alternatives": 1}
    whole = http.post("/translate", {**body, **EN_DE}).json
    expected = " ".join(map(offline, ("one。", "two？", "three")))
    assert whole["translatedText"] == expected
    answer = http.post("/v1/translate", {**body, "model": "en-de"})
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(each["translation"] for each in pieces) == expected
    assert "".join(each["source"] for each in pieces) == body["q"]
    assert pieces[1]["alternatives"][0]["text"].startswith(" ")


def test_space_between_sentences_stands_before_a_tag_in_answers_and_streams(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    body = {"q": "one。<b>two？</b>three", "format": "html"}
    whole = http.post("/translate", {**body, **EN_DE}).json["translatedText"]
    one, two, three = map(offline, ("one。", "two？", "three"))
    assert whole == f"{one} <b>{two}</b> {three}"
    answer = http.post("/v1/translate", {**body, "model": "en-de"})
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(each["translation"] for each in pieces) == whole
    assert "".join(each["source"] for each in pieces) == body["q"]


def test_a_text_of_a_list_is_spaced_as_it_is_alone(http: RunningServer) -> None:
    texts = ["<p>！5.6。</p>", "one", "<p>！5.6。</p>", "", "7。8。<b>9。</b>"]
    body = {"q": texts, "format": "html", **EN_DE}
    whole = http.post("/translate", body).json["translatedText"]
    alone = [http.post("/translate", {**body, "q": each}).json for each in texts]
    assert whole == [each["translatedText"] for each in alone]
    assert [whole[0], whole[4]] == [texts[0], texts[4]]


@pytest.mark.parametrize(
    "text", ["5。6。one。7。\n8\ntwo。9。", "one。<b>5。</b>two。<i>6。</i>"]
)
def test_sentences_without_a_letter_are_spaced_alike_in_answers_and_streams(
    http: RunningServer, offline: Callable[[str], str], text: str
) -> None:
    body = {"q": text, "format": "html" if "<" in text else "text"}
    whole = http.post("/translate", {**body, **EN_DE}).json["translatedText"]
    one, two = offline("one。"), offline("two。")
    expected = (
        f"{one} <b>5。</b> {two} <i>6。</i>"
        if "<" in text
        else f"5。 6。 {one} 7。\n8\n{two} 9。"
    )
    assert whole == expected
    answer = http.post("/v1/translate", {**body, "model": "en-de"})
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(each["translation"] for each in pieces) == whole
    assert "".join(each["source"] for each in pieces) == text


def test_sentences_are_split_by_the_language_of_the_model(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    text = "one two 3. Mai three. Four"
    german = {"q": text, "source": "de", "target": "en"}
    english = {"q": text.replace("Mai", "Cats"), **EN_DE}
    answers = [http.post("/v1/translate", {"q": text, "model": "de-en"})]
    sources = [json.loads(line)["source"] for line in answers[0].body.splitlines()]
    assert sources == ["one two 3. Mai three.", " ", "Four"]
    found = http.post("/translate", german).json["translatedText"]
    assert found == f"{offline('one two 3. Mai three.')} {offline('Four')}"
    found = http.post("/translate", english).json["translatedText"]
    assert found == " ".join(
        [offline("one two 3."), offline("Cats three."), offline("Four")]
    )


@pytest.mark.parametrize("path", ["/translate", "/v1/translate"])
def test_splitting_into_sentences_can_be_switched_off(
    http: RunningServer, offline: Callable[[str], str], path: str
) -> None:
    asked = {"q": "one. Two. Three\nfour", "split_sentences": False}
    if path == "/translate":
        found = http.post(path, {**asked, **EN_DE}).json["translatedText"]
    else:
        lines = http.post(path, {**asked, "model": "en-de"}).body.splitlines()
        found = "".join(json.loads(line)["translation"] for line in lines)
    assert found == f"{offline('one. Two. Three')}\n{offline('four')}"


@pytest.mark.parametrize("auto", ["auto", "AUTO", " Auto ", None])
def test_an_unset_source_is_the_only_language_available(
    http: RunningServer, auto: str | None
) -> None:
    answer = http.post("/translate", {"q": "one", "source": auto, "target": "de"})
    assert answer.json["detectedLanguage"] == {"confidence": 0.0, "language": "en"}


def test_the_list_of_languages_has_those_of_all_models(http: RunningServer) -> None:
    assert http.get("/languages").json == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]


def test_a_pair_of_languages_of_two_models_is_listed_once(
    trained_checkpoint: Checkpoint,
) -> None:
    own = replace(trained_checkpoint, source_language="en", target_language="de")
    with running([served(own, "mine"), served(own, "small")]) as server:
        assert server.get("/languages").json[0]["targets"] == ["de"]
        refused = server.post("/translate", {"q": "one", "target": "fr"})
    assert "(en to de)" in refused.json["error"]


def test_detection_reports_no_confidence(http: RunningServer) -> None:
    assert http.post("/detect", {"q": "one"}).json == [
        {"confidence": 0.0, "language": "en"},
        {"confidence": 0.0, "language": "de"},
    ]


def test_the_list_of_models_has_names_and_tasks(http: RunningServer) -> None:
    models = http.get("/v1/models").json
    assert [each["name"] for each in models] == ["en-de", "de-en", "trees"]
    assert [each["task"] for each in models] == ["translate", "translate", "parse"]
    assert models[2]["source_name"] == "English"
    assert http.get("/health").json == {
        "status": "ok", "models": ["en-de", "de-en", "trees"],
    }  # fmt: skip


def test_a_stream_has_a_line_for_each_piece(
    http: RunningServer, offline: Callable[[str], str]
) -> None:
    body = {"q": "one. two\nthree", "model": "en-de", "alternatives": 1}
    answer = http.post("/v1/translate", body)
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(each["source"] for each in pieces) == "one. two\nthree"
    assert [each["translation"] for each in pieces] == [
        offline("one."), " ", offline("two"), "\n", offline("three"),
    ]  # fmt: skip
    assert [each["score"] is None for each in pieces] == [False, True] * 2 + [False]
    assert all(len(each["alternatives"]) <= 1 for each in pieces)


@pytest.mark.parametrize("constrained", [False, True])
def test_a_text_is_parsed_sentence_by_sentence(
    http: RunningServer, constrained: bool
) -> None:
    text = "It isn't (so).\nOne two"
    answer = http.post("/v1/parse", {"q": text, "constrained": constrained})
    first, between, second = [json.loads(line) for line in answer.body.splitlines()]
    assert first["source"] + between["source"] + second["source"] == text
    parser = http.models[2].queue.translator.parser()
    offline = parser.parse_stream([["One", "two"]], constrained=constrained)
    [parse] = offline
    assert second["tree"] == str(parse.tree)
    assert second["score"] == pytest.approx(parse.score, abs=1e-5)
    assert second["num_repairs"] == parse.repairs.total
    assert [leaf["word"] for leaf in first["leaves"]] == [
        "It", "is", "n't", "-LRB-", "so", "-RRB-", ".",
    ]  # fmt: skip
    assert first["constituents"][0] == {"label": "TOP", "start": 0, "end": 7}
    assert between["tree"] is None
    assert constrained <= (first["num_repairs"] == 0)


def test_text_without_a_letter_has_its_offline_parse(http: RunningServer) -> None:
    answer = http.post("/v1/parse", {"q": "1995\n \n-- 3.\n\u200b\n…"})
    pieces = [json.loads(line) for line in answer.body.splitlines()]
    parser = http.models[2].queue.translator.parser()
    lines = ["1995", "-- 3.", "…"]
    offline = [str(each.tree) for each in parser.parse(lines)]
    found = [each for each in pieces if each["tree"] is not None]
    assert [each["source"] for each in found] == lines
    assert [each["tree"] for each in found] == offline


def test_attention_of_a_tree_is_between_words_and_symbols(http: RunningServer) -> None:
    body = {"source": "one two", "target": "(S (NP (X one)) (VP (X two)))"}
    answer = http.post("/v1/attention", body | {"model": "trees"}).json
    assert "".join(answer["queries"]) == " (S (NP XX )NP (VP XX )VP )S </s>"
    assert "".join(answer["keys"]) == " one two </s>"


def test_a_task_of_no_served_model_is_refused(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint
) -> None:
    with running([served(parsing_checkpoint, "en-de")]) as server:
        assert server.get("/languages").json == server.post("/detect", {"q": ""}).json
        refused = server.post("/translate", {"q": "one", **EN_DE})
    assert refused.status == 400
    assert refused.json["error"] == (
        "A model must be served that can do this, but none is; /v1/models tells what "
        "each model does."
    )
    with running([served(trained_checkpoint, "en-de")]) as server:
        assert server.post("/v1/parse", {"q": "one"}).json == refused.json


def test_a_translation_has_its_offline_score(http: RunningServer) -> None:
    body = {"source": ["one", "two"], "target": ["eins", "drei"], "model": "en-de"}
    [one, two] = http.post("/v1/score", body).json
    translator = http.models[0].queue.translator
    offline = translator.score(["one", "two"], ["eins", "drei"])
    assert one["log_probability"] == pytest.approx(offline[0].log_probability, abs=1e-5)
    assert two["num_tokens"] == offline[1].num_tokens
    assert two["tokens"] == list(offline[1].tokens) != []
    assert two["token_log_probabilities"] == pytest.approx(
        offline[1].token_log_probabilities, abs=1e-5
    )
    assert len(two["token_log_probabilities"]) == two["num_tokens"]
    assert two["perplexity"] == pytest.approx(offline[1].perplexity, rel=1e-4)


def test_a_form_has_one_translation_scored_or_several(http: RunningServer) -> None:
    form = {"source": "one", "target": "eins", "model": "en-de"}
    kind = "application/x-www-form-urlencoded"
    one = http.post("/v1/score", urlencode(form).encode(), content_type=kind).json
    several = urlencode(form) + "&source=two&target=zwei"
    two = http.post("/v1/score", several.encode(), content_type=kind).json
    assert (len(one), len(two)) == (1, 2)
    name = "token_log_probabilities"
    assert one[0]["tokens"] == two[0]["tokens"] == [" eins"]
    assert one[0][name] == pytest.approx(two[0][name], rel=1e-4)
    assert one[0]["perplexity"] == pytest.approx(two[0]["perplexity"], rel=1e-4)


def test_an_impossible_translation_has_no_perplexity(
    http: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"source": ["one"], "target": ["eins"], "model": "de-en"}
    impossible = TargetScore(token_log_probabilities=(-1e6, 0.0))
    monkeypatch.setattr(
        http.models[1].queue.translator,
        "score_stream",
        lambda *_: iter([(0, impossible)]),
    )
    [score] = http.post("/v1/score", body).json
    assert score["perplexity"] is None


def test_attention_is_answered_by_layer_head_query_and_key(http: RunningServer) -> None:
    body = {"source": "one two", "target": "eins", "model": "en-de"}
    answer = http.post("/v1/attention", body).json
    assert answer["keys"][-1] == " </s>"
    assert "".join(answer["queries"]) == " eins </s>"
    [heads] = answer["weights"]
    assert [len(head) for head in heads] == [len(answer["queries"])] * 4
    assert sum(heads[0][0]) == pytest.approx(1, abs=1e-3)


class Missing:
    """Finder that lacks a module, and records from where it is imported."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.is_in_event_loop: list[bool] = []
        """Whether the thread of each import runs an event loop."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.module:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                self.is_in_event_loop.append(False)
            else:
                self.is_in_event_loop.append(True)
            raise ModuleNotFoundError(name="torch")


def test_pytorch_is_imported_outside_the_event_loop(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = Missing("transduce.analysis.sentence_attention")
    monkeypatch.delitem(sys.modules, finder.module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    body = {"source": "one two", "target": "eins", "model": "en-de"}
    with running([served(trained_checkpoint, "en-de")]) as server:
        assert "torch" in server.post("/v1/attention", body).json["error"]
    assert finder.is_in_event_loop == [False]


class Blocked(Loader):
    """Finder of a module whose import fails at the end of a block, not before."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._released = threading.Event()

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self._module else None

    def exec_module(self, _: ModuleType) -> None:
        self._released.wait()
        raise ModuleNotFoundError(name="torch")

    @contextmanager
    def blocking(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._released.set()


def test_requests_that_wait_for_pytorch_hold_up_no_others(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "transduce.analysis.sentence_attention"
    finder = Blocked(module)
    model = served(trained_checkpoint, "en-de", QueueConfig(timeout_s=2))
    pair = {"source": "one two", "target": "eins"}
    num_requests = 40  # more than the event loop has threads
    with running([model]) as server, ThreadPoolExecutor(num_requests) as clients:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, module, raising=False)
            patch.setattr(sys, "meta_path", [finder, *sys.meta_path])
            with finder.blocking():
                answers = list(
                    clients.map(
                        lambda _: server.post("/v1/attention", pair),
                        range(num_requests),
                    )
                )
                assert {each.status for each in answers} == {503}
                assert "is still being loaded" in answers[0].json["error"]
                assert answers[0].headers["retry-after"] == "1"
                one = {"q": "one", **EN_DE}
                wait_until(lambda: server.post("/translate", one).status == 200)
            # The import has failed, so it no longer changes `sys.modules`.
            wait_until(lambda: server.post("/v1/attention", pair).status == 400)
        wait_until(lambda: server.post("/v1/attention", pair).status == 200)


@pytest.mark.parametrize("path", ["/translate", "/v1/translate"])
def test_markup_does_not_count_as_text(http: RunningServer, path: str) -> None:
    page = f"<!--{'-' * 50_000}--><style>{'a' * 50_000}</style><p>one</p>"
    body = {"q": page, "model": "en-de", "format": "html", **EN_DE}
    answer = http.post(path, body)
    assert answer.status == 200
    assert b"eins" in answer.body


def test_metrics_have_the_text_format_of_prometheus(http: RunningServer) -> None:
    http.post("/translate", {"q": "one", **EN_DE})
    http.get("/no/such/path")
    text = http.get("/metrics").body.decode()
    counts = dict(re.findall(r"^transduce_requests_total(\{.*?\}) (\S+)", text, re.M))
    assert float(counts['{path="/translate",status="200"}']) >= 1
    assert float(counts['{path="other",status="404"}']) >= 1
    assert 'transduce_waiting_sentences{model="en-de"} 0.0' in text
    assert 'transduce_batch_sentences_count{model="en-de"}' in text


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/translate", b"{", 400, "The body: Invalid JSON"),
        ("/translate", b"[]", 400, "The body: Input should be an object"),
        ("/translate", b'{"q": "\xff"}', 400, "The body must be in UTF-8"),
        ("/translate", b'{"q": "\\ud800"}', 400, "Invalid JSON"),
        ("/translate", {"q": 1}, 400, "^q: Input should be a valid string"),
        ("/translate", {"target": "de"}, 400, "q: Field required"),
        ("/translate", {"q": "a", "source": "fr", "target": "de"}, 400,
         r"must be languages of a model \(en to de, de to en\), but are 'fr' and 'de'"),
        ("/translate", {"q": "a"}, 400, "but are 'auto' and not given"),
        ("/translate", {"q": "a", **EN_DE, "alternatives": 99}, 400, "less than or"),
        ("/translate", {"q": "a", **EN_DE, "format": "pdf"}, 400, "format: Input"),
        ("/translate", {"q": "a", **EN_DE, "alternatives": True}, 400,
         "alternatives: Input should be a valid integer"),
        ("/v1/translate", {"q": "a", "model": "en-de", "alternatives": False}, 400,
         "alternatives: Input should be a valid integer"),
        ("/translate", {"q": "a" * 10_001, **EN_DE}, 413,
         "at most 10,000 characters of text, but has 10,001"),
        ("/translate", {"q": "<p>a" * 2501 + "a" * 7_500, **EN_DE, "format": "html"},
         413, "at most 10,000 characters of text, but has 10,001"),
        ("/v1/translate", {"q": "a" * 10_001, "model": "en-de", "format": "html"}, 413,
         "at most 10,000 characters of text, but has 10,001"),
        ("/translate", b" " * 200_000, 413, "at most 130,000 bytes"),
        ("/translate", {"q": "a.\n" * 1025, **EN_DE}, 413,
         "at most 1,024 sentences, but has 1,025"),
        ("/translate", {"q": [""] * 1025, **EN_DE}, 413,
         "at most 1,024 texts, but has 1,025"),
        ("/v1/translate", {"q": "a"}, 400, "one of en-de, de-en, but is not given"),
        ("/v1/translate", {"q": "a", "model": "x"}, 400, "but is 'x'"),
        ("/v1/score", {"source": ["a"], "target": [], "model": "en-de"}, 400,
         "must be equally many, but are 1 and 0"),
        ("/v1/attention", {"source": "a " * 129, "target": "", "model": "en-de"}, 413,
         "The source must have at most 128 tokens"),
        ("/translate", {"q": "\N{GOTHIC LETTER AHSA}" * 2500, **EN_DE}, 413,
         "at most 10,000 tokens, but has 10,002"),
        ("/v1/translate", {"q": "\N{GOTHIC LETTER AHSA}" * 2500, "model": "en-de"}, 413,
         "at most 10,000 tokens"),
        ("/v1/parse", {"q": "\N{GOTHIC LETTER AHSA}" * 2500}, 413,
         "at most 10,000 tokens"),
        ("/v1/score", {"source": ["\N{GRINNING FACE}" * 1250], "model": "en-de",
         "target": ["\N{GRINNING FACE}" * 1250]}, 413, "but has 10,004"),
        ("/v1/score", {"source": ["a"], "target": ["x " * 1000], "model": "en-de"}, 413,
         "at most 1,000 tokens here, but one has"),
        ("/v1/score", {"source": [""] * 5001, "target": [""] * 5001, "model": "en-de"},
         413, "but has 10,002"),
        ("/v1/attention", {"source": "\N{GRINNING FACE}" * 2500, "target": "x",
         "model": "en-de"}, 413, "at most 10,000 tokens"),
        ("/v1/attention", {"source": "a", "target": "x " * 129, "model": "en-de"}, 413,
         "The target must have at most 128 tokens"),
        ("/v1/attention", {"source": "a", "target": "", "model": "en-de"}, 400,
         "The target must have at least one word"),
        ("/v1/attention", {"source": "a", "target": "x", "model": "trees"}, 400,
         "a tree must begin with `\\(`"),
        ("/v1/translate", {"q": "a", "model": "trees"}, 400, "but is 'trees'"),
        ("/v1/parse", {"q": "a", "model": "de-en"}, 400, "of trees, but is 'de-en'"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_a_sentence(
    http: RunningServer, path: str, body: object, status: int, error: str
) -> None:
    answer = http.post(path, body)
    assert answer.status == status
    assert re.search(error, answer.json["error"])
    assert "\n" not in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"[" * 100_000, "recursion limit exceeded"),
        (b'{"q": ' * 20_000, "recursion limit exceeded"),
        (b'{"q": "a", "target": "de", "alternatives": NaN}', "a finite number"),
        (b'{"q": "a", "target": "de", "alternatives": -Infinity}', "a finite number"),
        (b'{"q": "a", "target": "de", "alternatives": 1e999}', "a finite number"),
        (b'{"q": "a", "alternatives": ' + b"9" * 90_000 + b"}", "out of range"),
        (b'{"q": "a", "target": "de", "alternatives": -1}', "greater than or equal"),
        (b"\xff\xfe{\x00}", "must be in UTF-8"),  # half of a UTF-16
        (rb'{"q": "\ud83d", "target": "de"}', "half of a surrogate pair at line 1"),
        (rb'{"q": "\ude80", "target": "de"}', "half of a surrogate pair at line 1"),
        (b"null", "should be an object"),
        (b'{"q": null, "target": "de"}', "q: Field required"),
        (b'{"q": ["a", null], "target": "de"}', "q.1: Input should be a valid string"),
    ],
    ids=range(13),
)
def test_hostile_json_is_refused_in_a_sentence(
    http: RunningServer, body: bytes, error: str
) -> None:
    answer = http.post("/translate", body)
    assert answer.status == 400
    assert error in answer.json["error"]
    assert len(answer.json["error"]) < 200


@pytest.mark.parametrize("path", ["/translate", "/v1/translate", "/v1/parse"])
def test_sentences_are_counted_before_their_tokens(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint, path: str
) -> None:
    checkpoint = parsing_checkpoint if "parse" in path else trained_checkpoint
    limits = QueueConfig(max_waiting=2, max_tokens=3)
    with running([served(checkpoint, "en-de", limits)]) as server:
        answer = server.post(path, {"q": "one two.\n" * 3, "target": "de"})
    assert answer.status == 413
    assert "at most 2 sentences, but has 3" in answer.json["error"]


def test_a_long_field_is_truncated_in_the_message(http: RunningServer) -> None:
    for body in ({"source": "x" * 9000}, {"target": "\n" * 9000}):
        answer = http.post("/translate", {"q": "a", **EN_DE, **body})
        assert answer.status == 400
        assert len(answer.json["error"]) < 300


def test_a_compressed_body_is_refused(http: RunningServer) -> None:
    answer = http.post("/translate", b"\x1f\x8b", content_encoding="gzip")
    assert answer.status == 415
    assert "without content-encoding" in answer.json["error"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", ""])
def test_json_sent_as_a_form_gets_a_hint(http: RunningServer, kind: str) -> None:
    answer = http.post("/translate", b' {"q": "a"}', content_type=kind)
    assert "send it with content-type: application/json" in answer.json["error"]


def test_a_body_of_another_kind_is_refused(http: RunningServer) -> None:
    answer = http.post("/translate", b"q", content_type="text/plain; charset=utf-8")
    assert answer.status == 415
    assert "but is text/plain" in answer.json["error"]


def test_a_form_of_too_many_fields_is_refused(http: RunningServer) -> None:
    answer = http.post("/translate", b"&".join([b"q=a"] * 1001), content_type=FORM)
    assert answer.status == 400
    assert "The form cannot be read" in answer.json["error"]


def test_a_query_in_another_encoding_is_refused(http: RunningServer) -> None:
    answer = http.ask("POST", "/translate?q=%ff&target=de")
    assert answer.status == 400
    error = "The form cannot be read (the query must be in UTF-8)."
    assert answer.json["error"] == error


@pytest.mark.parametrize("path", ["/nix", "/page.css/../../server.py", "/redoc"])
def test_other_paths_are_not_found(http: RunningServer, path: str) -> None:
    answer = http.get(path)
    assert answer.status == 404
    message = "The path must be one that /docs describes, but is not."
    assert answer.json == {"error": message}


def test_a_path_with_several_slashes_in_place_of_one_is_redirected(
    http: RunningServer,
) -> None:
    for given, location in (
        ("//translate", "/translate"),
        ("//v1///translate?q=a%20b&c=%C3%BC", "/v1/translate?q=a%20b&c=%C3%BC"),
    ):
        with closing(HTTPConnection("127.0.0.1", http.port)) as client:
            client.request("POST", given, b"{}")
            answer = client.getresponse()
            assert (answer.status, answer.headers["location"]) == (308, location)
            assert "single slashes" in json.load(answer)["error"]
    # Browsers would take the second path for another host.
    for unknown in ("//nix", "//\\example.org", "//health/"):
        assert http.get(unknown).status == 404
    assert http.get("//health").json["status"] == "ok"  # the client follows it


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/translate", "POST"),
        ("DELETE", "/health", "GET, HEAD"),
        ("OPTIONS", "/translate", "POST"),
        ("FOO", "/", "GET, HEAD"),
    ],
)
def test_another_method_is_refused(
    http: RunningServer, method: str, path: str, allowed: str
) -> None:
    answer = http.ask(method, path)
    assert answer.status == 405
    message = (
        f"The method must be {allowed.replace(', ', ' or ')} here, but is {method}."
    )
    assert answer.json == {"error": message}
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/page.js", "/languages", "/frontend/settings", "/health", "/metrics"),
        *("/docs", "/spec", "/openapi.json", "/v1/models"),
    ],
)
def test_head_answers_like_get_without_the_body(http: RunningServer, path: str) -> None:
    head, get = http.ask("HEAD", path), http.get(path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page.js",
        "/attention.js",
        "/tree.js",
        "/page.css",
        "/icon.svg",
    ],
)
def test_the_page_loads_nothing_from_elsewhere(http: RunningServer, path: str) -> None:
    answer = http.get(path)
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    links = re.findall(rb"https?://[^\"']+", answer.body)
    assert set(links) <= {b"http://www.w3.org/2000/svg"}


def test_the_documentation_page_has_every_path_and_loads_nothing(
    http: RunningServer,
) -> None:
    answer = http.get("/docs")
    assert answer.status == 200
    text = answer.body.decode()
    for path in http.get("/openapi.json").json["paths"]:
        assert f" {path}</h2>" in text
    buttons = re.findall("<button.*?</button>", text)
    assert '<button aria-label="Try it: POST /translate">Try it</button>' in buttons
    assert len(set(buttons)) == len(buttons)
    assert (
        '<td class="text" dir="auto">StreamedParse as application/x-ndjson</td>' in text
    )
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?[^"'\s)]+""", text) == []
    assert "default-src 'none'" in text


def test_other_sites_may_not_read_answers(http: RunningServer) -> None:
    answer = http.post("/translate", {"q": "one", **EN_DE}, origin="http://evil.test")
    assert "access-control-allow-origin" not in map(str.lower, answer.headers)


def test_a_model_of_several_languages_scores_and_attends_in_the_chosen_one(
    tagged_checkpoint: Checkpoint,
) -> None:
    translator = Translator(tagged_checkpoint, "cpu")
    pair = {"source": ["one"], "target": ["eins"]}
    with running([served(tagged_checkpoint, "many")]) as server:
        [model] = server.get("/v1/models").json
        assert model["targets"] == ["de", "fr"]
        assert model["target_names"] == ["German", "French"]
        for language in ("de", "fr"):
            expected = translator.into(language).score("one", "eins")
            [found] = server.post(
                "/v1/score", pair | {"target_language": language}
            ).json
            assert found["log_probability"] == pytest.approx(expected.log_probability)
            one = {"source": "one", "target": "eins", "target_language": language}
            keys = server.post("/v1/attention", one).json["keys"]
            assert keys[0] == f">>{language}<<"
        # Without a language, it is the first.
        [found] = server.post("/v1/score", pair).json
        expected = translator.into("de").score("one", "eins")
        assert found["log_probability"] == pytest.approx(expected.log_probability)
        for path in ("/v1/score", "/v1/attention"):
            body = {"source": "one", "target": "eins", "target_language": "es"}
            answer = server.post(path, body)
            assert answer.status == 400
            assert "language of the model (de, fr), but is 'es'" in answer.json["error"]


def test_uvicorn_logs_again_after_a_forced_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: uvicorn.Server, _: object) -> None:
        for _number in range(2):
            server.handle_exit(signal.SIGINT, None)
        assert server.force_exit
        assert logger.level == logging.CRITICAL

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    server = http_server(FastAPI())
    logger = logging.getLogger("uvicorn.error")
    level = logger.level
    server.run()
    assert logger.level == level != logging.CRITICAL


def test_subtitles_are_translated_with_their_times(http: RunningServer) -> None:
    times = "1\n00:00:01,000 --> 00:00:02,000\n"
    body = {"q": f"{times}one two", "format": "srt"}
    [plain] = http.models[0].queue.translator.translate(["one two"])
    answer = http.post("/translate", body | {"source": "en", "target": "de"})
    assert answer.json == {"translatedText": times + plain.text}
    lines = http.post("/v1/translate", body | {"model": "en-de"}).body.splitlines()
    assert "".join(json.loads(each)["translation"] for each in lines) == (
        times + plain.text
    )
    refused = http.post("/translate", body | {"q": "one", "target": "de"})
    assert refused.status == 400
    assert "must have lines of times" in refused.json["error"]
