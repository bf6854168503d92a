"""A corpus read to its end, whatever is wrong with it.

Training stops at the first fault of a file. Here every fault is counted, its pair is
left out, and reading goes on. Of each sound pair only place, lengths and digests
are kept: 33 bytes, whatever its text. Knows nothing of what to do about a fault.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count, pairwise, tee, zip_longest
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Integer, Num, Shaped

from transduce.data.corpus_files import MARKS, Reading
from transduce.data.dataset import Dataset, EncodedSide
from transduce.data.prepared_corpus import (
    PairCounts,
    PairEncoder,
    encode_pairs,
    fate_of,
)
from transduce.errors import DataError
from transduce.text.corpus import Line, SentencePair, read_lines
from transduce.text.scripts import UNSPACED_RUN
from transduce.text.tokenizer import NUM_RESERVED, Tokenizer, normalize
from transduce.text.vocabulary import EOS

Side: TypeAlias = Literal["source", "target"]
Row: TypeAlias = tuple[int, int, int, int, int, int]

NUM_EXAMPLES = 3
"""Places named of each finding; the others are only counted."""

MAX_BINS = 12
"""Of lengths, not counting one for the last hundredth."""

FATES = ("kept", "empty", "overlong")
"""The answers of `fate_of`; a row holds their index."""

CHUNK_ROWS, CHUNK_IDS = 100_000, 10_000_000
"""Sentences, and ids, that are processed at once."""
MIXERS = tuple(
    map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
)
"""Odd factors of the digests, with random-looking bits."""

ROW = np.dtype(
    [
        ("position", "<i8"),
        ("fate", "u1"),
        ("source_length", "<i4"),
        ("target_length", "<i4"),
        ("source_digest", "<u8"),
        ("target_digest", "<u8"),
    ]
)

_NO_TEXT = re.compile(r"[\x00\udc80-\udcff]")
"""NUL, or what Python's `surrogateescape` makes of a byte that is not UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How often something was met, and where first."""

    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePair:
    """Two files that are read line by line together."""

    source: Path
    target: Path
    source_lines: int
    target_lines: int
    position: int
    """Of its first pair among all pairs of the corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """One side of a corpus. All but `lines` and `invalid` is of its sound pairs."""

    files: tuple[Path, ...]
    lines: int
    words: int
    characters: int
    unspaced_letters: int
    """Number of letters of scripts that write no space between words."""
    tokens: int
    byte_tokens: int
    """Number of tokens that are bytes of characters outside the vocabulary."""
    tokens_per_word: float
    mean_length: float
    """Lengths are in tokens, of the lines that hold any."""
    median_length: float
    percentile_95_length: int
    """The least that 95 of 100 lines do not exceed."""
    longest: int
    longest_place: str
    """Nothing where no line holds any token."""
    invalid: Finding
    """Lines that are not UTF-8 or hold a NUL byte."""
    suspicious: dict[str, Finding]
    """By the kind of mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """How many lines of each side are from `shortest` to `longest` tokens long."""

    shortest: int
    longest: int
    source: int
    target: int


class Tally:
    """Counts, and remembers the first examples."""

    def __init__(self, count: int = 0) -> None:
        self._count = count
        self._examples: list[str] = []

    def add(self, example: str) -> None:
        self._count += 1
        if len(self._examples) < NUM_EXAMPLES:
            self._examples.append(example)

    def finding(self) -> Finding:
        return Finding(count=self._count, examples=tuple(self._examples))


class SideNotes:
    """What is noted of one side while its lines are read."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.num_words = 0
        self.num_characters = 0
        self.num_unspaced_letters = 0
        self.num_byte_tokens = 0
        self.invalid = Tally()
        self.marks = {kind: Tally() for kind in MARKS}

    def read(self, line: Line | None) -> str | None:
        """Count the line; its text, or none if training would refuse it."""
        if line is None:
            return None
        self.num_lines += 1
        try:
            return line.text()
        except DataError:
            self.invalid.add(f"{line.place} ({invalid_byte(line.content)})")
            return None

    def note(self, text: str, line: Line) -> None:
        """Count what is in a line whose pair is sound."""
        self.num_words += len(text.split())
        self.num_characters += len(text)
        if not text.isascii():
            self.num_unspaced_letters += sum(map(len, UNSPACED_RUN.findall(text)))
        for kind, pattern in MARKS.items():
            if match := pattern.search(text):
                codes = " ".join(f"U+{ord(character):04X}" for character in match[0])
                self.marks[kind].add(f"{line.place} ({codes})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPair:
    """A sound pair, and which of the corpus it is."""

    position: int
    pair: SentencePair


class CorpusReader:
    """Reads the sound pairs of a corpus, and notes what is wrong with the others."""

    def __init__(self, source: Sequence[Path], target: Sequence[Path]) -> None:
        if len(source) != len(target):
            raise DataError(
                "Source and target must have equally many files, but have "
                f"{len(source)} and {len(target)}."
            )
        self.source = SideNotes()
        self.target = SideNotes()
        self.files: list[FilePair] = []
        self._paths = list(zip(source, target, strict=True))
        self._position = 0

    def pairs(self) -> Iterator[PlacedPair]:
        """Once through; `DataError` only where a file cannot be read on at all."""
        for source, target in self._paths:
            before = (self.source.num_lines, self.target.num_lines, self._position)
            yield from self._pairs_of(source, target)
            self.files.append(
                FilePair(
                    source=source,
                    target=target,
                    source_lines=self.source.num_lines - before[0],
                    target_lines=self.target.num_lines - before[1],
                    position=before[2],
                )
            )

    def _pairs_of(self, source: Path, target: Path) -> Iterator[PlacedPair]:
        lines = zip_longest(read_lines(source), read_lines(target))
        for source_line, target_line in lines:
            source_text = self.source.read(source_line)
            target_text = self.target.read(target_line)
            if source_text is not None and target_text is not None:
                self.source.note(source_text, source_line)
                self.target.note(target_text, target_line)
                pair = SentencePair(source=source_text, target=target_text)
                yield PlacedPair(position=self._position, pair=pair)
            self._position += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was seen of a corpus."""

    files: tuple[FilePair, ...]
    source: SideNotes
    target: SideNotes
    rows: Shaped[np.ndarray, " pairs"]
    """A `ROW` for each sound pair."""

    def kept(self) -> "Survey":
        """The same of the pairs that training would keep."""
        return replace(self, rows=self.rows[self.rows["fate"] == FATES.index("kept")])

    def place(self, row: int, side: Side = "source") -> str:
        """The file and line of a row."""
        position = int(self.rows["position"][row])
        following = bisect_right(self.files, position, key=lambda file: file.position)
        file = self.files[following - 1]
        return f"{getattr(file, side)}:{position - file.position + 1}"

    def finding(
        self, is_found: Bool[np.ndarray, " pairs"], side: Side = "source"
    ) -> Finding:
        """The rows of a mask, counted; the first ones by their place."""
        first = np.flatnonzero(is_found)[:NUM_EXAMPLES].tolist()
        return Finding(
            count=int(is_found.sum()),
            examples=tuple(self.place(row, side) for row in first),
        )

    def side(self, side: Side) -> SideReport:
        """All that is to be said of one side."""
        notes: SideNotes = getattr(self, side)
        lengths = self.rows[f"{side}_length"]
        is_blank = not lengths.any()
        filled = np.zeros(1) if is_blank else lengths[lengths > 0]
        return SideReport(
            files=tuple(getattr(file, side) for file in self.files),
            lines=notes.num_lines,
            words=notes.num_words,
            characters=notes.num_characters,
            unspaced_letters=notes.num_unspaced_letters,
            tokens=int(lengths.sum()),
            byte_tokens=notes.num_byte_tokens,
            tokens_per_word=float(lengths.sum() / max(notes.num_words, 1)),
            mean_length=float(filled.mean()),
            median_length=float(np.median(filled)),
            percentile_95_length=_percentile(filled, 95),
            longest=int(filled.max()),
            longest_place="" if is_blank else self.place(int(lengths.argmax()), side),
            invalid=notes.invalid.finding(),
            suspicious={kind: tally.finding() for kind, tally in notes.marks.items()},
        )

    def length_bins(self) -> tuple[LengthBin, ...]:
        """Equal bins for nearly all lines, and one more for the few that are longer."""
        source, target = self.rows["source_length"], self.rows["target_length"]
        either = np.maximum(source, target)
        if not either.any():
            return ()
        usual, longest = _percentile(either, 99), int(either.max())
        width = _bin_width(usual)
        edges = list(range(1, usual + 1 + width, width))
        if longest >= edges[-1]:
            edges.append(longest + 1)
        in_source, _ = np.histogram(source, edges)
        in_target, _ = np.histogram(target, edges)
        return tuple(
            LengthBin(
                shortest=start,
                longest=end - 1,
                source=int(in_source[i]),
                target=int(in_target[i]),
            )
            for i, (start, end) in enumerate(pairwise(edges))
        )


def survey_corpus(
    source: Sequence[Path],
    target: Sequence[Path],
    tokenizer: Tokenizer,
    max_length: int,
) -> Survey:
    """Read a corpus to its end, as training would encode it."""
    reader = CorpusReader(source, target)
    rows = np.fromiter(_rows(reader, tokenizer, max_length), dtype=ROW)
    return Survey(
        files=tuple(reader.files), source=reader.source, target=reader.target, rows=rows
    )


def survey_prepared(dataset: Dataset, counts: PairCounts, reading: Reading) -> Survey:
    """Survey of a prepared corpus, without places.

    The texts are not read again: equal ids are equal texts.
    """
    rows = np.zeros(counts.total, dtype=ROW)
    rows["position"] = np.arange(counts.total)
    rows["fate"][counts.kept :] = FATES.index("empty")
    rows["fate"][counts.kept + counts.empty :] = FATES.index("overlong")
    kept = rows[: counts.kept]
    kept["source_length"] = np.diff(dataset.source.offsets)
    kept["target_length"] = np.diff(dataset.target.offsets)
    kept["source_digest"] = _id_digests(dataset.source)
    kept["target_digest"] = _id_digests(dataset.target)
    rows["source_length"][counts.kept + counts.empty :] = 1  # they are not empty
    rows["target_length"][counts.kept + counts.empty :] = 1
    files = FilePair(
        source=Path(),
        target=Path(),
        source_lines=counts.total,
        target_lines=counts.total,
        position=0,
    )
    sides: dict[Side, EncodedSide] = {
        "source": dataset.source,
        "target": dataset.target,
    }
    notes = {side: SideNotes() for side in sides}
    for side, note in notes.items():
        figures = reading.figures[side]
        note.num_lines = counts.total
        note.num_words = figures.words
        note.num_characters = figures.characters
        note.num_unspaced_letters = figures.unspaced_letters
        note.num_byte_tokens = _num_byte_ids(sides[side])
    # The side of a mark is not recorded, and no report needs it.
    notes["source"].marks = {kind: Tally(n) for kind, n in reading.marks.items()}
    return Survey(
        files=(files,), source=notes["source"], target=notes["target"], rows=rows
    )


def _num_byte_ids(side: EncodedSide) -> int:
    """Number of ids that are bytes of characters outside the vocabulary."""
    parts = (
        side.ids[first : first + CHUNK_IDS]
        for first in range(0, len(side.ids), CHUNK_IDS)
    )
    return sum(
        int(np.count_nonzero((ids > EOS) & (ids < NUM_RESERVED))) for ids in parts
    )


def _id_digests(side: EncodedSide) -> Integer[np.ndarray, " sentences"]:
    """64-bit digest of each (non-empty) sentence's ids and their places."""
    digests = np.empty(len(side.offsets) - 1, dtype=np.uint64)
    for first in range(0, len(digests), CHUNK_ROWS):
        offsets = side.offsets[first : first + CHUNK_ROWS + 1]
        ids = side.ids[offsets[0] : offsets[-1]].astype(np.uint64)
        starts = offsets[:-1] - offsets[0]
        places = np.arange(len(ids)) - np.repeat(starts, np.diff(offsets))
        mixed = (ids + np.uint64(1)) * MIXERS[0] + places.astype(np.uint64) * MIXERS[1]
        for shift, factor in ((31, MIXERS[2]), (29, MIXERS[0])):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        digests[first : first + CHUNK_ROWS] = np.add.reduceat(mixed, starts)
    return digests


def sound_pairs(
    source: Sequence[Path], target: Sequence[Path]
) -> Iterator[SentencePair]:
    """Every pair without a fault."""
    return (placed.pair for placed in CorpusReader(source, target).pairs())


def invalid_byte(content: bytes) -> str:
    """The first byte of a faulty line that is no text, counted from 1."""
    sound, *_ = _NO_TEXT.split(content.decode("utf-8", "surrogateescape"), maxsplit=1)
    offset = len(sound.encode("utf-8"))
    return f"byte {offset + 1} is 0x{content[offset]:02x}"


def _rows(reader: CorpusReader, tokenizer: Tokenizer, max_length: int) -> Iterator[Row]:
    placed, to_encode = tee(reader.pairs())
    encoded = encode_pairs(
        (each.pair for each in to_encode), PairEncoder(tokenizer=tokenizer)
    )
    for read, ids in zip(placed, encoded, strict=True):
        reader.source.num_byte_tokens += _num_bytes(ids.source)
        reader.target.num_byte_tokens += _num_bytes(ids.target)
        yield (
            read.position,
            FATES.index(fate_of(ids, max_length)),
            len(ids.source),
            len(ids.target),
            _digest(read.pair.source),
            _digest(read.pair.target),
        )


def _num_bytes(ids: Sequence[int]) -> int:
    return sum(EOS < i < NUM_RESERVED for i in ids)


def _percentile(lengths: Num[np.ndarray, " lines"], percent: int) -> int:
    """The least length that so many of 100 lines do not exceed."""
    return int(np.percentile(lengths, percent, method="inverted_cdf"))


def _bin_width(longest: int) -> int:
    """The least of 1, 2, 5, 10, 20, ... that makes few enough bins."""
    widths = (digit * 10**exponent for exponent in count() for digit in (1, 2, 5))
    return next(width for width in widths if longest <= width * MAX_BINS)


def _digest(text: str) -> int:
    """64 bits that stand for a text as training sees it."""
    return int.from_bytes(blake2b(normalize(text).encode(), digest_size=8).digest())
