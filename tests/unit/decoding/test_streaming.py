"""Windows of a stream, and results in order."""

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from threading import Event

import pytest

from transduce.decoding.translations import (
    Windows,
    arriving_windows,
    full_windows,
    in_order,
)


@pytest.mark.parametrize(
    "kind", [partial(full_windows, size=3), partial(arriving_windows, size=3)]
)
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_available_lines_are_cut_into_full_windows(kind: Windows, count: int) -> None:
    found = list(kind(iter(range(count))))
    assert found == [list(range(i, min(i + 3, count))) for i in range(0, count, 3)]


def test_arrived_lines_do_not_wait_for_later_ones() -> None:
    asked = Event()

    def lines() -> Iterator[str]:
        yield "one"
        yield "two"
        # Like a user who writes the next line after the answer to this one.
        assert asked.wait(timeout=60)
        yield "three"

    found = arriving_windows(lines(), pause_s=0.2)
    assert next(found) == ["one", "two"]
    asked.set()
    assert list(found) == [["three"]]


@pytest.mark.parametrize("kind", [full_windows, arriving_windows])
def test_an_error_of_a_stream_is_raised(kind: Windows) -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise ValueError("no second")

    with pytest.raises(ValueError, match="no second"):
        list(kind(lines()))


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_early_results_wait_for_those_before_them(order: tuple[int, ...]) -> None:
    come: list[int] = []

    def numbered() -> Iterator[tuple[int, str]]:
        for number in order:
            come.append(number)
            yield number, "abcd"[number]

    for number, letter in enumerate(in_order(numbered())):
        assert letter == "abcd"[number]
        assert len(come) == 1 + max(order.index(each) for each in range(number + 1))
