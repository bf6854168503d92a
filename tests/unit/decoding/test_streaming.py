"""Results of a stream in order."""

from collections.abc import Iterator
from itertools import permutations

import pytest

from transduce.decoding.translations import in_order


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
