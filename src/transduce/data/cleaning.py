"""Cleaning of a parallel corpus: the pairs to keep, and the others with reasons.

The corpus is read twice, or three times with a model. First several processes apply the
rules for single pairs. Then the rules that need the whole corpus are applied to numbers
on disk: length ratio, duplicates, and the share of the worst scores. Last the pairs are
written. Memory does not grow with the corpus; each pair takes 25 bytes of disk for the
time of the work, or up to 65 with all options.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from io import BufferedWriter
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Float, Integer, Num, UInt8, UInt64

from transduce.data.cleaning_rules import CODES, NAMES, CleaningConfig, PairRules
from transduce.data.corpus_files import (
    CorpusFiles,
    empty_corpus,
    pair_digests,
    require_files,
    text_digest,
)
from transduce.errors import ConfigError, DataError, RequestError
from transduce.files import MADE_BY, atomic_directory, without_infinity
from transduce.machine import require_number_of_processes, usable_cores
from transduce.metrics.scores import TargetScore
from transduce.processes import WorkerLostError, WorkerProcess
from transduce.settings import require_between
from transduce.signals import signals_held
from transduce.text.corpus import (
    MAGIC_BYTES,
    MAX_LINE_BYTES,
    Line,
    aligned_lines,
    compression_of,
    full_windows,
    line_in_file,
    read_text,
)
from transduce.text.languages import LanguagesConfig, guess

DROPPED_FILE, REPORT_FILE, SCORES_FILE = "dropped.jsonl", "report.json", "scores.tsv"
"""Files of the output folder beside those of the kept pairs."""
REPORT_FORMAT = 1
UNSAFE = re.compile("[\ud800-\udfff\x7f-\x9f\u2028\u2029]")
"""Character that a file of JSON lines does not hold unescaped: no UTF-8, or the end of
a line for some readers."""

CHUNK_PAIRS, CHUNK_BYTES = 5_000, 2_000_000
"""Pairs that a process judges at once, fewer if they are long."""
CHUNKS_AHEAD = 4
"""Chunks for each process that may wait for it or for earlier ones."""
BLOCK_ROWS = 100_000
"""Rows of the numbers on disk that are read at once."""
PARTITION_ROWS = 250_000
"""Pairs whose digests are compared at once, about 15 MB."""
SCORED_PAIRS = 2_048
"""Pairs that a model scores at once."""

RATIO_PAIRS = 100
"""Smallest number of pairs to learn a length ratio from."""
RATIO_CHARACTERS = 20
"""Smallest number of characters of the longer side of a pair whose ratio is learned
from, if there are enough such pairs."""
EXTRA_CHARACTERS = 15
"""Characters added to both lengths, since the ratio of short texts varies widely."""
NORMAL_SPREAD = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
BINS_PER_UNIT, NUM_BINS = 1_024, 32 * 1_024
"""Bins of logarithms of ratios: 1,024 for a factor of e, from -16 to 16."""
MAX_LOG_FACTOR = 14.0
"""Largest logarithm of a factor: lines of at most a million bytes differ by less."""
DEFAULT_PROCESSES, MAX_PROCESSES = 16, 64
"""Largest number of processes by default, and the largest that may be given where there
are fewer cores. One process reads and writes for all, so that many more would wait."""
LENGTH_RATIO = CODES["length-ratio"]
REPEATS = {
    "duplicate": "pairs",
    "duplicate-source": "sources",
    "duplicate-target": "targets",
}
"""Rules about repeated texts, each with the digests that it compares."""
DIGITS, DIGIT_BITS = 4, 16
"""Number of digits of a 64-bit key, and their size in bits: the worst scores are found
digit by digit."""

ScorePairs: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[TargetScore]]
"""Function that scores targets given sources, such as `Translator.score`."""
_Worker: TypeAlias = "WorkerProcess[[_Chunk], _ChunkRows]"
OnPairs: TypeAlias = Callable[[str, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Models that score pairs, and the share of the pairs that their scores drop."""

    score: ScorePairs
    """`Translator.score` of a model."""
    score_reverse: ScorePairs | None = None
    """`Translator.score` of a model of the reverse direction. With it, pairs are ranked
    by dual conditional cross-entropy (Junczys-Dowmunt, 2018)."""
    worst: float = 0.1
    """Share of the pairs that all rules keep, which is dropped for its scores."""

    def __post_init__(self) -> None:
        require_between("worst", self.worst, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRatio:
    """Usual ratio of the lengths of both sides, in characters without white space."""

    usual: float
    """Median of the target's length divided by the source's."""
    largest_factor: float
    """Factor by which a length may deviate from the usual ratio."""

    def deviations(
        self, lengths: Integer[np.ndarray, "pairs 2"]
    ) -> Float[np.ndarray, " pairs"]:
        """Logarithms of the factors by which targets are longer than usual."""
        source = lengths[:, 0] * max(self.usual, 1.0)
        target = lengths[:, 1] / min(self.usual, 1.0)
        return np.log((target + EXTRA_CHARACTERS) / (source + EXTRA_CHARACTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFiles:
    """Two input files, with the languages and numbers of their pairs."""

    source: Path
    target: Path
    source_language: str | None
    target_language: str | None
    total: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningReport:
    """Numbers of kept and dropped pairs, and figures of the corpus."""

    total: int
    kept: int
    dropped: dict[str, int]
    """Number of pairs by the rule that dropped them, in the order of the rules."""
    files: tuple[CleanedFiles, ...]
    length_ratios: dict[str, LengthRatio]
    """Length ratio by languages, as in "en-de"; none for fewer than 100 pairs."""
    largest_score: float | None
    """Largest cross-entropy of a kept pair; None without a model."""


def clean_corpus(
    files: CorpusFiles,
    out: Path,
    config: CleaningConfig | None = None,
    *,
    languages: LanguagesConfig | None = None,
    scoring: Scoring | None = None,
    num_processes: int | None = None,
    overwrite: bool = True,
    on_pairs: OnPairs = lambda _what, _number: None,
) -> CleaningReport:
    """Write the kept pairs of a corpus to a folder, and the dropped ones with reasons.

        files = CorpusFiles(source=(Path("my.en"),), target=(Path("my.de"),))
        scoring = Scoring(score=transduce.load("runs/mine").score, worst=0.1)
        clean_corpus(files, Path("cleaned"), scoring=scoring)

    The folder appears once it is complete, and replaces that of an earlier cleaning.

    Parameters
    ----------
    files
        Text files, plain or compressed, one sentence per line. Sources of the dev text,
        one of which may be standard input (`-`), are dropped from the corpus.
    out
        Folder of the kept pairs, under the names of the input files; of the dropped
        pairs (`dropped.jsonl`), the report (`report.json`), and scores (`scores.tsv`).
    config
        Thresholds, and rules that are switched off.
    languages
        Languages of the corpus; by default the endings of the files name them.
    scoring
        Models that score the pairs that all rules keep.
    num_processes
        Number of processes; by default one for each core, or OMP_NUM_THREADS, at
        most 16. The result is the same.
    overwrite
        Whether to replace the result of an earlier cleaning.
    on_pairs
        Called with "read", "scored" or "written", and the number of pairs so far.

    Raises
    ------
    DataError
        A file cannot be read, or the sides differ in their number of lines.
    ConfigError
        Two files have one name, a number is out of bounds, or the folder must not be
        overwritten.
    CheckpointError
        The folder cannot be written.
    RequestError
        A process was killed, or a model cannot score.
    """
    config = config or CleaningConfig()
    default = min(usable_cores().number, DEFAULT_PROCESSES)
    number = default if num_processes is None else num_processes
    require_number_of_processes(number, MAX_PROCESSES)
    pairs = file_pairs(files, languages)
    corpus_files = (*files.source, *files.target)
    require_files(corpus_files)  # dev sources are read once, and may be a stream
    _require_distinct_names(corpus_files)
    before = {path: _state(path) for path in corpus_files}
    dev_sources = frozenset(map(text_digest, read_text(files.dev_source)))
    judge = _ChunkJudge(config, pairs, dev_sources)
    with (
        atomic_directory(out, "clean", overwrite=overwrite) as new,
        TemporaryDirectory(dir=new, prefix=".rows-") as folder,
    ):
        compared = [name for rule, name in REPEATS.items() if config.has(rule)]
        with closing(_judged(_chunks(pairs), judge, number)) as judged:
            totals = _write_rows(judged, len(pairs), compared, Path(folder), on_pairs)
        corpus = _Corpus(pairs, totals, Path(folder))
        ratios = _drop_unusual_lengths(corpus, config)
        for rule, digests in REPEATS.items():
            if config.has(rule):
                _drop_repeats(corpus, digests, CODES[rule])
        if scoring is not None:
            _write_scores(corpus, scoring, on_pairs)
            if config.has("low-score"):
                _drop_worst(corpus, scoring.worst)
        report = _write(corpus, new, ratios, on_pairs)
        _require_unchanged(before)
        settings = {**asdict(config), "worst": scoring.worst if scoring else None}
        content = {"format": REPORT_FORMAT, **asdict(report), "settings": settings}
        (new / REPORT_FILE).write_text(
            json.dumps(without_infinity(content), indent=2, default=str) + "\n",
            encoding="utf-8",
        )
    return report


class FilePair(NamedTuple):
    """Two aligned files with their languages, as BCP 47 tags."""

    source: Path
    target: Path
    source_language: str | None
    target_language: str | None

    @property
    def direction(self) -> str:
        """Both languages, as in "en-de"."""
        return (
            f"{self.source_language or 'unknown'}-{self.target_language or 'unknown'}"
        )

    def reversed(self) -> "FilePair":
        """Return the pair with source and target exchanged."""
        return FilePair(
            self.target, self.source, self.target_language, self.source_language
        )


class _Chunk(NamedTuple):
    """Lines of two aligned files."""

    file: int
    """Number of the pair of files."""
    source: list[bytes]
    target: list[bytes]


class _ChunkRows(NamedTuple):
    """Findings of the rules for single pairs in a chunk."""

    file: int
    codes: bytes
    """Number of the broken rule of each pair; 0 for none."""
    details: list[str]
    """Explanation for each pair that breaks a rule."""
    lengths: Integer[np.ndarray, "pairs 2"]
    """Characters of both sides without white space; 0 for a dropped pair."""
    digests: UInt64[np.ndarray, "pairs 2"]
    """Digests of both sides; 0 for a dropped pair."""


class _ChunkJudge:
    """Applies the rules for single pairs to chunks; sent to each process once."""

    def __init__(
        self,
        config: CleaningConfig,
        files: Sequence[FilePair],
        dev_sources: frozenset[int],
    ) -> None:
        self.files = files
        self._config = config
        self._dev_sources = dev_sources
        self._rules: dict[str, PairRules] = {}

    def __call__(self, chunk: _Chunk) -> _ChunkRows:
        rules = self._rules_for(self.files[chunk.file])
        found = [
            rules.judge(source, target)
            for source, target in zip(chunk.source, chunk.target, strict=True)
        ]
        return _ChunkRows(
            file=chunk.file,
            codes=bytes([each.code for each in found]),
            details=[each.detail for each in found if each.code],
            lengths=np.array(
                [(each.source_size, each.target_size) for each in found], dtype="<u4"
            ),
            digests=np.array(
                [(each.source_digest, each.target_digest) for each in found],
                dtype="<u8",
            ),
        )

    def _rules_for(self, pair: FilePair) -> PairRules:
        if pair.direction not in self._rules:
            self._rules[pair.direction] = PairRules(
                self._config,
                pair.source_language,
                pair.target_language,
                self._dev_sources,
            )
        return self._rules[pair.direction]


MAX_SHOWN_BYTES = 1_000
"""Number of bytes that are shown of a line above `MAX_LINE_BYTES`."""


class _ReadPair(NamedTuple):
    """Pair of lines with the numbers of its files and of its rule."""

    file: int
    code: int
    """Number of the rule that drops the pair; 0 if it is kept."""
    source: Line
    target: Line


class _Corpus:
    """Files of a corpus, and numbers about each pair in arrays on disk.

    The arrays are memory maps, which the system may drop from memory at any time.
    """

    def __init__(
        self, files: Sequence[FilePair], totals: Sequence[int], folder: Path
    ) -> None:
        """Open the arrays that `_write_rows` has written; `DataError` for no pair."""
        self.files = files
        self.totals = totals
        self.folder = folder
        self.starts = np.cumsum([0, *totals])
        self.num_pairs = int(self.starts[-1])
        if not self.num_pairs:
            raise empty_corpus(files[0].source)
        self.codes: UInt8[np.ndarray, " pairs"] = self._array("codes", "u1")
        self.lengths: Integer[np.ndarray, "pairs 2"] = self._array("lengths", "<u4", 2)
        # Written, not only made longer: on a full disk, a process that fills a hole
        # through mapped memory is killed.
        with (folder / "first").open("wb") as file:
            for start in range(0, self.num_pairs, CHUNK_PAIRS):
                file.write(bytes(8 * min(CHUNK_PAIRS, self.num_pairs - start)))
        self.first: Integer[np.ndarray, " pairs"] = self._array("first", "<i8")
        """Number of the pair that a duplicate repeats."""

    def digests(self, name: str) -> UInt64[np.ndarray, " pairs"]:
        """Digests of the pairs, the sources or the targets."""
        return self._array(name, "<u8")

    def _array(self, name: str, kind: str, *axes: int) -> Num[np.ndarray, " pairs ..."]:
        shape = (self.num_pairs, *axes)
        return np.memmap(self.folder / name, dtype=kind, mode="r+", shape=shape)

    def blocks(self, files: Iterable[int] | None = None) -> Iterator[slice]:
        """Blocks of rows of some files; by default of all."""
        for number in range(len(self.files)) if files is None else files:
            start, end = int(self.starts[number]), int(self.starts[number + 1])
            for first in range(start, end, BLOCK_ROWS):
                yield slice(first, min(first + BLOCK_ROWS, end))

    def place(self, row: int) -> str:
        """File and line of the source of a pair."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.files[number].source}:{row - int(self.starts[number]) + 1}"

    def pairs(self) -> Iterator[_ReadPair]:
        """Read the pairs again."""
        for number, pair in enumerate(self.files):
            codes = chain.from_iterable(
                self.codes[block].tobytes() for block in self.blocks([number])
            )
            lines = aligned_lines([pair.source], [pair.target])
            # Their numbers differ only if a file was changed, which is found later.
            for (source, target), code in zip(lines, codes, strict=False):
                yield _ReadPair(number, code, source, target)


def file_pairs(files: CorpusFiles, languages: LanguagesConfig | None) -> list[FilePair]:
    """Return the aligned files with their languages, given or named by the endings.

    Raises `DataError` if the sides have different numbers of files.
    """
    if len(files.source) != len(files.target):
        raise DataError(
            "Source and target must have equally many files, but have "
            f"{len(files.source)} and {len(files.target)}."
        )
    given = languages or LanguagesConfig()
    return [
        FilePair(one, other, given.source or guess(one), given.target or guess(other))
        for one, other in zip(files.source, files.target, strict=True)
    ]


def _require_distinct_names(paths: Iterable[Path]) -> None:
    """Raise `ConfigError` if two files of the output folder would have one name."""
    names = {DROPPED_FILE, REPORT_FILE, SCORES_FILE, MADE_BY}
    for path in paths:
        if path.name in names:
            raise ConfigError(
                f"{path}: the kept pairs are written under the names of the files, but "
                f"another file of the output folder is named {path.name}; rename one."
            )
        names.add(path.name)


def _state(path: Path) -> tuple[int, int] | None:
    """Return size and time of change of a file; None for a missing one."""
    try:
        status = path.stat()
    except OSError:
        return None  # reading it raises an error
    return status.st_size, status.st_mtime_ns


def _require_unchanged(before: dict[Path, tuple[int, int] | None]) -> None:
    """Raise `DataError` if a file has another size or time of change than before."""
    for path, state in before.items():
        if _state(path) != state:
            raise DataError(
                f"{path}: a corpus must stay as it is while it is cleaned, but this "
                "file was changed; start again."
            )


def _chunks(files: Sequence[FilePair]) -> Iterator[_Chunk]:
    """Cut the corpus into chunks of limited numbers of pairs and bytes."""
    for number, pair in enumerate(files):
        chunk, num_bytes = _Chunk(number, [], []), 0
        for source, target in aligned_lines([pair.source], [pair.target]):
            chunk.source.append(source.content)
            chunk.target.append(target.content)
            num_bytes += len(source.content) + len(target.content)
            if len(chunk.source) >= CHUNK_PAIRS or num_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, num_bytes = _Chunk(number, [], []), 0
        if chunk.source:
            yield chunk


def _judged(
    chunks: Iterator[_Chunk], judge: _ChunkJudge, num_processes: int
) -> Generator[_ChunkRows, None, None]:
    """Judge chunks in several processes; yield the results in order."""
    first = list(islice(chunks, 2))
    chunks = chain(first, chunks)
    if num_processes == 1 or len(first) == 1:
        yield from map(judge, chunks)
        return
    with ThreadPoolExecutor(num_processes) as threads, ExitStack() as stack:
        idle = SimpleQueue[_Worker]()
        with signals_held():  # no process is started that is not ended
            for _ in range(num_processes):
                worker = _started(judge)
                stack.callback(worker.end)  # it has no state to save
                idle.put(worker)

        def judged(chunk: _Chunk) -> _ChunkRows:
            worker = idle.get()
            try:
                return worker(chunk)
            finally:
                idle.put(worker)

        coming: deque[Future[_ChunkRows]] = deque()
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        try:
            for chunk in chunks:
                if len(coming) == CHUNKS_AHEAD * num_processes:
                    yield coming.popleft().result()
                coming.append(threads.submit(judged, chunk))
            while coming:
                yield coming.popleft().result()
        except WorkerLostError as error:
            raise RequestError(
                f"A process that cleans {error}; free memory, or use fewer processes."
            ) from None


def _started(judge: _ChunkJudge) -> _Worker:
    try:
        return WorkerProcess(judge)
    except OSError as error:
        raise RequestError(
            "A process that cleans must be started, but the system allows none "
            f"({error.strerror}); end others, or use a single process."
        ) from None


def _write_rows(
    judged: Iterable[_ChunkRows],
    num_files: int,
    compared: Sequence[str],
    folder: Path,
    on_pairs: OnPairs,
) -> list[int]:
    """Write the arrays of `_Corpus` and the details; return the pairs of each file.

    `compared` names the digests that are written.
    """
    totals = [0] * num_files
    with ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / name).open("wb"))
            for name in ("codes", "lengths", "details", *compared)
        }
        for rows in judged:
            source, target = rows.digests.T
            digests = {
                "pairs": pair_digests(source, target),
                "sources": source,
                "targets": target,
            }
            files["codes"].write(rows.codes)
            files["lengths"].write(rows.lengths.tobytes())
            files["details"].writelines(
                json.dumps(detail).encode() + b"\n" for detail in rows.details
            )
            for name in compared:
                files[name].write(digests[name].tobytes())
            totals[rows.file] += len(rows.codes)
            on_pairs("read", sum(totals))
    return totals


def _drop_unusual_lengths(
    corpus: _Corpus, config: CleaningConfig
) -> dict[str, LengthRatio]:
    """Learn the length ratio of each pair of languages, and apply the rule."""
    if not config.has("length-ratio"):
        return {}
    ratios = {}
    for direction in dict.fromkeys(pair.direction for pair in corpus.files):
        numbers = [
            number
            for number, pair in enumerate(corpus.files)
            if pair.direction == direction
        ]
        ratio = _learned_ratio(corpus, numbers, config)
        if ratio is None:
            continue
        ratios[direction] = ratio
        for block in corpus.blocks(numbers):
            codes = corpus.codes[block]
            deviations = np.abs(ratio.deviations(corpus.lengths[block]))
            codes[(codes == 0) & (deviations > math.log(ratio.largest_factor))] = (
                LENGTH_RATIO
            )
    return ratios


def _learned_ratio(
    corpus: _Corpus, files: Sequence[int], config: CleaningConfig
) -> LengthRatio | None:
    """Median ratio and spread of the pairs that no other rule drops; None for few."""

    def kept_lengths() -> Iterator[Float[np.ndarray, "pairs 2"]]:
        for block in corpus.blocks(files):
            yield corpus.lengths[block][corpus.codes[block] == 0].astype(np.float64)

    long, all_ = _Histogram(), _Histogram()
    for lengths in kept_lengths():
        filled = lengths[lengths.min(axis=1) > 0]
        logarithms = np.log(filled[:, 1] / filled[:, 0])
        all_.add(logarithms)
        long.add(logarithms[filled.max(axis=1) >= RATIO_CHARACTERS])
    known = long if long.number >= RATIO_PAIRS else all_
    if known.number < RATIO_PAIRS:
        return None
    ratio = LengthRatio(usual=math.exp(known.median()), largest_factor=1.0)
    spread = _Histogram()
    for lengths in kept_lengths():
        spread.add(np.abs(ratio.deviations(lengths)))
    largest = config.ratio_spreads * NORMAL_SPREAD * spread.median()
    log_factor = min(max(largest, math.log(config.ratio_factor)), MAX_LOG_FACTOR)
    return replace(ratio, largest_factor=math.exp(log_factor))


class _Histogram:
    """Counts of numbers by narrow bins, whose median takes no memory for each."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BINS, dtype=np.int64)

    @property
    def number(self) -> int:
        return int(self._counts.sum())

    def add(self, values: Float[np.ndarray, " values"]) -> None:
        bins = np.floor(values * BINS_PER_UNIT).astype(np.int64) + NUM_BINS // 2
        bins = np.clip(bins, 0, NUM_BINS - 1)
        self._counts += np.bincount(bins, minlength=NUM_BINS)

    def median(self) -> float:
        """Middle of the bin with the lower median."""
        below = np.cumsum(self._counts)
        place = int(np.searchsorted(below, (self.number + 1) // 2))
        return (place - NUM_BINS // 2 + 0.5) / BINS_PER_UNIT


def _drop_repeats(corpus: _Corpus, name: str, code: int) -> None:
    """Drop the pairs whose digest an earlier kept pair has.

    The digests are compared in parts that fit in memory, by their leading bits.
    """
    digests = corpus.digests(name)
    num_parts = -(-corpus.num_pairs // PARTITION_ROWS)
    bits = (num_parts - 1).bit_length()
    for part in range(1 << bits):
        found: list[Integer[np.ndarray, " rows"]] = []
        for block in corpus.blocks():
            is_ours: Bool[np.ndarray, " rows"] = corpus.codes[block] == 0
            if bits:
                is_ours &= (digests[block] >> np.uint64(64 - bits)) == part
            found.append(np.flatnonzero(is_ours) + block.start)
        rows = np.concatenate(found)
        # A stable order keeps equal digests in the order of the corpus.
        rows = rows[np.argsort(digests[rows], kind="stable")]
        sorted_digests = digests[rows]
        is_repeat = np.zeros(len(rows), dtype=bool)
        is_repeat[1:] = sorted_digests[1:] == sorted_digests[:-1]
        first = rows[~is_repeat][np.cumsum(~is_repeat) - 1] if len(rows) else rows
        corpus.codes[rows[is_repeat]] = code
        corpus.first[rows[is_repeat]] = first[is_repeat]


SCORE = np.dtype([("row", "<i8"), ("forward", "<f8"), ("reverse", "<f8")])
"""Number of a pair, and its cross-entropies under both models, in nats per token."""


def _write_scores(corpus: _Corpus, scoring: Scoring, on_pairs: OnPairs) -> None:
    """Score the pairs that are kept so far, and write a `SCORE` for each."""
    number = 0
    # Neither windows nor scores depend on chunks or processes.
    with (corpus.folder / "scores").open("wb") as file:
        texts = (
            (row, pair.source.text(), pair.target.text())
            for row, pair in enumerate(corpus.pairs())
            if pair.code == 0
        )
        for window in full_windows(texts, SCORED_PAIRS):
            rows, sources, targets = zip(*window, strict=True)
            scores = np.empty(len(rows), SCORE)
            scores["row"] = rows
            scores["forward"] = list(
                map(_cross_entropy, scoring.score(sources, targets))
            )
            scores["reverse"] = np.nan
            if scoring.score_reverse is not None:
                found = scoring.score_reverse(targets, sources)
                scores["reverse"] = list(map(_cross_entropy, found))
            file.write(scores.tobytes())
            number += len(rows)
            on_pairs("scored", number)


def _cross_entropy(score: TargetScore) -> float:
    return -score.log_probability / score.num_tokens


def _scores(corpus: _Corpus) -> Iterator[np.ndarray]:
    """Blocks of the scores on disk; none without a model."""
    path = corpus.folder / "scores"
    if not path.exists():
        return
    with path.open("rb") as file:
        while content := file.read(BLOCK_ROWS * SCORE.itemsize):
            yield np.frombuffer(content, SCORE)


def _ranks(scores: np.ndarray) -> Float[np.ndarray, " pairs"]:
    """Scores by which pairs are ranked, best first.

    With two models it is the dual conditional cross-entropy: the absolute difference of
    both cross-entropies plus their mean (Junczys-Dowmunt, 2018).
    """
    forward, reverse = scores["forward"], scores["reverse"]
    dual = np.abs(forward - reverse) + (forward + reverse) / 2
    return np.where(np.isnan(reverse), forward, dual)


def _drop_worst(corpus: _Corpus, worst: float) -> None:
    """Drop a share of the scored pairs; among equal ones, the last."""
    number = sum(map(len, _scores(corpus)))
    to_drop = int(worst * number)
    if not to_drop:
        return
    limit = _key_at_rank(corpus, to_drop)
    # Among the pairs with the key of the limit, those from this place on are dropped.
    first_dropped = limit.num_equal - (to_drop - limit.num_above)
    num_before = 0
    for scores in _scores(corpus):
        keys = _sort_keys(_ranks(scores))
        is_equal = keys == limit.key
        place = np.cumsum(is_equal) - 1 + num_before
        is_dropped = (keys > limit.key) | (is_equal & (place >= first_dropped))
        corpus.codes[scores["row"][is_dropped]] = CODES["low-score"]
        num_before += int(is_equal.sum())


class _RankedKey(NamedTuple):
    """Sort key of some scores, and how many scores are above it and equal to it."""

    key: np.uint64
    num_above: int
    num_equal: int


def _key_at_rank(corpus: _Corpus, rank: int) -> _RankedKey:
    """Sort key of the score with a rank, counted from 1 for the largest.

    The key is found digit by digit, so that no array of all keys is in memory.
    """
    key, num_above = 0, 0
    counts = np.zeros(1 << DIGIT_BITS, dtype=np.int64)
    lowest_digit = (1 << DIGIT_BITS) - 1
    for digit in reversed(range(DIGITS)):
        shift = np.uint64(digit * DIGIT_BITS)
        counts[:] = 0
        for scores in _scores(corpus):
            keys = _sort_keys(_ranks(scores)) >> shift
            same = keys[(keys >> np.uint64(DIGIT_BITS)) == key]
            digits = (same & np.uint64(lowest_digit)).astype(np.int64)
            counts += np.bincount(digits, minlength=len(counts))
        above = np.cumsum(counts[::-1])[::-1] - counts
        # The smallest digit that has fewer than `rank` keys above it.
        found = int(np.flatnonzero(num_above + above < rank)[0])
        num_above += int(above[found])
        key = (key << DIGIT_BITS) | found
    return _RankedKey(np.uint64(key), num_above, int(counts[key & lowest_digit]))


def _sort_keys(values: Float[np.ndarray, " values"]) -> UInt64[np.ndarray, " values"]:
    """64-bit numbers in the order of floating-point ones."""
    bits = np.ascontiguousarray(values, dtype="<f8").view("<u8")
    top = np.uint64(1 << 63)
    return np.where(bits & top, ~bits, bits | top)


def _write(
    corpus: _Corpus,
    folder: Path,
    ratios: dict[str, LengthRatio],
    on_pairs: OnPairs,
) -> CleaningReport:
    """Write the kept pairs, the dropped pairs and the scores."""
    kept = [0] * len(corpus.files)  # pairs by file
    counts = [0] * len(NAMES)  # pairs by code: kept, or a rule that dropped them
    with ExitStack() as stack:
        outputs = [
            [_opened(stack, path, folder) for path in (pair.source, pair.target)]
            for pair in corpus.files
        ]
        dropped = stack.enter_context((folder / DROPPED_FILE).open("wb"))
        details = _Details(stack, corpus, ratios)
        scored = _ScoreWriter(stack, corpus, folder)
        for row, pair in enumerate(corpus.pairs()):
            counts[pair.code] += 1
            rank = scored.write(row, pair.source, is_kept=pair.code == 0)
            if pair.code == 0:
                is_first = kept[pair.file] == 0
                source_file, target_file = outputs[pair.file]
                source_file.write(line_in_file(pair.source.content, is_first=is_first))
                target_file.write(line_in_file(pair.target.content, is_first=is_first))
                kept[pair.file] += 1
            else:
                detail = details.of_dropped(row, pair, rank)
                dropped.write(_record(pair, detail))
            if (row + 1) % CHUNK_PAIRS == 0:
                on_pairs("written", row + 1)
        on_pairs("written", corpus.num_pairs)
    numbers = zip(corpus.files, corpus.totals, kept, strict=True)
    return CleaningReport(
        total=corpus.num_pairs,
        kept=sum(kept),
        dropped={NAMES[code]: n for code, n in enumerate(counts) if code and n},
        files=tuple(
            CleanedFiles(**pair._asdict(), total=total, kept=number)
            for pair, total, number in numbers
        ),
        length_ratios=ratios,
        largest_score=scored.largest_kept,
    )


def _opened(stack: ExitStack, path: Path, folder: Path) -> BinaryIO:
    """Open the output file of an input file, compressed as the input is."""
    file = stack.enter_context((folder / path.name).open("wb"))
    with path.open("rb") as given:
        compression = compression_of(given.read(MAGIC_BYTES), path)
    if compression is None:
        return file
    zipped = stack.enter_context(compression.writer(file))
    return cast(BinaryIO, stack.enter_context(BufferedWriter(cast(Any, zipped))))


class _ScoredRow(NamedTuple):
    """Row of a pair, the value that it is ranked by, and its cross-entropies."""

    row: int
    rank: float
    forward: float
    reverse: float


def _scored_rows(corpus: _Corpus) -> Iterator[_ScoredRow]:
    for scores in _scores(corpus):
        columns = scores["row"], _ranks(scores), scores["forward"], scores["reverse"]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        yield from map(_ScoredRow._make, rows)


class _ScoreWriter:
    """Writes the scores beside the pairs, in their order."""

    def __init__(self, stack: ExitStack, corpus: _Corpus, folder: Path) -> None:
        self.largest_kept: float | None = None
        self._rows = _scored_rows(corpus)
        self._next = next(self._rows, None)
        if self._next is not None:
            path = folder / SCORES_FILE
            self._file = stack.enter_context(
                path.open("w", encoding="utf-8", errors="surrogateescape")
            )
            self._file.write("file\tline\tkept\tscore\tforward\treverse\n")

    def write(self, row: int, source: Line, *, is_kept: bool) -> float | None:
        """Write the score of a pair, if it has one; return the value it is ranked
        by."""
        scored = self._next
        if scored is None or scored.row != row:
            return None
        reverse = "" if math.isnan(scored.reverse) else f"{scored.reverse:.6f}"
        self._file.write(
            f"{source.path}\t{source.number}\t{is_kept:d}\t{scored.rank:.6f}\t"
            f"{scored.forward:.6f}\t{reverse}\n"
        )
        if is_kept:
            before = self.largest_kept
            self.largest_kept = (
                scored.rank if before is None else max(scored.rank, before)
            )
        self._next = next(self._rows, None)
        return scored.rank


class _Details:
    """Explanations of why pairs are dropped, in the order of the pairs."""

    def __init__(
        self, stack: ExitStack, corpus: _Corpus, ratios: dict[str, LengthRatio]
    ) -> None:
        self._corpus = corpus
        self._ratios = ratios
        self._of_single_pairs = stack.enter_context(
            (corpus.folder / "details").open("rb")
        )

    def of_dropped(self, row: int, pair: _ReadPair, rank: float | None) -> str:
        """Explain the next dropped pair; `rank` is the value that it is ranked by."""
        rule = NAMES[pair.code]
        if rule in REPEATS:
            return f"repeats {self._corpus.place(int(self._corpus.first[row]))}"
        if pair.code == LENGTH_RATIO:
            ratio = self._ratios[self._corpus.files[pair.file].direction]
            [deviation] = ratio.deviations(self._corpus.lengths[row : row + 1])
            factor = math.exp(float(deviation))
            return f"the target is {factor:.2f} times as long as usual"
        if rule == "low-score":
            return f"score {rank:.4f}"
        detail: str = json.loads(self._of_single_pairs.readline())
        return detail


def _shown(line: Line) -> str:
    """Return the text of a line; of an overlong one, only its beginning."""
    content = line.content
    if len(content) > MAX_LINE_BYTES:
        content = content[:MAX_SHOWN_BYTES]
    return content.decode("utf-8", "surrogateescape")


def _record(pair: _ReadPair, detail: str) -> bytes:
    """Dropped pair as a line of JSON; bytes that are not UTF-8 as lone surrogates."""
    record = {
        "file": str(pair.source.path),
        "line": pair.source.number,
        "reason": NAMES[pair.code],
        "detail": detail,
        "source": _shown(pair.source),
        "target": _shown(pair.target),
    }
    line = json.dumps(record, ensure_ascii=False)
    if UNSAFE.search(line):
        line = json.dumps(record)
    return line.encode() + b"\n"
