"""Show code beside the paper in the documentation, and check the tests named there.

MkDocs calls this file as a hook. A line on its own, such as

    Code: `average` in [`transduce/checkpoint.py`](../../src/transduce/checkpoint.py)

becomes the source of that function, class, method or value; several names, with commas
between them, share a block. Where the page is read without the site, the line leads to
the file. A test is written `tests/FILE.py::NAME`, and shown by its name. A name that
does not exist is an error.

    python scripts/docs_source.py       # checks all pages of docs/paper
"""

import ast
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "paper"
SOURCE = re.compile(
    r"^Code: (`[\w.]+`(?:, `[\w.]+`)*) in \[`([\w/]+\.py)`\]\(\.\./\.\./src/\2\)$",
    re.MULTILINE,
)
TEST = re.compile(r"`(?:tests/)?((?:unit|relations)/[\w/]+\.py)(?:::(\w+))?`")


class MissingNameError(LookupError):
    """A page names code that does not exist."""


def expanded(markdown: str) -> str:
    """Put code in place of the lines that name it, or raise `MissingNameError`."""
    markdown = TEST.sub(lambda match: _test(match[0], match[1], match[2]), markdown)
    return SOURCE.sub(lambda match: _block(match[1], match[2]), markdown)


def _test(written: str, file: str, name: str | None) -> str:
    """Return the name of a test, its file as a tooltip; a file alone stays as it is."""
    path = ROOT / "tests" / file
    if not path.is_file() or f"def {name or ''}" not in path.read_text("utf-8"):
        raise MissingNameError(f"There is no test {written}.")
    return f'`{name}`{{ title="tests/{file}" }}' if name else written


def _block(names: str, file: str) -> str:
    """Return the code block of names between backticks."""
    path = ROOT / "src" / file
    if not path.is_file():
        raise MissingNameError(f"There is no src/{file}.")
    code = "\n\n".join(_code(path, name) for name in re.findall(r"[\w.]+", names))
    return f'```python title="{file}"\n{code}\n```'


def _code(path: Path, dotted: str) -> str:
    text = path.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in dotted.split("."):
        found = [each for each in ast.iter_child_nodes(node) if _defines(each, name)]
        if not found:
            raise MissingNameError(f"There is no `{dotted}` in {path.name}.")
        node = found[0]
    return textwrap.dedent("\n".join(text.splitlines()[_first(node) : node.end_lineno]))


def _defines(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign(targets=[ast.Name(id=target)]):
            return target == name
        case ast.AnnAssign(target=ast.Name(id=target)):
            return target == name
    return False


def _first(node: Any) -> int:
    """Return the index of the first line of a definition, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    line: int = min([node.lineno, *(each.lineno for each in decorators)])
    return line - 1


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Expand a page of the site."""
    try:
        return expanded(markdown)
    except MissingNameError as error:
        raise MissingNameError(f"docs/{page.file.src_uri}: {error}") from None


def main() -> None:
    """Check the pages, and print what is missing."""
    missing = []
    for path in sorted(PAGES.glob("*.md")):
        try:
            expanded(path.read_text(encoding="utf-8"))
        except MissingNameError as error:
            missing.append(f"{path.relative_to(ROOT)}: {error}")
    if missing:
        sys.exit("\n".join(missing))


if __name__ == "__main__":
    main()
