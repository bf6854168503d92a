"""Survey of a parallel corpus: counts, lengths, duplicates and faults.

Training stops at the first fault of a file. Here every fault is counted, its pair is
left out, and reading continues. For each valid pair only its position, lengths and
digests are kept, in 33 bytes. `corpus_check` has the advice about faults.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise, tee, zip_longest
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Integer, Num, Shaped, UInt64

from transduce.data.cleaning_rules import code_points, text_fault
from transduce.data.corpus_files import (
    MARKS,
    CorpusStatistics,
    TextFigures,
    pair_digests,
    text_digest,
)
from transduce.data.dataset import Dataset, EncodedSide
from transduce.data.prepared_corpus import (
    PairCounts,
    PairEncoder,
    encode_pairs,
    filter_reason,
)
from transduce.errors import DataError
from transduce.text.corpus import Line, SentencePair, read_lines
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.tokenizer import WordTokenizer
from transduce.text.vocabulary import EOS, NUM_RESERVED

Side: TypeAlias = Literal["source", "target"]
Sides: TypeAlias = tuple[Sequence[Path], Sequence[Path]]
"""Source files of a corpus, and as many target files."""
Row: TypeAlias = tuple[int, int, int, int, int, int]

NUM_EXAMPLES = 3
"""Number of examples listed for each finding."""

MAX_BINS = 12
"""Largest number of bins of lengths, besides one for the longest 1 %."""

LOPSIDED_RATIO, LOPSIDED_TOKENS = 3, 10
"""A pair is lopsided if one side is longer by more than this factor and by at least
this many tokens: a word or two may well take three times as many in another
language."""

CUT_WORD = re.compile(r"(?<=\S)@@(?!\S)|(?<!\S)\u2581\w")
"""Mark of a word that another program has cut: that of subword-nmt at the end of a
sub-word, or that of SentencePiece at the beginning of a word."""

FILTER_REASONS = ("kept", "empty", "overlong")
"""Results of `filter_reason`; a row holds their index."""

CHUNK_ROWS, CHUNK_IDS = 100_000, 10_000_000
"""Sentences and ids processed at once."""
MIXERS = tuple(
    map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
)
"""Odd multipliers of the digests, with random-looking bits."""

ROW = np.dtype(
    [
        ("position", "<i8"),
        ("reason", "u1"),
        ("source_length", "<i4"),
        ("target_length", "<i4"),
        ("source_digest", "<u8"),
        ("target_digest", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """Number of occurrences, with the first places."""

    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedFiles:
    """Source file and target file, aligned line by line."""

    source: Path
    target: Path
    source_lines: int
    target_lines: int
    position: int
    """Index of the files' first pair among all pairs of the corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """Report on one side of a corpus.

    All but `lines` and `invalid` is on valid pairs only.
    """

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
    """Mean length in tokens of non-empty lines."""
    median_length: float
    """Median length in tokens of non-empty lines."""
    percentile_95_length: int
    """95th percentile of the length in tokens of non-empty lines."""
    longest: int
    """Length of the longest line in tokens."""
    longest_place: str
    """File and line of the longest line; empty if all lines are empty."""
    invalid: Occurrences
    """Lines that are too long, not UTF-8, or contain a NUL byte."""
    suspicious: dict[str, Occurrences]
    """Lines with suspicious characters, by their kind."""
    cut: Occurrences
    """Lines whose words another program has cut into sub-words."""
    tabbed: float
    """Share of lines with a tab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """Number of lines of each side with `shortest` to `longest` tokens."""

    shortest: int
    longest: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """Counts of sentence pairs; from `lopsided` on, of the kept ones only."""

    total: int
    """Pairs of lines."""
    invalid: int
    """Pairs with a line that training refuses to read."""
    kept: int
    """Pairs that training would use."""
    empty_source: Occurrences
    empty_target: Occurrences
    empty_both: Occurrences
    overlong: Occurrences
    lopsided: Occurrences
    identical: Occurrences
    """Pairs whose two sides are the same text."""
    repeated: Occurrences
    """Pairs that occurred before."""
    ambiguous_sources: int
    """Sources with several different targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """Report on the training or the dev corpus."""

    source: SideReport
    target: SideReport
    pairs: PairReport
    unequal: tuple[AlignedFiles, ...]
    """Files whose line counts differ."""
    lengths: tuple[LengthBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Dev pairs and dev sources that also occur in the training corpus."""

    pairs: Occurrences
    sources: Occurrences


class Tally:
    """Count with the first examples."""

    def __init__(self, count: int = 0) -> None:
        self._count = count
        self._examples: list[str] = []

    def add(self, example: str) -> None:
        """Count one more occurrence."""
        self._count += 1
        if len(self._examples) < NUM_EXAMPLES:
            self._examples.append(example)

    def finding(self) -> Occurrences:
        """Count and examples so far."""
        return Occurrences(count=self._count, examples=tuple(self._examples))


@dataclass(slots=True, kw_only=True)
class SideCounts:
    """Counts of one side while its lines are read."""

    num_lines: int = 0
    figures: TextFigures = field(default_factory=TextFigures)
    """Words and characters of the valid pairs."""
    num_byte_tokens: int = 0
    invalid: Tally = field(default_factory=Tally)
    marks: dict[str, Tally] = field(
        default_factory=lambda: {kind: Tally() for kind in MARKS}
    )
    cut: Tally = field(default_factory=Tally)

    def read(self, line: Line | None) -> str | None:
        """Count a line and return its text, or None if training would refuse it."""
        if line is None:
            return None
        self.num_lines += 1
        try:
            return line.text()
        except DataError:
            self.invalid.add(f"{line.place} ({text_fault(line.content)})")
            return None

    def count(self, text: str, line: Line) -> None:
        """Count the words and characters of a line of a valid pair."""
        self.figures.add(text)
        for kind, pattern in MARKS.items():
            if match := pattern.search(text):
                self.marks[kind].add(f"{line.place} ({code_points(match[0])})")
        # The common case, a text without either mark, needs no regular expression.
        if ("@@" in text or "\u2581" in text) and CUT_WORD.search(text):
            self.cut.add(line.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPair:
    """Valid pair with its index in the corpus."""

    position: int
    pair: SentencePair


class CorpusReader:
    """Reader of the valid pairs of corpora that counts the faults of the others."""

    def __init__(self) -> None:
        self.source = SideCounts()
        self.target = SideCounts()
        self.files: list[AlignedFiles] = []
        self._position = 0

    def pairs(
        self, sources: Sequence[Path], targets: Sequence[Path]
    ) -> Iterator[PlacedPair]:
        """Read the files of a corpus, after those before.

        Raises `DataError` only if a file is missing or cannot be read further.
        """
        if len(sources) != len(targets):
            raise DataError(
                "Source and target must have equally many files, but have "
                f"{len(sources)} and {len(targets)}."
            )
        for source, target in zip(sources, targets, strict=True):
            first = self._position
            lines = self.source.num_lines, self.target.num_lines
            yield from self._pairs_of(source, target)
            self.files.append(
                AlignedFiles(
                    source=source,
                    target=target,
                    source_lines=self.source.num_lines - lines[0],
                    target_lines=self.target.num_lines - lines[1],
                    position=first,
                )
            )

    def _pairs_of(self, source: Path, target: Path) -> Iterator[PlacedPair]:
        lines = zip_longest(read_lines(source), read_lines(target))
        for source_line, target_line in lines:
            source_text = self.source.read(source_line)
            target_text = self.target.read(target_line)
            if source_text is not None and target_text is not None:
                self.source.count(source_text, source_line)
                self.target.count(target_text, target_line)
                pair = SentencePair(source=source_text, target=target_text)
                yield PlacedPair(position=self._position, pair=pair)
            self._position += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Files, counts and valid pairs of a corpus."""

    files: tuple[AlignedFiles, ...]
    source: SideCounts
    target: SideCounts
    rows: Shaped[np.ndarray, " pairs"]
    """A `ROW` for each valid pair."""

    def kept(self) -> "Survey":
        """Survey of only the pairs that training would keep."""
        return replace(
            self,
            rows=self.rows[self.rows["reason"] == FILTER_REASONS.index("kept")],
        )

    def place(self, row: int, side: Side = "source") -> str:
        """File and line of a row."""
        position = int(self.rows["position"][row])
        following = bisect_right(self.files, position, key=lambda file: file.position)
        file = self.files[following - 1]
        return f"{getattr(file, side)}:{position - file.position + 1}"

    def finding(
        self, is_found: Bool[np.ndarray, " pairs"], side: Side = "source"
    ) -> Occurrences:
        """Number of rows of a mask, with the places of the first."""
        first = np.flatnonzero(is_found)[:NUM_EXAMPLES].tolist()
        return Occurrences(
            count=int(is_found.sum()),
            examples=tuple(self.place(row, side) for row in first),
        )

    def side(self, side: Side) -> SideReport:
        """Report on one side."""
        counts: SideCounts = getattr(self, side)
        lengths = self.rows[f"{side}_length"]
        is_blank = not lengths.any()
        filled = np.zeros(1) if is_blank else lengths[lengths > 0]
        return SideReport(
            files=tuple(getattr(file, side) for file in self.files),
            lines=counts.num_lines,
            words=counts.figures.words,
            characters=counts.figures.characters,
            unspaced_letters=counts.figures.unspaced_letters,
            tokens=int(lengths.sum()),
            byte_tokens=counts.num_byte_tokens,
            tokens_per_word=float(lengths.sum() / max(counts.figures.words, 1)),
            mean_length=float(filled.mean()),
            median_length=float(np.median(filled)),
            percentile_95_length=_percentile(filled, 95),
            longest=int(filled.max()),
            longest_place="" if is_blank else self.place(int(lengths.argmax()), side),
            invalid=counts.invalid.finding(),
            suspicious={kind: tally.finding() for kind, tally in counts.marks.items()},
            cut=counts.cut.finding(),
            tabbed=counts.figures.tabbed / max(counts.figures.lines, 1),
        )

    def report(self) -> SplitReport:
        """Report on both sides, the pairs and their lengths."""
        return SplitReport(
            source=self.side("source"),
            target=self.side("target"),
            pairs=self.pairs(),
            unequal=tuple(f for f in self.files if f.source_lines != f.target_lines),
            lengths=self.length_bins(),
        )

    def pairs(self) -> PairReport:
        """Report on the pairs."""
        rows, kept = self.rows, self.kept()
        has_source, has_target = rows["source_length"] > 0, rows["target_length"] > 0
        total = sum(min(f.source_lines, f.target_lines) for f in self.files)
        return PairReport(
            total=total,
            invalid=total - len(rows),
            kept=len(kept.rows),
            empty_source=self.finding(~has_source & has_target, "source"),
            empty_target=self.finding(has_source & ~has_target, "target"),
            empty_both=self.finding(~has_source & ~has_target),
            overlong=self.finding(rows["reason"] == FILTER_REASONS.index("overlong")),
            lopsided=kept.finding(_is_lopsided(kept.rows)),
            identical=kept.finding(
                kept.rows["source_digest"] == kept.rows["target_digest"]
            ),
            repeated=_repeated(kept),
            ambiguous_sources=_num_ambiguous_sources(kept),
        )

    def pair_digests(self) -> Integer[np.ndarray, " pairs"]:
        """Digest of each pair."""
        return pair_digests(self.rows["source_digest"], self.rows["target_digest"])

    def length_bins(self) -> tuple[LengthBin, ...]:
        """Bins of equal width for 99 % of the lines, and one more for the longest."""
        source, target = self.rows["source_length"], self.rows["target_length"]
        either = np.maximum(source, target)
        if not either.any():
            return ()
        percentile_99, longest = _percentile(either, 99), int(either.max())
        width = _bin_width(percentile_99)
        edges = list(range(1, percentile_99 + 1 + width, width))
        if longest >= edges[-1]:
            edges.append(longest + 1)
        in_source, _ = np.histogram(source, edges)
        in_target, _ = np.histogram(target, edges)
        return tuple(
            LengthBin(shortest=start, longest=end - 1, source=ours, target=theirs)
            for (start, end), ours, theirs in zip(
                pairwise(edges), in_source.tolist(), in_target.tolist(), strict=True
            )
        )


def _is_lopsided(rows: Shaped[np.ndarray, " pairs"]) -> Bool[np.ndarray, " pairs"]:
    source, target = rows["source_length"], rows["target_length"]
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    return (longer > LOPSIDED_RATIO * shorter) & (longer - shorter >= LOPSIDED_TOKENS)


def _repeated(survey: Survey) -> Occurrences:
    """Rows whose pair occurred before."""
    _, first, which = np.unique(
        survey.pair_digests(), return_index=True, return_inverse=True
    )
    first = first[which]  # for each row, the first one with the same pair
    repeats = np.flatnonzero(first != np.arange(len(first)))
    return Occurrences(
        count=len(repeats),
        examples=tuple(
            f"{survey.place(row)} repeats {survey.place(int(first[row]))}"
            for row in repeats[:NUM_EXAMPLES].tolist()
        ),
    )


def _num_ambiguous_sources(survey: Survey) -> int:
    """Number of sources with several different targets."""
    _, distinct = np.unique(survey.pair_digests(), return_index=True)
    sources = survey.rows["source_digest"][distinct]
    _, num_targets = np.unique(sources, return_counts=True)
    return int((num_targets > 1).sum())


def overlap_of(training: Survey, dev: Survey) -> Overlap:
    """Find the dev pairs and dev sources that occur in training."""

    def found(
        known: UInt64[np.ndarray, " training"], digests: UInt64[np.ndarray, " dev"]
    ) -> Occurrences:
        rows = np.flatnonzero(np.isin(digests, known))
        first = rows[:NUM_EXAMPLES].tolist()
        places = [training.place(int(np.argmax(known == digests[r]))) for r in first]
        return Occurrences(
            count=len(rows),
            examples=tuple(
                f"{dev.place(row)} is {place}"
                for row, place in zip(first, places, strict=True)
            ),
        )

    return Overlap(
        pairs=found(training.pair_digests(), dev.pair_digests()),
        sources=found(training.rows["source_digest"], dev.rows["source_digest"]),
    )


def survey_corpora(
    corpora: Iterable[tuple[Sides, PairEncoder]], max_length: int
) -> Survey:
    """Survey the corpora of a mixture, or the only one, encoded as in training."""
    reader = CorpusReader()
    parts = (
        _rows(reader, reader.pairs(*sides), encoder, max_length)
        for sides, encoder in corpora
    )
    rows = np.fromiter(chain.from_iterable(parts), dtype=ROW)
    return Survey(
        files=tuple(reader.files), source=reader.source, target=reader.target, rows=rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of a prepared corpus that do not identify a text: tags and unknown words."""

    tags: Sequence[int] = ()
    """Tags before sources, which are no part of the text."""
    unknown_sources: Sequence[int] = ()
    """Ids that stand for any word outside the vocabulary of sources."""
    unknown_targets: Sequence[int] = ()


def survey_prepared(
    name: str,
    dataset: Dataset,
    counts: PairCounts,
    statistics: CorpusStatistics,
    special: SpecialIds,
    *,
    has_bytes: bool = True,
) -> Survey:
    """Survey a prepared corpus, without file names.

    The texts are not read again: equal ids mean equal texts, except unknown words. A
    text with one counts as different from all others, also those of corpora with
    another name. `has_bytes` says whether the vocabulary has bytes.
    """
    files = AlignedFiles(
        source=Path(),
        target=Path(),
        source_lines=counts.total,
        target_lines=counts.total,
        position=0,
    )
    side_counts = {
        side: SideCounts(
            num_lines=counts.total,
            figures=statistics.figures[side],
            num_byte_tokens=_num_byte_ids(encoded) if has_bytes else 0,
        )
        for side, encoded in (("source", dataset.source), ("target", dataset.target))
    }
    # The side of a mark is not recorded, and no report needs it.
    side_counts["source"].marks = {
        kind: Tally(number) for kind, number in statistics.marks.items()
    }
    return Survey(
        files=(files,),
        source=side_counts["source"],
        target=side_counts["target"],
        rows=_prepared_rows(name, dataset, counts, special),
    )


def _prepared_rows(
    name: str, dataset: Dataset, counts: PairCounts, special: SpecialIds
) -> Shaped[np.ndarray, " pairs"]:
    """Return a row for each pair: the kept ones, then the empty, then the overlong.

    A prepared corpus has the ids of the kept pairs only, so that just the number of the
    others is known.
    """
    first_overlong = counts.kept + counts.empty
    rows = np.zeros(counts.total, dtype=ROW)
    rows["position"] = np.arange(counts.total)
    rows["reason"][counts.kept : first_overlong] = FILTER_REASONS.index("empty")
    rows["reason"][first_overlong:] = FILTER_REASONS.index("overlong")
    kept = rows[: counts.kept]
    kept["source_length"] = np.diff(dataset.source.offsets)
    kept["target_length"] = np.diff(dataset.target.offsets)
    for side, encoded, unknown in (
        ("source", dataset.source, special.unknown_sources),
        ("target", dataset.target, special.unknown_targets),
    ):
        seed = text_digest(f"{name} {side}")
        kept[f"{side}_digest"] = _id_digests(encoded, special.tags, unknown, seed)
    rows["source_length"][first_overlong:] = 1  # unknown, but not empty
    rows["target_length"][first_overlong:] = 1
    return rows


def _num_byte_ids(side: EncodedSide) -> int:
    """Number of ids that are bytes of characters outside the vocabulary."""
    parts = (
        side.ids[first : first + CHUNK_IDS]
        for first in range(0, len(side.ids), CHUNK_IDS)
    )
    return sum(
        int(np.count_nonzero((ids > EOS) & (ids < NUM_RESERVED))) for ids in parts
    )


def _id_digests(
    side: EncodedSide, tags: Sequence[int], unknown: Sequence[int], seed: int
) -> Integer[np.ndarray, " sentences"]:
    """64-bit digest of each non-empty sentence's ids and their positions.

    Tags are left out. A sentence with an unknown id has a digest of its own, by its
    number and the seed.
    """
    digests = np.empty(len(side.offsets) - 1, dtype=np.uint64)
    for first in range(0, len(digests), CHUNK_ROWS):
        offsets = side.offsets[first : first + CHUNK_ROWS + 1]
        ids = side.ids[offsets[0] : offsets[-1]]
        starts, sizes = offsets[:-1] - offsets[0], np.diff(offsets)
        is_text = ~np.isin(ids, tags)
        counted: Integer[np.ndarray, " ids"] = np.cumsum(is_text)
        before: Integer[np.ndarray, " sentences"] = (counted - is_text)[starts]
        places = counted - np.repeat(before, sizes)
        mixed = _mixed(ids.astype(np.uint64) + np.uint64(1), places.astype(np.uint64))
        found = np.add.reduceat(np.where(is_text, mixed, np.uint64(0)), starts)
        if len(unknown):
            is_unknown = np.logical_or.reduceat(np.isin(ids, unknown), starts)
            numbers = first + np.arange(len(found), dtype=np.uint64)
            own = _mixed(numbers, np.full_like(numbers, seed))
            found = np.where(is_unknown, own, found)
        digests[first : first + CHUNK_ROWS] = found
    return digests


def _mixed(
    one: UInt64[np.ndarray, " numbers"], other: UInt64[np.ndarray, " numbers"]
) -> UInt64[np.ndarray, " numbers"]:
    """64-bit digest of each two numbers."""
    mixed: UInt64[np.ndarray, " numbers"] = one * MIXERS[0] + other * MIXERS[1]
    for shift, factor in ((31, MIXERS[2]), (29, MIXERS[0])):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    return mixed


def valid_pairs(
    source: Sequence[Path], target: Sequence[Path]
) -> Iterator[SentencePair]:
    """Read every pair whose lines are both valid text."""
    return (placed.pair for placed in CorpusReader().pairs(source, target))


def _rows(
    reader: CorpusReader,
    pairs: Iterator[PlacedPair],
    encoder: PairEncoder,
    max_length: int,
) -> Iterator[Row]:
    placed, to_encode = tee(pairs)
    encoded = encode_pairs((each.pair for each in to_encode), encoder)
    without = (WordTokenizer, SentencePieceTokenizer)
    has_bytes = not isinstance(encoder.tokenizer, without)
    for read, ids in zip(placed, encoded, strict=True):
        if has_bytes:
            reader.source.num_byte_tokens += _num_bytes(ids.source)
            reader.target.num_byte_tokens += _num_bytes(ids.target)
        yield (
            read.position,
            FILTER_REASONS.index(filter_reason(ids, max_length)),
            len(ids.source),
            len(ids.target),
            text_digest(read.pair.source),
            text_digest(read.pair.target),
        )


def _num_bytes(ids: Sequence[int]) -> int:
    return sum(EOS < i < NUM_RESERVED for i in ids)


def _percentile(lengths: Num[np.ndarray, " lines"], percent: int) -> int:
    """Percentile of the lengths, without interpolation between two lengths."""
    return int(np.percentile(lengths, percent, method="inverted_cdf"))


def _bin_width(longest: int) -> int:
    """Smallest of 1, 2, 5, 10, 20, … that makes at most `MAX_BINS` bins."""
    widths = (digit * 10**exponent for exponent in count() for digit in (1, 2, 5))
    return next(width for width in widths if longest <= width * MAX_BINS)
