"""Searches by the native library and by Python, which pass the same tests."""

from collections.abc import Iterator, Sequence

import pytest

from transduce.decoding import backend
from transduce.decoding.beam_search import BeamSearch, Excluded, GreedySearch
from transduce.decoding.native_search import NativeGreedySearch, NativeSearch
from transduce.decoding.search import Decoder, Hypothesis, Search, run_search
from transduce.native import api
from transduce.search_config import SearchConfig


@pytest.fixture(params=["native", "in Python"], scope="module", autouse=True)
def kind_of_beam(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run all tests of a module that imports this with each kind."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in Python":
            patch.setattr(backend, "has_native_search", lambda: False)
        elif api() is None:
            pytest.skip("there is no native library")
        yield


def start_beam_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Search:
    """Start beam search of the kind under test, also with a beam size of 1."""
    kind = NativeSearch if backend.has_native_search() else BeamSearch
    return kind(max_lengths, config, eos, excluded, prefixes)


def start_greedy_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Search:
    """Start greedy search of the kind under test, whatever the beam size."""
    kind = NativeGreedySearch if backend.has_native_search() else GreedySearch
    return kind(max_lengths, config, eos, excluded, prefixes)


def beam_search(
    decoder: Decoder,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return what beam search of the kind under test finds."""
    search = start_beam_search(max_lengths, config, eos, excluded, prefixes)
    return run_search(decoder, search, bos)


def greedy_search(
    decoder: Decoder,
    max_lengths: Sequence[int],
    config: SearchConfig,
    *,
    bos: int,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return what greedy search of the kind under test finds."""
    search = start_greedy_search(max_lengths, config, eos, excluded, prefixes)
    return run_search(decoder, search, bos)
