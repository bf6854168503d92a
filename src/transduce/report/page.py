"""Reports as self-contained web pages."""

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from transduce.report.content import Cell, Column, Part, Picture, Report, Section, Table

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
    return f"""<!doctype html>
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


def as_html(section: Section) -> str:
    """Format a section as HTML."""
    parts = [line for part in section.parts for line in _part(part)]
    heading = f"<h2>{escape(section.title)}</h2>"
    return "\n".join(["<section>", heading, *parts, "</section>"])


def _part(part: Part) -> Iterator[str]:
    match part:
        case Table():
            yield from _table(part)
        case Picture():
            title = escape(part.title)
            drawing = f'<div class="drawing" tabindex="0">\n{part.svg}\n</div>'
            yield f"<figure>\n{drawing}\n<figcaption>{title}</figcaption>\n</figure>"
        case str():
            yield f"<p>{escape(part)}</p>"


def _table(table: Table) -> Iterator[str]:
    # In a box, so that a wide table scrolls, not the page.
    yield '<div class="table" tabindex="0">\n<table>'
    if table.title:
        yield f"<caption>{escape(table.title)}</caption>"
    heads = "".join(
        f'<th scope="col"{_class(column)}>{escape(column.name)}</th>'
        for column in table.columns
    )
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>"
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        yield f"<tr>{''.join(f'<td{_class(c)}>{_cell(x)}</td>' for c, x in cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"


def _class(column: Column) -> str:
    return ' class="text"' if column.is_text else ""


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escape(cell)
    return cell.separator.join(
        f"<mark>{escape(word)}</mark>" if is_marked else escape(word)
        for word, is_marked in cell.words
    )
