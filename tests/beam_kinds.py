"""Searches by the native library and in Python, for which the same tests hold."""

from collections.abc import Iterator

import pytest

from transduce.native import api


@pytest.fixture(params=["native", "in Python"], scope="module", autouse=True)
def kind_of_beam(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run all tests of a module that imports this with each kind."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in Python":
            for module in ("beam_search", "greedy_search"):
                patch.setattr(f"transduce.decoding.{module}.api", lambda: None)
        elif api() is None:
            pytest.skip("there is no native library")
        yield
