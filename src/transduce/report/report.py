"""Reports: their content, and its forms in Markdown and as a web page.

Pages are self-contained.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """Text with some words highlighted."""

    words: tuple[tuple[str, bool], ...]
    """Each word, and whether it is highlighted."""
    separator: str = " "
    """Text between two words."""


Cell: TypeAlias = str | MarkedText


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Header of a column."""

    name: str
    is_text: bool = False
    """Whether the column is text, aligned left; numbers are aligned right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table with named columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        assert {len(row) for row in self.rows} <= {len(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Picture as SVG for web pages and as PNG for files."""

    name: str
    """Name of the file, without extension."""
    title: str
    svg: str
    """SVG in the page's text colour."""
    png: bytes
    """PNG on white."""


Part: TypeAlias = str | Table | Picture
"""Paragraph, table or picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Heading with its parts."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Title with its sections."""

    title: str
    sections: tuple[Section, ...]

    def pictures(self) -> list[Picture]:
        """Pictures of all sections, in order."""
        parts = (part for section in self.sections for part in section.parts)
        return [part for part in parts if isinstance(part, Picture)]


def columns(first: str, *others: str) -> tuple[Column, ...]:
    """Columns of a table of numbers whose first column is text."""
    return (Column(name=first, is_text=True), *(Column(name=name) for name in others))


def plain(cell: Cell) -> str:
    """Text of a cell without highlighting."""
    return _marked(cell, str, "{}")


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~]|&(?=#?\w+;))")


def as_markdown(report: Report) -> str:
    """Format a report as Markdown that refers to each picture as `NAME.png`."""
    blocks = [f"# {_escaped(report.title)}"]
    for section in report.sections:
        blocks.append(f"## {_escaped(section.title)}")
        blocks.extend(_block(part) for part in section.parts)
    return visible("\n\n".join(blocks) + "\n")


_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def visible(text: str) -> str:
    """Escape control characters, which terminals obey and pages cannot have.

    The same holds for the bytes of file names that are not UTF-8.
    """
    return encodable(_INVISIBLE.sub(lambda found: repr(found[0])[1:-1], text))


def encodable(text: str) -> str:
    """Escape the bytes of file names that are not UTF-8, which no page can have."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_markdown(report: Report, folder: Path, name: str) -> None:
    """Write `NAME.md` and the pictures as PNG into a folder."""
    (folder / f"{name}.md").write_text(as_markdown(report), encoding="utf-8")
    for picture in report.pictures():
        (folder / f"{picture.name}.png").write_bytes(picture.png)


def _block(part: Part) -> str:
    match part:
        case Table():
            return "\n".join(_markdown_table(part))
        case Picture():
            return f"![{_escaped(part.title)}]({part.name}.png)"
        case str():
            return _escaped(part)


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"{_escaped(table.title)}:\n"
    heads = [_escaped(column.name) for column in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    rows = ([_marked(cell, _escaped, "**{}**") for cell in row] for row in table.rows)
    for cells in (heads, rules, *rows):
        yield f"| {' | '.join(cells)} |"


def _marked(cell: Cell, escaped: Callable[[str], str], mark: str) -> str:
    """Return a cell with escaped text; `mark` is the format of highlighted words."""
    if isinstance(cell, str):
        return escaped(cell)
    return cell.separator.join(
        mark.format(escaped(word)) if is_marked else escaped(word)
        for word, is_marked in cell.words
    )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


NARROW_POINTS = 520
"""Largest width in points of a picture that stays in the column of text, which is 480
points wide."""
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'"
)
"""Content security policy of a page: it loads nothing from anywhere."""


def as_page(report: Report) -> str:
    """HTML page for light and dark screens and for print, without scripts."""
    return whole_page(report.title, map(as_html, report.sections))


def whole_page(
    title: str,
    parts: Iterable[str],
    style: str = "",
    script: str = "",
    policy: str = POLICY,
) -> str:
    """HTML page of parts that are HTML; `style` and `script` are added to it."""
    common = (files("transduce.report") / "page.css").read_text(encoding="utf-8")
    body = "\n".join(parts)
    ending = f"\n<script>\n{script}</script>" if script else ""
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>
{common}{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>{ending}
</body>
</html>
"""
    return visible(page)


def as_html(section: Section) -> str:
    """Format a section as HTML."""
    parts = [line for part in section.parts for line in _html_part(part, section.title)]
    heading = f"<h2>{escape(section.title)}</h2>"
    return "\n".join(["<section>", heading, *parts, "</section>"])


def _html_part(part: Part, section: str) -> Iterator[str]:
    match part:
        case Table():
            yield from _html_table(part, part.title or section)
        case Picture():
            title = escape(part.title)
            kind = "drawing wide" if _is_wide(part) else "drawing"
            drawing = f"{_scrolling(kind, part.title)}\n{part.svg}\n</div>"
            yield f"<figure>\n{drawing}\n<figcaption>{title}</figcaption>\n</figure>"
        case str():
            yield f"<p>{escape(part)}</p>"


def _is_wide(picture: Picture) -> bool:
    """Whether a picture is so wide that a column of text would make its text small."""
    width = re.search(r'<svg[^>]* width="([\d.]+)pt"', picture.svg)
    return width is not None and float(width[1]) > NARROW_POINTS


def _scrolling(kind: str, name: str) -> str:
    """Start tag of a named box that scrolls, also by keyboard, instead of the page."""
    named = f' role="group" aria-label="{escape(name)}"' if name else ""
    return f'<div class="{kind}" tabindex="0"{named}>'


def _html_table(table: Table, name: str) -> Iterator[str]:
    yield f"{_scrolling('table', name)}\n<table>"
    if table.title:
        yield f"<caption>{escape(table.title)}</caption>"
    kinds = [' class="text"' if each.is_text else "" for each in table.columns]
    heads = "".join(
        f'<th scope="col"{kind}>{escape(column.name)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>"
    # Text from right to left takes that direction, or its words change their order.
    starts = [f'<td{kind} dir="auto">' if kind else "<td>" for kind in kinds]
    for row in table.rows:
        cells = (
            f"{start}{_marked(cell, escape, '<mark>{}</mark>')}</td>"
            for start, cell in zip(starts, row, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"


NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that an XML file must not have."""


def xml_text(text: str) -> str:
    """Replace the characters that XML, and so a drawing, lacks by U+FFFD."""
    return NOT_XML.sub("\ufffd", text)
