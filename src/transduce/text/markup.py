"""HTML as sentences and the markup between them.

A sentence crosses inline tags, but not the border of a block, and each run of white
space in it becomes one space, as a browser shows it. Everything that is not translated,
such as attributes, comes back character by character.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from transduce.text.html_pieces import Piece, Source, html_pieces
from transduce.text.inline_tags import (
    Element,
    SentenceTags,
    WordLinks,
    links_by_place,
    with_tags,
)
from transduce.text.languages import base
from transduce.text.splitting import Segment, has_letter, sentence_spans

SPACES = " \t\n\f\r"
"""White space of HTML, of which a browser shows a run as one space."""
WORD_OR_SPACE = re.compile(f"[{SPACES}]+|[^{SPACES}]+")
MARK = re.compile(r"[^\w\s]")
MAX_TAGS = 128
"""Maximum number of inline tags of a sentence. With more, each text between two tags is
translated separately, so that time stays linear in the text."""


def split_html(
    html: str, language: str | None = None, *, splits_lines: bool = True
) -> list[Segment]:
    """Split HTML into segments that join to it again; sentences are unescaped.

    Sentences end by the rules of the language, a BCP 47 tag. Without `splits_lines`
    each block of text is one sentence.
    """
    code = None if language is None else base(language)
    source = Source(html)
    segments: list[Segment] = []
    place = 0
    for block in _blocks(html_pieces(source)):
        for segment, start, end in _sentences(source, block, code, splits_lines):
            if place < start:
                segments.append(Segment(source.cut(place, start)))
            segments.append(segment)
            place = end
    if place < len(source.text):
        segments.append(Segment(source.cut(place, len(source.text))))
    return segments


def written_html(
    segment: Segment, translation: str, links: WordLinks | None = None
) -> str:
    """Segment with the escaped translation of its sentence, and its tags.

    Links determine the places of the tags; without them, words are linked by relative
    position. A sentence without a translation is copied.
    """
    if segment.sentence is None or not translation.strip():
        return segment.text
    if links is None:
        links = links_by_place(segment.sentence, translation)
    return with_tags(segment.tags or (), segment.sentence, translation, links)


def join_html(
    segments: Sequence[Segment],
    translations: Sequence[str],
    links: Sequence[WordLinks | None] | None = None,
) -> str:
    """Join segments to HTML with each sentence's translation and links, if known."""
    found = iter(zip(translations, links or [None] * len(translations), strict=True))
    return "".join(
        written_html(each, *next(found)) if each.is_sentence else each.text
        for each in segments
    )


@dataclass(slots=True)
class _Block:
    """Block of text with the tags in it."""

    text: str = ""
    """Text with one space for each run of white space."""
    parts: list[str] = field(default_factory=list)
    """Parts of the text, in order."""
    length: int = 0
    starts: list[int] = field(default_factory=list)
    """Offset in the text of each part: a word, a space or a reference."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Span of each part in the source."""
    tags: list[Piece] = field(default_factory=list)
    copied: list[tuple[int, int]] = field(default_factory=list)
    """Spans of the text that belong to copied elements."""

    def add(self, piece: Piece) -> None:
        """Add the next piece."""
        if piece.kind == "copied":
            self._add_copied(piece)
        elif piece.kind != "text":
            self.tags.append(piece)
        elif len(piece.text) == piece.end - piece.start:
            for match in WORD_OR_SPACE.finditer(piece.text):
                start, end = match.span()
                self._add(match[0], piece.start + start, piece.start + end)
        elif piece.text:
            self._add(piece.text, piece.start, piece.end)

    def _add_copied(self, piece: Piece) -> None:
        self.tags.append(piece)
        start, text = self.length, " ".join(piece.text.split())
        if text:
            # One part, as no sentence ends within it.
            self._append(text, piece.start, piece.end)
            self.copied.append((start, self.length))

    def _add(self, text: str, start: int, end: int) -> None:
        if not text.strip(SPACES):
            if self.parts and not self.parts[-1].endswith(" "):
                self._append(" ", start, end)
            return
        self._append(text, start, end)

    def _append(self, text: str, start: int, end: int) -> None:
        self.starts.append(self.length)
        self.spans.append((start, end))
        self.parts.append(text)
        self.length += len(text)

    def source_of(self, start: int, end: int) -> tuple[int, int]:
        """Span of the source for a span of the text."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_left(self.starts, end) - 1
        begin, stop = self.spans[first][0], self.spans[last][1]
        if self._is_as_read(first):
            begin += start - self.starts[first]
        if self._is_as_read(last):
            stop = self.spans[last][0] + end - self.starts[last]
        return begin, stop

    def text_at(self, source: int) -> int:
        """Offset in the text for a tag at an offset of the source."""
        number = bisect_left(self.spans, (source, source))
        return self.starts[number] if number < len(self.starts) else self.length

    def _is_as_read(self, number: int) -> bool:
        start, end = self.spans[number]
        return len(self.parts[number]) == end - start

    def readable(self) -> str:
        """Text for sentence splitting, with the marks of copied elements masked."""
        text, parts, place = "".join(self.parts), [], 0
        self.text = text
        for start, end in self.copied:
            parts += [text[place:start], MARK.sub("x", text[start:end])]
            place = end
        return "".join([*parts, text[place:]])


def _blocks(pieces: Sequence[Piece]) -> list[_Block]:
    """Blocks of text, separated by block tags and by parts without a piece."""
    blocks = [_Block()]
    place = 0
    for piece in pieces:
        if piece.kind == "block" or piece.start != place:
            blocks.append(_Block())
        if piece.kind != "block":
            blocks[-1].add(piece)
        place = piece.end
    return [block for block in blocks if block.parts]


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Sentence of a block, with its spans in the text and in the source."""

    begin: int
    end: int
    start: int
    stop: int

    def is_apart(self, block: _Block, tag: Piece) -> bool:
        """Whether other text stands between the sentence and a tag."""
        at = block.text_at(tag.start)
        between = block.text[at : self.begin] or block.text[self.end : at]
        return bool(between.strip())


def _sentences(
    source: Source, block: _Block, language: str | None, splits_lines: bool
) -> list[tuple[Segment, int, int]]:
    """Sentences of a block, each with its span in the source."""
    readable = block.readable()
    sentences = [
        _Sentence(begin, end, *block.source_of(begin, end))
        for begin, end in sentence_spans(readable, language, splits_lines=splits_lines)
        if _has_own_letter(block, begin, end)
    ]
    found: list[tuple[Segment, int, int]] = []
    at = 0
    for number, sentence in enumerate(sentences, start=1):
        is_last = number == len(sentences)
        border = len(source.text) if is_last else sentences[number].start
        after = bisect_left(block.tags, border, lo=at, key=_start)
        taken = _taken(block, sentence, block.tags[at:after])
        found += _segments(source, block, sentence, taken)
        at = bisect_left(block.tags, found[-1][2], lo=at, key=_start)
    return found


def _start(piece: Piece) -> int:
    return piece.start


def _has_own_letter(block: _Block, begin: int, end: int) -> bool:
    """Whether a sentence has a letter outside copied elements."""
    place, text = begin, block.text
    first = bisect_left(block.copied, (begin, begin))
    for start, stop in block.copied[first:]:
        if start >= end:
            break
        if has_letter(text[place:start]):
            return True
        place = stop
    return has_letter(text[place:end])


def _taken(block: _Block, sentence: _Sentence, tags: Sequence[Piece]) -> list[Piece]:
    """Tags within a sentence, and those at its edges with a partner within."""
    partners = _partners(tags)
    first = bisect_left(tags, sentence.start, key=_start)
    last = bisect_left(tags, sentence.stop, key=_start)
    begin, end = first, last
    for i in range(first - 1, -1, -1):
        if sentence.is_apart(block, tags[i]):
            break
        if first <= partners[i] < last:
            begin = i
    for i in range(last, len(tags)):
        if sentence.is_apart(block, tags[i]):
            break
        if first <= partners[i] < last:
            end = i + 1
    return list(tags[begin:end])


def _partners(tags: Sequence[Piece]) -> list[int]:
    """Index of each tag's partner: its end tag or its start tag, or -1."""
    partners = [-1] * len(tags)
    waiting: dict[str, list[int]] = {}
    for i, tag in enumerate(tags):
        if tag.kind == "start":
            waiting.setdefault(tag.name, []).append(i)
        elif tag.kind == "end" and waiting.get(tag.name):
            partners[i] = waiting[tag.name].pop()
            partners[partners[i]] = i
    return partners


def _segments(
    source: Source, block: _Block, sentence: _Sentence, tags: list[Piece]
) -> list[tuple[Segment, int, int]]:
    """Sentence with its tags, or the texts between the tags if they are not nested."""
    start = min([sentence.start, *(tag.start for tag in tags[:1])])
    stop = max([sentence.stop, *(tag.end for tag in tags[-1:])])
    text = block.text[sentence.begin : sentence.end]
    elements = _elements(_placed_tags(source, block, sentence, tags), len(text))
    if elements is not None:
        return [(Segment(source.cut(start, stop), text, elements), start, stop)]
    found = []
    begin = sentence.begin
    ends = [block.text_at(tag.start) for tag in tags]
    begins = [block.text_at(tag.end) for tag in tags]
    for end, next_begin in zip(
        [*ends, sentence.end], [*begins, sentence.end], strict=True
    ):
        run = block.text[begin:end]
        if has_letter(run):
            first = begin + len(run) - len(run.lstrip())
            last = begin + len(run.rstrip())
            place = block.source_of(first, last)
            found.append((Segment(source.cut(*place), run.strip()), *place))
        begin = max(next_begin, begin)
    return found or [(Segment(source.cut(start, stop)), start, stop)]


class _PlacedTag(NamedTuple):
    """Tag with its place in its sentence."""

    kind: str
    name: str
    source: str
    """Source of the tag, with the white space between it and the sentence."""
    at: int
    end: int


def _placed_tags(
    source: Source, block: _Block, sentence: _Sentence, tags: Sequence[Piece]
) -> list[_PlacedTag]:
    placed = []
    length = sentence.end - sentence.begin
    for i, tag in enumerate(tags):
        start, stop = tag.start, tag.end
        if stop <= sentence.start:
            following = tags[i + 1].start if i + 1 < len(tags) else sentence.start
            stop = min(following, sentence.start)
        elif start >= sentence.stop:
            start = max(tags[i - 1].end if i else 0, sentence.stop)
        at = min(max(block.text_at(tag.start) - sentence.begin, 0), length)
        end = min(max(block.text_at(tag.end) - sentence.begin, at), length)
        is_text = tag.kind == "copied" and tag.text
        written = source.cut(start, stop)
        end = end if is_text else at
        placed.append(_PlacedTag(tag.kind, tag.name, written, at, end))
    return placed


def _elements(tags: Sequence[_PlacedTag], length: int) -> SentenceTags | None:
    """Build elements from tags; None if they are not nested, or too many."""
    if len(tags) > MAX_TAGS:
        return None
    outer: list[Element] = []
    waiting: list[tuple[_PlacedTag, list[Element]]] = []
    for tag in tags:
        inner = waiting[-1][1] if waiting else outer
        if tag.kind == "start":
            waiting.append((tag, []))
        elif tag.kind != "end":
            inner.append(_element(tag, tag.end, is_copied=tag.end > tag.at))
        elif not waiting:
            begun = Element(
                start=0,
                end=tag.at,
                opening="",
                closing=tag.source,
                children=tuple(outer),
                begins_before=True,
            )
            outer = [begun]
        elif waiting[-1][0].name == tag.name:
            opened, children = waiting.pop()
            element = _element(opened, tag.at, children, closing=tag.source)
            (waiting[-1][1] if waiting else outer).append(element)
        else:
            return None
    while waiting:
        opened, children = waiting.pop()
        element = replace(_element(opened, length, children), ends_after=True)
        (waiting[-1][1] if waiting else outer).append(element)
    return tuple(outer)


def _element(
    tag: _PlacedTag,
    end: int,
    children: Sequence[Element] = (),
    *,
    closing: str = "",
    is_copied: bool = False,
) -> Element:
    return Element(
        start=tag.at,
        end=end,
        opening=tag.source,
        closing=closing,
        children=tuple(children),
        is_copied=is_copied,
    )
