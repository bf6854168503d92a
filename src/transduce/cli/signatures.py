"""Signatures of commands, read from their source without importing it.

Help needs only a command's options and docstring. Its module imports PyTorch, which
takes a second, and several on a busy machine.
"""

import ast
import builtins
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "transduce."


class UnresolvedError(LookupError):
    """A name in a signature is neither an import nor a plain assignment."""


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
