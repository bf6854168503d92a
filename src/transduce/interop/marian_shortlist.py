"""Shortlists of Marian: lexicons as text (lex.s2t), or in binary form (lex.s2t.bin).

A text has lines `target source probability` of pieces; a sentence chooses among the
first rows of the target's vocabulary and the best targets of each of its source pieces.
A binary file has these numbers fixed and the targets of each source row by rising row:
six numbers of 64 bits (a mark, a checksum, the number of first rows, that of targets of
a piece, and the lengths of both arrays that follow), the place of the first target of
each source row, in 64 bits, and the targets, in 32 bits. Files may be packed by gzip.
"""

import gzip
import io
import math
import zlib
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from transduce.errors import CheckpointError
from transduce.files import access_errors, reason, require_file
from transduce.settings import shown
from transduce.text.alignment import TranslationTable, ranked
from transduce.text.shortlist import Shortlist, tokenizer_sum
from transduce.text.tokenizer import Tokenizer, own_target_size
from transduce.text.vocabulary import EOS

GZIP = b"\x1f\x8b"
MARK = (0xF11A48D5013417F5).to_bytes(8, "little")
"""Beginning of a binary file."""
NUMBERS = np.dtype("<u8")
HEADER_BYTES, HASHED_FROM = 48, 16
"""Size of the header, and the place in it at which the checked content begins."""
HASH_STEP, HASH_MASK = 0x9E3779B9, 2**64 - 1
ABSENT = b"NULL"
"""Word of an aligner's lexicon for no word."""
MAX_ENTRIES, MAX_LINE_BYTES = 2**26, 10_000
"""Limits of a lexicon; those of models have some million entries."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of a side's vocabulary in Marian."""

    pieces: Sequence[str]
    unknown: int
    """Row of unknown pieces."""
    ids: Int64[np.ndarray, " rows"]
    """This package's id of each row; no two are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a lexicon that is a text; a binary file has its own."""

    first: int = 100
    """Number of first target rows that are candidates of all sentences."""
    best: int = 100
    """Number of targets of each source piece."""
    threshold: float = 0.0
    """Probability that targets must exceed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lexicon:
    """Targets of source rows, source by source."""

    first: int
    sources: Int64[np.ndarray, " entries"]
    targets: Int64[np.ndarray, " entries"]


def read_shortlist(
    path: Path, source: Rows, target: Rows, limits: Limits, tokenizer: Tokenizer
) -> Shortlist:
    """Read Marian's shortlist of the tokenizer's model.

    Raises `CheckpointError` if it is missing, damaged, or of other vocabularies.
    """
    try:
        require_file(path)
        with access_errors(path), ExitStack() as stack:
            file: io.BufferedIOBase = stack.enter_context(path.open("rb"))
            is_packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            if is_packed:
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            if file.read(len(MARK)) == MARK:
                lexicon = _read_binary(file, source, target)
            else:
                file.seek(0)
                lexicon = _read_text(file, source, target, limits)
    except (OSError, ValueError, EOFError, zlib.error, MemoryError) as error:
        raise CheckpointError(
            f"{path}: the shortlist is missing, damaged or of another model "
            f"({reason(error)}); fetch the file again, or remove it to import the "
            "model without it."
        ) from None
    return _shortlist(lexicon, source, target, tokenizer)


def _shortlist(
    lexicon: _Lexicon, source: Rows, target: Rows, tokenizer: Tokenizer
) -> Shortlist:
    """Return the lexicon by this package's ids."""
    sources, targets = source.ids[lexicon.sources], target.ids[lexicon.targets]
    # In Marian the end token belongs to each source, here to none.
    common = [*target.ids[: lexicon.first], *targets[sources == EOS]]
    frequent = dict.fromkeys(int(i) for i in common if i != EOS)
    is_kept = sources != EOS
    sources, targets = sources[is_kept], targets[is_kept]
    order = np.argsort(sources, kind="stable")
    sizes = np.bincount(sources, minlength=tokenizer.vocab_size)
    return Shortlist(
        frequent=np.array([*frequent], dtype=np.int32),
        always=np.array([EOS], dtype=np.int32),
        ends=np.cumsum(sizes, dtype=np.int64),
        target_vocab_size=own_target_size(tokenizer) or tokenizer.vocab_size,
        targets=targets[order].astype(np.int32),
        tokenizer=tokenizer_sum(tokenizer),
    )


# ---- Binary files ----------------------------------------------------------------


def _read_binary(file: io.BufferedIOBase, source: Rows, target: Rows) -> _Lexicon:
    """Read what follows the mark."""
    header = _take(file, HEADER_BYTES - len(MARK))
    checksum, first, _, num_starts, num_entries = map(
        int, np.frombuffer(header, NUMBERS)
    )
    if num_starts != len(source.pieces) + 1:
        raise ValueError(
            f"it must have {len(source.pieces):,} source rows, as the vocabulary, but "
            f"has {num_starts - 1:,}"
        )
    _require_possible(num_entries)
    content = _take(file, NUMBERS.itemsize * num_starts + 4 * num_entries)
    if file.read(1):
        raise ValueError("it is longer than its header says")
    if _checksum(header[HASHED_FROM - len(MARK) :] + content) != checksum:
        raise ValueError("its checksum is another")
    starts = np.frombuffer(content, NUMBERS, num_starts)
    # Marian lets the first list begin anywhere, but all programs write 0.
    if starts[0] or starts[-1] != num_entries or (starts[1:] < starts[:-1]).any():
        raise ValueError("its lists do not rise from 0 to its end")
    targets = np.frombuffer(content, "<u4", offset=starts.nbytes).astype(np.int64)
    if targets.max(initial=0) >= len(target.pieces):
        raise ValueError("a target is outside the vocabulary")
    ends = starts.astype(np.int64)
    sizes = ends[1:] - ends[:-1]
    return _Lexicon(
        first=first, sources=np.repeat(np.arange(len(sizes)), sizes), targets=targets
    )


def _take(file: io.BufferedIOBase, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ValueError(f"it is cut short by {size - len(content):,} bytes")
    return content


def _require_possible(num_entries: int) -> None:
    if num_entries > MAX_ENTRIES:
        raise ValueError(f"it must have at most {MAX_ENTRIES:,} entries")


def _checksum(content: bytes) -> int:
    """Return Marian's checksum of the whole numbers of 64 bits in a content."""
    found = 0
    for number in np.frombuffer(content, NUMBERS, len(content) // 8).tolist():
        found ^= (number + HASH_STEP + (found << 6) + (found >> 2)) & HASH_MASK
    return found


# ---- Texts -----------------------------------------------------------------------


def _read_text(
    file: io.BufferedIOBase, source: Rows, target: Rows, limits: Limits
) -> _Lexicon:
    """Read a text, and keep the best targets of each source."""
    ids = [
        {piece.encode(): i for i, piece in enumerate(rows.pieces)}
        for rows in (source, target)
    ]
    sources, targets, probabilities = array("i"), array("i"), array("f")
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if not (fields := line.split()):
            continue
        if len(fields) != 3 or not 0 <= (probability := _number(fields[2])) <= 1:
            raise ValueError(
                f"line {number:,} must have a target piece, a source piece and a "
                f"probability, but is {shown(line.decode(errors='replace').strip())}"
            )
        if ABSENT in fields[:2]:
            continue
        _require_possible(len(sources) + 1)
        sources.append(ids[0].get(fields[1], source.unknown))
        targets.append(ids[1].get(fields[0], target.unknown))
        probabilities.append(probability)
    table = _greatest(
        TranslationTable(
            source=np.array(sources, dtype=np.int64),
            target=np.array(targets, dtype=np.int64),
            probability=np.array(probabilities, dtype=np.float64),
        ),
        len(target.pieces),
    )
    # Of equal probabilities, Marian takes those of the last rows.
    chosen = ranked(
        TranslationTable(
            source=table.source, target=-table.target, probability=table.probability
        ),
        limits.best,
    )
    chosen = chosen[table.probability[chosen] > limits.threshold]
    return _Lexicon(
        first=limits.first, sources=table.source[chosen], targets=table.target[chosen]
    )


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _greatest(table: TranslationTable, num_targets: int) -> TranslationTable:
    """Return the likeliest entry of each pair, as `marian-conv` does: unknown pieces
    are one row."""
    keys = table.source * num_targets + table.target
    order = np.lexsort((-table.probability, keys))
    kept = order[np.diff(keys[order], prepend=-1) != 0]
    return TranslationTable(
        source=table.source[kept],
        target=table.target[kept],
        probability=table.probability[kept],
    )
