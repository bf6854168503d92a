"""Properties of search that hold for random tiny models, sources and settings."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_kinds import beam_search
from native_reading import after
from transduce.data.tensors import pad_rows
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.search import Ensemble, Hypothesis, JoinableDecoder
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import score_targets
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

Ids = Sequence[int]
VOCAB_SIZE = 19
few_examples = settings(max_examples=25, deadline=None, derandomize=True, database=None)
Kind = tuple[int, bool]
"""Seed of a model, and whether it runs by native kernels if there are any."""
kinds = st.tuples(st.integers(0, 5), st.booleans())
sentences = st.lists(st.integers(EOS + 1, VOCAB_SIZE - 1), min_size=1, max_size=9)
searches = st.builds(
    SearchConfig,
    beam_size=st.integers(2, 5),
    num_best=st.integers(1, 2),
    patience=st.sampled_from([None, 0.6, 1.0, 2.0]),
    length_penalty=st.sampled_from([0.0, 0.6, 1.2]),
    penalty=st.sampled_from(["gnmt", "power"]),
    extra_length=st.just(4),
)


class Model(NamedTuple):
    plain: Transformer
    read: Callable[[list[list[int]]], JoinableDecoder]
    """Function that encodes sources and returns their decoder."""


@cache
def random_model(seed: int, by_kernels: bool) -> Model:
    """Model with weights so large that its choices are clear and sentences end."""
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=VOCAB_SIZE, num_layers=1, d_model=16, d_ff=20, num_heads=2, d_k=8,
        d_v=8, dropout=0.0,
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    if by_kernels and api() is not None:
        weights = {n: w.numpy() for n, w in model.state_dict().items()}
        native = NativeModel(config, weights, "fp32")
        return Model(model, partial(after, native))
    return Model(model, lambda rows: TorchDecoder(model, model.encode(pad_rows(rows))))


def ended(sources: Sequence[Ids]) -> list[list[int]]:
    return [[*source, EOS] for source in sources]


@torch.no_grad()
def search(
    model: Model,
    sources: Sequence[Ids],
    config: SearchConfig,
    prefixes: Sequence[Ids] | None = None,
    num_members: int = 0,
) -> list[list[Hypothesis]]:
    """Search by the model alone, or by an ensemble of copies of it."""
    members = [model.read(ended(sources)) for _ in range(max(num_members, 1))]
    asked: JoinableDecoder = Ensemble(members) if num_members else members[0]
    limits = [config.limit(len(source) + 1) for source in sources]
    return beam_search(
        asked,
        limits,
        config,
        bos=BOS,
        eos=EOS,
        excluded=(PAD, BOS),
        prefixes=prefixes,
    )


def assert_same(
    found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]
) -> None:
    assert [beam[0].ids for beam in found] == [beam[0].ids for beam in expected]
    for beam, other in zip(found, expected, strict=True):
        assert beam[0].score == pytest.approx(other[0].score, abs=1e-4)


@given(
    kind=kinds,
    sources=st.lists(sentences, min_size=2, max_size=5),
    config=searches,
    data=st.data(),
)
@few_examples
def test_the_best_hypothesis_depends_neither_on_batch_order_nor_padding(
    kind: Kind,
    sources: list[list[int]],
    config: SearchConfig,
    data: st.DataObject,
) -> None:
    model = random_model(*kind)
    alone = [search(model, [source], config)[0] for source in sources]
    order = data.draw(st.permutations(range(len(sources))))
    # The longest possible sentence, so that all others are padded.
    together = search(model, [*(sources[i] for i in order), [5] * 12], config)
    assert_same(together[:-1], [alone[i] for i in order])


@given(kind=kinds, source=sentences, config=searches)
@few_examples
def test_the_n_best_are_sorted_and_distinct_with_correct_scores(
    kind: Kind, source: list[int], config: SearchConfig
) -> None:
    model = random_model(*kind)
    [found] = search(model, [source], config)
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    assert len({each.ids for each in found}) == len(found)
    for each in found:
        if each.is_finished:
            [rescored] = score_targets(
                model.plain, pad_rows(ended([source])), [list(each.ids)]
            )
            assert each.log_probability == pytest.approx(
                rescored.log_probability, abs=1e-4
            )
        length = len(each.ids) + each.is_finished
        assert each.score == config.score(each.log_probability, length)


@given(
    kind=kinds,
    sources=st.lists(sentences, min_size=1, max_size=3),
    config=searches,
    num_members=st.integers(1, 3),
)
@few_examples
def test_an_ensemble_of_a_model_with_itself_equals_the_model(
    kind: Kind,
    sources: list[list[int]],
    config: SearchConfig,
    num_members: int,
) -> None:
    model = random_model(*kind)
    alone = search(model, sources, config)
    assert_same(search(model, sources, config, num_members=num_members), alone)


@given(
    kind=kinds,
    pairs=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=3),
    config=searches,
)
@few_examples
def test_all_hypotheses_begin_with_their_prefix(
    kind: Kind,
    pairs: list[tuple[list[int], list[int]]],
    config: SearchConfig,
) -> None:
    sources = [source for source, _ in pairs]
    prefixes = [prefix[: len(source)] for source, prefix in pairs]
    for prefix, beam in zip(
        prefixes, search(random_model(*kind), sources, config, prefixes), strict=True
    ):
        assert beam
        assert all(list(each.ids[: len(prefix)]) == prefix for each in beam)
