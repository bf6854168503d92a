"""HTML as sentences and the markup between them.

A sentence crosses inline tags, but not the border of a block, and each run of white
space in it becomes one space, as a browser shows it. Everything that is not translated,
such as attributes, comes back character by character.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from transduce.text.html_pieces import RUBY_PARTS, Piece, Source, html_pieces
from transduce.text.inline_tags import (
    Element,
    SentenceTags,
    WordLinks,
    links_by_place,
    with_tags,
)
from transduce.text.languages import (
    INVISIBLE,
    UNSPACED_LETTER,
    ZERO_WIDTH_SPACE,
    base,
    without_invisible,
)
from transduce.text.splitting import (
    CLOSERS,
    STOPS,
    Segment,
    has_letter,
    has_written_space,
    is_wide_space,
    sentence_spans,
)

HIDDEN = RUBY_PARTS | {"", "noembed", "noscript", "script", "style", "template", "wbr"}
"""Names of elements that show nothing where they stand; comments have none."""
EMPTY_ANCHOR = "a"
"""Name of an element that shows nothing if it is empty; other empty elements are often
pictures by their style."""
MAX_RAISED = 32
"""Maximum length of a `sup` that may be the number of a note."""
MAX_CLOSERS = 8
"""Maximum number of closing signs between a stop and a note."""
SPACES = " \t\n\f\r"
"""White space of HTML; a browser shows a run of it as one space."""
WORD_OR_SPACE = re.compile(f"[{SPACES}]+|[{INVISIBLE}]+|[^{SPACES}{INVISIBLE}]+")
MARK = re.compile(r"[^\w\s]")
RAISED = "\u00b9"
NOTE = re.compile(r"(?:[0-9\s,:–*†‡§¶#-]|\[[^\[\]]*\]|\([0-9]{1,3}\))+")
"""Pattern of text above the line that is the number or the sign of a note, not letters
as in 1st."""
BEFORE_NOTE = re.compile(rf"{STOPS}[{CLOSERS}]*\Z")
"""Pattern of text that ends a sentence, before a note."""
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
        begin = place
        for segment, start, end in _segments_of(source, block, code, splits_lines):
            if place < start:
                spaces = block.spaces_within(place, start) if place > begin else []
                segments += _between(source, place, start, spaces)
            segments.append(segment)
            place = end
    if place < len(source.text):
        segments.append(Segment(source.cut(place, len(source.text))))
    return segments


def _between(
    source: Source, start: int, end: int, spaces: Sequence[tuple[int, int]]
) -> Iterator[Segment]:
    """Segments of the markup between two sentences, with the spaces in it apart."""
    for begin, stop in [*spaces, (end, end)]:
        if start < begin:
            text = source.cut(start, begin)
            yield Segment(text, is_space=is_wide_space(text))
        if begin < stop:
            yield Segment(source.cut(begin, stop), is_space=True)
        start = stop


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
        links = links_by_place(segment.sentence, translation, segment.tags or ())
    return with_tags(segment.tags or (), segment.sentence, translation, links)


class _TagRun:
    """Tags between two texts, or between a text and the white space after it."""

    def __init__(self) -> None:
        self._last: Piece | None = None
        """Last tag, without those of elements that never show anything."""
        self._edges: tuple[Piece, Piece] | None = None
        """Outermost start tag that opens before the first picture, and the last tag so
        far; None before the first picture."""
        self._first_start: Piece | None = None
        """Outermost start tag since the last end tag: the next picture may be in its
        element."""

    def add(self, tag: Piece) -> bool:
        """Add the next tag; return whether it is a picture, or ends one."""
        if tag.name in HIDDEN:
            return False
        last, self._last = self._last, tag
        if tag.kind == "start":
            self._first_start = self._first_start or tag
            return False
        is_empty = last is not None and (last.kind, last.name) == ("start", tag.name)
        is_picture = tag.kind != "end" or (is_empty and tag.name != EMPTY_ANCHOR)
        if self._edges is not None:
            self._edges = self._edges[0], tag
        elif is_picture:
            self._edges = self._first_start or tag, tag
        else:
            self._first_start = None
        return is_picture

    def take_edges(self) -> tuple[Piece, Piece] | None:
        """Return the first and the last tag around a picture, and begin anew.

        White space stands before the first and follows the last. None without a picture
        since the last white space.
        """
        edges = self._edges
        if edges is not None:
            self._last, self._edges, self._first_start = None, None, None
        return edges


@dataclass
class _Block:
    """Block of text with the tags in it."""

    parts: list[str] = field(default_factory=list)
    """Parts of the text, in order."""
    length: int = 0
    starts: list[int] = field(default_factory=list)
    """Offset in the text of each part: a word, a space or a reference."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Span of each part in the source."""
    tags: list[Piece] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    """Offsets in the source of tags that show something without text."""
    spaced_before: set[int] = field(default_factory=set)
    """Offsets in the source of the first tags around pictures with space on both
    sides. The text has only the space before them."""
    spaced_after: set[int] = field(default_factory=set)
    """Offsets in the source of the last tags around such pictures."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Spans in the source of white space that the text lacks, as it follows other white
    space."""
    copied: list[tuple[int, int]] = field(default_factory=list)
    """Spans of the text that belong to copied elements."""
    raised: list[tuple[int, int]] = field(default_factory=list)
    """Spans of the text that are above the line, as the numbers of notes are."""
    _run: _TagRun = field(default_factory=_TagRun)

    def add(self, piece: Piece) -> None:
        """Add the next piece."""
        if piece.kind == "copied":
            self._add_copied(piece)
        elif piece.kind != "text":
            self._add_tag(piece)
        elif len(piece.text) == piece.end - piece.start:
            for match in WORD_OR_SPACE.finditer(piece.text):
                start, end = match.span()
                self._add(match[0], piece.start + start, piece.start + end)
        elif piece.text:
            self._add(piece.text, piece.start, piece.end)

    def _add_tag(self, piece: Piece) -> None:
        self.tags.append(piece)
        if self._run.add(piece):
            self.pictures.append(piece.start)
        if piece.name == "sup":
            self._add_raised(is_end=piece.kind == "end")

    def _add_raised(self, *, is_end: bool) -> None:
        if not is_end:
            self.raised.append((self.length, self.length))
        elif self.raised and self.length - self.raised[-1][0] <= MAX_RAISED:
            self.raised[-1] = (self.raised[-1][0], self.length)

    def _add_copied(self, piece: Piece) -> None:
        text = without_invisible(" ".join(piece.text.split()))
        starts_apart = not self.parts or self.parts[-1].endswith(" ")
        if piece.text[:1].isspace() and not starts_apart:
            text = f" {text}"
        if piece.text[-1:].isspace() and text.strip():
            text = f"{text} "
        if not text:
            self._add_tag(piece)
            return
        self.tags.append(piece)
        if not text.strip():
            self.pictures.append(piece.start)
        start = self.length
        # One part, as no sentence ends within it.
        self._append(text, piece.start, piece.end)
        self.copied.append((start, self.length))

    def _add(self, text: str, start: int, end: int) -> None:
        if text.strip(SPACES):
            if shown := self._without_invisible(text):
                self._append(shown, start, end)
        elif self.parts and not self.parts[-1].endswith(" "):
            self._append(" ", start, end)
        elif self.parts:
            self.left_out.append((start, end))
            if edges := self._run.take_edges():
                self.spaced_before.add(edges[0].start)
                self.spaced_after.add(edges[1].start)

    def _without_invisible(self, text: str) -> str:
        """Return a part, of which nothing or only spaces of width zero are left if it
        shows nothing: see the function of this name."""
        if text.strip(INVISIBLE):
            return text
        letter = "".join(self.parts[-1:])[-1:]
        is_unspaced = UNSPACED_LETTER.match(letter) is not None
        is_kept = is_unspaced or letter == ZERO_WIDTH_SPACE
        return ZERO_WIDTH_SPACE * text.count(ZERO_WIDTH_SPACE) if is_kept else ""

    def _append(self, text: str, start: int, end: int) -> None:
        self.starts.append(self.length)
        self.spans.append((start, end))
        self.parts.append(text)
        self.length += len(text)
        self._run = _TagRun()

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

    def spaces_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Spans of the space between two sentences, in the source between them.

        There are none if the texts around it are of scripts without it, or if something
        is shown between the sentences, such as a picture.
        """
        before, after = self.text_at(start), self.text_at(end)
        if self.text[before:after] != " ":
            return []
        if bisect_left(self.pictures, start) < bisect_left(self.pictures, end):
            return []
        if not has_written_space(self.text, before, after):
            return []
        written = self.spans[bisect_left(self.spans, (start, start))]
        first = bisect_left(self.left_out, written)
        last = bisect_left(self.left_out, (end, end), lo=first)
        return [written, *self.left_out[first:last]]

    def _is_as_read(self, number: int) -> bool:
        start, end = self.spans[number]
        return len(self.parts[number]) == end - start

    @cached_property
    def text(self) -> str:
        """Text of the complete block, with one space for each run of white space."""
        return "".join(self.parts)

    def readable(self) -> str:
        """Text for sentence splitting, as long as the text.

        Marks of copied elements are masked, and notes above the line after a stop are
        in superscript digits, as in plain text.
        """
        parts, place, end_of_note = list[str](), 0, -1
        for start, end, is_raised in self._masked():
            between, text = self.text[place:start], self.text[start:end]
            if not is_raised:
                masked = MARK.sub("x", text)
            elif not NOTE.fullmatch(text):
                continue
            elif place == end_of_note and not between.strip():
                masked, between = RAISED * (end - place), ""
            elif BEFORE_NOTE.search(between[-MAX_CLOSERS - 1 :]):
                masked = RAISED * len(text)
            else:
                continue
            parts += [between, masked]
            place = end
            end_of_note = end if is_raised else -1
        return "".join([*parts, self.text[place:]])

    def _masked(self) -> Iterator[tuple[int, int, bool]]:
        """Spans that are masked, in order, with whether they are above the line."""
        spans = [(*span, False) for span in self.copied]
        spans += [(*span, True) for span in self.raised]
        place = 0
        for start, end, is_raised in sorted(spans):
            if place <= start < end:
                yield start, end, is_raised
                place = end


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
    """Sentence of a block, with its spans in the block's text and in the source."""

    text_start: int
    text_end: int
    source_start: int
    source_end: int
    is_kept: bool
    """Whether it has nothing to translate."""

    def is_apart(self, block: _Block, tag: Piece) -> bool:
        """Whether other text stands between the sentence and a tag."""
        at = block.text_at(tag.start)
        between = block.text[at : self.text_start] or block.text[self.text_end : at]
        return bool(between.strip())


_start = attrgetter("start")


class _PlacedSegment(NamedTuple):
    """Segment with its span in the source."""

    segment: Segment
    start: int
    end: int


def _segments_of(
    source: Source, block: _Block, language: str | None, splits_lines: bool
) -> list[_PlacedSegment]:
    """Segments of the sentences of a block."""
    sentences = _sentences(block, language, splits_lines)
    borders = [*(each.source_start for each in sentences[1:]), len(source.text)]
    found: list[_PlacedSegment] = []
    previous_end: int | None = None
    first_tag = 0
    for sentence, border in zip(sentences, borders, strict=False):
        last_tag = bisect_left(block.tags, border, lo=first_tag, key=_start)
        tags = block.tags[first_tag:last_tag]
        if sentence.is_kept:
            start, end = sentence.source_start, sentence.source_end
            copied = Segment(source.cut(start, end), is_kept=True)
            own = [_PlacedSegment(copied, start, end)]
        else:
            own = _segments(source, block, sentence, _taken(block, sentence, tags))
        if sentence.text_start == previous_end:
            own = _adjacent(source, own, tags)
        found += own
        previous_end = sentence.text_end
        # Tags that a segment contains are not those of the next sentence.
        first_tag = bisect_left(block.tags, found[-1].end, lo=first_tag, key=_start)
    return found


def _sentences(
    block: _Block, language: str | None, splits_lines: bool
) -> list[_Sentence]:
    """Sentences of a block; none if no sentence of it has a letter."""
    spans = sentence_spans(block.readable(), language, splits_lines=splits_lines)
    sentences = [
        _Sentence(
            start,
            end,
            *block.source_of(start, end),
            is_kept=not _has_own_letter(block, start, end),
        )
        for start, end in spans
    ]
    return [] if all(each.is_kept for each in sentences) else sentences


def _adjacent(
    source: Source, own: list[_PlacedSegment], tags: Sequence[Piece]
) -> list[_PlacedSegment]:
    """Mark where space belongs before a sentence: before the tags that open there."""
    [first, *others] = own
    segment = first.segment
    if not (segment.is_sentence or segment.is_kept):
        return own
    opened = (t.start for t in tags if t.start < first.start and t.kind != "end")
    if (opening := next(opened, None)) is None:
        return [first._replace(segment=replace(segment, is_adjacent=True)), *others]
    copied = Segment(
        source.cut(opening, first.start), is_adjacent=True, is_kept=segment.is_kept
    )
    return [_PlacedSegment(copied, opening, first.start), *own]


def _has_own_letter(block: _Block, begin: int, end: int) -> bool:
    """Whether a sentence has a letter outside copied elements."""
    place, text = begin, block.text
    first = bisect_left(block.copied, (begin, begin))
    if first and block.copied[first - 1][1] > begin:
        first -= 1  # the sentence begins after the space at the edge of the element
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
    first = bisect_left(tags, sentence.source_start, key=_start)
    last = bisect_left(tags, sentence.source_end, key=_start)
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
) -> list[_PlacedSegment]:
    """Sentence with its tags, or the texts between the tags if they are not nested."""
    start = min([sentence.source_start, *(tag.start for tag in tags[:1])])
    end = max([sentence.source_end, *(tag.end for tag in tags[-1:])])
    text = block.text[sentence.text_start : sentence.text_end]
    elements = _elements(_placed_tags(source, block, sentence, tags), len(text))
    whole = source.cut(start, end)
    if elements is not None:
        return [_PlacedSegment(Segment(whole, text, elements), start, end)]
    found = list(_texts_between(source, block, sentence, tags))
    return found or [_PlacedSegment(Segment(whole), start, end)]


def _texts_between(
    source: Source, block: _Block, sentence: _Sentence, tags: Sequence[Piece]
) -> Iterator[_PlacedSegment]:
    """Texts between the tags of a sentence, each to be translated by itself."""
    begin = sentence.text_start
    ends = [*(block.text_at(tag.start) for tag in tags), sentence.text_end]
    begins = [*(block.text_at(tag.end) for tag in tags), sentence.text_end]
    for end, next_begin in zip(ends, begins, strict=True):
        text = block.text[begin:end]
        if has_letter(text):
            first = begin + len(text) - len(text.lstrip())
            last = begin + len(text.rstrip())
            place = block.source_of(first, last)
            yield _PlacedSegment(Segment(source.cut(*place), text.strip()), *place)
        begin = max(next_begin, begin)


class _PlacedTag(NamedTuple):
    """Tag with its place in its sentence."""

    kind: str
    name: str
    source: str
    """Source of the tag, with the white space of HTML between it and the sentence."""
    margin: str
    """Source of wider space between it and the sentence, which a browser shows."""
    at: int
    end: int
    has_space_before: bool
    """Whether it stands after the first of two spaces around a picture."""
    has_space_after: bool
    """Whether it stands before the second of them."""


def _placed_tags(
    source: Source, block: _Block, sentence: _Sentence, tags: Sequence[Piece]
) -> list[_PlacedTag]:
    """Tags with their places in a sentence, in order."""
    placed = []
    length = sentence.text_end - sentence.text_start
    for i, tag in enumerate(tags):
        start, stop = tag.start, tag.end
        margin = ""
        if stop <= sentence.source_start:
            is_last = i + 1 == len(tags)
            following = sentence.source_start if is_last else tags[i + 1].start
            stop = min(following, sentence.source_start)
            if tag.kind == "start" and source.text[tag.end : stop].strip(SPACES):
                margin, stop = source.cut(tag.end, stop), tag.end
        elif start >= sentence.source_end:
            start = max(tags[i - 1].end if i else 0, sentence.source_end)
            if tag.kind == "end" and source.text[start : tag.start].strip(SPACES):
                margin, start = source.cut(start, tag.start), tag.start
        place = block.text_at(tag.start) - sentence.text_start
        at = end = min(max(place, 0), length)
        if tag.kind == "copied" and tag.text:
            place = block.text_at(tag.end) - sentence.text_start
            end = min(max(place, at), length)
        has_spaces = tag.start in block.spaced_before, tag.start in block.spaced_after
        text = source.cut(start, stop)
        placed.append(
            _PlacedTag(tag.kind, tag.name, text, margin, at, end, *has_spaces)
        )
    return placed


def _elements(tags: Sequence[_PlacedTag], length: int) -> SentenceTags | None:
    """Build elements from tags; None if they are not nested, or too many.

    An end tag without a start tag ends an element that began before the sentence, and
    contains all that precedes the tag. A start tag without an end tag begins an element
    that ends after the sentence.
    """
    if len(tags) > MAX_TAGS:
        return None
    # Elements around the next tag with their names and the children so far. The first
    # one is for all that began before the sentence.
    before = Element(start=0, end=length, opening="", begins_before=True)
    levels: list[tuple[Element, str, list[Element]]] = [(before, "", [])]
    for tag in tags:
        element, name, children = levels[-1]
        if tag.kind == "start":
            opened = Element(
                start=tag.at,
                end=length,
                opening=tag.source,
                indentation=tag.margin,
                ends_after=True,
                has_space_before=tag.has_space_before,
            )
            levels.append((opened, tag.name, []))
        elif tag.kind != "end":
            single = Element(
                start=tag.at,
                end=tag.end,
                opening=tag.source,
                is_copied=tag.end > tag.at,
                has_space_before=tag.has_space_before,
                has_space_after=tag.has_space_after,
            )
            children.append(single)
        elif element is not before and name != tag.name:
            return None
        else:
            ended = replace(
                element,
                end=tag.at,
                closing=tag.source,
                final_space=tag.margin,
                children=tuple(children),
                ends_after=False,
                has_space_after=tag.has_space_after,
            )
            levels.pop()
            if not levels:  # it contains all elements so far
                levels.append((before, "", []))
            levels[-1][2].append(ended)
    while len(levels) > 1:
        element, _, children = levels.pop()
        levels[-1][2].append(replace(element, children=tuple(children)))
    return tuple(levels[0][2])
