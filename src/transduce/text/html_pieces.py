"""Pieces of an HTML document: its texts, and the tags around and within them.

`turbohtml` parses as the HTML standard says, in time linear in the text, and records
where each tag stood. Its tree decides the kind of the text between two tags; the
library's tokenizer cuts that text into pieces, words and tags. Everything that is not
certainly text to translate is copied: scripts, styles, code, foreign content (SVG
and MathML, but for HTML within it), truncated tags.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import turbohtml
from turbohtml import Element as HtmlElement
from turbohtml import Namespace, Node, TokenType

PieceKind = Literal["text", "start", "end", "empty", "block", "copied"]
"""Kind of a piece: text; an inline start or end tag; an inline element without content;
a tag that separates blocks; a copied inline element."""

BLOCKS = frozenset({
    "address", "article", "aside", "audio", "base", "blockquote", "body", "br",
    "button", "canvas", "caption", "center", "col", "colgroup", "datalist", "dd",
    "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head",
    "header", "hgroup", "hr", "html", "legend", "li", "link", "listing", "main", "map",
    "menu", "meta", "nav", "noframes", "object", "ol", "optgroup", "option", "p",
    "param", "plaintext", "pre", "search", "section", "select", "source", "summary",
    "table", "tbody", "td", "textarea", "tfoot", "th", "thead", "title", "tr", "track",
    "ul", "video", "xmp",
})  # fmt: skip
"""Elements that no sentence crosses; all others are inline (HTML, 15.3)."""
VOID = frozenset({
    "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img",
    "input", "keygen", "link", "meta", "param", "source", "track", "wbr",
})  # fmt: skip
CODE = frozenset({
    "code", "kbd", "samp", "var", "pre", "listing", "xmp", "plaintext",
})  # fmt: skip
RAW_TEXT = frozenset({
    "iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style",
    "textarea", "title", "xmp",
})  # fmt: skip
"""Elements whose content is not markup; only the title's is translated."""
RUBY = frozenset({"rp", "rt", "rtc"})
"""Readings above the characters of a `ruby`: its text in another script."""
RUBY_PARTS = RUBY | {"rb"}
"""Parts of a `ruby` whose end tags may be left out: readings, and characters."""
UNREADABLE = RAW_TEXT | RUBY | {"template", "object", "canvas", "svg", "math"}
"""Elements whose text does not belong to the sentence around them."""
RAW_START = re.compile(rf"<(?:{'|'.join(RAW_TEXT)})[\s/>]", re.IGNORECASE)
CHARACTER_DATA = "<![CDATA["
HTML_ENCODINGS = ("text/html", "application/xhtml+xml")
FORMATTING = frozenset({
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike",
    "strong", "tt", "u",
})  # fmt: skip
"""Elements that the parser reopens before text if another tag closed them."""
NO_TAG, NO_TAG_COMMENT = "</>", "<?>"
"""Malformed end tag that the parser ignores, and a comment of the same length."""
NULS_OR_TEXT = re.compile("\0+|[^\0]+")
NOSCRIPT_PROBE = "<!---->"
"""Comment that shows whether the text before it leaves a tag or a comment open."""


class Piece(NamedTuple):
    """Piece of the source."""

    kind: PieceKind
    start: int
    end: int
    text: str = ""
    """Decoded text of the piece, or the readable text of a copied element."""
    name: str = ""
    """Name of the tag."""


@dataclass(frozen=True, slots=True)
class _Tag:
    """Tag of an element in the tree."""

    start: int
    end: int
    is_end: bool
    number: int
    """Number of the tag's element."""


@dataclass(slots=True)
class _Open:
    """Element that is open at the current place of the source."""

    number: int
    name: str
    is_readable: bool = True
    """Whether HTML within the element is translated, foreign content or not."""
    is_foreign: bool = False
    is_raw: bool = False
    is_in_select: bool = False
    """Whether it is within a `select`, in which older parsers ignore tags."""
    is_in_ruby: bool = False

    @property
    def is_translated(self) -> bool:
        return self.is_readable and not self.is_foreign

    @property
    def ends_with_next(self) -> bool:
        """Whether it ends without a tag where the next part of its `ruby` begins."""
        return self.is_in_ruby and self.name in RUBY_PARTS


@dataclass(slots=True)
class _Copy:
    """Part of the source that is copied, from an element that is not translated."""

    start: int
    name: str
    """Name of the element."""
    text: list[str] = field(default_factory=list)
    """Readable text of the part."""
    is_nested: bool = True
    """Whether no tag within it crosses its borders."""


class Source:
    """Document with LF as the only line break, as the HTML standard prescribes."""

    def __init__(self, html: str) -> None:
        self._html = html
        self.text = html.replace("\r\n", "\n").replace("\r", "\n")
        ends = (match.start() for match in re.finditer("\r\n", html))
        self._joined = [end - i for i, end in enumerate(ends)]
        """Offsets in `text` of the line breaks that are CRLF in the document."""

    def cut(self, start: int, end: int) -> str:
        """Part of the document between two offsets of `text`."""
        return self._html[self._place(start) : self._place(end)]

    def _place(self, offset: int) -> int:
        return offset + bisect_right(self._joined, offset - 1)


def html_pieces(source: Source) -> list[Piece]:
    """Pieces of a document in order; parts between them are to be copied."""
    return _Reader(source.text).read()


class _Reader:
    """Reader that walks through a document's tags in the order of the source."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._elements: list[HtmlElement] = []
        self._last: list[int] = []
        """Number of the last element within each element, in the order of the tree."""
        self._tags = self._built_tags()
        self._has_foreign = any(
            each.namespace is not Namespace.HTML for each in self._elements
        )
        self._stack = [_Open(number=-1, name="")]
        """Open elements, within one that stands for the document."""
        self._open_numbers = set[int]()
        self._pieces: list[Piece] = []
        self._copy: _Copy | None = None
        self._has_dangling = False
        """Whether formatting is reopened; then texts must stay between their tags."""
        self._has_left_foreign = False
        """Whether an HTML tag ended foreign content, which older parsers continue."""

    def read(self) -> list[Piece]:
        """Read all pieces."""
        # A frameset replaces the body, so its text is neither in the tree nor shown.
        if any(each.tag == "frameset" for each in self._elements):
            return []
        place = 0
        for tag in self._tags:
            if tag.start < place:
                continue
            if self._between(place, tag.start):
                return self._pieces
            self._take(tag)
            place = tag.end
        self._between(place, len(self._html))
        self._end_copy(len(self._html), is_nested=False)
        return self._pieces

    def _built_tags(self) -> list[_Tag]:
        """Tags of all elements, sorted by place; cloned elements have none."""
        document = turbohtml.parse(
            self._html,
            source_locations=True,
            scripting=True,
            allow_declarative_shadow_roots=False,
        )
        tags: list[_Tag] = []
        waiting: list[Node | int] = [document]
        while waiting:
            node = waiting.pop()
            if isinstance(node, int):
                self._last[node] = len(self._elements) - 1
                continue
            if isinstance(node, HtmlElement):
                number = len(self._elements)
                self._elements.append(node)
                self._last.append(number)
                waiting.append(number)
                tags += self._tags_of(node, number)
            waiting.extend(reversed(node.children))
        return sorted(tags, key=lambda tag: tag.start)

    def _tags_of(self, element: HtmlElement, number: int) -> Iterator[_Tag]:
        location = element.source_location
        if location is None:
            return
        for span, is_end in ((location.start_tag, False), (location.end_tag, True)):
            if span is not None and self._html.startswith("<", span.start_offset):
                yield _Tag(span.start_offset, span.end_offset, is_end, number)

    def _close_ended(self, number: int, place: int) -> bool:
        """Close elements that do not contain a new one; return whether any of them
        needs an end tag."""
        needs_tag = False
        while self._open_numbers:
            inner = self._stack[-1]
            if inner.number < number <= self._last[inner.number]:
                break
            needs_tag |= not inner.ends_with_next
            self._pop(place)
        return needs_tag

    def _pop(self, end: int, *, is_tag: bool = False) -> None:
        """Close the innermost element at `end`, by its tag or without one."""
        popped = self._stack.pop()
        self._open_numbers.discard(popped.number)
        self._has_left_foreign |= popped.is_foreign and not is_tag
        self._has_dangling |= popped.name in FORMATTING and not is_tag
        if self._copy is not None:
            self._copy.is_nested &= is_tag or popped.ends_with_next
            if self._is_translated:
                self._end_copy(end)
        elif not self._is_translated:
            self._copy = _Copy(end, "div")

    def _take(self, tag: _Tag) -> None:
        element = self._elements[tag.number]
        if tag.is_end:
            self._take_end(tag, element.tag)
            return
        is_nested = not self._close_ended(tag.number, tag.start)
        opened = self._opened(element, tag)
        outer = self._is_translated
        self._space_copied(opened.name)
        is_void = self._is_void(element, tag, opened)
        if not is_void:
            self._stack.append(opened)
            self._open_numbers.add(opened.number)
        if outer and opened.is_translated:
            has_end = not (is_void or (opened.ends_with_next and _has_no_end(element)))
            kind: PieceKind = "start" if has_end else "empty"
            self._add_tag(kind if is_nested else "block", tag, opened.name)
        elif outer and is_void:
            self._add_tag("empty", tag, opened.name)
        elif outer:
            self._copy = _Copy(tag.start, opened.name)
        elif opened.is_translated:  # `translate=yes` within `translate=no`
            self._end_copy(tag.start, is_nested=False)
            self._pieces.append(Piece("block", tag.start, tag.end, name=opened.name))

    def _take_end(self, tag: _Tag, name: str) -> None:
        if tag.number not in self._open_numbers:
            return
        is_nested = True
        while self._stack[-1].number != tag.number:
            is_nested &= self._stack[-1].ends_with_next
            self._pop(tag.start)
        self._space_copied(name)
        if self._copy is None:
            self._add_tag("end" if is_nested else "block", tag, name)
        self._pop(tag.end, is_tag=True)

    @property
    def _is_translated(self) -> bool:
        return self._stack[-1].is_translated

    def _opened(self, element: HtmlElement, tag: _Tag) -> _Open:
        """Describe the element that a tag opens within the innermost open one."""
        outer = self._stack[-1]
        is_foreign = not _contains_html(element) and (
            element.namespace is not Namespace.HTML or outer.is_foreign
        )
        name = element.tag
        is_raw = name in RAW_TEXT and not is_foreign
        is_in_select = outer.is_in_select or outer.name == "select"
        is_in_ruby = outer.is_in_ruby or outer.name == "ruby"
        is_title = name == "title" and not (is_in_select or self._has_left_foreign)
        is_hidden = name == "template" or (is_raw and not is_title)
        # A formula's annotation is a second form of it, as a reading is of a word.
        is_code = name == "annotation-xml" or (
            not is_foreign and (name in CODE or (name in RUBY and is_in_ruby))
        )
        is_readable = self._translate_attribute(element, tag)
        if is_readable is None:
            is_readable = not is_code and outer.is_readable
        return _Open(
            tag.number,
            name,
            is_readable=is_readable and not is_hidden,
            is_foreign=is_foreign,
            is_raw=is_raw,
            is_in_select=is_in_select,
            is_in_ruby=is_in_ruby,
        )

    def _is_void(self, element: HtmlElement, tag: _Tag, opened: _Open) -> bool:
        """Whether the element has no end tag, as the path in `<svg><path/></svg>`."""
        if element.namespace is Namespace.HTML:
            return element.tag in VOID and not opened.is_foreign
        is_closed = self._html.endswith("/>", tag.start, tag.end)
        # An unquoted attribute may end in the slash, as in `<svg class=icon/></svg>`.
        return is_closed and not element.children and _has_no_end(element)

    def _translate_attribute(self, element: HtmlElement, tag: _Tag) -> bool | None:
        """Whether the element's attributes allow translation; None without any."""
        if "translate" not in self._html[tag.start : tag.end].lower():
            return None
        classes = element.attrs.get("class") or ""
        names = classes.split() if isinstance(classes, str) else classes
        if "notranslate" in names:
            return False
        if "translate" not in element.attrs:
            return None
        value = str(element.attrs["translate"] or "").lower()
        return {"no": False, "yes": True, "": True}.get(value)

    def _add_tag(self, kind: PieceKind, tag: _Tag, name: str) -> None:
        if name in BLOCKS or self._has_dangling:
            kind = "block"
        self._pieces.append(Piece(kind, tag.start, tag.end, name=name))

    def _space_copied(self, name: str) -> None:
        """Add space to copied text where a block begins or ends in it."""
        if self._copy is not None and name in BLOCKS:
            self._copy.text.append(" ")

    def _end_copy(self, end: int, *, is_nested: bool = True) -> None:
        copy, self._copy = self._copy, None
        if copy is None:
            return
        is_nested &= copy.is_nested and not self._has_dangling
        kind: PieceKind = "copied" if is_nested and copy.name not in BLOCKS else "block"
        text = "" if copy.name in UNREADABLE else "".join(copy.text)
        self._pieces.append(Piece(kind, copy.start, end, text, copy.name))

    def _between(self, start: int, end: int) -> bool:
        """Take the text between two tags; return whether all the rest must be
        copied."""
        inner = self._stack[-1]
        if inner.is_raw:
            return self._raw(inner, start, end)
        if start == end or inner.is_foreign:
            return False
        text = self._html[start:end]
        if RAW_START.search(text) or (self._has_foreign and CHARACTER_DATA in text):
            if self._copy is not None:
                self._copy.is_nested = False
            return False  # the tree does not contain it
        for piece in _markup_pieces(text, start):
            if self._copy is not None:
                self._copy.text.append(piece.text)
                self._copy.is_nested &= piece.kind != "block"
            elif self._is_translated:
                self._pieces.append(piece)
        return False

    def _raw(self, inner: _Open, start: int, end: int) -> bool:
        """Take the content of a raw-text element, as `_between` does."""
        if inner.name == "title" and inner.is_translated:
            self._pieces += _plain_pieces(self._html, start, end)
        # Older parsers read markup within elements that a `select` may not contain.
        if inner.is_in_select and "<" in self._html[start:end]:
            return True
        return inner.name == "noscript" and not self._reads_alike(start, end)

    def _reads_alike(self, start: int, end: int) -> bool:
        """Whether `noscript` ends at the same place without scripting."""
        text = self._html[start:end] + NOSCRIPT_PROBE
        last = None
        for token in turbohtml.tokenize(text, capture_source=True):
            last = token
        return last is not None and last.source == NOSCRIPT_PROBE


def _has_no_end(element: HtmlElement) -> bool:
    """Whether the source has no end tag of an element."""
    location = element.source_location
    return location is None or location.end_tag is None


def _contains_html(element: HtmlElement) -> bool:
    """Whether an element of SVG or MathML contains blocks of HTML.

    It is an HTML integration point (HTML, 13.2.6). `desc` and `title` of SVG are such
    points too, but they hold labels of inline pictures, which are copied like `alt`.
    """
    match element.namespace:
        case Namespace.SVG:
            return element.tag.lower() == "foreignobject"
        case Namespace.MATHML:
            encoding = str(element.attrs.get("encoding") or "").lower()
            return element.tag == "annotation-xml" and encoding in HTML_ENCODINGS
    return False


def _markup_pieces(html: str, place: int) -> Iterator[Piece]:
    """Text, comments, and tags without an element, from a place of the source on.

    A truncated tag is left out.
    """
    # The tokenizer skips malformed end tags, and so joins the text around them;
    # comments of the same length stand in for them.
    for token in turbohtml.tokenize(
        html.replace(NO_TAG, NO_TAG_COMMENT),
        capture_source=True,
        resolve_references=False,
    ):
        if token.type is not TokenType.TEXT:
            end = place + len(token.source or "")
            is_reference = token.type is TokenType.CHARACTER_REFERENCE
            text = (token.data or "") if is_reference else ""
            yield Piece(_kind_of(token.type), place, end, text)
            place = end
            continue
        # NULs are pieces without text, as no browser shows them.
        for part in NULS_OR_TEXT.findall(token.data or ""):
            end = place + len(part)
            yield Piece("text", place, end, part.strip("\0"))
            place = end


def _kind_of(token: TokenType) -> PieceKind:
    """Kind of a token; a doctype, or a tag without an element, separates blocks."""
    match token:
        case TokenType.CHARACTER_REFERENCE:
            return "text"
        case TokenType.COMMENT | TokenType.PROCESSING_INSTRUCTION:
            return "empty"
    return "block"


def _plain_pieces(html: str, start: int, end: int) -> Iterator[Piece]:
    """Text with references, but without markup."""
    text = html[start:end].replace("<", "_")
    for token in turbohtml.tokenize(
        text, capture_source=True, resolve_references=False
    ):
        if token.type is TokenType.CHARACTER_REFERENCE:
            end = start + len(token.source or "")
            yield Piece("text", start, end, token.data or "")
        else:
            end = start + len(token.data or "")
            yield Piece("text", start, end, html[start:end].replace("\0", "\ufffd"))
        start = end
