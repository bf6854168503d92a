"""Help of commands: its layout, and signatures read without importing commands.

Help needs only a command's options and docstring. Its module imports PyTorch, which
takes a second, and several on a busy machine. So signatures are read from the source.
The layout has no boxes, and fits terminals of any width.
"""

import ast
import builtins
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from itertools import chain, repeat
from pathlib import Path
from textwrap import wrap
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

WIDEST_TEXT = 100
"""Maximum width of help in columns; longer lines are hard to read."""
BESIDE = 60
"""Smallest width at which a description stands beside its option, not below."""
NARROWEST_DESCRIPTION = 30
"""Smallest width of a description beside its label."""
LABEL_WIDTH = 26
"""Maximum width of an option that its description stands beside."""
INDENT = "  "
EXAMPLE_INDENT = 4 * " "
"""Indent of command lines in a docstring, which keep their line breaks."""
HIDDEN_DEFAULTS = ("False", "None", "()")
"""Defaults that are not printed, since they mean "not given"."""
PACKAGE = "transduce."


class PlainHelp:
    """Help formatter of commands, called by cyclopts."""

    def __init__(self, function: Callable[..., Any] | str = "") -> None:
        self._optional = _optional_argument(function)

    def render_usage(
        self, console: Console, options: ConsoleOptions, usage: Any
    ) -> None:
        """Print the usage of the command, with the name of an optional argument."""
        named = str(usage).replace("[ARGS", f"[{self._optional}")
        print_paragraph(console, f"Usage: {named}", style="bold")

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """Print the description of the command, paragraph by paragraph."""
        for paragraph in _plain(console, description).split("\n\n"):
            if not paragraph.strip():
                continue
            console.print()
            if paragraph.startswith(EXAMPLE_INDENT):
                self._print_examples(console, paragraph)
            else:
                print_paragraph(console, paragraph)

    def __call__(
        self, console: Console, options: ConsoleOptions, panel: HelpPanel
    ) -> None:
        """Print the options, or the commands, of one group."""
        if panel.entries:
            entries = [(_label(e), _description(console, e)) for e in panel.entries]
            print_entries(console, _plain(console, panel.title), entries, LABEL_WIDTH)

    def _print_examples(self, console: Console, paragraph: str) -> None:
        """Print command lines, each on a line of its own."""
        for example in paragraph.splitlines():
            lines = _wrapped(example, _text_width(console) - 2 * len(INDENT))
            for line, indent in zip(lines, chain([1], repeat(2)), strict=False):
                console.print(Text(indent * INDENT + line), soft_wrap=True)


def _optional_argument(function: Callable[..., Any] | str) -> str:
    """Name of the first argument that may be left out; ARGS if it is unknown."""
    if isinstance(function, str):
        return "ARGS"
    for each in signature(function).parameters.values():
        has_default = each.default is not Parameter.empty
        is_optional = each.kind is Parameter.POSITIONAL_ONLY and has_default
        if is_optional or each.kind is Parameter.VAR_POSITIONAL:
            return each.name.upper()
    return "ARGS"


PLAIN_HELP = PlainHelp()
"""Formatter of help on all commands together."""


def print_paragraph(console: Console, text: str, style: str = "") -> None:
    """Print a text, wrapped to the console's width."""
    for line in _wrapped(text, _text_width(console)):
        console.print(Text(line, style=style), soft_wrap=True)


def print_entries(
    console: Console, title: str, entries: Sequence[tuple[str, str]], widest_label: int
) -> None:
    """Print a title and labels with their descriptions.

    A description stands beside its label, or below a label wider than `widest_label`.
    On a narrow console all descriptions stand below.
    """
    console.print()
    print_paragraph(console, f"{title}:", style="bold")
    label_width = min(max(len(label) for label, _ in entries), widest_label)
    for label, description in entries:
        for line in _entry_lines(console, label, description, label_width):
            console.print(line, soft_wrap=True)


def _label(entry: HelpEntry) -> str:
    return ", ".join(entry.display_labels_with_metavar)


def _entry_lines(
    console: Console, label: str, description: str, label_width: int
) -> Iterator[Text]:
    """Label with its description beside it, or below it on a narrow terminal."""
    width = _text_width(console)
    indent = len(INDENT) + label_width + len(INDENT)
    is_beside = width >= max(BESIDE, indent + NARROWEST_DESCRIPTION)
    if not is_beside:
        indent = 2 * len(INDENT)
    described = _wrapped(description, width - indent)
    if is_beside and len(label) <= label_width:
        first, *described = described or [""]
        yield (
            Text(INDENT)
            .append(f"{label:<{label_width}}", "cyan")
            .append(f"{INDENT}{first}".rstrip())
        )
    elif len(label) <= width - len(INDENT):
        yield Text(INDENT).append(label, "cyan")
    else:
        for line in _wrapped(label, width - len(INDENT)):
            yield Text(INDENT).append(line, "cyan")
    for line in described:
        yield Text(" " * indent + line)


def _description(console: Console, entry: HelpEntry) -> str:
    parts = [_plain(console, entry.description)]
    if entry.choices:
        parts.append(f"[choices: {', '.join(entry.choices)}]")
    if entry.default is not None and entry.default not in HIDDEN_DEFAULTS:
        parts.append(f"[default: {_as_given(entry.default)}]")
    if entry.required:
        parts.append("[required]")
    return " ".join(parts)


def _as_given(default: str) -> str:
    """Default as a user types it: `1 2` for `(1, 2)`."""
    with suppress(ValueError, SyntaxError):
        value = literal_eval(default)
        if isinstance(value, tuple):
            return " ".join(map(str, value))
    return default


def _plain(console: Console, content: Any) -> str:
    """Printed text of a renderable, with the line breaks of its source."""
    if isinstance(content, str):
        return content
    wide = console.options.update(width=100_000)
    return "".join(segment.text for segment in console.render(content, wide)).strip()


def _text_width(console: Console) -> int:
    return min(console.width, WIDEST_TEXT)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(" ".join(text.split()), width, break_on_hyphens=False)


class UnresolvedError(LookupError):
    """A name in a signature is neither an import nor a plain assignment."""


def option_name(parameter: str) -> str:
    """Return the option of a command's parameter, such as --dev-source."""
    return f"--{parameter.strip('_').replace('_', '-')}"


def described(reference: str) -> Callable[..., Any] | str:
    """Return a function with the signature and docstring of "module:function".

    Its body does nothing. If the source does not suffice, return the reference.
    """
    module, _, name = reference.partition(":")
    try:
        return _function(module, name)
    except UnresolvedError:
        return reference


def _function(module: str, name: str) -> Callable[..., Any]:
    node = _definitions(module).get(name)
    if not isinstance(node, ast.FunctionDef):
        raise UnresolvedError(name)
    bare = copy(node)
    bare.body = [ast.Expr(ast.Constant(ast.get_docstring(node, clean=False) or ""))]
    bare.decorator_list = []
    parts = [node.args, *([node.returns] if node.returns else [])]
    namespace = _namespace(module, *parts)
    tree = ast.fix_missing_locations(ast.Module(body=[bare], type_ignores=[]))
    exec(compile(tree, module, "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def _value(module: str, name: str) -> Any:
    """Return the value of a module-level name."""
    node = _definitions(module).get(name)
    match node:
        case ast.ImportFrom(module=str(origin)):
            [original] = [a.name for a in node.names if (a.asname or a.name) == name]
            if origin.startswith(PACKAGE):
                return _value(origin, original)
            return getattr(import_module(origin), original)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            expression = ast.Expression(value)
            code = compile(ast.fix_missing_locations(expression), module, "eval")
            return eval(code, _namespace(module, value))
        case _:
            raise UnresolvedError(name)


def _namespace(module: str, *nodes: ast.AST) -> dict[str, Any]:
    """Return the values of the names that some parts of a module use."""
    names = {
        node.id
        for part in nodes
        for node in ast.walk(part)
        if isinstance(node, ast.Name)
    }
    return {n: _value(module, n) for n in sorted(names) if not hasattr(builtins, n)}


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return the statements that define the names of a module."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UnresolvedError(module)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return {name: node for node in tree.body for name in _names(node)}


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ImportFrom():
            yield from (alias.asname or alias.name for alias in node.names)
        case ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
