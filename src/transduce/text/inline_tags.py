"""Placement of a sentence's inline tags in its translation.

Links connect the words of both sentences, by attention or else by their places. An
element surrounds the words that are linked to its own words; an empty element stays
beside its neighbour. Elements keep their nesting, and each is written exactly once.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import groupby
from operator import itemgetter

import numpy as np
from jaxtyping import Float32

from transduce.text.languages import UNSPACED_LETTERS, WORD_MARKS

MARKS_OF_SCRIPTS = (
    # Greek, Armenian, Arabic, Urdu, Syriac, Devanagari, Sinhala.
    "\u037e\u055d\u0589\u060c\u061b\u061f\u06d4\u0700\u0701\u0702\u0964\u0965\u0df4"
    # Tibetan, Burmese, Ethiopic, Khmer, Mongolian, Ol Chiki.
    "\u0f0d\u104a\u104b\u1362\u1363\u1364\u1365\u1366\u1367\u1368\u17d4\u17d5\u17d6"
    "\u1802\u1803\u1808\u1809\u1c7e\u1c7f"
)
"""Marks that end a sentence or a part of it in other scripts than Latin ones, Chinese
and Japanese."""
PUNCTUATION = (
    "!-/:-@\\[-`{-~\u00a1-\u00bf\u2010-\u206f\u2e00-\u2e7f\u3000-\u303f\uff00-\uff0f"
    # Hyphen of Hebrew, and the mark between Ethiopic words.
    f"\u05be\u1361{MARKS_OF_SCRIPTS}"
)
UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u312f\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words; each is a unit."""
UNIT = re.compile(
    rf"[{UNSPACED}]|[0-9]+|[^\s0-9{PUNCTUATION}{UNSPACED}]+"
    rf"|[{PUNCTUATION}]"
)
"""Pattern of a word, a number, a mark, or a character of a script without spaces."""
WIDE_MARKS = "\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
"""Marks of Chinese and Japanese, as wide as a mark with its space."""
HAN_OR_KANA = re.compile(
    r"[\u2E80-\u30FF\u31C0-\u9FFF\uF900-\uFAFF\uFF00-\uFF9F\U00020000-\U0003FFFF]"
)
"""Pattern of a character of Han or Kana, or of text with them: no spaces separate words
or sentences, as they do sentences in Thai."""
WITHIN_WORD = re.compile(rf"(?:(?![{UNSPACED_LETTERS}])[\w{WORD_MARKS}]){{2}}")
UNSPACED_UNIT = re.compile(f"[{UNSPACED}]")
UNSPACED_SIGN = re.compile(f"[{UNSPACED}{WIDE_MARKS}]")
CLOSERS = f".,;:!?…)]}}\"'\u2018\u2019\u201c\u201d»›{MARKS_OF_SCRIPTS}"
SENTENCE_MARKS = frozenset(f".,;:!?…{MARKS_OF_SCRIPTS}、。，．：；！？｡､")
"""Marks that end a sentence or a part of it."""
WIDE_CLOSERS = "、。〉》」』】〕〗！），．：；？］｝｡｣､"
CLOSING_MARKS = re.compile(rf"[{re.escape(CLOSERS)}]+(?!\S)|[{WIDE_CLOSERS}]")
"""Pattern of marks that no space precedes, as they close a part of a sentence."""

OPENING_BRACKETS, CLOSING_BRACKETS = "([{（［｛【〔〖", ")]}）］｝】〕〗"
QUOTES = '"“”„«»‹›「」『』〈〉《》＂'
PAIRING_MARKS = (
    dict.fromkeys(OPENING_BRACKETS, "(")
    | dict.fromkeys(CLOSING_BRACKETS, ")")
    | dict.fromkeys(QUOTES, '"')
)
"""Kinds of brackets and quotation marks, which other languages write by others of the
same kind. Apostrophes are none."""
OPENERS = OPENING_BRACKETS + "„‚¿¡「『〈《"
"""Marks that no space follows, as they open a part of a sentence."""

JOINERS = "\u1039\u17d2\u200d"
"""Characters that join the next one to the one before: stackers of Burmese and Khmer,
and the zero-width joiner."""
JOINED = "\u0e33\u0eb3\u200d\uff9e\uff9f"
"""Characters that are written in one with the one before, but are no marks by their
category: a vowel of Thai and of Lao, the zero-width joiner, and narrow marks of
Kana."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""Piece that stands for a byte."""
MAX_TRIES = 100
"""Maximum number of places within words, on either side, that are passed over."""
MAX_DISTANCE = 4
"""Number of words on either side that are searched for one with a link."""

Span = tuple[int, int]
"""Start and end in a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """Single tag, or a start tag, its end tag and the content between them."""

    start: int
    """Offset of its beginning in the sentence."""
    end: int
    opening: str
    """Start tag, or the whole of a copied element; empty if the element began before
    the sentence."""
    closing: str = ""
    """End tag; empty if the sentence has none."""
    indentation: str = ""
    """Wide or no-break space between the start tag and the sentence. It stays before
    the translation if the element moves."""
    final_space: str = ""
    """Such space between the sentence and the end tag."""
    children: tuple["Element", ...] = ()
    is_copied: bool = False
    """Whether its text is not translated; then `opening` is the whole element."""
    begins_before: bool = False
    """Whether it began before the sentence; then the translation begins with it."""
    ends_after: bool = False
    """Whether it ends after the sentence; then the translation ends with it."""
    has_space_before: bool = False
    """Whether the source has space before it. The sentence may lack that space: it has
    one space for those on both sides of a picture."""
    has_space_after: bool = False
    """Whether the source has space after it, which the sentence may lack as well."""


class LineBorder(Element):
    """Border between two lines of subtitles that a sentence goes over.

    `opening` is what stands between their texts, such as a line of times.
    """

    __slots__ = ()


SentenceTags = tuple[Element, ...]
"""Outermost elements of a sentence, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordLinks:
    """Links from the words of a translation to the words of its sentence."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    source_of: tuple[int | None, ...]
    """Source word of each word of the translation, if any."""
    is_guessed: bool = False
    """Whether the links only follow the places of the words."""

    def then(self, following: "WordLinks") -> "WordLinks":
        """Return the links to the translation of the translation, by its own links."""
        source_of = (
            None if i is None else self.source_of[i] for i in following.source_of
        )
        return WordLinks(
            source=self.source, target=following.target, source_of=tuple(source_of)
        )

    def with_terms(self, sentence: str, terms: Sequence["PlacedTerm"]) -> "WordLinks":
        """Return the links with those of a glossary's terms in a sentence.

        The words of a term are linked to the term, and no others are. Terms that the
        sentence spells elsewhere, as before it was normalized, are left out.
        """
        source_of = list(self.source_of)
        for term in terms:
            start, end = term.source
            first, last = _words_in(self.source, start, end)
            if sentence[start:end] != term.text or first == last:
                continue
            begin, stop = _words_in(self.target, *term.target)
            for target, source in enumerate(source_of):
                is_own = source is not None and first <= source < last
                if begin <= target < stop:
                    source_of[target] = source if is_own else first
                elif is_own:
                    source_of[target] = None
        return replace(self, source_of=tuple(source_of))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTerm:
    """Term of a glossary in a sentence, and the words for it in the translation."""

    text: str
    """The term as the sentence spells it."""
    source: Span
    """Its place in the normalized sentence."""
    target: Span


def units(text: str) -> tuple[Span, ...]:
    """Return the spans of the words, numbers and marks of a text.

    A character and the combining marks on it are never in two of them.
    """
    spans: list[Span] = []
    for match in UNIT.finditer(text):
        start, end = match.span()
        if spans and spans[-1][1] == start and is_within_character(text, start):
            start, _ = spans.pop()
        spans.append((start, end))
    return tuple(spans)


def is_within_character(text: str, place: int) -> bool:
    """Return whether a place in a text is before a sign that belongs to the character
    before it, as a vowel sign does."""
    if not 0 < place < len(text):
        return False
    is_mark = unicodedata.category(text[place])[0] == "M"
    return is_mark or text[place] in JOINED or text[place - 1] in JOINERS


def is_within_word(text: str, place: int) -> bool:
    """Return whether a place in a text is inside a word.

    Word borders of scripts without spaces are unknown.
    """
    around = text[max(place - 1, 0) : place + 1]
    return bool(WITHIN_WORD.fullmatch(around)) and not HAN_OR_KANA.search(around)


def links_by_place(source: str, target: str, tags: SentenceTags = ()) -> WordLinks:
    """Link words by their relative places in the two sentences.

    If both have the same brackets and quotation marks, these are linked, and words are
    linked to those between the same ones. If these have moved, so that a tagged element
    would have no words, the words outside are linked among themselves; if that is not
    enough, all words. This is the fallback without attention; equal sentences link
    equal words.
    """
    guess = _Guess(source, target, tags)
    return WordLinks(
        source=guess.sources,
        target=guess.targets,
        source_of=tuple(guess.source_of()),
        is_guessed=True,
    )


Stretch = tuple[Sequence[int], Sequence[int]]
"""Numbers of words of the source, and of those of the translation linked to them."""


class _Guess:
    """Links by place that give each element with words a word, if there are enough."""

    def __init__(self, source: str, target: str, tags: SentenceTags) -> None:
        self.sources, self.targets = units(source), units(target)
        self._words = words_at(source, self.sources), words_at(target, self.targets)
        self._is_word = [
            [any(map(str.isalnum, word)) for word in words] for words in self._words
        ]
        spans = (
            _words_in(self.sources, each.start, each.end) for each in _translated(tags)
        )
        self._elements = [
            (first, last) for first, last in spans if any(self._is_word[0][first:last])
        ]
        """First word of each element with words, and the word after its last."""
        self._around: list[tuple[int, ...]] = [() for _ in self.sources]
        """Numbers of the elements around each source word."""
        for number, (first, last) in enumerate(self._elements):
            for i in range(first, last):
                self._around[i] += (number,)

    def source_of(self) -> list[int | None]:
        """Return the source word of each word of the translation."""
        anchors = _anchors(*self._words)
        whole: Stretch = (range(len(self.sources)), range(len(self.targets)))
        if anchors:
            stretches = _stretches(whole, anchors)
            for each in (stretches, _with_joined_outside(stretches)):
                found = self._linked(each, anchors)
                if all(self._has_whole(element, found) for element in self._elements):
                    return found
        return self._linked([whole], [])

    def _linked(
        self, stretches: Sequence[Stretch], anchors: Sequence[tuple[int, int]]
    ) -> list[int | None]:
        found: list[int | None] = [None] * len(self.targets)
        for source, target in anchors:
            found[target] = source
        for sources, targets in stretches:
            if sources:
                for target, place in zip(
                    targets, self._places(sources, targets), strict=True
                ):
                    found[target] = sources[place]
        return found

    def _places(self, sources: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Return the place in `sources` of each target word of a stretch, ascending.

        It is where the middle of the target word would be, or the nearest one in the
        part of the source that would have no word otherwise.
        """
        num_sources, num_targets = len(sources), len(targets)
        places = [
            (2 * i + 1) * num_sources // (2 * num_targets) for i in range(num_targets)
        ]
        words = [i for i, each in enumerate(targets) if self._is_word[1][each]]
        parts = self._parts(sources)
        missing = sum(needs_word for _, needs_word in parts)
        if missing > len(words):
            return places
        before, begin, first = [places[i] for i in words], 0, 0
        for end, needs_word in parts:
            missing -= needs_word
            stop = max(bisect_left(before, end), first + needs_word)
            stop = min(stop, len(words) - missing)
            for i in words[first:stop]:
                places[i] = min(max(places[i], begin), end - 1)
            begin, first = end, stop
        self._order_marks(targets, places)
        return places

    def _order_marks(self, targets: Sequence[int], places: list[int]) -> None:
        """Keep the places of marks between those of the words around them."""
        for order, nearest in ((1, max), (-1, min)):
            limit: int | None = None
            for i in range(len(targets))[::order]:
                if self._is_word[1][targets[i]]:
                    limit = places[i]
                elif limit is not None:
                    places[i] = nearest(places[i], limit)

    def _parts(self, sources: Sequence[int]) -> list[tuple[int, bool]]:
        """Return the end of each part of a stretch, and whether it needs a word.

        All words of a part have the same elements around them.
        """
        parts, end = [], 0
        for around, group in groupby(sources, key=self._around.__getitem__):
            part = list(group)
            end += len(part)
            has_word = any(self._is_word[0][each] for each in part)
            parts.append((end, bool(around) and has_word))
        return parts

    def _has_whole(self, element: Span, source_of: Sequence[int | None]) -> bool:
        """Return whether an element has words of the translation, without others among
        them."""
        is_from = [
            each is not None and element[0] <= each < element[1] for each in source_of
        ]
        run = _densest(is_from) or (0, 0)
        has_word = [
            each and word for each, word in zip(is_from, self._is_word[1], strict=True)
        ]
        within = sum(has_word[slice(*run)])
        return all(is_from[slice(*run)]) and 0 < within == sum(has_word)


def _stretches(whole: Stretch, anchors: Sequence[tuple[int, int]]) -> list[Stretch]:
    """Cut both sentences at the anchors."""
    (sources, targets), found = whole, []
    begin = target_begin = 0
    for at, target_at in [*anchors, (len(sources), len(targets))]:
        found.append((sources[begin:at], targets[target_begin:target_at]))
        begin, target_begin = at + 1, target_at + 1
    return found


def _with_joined_outside(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Join the stretches that are not between an anchor and the one that closes it."""
    outside = stretches[::2]
    sources = [each for source, _ in outside for each in source]
    targets = [each for _, target in outside for each in target]
    return [(sources, targets), *stretches[1::2]]


def _translated(elements: SentenceTags) -> Iterator[Element]:
    """Yield the elements, and those within them, whose text is translated."""
    for each in elements:
        if not each.is_copied:
            yield each
            yield from _translated(each.children)


def _anchors(source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of the brackets, and of the quotation marks, of two sentences.

    There are none of those that do not come in the same order in both.
    """
    for kinds in ('()"', "()"):
        found = [_pairing_marks(words, kinds) for words in (source, target)]
        of_source, of_target = ([kind for _, kind in each] for each in found)
        if of_source == of_target:
            return [(i, j) for (i, _), (j, _) in zip(*found, strict=True)]
    return []


def _pairing_marks(words: Sequence[str], kinds: str) -> list[tuple[int, str]]:
    """Return the places of the brackets and quotation marks of some kinds."""
    found = ((i, PAIRING_MARKS.get(word, "-")) for i, word in enumerate(words))
    return [(i, kind) for i, kind in found if kind in kinds]


def letter_groups(
    pieces: Sequence[str], words: Sequence[str]
) -> Float32[np.ndarray, "pieces words"]:
    """Return the share of each piece's letters that belong to each word.

    A piece may belong to two words. Each byte of a letter encoded as bytes is a piece.
    The pieces must spell the words: see `have_same_letters`.
    """
    word_of = [word for word, text in enumerate(words) for _ in text]
    groups = np.zeros((len(pieces), len(words)), dtype=np.float32)
    place = 0
    for i, piece in enumerate(pieces):
        end = place + num_letters(piece)
        if end > place:
            owners = word_of[place:end]
        elif piece.strip() or place == len(word_of):
            owners = word_of[place - 1 : place]  # a later byte of a letter, or the end
        else:
            owners = word_of[place : place + 1]  # the space before a word
        for owner in owners:
            groups[i, owner] += 1 / len(owners)
        place = end
    assert place == len(word_of)
    return groups


def have_same_letters(words: Sequence[str], pieces: Sequence[str]) -> bool:
    """Return whether the pieces have as many letters as the words.

    Some tokenizers drop unknown characters.
    """
    return sum(map(len, words)) == sum(map(num_letters, pieces))


def num_letters(piece: str) -> int:
    """Return the number of letters that begin in a piece."""
    if byte := BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return len(piece.replace(" ", ""))


def agreement(
    weights: Float32[np.ndarray, "maps target source"],
) -> Float32[np.ndarray, " maps"]:
    """Count the target words whose source word chooses them back."""
    chosen = weights.argmax(axis=-1)
    choosing = weights.argmax(axis=-2)
    back = np.take_along_axis(choosing, chosen, axis=-1)
    return (back == np.arange(weights.shape[-2])).sum(axis=-1, dtype=np.float32)


def words_at(text: str, spans: Sequence[Span]) -> list[str]:
    """Return the words of a text by their spans."""
    return [text[start:end] for start, end in spans]


def _num_words(text: str) -> int:
    """Count words with letters; two characters of a script without spaces are one."""
    words = [
        word for word in words_at(text, units(text)) if any(map(str.isalpha, word))
    ]
    num_characters = sum(UNSPACED_UNIT.match(word) is not None for word in words)
    return len(words) - num_characters // 2


def escaped(text: str) -> str:
    """Return text as HTML, outside of attributes."""
    return escape(text, quote=False)


def with_tags(
    tags: SentenceTags,
    sentence: str,
    translation: str,
    links: WordLinks,
    write: Callable[[str], str] = escaped,
) -> str:
    """Return a translation with the tags of the sentence.

    `write` gives the text between two tags, by default as HTML.
    """
    whole = Element(start=0, end=len(sentence), opening="", children=tags)
    placement = _Placement(sentence, translation, links)
    placed = placement.placed(whole, (0, len(translation)))
    moved = [each for each in _all_placed(placed) if not each.begins_translation]
    parts = [each.element.indentation for each in moved]
    _write(placed, translation, parts, write)
    moved = [each for each in _all_placed(placed) if each.span[1] < len(translation)]
    return "".join([*parts, *(each.element.final_space for each in moved)])


@dataclass(frozen=True, slots=True)
class _Placed:
    """Element and its span in the translation."""

    element: Element
    span: Span
    children: list["_Placed"]
    has_spaces: tuple[bool, bool]
    """Whether space must stand before it, and after it, unless it tears a word."""

    @property
    def begins_translation(self) -> bool:
        return self.span[0] == 0


def _all_placed(placed: _Placed) -> Iterator[_Placed]:
    """Yield an element and those within it, in order."""
    yield placed
    for child in placed.children:
        yield from _all_placed(child)


def _write(
    placed: _Placed, translation: str, parts: list[str], write: Callable[[str], str]
) -> None:
    element, (at, end) = placed.element, placed.span
    has_space_before, has_space_after = placed.has_spaces
    is_apart = next(filter(None, reversed(parts)), "") == " "
    if has_space_before and not is_apart and _lacks_space_before(translation, at):
        parts.append(" ")
    parts.append(element.opening)
    if placed.begins_translation:
        parts.append(element.indentation)
    if not element.is_copied:
        for child in placed.children:
            parts.append(write(translation[at : child.span[0]]))
            _write(child, translation, parts, write)
            at = child.span[1]
        parts.append(write(translation[at:end]))
    if end == len(translation):
        parts.append(element.final_space)
    parts.append(element.closing)
    if has_space_after and _lacks_space_after(translation, end):
        parts.append(" ")


def _lacks_space_before(text: str, at: int) -> bool:
    """Return whether a spaced element at a place needs a space before it."""
    before = text[max(at - 1, 0) : at]
    is_missing = before != "" and not before.isspace() and not _opens(text, at - 1)
    return is_missing and _is_spaced_place(text, at, _final_marks(text))


def _lacks_space_after(text: str, at: int) -> bool:
    """Return whether a spaced element at a place needs a space after it."""
    before, after = text[max(at - 1, 0) : at], text[at : at + 1]
    closes = not before.isspace() and CLOSING_MARKS.match(text, at)
    is_missing = after != "" and not after.isspace() and not closes
    return is_missing and _is_spaced_place(text, at, _final_marks(text))


def _is_spaced_place(text: str, at: int, final_marks: int) -> bool:
    """Return whether an element at a place may have space on both sides.

    The space must tear no word apart: there is space already, or an end of the text, an
    edge of brackets or quotation marks, or a script without spaces.
    """
    around = text[max(at - 1, 0) : at + 1]
    return (
        at in (0, final_marks, len(text))
        or any(map(str.isspace, around))
        or UNSPACED_SIGN.search(around) is not None
        or _opens(text, at - 1)
        or _closes(text, at)
        or _closes(text, at - 1)
    )


def _opens(text: str, at: int) -> bool:
    """Return whether a character is a bracket or quotation mark that opens.

    Most quotation marks open in one language and close in another.
    """
    is_first = at == 0 or text[at - 1].isspace() or text[at - 1] in OPENERS
    return text[at] in OPENERS or (text[at] in QUOTES and is_first)


def _closes(text: str, at: int) -> bool:
    """Return whether a character is a bracket or quotation mark that closes."""
    is_mark = text[at] in CLOSING_BRACKETS or text[at] in QUOTES
    return is_mark and CLOSING_MARKS.match(text, at) is not None


def _final_marks(text: str) -> int:
    """Return where the marks at the end of a text begin."""
    return len(text.rstrip(CLOSERS))


class _Placement:
    """Placement of one sentence's elements."""

    def __init__(self, sentence: str, translation: str, links: WordLinks) -> None:
        self._sentence = sentence
        self._translation = translation
        self._links = links
        self._targets_of: list[list[int]] = [[] for _ in links.source]
        for target, source in enumerate(links.source_of):
            if source is not None:
                self._targets_of[source].append(target)

    def placed(self, element: Element, span: Span) -> _Placed:
        """Place an element at a span, and its children in order within it."""
        low, high = span
        wanted = [(child, self._wanted(child, span)) for child in element.children]
        wanted.sort(key=self._order)
        children = []
        for child, (start, end) in wanted:
            start = low if child.begins_before else min(max(start, low), high)
            end = high if child.ends_after else min(max(end, start), high)
            children.append(self.placed(child, (start, end)))
            low = end
        has_spaces = element.has_space_before, element.has_space_after
        if element.is_copied and span[0] == span[1]:
            # It is added to the translation: no word may touch it unless one did.
            before, after = self._around(element)
            has_spaces = not _is_of_word(before), not _is_of_word(after)
        return _Placed(element, span, children, has_spaces)

    @staticmethod
    def _order(wanted: tuple[Element, Span]) -> tuple[int, int]:
        element, (start, _) = wanted
        if element.begins_before:
            return 0, start
        return (2 if element.ends_after else 1), start

    def _wanted(self, element: Element, within: Span) -> Span:
        """Return the span of an element without regard to its siblings."""
        if element.start == element.end:
            at = self._point(element.start)
            if element.has_space_before or element.has_space_after:
                at = self._nearest_spaced(at)
            return at, at
        span = self._around_words(element)
        if span is None:
            start = self._point(element.start)
            if element.is_copied:
                added = self._added(element, start)
                leading, _ = _edge_spaces(self._own_text(element))
                return self._same_text(element, start + leading, within) or added
            end = max(self._point(element.end), start)
            has_words = bool(self._translation[start:end].strip())
            return start, end if has_words else start
        if element.is_copied:
            # No guess takes words of the translation away, and no links take all: words
            # beyond the element's own must be from elsewhere.
            is_inserted = self._links.is_guessed or self._is_all_and_more(element, span)
            instead = self._added(element, span[0]) if is_inserted else span
            return self._same_text(element, span[0], within) or instead
        return self._with_spaces(element, span)

    def _own_text(self, element: Element) -> str:
        return self._sentence[element.start : element.end]

    def _added(self, element: Element, at: int) -> Span:
        """Return the span, near a place, of an element that replaces no word.

        An element in brackets or quotes stays in them.
        """
        before, after = self._around(element)
        is_spaced = _is_apart(before) and (_is_apart(after) or after in SENTENCE_MARKS)
        at = self._nearest_spaced(at) if is_spaced else at
        return at, at

    def _around(self, element: Element) -> tuple[str, str]:
        """Return the characters of the sentence before and after an element."""
        before = self._sentence[max(element.start - 1, 0) : element.start]
        return before, self._sentence[element.end : element.end + 1]

    def _nearest_spaced(self, at: int) -> int:
        return min(self._spaced_places, key=lambda place: abs(place - at))

    @cached_property
    def _spaced_places(self) -> list[int]:
        """Places in the translation beside which space may stand."""
        text = self._translation
        edges = {0, len(text)}.union(*self._links.target)
        final = _final_marks(text)
        edges.add(final)
        return sorted(each for each in edges if _is_spaced_place(text, each, final))

    def _around_words(self, element: Element) -> Span | None:
        """Return the span of the words that come from the element's, without strays."""
        first, last = _words_in(self._links.source, element.start, element.end)
        if first == last:
            return None
        is_from = [
            source is not None and first <= source < last
            for source in self._links.source_of
        ]
        run = _densest(is_from)
        if run is None:
            return None
        begin, end = run[0], run[1] - 1
        start = self._links.target[begin][0]
        start += self._within_word(first, begin, element.start)
        stop = self._links.target[end][1]
        source_start, source_end = self._links.source[last - 1]
        if element.end < source_end and self._is_same(last - 1, end):
            stop += element.end - source_end
        return start, stop

    def _is_all_and_more(self, element: Element, span: Span) -> bool:
        """Return whether a span has all words of the translation, and more than the
        element."""
        text = self._translation
        has_all = not any(map(str.isalpha, text[: span[0]] + text[span[1] :]))
        own = self._own_text(element)
        return has_all and _num_words(text[slice(*span)]) > _num_words(own)

    def _within_word(self, source: int, target: int, at: int) -> int:
        """Return a place within a word, if the translation has the same word."""
        start = self._links.source[source][0]
        return at - start if at > start and self._is_same(source, target) else 0

    def _is_same(self, source: int, target: int) -> bool:
        (a, b), (c, d) = self._links.source[source], self._links.target[target]
        return self._sentence[a:b] == self._translation[c:d]

    def _same_text(self, element: Element, near: int, within: Span) -> Span | None:
        """Find the element's own text in the translation.

        If it occurs several times, returns the place whose words begin nearest to
        `near`. The translation may lack the space at the edges of the text.
        """
        own = self._own_text(element)
        leading, trailing = _edge_spaces(own)
        whole = element.start, element.end
        for start, end in (whole, (whole[0] + leading, whole[1] - trailing)):
            if start < end:
                wanted = near - leading if start == element.start else near
                found = self._nearest_same((start, end), wanted, within)
                if found is not None:
                    return found
        return None

    def _nearest_same(self, own: Span, wanted: int, within: Span) -> Span | None:
        """Find the same text as a span of the sentence, which begins near `wanted`.

        It tears no word apart, unless the span does so in the sentence.
        """
        text, (low, high) = self._sentence[slice(*own)], within
        find, rfind = self._translation.find, self._translation.rfind
        edges = [at - own[0] for at in own if not is_within_word(self._sentence, at)]

        def is_torn(place: int) -> bool:
            places = (place + edge for edge in edges)
            return any(is_within_word(self._translation, at) for at in places)

        wanted = max(wanted, low)
        after = find(text, wanted, high)
        before = rfind(text, low, min(wanted + len(text), high))
        for _ in range(MAX_TRIES):
            if after >= 0 and is_torn(after):
                after = find(text, after + 1, high)
            if before >= 0 and is_torn(before):
                before = rfind(text, low, before + len(text) - 1)
        places = [at for at in (after, before) if at >= 0 and not is_torn(at)]
        if not places:
            return None
        nearest = min(places, key=lambda place: abs(place - wanted))
        return nearest, nearest + len(text)

    def _with_spaces(self, element: Element, span: Span) -> Span:
        """Add as many spaces at the edges as the element had in the sentence."""
        (start, end), text = span, self._translation
        leading, trailing = _edge_spaces(self._own_text(element))
        _, before = _edge_spaces(text[max(start - leading, 0) : start])
        after, _ = _edge_spaces(text[end : end + trailing])
        return start - before, end + after

    def _point(self, at: int) -> int:
        """Translate a place between two words, or within one."""
        sources = self._links.source
        if at == 0:
            return 0
        if at == len(self._sentence):
            return len(self._translation)
        after = bisect_right(sources, at, key=_end)
        if after < len(sources) and sources[after][0] < at:
            return self._point_within(after, at)
        before = after - 1
        touches_before = before >= 0 and sources[before][1] == at
        if after < len(sources) and sources[after][0] == at and not touches_before:
            return self._beside(after, before, prefers_next=True)
        place = self._beside(after, before, prefers_next=False)
        gap = at - sources[before][1] if before >= 0 else 0
        spaces, _ = _edge_spaces(self._translation[place : place + gap])
        return place + spaces

    def _point_within(self, word: int, at: int) -> int:
        targets = self._targets_of[word]
        if targets and self._is_same(word, targets[0]):
            return self._links.target[targets[0]][0] + at - self._links.source[word][0]
        return self._beside(word + 1, word, prefers_next=False)

    def _beside(self, following: int, previous: int, *, prefers_next: bool) -> int:
        """Return the place between the translations of two neighbouring words.

        The place is before the translation of the following word, or after that of the
        previous one. Words without links are skipped, up to `MAX_DISTANCE`.
        """
        spans = self._links.target
        for distance in range(MAX_DISTANCE):
            after = self._targets_at(following + distance)
            before = self._targets_at(previous - distance)
            if after and (prefers_next or not before):
                return spans[min(after)][0]
            if before:
                return spans[max(before)][1]
        share = following / max(len(self._links.source), 1)
        place = int(share * len(self._links.target))
        if place < len(self._links.target):
            return self._links.target[place][0]
        return len(self._translation)

    def _targets_at(self, word: int) -> list[int]:
        """Return the target words of a source word; none of a place without a word."""
        is_word = 0 <= word < len(self._targets_of)
        return self._targets_of[word] if is_word else []


def _densest(flags: Sequence[bool]) -> Span | None:
    """Return the span in which set flags outnumber the others most; None without any.

    This is Kadane's algorithm for the subarray with the largest sum.
    """
    best, best_sum, begin, total = None, 0, 0, 0
    for i, flag in enumerate(flags):
        if total <= 0:
            begin, total = i, 0
        total += 1 if flag else -1
        if total > best_sum:
            best, best_sum = (begin, i + 1), total
    return best


def _is_of_word(character: str) -> bool:
    """Return whether a character is of a word in a script with spaces."""
    return character.isalnum() and UNSPACED_UNIT.match(character) is None


def _is_apart(character: str) -> bool:
    """Return whether a character separates words, or is of a script without spaces.

    The character beyond an edge of the text is an empty string.
    """
    return not character.strip() or UNSPACED_UNIT.match(character) is not None


def _edge_spaces(text: str) -> tuple[int, int]:
    """Return the number of spaces at the beginning and at the end of a text."""
    return len(text) - len(text.lstrip()), len(text) - len(text.rstrip())


def _words_in(words: Sequence[Span], start: int, end: int) -> Span:
    """Return the first word that overlaps a span, and the word after the last."""
    first = bisect_right(words, start, key=_end)
    return first, max(bisect_left(words, end, key=_start), first)


_start, _end = itemgetter(0), itemgetter(1)
