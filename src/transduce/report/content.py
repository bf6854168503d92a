"""What a report is made of, however it is shown."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """Words of which some are to stand out."""

    words: tuple[tuple[str, bool], ...]
    """Each with whether it is marked."""
    separator: str = " "
    """Text between two words."""


Cell: TypeAlias = str | MarkedText


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column."""

    name: str
    is_text: bool = False
    """Set flush left; figures stand flush right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        assert {len(row) for row in self.rows} <= {len(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing in the two forms that pages and files want."""

    name: str
    """Of its file, without an ending."""
    title: str
    svg: str
    """For a page: it takes the page's colour of text."""
    png: bytes
    """On white."""


Part: TypeAlias = str | Table | Picture
"""A paragraph, a table or a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Parts under a heading."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is told of one thing."""

    title: str
    sections: tuple[Section, ...]

    def pictures(self) -> list[Picture]:
        """Those of all sections, in order."""
        parts = (part for section in self.sections for part in section.parts)
        return [part for part in parts if isinstance(part, Picture)]


def columns(first: str, *others: str) -> tuple[Column, ...]:
    """The heads of a table of figures, whose first column says what they are of."""
    return (Column(name=first, is_text=True), *(Column(name=name) for name in others))


def plain(cell: Cell) -> str:
    """The text alone."""
    if isinstance(cell, str):
        return cell
    return cell.separator.join(word for word, _ in cell.words)
