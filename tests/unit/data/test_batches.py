"""Each pair of an encoded corpus is in one batch of an epoch."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch

from transduce.data import batches
from transduce.data.batches import Batcher, BatchingConfig, read_ahead
from transduce.data.corpus_mixture import CorpusConfig, CorpusMixture, StageConfig
from transduce.data.tensors import Batch, pad_rows
from transduce.errors import ConfigError
from waiting import PATIENCE_S

PAIRS, LONGEST = 300, 20
BATCH_TOKENS = 90


@pytest.fixture(scope="module")
def dataset(make_dataset, random_pairs):
    return make_dataset(random_pairs(PAIRS, LONGEST))


@pytest.fixture(scope="module")
def make_batcher(dataset):
    def make(seed=7, **settings):
        defaults = {"source_tokens": 200, "target_tokens": 200}
        config = {**defaults, "batch_tokens": BATCH_TOKENS, **settings}
        return Batcher(dataset, BatchingConfig(**config), seed)

    return make


def indices(update) -> list[int]:
    return np.concatenate(update.batches).tolist()


def drawn(updates) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in update.batches] for update in updates]


@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
@pytest.mark.parametrize("budget", [1, 150, 1_000_000])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_has_every_pair_exactly_once(
    make_batcher, batch_tokens, budget, epoch
):
    batcher = make_batcher(
        source_tokens=budget, target_tokens=budget, batch_tokens=batch_tokens
    )
    seen = [i for update in batcher.epoch(epoch) for i in indices(update)]
    assert sorted(seen) == list(range(PAIRS))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("budget", [50, 200, 900, 2_300, 10_000])
def test_updates_have_about_the_size_of_their_budget(make_batcher, side, budget):
    other = "target" if side == "source" else "source"
    budgets = {f"{side}_tokens": budget, f"{other}_tokens": 1_000_000}
    updates = list(make_batcher(**budgets).epoch(0))
    counts = [getattr(update, f"num_{side}_tokens") for update in updates]
    # The number of updates is rounded, and each gets whole batches.
    assert max(counts) <= budget * (1 + 0.5 / len(counts)) + BATCH_TOKENS


@pytest.mark.parametrize("budget", [100, 200, 900])
def test_updates_have_similar_sizes(make_batcher, budget):
    updates = make_batcher(source_tokens=budget, target_tokens=1_000_000).epoch(0)
    counts = [update.num_source_tokens for update in updates]
    assert len(counts) > 1
    assert max(counts) - min(counts) <= 2 * BATCH_TOKENS


def test_a_pair_beyond_the_budget_is_an_update_of_its_own(make_dataset):
    dataset = make_dataset([([3] * 9, [4]), ([5], [6] * 9), ([7] * 9, [8] * 9)])
    config = BatchingConfig(source_tokens=1, target_tokens=1, batch_tokens=1)
    updates = list(Batcher(dataset, config, seed=1).epoch(0))
    assert [len(indices(update)) for update in updates] == [1, 1, 1]


@pytest.fixture
def _few_planned_pairs(monkeypatch):
    monkeypatch.setattr(batches, "PLANNED_PAIRS", 70)


@pytest.mark.usefixtures("_few_planned_pairs")
class TestALargeCorpusIsPlannedInParts:
    def test_an_epoch_has_every_pair_exactly_once(self, make_batcher):
        seen = [i for update in make_batcher().epoch(3) for i in indices(update)]
        assert sorted(seen) == list(range(PAIRS))

    def test_the_parts_of_an_epoch_are_random(self, make_batcher):
        updates = list(make_batcher().epoch(0))
        first = [i for update in updates[: len(updates) // 5] for i in indices(update)]
        assert min(first) < PAIRS / 5
        assert max(first) > PAIRS * 4 / 5

    @pytest.mark.parametrize("first", [0, 1, 9, 15, 1_000])
    def test_a_later_start_skips_updates(self, make_batcher, first):
        batcher = make_batcher()
        whole = drawn(batcher.epoch(1))
        assert len(whole) > 15
        assert drawn(batcher.epoch(1, first=first)) == whole[first:]

    def test_in_order_batches_have_every_pair_once(self, make_batcher):
        rows = sum(len(batch.source) for batch in make_batcher().in_order())
        assert rows == PAIRS


def test_the_same_seed_gives_the_same_order(make_batcher):
    assert drawn(make_batcher().epoch(2)) == drawn(make_batcher().epoch(2))


def test_another_epoch_has_another_order(make_batcher):
    batcher = make_batcher()
    assert drawn(batcher.epoch(0)) != drawn(batcher.epoch(1))


def test_another_seed_has_another_order(make_batcher):
    assert drawn(make_batcher(seed=7).epoch(0)) != drawn(make_batcher(seed=8).epoch(0))


@pytest.mark.parametrize("first", [0, 1, 5, 1_000])
def test_a_later_start_skips_updates(make_batcher, first):
    batcher = make_batcher()
    assert drawn(batcher.epoch(1, first=first)) == drawn(batcher.epoch(1))[first:]


@pytest.mark.parametrize("batch_tokens", [1, 21, 60, 200])
def test_batches_keep_their_bound_unless_one_pair_breaks_it(make_batcher, batch_tokens):
    batcher = make_batcher(batch_tokens=batch_tokens)
    sizes = [
        (batch.source.size(0), max(batch.source.numel(), batch.target_in.numel()))
        for update in batcher.epoch(0)
        for batch in map(batcher.dataset.load, update.batches)
    ]
    assert [numel for rows, numel in sizes if numel > batch_tokens and rows > 1] == []


def test_batches_are_filled(make_batcher, dataset):
    batcher = make_batcher(batch_tokens=200)
    num_batches = sum(len(update.batches) for update in batcher.epoch(0))
    positions = (
        np.maximum(
            dataset.source.lengths(np.arange(len(dataset))),
            dataset.target.lengths(np.arange(len(dataset))),
        )
        + 1
    )
    assert num_batches < 1.5 * positions.sum() / 200 + 1


def test_little_of_a_batch_is_padding(make_dataset):
    # Lengths as in news text, with targets about as long as their sources.
    random = np.random.default_rng(1)
    source = random.lognormal(3.0, 0.6, 100_000).clip(1, 100)
    target = (source * random.lognormal(0.0, 0.2, len(source))).clip(1, 120)
    lengths = np.stack([source, target], axis=1).astype(int).tolist()
    dataset = make_dataset([([5] * one, [6] * other) for one, other in lengths])
    updates = list(Batcher(dataset, BatchingConfig(), seed=1).epoch(0))
    num_tokens = sum(u.num_source_tokens + u.num_target_tokens for u in updates)
    assert num_tokens > 0.95 * sum(update.num_positions for update in updates)


def test_pairs_of_similar_length_share_a_batch(make_batcher, dataset):
    lengths = dataset.target.lengths(np.arange(len(dataset)))
    ranges = sorted(
        (lengths[batch].min(), lengths[batch].max())
        for update in make_batcher().epoch(0)
        for batch in update.batches
    )
    assert len(ranges) > 20
    assert all(shorter[1] <= longer[0] for shorter, longer in pairwise(ranges))


def test_an_update_is_a_random_draw_of_batches(make_batcher, dataset):
    lengths = dataset.target.lengths(np.arange(len(dataset)))
    update = next(make_batcher(source_tokens=700, target_tokens=700).epoch(0))
    longest = [int(lengths[batch].max()) for batch in update.batches]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))
    assert max(longest) > LONGEST / 2 > min(longest)


def test_another_epoch_has_other_batches(make_batcher):
    batcher = make_batcher()
    first, second = (
        {frozenset(batch) for update in drawn(batcher.epoch(n)) for batch in update}
        for n in (0, 1)
    )
    assert first != second


def test_an_update_has_no_more_tokens_than_its_corpus(make_dataset):
    dataset = make_dataset([([5] * 2, [6]), ([5] * 3, [6])])
    [update] = Batcher(dataset, BatchingConfig(), seed=1).epoch(0)
    tokens = update.num_source_tokens, update.num_target_tokens
    assert Batcher(dataset, BatchingConfig(), seed=1).update_tokens() == tokens
    small = BatchingConfig(source_tokens=4, target_tokens=3)
    assert Batcher(dataset, small, seed=1).update_tokens() == (4, 3)


def test_the_tokens_of_updates_are_those_that_a_mixture_draws(make_dataset):
    dataset = make_dataset([([5] * 3, [6])] * 10 + [([5] * 99, [6] * 9)] * 30)
    corpora = [CorpusConfig(name=n, source=f"{n}.en", target=f"{n}.de") for n in "ab"]
    stages = [
        StageConfig(steps=30, weights={"a": 1}), StageConfig(weights={"a": 1, "b": 1}),
    ]  # fmt: skip
    mixture = CorpusMixture(corpora, stages, [10, 30])
    batcher = Batcher(dataset, BatchingConfig(), seed=1, mixture=mixture)
    first, both = (10 * 4, 10 * 2), (20 * 4 + 20 * 100, 20 * 2 + 20 * 10)
    for steps, share in (
        (range(30), 0), (range(30, 60), 1), (range(60), 0.5), (range(25, 35), 0.5),
        (range(60, 60), 1), (range(90), 2 / 3),
    ):  # fmt: skip
        expected = [x + share * (y - x) for x, y in zip(first, both, strict=True)]
        assert batcher.update_tokens(steps) == tuple(map(round, expected))
    small = BatchingConfig(source_tokens=100, target_tokens=100)
    batcher = Batcher(dataset, small, seed=1, mixture=mixture)
    assert batcher.update_tokens(range(60)) == (70, 60)


def test_an_update_counts_its_tokens_and_positions(make_batcher):
    batcher = make_batcher()
    update = next(batcher.epoch(0))
    loaded = [batcher.dataset.load(batch) for batch in update.batches]
    assert update.num_source_tokens == sum(int((b.source != 0).sum()) for b in loaded)
    assert update.num_target_tokens == sum(
        int((b.target_out != 0).sum()) for b in loaded
    )
    assert update.num_positions == sum(
        b.source.numel() + b.target_in.numel() for b in loaded
    )


def test_in_order_batches_have_every_pair_once(make_batcher, dataset):
    batcher = make_batcher()
    loaded = list(batcher.in_order())
    rows = [
        (source[source > 2].tolist(), target[target > 2].tolist())
        for batch in loaded
        for source, target in zip(batch.source, batch.target_out, strict=True)
    ]
    expected = [
        (dataset.source[i].tolist(), dataset.target[i].tolist()) for i in range(PAIRS)
    ]
    assert sorted(rows) == sorted(expected)


def test_a_batch_moves_to_a_device_whole():
    ids = torch.tensor([[1, 2]])
    batch = Batch(source=ids, target_in=ids + 1, target_out=ids + 2)
    moved = batch.to(torch.device("meta"))
    shapes = (moved.source.shape, moved.target_in.shape, moved.target_out.shape)
    assert {moved.source.device, moved.target_in.device, moved.target_out.device} == {
        torch.device("meta")
    }
    assert shapes == (ids.shape,) * 3


def test_a_batch_moves_without_a_change():
    ids = torch.tensor([[1, 2]])
    batch = Batch(source=ids, target_in=ids + 1, target_out=ids + 2)
    moved = batch.to(torch.device("cpu"))
    assert moved.source.tolist() == [[1, 2]]
    assert moved.target_in.tolist() == [[2, 3]]
    assert moved.target_out.tolist() == [[3, 4]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_is_pinned_without_a_change():
    ids = torch.tensor([[1, 2]])
    batch = Batch(source=ids, target_in=ids + 1, target_out=ids + 2).pinned()
    assert batch.source.is_pinned()
    assert batch.target_out.tolist() == [[3, 4]]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_items_read_ahead_come_in_order(count):
    assert list(read_ahead(iter(range(count)))) == list(range(count))


@pytest.mark.parametrize("ahead", [1, 2])
def test_so_many_items_are_read_ahead(ahead):
    begun = [threading.Event() for _ in range(6)]

    def items():
        for number, event in enumerate(begun):
            event.set()
            yield number

    for number in read_ahead(items(), ahead):
        assert begun[min(number + ahead, 5)].wait(timeout=PATIENCE_S)
        assert not any(event.is_set() for event in begun[number + ahead + 1 :])


def test_an_error_is_raised_in_place_of_its_item():
    ahead = read_ahead(12 // number for number in (3, 2, 0, 1))
    assert [next(ahead), next(ahead)] == [4, 6]
    with pytest.raises(ZeroDivisionError):
        next(ahead)


def test_stopping_early_leaves_no_thread():
    before = threading.active_count()
    ahead = read_ahead(iter(range(9)))
    assert next(ahead) == 0
    assert threading.active_count() == before + 1
    ahead.close()
    assert threading.active_count() == before


def test_rows_are_padded_to_the_longest():
    assert pad_rows([[1], [], [2, 3]]).tolist() == [[1, 0], [0, 0], [2, 3]]


@pytest.mark.parametrize(
    "name", ["source_tokens", "target_tokens", "batch_tokens", "max_length"]
)
@pytest.mark.parametrize("value", [0, -5])
def test_a_setting_below_one_is_refused(name, value):
    message = f"`batching.{name}` must be at least 1, but is {value}\\."
    with pytest.raises(ConfigError, match=message):
        BatchingConfig(**{name: value})


@pytest.mark.parametrize(
    ("budget", "sizes"),
    [
        # Ten pairs of two tokens: 20 / 8 = 2.5 rounds to the even 2, 20 / 7 to 3.
        (8, [5, 5]),
        (7, [4, 3, 3]),
        (14, [10]),
        (13, [5, 5]),
        (1_000, [10]),
        (2, [1] * 10),
    ],
)
def test_the_number_of_updates_is_rounded(make_dataset, budget, sizes):
    dataset = make_dataset([([5], [6])] * 10)
    config = BatchingConfig(source_tokens=budget, target_tokens=budget, batch_tokens=2)
    found = [
        len(update.source_lengths) for update in Batcher(dataset, config, 1).epoch(0)
    ]
    assert sorted(found, reverse=True) == sizes


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_side_that_fills_its_budget_first_decides_the_size(make_dataset, side):
    longer, shorter = [5, 6, 7], [8]
    pair = (longer, shorter) if side == "source" else (shorter, longer)
    config = BatchingConfig(source_tokens=8, target_tokens=8, batch_tokens=4)
    updates = list(Batcher(make_dataset([pair] * 6), config, 1).epoch(0))
    assert [len(update.source_lengths) for update in updates] == [2, 2, 2]


def test_an_update_has_by_default_as_many_tokens_as_the_papers():
    config = BatchingConfig()
    assert (config.source_tokens, config.target_tokens) == (25_000, 25_000)
