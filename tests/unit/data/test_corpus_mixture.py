"""Mixtures of corpora: shares, passes, stages, and their mistakes."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_mixture import (
    CorpusConfig,
    CorpusMixture,
    StageConfig,
    require_mixture,
)
from transduce.errors import ConfigError

SIZES = (60, 7, 33)


def corpora(*weights: float | None) -> list[CorpusConfig]:
    return [
        CorpusConfig(name=name, source=f"{name}.en", target=f"{name}.de", weight=weight)
        for name, weight in zip("abc", weights, strict=False)
    ]


def mixture(
    *weights: float | None, stages: tuple[StageConfig, ...] = ()
) -> CorpusMixture:
    return CorpusMixture(corpora(*weights), stages, SIZES)


def drawn(mixture: CorpusMixture, epochs: int, step: int = 0, seed: int = 1):
    stage = mixture.stage_at(step)
    return np.concatenate([mixture.draw(e, stage, seed) for e in range(epochs)])


def test_an_epoch_without_weights_has_each_pair_once():
    assert sorted(drawn(mixture(None, None, None), 1)) == list(range(100))


def test_weights_are_the_shares_of_an_epoch():
    assert mixture(1, 2, 7).count(drawn(mixture(1, 2, 7), 1)) == (10, 20, 70)
    assert mixture(0.1, 0.2, 0.7).stages == mixture(1, 2, 7).stages


def test_a_share_that_is_no_whole_number_of_pairs_is_rounded():
    draws = mixture(1, 1, 1).stages[0].draws
    assert sum(draws) == 100
    assert set(draws) == {33, 34}


def test_a_corpus_of_a_tiny_weight_is_drawn_all_the_same():
    assert mixture(1e-9, 1, 1).stages[0].draws[0] == 1


def test_no_pair_comes_again_before_all_others_of_its_corpus_came():
    found = drawn(mixture(1, 2, 7), 6)  # 60, 120 and 420 draws
    for first, size, draws in ((0, 60, 60), (60, 7, 120), (67, 33, 420)):
        mine = found[(found >= first) & (found < first + size)]
        assert len(mine) == draws
        for start in range(0, draws - size + 1, size):
            assert len(set(mine[start : start + size].tolist())) == size


def test_draws_depend_on_seed_and_epoch_and_on_nothing_else():
    mix = mixture(1, 2, 7)
    stage = mix.stages[0]
    again = mixture(1, 2, 7).draw(5, stage, 1)
    assert (mix.draw(5, stage, 1) == again).all()
    assert (mix.draw(5, stage, 2) != again).any()
    assert (mix.draw(6, stage, 1) != again).any()


STAGES = (
    StageConfig(steps=3, weights={"a": 1}),
    StageConfig(steps=2, weights={"b": 1, "c": 3}),
    StageConfig(),
)


def test_stages_have_their_own_weights_and_the_last_has_those_of_the_corpora():
    mix = mixture(1, 2, 7, stages=STAGES)
    assert [stage.draws for stage in mix.stages] == [
        (60, 0, 0),
        (0, 10, 30),
        (10, 20, 70),
    ]
    assert [mix.stage_at(step).number for step in range(7)] == [1, 1, 1, 2, 2, 3, 3]
    assert mix.stage_at(10**9).number == 3


def test_within_a_stage_no_pair_comes_again_before_the_others_of_its_corpus():
    mix = mixture(1, 2, 7, stages=STAGES)
    stage = mix.stage_at(3)  # draws 10 of the 7 pairs of b, and 30 of the 33 of c
    found = np.concatenate([mix.draw(epoch, stage, 1) for epoch in range(3, 30)])
    for first, size in ((60, 7), (67, 33)):
        mine = found[(found >= first) & (found < first + size)] - first
        for end in range(1, len(mine) + 1):
            counts = np.bincount(mine[:end], minlength=size)
            # The stage begins and ends within a pass.
            assert counts.max() - counts.min() <= 2


def batcher_of(make_dataset, mix: CorpusMixture) -> Batcher:
    rng = np.random.default_rng(5)
    pairs = [
        ([i % 90 + 10] * rng.integers(1, 12), [i % 90 + 10] * rng.integers(1, 12))
        for i in range(100)
    ]
    config = BatchingConfig(source_tokens=90, target_tokens=90, batch_tokens=60)
    return Batcher(make_dataset(pairs), config, seed=1, mixture=mix)


def test_updates_count_the_pairs_of_each_corpus(make_dataset):
    batcher = batcher_of(make_dataset, mixture(1, 2, 7))
    updates = list(batcher.epoch(0))
    assert np.sum([u.corpus_pairs for u in updates], axis=0).tolist() == [10, 20, 70]
    for update in updates:
        ids = Counter(np.digitize(np.concatenate(update.batches), [60, 67]).tolist())
        assert update.corpus_pairs == tuple(ids[i] for i in range(3))


def test_an_epoch_ends_with_its_stage(make_dataset):
    batcher = batcher_of(make_dataset, mixture(1, 2, 7, stages=STAGES))
    assert len(list(batcher.epoch(0))) == 3
    assert len(list(batcher.epoch(0, first=1))) == 2
    assert not list(batcher.epoch(0, first=3))
    assert len(list(batcher.epoch(0, first=1, steps_before=4))) == 0
    assert all(u.corpus_pairs[0] == 0 for u in batcher.epoch(1, steps_before=3))
    assert len(list(batcher.epoch(0, steps_before=5))) > 3


def test_an_epoch_that_goes_on_yields_the_updates_that_were_left(make_dataset):
    batcher = batcher_of(make_dataset, mixture(1, 2, 7))
    whole = list(batcher.epoch(2))
    rest = list(batcher.epoch(2, first=4))
    assert len(rest) == len(whole) - 4
    for update, expected in zip(rest, islice(whole, 4, None), strict=True):
        assert all(
            (a == b).all()
            for a, b in zip(update.batches, expected.batches, strict=True)
        )


@pytest.mark.parametrize("weight", [1e10, 1e308, float("inf")])
def test_a_weight_has_a_maximum(weight):
    with pytest.raises(ConfigError, match=r"of corpus a must be at most 1,000,000,000"):
        corpora(weight)
    with pytest.raises(ConfigError, match=r"of corpus b must be at most 1,000,000,000"):
        StageConfig(weights={"b": weight})


@pytest.mark.parametrize("weight", [0, -1, -float("inf"), float("nan")])
def test_a_weight_must_be_above_zero(weight):
    with pytest.raises(ConfigError, match="weight of corpus a must be above 0"):
        corpora(weight)
    with pytest.raises(ConfigError, match="weight of corpus b must be above 0"):
        StageConfig(weights={"b": weight})


@pytest.mark.parametrize(
    ("given", "stages", "message"),
    [
        ((), (StageConfig(),), "no corpus has a name"),
        ((1, None), (), "must have a weight, or none, but b has none"),
        ((1, 1), (StageConfig(weights={"d": 1}),), "d, which is not among .*: a, b"),
        ((1, 1), (StageConfig(weights={"a": 1}),), "but b is in none"),
        ((1, 1), (StageConfig(), StageConfig()), "stage 1 must be given, as another"),
        ((1, 1), (StageConfig(steps=4),), "exactly the 10 updates .* but take 4"),
        ((1, 1), (StageConfig(steps=10), StageConfig()), "fewer than the 10 updates"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(given, stages, message):
    with pytest.raises(ConfigError, match=message):
        require_mixture(corpora(*given), stages, 10)


def test_two_corpora_of_one_name_are_refused():
    a, b = corpora(1, 1)
    with pytest.raises(ConfigError, match="but 2 are named a"):
        require_mixture([a, replace(b, name="a")], (), 10)


def test_weights_of_the_corpora_are_not_needed_if_all_stages_have_weights():
    require_mixture(corpora(1, None), (StageConfig(weights={"a": 1, "b": 2}),), 10)


def test_shares_are_even_throughout_an_epoch_although_batches_differ():
    corpora_ = corpora(0.8, 0.2)
    mix = CorpusMixture(corpora_, (), (2_000, 2_000))
    random = np.random.default_rng(1)
    pairs = random.permutation(mix.draw(0, mix.stages[0], 1))
    # Batches of one corpus, as the sentences of the other are longer.
    batches = [
        *np.array_split(pairs[pairs < 2_000], 60),
        *np.array_split(pairs[pairs >= 2_000], 60),
    ]
    batches = [batches[i] for i in random.permutation(len(batches))]
    order = mix.in_even_order(batches)
    assert sorted(order) == list(range(120))
    assert order != sorted(order)
    shares = [
        np.cumsum([mix.count(batches[i]) for i in numbers], axis=0)
        for numbers in (range(120), order)
    ]
    random_error, error = (
        np.abs(each[20:, 0] / each[20:].sum(axis=1) - 0.8).max() for each in shares
    )
    assert error < 0.02 < 0.05 < random_error


def test_shares_are_even_in_the_updates_of_an_epoch(make_dataset):
    updates = list(batcher_of(make_dataset, mixture(1, 2, 7)).epoch(0))
    so_far = np.cumsum([update.corpus_pairs for update in updates], axis=0)
    shares = so_far / so_far.sum(axis=1, keepdims=True)
    assert np.abs(shares[2:] - [0.1, 0.2, 0.7]).max() < 0.05


def test_weights_and_stages_have_numbers_of_python():
    weight, steps = np.float32(2), np.int64(5)
    config = CorpusConfig(name="a", source="a", target="b", weight=weight)
    stage = StageConfig(steps=steps, weights={"a": weight})
    numbers = config.weight, stage.steps, stage.weights["a"]
    assert [(n, type(n)) for n in numbers] == [(2, float), (5, int), (2, float)]
