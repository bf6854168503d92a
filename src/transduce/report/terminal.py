"""A report on a terminal, or in a file of its output."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from transduce.report.content import Cell, Picture, Report, Table, plain

LONGEST_WHOLE = 20
"""Characters of a word that is not broken as long as there is room."""


def show(report: Report, console: Console) -> None:
    """Print all but the pictures."""
    console.print(Text(report.title, style="bold"))
    for section in report.sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        for part in section.parts:
            if isinstance(part, Table):
                whole = _table(part, _longest_words(part))
                has_room = console.measure(whole).minimum <= console.width
                console.print(
                    whole if has_room else _table(part, [0] * len(part.columns))
                )
            elif not isinstance(part, Picture):
                console.print(Text(part))


def _table(table: Table, widths: Sequence[int]) -> RichTable:
    """With columns at least so wide."""
    shown = RichTable(
        box=SIMPLE_HEAD,
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    for column, width in zip(table.columns, widths, strict=True):
        shown.add_column(
            Text(column.name),
            justify="left" if column.is_text else "right",
            overflow="fold",
            min_width=width,
        )
    for row in table.rows:
        shown.add_row(*(_text(cell) for cell in row))
    return shown


def _longest_words(table: Table) -> list[int]:
    """Of each column."""
    texts = [[column.name] for column in table.columns]
    for row in table.rows:
        for column, cell in zip(texts, row, strict=True):
            column.append(plain(cell))
    return [
        min(
            max(len(word) for text in column for word in ["", *text.split()]),
            LONGEST_WHOLE,
        )
        for column in texts
    ]


def _text(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    words = [
        Text(word, style="bold yellow" if is_marked else "")
        for word, is_marked in cell.words
    ]
    return Text(" ").join(words)
