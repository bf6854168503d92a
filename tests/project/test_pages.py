"""The documentation names commands, files and code that exist."""

import ast
import builtins
import re
import runpy
import socket
from pathlib import Path
from urllib.parse import unquote

import pytest

from serving_client import running
from transduce.architectures.config import TRANSFORMER, architecture_of
from transduce.cli import COMMANDS
from transduce.experiments.presets import PRESETS
from transduce.serving.server import create_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COLUMNS = 88
"""Characters of a line of code that docs/assets/site.css makes room for."""
RESULTS = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
GENERATED = re.compile(r"docs/reference/(?:commands/\S+|[a-z]+)\.md")
"""Pages that only the site has, which tests/commands/test_docs.py looks for."""
expanded = runpy.run_path(str(ROOT / "scripts" / "docs_source.py"))["expanded"]


def _blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title (empty if there is none) and text of a page's blocks of code."""
    text = page.read_text(encoding="utf-8")
    fenced = r'^ *``` *(?:{ )?\.?(\w+)(?: title="([^"]+)")?(?: })?\n(.*?)^ *```'
    return re.findall(fenced, text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"```bibtex.*?```", "", text, flags=re.DOTALL)
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL))
    called = r"(?:^|[`$|;&(])\s*(?:\.venv/bin/)?transduce ([a-z][a-z-]+)\b"
    named = set(re.findall(called, code, flags=re.MULTILINE))
    assert named - set(COMMANDS) == set()


def test_the_readme_names_commands() -> None:
    assert "transduce train" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name
)
def test_a_page_links_only_files_that_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = set(re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", text))
    missing = [
        link for link in links if not (page.parent / unquote(link)).resolve().exists()
    ]
    places = [(page.parent / link).resolve().relative_to(ROOT) for link in missing]
    assert [str(each) for each in places if not GENERATED.fullmatch(str(each))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_fit_beside_the_menus_of_the_site(page: Path) -> None:
    commands = [text for kind, _, text in _blocks(page) if kind in ("sh", "console")]
    wide = [line for line in "".join(commands).splitlines() if len(line) > COLUMNS]
    assert wide == []


def _undefined(code: str) -> set[str]:
    """Names that a program reads, but neither binds anywhere nor has from Python."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    for node in nodes:
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound |= {(each.asname or each.name).split(".")[0] for each in aliases}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
    return {each.id for each in names} - bound - set(dir(builtins))


@pytest.mark.parametrize(
    "page",
    # The notebook's cells continue one another.
    [page for page in PAGES if page.parent.name != "student"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_each_python_program_of_a_page_defines_the_names_that_it_uses(
    page: Path,
) -> None:
    programs = [text for language, _, text in _blocks(page) if language == "python"]
    written = [text for text in programs if not text.startswith("--8<--")]
    assert [names for text in written if (names := _undefined(text))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_a_file_before_the_command_that_reads_it(page: Path) -> None:
    blocks = _blocks(page)
    early = [
        title
        for i, (_, title, _) in enumerate(blocks)
        for language, _, text in blocks[:i]
        if title and language == "sh" and re.search(rf"\b{re.escape(title)}\b", text)
    ]
    assert early == []


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_a_table_shows_tags_as_code(page: Path) -> None:
    rows = re.findall(r"^\|.*", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = "\n".join(re.sub(r"(`+).*?\1", "", row) for row in rows)
    assert re.findall(r"</?[a-z]+", text) == []


def test_the_methods_that_the_contributors_page_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*\.[a-z_]+)`", text))
    sources = sorted((ROOT / "src").rglob("*.py"))
    defined = {
        f"{kind.name}.{method.name}"
        for source in sources
        for kind in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
    }
    assert named
    assert named - defined == set()


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "csrc/README.md"])
def test_the_names_of_code_in_a_page_for_contributors_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    whole = r"`([A-Z][A-Z_0-9]+|_?[a-z]+(?:_[a-z0-9]+)+)(?:\(\))?`"
    named = set(re.findall(whole, text))
    files = [
        path
        for folder in ("src", "csrc", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".c", ".h"} or path.name == "CMakeLists.txt"
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert named
    assert named - {"NAME"} - set(re.findall(r"\w+", code)) == set()


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "paper").glob("*.md")), ids=lambda page: page.name
)
def test_a_page_of_the_paper_links_its_code_and_the_site_shows_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"^Code: .*", text, flags=re.MULTILINE)
    shown = expanded(text)
    assert "<!--" not in text  # the page is also read without the site
    assert shown.count('```python title="transduce/') == len(named)
    assert "\nCode: " not in shown


def test_the_page_about_serving_lists_every_status_of_a_refusal() -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, flags=re.MULTILINE)
    listed = {int(status) for row in rows for status in row.split(", ")}
    operations = create_app([]).openapi()["paths"]["/translate"].values()
    documented = {int(each) for one in operations for each in one["responses"]} - {200}
    requests = {
        404: b"GET /no HTTP/1.0\r\n\r\n",
        405: b"PUT /health HTTP/1.0\r\n\r\n",
        414: b"GET /%s HTTP/1.0\r\n\r\n" % (b"a" * 20_000),
        431: b"GET /health HTTP/1.0\r\na: %s\r\n\r\n" % (b"a" * 20_000),
        501: b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
        505: b"GET /health HTTP/2.0\r\n\r\n",
    }
    with running([]) as server:
        for status, request in requests.items():
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(request)
                assert client.recv(64).startswith(b"HTTP/1.1 %d " % status)
    assert listed == documented | set(requests)


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))],
    ids=lambda page: page.name,
)
def test_a_tutorial_stops_the_server_that_it_starts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    started = re.findall(r"^(?:\$ )?transduce serve .*&$", text, flags=re.MULTILINE)
    stopped = re.findall(r"^(?:\$ )?kill %1$", text, flags=re.MULTILINE)
    assert len(started) == len(stopped)


def test_the_page_about_rivals_begins_with_a_table_of_all_their_presets() -> None:
    page = (ROOT / "docs" / "rivals.md").read_text(encoding="utf-8")
    rivals = {
        name
        for name, config in PRESETS.items()
        if architecture_of(config.model) != TRANSFORMER
    }
    assert rivals == set(re.findall(r"`([\w-]+)`", page.split("\n## ")[0])) & {*PRESETS}
