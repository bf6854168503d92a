"""Sentences that describe mistakes in a command line.

They name what was meant where that can be guessed: a similar option, a setting of a
run, or the options that name files.
"""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, get_args, get_origin

from cyclopts import (
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from transduce.cli import DASH_AS_FILE, DEFAULT_PARAMETER
from transduce.cli.help import option_name
from transduce.errors import counted

NUMBERS = {int: "a whole number", float: "a number", bool: "true or false"}
"""Descriptions of the values of some types."""


def described_mistake(error: CycloptsError) -> str:
    """Describe a mistake in a command line as one sentence."""
    match error:
        case UnusedCliTokensError():
            unused = [f'"{each}"' for each in error.unused_tokens or ()]
            noun = "argument" if len(unused) == 1 else "arguments"
            instead = _instead_of_arguments(error.target) if error.target else ""
            message = f"Unexpected {noun}: {', '.join(unused)}{instead}."
        case UnknownOptionError(token=Token(keyword=str() as name)) if name in _options(
            error
        ):  # the parser knows it, so it stands after --
            message = (
                f'Unexpected argument: "{name}", as all words after -- are arguments.'
                if name in _options_at_dashes(error)[0]
                else f"{name} must stand before --, as all words after -- are "
                "arguments."
            )
        case UnknownOptionError(token=Token() as token) if (
            name := (token.keyword or token.value).partition("=")[0]
        ).startswith("--"):
            message = f"Unknown option: {name}.{_instead_of_option(name, error)}"
        case CoercionError(msg=None, token=Token() as token) if expected := _expected(
            error.target_type
        ):
            given = f'"{token.value}"' if token.value.strip() else "empty"
            message = f"{_name(token, error)} must be {expected}, but is {given}."
        case RepeatArgumentError():
            message = f"{error.token.keyword} must be given once, but is given again."
        case MissingArgumentError(argument=argument) if argument is not None:
            message = _missing(argument, error)
        case _:
            message = " ".join(str(error).split())
    return message.replace(DASH_AS_FILE, "-")


def _instead_of_option(name: str, error: CycloptsError) -> str:
    """Return a space and a sentence that guesses what an unknown option means."""
    options = _options(error)
    if {"--set", "--config"} <= options and (settings := _settings_named(name)):
        return (
            f" The setting {' or '.join(settings)} is given as --set "
            f"{settings[0]}=VALUE."
        )
    # Without dashes, which all options share.
    words = sorted(option.lstrip("-") for option in options if option[:2] == "--")
    similar = get_close_matches(name.lstrip("-"), words, n=1, cutoff=0.6)
    return f" Did you mean --{similar[0]}?" if similar else ""


def _settings_named(option: str) -> list[str]:
    """Return the settings of a run that an option names, as --dropout does."""
    from transduce.cli.settings import setting_tables  # not for every mistake

    asked = option.lstrip("-").replace("-", "_")
    found = (each for table in setting_tables() for each in table.settings)
    return [each.name for each in found if asked in (each.name, each.key)]


def _instead_of_arguments(function: Callable[..., Any]) -> str:
    """Return the end of a sentence about the options that name a command's files."""
    if function.__name__ in ("translate", "sample", "parse"):
        return "; text is read from standard input or --input"
    if function.__name__ == "presets":
        return "; `transduce settings` shows the preset that it is given"
    options = inspect.signature(function).parameters
    if "trees" in options:
        return "; name text by --source and --target, or trees by --trees"
    for names in (("source", "target"), ("dev_source", "dev_target"), ("out",)):
        if all(name in options for name in names):
            listed = " and ".join(map(option_name, names))
            return (
                f"; name {'the output' if names == ('out',) else 'files'} by {listed}"
            )
    return ""


def _expected(hint: Any) -> str:
    """Describe a type's values; empty for types that describe themselves."""
    kinds = {get_origin(each) or each: each for each in get_args(hint) or (hint,)}
    words = [NUMBERS[kind] for kind in kinds if kind in NUMBERS]
    choices = [str(name) for each in kinds.values() for name in get_args(each)]
    return " or ".join(words + choices) if words else ""


def _name(token: Token, error: CycloptsError) -> str:
    """Return the name of the option or argument of a value."""
    if token.keyword or error.argument is None:
        return token.keyword or "A value"
    return error.argument.name.lstrip("-").upper()


def _missing(argument: Argument, error: MissingArgumentError) -> str:
    """Return the message about an option that is missing or lacks values."""
    name = error.keyword or next(
        (token.keyword for token in argument.tokens if token.keyword), argument.name
    )
    if error.keyword is not None or argument.tokens:
        count, _ = argument.token_count()
        values = "a value" if count == 1 else counted(count, "value")
        given = len(error.tokens_so_far) or "none"
        remedy = _remedy_for_dash(name, error)
        return f"{name} must have {values}, but has {given}{remedy}."
    unknown = [
        word for word in error.unused_tokens or () if not _is_option(word, error)
    ]
    mistyped = get_close_matches(name, unknown, n=1, cutoff=0.6)
    instead = f", but {mistyped[0]} is given instead" if mistyped else ""
    if not set(argument.names).isdisjoint(_options_at_dashes(error)[1]):
        instead = " before --, as all words after -- are arguments"
    return f"{name} must be given{instead}."


def _options(error: CycloptsError) -> set[str]:
    """Return the names of all options of the command of a mistake."""
    if error.app is None:
        return set()
    return {
        name
        for argument in error.app.assemble_argument_collection(
            default_parameter=DEFAULT_PARAMETER
        )
        for name in (*argument.names, *argument.negatives)
        if name.startswith("-")
    }


def _is_option(word: str, error: CycloptsError) -> bool:
    """Return whether a word, perhaps with a value, is an option of the command."""
    return word.split("=", 1)[0] in _options(error)


def _options_at_dashes(error: CycloptsError) -> tuple[list[str], list[str]]:
    """Return the words before and after a lone `--`, without the values after `=`."""
    words = list(error.root_input_tokens or ())
    end = words.index("--") if "--" in words else len(words)
    names = [word.split("=")[0] for word in words]
    return names[:end], names[end + 1 :]


def _remedy_for_dash(name: str, error: CycloptsError) -> str:
    """Return a remedy if the word after an option begins with a dash.

    The name of a file may begin so, but the parser takes it for another option.
    """
    for word, value in pairwise(error.root_input_tokens or ()):
        if word != name or not value.startswith("-"):
            continue
        if not _is_option(value, error):
            return f"; write {name}={value} if {value} is the value and no option"
    return ""
