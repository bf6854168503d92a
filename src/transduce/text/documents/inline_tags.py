"""Inline tags of a sentence, put where they belong in its translation.

The words of both sentences are linked, by attention where it is known. An element goes
around the words that come from those it was around, an empty one stays beside its
neighbour; all keep their nesting, and none is left out or written twice.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

PUNCTUATION = (
    "!-/:-@\\[-`{-~\u00a1-\u00bf\u2010-\u206f\u2e00-\u2e7f\u3000-\u303f\uff00-\uff0f"
)
HAN_AND_THE_LIKE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
UNIT = re.compile(
    rf"[{HAN_AND_THE_LIKE}]|[0-9]+|[^\s0-9{PUNCTUATION}{HAN_AND_THE_LIKE}]+"
    rf"|[{PUNCTUATION}]"
)
"""A word, a number, a mark, or a character where words are not parted by spaces."""

Span = tuple[int, int]
"""Where something begins and ends in a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A tag, or a start tag, its end tag and what is between them."""

    start: int
    """Where it begins in the sentence."""
    end: int
    opening: str
    """The start tag, or an element that is not translated; empty if the element began
    before the sentence."""
    closing: str = ""
    """The end tag; empty if there is none in the sentence."""
    children: tuple["Element", ...] = ()
    is_copied: bool = False
    """Whether its text is not translated: `opening` is the whole of it."""
    begins_before: bool = False
    """Whether it began before the sentence: then it begins its translation too."""
    ends_after: bool = False
    """Whether it ends after the sentence: then it ends its translation too."""


SentenceTags = tuple[Element, ...]
"""The outermost elements of a sentence, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordLinks:
    """Which word of a sentence each word of its translation comes from."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    source_of: tuple[int | None, ...]
    """By word of the translation."""
    is_guessed: bool = False
    """Whether only the places of the words are known."""


def units(text: str) -> tuple[Span, ...]:
    """The words of a text, marks and numbers among them."""
    return tuple(match.span() for match in UNIT.finditer(text))


def links_by_place(source: str, target: str) -> WordLinks:
    """Link words that stand at about the same share of their sentence.

    For want of something better: of equal sentences, equal words are linked.
    """
    sources, targets = units(source), units(target)
    number, of = len(sources), max(len(targets), 1)
    return WordLinks(
        source=sources,
        target=targets,
        source_of=tuple(
            (2 * i + 1) * number // (2 * of) if number else None
            for i in range(len(targets))
        ),
        is_guessed=True,
    )


def with_tags(
    tags: SentenceTags, sentence: str, translation: str, links: WordLinks
) -> str:
    """The translation as HTML, with the tags of the sentence."""
    whole = Element(start=0, end=len(sentence), opening="", children=tags)
    placement = _Placement(sentence, translation, links)
    parts: list[str] = []
    _write(placement.placed(whole, (0, len(translation))), translation, parts)
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An element and where it is in the translation."""

    element: Element
    span: Span
    children: list["_Placed"] = field(default_factory=list)


def _write(placed: _Placed, translation: str, parts: list[str]) -> None:
    element, (at, end) = placed.element, placed.span
    parts.append(element.opening)
    if not element.is_copied:
        for child in placed.children:
            parts.append(escape(translation[at : child.span[0]], quote=False))
            _write(child, translation, parts)
            at = child.span[1]
        parts.append(escape(translation[at:end], quote=False))
    parts.append(element.closing)


class _Placement:
    """Where the elements of one sentence go."""

    def __init__(self, sentence: str, translation: str, links: WordLinks) -> None:
        self._sentence = sentence
        self._translation = translation
        self._links = links
        self._targets_of: list[list[int]] = [[] for _ in links.source]
        for target, source in enumerate(links.source_of):
            if source is not None:
                self._targets_of[source].append(target)

    def placed(self, element: Element, span: Span) -> _Placed:
        """An element there, and its children within it one after the other."""
        low, high = span
        wanted = [(child, self._wanted(child, span)) for child in element.children]
        wanted.sort(key=self._order)
        children = []
        for child, (start, end) in wanted:
            start = low if child.begins_before else min(max(start, low), high)
            end = high if child.ends_after else min(max(end, start), high)
            children.append(self.placed(child, (start, end)))
            low = end
        return _Placed(element, span, children)

    @staticmethod
    def _order(wanted: tuple[Element, Span]) -> tuple[int, int]:
        element, (start, _) = wanted
        return 0 if element.begins_before else 2 if element.ends_after else 1, start

    def _wanted(self, element: Element, within: Span) -> Span:
        """Where an element belongs by itself."""
        if element.start == element.end:
            at = self._point(element.start)
            return at, at
        span = self._around_words(element)
        if span is None:
            start = self._point(element.start)
            return start, max(self._point(element.end), start)
        if element.is_copied:
            # A guess takes no word of the translation away.
            instead = (span[0], span[0]) if self._links.is_guessed else span
            return self._same_text(element, span, within) or instead
        return self._with_spaces(element, span)

    def _around_words(self, element: Element) -> Span | None:
        """Around the words that come from the element's, but for stragglers."""
        first, last = self._words_in(element.start, element.end)
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

    def _within_word(self, source: int, target: int, at: int) -> int:
        """How far within a word something is, if the translation has it too."""
        start = self._links.source[source][0]
        return at - start if at > start and self._is_same(source, target) else 0

    def _is_same(self, source: int, target: int) -> bool:
        (a, b), (c, d) = self._links.source[source], self._links.target[target]
        return self._sentence[a:b] == self._translation[c:d]

    def _same_text(self, element: Element, near: Span, within: Span) -> Span | None:
        """The element's very words, if the translation has them near there."""
        text = self._sentence[element.start : element.end]
        (low, high), wanted = within, near[0]
        after = self._translation.find(text, wanted, high)
        before = self._translation.rfind(text, low, min(wanted + len(text), high))
        places = [place for place in (after, before) if place >= 0]
        if not places:
            return None
        start = min(places, key=lambda place: abs(place - wanted))
        return start, start + len(text)

    def _with_spaces(self, element: Element, span: Span) -> Span:
        """The spaces at an element's edges are within it, or not, as they were."""
        (start, end), text = span, self._translation
        inside = self._sentence[element.start : element.end]
        for _ in range(len(inside) - len(inside.lstrip())):
            start -= text[start - 1 : start].isspace()
        for _ in range(len(inside) - len(inside.rstrip())):
            end += text[end : end + 1].isspace()
        return start, end

    def _words_in(self, start: int, end: int) -> tuple[int, int]:
        """Numbers of the first word that reaches into a span, and after the last."""
        sources = self._links.source
        first = _first(sources, lambda word: word[1] > start)
        return first, max(_first(sources, lambda word: word[0] >= end), first)

    def _point(self, at: int) -> int:
        """Where what was there between two words, or within one, belongs."""
        sources = self._links.source
        if at == 0:
            return 0
        if at == len(self._sentence):
            return len(self._translation)
        after = _first(sources, lambda word: word[1] > at)
        if after < len(sources) and sources[after][0] < at:
            return self._point_within(after, at)
        before = after - 1
        touches_before = before >= 0 and sources[before][1] == at
        if after < len(sources) and sources[after][0] == at and not touches_before:
            return self._beside(after, before, is_before=True)
        place = self._beside(after, before, is_before=False)
        for _ in range(at - sources[before][1] if before >= 0 else 0):
            place += self._translation[place : place + 1].isspace()
        return place

    def _point_within(self, word: int, at: int) -> int:
        targets = self._targets_of[word]
        if targets and self._is_same(word, targets[0]):
            return self._links.target[targets[0]][0] + at - self._links.source[word][0]
        return self._beside(word + 1, word, is_before=False)

    def _beside(self, after: int, before: int, *, is_before: bool) -> int:
        """Before what comes from the word after, or after what comes from that before.

        The other one, or the nearest word that has a link, if it has none.
        """
        for far in range(NEAR):
            sides = [(after + far, True), (before - far, False)]
            for word, is_start in sides if is_before else reversed(sides):
                if 0 <= word < len(self._targets_of) and self._targets_of[word]:
                    targets = self._targets_of[word]
                    if is_start:
                        return self._links.target[min(targets)][0]
                    return self._links.target[max(targets)][1]
        share = after / max(len(self._links.source), 1)
        place = int(share * len(self._links.target))
        if place < len(self._links.target):
            return self._links.target[place][0]
        return len(self._translation)


NEAR = 4
"""Words to either side among which one that has a link is looked for."""


def _densest(flags: Sequence[bool]) -> Span | None:
    """The span with the most flags above those not set; none without any."""
    best, best_sum, begin, total = None, 0, 0, 0
    for i, flag in enumerate(flags):
        if total <= 0:
            begin, total = i, 0
        total += 1 if flag else -1
        if total > best_sum:
            best, best_sum = (begin, i + 1), total
    return best


def _first(words: Sequence[Span], is_true: Callable[[Span], bool]) -> int:
    """Number of the first word of which something is true, as of all after it."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        if is_true(words[middle]):
            high = middle
        else:
            low = middle + 1
    return low
