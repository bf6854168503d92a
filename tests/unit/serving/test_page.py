"""The page in a browser."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FileChooser, Page, Request, Route, expect

from serving_client import RunningServer, running, served
from transduce.analysis.attention_maps import word_starts
from transduce.checkpoint import Checkpoint
from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator
from transduce.search_config import SearchConfig
from transduce.serving.admission import AdmissionConfig
from transduce.serving.request_queue import QueueConfig
from transduce.serving.served_models import ServedGlossary
from transduce.serving.server import examples
from transduce.text.glossary import Glossary

pytestmark = pytest.mark.slow

# The first request for attention imports PyTorch, which takes long on a busy machine.
expect.set_options(timeout=30_000)


@pytest.fixture
def page(browser: Browser, http: RunningServer) -> Iterator[Page]:
    """The page of two directions, on which nothing may go wrong unseen."""
    yield from watched(browser, http)


def watched(browser: Browser, server: RunningServer) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 375, "height": 800})
    problems: list[str] = []

    def leave(request: Request) -> None:
        if not request.url.startswith(server.address):
            problems.append(f"asked {request.url}")

    page.on("request", leave)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda line: problems.append(line.text) if line.type == "error" else None,
    )
    page.goto(server.address)
    yield page
    page.close()
    assert problems == []


def offline(http: RunningServer, text: str) -> str:
    return http.models[0].queue.translator.translate([text])[0].text


def require_accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"]) for each in found] == []


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for a condition that handlers of the page's requests fulfil."""
    for _ in range(1_000):
        if condition():
            return
        page.wait_for_timeout(10)
    raise AssertionError("The condition was not fulfilled within 10 s.")


def test_typed_text_is_translated(page: Page, http: RunningServer) -> None:
    page.locator("#source").press_sequentially("one two. \n\nthree")
    expected = f"{offline(http, 'one two.')} \n\n{offline(http, 'three')}"
    expect(page.locator("#target")).to_have_js_property("textContent", expected)
    expect(page.locator("#error")).to_be_hidden()


@pytest.mark.parametrize(
    "pieces",
    [
        [" ", "那位国王", "卖", "了那", "盏", "旧", "灯", "，", "因为", "它", "。"],
        [" 私は", "カタカナ", "と", " English", "を", "読む"],
        [" ฉัน", "ไป", "ห้องสมุด"],
        [" The", " dog", "s", ",", " it", "'", "s"],
        [" a", "", "b", " 👩", "\u200d", "🚀", "x"],
        [" e", "\u0301", "中", "\u0301", "文"],
        [" می", "\u200c", "خواهم", " ب"],
    ],
    ids=["zh", "ja", "th", "en", "emoji", "marks", "fa"],
)
def test_the_page_joins_pieces_to_words_like_figures(
    page: Page, pieces: list[str]
) -> None:
    script = "pieces => import('/attention.js').then(m => m.wordsOf(pieces))"
    words = page.evaluate(script, pieces)
    assert [word["pieces"][0] for word in words] == word_starts(pieces)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([" caf", "<0xC3>", "<0xA9>", " <0x32>", "<0x34>"], ["café", "24"]),
        ([" a", "<0x00>", "b", " <0xA9>"], ["a<0x00>b", "<0xA9>"]),  # not visible
    ],
)
def test_bytes_of_a_word_are_shown_as_characters(
    page: Page, pieces: list[str], words: list[str]
) -> None:
    script = "pieces => import('/attention.js').then(m => m.wordsOf(pieces))"
    found = page.evaluate(script, pieces)
    assert [word["text"] for word in found] == words


def test_a_pivoted_sentence_is_shown_in_the_pivot_language(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    search = SearchConfig(beam_size=2, min_length=3)  # the words are not its source's
    last = served(replace(trained_checkpoint, search=search), "en-fr")
    models = [served(trained_checkpoint, "de-en"), last]
    with running(models, pivots=["en"]) as server:
        for page in watched(browser, server):
            expect(page.locator("#model option")).to_have_text(
                ["German → English", "English → French", "German → French via English"]
            )
            page.fill("#source", "one two")
            expect(page.locator("#attended")).to_be_visible()
            page.select_option("#model", "de-en+en-fr")
            pivot = offline(server, "one two")
            found = last.queue.translator.translate(pivot).text
            expect(page.locator("#sentence-pivot")).to_have_text(f"English: {pivot}")
            expect(page.locator("#target")).to_have_text(found)
            expect(page.locator("#attended")).to_be_hidden()
            require_accessible(page)
            page.reload()
            expect(page.locator("#model")).to_have_value("de-en+en-fr")
            page.select_option("#model", "en-fr")
            page.fill("#source", "two")
            expect(page.locator("#attended")).to_be_visible()
            expect(page.locator("#sentence-pivot")).to_be_hidden()


def test_half_of_a_character_is_translated_as_an_unknown_one(page: Page) -> None:
    page.evaluate(
        r"""() => {
          const source = document.getElementById("source");
          source.value = "one \ud83d two";
          source.dispatchEvent(new Event("input"));
        }"""
    )
    expect(page.locator("#sentence-source")).to_have_text("one \ufffd two")
    expect(page.locator("#error")).to_be_hidden()


def test_alternatives_have_scores_from_best_to_worst(page: Page) -> None:
    page.fill("#source", "one two")
    scores = page.locator("#alternatives .score")
    expect(scores.nth(1)).to_be_visible()
    found = [float(each) for each in scores.all_inner_texts()]
    assert found == sorted(found, reverse=True)


def test_another_sentence_can_be_chosen_by_keyboard(page: Page) -> None:
    page.fill("#source", "one\ntwo three")
    second = page.locator("#target .sentence").nth(1)
    second.focus()
    page.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#sentence-source")).to_have_text("two three")


def test_a_key_leads_past_all_sentences_and_others_from_one_to_the_next(
    page: Page,
) -> None:
    page.fill("#source", "one\ntwo\nthree")
    expect(page.locator("#copy")).to_be_enabled()
    sentences = page.locator("#target .sentence")
    page.locator("#target").focus()
    page.keyboard.press("Tab")
    expect(sentences.nth(0)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(sentences.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(sentences.nth(2)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(sentences.nth(1)).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator("#sentence-source")).to_have_text("two")
    page.keyboard.press("Tab")
    expect(page.locator("#layer")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(sentences.nth(1)).to_be_focused()


def test_a_word_shows_its_own_lines(page: Page) -> None:
    page.fill("#source", "one two three")
    words = page.locator("#attention .word")
    expect(words.first).to_be_visible()
    shown = "line => Number(line.getAttribute('stroke-opacity')) > 0"
    count = f"lines => lines.filter({shown}).length"
    lines = page.locator("#attention line")
    all_lines = lines.evaluate_all(count)
    words.first.focus()
    assert 0 < lines.evaluate_all(count) < all_lines
    page.select_option("#head", "2")
    assert lines.count() > 0


def test_a_tree_is_drawn_over_its_words(page: Page) -> None:
    page.select_option("#model", "trees")
    page.fill("#source", "one two three. four")
    words = page.locator("#tree .leaf")
    expect(words).to_have_text(["one", "two", "three", "."])
    assert page.locator("#tree .phrase").first.text_content() == "TOP"
    x = words.evaluate_all("words => words.map(word => word.getBBox().x)")
    assert x == sorted(x)
    expect(page.locator("#alternatives")).to_be_hidden()
    expect(page.locator("#swap")).to_be_hidden()
    second = page.locator("#target .sentence").nth(1)
    second.focus()
    page.keyboard.press("Enter")
    expect(words).to_have_text(["four"])
    expect(page.locator("#attention .word").first).to_be_visible()
    require_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_interface_page_is_accessible_and_fits_a_phone(
    page: Page, http: RunningServer
) -> None:
    page.click("footer a")
    expect(page.locator("h1")).to_contain_text("The interface of transduce")
    require_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_page_recovers_once_the_server_is_reachable(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    page = browser.new_page()
    with running([served(trained_checkpoint, "en-de")]) as server:
        page.route("**/v1/models", lambda route: route.abort(), times=1)
        page.goto(server.address)
        expect(page.locator("#error")).to_contain_text("cannot be reached")
        page.fill("#source", "one")
        expect(page.locator("#target .sentence")).to_have_count(1)
        expect(page.locator("#error")).to_be_hidden()
        page.close()


def test_the_direction_is_swapped(page: Page) -> None:
    page.fill("#source", "one two")
    expect(page.locator("#copy")).to_be_enabled()
    before = page.locator("#target").text_content()
    page.keyboard.press("Alt+s")
    expect(page.locator("#model")).to_have_value("de-en")
    expect(page.locator("#source")).to_have_value(before or "")


def test_a_swap_loses_no_text_that_is_not_translated_yet(page: Page) -> None:
    page.fill("#source", "one two")
    expect(page.locator("#copy")).to_be_enabled()
    page.route("**/v1/translate", lambda _: None)  # no other result comes
    page.fill("#source", "three")
    page.keyboard.press("Alt+s")
    expect(page.locator("#model")).to_have_value("de-en")
    expect(page.locator("#source")).to_have_value("three")


def test_the_result_of_an_earlier_text_is_not_swapped_or_copied(page: Page) -> None:
    requests: list[Route] = []
    page.route("**/v1/translate", lambda route: requests.append(route))
    page.fill("#source", "one")
    until(page, lambda: len(requests) == 1)
    page.evaluate("window.setTimeout = () => 0")  # the pause after typing never ends
    page.fill("#source", "one two")
    requests[0].continue_()
    expect(page.locator("#target .sentence")).to_have_count(1)
    expect(page.locator("#target")).to_have_class("is-outdated")
    expect(page.locator("#copy")).to_be_disabled()
    page.keyboard.press("Alt+s")
    expect(page.locator("#model")).to_have_value("de-en")
    expect(page.locator("#source")).to_have_value("one two")


def test_the_choice_of_a_model_stays_when_the_page_is_reloaded(page: Page) -> None:
    page.select_option("#model", "de-en")
    page.reload()
    expect(page.locator("#model")).to_have_value("de-en")


def test_nothing_is_copied_where_no_result_is(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('before')")
    page.keyboard.press("Alt+c")
    assert page.evaluate("navigator.clipboard.readText()") == "before"


@pytest.fixture
def answered(browser: Browser, http: RunningServer) -> Iterator[Page]:
    """The page without watch over errors, which a test makes."""
    page = browser.new_page()
    page.goto(http.address)
    expect(page.locator("#model option")).to_have_count(3)
    yield page
    page.close()


BUSY: dict[str, Any] = {
    "status": 429,
    "headers": {"retry-after": "1"},
    "json": {"error": "The queue is full; try again later."},
}


def test_a_busy_server_is_asked_again(answered: Page) -> None:
    answered.route("**/v1/translate", lambda route: route.fulfill(**BUSY), times=1)
    answered.fill("#source", "one two")
    expect(answered.locator("#status")).to_have_text("The page tries again in 1 s.")
    expect(answered.locator("#target .sentence")).to_have_count(1)
    expect(answered.locator("#error")).to_be_hidden()


def test_a_server_too_busy_to_read_attention_is_asked_again(answered: Page) -> None:
    answered.route("**/v1/attention", lambda route: route.fulfill(**BUSY), times=1)
    answered.fill("#source", "one two")
    expect(answered.locator("#attention")).to_have_text(
        "The queue is full; try again later. The page tries again in 1 s."
    )
    expect(answered.locator("#attention .word").first).to_be_visible()


def test_another_choice_is_asked_for_again_as_often_as_the_first(
    answered: Page,
) -> None:
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.post_data_json["model"])
        route.fulfill(**BUSY)

    answered.route("**/v1/translate", refuse)
    soon = "window.setTimeout = (call, ms) => wait(call, Math.min(ms, 50))"
    answered.evaluate(f"() => {{ const wait = window.setTimeout; {soon}; }}")
    answered.fill("#source", "one two")
    pause = 200  # milliseconds, four times as long as until another request
    until(answered, lambda: len(asked) == 4)
    answered.wait_for_timeout(pause)
    answered.select_option("#model", "de-en")
    until(answered, lambda: len(asked) == 8)
    answered.wait_for_timeout(pause)
    assert asked == ["en-de"] * 4 + ["de-en"] * 4


def test_another_address_is_no_error_before_the_settings_are_known(
    browser: Browser, http: RunningServer
) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/frontend/settings", lambda route: route.abort())
    page.goto(http.address)
    expect(page.locator("#error")).to_contain_text("cannot be reached")
    page.evaluate("location.hash = 'model=de-en'")
    page.unroute("**/frontend/settings")
    page.fill("#source", "one")
    expect(page.locator("#target .sentence")).to_have_count(1)
    expect(page.locator("#model")).to_have_value("de-en")
    page.close()
    assert errors == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"body": '{"source": "one", "trans'}, "cut or changed"),
        ({"status": 502, "body": "<html>"}, "The server answered 502."),
        ({"status": 500, "json": {"error": {"code": 1}}}, "The server answered 500."),
    ],
    ids=["cut", "page", "no text"],
)
def test_an_answer_of_a_proxy_shows_an_error(
    answered: Page, answer: dict[str, Any], message: str
) -> None:
    answered.route("**/v1/translate", lambda route: route.fulfill(**answer))
    answered.fill("#source", "one two")
    expect(answered.locator("#error")).to_contain_text(message)
    expect(answered.locator("#copy")).to_be_disabled()


def test_a_sentence_is_looked_at_by_the_model_that_translated_it(
    answered: Page,
) -> None:
    answered.fill("#source", "one two")
    expect(answered.locator("#attention .word").first).to_be_visible()
    answered.route("**/v1/parse", lambda route: route.abort())
    answered.select_option("#model", "trees")
    expect(answered.locator("#error")).to_contain_text("cannot be reached")
    with answered.expect_request("**/v1/attention") as asked:
        answered.locator("#target .sentence").first.dispatch_event("click")
    assert asked.value.post_data_json["model"] == "en-de"
    expect(answered.locator("#parsed")).to_be_hidden()


def test_a_score_that_is_rounded_to_zero_has_no_sign(answered: Page) -> None:
    line = {"source": "a", "translation": "b", "score": -0.001, "alternatives": []}
    body = json.dumps(line) + "\n"
    answered.route("**/v1/translate", lambda route: route.fulfill(body=body))
    answered.fill("#source", "a")
    expect(answered.locator("#alternatives .score")).to_have_text("0.00")


def test_wide_words_of_a_tree_do_not_overlap(page: Page) -> None:
    word = "中华人民共和国"
    tree = {
        "tree": "",
        "leaves": [{"tag": "NR", "word": word}] * 3,
        "constituents": [{"label": "NP", "start": 0, "end": 3}],
    }
    boxes = page.evaluate(
        "tree => import('/tree.js').then(({ treeDrawing }) => {"
        "document.body.append(treeDrawing(tree));"
        "return [...document.querySelectorAll('svg .leaf')].map((each) => {"
        "const { x, width } = each.getBBox(); return [x, x + width]; }); })",
        tree,
    )
    assert all(end < start for (_, end), (start, _) in pairwise(boxes))


def test_alt_types_letters_on_a_mac(browser: Browser, http: RunningServer) -> None:
    page = browser.new_page()
    platform = "Object.defineProperty(navigator, 'platform', {value: 'MacIntel'})"
    page.add_init_script(platform)
    page.goto(http.address)
    page.fill("#source", "one two")
    expect(page.locator("#copy")).to_be_enabled()
    page.keyboard.press("Alt+s")
    expect(page.locator("#model")).to_have_value("en-de")
    expect(page.locator("[aria-keyshortcuts]")).to_have_count(0)
    page.close()


def test_texts_name_their_languages(page: Page) -> None:
    languages = {"#source": "en", "#target": "de"}
    for place, language in languages.items():
        expect(page.locator(place)).to_have_attribute("lang", language)
    page.select_option("#model", "de-en")
    expect(page.locator("#source")).to_have_attribute("lang", "de")
    expect(page.locator("#target")).to_have_attribute("lang", "en")


def test_text_from_right_to_left_has_its_direction(page: Page) -> None:
    arabic = "كلب (قط)."
    line = {"source": arabic, "translation": arabic, "score": -1.0, "alternatives": []}
    maps = {"queries": ["a"], "keys": ["b"], "weights": [[[[1.0]]]]}
    lines = json.dumps(line) + "\n"
    page.route("**/v1/translate", lambda route: route.fulfill(body=lines))
    page.route("**/v1/attention", lambda route: route.fulfill(json=maps))
    page.fill("#source", arabic)
    expect(page.locator("#alternatives")).to_contain_text(arabic)
    for place in ("#source", "#target", "#sentence-source", "#alternatives bdi"):
        expect(page.locator(place)).to_have_css("direction", "rtl")


def test_models_of_the_same_languages_have_different_labels(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    models = [served(trained_checkpoint, name) for name in ("en-de", "de-en", "mine")]
    models[2] = replace(models[2], source="en", target="de")
    with running(models) as server:
        for page in watched(browser, server):
            expect(page.locator("#model option")).to_have_text(
                [
                    "English → German (en-de)",
                    "German → English",
                    "English → German (mine)",
                ]
            )


@pytest.fixture
def multilingual(
    browser: Browser, tagged_checkpoint: Checkpoint
) -> Iterator[tuple[Page, Translator]]:
    """The page of a model of two target languages, and one from one of them."""
    back = replace(tagged_checkpoint, source_language="fr", target_language="en")
    models = [served(tagged_checkpoint, "many"), served(back, "fr-en")]
    models[1] = replace(models[1], tags={}, source="fr", target="en")
    with running(models) as server:
        for page in watched(browser, server):
            yield page, Translator(tagged_checkpoint, "cpu")


def test_the_target_language_of_a_model_is_chosen(
    multilingual: tuple[Page, Translator],
) -> None:
    page, translator = multilingual
    languages = page.locator("#language option")
    expect(languages).to_have_text(["German", "French"])
    expect(page.locator("#language")).to_have_value("de")
    page.fill("#source", "one two")
    page.select_option("#language", "fr")
    [expected] = translator.into("fr").translate(["one two"])
    assert expected.text != translator.into("de").translate(["one two"])[0].text
    expect(page.locator("#target")).to_have_text(expected.text)
    words = page.locator("#attention .word")  # the source that the model reads
    expect(words.filter(has_text=">>fr<<")).to_have_count(1)


def test_the_tag_of_a_corpus_is_chosen(multilingual: tuple[Page, Translator]) -> None:
    page, translator = multilingual
    expect(page.locator("#tag option")).to_have_text(["none", "<law>"])
    page.fill("#source", "one two")
    page.select_option("#tag", "<law>")
    [expected] = translator.into("de").with_tag("law").translate(["one two"])
    assert expected.text != translator.into("de").translate(["one two"])[0].text
    expect(page.locator("#target")).to_have_text(expected.text)
    words = page.locator("#attention .word")
    expect(words.filter(has_text="<law>")).to_have_count(1)
    page.select_option("#language", "fr")  # the tag stays
    expect(page.locator("#tag")).to_have_value("<law>")


def test_a_glossary_is_chosen_where_the_server_has_some(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    """The choice is that of the model, and stays when the page is loaded again."""
    two = {
        name: Glossary({"two": form}) for name, form in (("law", "zwo"), ("x", "duo"))
    }
    plain = Translator(trained_checkpoint, "cpu")
    texts = {
        name: plain.with_glossary(terms).translate("one two").text
        for name, terms in two.items()
    }
    default = ServedGlossary(name="default", terms=two["x"], source="en", target="de")
    law = ServedGlossary(name="law", terms=two["law"])
    models = [
        replace(served(trained_checkpoint, name), glossaries=(default, law))
        for name in ("en-de", "de-en")
    ]
    with running(models) as server:
        for page in watched(browser, server):
            options = page.locator("#glossary option")
            expect(options).to_have_text(["default", "law", "none"])
            page.fill("#source", "one two")
            expect(page.locator("#target")).to_have_text(texts["x"])
            page.select_option("#glossary", "none")
            expect(page.locator("#target")).to_have_text(
                plain.translate("one two").text
            )
            page.select_option("#glossary", "law")
            expect(page.locator("#target")).to_have_text(texts["law"])
            page.select_option("#model", "de-en")  # the glossary stays
            expect(options).to_have_text(["none", "law"])
            page.reload()
            expect(page.locator("#glossary")).to_have_value("law")
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 800})
                expect(page.get_by_label("Glossary")).to_be_visible()
                require_accessible(page)
                assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_server_without_glossaries_offers_none(page: Page) -> None:
    expect(page.locator("#model option")).to_have_count(3)
    expect(page.locator("#glossary-label")).to_be_hidden()


def test_a_swap_chooses_the_model_and_the_language(
    multilingual: tuple[Page, Translator],
) -> None:
    page, _ = multilingual
    expect(page.locator("#swap")).to_be_hidden()  # no model from German
    page.select_option("#language", "fr")
    page.click("#swap")
    expect(page.locator("#model")).to_have_value("fr-en")
    expect(page.locator("#language-label")).to_be_hidden()
    page.click("#swap")
    expect(page.locator("#model")).to_have_value("many")
    expect(page.locator("#language")).to_have_value("fr")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_choice_of_language_is_accessible_and_fits(
    multilingual: tuple[Page, Translator], width: int
) -> None:
    page, _ = multilingual
    page.set_viewport_size({"width": width, "height": 800})
    page.fill("#source", "one two")
    expect(page.locator("#attention .word").first).to_be_visible()
    expect(page.get_by_label("Into")).to_be_visible()
    require_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if folder := os.environ.get("TRANSDUCE_PICTURES"):
        page.screenshot(path=f"{folder}/languages-{width}.png", full_page=True)


def test_the_translation_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.fill("#source", "one two")
    expect(page.locator("#copy")).to_be_enabled()
    page.click("#copy")
    expect(page.locator("#status")).to_have_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#target").text_content()


def test_an_empty_text_clears_the_translation(page: Page) -> None:
    page.fill("#source", "one")
    expect(page.locator("#target .sentence")).to_have_count(1)
    page.fill("#source", " ")
    expect(page.locator("#target")).to_be_empty()
    expect(page.locator("#sentence")).to_be_hidden()


def test_nothing_is_drawn_where_no_text_is(page: Page) -> None:
    page.fill("#source", "one")
    expect(page.locator("#attention .word").first).to_be_visible()
    page.fill("#source", " ")
    expect(page.locator("#sentence")).to_be_hidden()
    page.set_viewport_size({"width": 800, "height": 800})  # drawing would log errors
    page.evaluate("new Promise(requestAnimationFrame)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_fits_a_phone(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type] # one of two
    page.fill("#source", "one two. \n three")
    expect(page.locator("#attention .word").first).to_be_visible()
    require_accessible(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width == 375


def test_a_text_that_is_too_long_shows_an_error(
    browser: Browser, http: RunningServer
) -> None:
    page = browser.new_page()
    page.goto(http.address)
    page.select_option("#format", "html")
    page.fill("#source", "one " * 2501)
    expect(page.locator("#error")).to_contain_text("at most 10,000 characters")
    page.fill("#source", "one")
    expect(page.locator("#error")).to_be_hidden()
    page.close()


SHORT = AdmissionConfig(max_characters=20)


def sent_texts(page: Page) -> list[str]:
    """The texts that a page sends from now on."""
    texts: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/translate"):
            texts.append(request.post_data_json["q"])

    page.on("request", note)
    return texts


def test_a_text_that_is_longer_than_a_request_is_sent_in_parts(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    model = served(trained_checkpoint, "en-de")
    with running([model], SHORT) as server:
        page = browser.new_page()  # whose console logs that attention is refused
        page.goto(server.address)
        texts = sent_texts(page)
        page.fill("#source", "one two.\nthree\n\none. two three four five six. one")
        expect(page.locator("#copy")).to_be_enabled()
        expect(page.locator("#error")).to_be_hidden()
        shown = page.locator("#target").text_content()
        page.close()
        expected = [
            f"{offline(server, 'one two.')}\n{offline(server, 'three')}\n\n",
            f"{offline(server, 'one.')} ",
            f"{offline(server, 'two three four five')} ",
            f"{offline(server, 'six.')} {offline(server, 'one')}",
        ]
    assert shown == "".join(expected)
    assert texts == [
        "one two.\nthree\n\n",
        "one. ",
        "two three four five ",
        "six. one",
    ]


def test_a_part_has_about_a_batch_of_sentences(page: Page) -> None:
    texts = sent_texts(page)
    page.fill("#source", "one two three.\n" * 400)
    expect(page.locator("#copy")).to_be_enabled()
    assert list(map(len, texts)) == [4995, 1005]


def test_no_character_is_cut_where_a_text_is(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    text = "1" + "👩" * 40  # without letters, and so copied
    with running([served(trained_checkpoint, "en-de")], SHORT) as server:
        for page in watched(browser, server):
            texts = sent_texts(page)
            page.fill("#source", text)
            expect(page.locator("#copy")).to_be_enabled()
    assert "".join(texts) == text
    assert len(texts) > 4


def test_a_text_of_more_sentences_than_may_wait_is_sent_in_smaller_parts(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    model = served(trained_checkpoint, "en-de", QueueConfig(max_waiting=16))
    with running([model]) as server:
        page = browser.new_page()  # whose console logs each refusal
        page.goto(server.address)
        texts = sent_texts(page)
        page.fill("#source", "one two three four five.\n" * 40)
        expect(page.locator("#copy")).to_be_enabled()
        expect(page.locator("#target .sentence")).to_have_count(40)
        expect(page.locator("#error")).to_be_hidden()
        page.close()
    lengths = [len(each) for each in texts]
    assert lengths == [1000, 500, 250, 250, 250, 250]


def test_a_part_that_a_busy_server_refuses_is_sent_again(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    with running([served(trained_checkpoint, "en-de")], SHORT) as server:
        page = browser.new_page()
        page.goto(server.address)
        texts = sent_texts(page)

        def answer(route: Route) -> None:
            if len(texts) == 2:
                route.fulfill(**BUSY)
            else:
                route.continue_()

        page.route("**/v1/translate", answer)
        page.fill("#source", "one two three.\nfour.\nfive six.")
        expect(page.locator("#target .sentence")).to_have_count(3)
        expect(page.locator("#copy")).to_be_enabled()
        expect(page.locator("#error")).to_be_hidden()
        page.close()
    assert texts == ["one two three.\n", *["four.\nfive six."] * 2]


HTML = '<p title="two">one <b>two</b> &amp; three</p>\n<hr><h1>four</h1>'


def open_file(page: Page, name: str, content: str | bytes) -> None:
    content = content.encode() if isinstance(content, str) else content
    kind = "text/html" if "htm" in name else ""
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": content})


def saved(page: Page) -> tuple[str, bytes]:
    """Name and content of the result's file."""
    expect(page.locator("#save")).to_be_enabled()
    with page.expect_download() as download:
        page.click("#save")
    return download.value.suggested_filename, download.value.path().read_bytes()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_of_text_is_translated_and_saved(
    page: Page, http: RunningServer, encoding: str
) -> None:
    open_file(page, "my letter.v2.txt", "one é.\r\n\r\ntwo".encode(encoding))
    expect(page.locator("#source")).to_have_value("one é.\n\ntwo")
    expect(page.locator("#format")).to_have_value("")
    name, content = saved(page)
    assert name == "my letter.v2.de.txt"
    expected = f"{offline(http, 'one é.')}\r\n\r\n{offline(http, 'two')}"
    assert content.decode() == expected


def test_subtitles_keep_their_numbers_and_times(
    page: Page, http: RunningServer
) -> None:
    text = "{}\n00:00:01,000 --> 00:00:02,500\n{}\n\n"
    open_file(page, "film.srt", text.format(1, "one") + text.format(2, "two three"))
    name, content = saved(page)
    assert name == "film.de.srt"
    assert content.decode() == text.format(1, offline(http, "one")) + text.format(
        2, offline(http, "two three")
    )


def test_typed_text_is_saved_under_a_name_of_its_own(page: Page) -> None:
    open_file(page, "letter.txt", "one")
    expect(page.locator("#save")).to_be_enabled()
    page.fill("#source", "")
    expect(page.locator("#save")).to_be_disabled()
    page.fill("#source", "two")
    assert saved(page)[0] == "translation.de.txt"


def test_a_file_of_html_keeps_its_tags(page: Page, http: RunningServer) -> None:
    page.once("dialog", lambda _: pytest.fail("The page has run a script of a file."))
    html = f"{HTML}<script>alert(1)</script><img src=x onerror=alert(2)>"
    body = {"q": html, "source": "en", "target": "de", "format": "html"}
    expected = http.post("/translate", body).json["translatedText"]
    open_file(page, "page.htm", html)
    expect(page.locator("#format")).to_have_value("html")
    assert saved(page) == ("page.de.htm", expected.encode())
    expect(page.locator("#sentence-source")).to_have_text("one two & three")
    assert "<" not in page.locator("#alternatives").inner_text()
    expect(page.locator("#attention .word").first).to_be_visible()
    assert "<b>" not in page.locator("#attention").inner_text()


@pytest.mark.parametrize(
    ("charset", "mark"), [("iso-8859-1", b"\xef\xbb\xbf"), ("UTF-8", b"")]
)
def test_a_page_is_read_in_its_charset_and_saved_so_that_browsers_read_it(
    page: Page, charset: str, mark: bytes
) -> None:
    html = f'<meta charset="{charset}"><pre>é</pre>one'
    open_file(page, "page.html", html.encode(charset))
    expect(page.locator("#source")).to_have_value(html)
    _, content = saved(page)
    start = f'<meta charset="{charset}"><pre>é</pre>'
    assert content.startswith(mark + start.encode())


def test_a_dropped_file_is_translated(page: Page, http: RunningServer) -> None:
    def dropped(*names: str) -> Any:
        return page.evaluate_handle(
            "names => { const moved = new DataTransfer();"
            "names.forEach((each) => moved.items.add(new File(['one two'], each)));"
            "return moved; }",
            list(names),
        )

    expect(page.locator("#model option")).to_have_count(3)
    two, one = dropped("a.txt", "b.txt"), dropped("a.txt")
    page.dispatch_event("body", "drop", {"dataTransfer": two})
    expect(page.locator("#error")).to_have_text("One file can be translated at a time.")
    page.dispatch_event("#source", "dragover", {"dataTransfer": one})
    expect(page.locator("#source")).to_have_class("is-drop")
    page.dispatch_event("#source", "drop", {"dataTransfer": one})
    expect(page.locator("#target")).to_have_text(offline(http, "one two"))
    expect(page.locator("#source")).not_to_have_class("is-drop")
    expect(page.locator("#error")).to_be_hidden()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"PK", "a.docx must be text or HTML (.txt, .srt, .html), but is"),
        ("a.txt", b"one\n" * 500_001, "a.txt must have at most 2 MB, but has 2.1 MB"),
        ("a.txt", b"one \xe9", "a.txt must be text in UTF-8"),
        ("a.txt", b"one\0two", "a.txt must be text in UTF-8"),
        ("a.html", b"<meta charset=utf-7>\xff", "a.html must be text in UTF-8"),
        ("a.txt", b" \r\n", "a.txt has no text."),
    ],
    ids=["kind", "large", "latin-1", "binary", "unknown charset", "empty"],
)
def test_a_file_that_cannot_be_translated_is_refused(
    page: Page, name: str, content: bytes, message: str
) -> None:
    page.fill("#source", "one")
    expect(page.locator("#copy")).to_be_enabled()
    open_file(page, name, content)
    expect(page.locator("#error")).to_contain_text(message)
    expect(page.locator("#source")).to_have_value("one")
    open_file(page, "b.txt", "two")
    expect(page.locator("#error")).to_be_hidden()


def test_a_parser_reads_files_of_text_only(page: Page) -> None:
    page.select_option("#model", "trees")
    expect(page.locator("#format")).to_be_hidden()
    open_file(page, "a.html", HTML)
    expect(page.locator("#error")).to_contain_text("a.html must be text for a parser")
    open_file(page, "a.txt", "one two")
    expect(page.locator("#tree .leaf")).to_have_text(["one", "two"])
    name, content = saved(page)
    assert name == "a.trees.txt"
    assert content.startswith(b"(")


def test_a_file_is_opened_by_keyboard(page: Page) -> None:
    choosers: list[FileChooser] = []  # `expect_file_chooser` may listen too late
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    expect(page.locator("#model option")).to_have_count(3)
    page.locator("#source").focus()
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#open")).to_be_focused()
    page.keyboard.press("Enter")
    until(page, lambda: len(choosers) == 1)


def test_the_choice_of_html_stays_when_the_page_is_reloaded(page: Page) -> None:
    page.select_option("#format", "html")
    page.reload()
    expect(page.locator("#format")).to_have_value("html")
    page.fill("#source", "<p>one</p>")
    expect(page.locator("#sentence-source")).to_have_text("one")


def test_a_stopped_server_shows_an_error(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    page = browser.new_page()
    with running([served(trained_checkpoint, "en-de")]) as server:
        page.goto(server.address)
        page.fill("#source", "one")
        expect(page.locator("#target .sentence")).to_have_count(1)
    page.fill("#source", "one two")
    expect(page.locator("#error")).to_contain_text("The server cannot be reached.")
    page.close()


def test_the_page_requests_a_key_before_translating(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    config = AdmissionConfig(api_keys=("sesame",))
    with running([served(trained_checkpoint, "en-de")], config) as server:
        for page in watched(browser, server):
            page.fill("#source", "one")
            expect(page.locator("#status")).to_contain_text("asks for a key")
            expect(page.locator("#key")).to_be_visible()
            expect(page.locator("#error")).to_be_hidden()
            page.fill("#key", "sesame")
            page.keyboard.press("Enter")
            expect(page.locator("#target .sentence")).to_have_count(1)
            expect(page.locator("#error")).to_be_hidden()


def test_the_page_shows_an_error_for_a_wrong_key(
    browser: Browser, trained_checkpoint: Checkpoint
) -> None:
    page = browser.new_page()
    config = AdmissionConfig(api_keys=("sesame",))
    with running([served(trained_checkpoint, "en-de")], config) as server:
        page.goto(server.address)
        page.fill("#key", "sesam")
        page.fill("#source", "one")
        expect(page.locator("#error")).to_contain_text("must be a key of this server")
        page.fill("#key", "sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#target .sentence")).to_have_count(1)
        expect(page.locator("#error")).to_be_hidden()
        page.close()


def test_an_empty_translation_has_no_details(
    browser: Browser, trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(trained_checkpoint, "en-de")
    empty = Translation(text="", score=-1.0, hypotheses=())
    whole = model.queue.translator.translate_stream

    def translate(sentences: list[str], *others: Any) -> Iterator[Translation]:
        found = whole(sentences, *others)
        return (
            empty if text == "two." else each
            for text, each in zip(sentences, found, strict=True)
        )

    monkeypatch.setattr(model.queue.translator, "translate_stream", translate)
    with running([model]) as server:
        asked: list[str] = []
        for page in watched(browser, server):
            page.on("request", lambda request: asked.append(request.url))
            page.fill("#source", "two.")
            expect(page.locator("#status")).to_have_text("The result is empty.")
            expect(page.locator("#sentence")).to_be_hidden()
            page.fill("#source", "two. three")
            expect(page.locator("#sentence-source")).to_have_text("three")
            expect(page.locator("#attention .word").first).to_be_visible()
            page.locator("#target .sentence").first.dispatch_event("click")
            expect(page.locator("#attention")).to_have_text("The result is empty.")
            assert sum("attention" in url and "v1" in url for url in asked) == 1


def test_the_text_flows_from_sentence_to_sentence(page: Page) -> None:
    page.fill("#source", " ".join(["one two three four five six."] * 12))
    sentences = page.locator("#target .sentence")
    expect(sentences).to_have_count(12)
    ends = sentences.evaluate_all(
        "all => all.map(each => [...each.getClientRects()]).map("
        "each => [each[0].top, each[each.length - 1].top])"
    )
    lines = {top for pair in ends for top in pair}
    assert any(last == first for (_, last), (first, _) in pairwise(ends))
    assert len(lines) < 12


def test_the_status_is_visible_beside_a_long_text(
    browser: Browser, http: RunningServer
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 600})
    page.goto(http.address)
    page.fill("#source", "\n".join(["one two three."] * 150))
    expect(page.locator("#target .sentence")).to_have_count(150)
    page.evaluate("scrollTo(0, 0)")
    page.select_option("#format", "html")
    page.fill("#source", "one " * 2501)
    expect(page.locator("#error")).to_contain_text("at most 10,000 characters")
    for y in (0, 500, 1e6):
        page.evaluate(f"scrollTo(0, {y})")
        box = page.locator("#error").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 600 - box["height"]
    page.close()


def test_all_of_a_long_text_is_printed(page: Page) -> None:
    page.fill("#source", "\n".join(["one two three."] * 60))
    expect(page.locator("#target .sentence")).to_have_count(60)
    page.evaluate("document.getElementById('source').style.height = '200px'")  # by hand
    page.emulate_media(media="print")
    source = page.locator("#source")
    assert source.evaluate("each => each.scrollHeight - each.clientHeight") <= 0
    assert source.evaluate("each => each.clientWidth") > 100
    expect(page.get_by_role("button", name="Open file")).to_be_hidden()


def test_the_interface_works_without_network(page: Page, http: RunningServer) -> None:
    page.goto(f"{http.address}/docs")
    form = page.locator('form[data-path="/translate"]')
    expect(form.locator(".address")).to_have_text(http.address)
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("200 OK")
    expect(form.locator(".answer")).to_contain_text('"translatedText"')
    stream = page.locator('form[data-path="/v1/translate"]')
    stream.get_by_role("button").click()
    expect(stream.locator(".answer")).to_contain_text('"alternatives":[]')
    health = page.locator('form[data-path="/health"]')
    health.get_by_role("button").click()
    expect(health.locator(".answer")).to_contain_text('"ok"')


def test_tables_of_the_interface_fit_a_phone(
    browser: Browser, http: RunningServer
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{http.address}/docs")
    tables = page.locator('section:has(form[data-path="/translate"]) .table')
    assert tables.count() == 2
    for table in tables.all():
        assert table.evaluate("each => each.scrollWidth <= each.clientWidth")
    page.close()


def test_a_wrong_example_shows_its_error(browser: Browser, http: RunningServer) -> None:
    page = browser.new_page()
    page.goto(f"{http.address}/docs")
    form = page.locator('form[data-path="/detect"]')
    form.locator("textarea").fill("{")
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("400 Bad Request")
    expect(form.locator(".answer")).to_contain_text("Invalid JSON")
    page.close()


@pytest.mark.parametrize(
    "path", ["/translate", "/v1/translate", "/v1/parse", "/detect"]
)
def test_every_example_works(http: RunningServer, path: str) -> None:
    assert http.post(path, examples(http.models)[path]).status == 200
