"""Settings of a run: read from TOML files, `key=value` options and run records."""

import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, TypeVar

from transduce.errors import ConfigError

Config = TypeVar("Config")


class UnknownSettingError(ConfigError):
    """No setting has this name."""


MAX_WHOLE = 2**53
"""Whole numbers up to this one are exact as floats."""
PLAIN_WORDS = {"none": None, "true": True, "false": False}
"""Values of words, in any case, that are assigned as in Python: TOML lacks the first,
and has the others in lower case alone."""
DECIMAL = re.compile(r"[+-]?(?:\d+\.|\d*\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""Pattern of a decimal number; TOML needs digits on both sides of the point."""
LONGEST_SHOWN = 80
"""Maximum number of characters of a value in an error message."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest value of a number, as a part of its setting's type.

        dropout: Annotated[float, Bounds(0, 1, below=True)] = 0.1

    `convert_and_check` refuses other values, but for None.
    """

    minimum: float
    maximum: float
    above: bool = False
    """Whether a value must be above the minimum."""
    below: bool = False
    """Whether a value must be below the maximum."""

    def require(self, key: str, value: float) -> None:
        """Raise `ConfigError` if a setting is out of bounds."""
        is_large = value > self.minimum or (value == self.minimum and not self.above)
        is_small = value < self.maximum or (value == self.maximum and not self.below)
        if is_large and is_small:
            return
        bounds = [
            f"{'above' if self.above else 'at least'} {self.minimum:,}",
            f"{'below' if self.below else 'at most'} {self.maximum:,}",
        ]
        if not (self.above or self.below):  # the bound at fault says enough
            bounds = bounds[1:] if is_large else bounds[:1]
        raise ConfigError(
            f"`{key}` must be {' and '.join(bounds)}, but is {shown(value)}."
        )


Rate = Annotated[float, Bounds(0, 1, below=True)]
"""Share of a whole that it cannot reach, such as a dropout rate."""
Share = Annotated[float, Bounds(0, 1)]
Seed = Annotated[int, Bounds(0, 2**63 - 1)]


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their full names, such as `model.dropout`.

    A list is one value, and so is an empty table.
    """
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            values |= flattened(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values


def differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting in which two dataclasses differ, by full name.

    A setting of a table that one of them does not have is None there.
    """
    then, now = flattened(asdict(before)), flattened(asdict(after))
    return {
        name: (then.get(name), now.get(name))
        for name in (*now, *(each for each in then if each not in now))
        if then.get(name) != now.get(name)
    }


def shown(value: object) -> str:
    """Format a value for an error message: one line, truncated if long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "one of too many digits" if isinstance(value, int) else "nested too deep"
    return _truncated(text)


def _truncated(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def shown_json(value: object) -> str:
    """Format a value of a JSON file as it stands there, truncated if long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
    return _truncated(text)


def require_between(
    key: str, value: float | None, minimum: float, maximum: float
) -> None:
    """Raise `ConfigError` if a setting is out of bounds; None is always allowed.

    A flag is no number, though Python counts True as 1.
    """
    try:
        if isinstance(without_numpy(value), bool):
            raise TypeError
        if value is not None:
            Bounds(minimum, maximum).require(key, value)
    except TypeError:
        raise ConfigError(f"`{key}` must be a number, but is {shown(value)}.") from None


def require_one_of(key: str, value: object, literal: object) -> None:
    """Raise `ConfigError` if a setting is none of the strings of a `Literal`."""
    choices = typing.get_args(literal)
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(
            f"`{key}` must be {_listed(choices)}, but is {_shown_choice(value)}."
        )


def require_flag(key: str, value: object) -> None:
    """Raise `ConfigError` unless an argument is true or false.

    The string "no" would count as true.
    """
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy has one of its own
        raise ConfigError(f"`{key}` must be true or false, but is {shown(value)}.")


def require_config(key: str, value: object, kind: type) -> None:
    """Raise `ConfigError` unless an argument is of the class that a function takes."""
    if not isinstance(value, kind):
        raise ConfigError(f"`{key}` must be a {kind.__name__}, but is {shown(value)}.")


def require_function(key: str, value: object) -> None:
    """Raise `ConfigError` unless an argument can be called."""
    if not callable(value):
        raise ConfigError(f"`{key}` must be a function, but is {shown(value)}.")


def require_string(key: str, value: object) -> None:
    """Raise `ConfigError` unless an argument is a string."""
    if not isinstance(value, str):
        raise ConfigError(f"`{key}` must be a string, but is {shown(value)}.")


def apply_file(config: Config, path: Path) -> Config:
    """Change the settings that a TOML file names, table by table."""
    return apply_mapping(config, _read_toml(path), where=f"{path}: ")


@cache  # a pipe can be read only once
def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: the settings cannot be read ({error.strerror})."
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{path}: the settings must be TOML, but are nested too deep."
        ) from None
    except ValueError as error:  # also raised for whole numbers with too many digits
        raise ConfigError(f"{path}: the settings must be TOML, but: {error}.") from None


def apply_assignments(
    config: Config, assignments: Sequence[str], where: str = ""
) -> Config:
    """Change single settings, each given as `key=value` with the value in TOML.

    The last value of a setting counts, so that an option added to a command overrides
    earlier ones. The order has no other effect, as all settings are checked together.
    `where` begins the messages of `ConfigError`, as in `apply_mapping`.
    """
    return apply_mapping(config, nested(assigned_values(assignments)), where)


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by their full names as nested tables; the last of a name counts.

    An empty table changes nothing.
    """
    result: dict[str, Any] = {}
    for name, value in values:
        *tables, last = name.split(".")
        table = result
        for each in tables:
            if not isinstance(table.get(each), dict):
                table[each] = {}
            table = table[each]
        is_empty = isinstance(value, Mapping) and not value
        if not is_empty or not isinstance(table.get(last), dict):
            table[last] = value
    return result


def assigned_values(assignments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the value of each setting that is assigned.

    Raises `ConfigError` if an assignment is not `key=value`.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"A setting must be `key=value`, but is {assignment!r}.")
        yield from flattened({key.strip(): _value(text.strip())}).items()


def apply_mapping(
    config: Config, content: Mapping[str, Any], where: str, prefix: str = ""
) -> Config:
    """Change settings by nested name.

    Raises `UnknownSettingError` for an unknown name, and `ConfigError` for a value of
    another type. `where` begins their messages.
    """
    kind: Any = type(config)
    hints = _type_hints(kind)
    changes = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise UnknownSettingError(_unknown(key, config, prefix, where))
        current = getattr(config, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{where}`{key}` must be a table, but is {shown(value)}."
                )
            changes[name] = apply_mapping(current, value, where, f"{key}.")
        else:
            changes[name] = _checked(key, value, hints[name], where)
    return replace(config, **changes)  # type: ignore[type-var] # a dataclass


def convert_and_check(config: object, prefix: str = "") -> None:
    """Convert the fields of a dataclass to their own types, in place.

    Every dataclass of settings calls this first in `__post_init__`, since Python does
    not check types: "512" and True would pass for numbers. NumPy's numbers become
    Python's, as JSON files have no others. Raises `ConfigError` if a field holds a
    value of another type, none of its choices, or one outside its `Bounds`.
    """
    kind: Any = type(config)
    present = {name: getattr(config, name) for name in _type_hints(kind)}
    for name, value in converted(kind, present, prefix).items():
        object.__setattr__(config, name, value)  # the dataclasses are frozen
    for name, bounds in _bounds(kind).items():
        if (number := getattr(config, name)) is not None:
            bounds.require(f"{prefix}{name}", number)


def converted(
    kind: Any, values: Mapping[str, Any], prefix: str = "", where: str = ""
) -> dict[str, Any]:
    """Return values for fields of a dataclass, converted to the fields' own types.

    Raises `ConfigError` for a value of another type.
    """
    hints = _type_hints(kind)
    return {
        name: _checked(f"{prefix}{name}", value, hints[name], where)
        for name, value in values.items()
    }


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields.

    They are cached, since every search call has its own settings.
    """
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _bounds(kind: type) -> dict[str, Bounds]:
    """Return the bounds of a dataclass's fields, which stand in their types."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: each
        for field in fields(kind)
        for option in (hints[field.name], *typing.get_args(hints[field.name]))
        for each in getattr(option, "__metadata__", ())
        if isinstance(each, Bounds)
    }


def _value(text: str) -> Any:
    """Parse a TOML value; a bare word is a string, and `none` is None.

    Numbers such as .5 and words such as True, which TOML lacks, are read as well.
    """
    if text.lower() in PLAIN_WORDS:
        return PLAIN_WORDS[text.lower()]
    try:
        [value] = tomllib.loads(f"value = {text}").values()  # no further lines
        return value
    except (ValueError, RecursionError):
        return float(text) if DECIMAL.fullmatch(text) else text


def _checked(key: str, value: Any, expected: Any, where: str) -> Any:
    """Return a value in the type of its setting; `ConfigError` if it has another type.

    In a union, the first fitting type counts.
    """
    if type(value) is expected:
        return value
    value = without_numpy(value)
    options = typing.get_args(expected) if _is_union(expected) else (expected,)
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            if (choice := _choice(value, typing.get_args(option))) is not None:
                return choice
        elif option is float and type(value) is int and abs(value) <= MAX_WHOLE:
            return float(value)
        elif type(value) is option or _is_made_by(option, value):
            return value
        elif _fits_structure(option, value):
            return _structure(key, value, option, where)
    is_choice = all(typing.get_origin(each) is typing.Literal for each in options)
    given = _shown_choice(value) if is_choice else shown(value)
    raise ConfigError(f"{where}`{key}` must be {_describe(options)}, but is {given}.")


def without_numpy(value: Any) -> Any:
    """Return a NumPy number, flag or string as Python's, anything else as it is."""
    # By names, as importing NumPy takes long.
    kind = type(value)
    if kind.__module__ != "numpy":
        return value
    if kind.__name__ in ("bool", "bool_"):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _is_made_by(option: Any, value: Any) -> bool:
    """Whether an option is a function or a protocol, and a value can stand for it."""
    if _is_function(option):
        return callable(value)
    return getattr(option, "_is_protocol", False) and isinstance(value, option)


def _is_list(option: Any) -> bool:
    """Whether a setting is a list, kept as a tuple; type checkers let callers give a
    list where the type is `Sequence`."""
    return typing.get_origin(option) in (tuple, Sequence)


def _is_function(option: Any) -> bool:
    return typing.get_origin(option) is Callable


def _choice(value: Any, choices: Sequence[str]) -> str | None:
    """Return the choice that a value is; None if it is none of them."""
    if value is None:  # `_value` reads a bare `none` as None
        value = "none"
    return value if isinstance(value, str) and value in choices else None


def _fits_structure(option: Any, value: Any) -> bool:
    """Whether a value is the list, or the table, that an option is."""
    if _is_list(option):
        return isinstance(value, list | tuple)
    is_table = is_dataclass(option) or typing.get_origin(option) is Mapping
    return is_table and (isinstance(value, Mapping) or type(value) is option)


def _structure(key: str, value: Any, option: Any, where: str) -> Any:
    """Check the elements of a list, or the entries of a table."""
    if is_dataclass(option):
        is_made = not isinstance(value, Mapping)
        return value if is_made else _built(option, value, where, key)
    if _is_list(option):
        kind = typing.get_args(option)[0]
        return tuple(
            _checked(f"{key}[{number}]", each, kind, where)
            for number, each in enumerate(value, start=1)
        )
    _, kind = typing.get_args(option)
    return {n: _checked(f"{key}.{n}", each, kind, where) for n, each in value.items()}


def _built(kind: Any, content: Mapping[str, Any], where: str, key: str) -> Any:
    """Build a table from its settings, some of which are required."""
    for name in content:
        if name not in _type_hints(kind):
            raise ConfigError(_unknown(f"{key}.{name}", kind, f"{key}.", where))
    for field in fields(kind):
        is_required = field.default is MISSING and field.default_factory is MISSING
        if is_required and field.name not in content:
            raise ConfigError(f"{where}`{key}.{field.name}` must be given, but is not.")
    return kind(**converted(kind, content, f"{key}.", where))


def _is_union(expected: Any) -> bool:
    return typing.get_origin(expected) in (typing.Union, types.UnionType)


def _describe(options: Sequence[Any]) -> str:
    words = {
        bool: "true or false", int: "a whole number", float: "a number",
        str: "a string",
    }  # fmt: skip
    described = []
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            described.append(_listed(typing.get_args(option)))
        else:
            described.append(words.get(option) or _table_or_list(option))
    return " or ".join(described)


def _shown_choice(value: object) -> str:
    """Format a value as choices are listed: strings in double quotes."""
    if not isinstance(value, str):
        return shown(value)
    return _truncated(json.dumps(value, ensure_ascii=False))


def _listed(choices: Sequence[str]) -> str:
    *others, last = (f'"{choice}"' for choice in choices)
    return f"{', '.join(others)} or {last}"


def _table_or_list(option: Any) -> str:
    if _is_list(option):
        is_of_tables = is_dataclass(typing.get_args(option)[0])
        return "a list of tables" if is_of_tables else "a list"
    if _is_function(option):
        return "a function"
    if getattr(option, "_is_protocol", False):
        return f"of type {option.__name__}"
    is_table = is_dataclass(option) or typing.get_origin(option) is Mapping
    return "a table" if is_table else "none"


def _unknown(key: str, config: Any, prefix: str, where: str) -> str:
    """Suggest the closest setting: in the same table, or one with a similar name."""
    key = key[:LONGEST_SHOWN]
    beside = [f"{prefix}{field.name}" for field in fields(config)]
    by_ending = {name.rpartition(".")[2]: name for name in _names(config, prefix)}
    endings = get_close_matches(key.rpartition(".")[2], by_ending, n=1)
    matches = [
        *get_close_matches(key, beside, n=1, cutoff=0.75),
        *(by_ending[ending] for ending in endings),
    ]
    known = f"known are {', '.join(beside)}."
    hint = f"did you mean `{matches[0]}`?" if matches else known
    return f"{where}there is no setting `{key}`; {hint}"


def _names(config: Any, prefix: str) -> Iterator[str]:
    for field in fields(config):
        value = getattr(config, field.name, None)  # `config` may be a class
        if is_dataclass(value):
            yield from _names(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"
