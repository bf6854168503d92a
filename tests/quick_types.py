"""Quick checks of types, which find the same mistakes as jaxtyping's.

jaxtyping binds the arguments of each call to their names, which only axes such as "{n}"
need, and checks them twice, which tests spend a fifth of their time on. Here the type
checker runs once. Importing this module lets jaxtyping's import hook use it.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial, wraps
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

BY_NAMES = jaxtyping.jaxtyped
"""Check that binds the arguments."""
AXES = BY_NAMES("context")
"""Context of a call in which an axis has one size."""
CHECKER = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
"""Check that raises the errors of jaxtyping, which are `TypeError`s."""
CHECKED_CALLS = 100
"""Calls of a function in one test whose types are checked. Later ones are those of a
loop, such as the steps of a search, and checking them takes a fifth of the time."""
CALLS: dict[int, int] = {}
"""Checked calls of each function in the current test, by the identity of its code: an
inner function as a key would keep alive what it refers to."""
NOT_GIVEN = object()
LAZY = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)
"""Kinds of functions that run after their call, which jaxtyping checks."""


def jaxtyped(fn: Any = NOT_GIVEN, *, typechecker: Any = NOT_GIVEN) -> Any:
    """Check the types of a function or class, in place of `jaxtyping.jaxtyped`."""
    if typechecker is NOT_GIVEN:
        return BY_NAMES(fn)
    if fn is NOT_GIVEN:
        return partial(jaxtyped, typechecker=typechecker)
    if inspect.isfunction(fn) and not any(kind(fn) for kind in LAZY):
        return _checked_at_calls(fn, partial(_checker, fn, typechecker))
    if inspect.isclass(fn) and is_dataclass(fn) and "__init__" in vars(fn):
        init = vars(fn)["__init__"]
        if inspect.isfunction(init) and (hints := _quick_hints(init)) is not None:
            checker = partial(_quick_checker, init, hints)
            fn.__init__ = _checked_at_calls(init, checker)  # type: ignore[misc]
            return fn
    return BY_NAMES(fn, typechecker=typechecker)


def _checked_at_calls(
    fn: FunctionType, make_checker: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a function that checks types.

    The checker is made at the first call that is checked: it takes a millisecond, and
    most functions are not called in a process.
    """
    code = id(fn.__code__)
    checked: Callable[..., Any] | None = None

    @wraps(fn)
    def call(*args: Any, **given: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        number = CALLS.get(code, 0)
        if number >= CHECKED_CALLS or jaxtyping.config.jaxtyping_disable:
            return fn(*args, **given)
        CALLS[code] = number + 1
        if checked is None:
            checked = make_checker()
        return checked(*args, **given)

    return call


def _checker(fn: FunctionType, typechecker: Any) -> Callable[..., Any]:
    """Return the function with checks of its types, quick ones if they suffice."""
    hints = _quick_hints(fn)
    if hints is None:
        return BY_NAMES(fn, typechecker=typechecker)
    return _quick_checker(fn, hints)


def _quick_hints(fn: FunctionType) -> dict[str, Any] | None:
    """Return the types of a function, or None if their checks need jaxtyping."""
    try:
        hints = {
            name: _resolved(hint, fn.__globals__)
            for name, hint in fn.__annotations__.items()
        }
    except NameError:  # a quoted type that is not defined when the program runs
        return None
    needs_names = any("{" in axes for hint in hints.values() for axes in _axes(hint))
    return None if needs_names else hints


def _quick_checker(fn: FunctionType, hints: dict[str, Any]) -> Callable[..., Any]:
    typed = FunctionType(
        fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    typed.__kwdefaults__ = fn.__kwdefaults__
    typed.__annotations__ = hints
    typed.__module__, typed.__qualname__ = fn.__module__, fn.__qualname__
    checked: Callable[..., Any] = CHECKER(typed)
    if not any(True for hint in hints.values() for _ in _axes(hint)):
        return checked

    def in_context(*args: Any, **given: Any) -> Any:
        __tracebackhide__ = True
        with AXES:
            return checked(*args, **given)

    return in_context


def _resolved(hint: object, namespace: dict[str, Any]) -> object:
    """Resolve a quoted type; raise `NameError` if it is not known yet."""

    def holder(value: Any) -> None: ...

    holder.__annotations__ = {"value": hint}
    return get_type_hints(holder, namespace, include_extras=True)["value"]


def _axes(hint: object) -> Iterator[str]:
    """Yield the names of the axes of all arrays in a type."""
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        yield hint.dim_str
    for inner in get_args(hint):
        yield from _axes(inner)


jaxtyping.jaxtyped = jaxtyped
