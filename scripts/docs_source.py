"""Show code beside the paper in the documentation, and check the tests named there.

MkDocs calls this file as a hook. A comment on a line of its own, such as

    <!-- source: transduce.model.attention.causal_mask -->

becomes the source of that function, class, method or value; several of one module, with
spaces between them, share a block. A test is written
`tests/FILE.py::NAME`, and shown by its name. A name that does not exist is an error.

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
SOURCE = re.compile(r"^<!-- source: ([\w. ]+) -->$", re.MULTILINE)
TEST = re.compile(r"`(?:tests/)?((?:unit|relations)/[\w/]+\.py)(?:::(\w+))?`")


class MissingNameError(LookupError):
    """A page names code that does not exist."""


def expanded(markdown: str) -> str:
    """Replace the comments by code; `MissingNameError` if a name does not exist."""
    markdown = TEST.sub(lambda match: _test(match[0], match[1], match[2]), markdown)
    return SOURCE.sub(lambda match: _block(match[1].split()), markdown)


def _test(written: str, file: str, name: str | None) -> str:
    """Return the name of a test, its file as a tooltip; a file alone stays as it is."""
    path = ROOT / "tests" / file
    if not path.is_file() or f"def {name or ''}" not in path.read_text("utf-8"):
        raise MissingNameError(f"There is no test {written}.")
    return f'`{name}`{{ title="tests/{file}" }}' if name else written


def _block(identifiers: list[str]) -> str:
    """Return the code block of dotted names."""
    code = "\n\n".join(_code(each) for each in identifiers)
    [path] = {_module(each)[0].relative_to(ROOT / "src") for each in identifiers}
    return f'```python title="{path.as_posix()}"\n{code}\n```'


def _code(identifier: str) -> str:
    path, names = _module(identifier)
    text = path.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in names:
        found = [each for each in ast.iter_child_nodes(node) if _defines(each, name)]
        if not found:
            raise MissingNameError(f"There is no `{identifier}`.")
        node = found[0]
    return textwrap.dedent("\n".join(text.splitlines()[_first(node) : node.end_lineno]))


def _module(identifier: str) -> tuple[Path, list[str]]:
    """Return the file of a dotted name, and the names within it."""
    parts = identifier.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = ROOT.joinpath("src", *parts[:count]).with_suffix(".py")
        if path.is_file():
            return path, parts[count:]
    raise MissingNameError(f"There is no module of `{identifier}`.")


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
