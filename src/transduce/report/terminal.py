"""Reports on a terminal.

This module is not imported with reports, since Rich takes long to import, and draws
from Python's random numbers then.
"""

from collections.abc import Iterator
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from transduce.report.report import (
    Cell,
    MarkedText,
    Picture,
    Report,
    Table,
    plain,
    visible,
)

LONGEST_WHOLE = 20
"""Longest word, in characters, that is kept whole if the table fits."""
LEGIBLE = 8
"""Narrowest column, in characters, unless its words are shorter."""
GAP = 3
"""Characters between two columns."""
EDGES = 2
"""Characters before the first column and after the last."""


def show(report: Report, console: Console) -> None:
    """Print a report without its pictures."""
    console.print(Text(_printable(report.title, console), style="bold"))
    for section in report.sections:
        console.print()
        console.print(Text(_printable(section.title, console), style="bold"))
        for part in section.parts:
            if isinstance(part, Table):
                show_table(part, console)
            elif not isinstance(part, Picture):
                console.print(Text(_printable(part, console)))


def show_table(table: Table, console: Console) -> None:
    """Print a table, or a list for each of its rows on a narrow terminal."""
    for shown in _terminal_tables(_printable_table(table, console), console.width):
        console.print(shown)


def _printable(text: str, console: Console) -> str:
    """Escape control characters, and characters that the console's encoding lacks.

    Escaped only when they are written, they would take more room than columns have.
    """
    encoding = console.encoding
    return visible(text).encode(encoding, "backslashreplace").decode(encoding)


def _printable_table(table: Table, console: Console) -> Table:
    def printable(cell: Cell) -> Cell:
        if isinstance(cell, str):
            return _printable(cell, console)
        words = ((_printable(word, console), marked) for word, marked in cell.words)
        return MarkedText(words=tuple(words), separator=cell.separator)

    return Table(
        title=_printable(table.title, console),
        columns=tuple(
            replace(each, name=_printable(each.name, console)) for each in table.columns
        ),
        rows=tuple(tuple(map(printable, row)) for row in table.rows),
    )


def _terminal_tables(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Format as a table or, if the terminal is too narrow, as a list for each row."""
    words = [w for w, _ in _widths(table)]
    available = width - GAP * (len(table.columns) - 1) - EDGES
    if sum(min(each, LEGIBLE) for each in words) <= available:
        yield _terminal_table(table, available)
        return
    if table.title:
        yield Text(table.title, style="italic")
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            name = f"{column.name}: " if column.name else ""
            if plain(cell):
                yield Text(name).append_text(_terminal_text(cell))
        yield Text()


def _terminal_table(table: Table, available: int) -> RichTable:
    """Format as a table whose columns have at most this number of characters."""
    shown = RichTable(
        box=SIMPLE_HEAD,
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    widths = _column_widths(table, available)
    for column, column_width in zip(table.columns, widths, strict=True):
        shown.add_column(
            Text(column.name),
            justify="left" if column.is_text else "right",
            overflow="fold",
            width=column_width,
        )
    for row in table.rows:
        shown.add_row(*(_terminal_text(cell) for cell in row))
    return shown


def _column_widths(table: Table, available: int) -> list[int] | list[None]:
    """Widths that keep words whole, or all but the longest; None if all text fits."""
    longest_words, most = zip(*_widths(table), strict=True)
    if sum(most) <= available:
        return [None] * len(most)
    limit = LONGEST_WHOLE
    while limit > 1 and sum(min(each, limit) for each in longest_words) > available:
        limit -= 1
    least = [min(each, limit) for each in longest_words]
    slack = available - sum(least)
    # Distribute the rest in proportion to the width that each column lacks.
    wanted = [high - low for low, high in zip(least, most, strict=True)]
    return [
        low + slack * share // sum(wanted)
        for low, share in zip(least, wanted, strict=True)
    ]


def _widths(table: Table) -> Iterator[tuple[int, int]]:
    """Terminal cells of the longest word and the longest text of each column."""
    heads = tuple(column.name for column in table.columns)
    for texts in zip(heads, *(map(plain, row) for row in table.rows), strict=True):
        words = (cell_len(word) for text in texts for word in text.split())
        yield max(words, default=0), max(map(cell_len, texts))


def _terminal_text(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    words = [
        Text(word, style="bold yellow" if is_marked else "")
        for word, is_marked in cell.words
    ]
    return Text(cell.separator).join(words)
