from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from transduce.benchmark.training import TrainingTask
from transduce.experiments.presets import PRESETS
from transduce.model.config import update_flops
from transduce.text.vocabulary import EOS


@pytest.fixture(scope="module")
def base(cpu):
    return TrainingTask(run=PRESETS["base"], hardware=cpu, steps=3)


def lengths(side):
    return np.diff(side.offsets)


def test_lengths_have_the_distribution_of_text(base):
    dataset = base.dataset()
    source, target = lengths(dataset.source), lengths(dataset.target)
    assert 23 < source.mean() < 26
    assert 23 < target.mean() < 27
    assert np.median(source) < source.mean()
    assert source.min() >= 1
    assert source.max() == 100
    assert np.corrcoef(source, target)[0, 1] > 0.9


def test_ids_are_ordinary_tokens_of_the_vocabulary(task):
    dataset = task.dataset()
    for side in (dataset.source, dataset.target):
        assert side.ids.min() == EOS + 1
        assert side.ids.max() == task.model.vocab_size - 1 == 299


def test_the_same_task_has_the_same_pairs(task):
    first, second = task.dataset(), replace(task).dataset()
    np.testing.assert_array_equal(first.source.ids, second.source.ids)
    np.testing.assert_array_equal(first.target.offsets, second.target.offsets)


@pytest.mark.parametrize("max_length", [1, 2, 3, 40])
def test_no_sentence_is_longer_than_a_batch_holds(task, max_length):
    batching = replace(task.run.batching, max_length=max_length)
    changed = replace(task, run=replace(task.run, batching=batching))
    dataset = changed.dataset()
    longest = max(lengths(dataset.source).max(), lengths(dataset.target).max())
    assert longest == max(max_length - 1, 1)
    assert len(list(changed.updates(dataset))) == 3


def test_updates_equal_those_of_the_batcher(base):
    dataset = base.dataset()
    ours = list(base.updates(dataset))
    theirs = list(islice(base.batcher(dataset).epoch(0), 3))
    assert len(ours) == 3
    for update, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(
            np.concatenate(update.batches), np.concatenate(expected.batches)
        )
        assert update.num_target_tokens == pytest.approx(25_000, rel=0.2)


def test_flops_include_end_tokens(task):
    dataset = task.dataset()
    expected = []
    for update in task.updates(dataset):
        pairs = [i for batch in update.batches for i in batch.tolist()]
        source = np.array([len(dataset.source[i]) + 1 for i in pairs])
        target = np.array([len(dataset.target[i]) + 1 for i in pairs])
        assert source.sum() == update.num_source_tokens
        assert target.sum() == update.num_target_tokens
        expected.append(update_flops(task.model, source, target))
    assert task.update_flops() == expected
