"""Print the page of departures, made of the comments that mark them.

    python scripts/departures.py > docs/paper/departures.md

A departure is a comment that begins `# Unlike the paper:`, with all the lines of
comment that follow it. Its last sentence begins "On by default" or "Off by default".
The latter names the settings that turn the departure on, as `model.norm` or, for one
value, as `training.optimizer=muon`; the page adds the presets that do so.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MARK = "Unlike the paper:"
ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
HEAD = """\
# Departures from the paper

Places where transduce differs from *Attention Is All You Need* (Vaswani et al., 2017),
or can be set to differ, and why. Those that are on by default come first: `base` and
`big`, the paper's models, have no others. A setting, an option or a preset turns the
others on; the table names the presets of the Transformer that do.

`python scripts/departures.py > docs/paper/departures.md` makes this page of the
comments in the code.

| where | unlike the paper | by default |
|---|---|---|
"""
DEFAULT = re.compile(r"\s(?P<state>On|Off) by default(?P<rest>[^.]*(?:\.\w[^.]*)*)\.$")
SETTING = re.compile(r"`(\w+(?:\.\w+)+)(?:=([\w-]+))?`")


class Departure(NamedTuple):
    """Comment about a departure, divided into its parts."""

    place: str
    text: str
    is_on: bool
    switch: str
    """Name of the setting that changes it, after its punctuation; it may be empty."""


def departures(path: Path) -> Iterator[Departure]:
    """Yield the departures in a module; `ValueError` if one has no default."""
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
            if (found := DEFAULT.search(words)) is None:
                raise ValueError(
                    f"{path}:{line}: the comment must end with a sentence that begins "
                    '"On by default" or "Off by default".'
                )
            yield Departure(
                place=name_of_place(ast.parse(text), line),
                text=words[: found.start()].removeprefix(MARK).strip(),
                is_on=found["state"] == "On",
                switch=found["rest"],
            )


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


def value_of(config: Any, setting: str) -> Any:
    """Value of a setting such as `model.norm`."""
    for name in setting.split("."):
        config = getattr(config, name)
    return config


def presets_with(setting: str, value: str | None) -> list[str]:
    """Presets of the Transformer that have a value, or any but the default.

    A value is written as in a settings file.
    """
    from transduce.experiments.presets import PRESETS, RunConfig
    from transduce.model.config import ModelConfig

    default = value_of(RunConfig(), setting)
    found = []
    for name, preset in PRESETS.items():
        if isinstance(preset.model, ModelConfig):
            own = value_of(preset, setting)
            is_on = own != default if value is None else str(own).lower() == value
            found += [name] if is_on else []
    return found


def default_of(departure: Departure) -> str:
    """Cell of the table: on or off, what changes that, and presets that do."""
    state = "on" if departure.is_on else "off"
    cell = f"**{state}**{departure.switch}"
    if departure.is_on:
        return cell
    presets = {
        name: None
        for setting, value in SETTING.findall(departure.switch)
        for name in presets_with(setting, value or None)
    }
    names = ", ".join(f"`{name}`" for name in presets)
    return f"{cell}; on in {names}" if names else cell


def main() -> None:
    """Print the whole page."""
    sys.stdout.write(HEAD)
    rows: dict[bool, list[str]] = {True: [], False: []}
    for path in sorted(SOURCES.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        module = path.relative_to(SOURCES / "transduce").with_suffix("").as_posix()
        for each in departures(path):
            place = f", `{each.place}`" if each.place else ""
            where = f"[`{module}`](../../{file}){place}"
            rows[each.is_on].append(f"| {where} | {each.text} | {default_of(each)} |")
    print("\n".join([*rows[True], *rows[False]]))


if __name__ == "__main__":
    main()
