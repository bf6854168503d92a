"""A report on a terminal, or in a file of its output."""

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
                console.print(_table(part))
            elif not isinstance(part, Picture):
                console.print(Text(part))


def _table(table: Table) -> RichTable:
    shown = RichTable(
        box=SIMPLE_HEAD,
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    for i, column in enumerate(table.columns):
        words = " ".join([column.name, *(plain(row[i]) for row in table.rows)]).split()
        shown.add_column(
            Text(column.name),
            justify="left" if column.is_text else "right",
            overflow="fold",
            min_width=min(max(map(len, words), default=0), LONGEST_WHOLE),
        )
    for row in table.rows:
        shown.add_row(*(_text(cell) for cell in row))
    return shown


def _text(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    words = [
        Text(word, style="bold yellow" if is_marked else "")
        for word, is_marked in cell.words
    ]
    return Text(" ").join(words)
