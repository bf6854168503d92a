"""Searches by the native library find what those in Python find, bit for bit."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.decoding.beam_search import BeamSearch, GreedySearch
from transduce.decoding.native_search import NativeGreedySearch, NativeSearch
from transduce.decoding.search import Hypothesis
from transduce.native import api
from transduce.search_config import SearchConfig

pytestmark = pytest.mark.skipif(api() is None, reason="there is no native library")

EOS = 2
AnySearch = BeamSearch | GreedySearch | NativeSearch
GREEDY = (GreedySearch, NativeGreedySearch)
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
    no_repeat_ngram=st.sampled_from([0, 0, 1, 2]),  # 1 soon leaves no token
)


def random_logits(
    generator: torch.Generator, shape: tuple[int, int, int], damage: int
) -> Tensor:
    """Random logits with impossible tokens (1), NaN (2) or equal values (3)."""
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
    kind: type[AnySearch],
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    vocab: int,
    seed: int,
    damage: int,
) -> list[list[Hypothesis]]:
    """Results of a search that other sentences join after three steps."""
    generator = torch.Generator().manual_seed(seed)
    half = len(limits) // 2
    size = 1 if kind in GREEDY else config.beam_size
    excluded = (0, 1) if vocab > 5 else ()
    shape: tuple[int, int, int]

    def coverage() -> np.ndarray:
        """Coverage of the hypotheses that the logits follow."""
        return -torch.rand(shape[:2], generator=generator).double().numpy()

    def begun(part: slice) -> tuple[AnySearch, list]:
        nonlocal shape
        asked = limits[part], config, EOS, excluded, prefixes[part]
        is_covered = config.coverage_penalty > 0 and kind not in GREEDY
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
    return [each.hypotheses for each in sentences]


@given(
    config=searches,
    lengths=st.lists(st.integers(1, 80), min_size=2, max_size=7),
    prefix=st.lists(st.integers(EOS, 4), max_size=4),
    vocab=st.sampled_from([5, 9, 300]),
    seed=st.integers(0, 999),
    damage=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_native_searches_find_what_those_in_python_find(
    config, lengths, prefix, vocab, seed, damage
):
    limits = [max(length, config.min_length + 1) for length in lengths]
    prefixes = [prefix if i % 2 else [] for i in range(len(limits))]
    asked = (config, limits, prefixes, vocab, seed, damage)
    for kind, native in (
        (BeamSearch, NativeSearch),
        (GreedySearch, NativeGreedySearch),
    ):
        # Compared by their text, as NaN is not equal to itself.
        assert repr(found(native, *asked)) == repr(found(kind, *asked))


@pytest.mark.parametrize("penalty", ["gnmt", "power"])
@pytest.mark.parametrize("alpha", [0, 0.0, 0.6, 1, 1.3, 2, 3.7, 10])
def test_native_scores_equal_those_of_the_search_config(penalty, alpha):
    config = SearchConfig(length_penalty=alpha, penalty=penalty, min_length=2)
    limits = [3, 7, 40, 300]
    search = NativeSearch(limits, config, EOS, (EOS,))
    sentences = list(search.live)
    generator = torch.Generator().manual_seed(1)
    search.grow(torch.randn(4, 1, 20, generator=generator))
    while search.live:
        search.grow(torch.randn(len(search.live), 4, 20, generator=generator))
    for limit, sentence in zip(limits, sentences, strict=True):
        for each in sentence.hypotheses:
            assert len(each.ids) == limit
            assert each.score == config.score(each.log_probability, limit)


def test_hypotheses_with_a_nan_score_continue_to_the_limit():
    search = NativeSearch([3], SearchConfig(beam_size=2), EOS)
    [sentence] = search.live
    search.grow(torch.full((1, 1, 9), math.nan))
    search.grow(torch.full((1, 2, 9), math.nan))
    search.grow(torch.full((1, 2, 9), math.nan))
    assert not search.live
    assert sentence.hypotheses == []


def test_greedy_search_ignores_settings_for_beams():
    config = SearchConfig(beam_size=4, num_best=3, coverage_penalty=0.2)
    search = NativeGreedySearch([2], config, EOS)
    [sentence] = search.live
    search.grow(torch.tensor([[[0.0, 0.0, 0.0, 9.0]]]))
    search.grow(torch.tensor([[[0.0, 0.0, 0.0, 9.0]]]))
    [found] = sentence.hypotheses
    assert found.ids == (3, 3)


def test_a_prefix_outside_the_vocabulary_is_refused_and_changes_nothing():
    search = NativeSearch([5], SearchConfig(), EOS, prefixes=[[30]])
    with pytest.raises(IndexError, match="token id is outside the vocabulary"):
        search.grow(torch.zeros(1, 1, 9))
    rows, tokens = search.grow(torch.zeros(1, 1, 31))
    assert (rows.tolist(), tokens.tolist()) == ([[0] * 4], [[30] * 4])


def test_searches_with_different_settings_do_not_join():
    searches = [NativeSearch([5], SearchConfig(beam_size=n), EOS) for n in (2, 3)]
    with pytest.raises(ValueError, match="argument is out of range"):
        searches[0].join(searches[1])
