"""HTML as sentences, and what stands between them."""

import re
from collections.abc import Sequence
from html import escape, unescape

from transduce.text.documents.running_text import Stretch, join_text, split_text

MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<name>[A-Za-z]+)|[/!?])")
TAG_END = re.compile(r"""(?:[^"'>]|"[^"]*"|'[^']*')*>""")
UNTRANSLATED = {"script", "style", "textarea", "pre", "code"}
"""Elements whose content stays as it is."""


def split_html(html: str) -> list[Stretch]:
    """Stretches of HTML: what stands between tags by itself, without its escapes.

    A tag, comment or element that is not closed goes to the end, as in a browser.
    """
    stretches, start = [], 0
    while start < len(html):
        markup = MARKUP.search(html, start)
        begin = len(html) if markup is None else markup.start()
        stretches += split_text(unescape(html[start:begin]))
        start = begin if markup is None else _end_of(markup)
        if begin < start:
            stretches.append(Stretch(html[begin:start], is_sentence=False))
    return stretches


def join_html(stretches: Sequence[Stretch], translations: Sequence[str]) -> str:
    """HTML again: no character of a translation is markup."""
    return join_text(stretches, [escape(text, quote=False) for text in translations])


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
