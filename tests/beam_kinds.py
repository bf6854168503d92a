"""Search by a kernel and in lists: what holds of one must hold of the other."""

from collections.abc import Iterator

import pytest

from transduce.decoding.kernels.library import kernels


@pytest.fixture(params=["by a kernel", "in lists"], scope="module", autouse=True)
def kind_of_beam(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each kind, for all tests of a module that imports this."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in lists":
            for module in ("beam_search", "greedy_search"):
                patch.setattr(f"transduce.decoding.{module}.kernels", lambda: None)
        elif kernels() is None:
            pytest.skip("this processor can run no kernel")
        yield
