"""Subtitles of SubRip (.srt) or WebVTT (.vtt) as sentences and what is between them.

A sentence may go over several lines and cues, whose lines of times stay. A translation
is divided into as many lines again, in proportion to the lines of the source. Notes,
styles and everything else that is not the text of a cue is copied.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from operator import attrgetter, itemgetter
from typing import Any

from transduce.errors import RequestError
from transduce.text.inline_tags import (
    CLOSING_MARKS,
    HAN_OR_KANA,
    OPENERS,
    SENTENCE_MARKS,
    Element,
    LineBorder,
    SentenceTags,
    WordLinks,
    escaped,
    is_within_character,
    is_within_word,
    links_by_place,
    with_tags,
)
from transduce.text.languages import base
from transduce.text.splitting import (
    CLOSERS,
    STOPS,
    Segment,
    has_letter,
    sentence_spans,
    space_between,
    space_of,
)

MAX_PAUSE_S = 2.0
"""Longest time between two cues that one sentence goes over."""
MAX_NESTED = 128
"""Maximum number of tags of a sentence that may have partners."""
MAX_LINES = 6
"""Maximum number of lines without a stop at their end that are read together, as many
subtitles have no stops."""
TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2}[,.]\d{1,3})"
TIMES = re.compile(rf"\s*{TIME}[ \t]*-->[ \t]*{TIME}")
LINE_BREAK = re.compile(r"\r\n|\r|\n")
LINE = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")
NUMBER = re.compile(r"\s*\d+\s*\Z")
TAG = re.compile(r"</?[A-Za-z][^<>\r\n]*>|<\d[\d:.]*>|\{\\[^{}\r\n]*\}")
"""Pattern of a tag: <i>, </i>, <v Ann>, a time within a cue, or {\\an8}."""
NAME = re.compile(r"<(/?)([A-Za-z]+)")
REFERENCE = re.compile(r"&(?:#\w{1,8}|\w{1,32});|.", re.DOTALL)
"""Pattern of a character of WebVTT, which may be written as a reference."""
MARKS = "♪♫♬♩#"
"""Signs around sung text."""
BEFORE_TEXT = re.compile(
    rf"(?:\s|{TAG.pattern}|[-–—‐]+(?=\s*[^\W\d])|>{{2,3}}|[{MARKS}](?=\W))*"
)
"""Pattern of what stands before the text of a line: a dash or >> of a new speaker, a
sign of singing, tags and spaces."""
STARTS_ANEW = re.compile(rf"[-–—‐>{MARKS}]|<v[\s.>]|[\[(]\Z")
"""Pattern of what stands before text that continues no other line."""
AT_STOP = re.compile(rf"{STOPS}[{CLOSERS}]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Line of a cue's text, without what stands around the text."""

    start: int
    end: int
    """Span of the text in the document."""
    starts_anew: bool
    """Whether its text continues that of no other line."""
    ends_block: bool
    """Whether no other line continues its text."""


@dataclass(slots=True)
class _Block:
    """Lines that are read together."""

    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Span in the document of each character of the text."""
    tags: list[tuple[int, str]] = field(default_factory=list)
    """Tags within the lines, each with its place in the text."""
    borders: list[tuple[int, int]] = field(default_factory=list)
    """Span in the text of the space, which may be none, between two lines."""


def split_subtitles(
    document: str,
    language: str | None = None,
    *,
    splits_lines: bool = True,
    is_escaped: bool = False,
) -> list[Segment]:
    """Split subtitles into segments that join to them again.

    Sentences end by the rules of the language, a BCP 47 tag. Without `splits_lines`
    each line of text is one sentence. `is_escaped` is whether the text has references,
    as `&amp;` in WebVTT. Raises `RequestError` for text without a line of times.
    """
    code = None if language is None else base(language)
    cues = list(_cues(document, is_vtt=is_escaped))
    is_header = document.lstrip("\ufeff").startswith("WEBVTT")
    if not (cues or is_header) and document.strip():
        raise RequestError(
            "Subtitles must have lines of times, such as 00:00:01,000 --> "
            "00:00:02,000, but have none; choose another format."
        )
    segments: list[Segment] = []
    place = 0
    for several in _blocks(document, cues, joins_lines=splits_lines):
        block = _block_of(document, several, is_escaped)
        for segment, start, end in _sentences(document, block, code, splits_lines):
            between = document[place:start]
            if between and not between.strip(" \u3000"):
                segments += space_of(document, place, start)
            elif between:
                segments.append(Segment(between))
            elif segments:
                segment = replace(segment, is_adjacent=True)
            segments.append(segment)
            place = end
    return [*segments, Segment(document[place:])] if place < len(document) else segments


def written_subtitles(
    segment: Segment,
    translation: str,
    links: WordLinks | None = None,
    *,
    is_escaped: bool = False,
) -> str:
    """Return a segment with the translation of its sentence, and its tags and times.

    Links place the tags of a sentence on one line; otherwise relative position does. A
    sentence without a translation is copied.
    """
    sentence, tags = segment.sentence, segment.tags or ()
    if sentence is None or not translation.strip():
        return segment.text
    write: Callable[[str], str] = escaped if is_escaped else str
    borders = [each for each in tags if isinstance(each, LineBorder)]
    if not borders:
        links = links or links_by_place(sentence, translation, tags)
        return with_tags(tags, sentence, translation, links, write)
    others = [each for each in tags if not isinstance(each, LineBorder)]
    starts = [0, *(each.end for each in borders)]
    ends = [*(each.start for each in borders), len(sentence)]
    places = divided(translation, [each.end / len(sentence) for each in borders])
    parts: list[str] = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        source = sentence[start:end]
        first = bisect_left(others, start, key=_start)
        last = bisect_right(others, end, lo=first, key=_start)
        own = [_moved(each, -start) for each in others[first:last]]
        part = translation[places[number] : places[number + 1]].strip()
        if number:
            border = borders[number - 1].opening
            is_empty = not part and "-->" not in border
            # A blank line would end the cue.
            parts.append(LINE_BREAK.sub("", border) if is_empty else border)
        if own:
            by_place = links_by_place(source, part, tuple(own))
            parts.append(with_tags(tuple(own), source, part, by_place, write))
        else:
            parts.append(write(part))
    return "".join(parts)


def divided(text: str, shares: Sequence[float]) -> list[int]:
    """Return the borders of the parts into which to cut a text, both of its ends too.

    Each share of the text, in ascending order, leads to the nearest place between two
    words, after a mark rather than elsewhere. No part is empty if there are words
    enough; otherwise the last ones are.
    """
    found, places = [0], list(_places_to_cut(text))
    first = 0
    for number, share in enumerate(shares):
        if first == len(places):
            found.append(len(text))
            continue
        last = max(len(places) - (len(shares) - number - 1), first + 1)
        best = _best_cut(text, places, first, last, share * len(text))
        found.append(places[best])
        first = best + 1
    return [*found, len(text)]


def _best_cut(
    text: str, places: Sequence[int], first: int, last: int, wanted: float
) -> int:
    """Return the number of the place to cut that is best for a wanted one.

    It is from `first`, and below `last`. A mark before a place halves its distance, so
    that none is better that is more than twice as far as the nearest.
    """
    after = bisect_left(places, wanted, first, last)
    beside = places[max(after - 1, first) : min(after + 1, last)]
    most = 2 * min(abs(place - wanted) for place in beside)
    candidates = range(
        bisect_left(places, wanted - most, first, last),
        bisect_right(places, wanted + most, first, last),
    )

    def distance(i: int) -> float:
        before = text[max(places[i] - 2, 0) : places[i]].rstrip()[-1:]
        return abs(places[i] - wanted) * (0.5 if before in SENTENCE_MARKS else 1)

    return min(candidates, key=distance)


def _places_to_cut(text: str) -> Iterator[int]:
    """Yield the places between two words, or two characters of Chinese or Japanese."""
    for place in range(1, len(text)):
        before, after = text[place - 1], text[place]
        if before.isspace():
            if not after.isspace():
                yield place
        elif (
            (HAN_OR_KANA.match(before) or HAN_OR_KANA.match(after))
            and not after.isspace()
            and before not in OPENERS
            and not CLOSING_MARKS.match(text, place)
            and not is_within_word(text, place)
            and not is_within_character(text, place)
        ):
            yield place


def _moved(element: Element, by: int) -> Element:
    children = tuple(_moved(each, by) for each in element.children)
    return replace(
        element, start=element.start + by, end=element.end + by, children=children
    )


def _cues(document: str, *, is_vtt: bool) -> list[list[_Line]]:
    """Return the lines of text of each cue; an empty list stands for a pause."""
    rows = [(match.start(1), match[1]) for match in LINE.finditer(document)]
    cues: list[list[_Line]] = []
    is_text, previous_end = False, 0.0
    for number, (start, row) in enumerate(rows):
        if times := TIMES.match(row):
            begin, end = _seconds(*times.groups()[:3]), _seconds(*times.groups()[3:])
            if begin - previous_end > MAX_PAUSE_S:
                cues.append([])
            cues.append([])
            is_text, previous_end = True, end
        elif is_vtt and not row.strip():
            is_text = False
        elif is_text and not _is_number_of_cue(rows, number):
            cues[-1] += _line_of(start, row)
    return cues


def _is_number_of_cue(rows: Sequence[tuple[int, str]], number: int) -> bool:
    """Return whether a row is a number, and the next one a line of times."""
    is_before_times = number + 1 < len(rows) and TIMES.match(rows[number + 1][1])
    return bool(is_before_times) and NUMBER.match(rows[number][1]) is not None


def _seconds(hours: str | None, minutes: str, seconds: str) -> float:
    whole = 3600 * int(hours or 0) + 60 * int(minutes)
    return whole + float(seconds.replace(",", "."))


def _line_of(start: int, row: str) -> list[_Line]:
    """Return the line of a row, or none if it has no text."""
    before = BEFORE_TEXT.match(row)
    begin = before.end() if before else 0
    end = _end_of_text(row, begin)
    if begin == end:
        return []
    around = row[:begin] + (row[begin] if row[begin] in "[(" else "")
    closes = row[end - 1] in "])" or any(sign in row[end:] for sign in MARKS)
    return [
        _Line(
            start=start + begin,
            end=start + end,
            starts_anew=STARTS_ANEW.search(around) is not None,
            ends_block=closes,
        )
    ]


def _end_of_text(row: str, begin: int) -> int:
    """Return where tags, spaces and signs of singing begin that end a row."""
    end = len(row)
    while begin < end:
        last = row[end - 1]
        if last.isspace() or last in MARKS:
            end -= 1
            continue
        start = row.rfind("<" if last == ">" else "{", begin, end)
        if last not in ">}" or start < 0 or not TAG.fullmatch(row, start, end):
            break
        end = start
    return end


def _blocks(
    document: str, cues: Sequence[list[_Line]], *, joins_lines: bool
) -> Iterator[list[_Line]]:
    """Yield the lines that are read together."""
    block: list[_Line] = []
    num_open = 0
    for cue in cues:
        if not cue and block:  # a pause, or a cue without text
            yield block
            block = []
        for line in cue:
            is_apart = line.starts_anew or num_open == MAX_LINES or not joins_lines
            if block and (is_apart or block[-1].ends_block):
                yield block
                block = []
            if not block:
                num_open = 0
            block.append(line)
            at_stop = AT_STOP.search(document, max(line.start, line.end - 9), line.end)
            num_open = 0 if at_stop else num_open + 1
    if block:
        yield block


def _block_of(document: str, lines: Sequence[_Line], is_escaped: bool) -> _Block:
    """Return the text of lines, without their tags."""
    block = _Block()
    characters: list[str] = []
    for number, line in enumerate(lines):
        own = _characters(document, line, is_escaped)
        if number:
            before = "".join(characters[-9:])
            after = "".join(character for character, _, _ in own[:9])
            space = space_between(before, after)
            at = len(characters)
            block.borders.append((at, at + len(space)))
            characters += space
            block.spans += [(line.start, line.start)] * len(space)
        for character, start, end in own:
            if start < end:
                characters.append(character)
                block.spans.append((start, end))
            else:
                block.tags.append((len(characters), character))
    block.text = "".join(characters)
    return block


def _characters(
    document: str, line: _Line, is_escaped: bool
) -> list[tuple[str, int, int]]:
    """Return the characters of a line with their spans, and its tags without."""
    found: list[tuple[str, int, int]] = []
    place = line.start
    for tag in [*TAG.finditer(document, line.start, line.end), None]:
        end = line.end if tag is None else tag.start()
        if is_escaped:
            for match in REFERENCE.finditer(document, place, end):
                shown = unescape(match[0]) if len(match[0]) > 1 else match[0]
                found += [(each, *match.span()) for each in shown]
        else:
            found += [(document[i], i, i + 1) for i in range(place, end)]
        if tag is not None:
            found.append((tag[0], tag.start(), tag.start()))
            place = tag.end()
    return found


def _sentences(
    document: str, block: _Block, language: str | None, splits_lines: bool
) -> Iterator[tuple[Segment, int, int]]:
    """Yield the segments of a block's sentences with their spans in the document."""
    spans = sentence_spans(block.text, language, splits_lines=splits_lines)
    for begin, stop in spans:
        start, end = block.spans[begin][0], block.spans[stop - 1][1]
        text, sentence = document[start:end], block.text[begin:stop]
        if not has_letter(sentence):
            yield Segment(text, is_kept=True), start, end
            continue
        borders = [
            LineBorder(
                start=at - begin,
                end=after - begin,
                opening=document[block.spans[at - 1][1] : block.spans[after][0]],
            )
            for at, after in _within(block.borders, begin, stop)
        ]
        tags = [(at - begin, tag) for at, tag in _within(block.tags, begin, stop)]
        elements = (*borders, *_elements(tags, borders))
        ordered = tuple(sorted(elements, key=lambda each: each.start))
        yield Segment(text, sentence, ordered or None), start, end


def _within(
    placed: list[tuple[int, Any]], begin: int, end: int
) -> list[tuple[int, Any]]:
    """Return what has its place between two others, without what is at them."""
    first = bisect_right(placed, begin, key=itemgetter(0))
    return placed[first : bisect_left(placed, end, lo=first, key=itemgetter(0))]


def _elements(
    tags: Sequence[tuple[int, str]], borders: Sequence[LineBorder]
) -> SentenceTags:
    """Build elements from the tags of a sentence, each within one line.

    A tag without a partner on its line stands by itself, and so does each of too many.
    Tags that are open within another end with it, such as <br>.
    """
    partners: dict[int, int] = {}
    opened: list[tuple[str, int]] = []
    line = 0
    for i, (at, tag) in enumerate(tags[:MAX_NESTED]):
        if line != (line := bisect_left(borders, at, key=_end)):
            opened.clear()
        name = NAME.match(tag)
        if name and not name[1]:
            opened.append((name[2], i))
        elif name:
            same = [k for k, (each, _) in enumerate(opened) if each == name[2]]
            if same:
                partners[opened[same[-1]][1]] = i
                del opened[same[-1] :]
    return _nested(tags, partners, 0, len(tags))


_start, _end = attrgetter("start"), attrgetter("end")


def _nested(
    tags: Sequence[tuple[int, str]], partners: dict[int, int], first: int, last: int
) -> SentenceTags:
    """Build the elements of a part of the tags."""
    found: list[Element] = []
    while first < last:
        at, tag = tags[first]
        if (partner := partners.get(first)) is None:
            found.append(Element(start=at, end=at, opening=tag))
        else:
            end, closing = tags[partner]
            children = _nested(tags, partners, first + 1, partner)
            found.append(
                Element(
                    start=at, end=end, opening=tag, closing=closing, children=children
                )
            )
        first = (first if partner is None else partner) + 1
    return tuple(found)
