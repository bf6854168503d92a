"""A report in Markdown; its pictures are files beside it."""

import re
from collections.abc import Iterator
from pathlib import Path

from transduce.report.content import Cell, Column, Part, Picture, Report, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(report: Report) -> str:
    """The text, in which `![...](NAME.png)` stands for a picture."""
    blocks = [f"# {_escaped(report.title)}"]
    for section in report.sections:
        blocks.append(f"## {_escaped(section.title)}")
        blocks.extend(_block(part) for part in section.parts)
    return "\n\n".join(blocks) + "\n"


def write_markdown(report: Report, folder: Path, name: str) -> None:
    """Write `NAME.md` and the pictures into a folder."""
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
