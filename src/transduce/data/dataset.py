"""Encoded corpus on disk: token ids of both sides, memory-mapped.

`write_dataset` writes the pairs as a stream. `Dataset` reads some of them as tensors:
padded (`load`), or one after the other without padding (`load_packed`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Integer

from transduce.errors import DataError
from transduce.files import access_errors, require_file
from transduce.text.corpus import full_windows
from transduce.text.vocabulary import BOS, EOS, PAD

if TYPE_CHECKING:
    import transduce.data.tensors

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

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> "EncodedSide":
        """Build a side in memory from lists of ids."""
        ends = np.cumsum([0, *map(len, sentences)], dtype=OFFSET_TYPE)
        ids = np.fromiter(chain.from_iterable(sentences), dtype=ID_TYPE)
        return cls(ids=ids, offsets=ends)

    def lengths(
        self, indices: Integer[np.ndarray, " picked"]
    ) -> Integer[np.ndarray, " picked"]:
        """Return the lengths of some sentences in ids, without special tokens."""
        return self.offsets[indices + 1] - self.offsets[indices]

    def padded(
        self, indices: Integer[np.ndarray, " rows"], pad: int
    ) -> Integer[np.ndarray, "rows length"]:
        """Return the ids of some sentences as rows, each with at least one padding id
        at its end, where `Dataset.load` puts EOS."""
        starts, lengths = self.offsets[indices], self.lengths(indices)
        column = np.arange(lengths.max() + 1)
        is_id = column < lengths[:, None]
        rows = np.full(is_id.shape, pad, dtype=np.int64)
        rows[is_id] = self.ids[(starts[:, None] + column)[is_id]]
        return rows

    def packed(
        self, indices: Integer[np.ndarray, " rows"]
    ) -> tuple[Integer[np.ndarray, " tokens"], Integer[np.ndarray, " starts"]]:
        """Return the ids of some sentences one after the other, each with EOS.

        The second array has the first token of each sentence, and the number of tokens.
        """
        starts = np.concatenate([[0], np.cumsum(self.lengths(indices) + 1)])
        is_id = np.ones(starts[-1], dtype=bool)
        is_id[starts[1:] - 1] = False
        shift = np.repeat(self.offsets[indices] - starts[:-1], np.diff(starts))
        ids = np.full(starts[-1], EOS, dtype=np.int64)
        ids[is_id] = self.ids[(np.arange(starts[-1]) + shift)[is_id]]
        return ids, starts

    def picked(self, indices: Integer[np.ndarray, " picked"]) -> "EncodedSide":
        """Return some sentences in memory, in the order of the indices."""
        starts, lengths = self.offsets[indices], self.lengths(indices)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(OFFSET_TYPE)
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return EncodedSide(ids=self.ids[places], offsets=offsets)

    def __getitem__(self, index: int) -> Integer[np.ndarray, " length"]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Encoded parallel corpus."""

    source: EncodedSide
    target: EncodedSide

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    def picked(self, indices: Integer[np.ndarray, " picked"]) -> "Dataset":
        """Return some pairs in memory, in the order of the indices."""
        return Dataset(
            source=self.source.picked(indices), target=self.target.picked(indices)
        )

    def lengths(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> tuple[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]]:
        """Return the lengths of sources and targets in tokens, with the end tokens."""
        return self.source.lengths(indices) + 1, self.target.lengths(indices) + 1

    def num_positions(self, indices: Integer[np.ndarray, " batch"]) -> int:
        """Return the number of positions of both sides of a batch, with padding."""
        return len(indices) * sum(int(side.max()) for side in self.lengths(indices))

    def num_tokens(self, indices: Integer[np.ndarray, " pairs"]) -> int:
        """Return the number of tokens of both sides, with the end tokens."""
        return sum(int(side.sum()) for side in self.lengths(indices))

    def load(
        self, indices: Integer[np.ndarray, " batch"]
    ) -> "transduce.data.tensors.Batch":
        """Return a batch's ids as padded tensors, with special tokens."""
        from transduce.data.tensors import as_batch

        source, target = self.lengths(indices)
        source_ids = self.source.padded(indices, PAD)
        target_ids = self.target.padded(indices, PAD)
        rows = np.arange(len(indices))
        # `padded` leaves at least one padding id at the end of each row: `np.roll`
        # moves it to the front, where BOS replaces it, and EOS fits behind the ids.
        target_in = np.roll(target_ids, 1, axis=1)
        target_in[:, 0] = BOS
        source_ids[rows, source - 1] = EOS
        target_ids[rows, target - 1] = EOS
        return as_batch(source_ids, target_in, target_ids)

    def load_packed(
        self, indices: Integer[np.ndarray, " pairs"]
    ) -> "transduce.data.tensors.PackedBatch":
        """Return ids as tensors without padding, with special tokens."""
        from transduce.data.tensors import as_packed

        source, source_starts = self.source.packed(indices)
        target_out, target_starts = self.target.packed(indices)
        target_in = np.roll(target_out, 1)
        target_in[target_starts[:-1]] = BOS
        return as_packed(source, source_starts, target_in, target_out, target_starts)


def write_dataset(pairs: Iterable[EncodedPair], folder: Path) -> Dataset:
    """Write pairs to files in the folder as a stream, and open them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _SideWriter(folder, "source") as source,
        _SideWriter(folder, "target") as target,
    ):
        for chunk in full_windows(pairs, CHUNK_PAIRS):
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
    """Writer of the ids and offsets of one side of a corpus."""

    def __init__(self, folder: Path, side: str) -> None:
        self._ids = (folder / f"{side}.ids").open("wb")
        self._offsets = (folder / f"{side}.offsets").open("wb")
        self._end = 0
        self._offsets.write(np.zeros(1, dtype=OFFSET_TYPE).tobytes())

    def write(self, sentences: list[list[int]]) -> None:
        """Append sentences."""
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
    """Map the files of one side; `DataError` if they are damaged."""
    ids_path, offsets_path = folder / f"{side}.ids", folder / f"{side}.offsets"
    try:
        require_file(ids_path)
        require_file(offsets_path)
        offsets = _mapped(offsets_path, OFFSET_TYPE)
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
    return EncodedSide(ids=_mapped(ids_path, ID_TYPE), offsets=offsets)


def _mapped(path: Path, kind: np.dtype[Any]) -> np.ndarray:
    with access_errors(path):
        return np.memmap(path, dtype=kind, mode="r")


def _damaged(folder: Path, side: str, fault: str) -> DataError:
    return DataError(
        f"{folder}: the encoded corpus is missing or damaged ({side}: {fault}); start "
        "a new run in another folder."
    )
