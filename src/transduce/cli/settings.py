"""`transduce settings`: all settings, their types, defaults and meanings."""

import ast
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from textwrap import wrap
from typing import Any, Literal

from transduce.cli.help import print_entries, print_paragraph
from transduce.cli.options import LEFT_TO_DATA
from transduce.cli.terminal import Json, print_json, table_console
from transduce.errors import ConfigError
from transduce.experiments.presets import ADAPT, FROM_MODEL, RunConfig
from transduce.experiments.presets import preset as preset_named

KINDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    Literal: "text",
    tuple: "list",
    Sequence: "list",
    Mapping: "table of numbers",
}
"""Names of the types of settings."""
WIDEST_LABEL = 28
"""Maximum width of a setting that its meaning stands beside."""
COMMENT_WIDTH = 78
"""Maximum width of a comment in TOML, without its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a run, as `--set` and TOML files take it."""

    name: str
    """Name with its tables, such as model.dropout."""
    value: Any
    """Value in a preset, or the default."""
    default: Any
    """Default; `dataclasses.MISSING` if there is none, as for a corpus's name."""
    type: str
    """Type of the value in words: "whole number or none"."""
    choices: tuple[str, ...]
    """Possible values; empty for any value of the type."""
    meaning: str

    @property
    def is_changed(self) -> bool:
        """Whether a preset changes the default."""
        return bool(self.value != self.default)

    @property
    def is_required(self) -> bool:
        """Whether it must be given, as it has no default."""
        return self.default is MISSING

    @property
    def table(self) -> str:
        """Name of its TOML table."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Name within its TOML table."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTable:
    """Settings that are one TOML table."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


def setting_tables(config: RunConfig | None = None) -> Iterator[SettingTable]:
    """All settings with their values in `config` (without it, with their defaults).

    Meanings are the string literals below the fields, read from the source.
    """
    default = RunConfig()
    yield from _tables(config or default, default, "")


def _tables(config: Any, default: Any, prefix: str) -> Iterator[SettingTable]:
    meanings = field_meanings(type(default))
    for field in fields(default):
        section = getattr(config, field.name)
        default_section = getattr(default, field.name)
        if is_dataclass(default_section):
            if type(section) is not type(default_section):  # another architecture
                default_section = type(section)()
            name = f"{prefix}{field.name}"
            yield SettingTable(
                name=name,
                meaning=meanings[field.name],
                settings=tuple(
                    _settings(
                        type(section), name, _values(default_section), _values(section)
                    )
                ),
            )
            yield from _tables(section, default_section, f"{name}.")


def _values(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _settings(
    kind: type, table: str, defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[Setting]:
    """Settings of a table, from the defaults and values of the fields of its class."""
    meanings, hints = field_meanings(kind), typing.get_type_hints(kind)
    for field, default in defaults.items():
        name = f"{table}.{field}"
        if is_dataclass(default) or name in LEFT_TO_DATA:
            continue
        types = _members(hints[field])
        yield Setting(
            name=name,
            value=values[field],
            default=default,
            type=" or ".join(KINDS[typing.get_origin(each) or each] for each in types),
            choices=tuple(
                choice
                for each in types
                if typing.get_origin(each) is Literal
                for choice in typing.get_args(each)
            ),
            meaning=meanings[field],
        )


def repeated_tables() -> Iterator[SettingTable]:
    """Tables that a TOML file may have several times: `[[corpora]]`, `[[stages]]`."""
    meanings = field_meanings(RunConfig)
    for name, hint in typing.get_type_hints(RunConfig).items():
        if typing.get_origin(hint) is tuple:
            kind = typing.get_args(hint)[0]
            defaults = {
                field.name: field.default
                if field.default_factory is MISSING
                else field.default_factory()
                for field in fields(kind)
            }
            yield SettingTable(
                name=name,
                meaning=meanings[name],
                settings=tuple(_settings(kind, name, defaults, defaults)),
            )


def changed_settings(config: RunConfig, default: RunConfig) -> Iterator[Setting]:
    """Settings of `config` that differ from those of `default`."""
    for table in _tables(config, default, ""):
        yield from (setting for setting in table.settings if setting.is_changed)


def field_meanings(config: type) -> dict[str, str]:
    """Docstring below each field of a dataclass; empty where there is none."""
    [body] = [
        node.body
        for node in _parsed(config.__module__).body
        if isinstance(node, ast.ClassDef) and node.name == config.__name__
    ]
    meanings = {}
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    meanings[node.target.id] = " ".join(text.split())
                case _:
                    meanings[node.target.id] = ""
    return meanings


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def settings(
    preset: str | None = None,
    /,
    *,
    toml: bool = False,
    json_output: Json = False,
) -> None:
    """List all settings of a run: value, type, default and meaning.

    A setting is changed by `--set model.dropout=0.2`, or in a TOML file that `--config`
    names. An asterisk marks values of the preset that differ from the default. The
    tables of a mixture, `[[corpora]]` and `[[stages]]`, stand in TOML files only, once
    for each corpus and stage.

    For example:

        transduce settings multi30k
        transduce settings multi30k --toml > my.toml

    Parameters
    ----------
    preset
        Preset whose settings are listed; without one, the defaults.
    toml
        Print a TOML file to edit and to give by --config.
    json_output
        Print the settings for --set as JSON, with the whole description of each.
    """
    if json_output and toml:
        raise ConfigError(
            "--toml and --json exclude each other, but both are given; leave one out."
        )
    tables = list(setting_tables(preset_named(preset) if preset else None))
    if json_output:
        found = [setting for table in tables for setting in table.settings]
        print_json([asdict(each) for each in found])
    elif toml:
        print("\n".join(_toml_lines(tables, preset)))
    else:
        _print(tables, preset)


def _print(tables: list[SettingTable], preset: str | None) -> None:
    console = table_console()
    what = f"Settings of the preset {preset}" if preset else "Settings"
    marked = "; * marks those that differ from the default" if preset else ""
    print_paragraph(console, f"{what}, for --set and --config{marked}.")
    for table in tables:
        entries = [
            (_label(each, each.name), _description(each)) for each in table.settings
        ]
        title = f"{table.name}: {table.meaning.removesuffix('.')}"
        print_entries(console, title, entries, WIDEST_LABEL)
    for table in repeated_tables():
        entries = [
            (_label(each, each.key), _description(each)) for each in table.settings
        ]
        title = f"[[{table.name}]]: {table.meaning.removesuffix('.')}"
        print_entries(console, title, entries, WIDEST_LABEL)


def _label(setting: Setting, name: str) -> str:
    """Return a setting with its value as `--set` takes it."""
    mark = "* " if setting.is_changed else ""
    value = "" if setting.is_required else f"={as_assigned(setting.value)}"
    return f"{mark}{name}{value}"


def _description(setting: Setting) -> str:
    """Describe a setting: first sentence of its meaning, that on none, and notes."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", setting.meaning)
    sentences = [first, *(each for each in others if each.startswith("None "))]
    notes = setting.type
    if setting.choices:
        notes = f"choices: {', '.join(setting.choices)}"
    if setting.is_required:
        notes += "; required"
    if setting.is_changed:
        notes += f"; default: {as_assigned(setting.default)}"
    return f"{' '.join(sentences)} [{notes}]"


def as_assigned(value: object) -> str:
    """Value as `--set` takes it: text without quotes, and none for None."""
    return value if isinstance(value, str) else as_toml(value)


def as_toml(value: object) -> str:
    """Value as a TOML file has it; none for None, which TOML lacks."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str() | tuple():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def _toml_lines(tables: list[SettingTable], preset: str | None) -> Iterator[str]:
    """Yield a TOML file with all settings.

    Settings without a value and, for `adapt`, those taken from the model are commented
    out.
    """
    option = f" --preset {preset}" if preset else ""
    follows: tuple[str, ...] = ()
    if preset == ADAPT:
        option, follows = f" --from MODEL{option}", FROM_MODEL
    yield from _comment(f"Settings for: transduce train{option} --config FILE ...")
    if follows:
        yield from _comment(
            f"Taken from the model, or computed from its width: {', '.join(follows)}."
        )
    for table in tables:
        yield ""
        yield from _comment(table.meaning)
        yield f"[{table.name}]"
        for setting in table.settings:
            yield from _comment(_description(setting))
            is_of_model = table.name in follows or setting.name in follows
            is_unset = setting.value is None or is_of_model
            mark = "# " if is_unset else ""
            yield f"{mark}{setting.key} = {as_toml(setting.value)}"
    for table in repeated_tables():
        yield ""
        yield from _comment(table.meaning)
        yield f"# [[{table.name}]]"
        for setting in table.settings:
            yield from _comment(f"{setting.key}: {_description(setting)}")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, COMMENT_WIDTH, break_on_hyphens=False)]
