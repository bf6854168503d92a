"""An encoded corpus is read as written."""

import errno
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.data import dataset
from transduce.data.dataset import Dataset, EncodedPair, open_dataset, write_dataset
from transduce.errors import AccessError, DataError

LARGEST_ID = 2**32 - 1
SENTENCES = st.lists(st.integers(0, LARGEST_ID), max_size=5)


def pairs_of(written: Dataset) -> list[EncodedPair]:
    sides = (written.source, written.target)
    rows = ([side[i].tolist() for side in sides] for i in range(len(written)))
    return [EncodedPair(source=source, target=target) for source, target in rows]


def encoded(pairs: list[tuple[list[int], list[int]]]) -> list[EncodedPair]:
    return [EncodedPair(source=source, target=target) for source, target in pairs]


@settings(deadline=None, max_examples=50)
@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), max_size=6))
def test_pairs_read_are_the_pairs_written(tmp_path_factory, pairs):
    written = write_dataset(encoded(pairs), tmp_path_factory.mktemp("dataset"))
    assert pairs_of(written) == encoded(pairs)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [([], [])],
        [([], [5]), ([], [6, 7]), ([], [])],
        [([5], []), ([6, 7], []), ([], [])],
        [([], [5]), ([6], []), ([], []), ([7], [8])],
    ],
    ids=["no pairs", "one empty pair", "no source", "no target", "some"],
)
def test_empty_sides_are_kept(tmp_path, pairs):
    written = write_dataset(encoded(pairs), tmp_path)
    assert pairs_of(written) == encoded(pairs)
    assert len(written) == len(pairs)


def test_a_dataset_can_be_opened_again(tmp_path):
    pairs = encoded([([3, 4], [5]), ([], [6, 7, 8])])
    write_dataset(pairs, tmp_path / "new" / "folder")
    assert pairs_of(open_dataset(tmp_path / "new" / "folder")) == pairs


def test_writing_again_replaces_the_dataset(tmp_path):
    write_dataset(encoded([([3, 4], [5])] * 9), tmp_path)
    written = write_dataset(encoded([([6], [7, 8])]), tmp_path)
    assert pairs_of(written) == encoded([([6], [7, 8])])


def test_lengths_count_the_ids_of_each_sentence(tmp_path):
    written = write_dataset(encoded([([3, 4], [5]), ([], [6, 7, 8])]), tmp_path)
    assert written.source.lengths(np.array([0, 1])).tolist() == [2, 0]
    assert written.target.lengths(np.array([1, 0])).tolist() == [3, 1]


def test_a_single_sentence_can_be_read(tmp_path):
    written = write_dataset(encoded([([3, 4], [5]), ([9], [6, 7, 8])]), tmp_path)
    assert written.source[1].tolist() == [9]
    assert written.target[1].tolist() == [6, 7, 8]


def test_pairs_are_streamed_to_disk_and_mapped_from_it(tmp_path):
    pairs = (EncodedPair(source=[i], target=[i, i]) for i in range(1_000))
    written = write_dataset(pairs, tmp_path)
    assert isinstance(written.source.ids, np.memmap)
    assert isinstance(written.target.offsets, np.memmap)
    assert written.target[999].tolist() == [999, 999]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["ids", "offsets"])
@pytest.mark.parametrize("left", [None, 0, 8, 9, -4])
def test_a_damaged_dataset_is_refused(tmp_path, side, kind, left):
    write_dataset(encoded([([3, 4], [5]), ([9], [6, 7, 8])]), tmp_path)
    path = tmp_path / f"{side}.{kind}"
    content = path.read_bytes()[:left]
    path.unlink()
    if left is not None:
        path.write_bytes(content)
    message = f"{tmp_path}: the encoded corpus is missing or damaged \\({side}: .*new"
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path)


@pytest.mark.parametrize("kind", ["ids", "offsets"])
def test_a_dataset_that_cannot_be_mapped_is_not_called_damaged(
    tmp_path, monkeypatch, kind
):
    write_dataset(encoded([([3, 4], [5]), ([9], [6, 7, 8])]), tmp_path)
    memmap = np.memmap

    def refuse(path, *args, **kwargs):
        if path.suffix == f".{kind}":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return memmap(path, *args, **kwargs)

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(AccessError, match=f"^{tmp_path}/source.{kind}: cannot be read"):
        open_dataset(tmp_path)


def test_several_chunks_are_one_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "CHUNK_PAIRS", 3)
    pairs = encoded([([i] * i, [i] * (7 - i)) for i in range(8)])
    assert pairs_of(write_dataset(pairs, tmp_path)) == pairs


def test_a_batch_is_padded_at_the_end_with_its_special_tokens(make_dataset):
    pairs = make_dataset([([11, 12, 13], [21]), ([14], [22, 23]), ([], [])])
    batch = pairs.load(np.array([0, 2, 1]))
    assert batch.source.tolist() == [[11, 12, 13, 2], [2, 0, 0, 0], [14, 2, 0, 0]]
    assert batch.target_in.tolist() == [[1, 21, 0], [1, 0, 0], [1, 22, 23]]
    assert batch.target_out.tolist() == [[21, 2, 0], [2, 0, 0], [22, 23, 2]]
    assert batch.source.dtype == torch.int64
