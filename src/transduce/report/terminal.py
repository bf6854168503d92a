"""A report on a terminal, or in a file of its output."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from transduce.report.content import Cell, Picture, Report, Table, plain

LONGEST_WHOLE = 20
"""Characters of a word that is not broken as long as there is room."""
GAP = 3
"""Between two columns."""


def show(report: Report, console: Console) -> None:
    """Print all but the pictures."""
    console.print(Text(report.title, style="bold"))
    for section in report.sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        for part in section.parts:
            if isinstance(part, Table):
                console.print(_table(part, console.width))
            elif not isinstance(part, Picture):
                console.print(Text(part))


def _table(table: Table, width: int) -> RichTable:
    shown = RichTable(
        box=SIMPLE_HEAD,
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    widths = _column_widths(table, width - GAP * len(table.columns))
    for column, column_width in zip(table.columns, widths, strict=True):
        shown.add_column(
            Text(column.name),
            justify="left" if column.is_text else "right",
            overflow="fold",
            width=column_width,
        )
    for row in table.rows:
        shown.add_row(*(_text(cell) for cell in row))
    return shown


def _column_widths(table: Table, room: int) -> list[int] | list[None]:
    """Such that words stay whole; none if all fits anyway, or nothing helps."""
    heads = tuple(column.name for column in table.columns)
    texts = list(zip(heads, *(map(plain, row) for row in table.rows), strict=True))
    most = [max(map(len, column)) for column in texts]
    words = [[word for text in column for word in text.split()] for column in texts]
    least = [min(max(map(len, each), default=0), LONGEST_WHOLE) for each in words]
    slack = room - sum(least)
    if sum(most) <= room or slack < 0:
        return [None] * len(texts)
    # The rest is shared out by what each would like to have.
    wanted = [high - low for low, high in zip(least, most, strict=True)]
    return [
        low + slack * share // sum(wanted)
        for low, share in zip(least, wanted, strict=True)
    ]


def _text(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    words = [
        Text(word, style="bold yellow" if is_marked else "")
        for word, is_marked in cell.words
    ]
    return Text(" ").join(words)
