"""Splitting of long texts at the ends of sentences and clauses."""

import re
from collections.abc import Callable, Sequence

from transduce.text.languages import base
from transduce.text.scripts import UNSPACED_LETTERS
from transduce.text.sentence_splitting import sentence_spans

CountTokens = Callable[[Sequence[str]], list[int]]
"""Function that counts the tokens of each text. Counts are additive over texts joined
by a space."""

CLAUSE_END = re.compile(r"(?<=[,;:–—]\s)|(?<=[，；：、､،؛፣၊])|(?<=……)|(?<=——)")
WORD_END = re.compile(r"(?<=\s)")
JOINED_AFTER = (
    "\u0300-\u036f\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
    # Thai and Lao; Khmer, Burmese and Tibetan; Kana.
    "\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebc\u0ec6-\u0ece"
    "\u17b4-\u17d3\u102b-\u103e\u0f71-\u0f84\u0f8d-\u0fbc"
    "\u3099\u309a\u30fcぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮ"
)
JOINED_BEFORE = "\u200d\u0e40-\u0e44\u0ec0-\u0ec4\u17d2\u1039"
"""Characters that combine with the one before, and with the one after."""
CHARACTER_END = re.compile(rf"(?<=[^{JOINED_BEFORE}])(?![{JOINED_AFTER}])")
ANYWHERE = re.compile(r"(?<=.)", re.DOTALL)
UNSPACED = re.compile(
    r"[\u2E80-\u30FF\u31C0-\u9FFF\uF900-\uFAFF\uFF00-\uFF9F\U00020000-\U0003FFFF]"
)
"""Pattern of a character of Han or Kana, or of text with them: no spaces separate words
or sentences, as they do sentences in Thai."""
WITHIN_WORD = re.compile(rf"(?![{UNSPACED_LETTERS}])\w(?![{UNSPACED_LETTERS}])\w")


def split_long(
    text: str, max_tokens: int, count_tokens: CountTokens, language: str | None = None
) -> list[str]:
    """Split a text into parts of at most `max_tokens` tokens, unless it is short
    enough.

    Each sentence is a part; `language` is a BCP 47 tag. A sentence that is too long is
    split at clauses, else between words, into as few parts as possible; a word that is
    too long is split anywhere, with each character counted alone.
    """
    [length] = count_tokens([text])
    if length <= max_tokens:
        return [text]
    spans = sentence_spans(text, None if language is None else base(language))
    sentences = [text[begin:end] for begin, end in spans]
    return _fitting(sentences, max_tokens, count_tokens)


def is_within_word(text: str, place: int) -> bool:
    """Return whether a place in a text is inside a word.

    Word borders of scripts without spaces are unknown.
    """
    around = text[max(place - 1, 0) : place + 1]
    return bool(WITHIN_WORD.fullmatch(around)) and not UNSPACED.search(around)


def space_between(before: str, after: str) -> str:
    """Return the space between two texts; empty if one is empty or neither uses
    spaces."""
    is_written = UNSPACED.match(before[-1:]) is None or UNSPACED.match(after) is None
    return " " if before and after and is_written else ""


def _fitting(
    sentences: list[str], max_tokens: int, count_tokens: CountTokens
) -> list[str]:
    parts = sentences  # count them together, since each call has a fixed cost
    for end in (CLAUSE_END, WORD_END, CHARACTER_END, ANYWHERE):
        parts = [
            packed
            for part, length in zip(parts, count_tokens(parts), strict=True)
            for packed in (
                [part]
                if length <= max_tokens
                else _packed(_pieces(part, end), max_tokens, count_tokens)
            )
        ]
    return parts


def _packed(pieces: list[str], max_tokens: int, count_tokens: CountTokens) -> list[str]:
    """Join neighbours while they fit; a piece that is too long stays alone."""
    packed: list[list[str]] = []
    room = 0
    for piece, length in zip(pieces, count_tokens(pieces), strict=True):
        if packed and length <= room:
            packed[-1].append(piece)
        else:
            packed.append([piece])
            room = max_tokens
        room -= length
    return ["".join(part).strip() for part in packed]


def _pieces(text: str, end: re.Pattern[str]) -> list[str]:
    return [piece for piece in end.split(text) if piece]
