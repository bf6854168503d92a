"""Encoded parallel corpus on disk, memory-mapped."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from transduce.errors import DataError

ID_TYPE = np.dtype("<u4")
OFFSET_TYPE = np.dtype("<i8")
DATASET_FILES = ("source.ids", "source.offsets", "target.ids", "target.offsets")

CHUNK_PAIRS = 10_000
"""Number of pairs written at once."""
CHUNK_IDS = 1 << 22
"""Number of ids checked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPair:
    """Ids of a sentence pair, without special tokens."""

    source: list[int]
    target: list[int]

    @property
    def length(self) -> int:
        """Number of ids of the longer side."""
        return max(len(self.source), len(self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSide:
    """One side of a corpus: concatenated ids, and the offset of each sentence."""

    ids: Integer[np.ndarray, " ids"]
    offsets: Integer[np.ndarray, " sentences_and_one"]

    def lengths(
        self, indices: Integer[np.ndarray, " picked"]
    ) -> Integer[np.ndarray, " picked"]:
        """Return the lengths of some sentences in ids, without special tokens."""
        return self.offsets[indices + 1] - self.offsets[indices]

    def padded(
        self, indices: Integer[np.ndarray, " rows"], pad: int
    ) -> Integer[np.ndarray, "rows length"]:
        """Return the ids of some sentences as rows, each with at least one padding id
        at its end, where `Batcher.load` puts EOS."""
        starts, lengths = self.offsets[indices], self.lengths(indices)
        column = np.arange(lengths.max() + 1)
        is_id = column < lengths[:, None]
        rows = np.full(is_id.shape, pad, dtype=np.int64)
        rows[is_id] = self.ids[(starts[:, None] + column)[is_id]]
        return rows

    def __getitem__(self, index: int) -> Integer[np.ndarray, " length"]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Encoded parallel corpus."""

    source: EncodedSide
    target: EncodedSide

    def __len__(self) -> int:
        return len(self.source.offsets) - 1


def write_dataset(pairs: Iterable[EncodedPair], folder: Path) -> Dataset:
    """Write pairs to files in the folder as a stream, and open them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _SideWriter(folder, "source") as source,
        _SideWriter(folder, "target") as target,
    ):
        stream = iter(pairs)
        while chunk := list(islice(stream, CHUNK_PAIRS)):
            source.write([pair.source for pair in chunk])
            target.write([pair.target for pair in chunk])
    return open_dataset(folder)


def open_dataset(folder: Path) -> Dataset:
    """Map the files written by `write_dataset`; `DataError` if they are damaged."""
    source, target = (_open_side(folder, side) for side in ("source", "target"))
    if len(source.offsets) != len(target.offsets):
        fault = f"{len(target.offsets) - 1:,} for {len(source.offsets) - 1:,} sources"
        raise _damaged(folder, "target", fault)
    return Dataset(source=source, target=target)


def require_ids_below(
    dataset: Dataset, folder: Path, source_size: int, target_size: int
) -> None:
    """Raise `DataError` if an id of a dataset is outside its vocabulary."""
    sides = {
        "source": (dataset.source, source_size),
        "target": (dataset.target, target_size),
    }
    for name, (side, size) in sides.items():
        for start in range(0, len(side.ids), CHUNK_IDS):
            largest = int(side.ids[start : start + CHUNK_IDS].max())
            if largest >= size:
                fault = f"id {largest:,} is not in a vocabulary of {size:,}"
                raise _damaged(folder, name, fault)


class _SideWriter:
    def __init__(self, folder: Path, side: str) -> None:
        self._ids = (folder / f"{side}.ids").open("wb")
        self._offsets = (folder / f"{side}.offsets").open("wb")
        self._end = 0
        self._offsets.write(np.zeros(1, dtype=OFFSET_TYPE).tobytes())

    def write(self, sentences: list[list[int]]) -> None:
        ids = np.fromiter(chain.from_iterable(sentences), dtype=ID_TYPE)
        lengths = np.fromiter(map(len, sentences), dtype=OFFSET_TYPE)
        offsets = self._end + np.cumsum(lengths, dtype=OFFSET_TYPE)
        self._ids.write(ids.tobytes())
        self._offsets.write(offsets.tobytes())
        self._end = offsets[-1]

    def __enter__(self) -> "_SideWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._offsets.close()


def _open_side(folder: Path, side: str) -> EncodedSide:
    ids_path = folder / f"{side}.ids"
    try:
        offsets = np.memmap(folder / f"{side}.offsets", dtype=OFFSET_TYPE, mode="r")
        num_bytes, whole = ids_path.stat().st_size, int(offsets[-1]) * ID_TYPE.itemsize
    except (OSError, ValueError) as error:
        raise _damaged(folder, side, str(error)) from None
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise _damaged(folder, side, "sentences that end before they begin")
    if num_bytes != whole:
        raise _damaged(folder, side, f"{num_bytes:,} bytes of ids instead of {whole:,}")
    # An empty file, as of a side of empty sentences, cannot be mapped.
    if num_bytes == 0:
        return EncodedSide(ids=np.empty(0, dtype=ID_TYPE), offsets=offsets)
    ids = np.memmap(ids_path, dtype=ID_TYPE, mode="r")
    return EncodedSide(ids=ids, offsets=offsets)


def _damaged(folder: Path, side: str, fault: str) -> DataError:
    return DataError(
        f"{folder}: the encoded corpus is missing or damaged ({side}: {fault}); begin "
        "the run anew in another folder."
    )
