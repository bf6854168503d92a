"""HTML as sentences, and what stands between them."""

import re
from collections.abc import Sequence
from html import escape, unescape

from transduce.text.documents.running_text import Piece, join_text, split_text

MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<name>[A-Za-z]+)|[/!?])")
TAG_END = re.compile(r"""(?:[^"'>]|"[^"]*"|'[^']*')*>""")
UNTRANSLATED = {"script", "style", "textarea", "pre", "code"}
"""Elements whose content stays as it is."""


def split_html(html: str) -> list[Piece]:
    """Pieces of HTML, each stretch between tags by itself and without its escapes.

    A tag, comment or element that is not closed goes to the end, as in a browser.
    """
    pieces, start = [], 0
    while start < len(html):
        markup = MARKUP.search(html, start)
        begin = len(html) if markup is None else markup.start()
        pieces += split_text(unescape(html[start:begin]))
        start = begin if markup is None else _end_of(markup)
        if begin < start:
            pieces.append(Piece(html[begin:start], is_sentence=False))
    return pieces


def join_html(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """HTML again: no character of a translation is markup."""
    return join_text(pieces, [escape(text, quote=False) for text in translations])


def _end_of(markup: re.Match[str]) -> int:
    """Where a tag, a comment, or an element that is not translated has its end."""
    html = markup.string
    if markup["comment"]:
        return _after(re.compile("-->"), html, markup.end())
    end = _after(TAG_END, html, markup.end())
    name = (markup["name"] or "").lower()
    if name in UNTRANSLATED:
        return _after(re.compile(rf"</{name}\s*>", re.IGNORECASE), html, end)
    return end


def _after(pattern: re.Pattern[str], html: str, start: int) -> int:
    found = pattern.search(html, start)
    return len(html) if found is None else found.end()
