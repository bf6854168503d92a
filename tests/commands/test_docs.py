"""The reference of the documentation, which is generated from the code."""

import contextlib
import importlib.util
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

import transduce
from transduce.cli import USER_ERROR, main
from transduce.cli.launching import LEFT_BEHIND
from transduce.cli.settings import repeated_tables, setting_tables
from transduce.cli.terminal import OUTPUT_LOST
from transduce.experiments.presets import PRESETS

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


def _generator() -> ModuleType:
    path = ROOT / "scripts" / "docs_reference.py"
    spec = importlib.util.spec_from_file_location("docs_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


REFERENCE = _generator()
HELP_BY_A_PROCESS = REFERENCE.help_text


@cache
def help_text(*command: str) -> str:
    """Help of a command as the generator reads it, without a process for each."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("COLUMNS", str(REFERENCE.HELP_COLUMNS))
        patch.setenv("NO_COLOR", "1")
        main([*command, "--help"])
    return out.getvalue()


REFERENCE.help_text = help_text


def test_the_generator_reads_the_help_of_commands() -> None:
    for command in ((), ("translate",), ("reproduce", "table2")):
        assert HELP_BY_A_PROCESS(*command) == help_text(*command)


@pytest.mark.parametrize("name", REFERENCE.commands())
def test_a_commands_page_has_all_its_options(name: str) -> None:
    parts = [()]
    if name in REFERENCE.PARTS:
        panels = REFERENCE.read_help(help_text(name)).panels
        parts = [(part.label,) for part in next(iter(panels.values()))]
    page = REFERENCE.command_page(name)
    for part in parts:
        text = help_text(name, *part)
        for option in re.findall(r"^  (--[\w-]+)", text, flags=re.MULTILINE):
            assert f"<code>{option}" in page
        assert "transduce " + " ".join((name, *part)) in page
    assert page.count("```sh") >= len(parts)  # each command has an example


def _commands_shown() -> Iterator[tuple[str, str]]:
    """Page and text of each `transduce` command in the pages' blocks of shell code."""
    for path in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```(?:sh|console)\n(.*?)```", text, re.S | re.M):
            for line in re.sub(r"\\\n *", "", block).splitlines():
                for part in re.split(r"[|;]|&(?!\w)|-m(?= transduce)", line):
                    command = part.strip().removeprefix("$ ")
                    if command.startswith("transduce "):
                        yield path.name, command


def test_commands_in_the_pages_have_only_options_that_exist() -> None:
    wrong = []
    for page, command in _commands_shown():
        _, name, *rest = command.split()
        names = (name, rest[0]) if name in REFERENCE.PARTS else (name,)
        if name not in REFERENCE.commands():
            wrong.append(f"{page}: {command}")
            continue
        options = set(re.findall(r"(?<=\s)--[\w-]+", help_text(*names))) | {"--help"}
        wrong += [
            f"{page}: {command} ({option})"
            for option in re.findall(r"(?<=\s)--[\w-]+", command)
            if option not in options
        ]
    assert wrong == []


def test_the_reference_has_every_exit_code_once() -> None:
    page = (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| (\d+)(?: \+ n)? \|", page, re.MULTILINE)

    # 1 is Python's for an exception; signals add 128 (`unwound_on_termination`).
    known = {0, 1, USER_ERROR, OUTPUT_LOST, LEFT_BEHIND, 128}
    assert sorted(map(int, codes)) == sorted(known)
    assert "exit code |" not in REFERENCE.command_index()
    assert "#exit-codes" in REFERENCE.command_index()


def test_every_setting_has_a_line() -> None:
    page = REFERENCE.settings_page()

    for table in (*setting_tables(), *repeated_tables()):
        for setting in table.settings:
            name = re.escape(setting.name)
            match = re.search(rf'<dt id="{name}">.*?<dd>(.*?)</dd>', page)
            assert match is not None, name
            assert match[1], f"{name} needs a docstring"


def test_every_preset_has_a_line() -> None:
    page = REFERENCE.presets_page()
    for name in PRESETS:
        assert f"### {name} " in page


def test_the_page_of_python_has_the_classes_of_all_results() -> None:
    page = REFERENCE.python_page()
    functions = [getattr(transduce, name) for name in transduce.__all__]
    results = {get_type_hints(each)["return"] for each in functions if isfunction(each)}
    assert {"RunResult", "Distillation"} < {each.__name__ for each in results}
    for each in results:
        public = each.__name__ in transduce.__all__
        name = each.__name__ if public else f"{each.__module__[10:]}.{each.__name__}"
        assert f"::: transduce.{name}\n" in page


def test_the_page_of_http_describes_every_field() -> None:
    page = REFERENCE.http_page()
    fields = re.findall(r"<dt.*?<code>(\w+)</code>.*?</dt><dd>(.*?)</dd>", page)
    assert len(fields) == page.count("<dt")
    assert [name for name, meaning in fields if not meaning] == []


JSON_PAGE = ROOT / "docs" / "reference" / "json.md"
OPEN = {"suspicious", "lengths", "words", "occurrences", "versions"}
"""Fields whose sub-fields are arbitrary names or positions."""


def _names(content: Any) -> Iterator[str]:
    if isinstance(content, list):
        for each in content:
            yield from _names(each)
    elif isinstance(content, dict):
        for name, value in content.items():
            yield name
            if name not in OPEN and name != "search":
                yield from _names(value)


def _described(section: str) -> set[str]:
    text = JSON_PAGE.read_text(encoding="utf-8")
    title = re.compile(rf"[^:\n]*(?<![-\w]){section}(?![-\w])[^:\n]*:")
    [found] = [part for part in text.split("\n## ") if title.match(part)]
    return {
        word for code in re.findall(r"`([^`]+)`", found) for word in code.split(".")
    }


def test_the_json_of_commands_has_only_fields_that_are_described(
    succeeds: Callable[..., str],
    corpus_files: tuple[Path, Path],
    model: Path,
    parsing_model: Path,
    tmp_path: Path,
) -> None:
    source, target = corpus_files
    other = tmp_path / "other"
    other.write_text(target.read_text("utf-8").replace("eins", "zwei"), "utf-8")
    trees = tmp_path / "trees"
    trees.write_text("(TOP (S (NP (DT the) (NN dog)) (VP (VBD ran)) (. .)))\n")
    few = [tmp_path / "few.en", tmp_path / "few.de"]
    for file, whole in zip(few, corpus_files, strict=True):
        lines = whole.read_text("utf-8").splitlines(keepends=True)[:4]
        file.write_text("".join(lines), "utf-8")
    tuned = tmp_path / "tuned"
    shutil.copytree(model, tuned)
    quick = ("--resamples", 10, "--shuffles", 10)
    outputs = {
        "translate": ("translate", model, "--input", few[0], "--jsonl"),
        "sample": ("sample", model, "--input", few[0], "--jsonl"),
        "score": ("score", model, "--source", source, "--target", target, "--jsonl"),
        "evaluate": (
            "evaluate",
            "--hypothesis",
            other,
            "--reference",
            target,
            "--json",
        ),
        "compare": ("compare", target, other, "--reference", target, *quick, "--json"),
        "tune": (
            *("tune", tuned, "--dev-source", few[0], "--dev-target", few[1]),
            *("--beam-sizes", 1, 2, "--length-penalties", 0.6, "--dry-run", "--json"),
        ),
        "check": ("check", "--source", source, "--target", target, "--json"),
        "evaluate-parses": (
            *("evaluate-parses", trees, "--model", parsing_model, "--json"),
        ),
    }
    missing = {}
    for section, arguments in outputs.items():
        text = succeeds(*arguments)
        try:
            content = json.loads(text)
        except ValueError:
            content = [json.loads(line) for line in text.splitlines()]
        names = set(_names(content))
        if section == "evaluate-parses":
            names -= set(content.get("repairs", ()))
        missing |= {section: left} if (left := names - _described(section)) else {}
    assert missing == {}


def test_the_log_of_a_run_has_only_fields_that_are_described(run: Path) -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    section = page.split("\n### log.jsonl\n")[1].split("\n## ")[0]
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    fields = {field for line in lines for field in json.loads(line)}
    assert fields - set(re.findall(r"`(\w+)`", section)) == set()


def test_code_in_a_table_has_no_backslash_and_breaks_if_it_is_long() -> None:
    long = "zcat a.gz | " * 4
    cells = f"<td><code>a \\| b</code></td><td><code>{long}</code></td>"
    content = f"<p><code>{long}</code></p><table><tr>{cells}</tr></table>"
    shown = REFERENCE.on_page_content(content, None, None, None)
    assert f"<p><code>{long}</code></p>" in shown
    assert "<td><code>a | b</code></td>" in shown
    assert f'<td><code class="long">{long}</code></td>' in shown


def test_a_cell_of_long_text_is_marked_to_get_room_on_narrow_screens() -> None:
    content = f"<table><tr><td>12</td><td>{'word ' * 20}</td></tr></table>"
    shown = REFERENCE.on_page_content(content, None, None, None)
    assert '<td>12</td><td class="text">word' in shown


def test_a_column_without_a_title_has_no_empty_header() -> None:
    content = "<table><tr><th></th><th>BLEU</th></tr></table>"
    shown = REFERENCE.on_page_content(content, None, None, None)
    assert shown == "<table><tr><td></td><th>BLEU</th></tr></table>"


def test_a_formula_has_a_name_of_several_letters_in_one_element() -> None:
    content = r'<span class="arithmatex">\(\mathrm{softmax}(Q)\)</span>'
    shown = REFERENCE.on_page_content(content, None, None, None)
    assert "<mi>softmax</mi>" in shown
    assert "<mi>Q</mi>" in shown


def test_a_function_in_a_formula_is_separated_from_its_factor_and_argument() -> None:
    content = r'<span class="arithmatex">\(a\sin b + \log_k n + \cos(x)\)</span>'
    shown = REFERENCE.on_page_content(content, None, None, None)
    space = REFERENCE.SPACE
    assert f"<mi>a</mi>{space}<mi>sin</mi>{space}<mi>b</mi>" in shown
    assert "<msub><mi>log</mi><mi>k</mi></msub>" in shown
    assert "<mi>cos</mi><mo" in shown
