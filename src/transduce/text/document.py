"""Running text and HTML as sentences, and what stands between them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape

from transduce.text.splitting import SENTENCE_END

GAP = re.compile(r"\s+|(?<=[。！？」』”’）])")
"""Where a sentence may end: white space, or nothing in languages without it."""
MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<name>[A-Za-z]+)|[/!?])")
TAG_END = re.compile(r"""(?:[^"'>]|"[^"]*"|'[^']*')*>""")
UNTRANSLATED = {"script", "style", "textarea", "pre", "code"}
"""Elements whose content stays as it is."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, or what stands between two."""

    text: str
    is_sentence: bool


def split_text(text: str) -> list[Piece]:
    """Pieces that in a row are the text; a sentence is within a line."""
    pieces, start = [], 0
    for gap in GAP.finditer(text):
        if _ends_sentence(text, start, gap):
            pieces.append(Piece(text[start : gap.start()], is_sentence=True))
            pieces.append(Piece(gap[0], is_sentence=False))
            start = gap.end()
    pieces.append(Piece(text[start:], is_sentence=True))
    return [piece for piece in pieces if piece.text]


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


def sentences(pieces: Sequence[Piece]) -> list[str]:
    """What is to be translated."""
    return [piece.text for piece in pieces if piece.is_sentence]


def join_text(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """The pieces in a row, each sentence replaced by its translation."""
    found = iter(translations)
    return "".join(next(found) if p.is_sentence else p.text for p in pieces)


def join_html(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """HTML again: no character of a translation is markup."""
    return join_text(pieces, [escape(text, quote=False) for text in translations])


def _ends_sentence(text: str, begin: int, gap: re.Match[str]) -> bool:
    """Whether what has begun there ends with the gap.

    What goes on in lower case is the same sentence, if that began in upper case.
    """
    start, end = gap.span()
    if "\n" in gap[0] or start == 0 or end == len(text):
        return True
    goes_on = text[end].islower() and not text[begin].islower()
    return not goes_on and SENTENCE_END.match(text, start) is not None


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
