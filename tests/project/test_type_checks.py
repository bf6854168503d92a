"""The quick checks of types find what jaxtyping's own would find."""

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from quick_types import CHECKED_CALLS, jaxtyped

checked = jaxtyped(typechecker=beartype)


@checked
def product(
    left: Float[Tensor, "a b"], right: Float[Tensor, "b c"]
) -> Float[Tensor, "a c"]:
    return left @ right if len(left) < 9 else right


@checked
def first(number: int, x: Float[Tensor, " size"]) -> Float[Tensor, " {number}"]:
    return x[:3]


@checked
def half(number: int) -> int:
    return number // 2 if number < 9 else number / 2  # type: ignore[return-value]


@checked
def numbers(number: int) -> Iterator[int]:
    yield from range(number)


@checked
@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("fn", "right", "wrong"),
    [
        (product, (torch.ones(2, 3), torch.ones(3, 4)), (torch.ones(2), torch.ones(2))),
        (
            product,
            (torch.ones(3, 3), torch.ones(3, 5)),
            (torch.ones(2, 3), torch.ones(4, 5)),
        ),
        (
            product,
            (torch.ones(8, 3), torch.ones(3, 5)),
            (torch.ones(9, 3), torch.ones(3, 5)),
        ),
        (first, (3, torch.ones(5)), (2, torch.ones(5))),
        (half, (4,), ("four",)),
        (half, (8,), (10,)),
        (numbers, (2,), ("two",)),
        (Point, (1,), ("one",)),
    ],
)
def test_a_wrong_type_is_found_at_a_call(
    fn: Callable[..., Any], right: tuple[object, ...], wrong: tuple[object, ...]
) -> None:
    fn(*right)
    with pytest.raises(TypeCheckError):
        fn(*wrong)


@pytest.mark.parametrize("number", [1, 2])
def test_types_of_the_first_calls_in_each_test_are_checked(number: int) -> None:
    for _ in range(CHECKED_CALLS - 1):
        half(number)
    with pytest.raises(TypeCheckError):
        half(number + 0.5)  # type: ignore[arg-type]
    assert half(9.0) == 4.5  # type: ignore[arg-type]


def called_inner_function() -> weakref.ref[object]:
    """Return a reference to a function that only this call knows."""

    @checked
    def inner(value: int) -> int:
        return value

    inner(1)
    return weakref.ref(inner.__wrapped__)  # type: ignore[attr-defined]


def test_a_checked_inner_function_is_not_kept_alive() -> None:
    inner = called_inner_function()
    gc.collect()
    assert inner() is None


@pytest.mark.usefixtures("unchecked_types")
def test_types_are_unchecked_where_a_test_says_so() -> None:
    assert half(9.0) == 4.5  # type: ignore[arg-type]
    assert Point("one").x == "one"  # type: ignore[arg-type, comparison-overlap]
