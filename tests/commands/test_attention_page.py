"""The page of `transduce attention` in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python import sync_playwright as axe
from playwright import sync_api

PHONE = {"width": 375, "height": 740}
DESK = {"width": 1100, "height": 900}


@pytest.fixture
def address(succeeds: Callable[..., str], model: Path, tmp_path: Path) -> str:
    page = tmp_path / "page.html"
    succeeds("attention", model, "--source", "one two three", "--out", page)
    return page.as_uri()


@pytest.fixture
def opened(
    browser: sync_api.Browser, address: str
) -> Iterator[Callable[..., sync_api.Page]]:
    """Open the page, which must load nothing else and log no error."""
    faults: list[str] = []
    contexts: list[sync_api.BrowserContext] = []

    def open_page(**options: object) -> sync_api.Page:
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda request: request.url == address or faults.append(request.url),
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def lines(page: sync_api.Page) -> int:
    count: int = page.locator("#lines line").count()
    return count


def pressed(page: sync_api.Page, group: str) -> list[str]:
    buttons = page.locator(f"#{group} button[aria-pressed=true]")
    texts: list[str] = buttons.all_inner_texts()
    return texts


def test_a_token_that_is_pointed_at_shows_its_lines_alone(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened()
    everything = lines(page)
    page.locator("#queries button").first.hover()
    assert 0 < lines(page) < everything
    assert "attends to:" in page.locator("#said").inner_text()
    page.locator("#keys button").first.hover()
    assert "is attended to by:" in page.locator("#said").inner_text()
    page.mouse.move(1090, 10)
    assert lines(page) == everything


def test_a_tap_holds_a_token_and_another_lets_go(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True)
    everything = lines(page)
    token = page.locator("#queries button").first
    token.tap()
    page.locator("h1").tap()
    assert 0 < lines(page) < everything
    token.tap()
    page.locator("h1").tap()
    assert lines(page) == everything


def test_the_keyboard_does_what_the_mouse_does(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened()
    everything = lines(page)
    page.locator("#grain button").last.focus()
    page.keyboard.press("Tab")
    assert 0 < lines(page) < everything
    page.keyboard.press("Enter")
    page.locator("#grain button").last.focus()
    assert 0 < lines(page) < everything
    page.keyboard.press("Escape")
    assert lines(page) == everything


def test_the_page_lets_a_reader_choose_heads_and_attentions(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened()
    assert pressed(page, "heads") == ["1", "2", "3", "4"]
    everything = lines(page)
    page.locator("#heads button").nth(1).click()
    assert pressed(page, "heads") == ["1", "3", "4"]
    assert lines(page) < everything
    page.get_by_role("button", name="all").click()
    assert lines(page) == everything
    page.get_by_role("button", name="decoder", exact=True).click()
    assert page.locator("#queries button").first.inner_text() == "<s>"
    page.get_by_role("button", name="Layer 1, head 3").click()
    assert pressed(page, "heads") == ["3"]
    assert "layer 1, head 3" in page.locator("#map-note").inner_text()


def test_a_single_head_is_not_called_a_mean(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened()
    page.locator("#queries button").first.hover()
    assert "(layer 1, mean of heads 1, 2, 3, 4)" in page.locator("#said").inner_text()
    page.get_by_role("button", name="Layer 1, head 3").click()
    page.locator("#queries button").first.hover()
    assert page.locator("#said").inner_text().endswith("(layer 1, head 3)")
    note = page.locator("#alignment-note").inner_text()
    assert note == "By the cross-attention of layer 1, head 3."


def test_the_page_keeps_at_least_one_head(opened: Callable[..., sync_api.Page]) -> None:
    page = opened()
    for _ in range(2):
        for head in range(4):
            page.locator("#heads button").nth(head).click()
            assert len(pressed(page, "heads")) >= 1


def test_words_join_their_pieces(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened()
    page.get_by_role("button", name="encoder", exact=True).click()
    page.get_by_role("button", name="words", exact=True).click()
    words = page.locator("#queries button").all_inner_texts()
    assert words == ["one", "two", "three", "</s>"]
    # The weights from a word to all words still sum to one.
    weights = page.evaluate("weightsOf('encoder', 0, 0, 'words')")
    assert [sum(row) for row in weights] == [pytest.approx(1, abs=1e-5)] * 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_is_accessible_on_every_screen(
    opened: Callable[..., sync_api.Page], scheme: str, viewport: dict[str, int]
) -> None:
    page = opened(viewport=viewport, color_scheme=scheme)
    page.locator("#queries button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    found = axe.Axe().run(page)
    serious = [
        (each["id"], [node["target"] for node in each["nodes"]])
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_a_printed_page_is_black_on_white(
    opened: Callable[..., sync_api.Page],
) -> None:
    page = opened(color_scheme="dark")
    page.emulate_media(media="print")
    body = "getComputedStyle(document.body)"
    assert page.evaluate(f"{body}.backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(f"{body}.color") == "rgb(0, 0, 0)"


def test_tokens_from_right_to_left_keep_their_direction(
    browser: sync_api.Browser,
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "page.html"
    given = ("--source", "one two", "--target", "שלום 12 (one) עולם.")
    succeeds("attention", model, *given, "--out", file)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(file.as_uri())
        page.get_by_role("button", name="words", exact=True).click()
        directions = page.evaluate("""[...document.querySelectorAll(
            ".texts dd, #queries button, #alignment td:first-child")].map(
            (each) => [each.textContent, getComputedStyle(each).direction])""")
        found = dict(directions)
        assert found["שלום 12 (one) עולם."] == found["שלום"] == "rtl"
        assert found["one"] == found["one two"] == "ltr"
        # The direction of a token does not reorder the sentence around it.
        page.locator("#queries button").first.hover()
        said = page.locator("#said").inner_text()
        assert said.startswith("“\u2068שלום\u2069” attends to: \u2068")
