"""The documentation site: its links, its independence of a network, its search."""

import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
AXE_RULES = [
    *("color-contrast", "aria-dialog-name", "empty-table-header", "heading-order"),
    *("image-alt", "label", "link-in-text-block", "scrollable-region-focusable"),
]
"""Rules of axe that pages must follow, whatever the theme does elsewhere."""
UNREACHABLE = """() => [...document.querySelectorAll(
    ".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset .formula"
)].filter(each => each.scrollWidth > each.clientWidth && each.tabIndex < 0)
  .map(each => each.textContent)"""
"""Parts that scroll, but that the keyboard does not reach."""
MATH_FONTS = ("Latin Modern Math", "STIX Two Math", "DejaVu Math TeX Gyre")
"""Fonts of Linux with brackets that stretch."""


class _Page(HTMLParser):
    """Ids, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (address := given.get("href")):
            self.links.add(address)
        if tag in ("script", "img", "iframe") and (address := given.get("src")):
            self.loaded.add(address)
        if tag == "link" and (address := given.get("href")):
            self.loaded.add(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "docs", "--site-dir", out],
        env={**os.environ, "SITE_URL": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_link_leads_to_a_place_in_the_site(pages: dict[Path, _Page]) -> None:
    missing = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (
                (path.parent / unquote(parts.path)).resolve() if parts.path else path
            )
            anchor = unquote(parts.fragment)
            is_place = not anchor or (there in pages and anchor in pages[there].ids)
            if not there.is_file() or not is_place:
                missing.append(f"{path.name}: {link}")
    assert missing == []


def test_pages_load_nothing_from_the_network(pages: dict[Path, _Page]) -> None:
    for path, page in pages.items():
        for address in page.loaded:
            assert not urlsplit(address).netloc, f"{path.name} loads {address}"


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_search_works_offline(
    site: Path, browser: "Browser", colours: Any, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=colours, offline=True
    )
    page = context.new_page()
    wrong: list[str] = []

    def note_failure(request: Any) -> None:
        # Leaving a page aborts what it is still loading, such as its icon.
        if request.failure != "net::ERR_ABORTED":
            wrong.append(request.url)

    page.on("requestfailed", note_failure)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in ("index", "rivals", "reference/settings", "tutorials/two-files"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(UNREACHABLE) == []
        found_faults = Axe().run(page, options={"runOnly": AXE_RULES})
        assert found_faults.response["violations"] == []
    query = page.locator("input[data-md-component=search-query]")
    if width < 600:
        page.locator("label[for=__search]").first.click()
    query.click()
    found = page.locator(".md-search-result__item")
    for typed, word in (
        ("table 3", "3"),
        ("train --from", "transduce train"),
        ("warmup", "warmup"),
        ("translate --beam-size", "size"),
    ):
        shown = ""
        for _ in range(20):  # input before the index is loaded is ignored
            query.fill(typed[:-1])
            query.press(typed[-1])  # the search begins at a key, here the last
            page.wait_for_timeout(250)
            shown = found.first.inner_text().lower() if found.count() else ""
            if word in shown:
                break
        assert word in shown, f"{typed}: {shown}"
    assert wrong == []
    context.close()


def test_brackets_of_a_fraction_stretch(site: Path, browser: "Browser") -> None:
    known = subprocess.run(["fc-list", ":", "family"], capture_output=True, text=True)
    if not any(font in known.stdout for font in MATH_FONTS):
        pytest.skip("needs a font for mathematics")
    page = browser.new_page()
    page.goto((site / "paper" / "3-2-attention.html").as_uri())
    bracket = page.locator("p.formula mo[stretchy=true]").first.bounding_box()
    fraction = page.locator("p.formula mfrac").first.bounding_box()
    assert bracket is not None
    assert fraction is not None
    assert bracket["height"] >= 0.9 * fraction["height"]
    page.close()
