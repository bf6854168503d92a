"""Print the page of departures, made of the comments that mark them.

    python scripts/departures.py > docs/paper/departures.md

A departure is a comment that begins `# Unlike the paper:`, with all the lines of
comment that follow it.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

MARK = "Unlike the paper:"
SOURCES = Path(__file__).parents[1] / "src"
HEAD = """\
# Departures from the paper

Where this toolkit does other than *Attention Is All You Need* (Vaswani et al., 2017),
and why. Some departures are options; others settle what the paper leaves open.

This page is made of the comments in the code by `python scripts/departures.py`.

| where | unlike the paper |
|---|---|
"""


def departures(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each departure in a module."""
    text = path.read_text(encoding="utf-8")
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for line in comments:
        if comments[line].startswith(MARK):
            end = line
            while end in comments:
                end += 1
            words = " ".join(comments[i] for i in range(line, end))
            yield name_of_place(ast.parse(text), line), words.removeprefix(MARK).strip()


def name_of_place(module: ast.Module, line: int) -> str:
    """Name of the class, function or value around a line; empty if there is none."""
    names: list[str] = []
    inside: ast.AST | None = module
    while inside is not None:
        children = [each for each in ast.iter_child_nodes(inside) if holds(each, line)]
        inside = children[0] if children else None
        match inside:
            case ast.ClassDef() | ast.FunctionDef():
                names.append(inside.name)
            case ast.Assign(targets=[ast.Name(id=name)]) if not names:
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)) if not names:
                names.append(name)
    return ".".join(names)


def holds(node: ast.AST, line: int) -> bool:
    """Whether a part of a module contains a line."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(first <= line <= last)


def main() -> None:
    """Print the whole page."""
    sys.stdout.write(HEAD)
    for path in sorted(SOURCES.rglob("*.py")):
        file = path.relative_to(SOURCES.parent).as_posix()
        module = path.relative_to(SOURCES / "transduce").with_suffix("").as_posix()
        for place, words in departures(path):
            where = f"[`{module}`](../../{file})" + (f", `{place}`" if place else "")
            print(f"| {where} | {words} |")


if __name__ == "__main__":
    main()
