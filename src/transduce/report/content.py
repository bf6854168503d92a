"""Content of a report, and its form in Markdown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    if isinstance(cell, str):
        return cell
    return cell.separator.join(word for word, _ in cell.words)


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(report: Report) -> str:
    """Format a report as Markdown that refers to each picture as `NAME.png`."""
    blocks = [f"# {_escaped(report.title)}"]
    for section in report.sections:
        blocks.append(f"## {_escaped(section.title)}")
        blocks.extend(_block(part) for part in section.parts)
    return "\n\n".join(blocks) + "\n"


def write_markdown(report: Report, folder: Path, name: str) -> None:
    """Write `NAME.md` and the pictures as PNG into a folder."""
    (folder / f"{name}.md").write_text(as_markdown(report), encoding="utf-8")
    for picture in report.pictures():
        (folder / f"{picture.name}.png").write_bytes(picture.png)


def _block(part: Part) -> str:
    match part:
        case Table():
            return "\n".join(_table(part))
        case Picture():
            return f"![{_escaped(part.title)}]({part.name}.png)"
        case str():
            return _escaped(part)


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"{_escaped(table.title)}:\n"
    yield _row([_escaped(column.name) for column in table.columns])
    yield _row([_rule(column) for column in table.columns])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(column: Column) -> str:
    return "---" if column.is_text else "---:"


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _escaped(cell)
    return cell.separator.join(
        f"**{_escaped(word)}**" if is_marked else _escaped(word)
        for word, is_marked in cell.words
    )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
