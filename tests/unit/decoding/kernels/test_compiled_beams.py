"""Beams that a kernel lets grow are those in lists, number by number."""

import math
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.decoding import beam_search, greedy_search
from transduce.decoding.beam_search import BeamSearch
from transduce.decoding.greedy_search import GreedySearch
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.kernels.library import kernels
from transduce.search_config import SearchConfig

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

EOS = 2
searches = st.builds(
    lambda beam_size, num_best, coverage_penalty, **others: SearchConfig(
        beam_size=beam_size,
        num_best=min(num_best, beam_size),
        coverage_penalty=coverage_penalty if beam_size > 1 else 0.0,
        **others,
    ),
    beam_size=st.sampled_from([1, 2, 4, 7]),
    num_best=st.integers(1, 7),
    patience=st.sampled_from([None, 0.3, 1.0, 2.5, 1e3]),
    length_penalty=st.sampled_from([0.0, 0.6, 1.3]),
    penalty=st.sampled_from(["gnmt", "power"]),
    diversity=st.sampled_from([0.0, 0.4]),
    min_length=st.integers(0, 5),
    coverage_penalty=st.sampled_from([0.0, 0.3]),
)


def random_logits(
    generator: torch.Generator, shape: tuple[int, int, int], damage: int
) -> Tensor:
    """With tokens that cannot come (1), or without numbers (2), or equals (3)."""
    logits = torch.randn(shape, generator=generator)
    if damage == 3:
        logits = logits.round()  # many are equal
    logits[..., EOS] += 1.5
    if damage == 1:
        others = logits[..., 3:]
        others[torch.rand(others.shape, generator=generator) < 0.7] = -math.inf
    if damage == 2:
        logits[:, 0, 1] = math.nan
    return logits


def found(
    kind: type[BeamSearch] | type[GreedySearch],
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    vocab: int,
    seed: int,
    damage: int,
) -> list[list[Hypothesis]]:
    """With others that join after three steps."""
    generator = torch.Generator().manual_seed(seed)
    half = len(limits) // 2
    size = config.beam_size if kind is BeamSearch else 1
    excluded = (0, 1) if vocab > 5 else ()
    shape: tuple[int, int, int]

    def coverage() -> np.ndarray:
        """Coverage of the hypotheses that the logits follow."""
        return -torch.rand(shape[:2], generator=generator).double().numpy()

    def begun(part: slice) -> tuple[BeamSearch | GreedySearch, list]:
        nonlocal shape
        asked = limits[part], config, EOS, excluded, prefixes[part]
        is_covered = kind is BeamSearch and config.coverage_penalty > 0
        search = kind(*asked, coverage) if is_covered else kind(*asked)
        sentences = list(search.live)
        shape = len(sentences), 1, vocab
        search.grow(random_logits(generator, shape, 0))
        return search, sentences

    search, sentences = begun(slice(half, None))
    steps = 0
    while search.live:
        shape = len(search.live), size, vocab
        rows, tokens = search.grow(random_logits(generator, shape, damage))
        assert rows.shape == tokens.shape == (len(search.live), size)
        steps += 1
        if steps == 3:
            others, more = begun(slice(half))
            sentences += more
            if search.live:
                search.join(others)
            else:
                search = others
    return [each.hypotheses() for each in sentences]


@given(
    config=searches,
    lengths=st.lists(st.integers(1, 80), min_size=2, max_size=7),
    prefix=st.lists(st.integers(EOS, 4), max_size=4),
    vocab=st.sampled_from([5, 9, 300]),
    seed=st.integers(0, 999),
    damage=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_they_are_those_in_lists(config, lengths, prefix, vocab, seed, damage):
    limits = [max(length, config.min_length + 1) for length in lengths]
    prefixes = [prefix if i % 2 else [] for i in range(len(limits))]
    asked = (config, limits, prefixes, vocab, seed, damage)
    for kind, module in ((BeamSearch, beam_search), (GreedySearch, greedy_search)):
        compiled = found(kind, *asked)
        with mock.patch.object(module, "kernels", return_value=None):
            listed = found(kind, *asked)
        # By their text, as NaN is not itself.
        assert repr(compiled) == repr(listed)


def test_a_hypothesis_that_has_no_number_for_its_likelihood_goes_on_to_the_limit():
    search = BeamSearch([3], SearchConfig(beam_size=2), EOS)
    [sentence] = search.live
    search.grow(torch.full((1, 1, 9), math.nan))
    search.grow(torch.full((1, 2, 9), math.nan))
    search.grow(torch.full((1, 2, 9), math.nan))
    assert not search.live
    assert sentence.hypotheses() == []


def test_greedy_search_heeds_nothing_that_is_for_beams():
    config = SearchConfig(beam_size=4, num_best=3, coverage_penalty=0.2)
    search = GreedySearch([2], config, EOS)
    [sentence] = search.live
    search.grow(torch.tensor([[[0.0, 0.0, 0.0, 9.0]]]))
    search.grow(torch.tensor([[[0.0, 0.0, 0.0, 9.0]]]))
    [found] = sentence.hypotheses()
    assert found.ids == (3, 3)
