"""Text files of a run: their statistics, and the dev corpus held out of them.

The dev corpus serves to score a run on text outside its training data. A hash of a
pair's source and a seed decides whether it is held out. The choice is reproducible,
does not depend on the pair's place, and is the same for all pairs with one source, so
that no copy stays in training.
"""

import heapq
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import UInt64

from transduce.data.corpus_mixture import CorpusConfig
from transduce.errors import ConfigError, DataError, counted
from transduce.files import path_of
from transduce.metrics.scores import Tokenize
from transduce.settings import convert_and_check, shown
from transduce.text.corpus import (
    STANDARD_INPUT,
    SentencePair,
    aligned_lines,
    line_in_file,
    read_pairs,
)
from transduce.text.languages import UNSPACED_RUN
from transduce.text.tokenizer import normalize
from transduce.text.vocabulary import language_tag

Files = str | PathLike[str] | Sequence[str | PathLike[str]] | None
"""One file, several, or None for no file."""
MAIN_DEV = "dev"
"""Name of the dev set that has none of its own."""
DEV_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""Pattern of names of dev sets, which are folders of a run, too."""
RESERVED_NAMES = ("training", "share")
"""Names of other groups of figures in TensorBoard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevSet:
    """Named dev set: two line-aligned text files that checkpoints are scored on."""

    name: str
    source: Path
    target: Path

    def __post_init__(self) -> None:
        if not DEV_NAME.fullmatch(self.name):
            raise ConfigError(
                "The name of a dev set must be 1 to 40 letters, digits or signs of "
                f'"-_.", the first a letter or a digit, but is {self.name!r}.'
            )
        if self.name in RESERVED_NAMES:
            raise ConfigError(
                f"A dev set cannot be named {self.name}, as other figures of the run "
                "have this name; rename it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFiles:
    """Line-aligned text files of a run, in pairs."""

    source: tuple[Path, ...]
    target: tuple[Path, ...]
    dev_source: tuple[Path, ...] = ()
    dev_target: tuple[Path, ...] = ()
    corpora: tuple[CorpusConfig, ...] = ()
    """Corpora of a mixture, whose files `source` and `target` list; empty without
    one."""
    dev_language: str | None = None
    """Target language of the dev corpus; None if it is that of the run."""
    dev_name: str = MAIN_DEV
    """Name of the dev set that chooses the best checkpoint."""
    dev_sets: tuple[DevSet, ...] = ()
    """Further dev sets, which are only scored."""
    labels: Mapping[Path, str] = field(default_factory=dict, compare=False)
    """Names of temporary files in errors."""

    task: ClassVar[Literal["translation", "parsing"]] = "translation"
    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")
    """Metrics of translations on the dev corpus."""

    @property
    def has_dev(self) -> bool:
        return bool(self.dev_source or self.dev_target)

    def label(self, path: Path) -> str:
        """Return the name of a file in errors."""
        return self.labels.get(path, str(path))

    def with_dev_sets(self, sets: Sequence[DevSet]) -> "CorpusFiles":
        """Add dev sets; the first chooses the best checkpoint if there was none before.

        Raises `ConfigError` if two have one name.
        """
        files, others = self, tuple(sets)
        if sets and not self.has_dev:
            first, *rest = sets
            source, target, others = (first.source,), (first.target,), tuple(rest)
            files = replace(
                self, dev_name=first.name, dev_source=source, dev_target=target
            )
        names = [files.dev_name, *(each.name for each in others)]
        if (name := next((n for n in names if names.count(n) > 1), None)) is not None:
            raise ConfigError(
                f"Each dev set must have a name of its own, but two are {name}; rename "
                "one."
            )
        return replace(files, dev_sets=others)

    @classmethod
    def of(
        cls,
        corpora: Sequence[CorpusConfig],
        dev_source: tuple[Path, ...] = (),
        dev_target: tuple[Path, ...] = (),
    ) -> "CorpusFiles":
        """Return the files of a mixture."""
        return cls(
            source=tuple(path for corpus in corpora for path in corpus.source_files),
            target=tuple(path for corpus in corpora for path in corpus.target_files),
            dev_source=dev_source,
            dev_target=dev_target,
            corpora=tuple(corpora),
        )

    @property
    def sides(self) -> list[tuple[tuple[Path, ...], tuple[Path, ...]]]:
        """Source and target files of each corpus; of the only one without a mixture."""
        if not self.corpora:
            return [(self.source, self.target)]
        return [(each.source_files, each.target_files) for each in self.corpora]

    @property
    def tags(self) -> list[str]:
        """Different tags before the sources: of their corpora and target languages."""
        tags = [corpus.tag for corpus in self.corpora]
        languages = [corpus.target_language for corpus in self.corpora]
        tags += [language_tag(each) for each in languages if each is not None]
        return [tag for tag in dict.fromkeys(tags) if tag is not None]

    @property
    def paths(self) -> list[Path]:
        """All files."""
        dev_sets = [(each.source, each.target) for each in self.dev_sets]
        sides = (self.source, self.target, self.dev_source, self.dev_target, *dev_sets)
        return [path for side in sides for path in side]

    def digests(self) -> dict[str, str]:
        """Read all text once, before any work, and return the digest of each part.

        Raises `DataError` for an error, or if a part has no line.
        """
        found = {"training": digest_of(self.source, self.target)}
        if self.has_dev:
            found["dev"] = digest_of(self.dev_source, self.dev_target)
        return found

    def absolute_names(self) -> dict[str, list[str]]:
        """Return the absolute file names by part, and the names of the dev sets."""
        parts = ("source", "target", "dev_source", "dev_target")
        files = {
            part: [str(path.absolute()) for path in getattr(self, part)]
            for part in parts
        }
        if self.dev_name != MAIN_DEV or self.dev_sets:
            files["dev_names"] = [self.dev_name, *(each.name for each in self.dev_sets)]
        if self.dev_sets:
            files["dev_sets"] = [
                str(path.absolute())
                for each in self.dev_sets
                for path in (each.source, each.target)
            ]
        return files


MARKS = {
    "line separator": re.compile(r"[\v\f\r\x1c-\x1e\x85\u2028\u2029]"),
    "control character": re.compile(r"[\x01-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]"),
    "replacement character": re.compile("\ufffd"),
    # UTF-8 bytes decoded as Latin-1 or Windows-1252: of a letter such as u-umlaut, of
    # a quotation mark or a dash, of two Cyrillic letters.
    "doubly encoded letter": re.compile(
        r"[\xc2\xc3][\x80-\xbf\u20ac\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192]|"
        r"\xe2\u20ac|(?:[\xd0\xd1][\x80-\xbf]){2}"
    ),
}
"""Patterns of suspicious characters that training accepts."""
ANY_MARK = re.compile("|".join(pattern.pattern for pattern in MARKS.values()))


WHOLE_LINES, SAMPLED_LINES = 10_000, 100
"""Lines whose words and letters are counted: the first 10,000, then one in 100, which
suffices for proportions."""


@dataclass(slots=True)
class TextFigures:
    """Numbers of words, characters and tabs in the lines of a side."""

    lines: int = 0
    tabbed: int = 0
    """Number of lines with a tab."""
    words: int = 0
    """Number of words, separated by spaces."""
    characters: int = 0
    unspaced_letters: int = 0
    """Number of letters of scripts without spaces."""

    def add(self, text: str) -> None:
        self.lines += 1
        self.tabbed += "\t" in text
        self.words += len(text.split())
        self.characters += len(text)
        if not text.isascii():
            self.unspaced_letters += sum(map(len, UNSPACED_RUN.findall(text)))


class CorpusStatistics:
    """Statistics of two line-aligned sides, as far as read."""

    def __init__(self) -> None:
        self.marks = dict.fromkeys(MARKS, 0)
        """Number of lines with each kind of mark, on both sides together."""
        self.figures = {"source": TextFigures(), "target": TextFigures()}
        """Figures of each side, from its first lines and a sample of the others."""
        self.num_characters = 0
        """Number of characters of both sides, with a line end for each pair."""
        self._number = 0
        self._lines = sha256()

    def pairs(
        self, source: Sequence[Path], target: Sequence[Path]
    ) -> Iterator[SentencePair]:
        """Yield the sentence pairs of the files, and count them."""
        for source_line, target_line in aligned_lines(source, target):
            pair = SentencePair(source=source_line.text(), target=target_line.text())
            self.num_characters += num_characters(pair)
            self._count(pair)
            # A line never contains a line end.
            for line in (source_line, target_line):
                self._lines.update(line.content + b"\n")
            yield pair

    def _count(self, pair: SentencePair) -> None:
        is_sampled = self._number < WHOLE_LINES or self._number % SAMPLED_LINES == 0
        self._number += 1
        for side, text in (("source", pair.source), ("target", pair.target)):
            if ANY_MARK.search(text):
                for kind, pattern in MARKS.items():
                    self.marks[kind] += pattern.search(text) is not None
            if is_sampled:
                self.figures[side].add(text)

    @property
    def num_pairs(self) -> int:
        return self._number

    @property
    def digest(self) -> str:
        """Hash of the lines of both sides, independent of their division into files."""
        return self._lines.hexdigest()


def paths_of(key: str, files: Files) -> tuple[Path, ...]:
    """Return one file, several or none as paths; `ConfigError` for anything else.

    `key` is the argument that names them.
    """
    if files is None:
        return ()
    if isinstance(files, str | PathLike):
        files = (files,)
    return tuple(path_of(key, each) for each in _listed(key, files))


def _listed(key: str, files: object) -> list[str | PathLike[str]]:
    """Return files in their order; sets and mappings, which have none, are refused."""
    several: list[Any] = [None]
    if isinstance(files, Iterable) and not isinstance(
        files, Mapping | set | frozenset | bytes | bytearray
    ):
        several = list(files)
    if not all(isinstance(each, str | PathLike) for each in several):
        raise ConfigError(
            f"`{key}` must be one path or a list of paths, but is {shown(files)}."
        )
    return several


def require_files(paths: Collection[Path], what: str = "a corpus") -> None:
    """Refuse text that is not in files, as it is read several times.

    Raises `ConfigError` for standard input, and `DataError` for a folder or a pipe. A
    missing file passes.
    """
    if STANDARD_INPUT in paths:
        raise ConfigError(
            f"{what.capitalize()} must be in files, as it is read several times, but "
            "`-` is standard input; write it to a file first."
        )
    for path in paths:
        if path.exists() and not path.is_file():
            raise DataError(
                f"{path}: {what} must be a file, since it is read several times, but "
                "is a folder or a pipe."
            )


def read_through(source: Sequence[Path], target: Sequence[Path]) -> CorpusStatistics:
    """Read all pairs once, so that errors are found before any work.

    Raises `DataError` for an error, or if there is no line at all.
    """
    return read_corpora([(source, target)])[0]


def read_corpora(
    sides: Iterable[tuple[Sequence[Path], Sequence[Path]]],
) -> tuple[CorpusStatistics, tuple[int, ...]]:
    """Read several corpora like `read_through`, in order.

    Returns the statistics of all, and the number of pairs of each.
    """
    statistics, sizes = CorpusStatistics(), list[int]()
    for source, target in sides:
        require_files((*source, *target))
        before = statistics.num_pairs
        deque(statistics.pairs(source, target), maxlen=0)
        sizes.append(statistics.num_pairs - before)
        if not sizes[-1]:
            raise empty_corpus(source[0])
    return statistics, tuple(sizes)


def digest_of(source: Sequence[Path], target: Sequence[Path]) -> str:
    """Return the digest of `CorpusStatistics` without the other statistics.

    It takes a fraction of their time. Raises `DataError` like `read_through`.
    """
    require_files((*source, *target))
    lines, is_empty = sha256(), True
    for pair in aligned_lines(source, target):
        is_empty = False
        for line in pair:
            line.text()  # a fault in it is an error
            lines.update(line.content + b"\n")
    if is_empty:
        raise empty_corpus(source[0])
    return lines.hexdigest()


def empty_corpus(path: Path) -> DataError:
    """Return the error for a corpus without lines, whose first file is `path`."""
    return DataError(f"{path}: a corpus must have at least one line, but is empty.")


def num_characters(pair: SentencePair) -> int:
    """Return the number of characters of both sides, with a line end."""
    return len(pair.source) + len(pair.target) + 1


MIN_HELD_OUT, MAX_HELD_OUT = 200, 2_000
"""Minimum and maximum number of held-out pairs."""
PAIRS_PER_HELD_OUT = 100
"""Number of pairs for each held-out one, within these bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Settings of the dev corpus and its scores."""

    tokenize: Tokenize = "auto"
    """sacreBLEU's tokenizer; auto follows the target language, or else its script."""
    hold_out: bool = True
    """Whether to hold out 1 % of the training corpus if no dev corpus is given: at
    least 200 pairs and at most 2,000; none of a corpus of fewer than 400."""

    def __post_init__(self) -> None:
        convert_and_check(self, "evaluation.")


Keys = frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Held-out sources, in disjoint parts."""

    parts: tuple[Keys, ...]
    num_read: int
    """Number of pairs of the whole corpus."""
    seed: int

    def part_of(self, source: str) -> int | None:
        """Index of the part that a source belongs to; None for training."""
        key = _key(source, self.seed)
        return next((i for i, part in enumerate(self.parts) if key in part), None)


def default_held_out(num_pairs: int) -> int | None:
    """Default number of held-out pairs; None if it is more than half of all.

    It is one in a hundred, at least 200 and at most 2,000.
    """
    number = min(max(num_pairs // PAIRS_PER_HELD_OUT, MIN_HELD_OUT), MAX_HELD_OUT)
    return number if 2 * number <= num_pairs else None


def choose(
    sources: Iterable[str], sizes: Sequence[int] | None, seed: int
) -> Choice | None:
    """Choose different sources for parts of these sizes, by default for a dev text.

    The sources with the smallest hashes are chosen, whatever the order of the lines.
    Returns None if there are too few pairs: training must keep at least as many as are
    held out, without those that have a held-out source.
    """
    max_number = MAX_HELD_OUT if sizes is None else sum(sizes)
    held, num_read = _smallest_keys(sources, max_number, seed)
    if sizes is None:
        number = default_held_out(num_read)
        sizes = () if number is None else (number,)
    if not sizes or sum(sizes) > len(held):
        return None
    chosen = sorted(held)[: sum(sizes)]
    if num_read - sum(held[key] for key in chosen) < len(chosen):
        return None
    keys = iter(chosen)
    parts = tuple(frozenset(islice(keys, size)) for size in sizes)
    return Choice(parts=parts, num_read=num_read, seed=seed)


def _smallest_keys(
    sources: Iterable[str], max_number: int, seed: int
) -> tuple[dict[bytes, int], int]:
    """Return the smallest hashes of sources, and how many sources have each of them.

    Blank sources have none. Returns the number of all sources, too.
    """
    kept, held, num_read = list[tuple[int, bytes]](), dict[bytes, int](), 0
    for source in sources:
        num_read += 1
        if not source.strip():
            continue
        key = _key(source, seed)
        if key in held:
            held[key] += 1
            continue
        # Keep the smallest keys in a heap with the largest of them on top. A key that
        # leaves it never returns, so that the counts of the others are complete.
        number = -int.from_bytes(key)
        if len(kept) < max_number:
            heapq.heappush(kept, (number, key))
            held[key] = 1
        elif number > kept[0][0]:
            _, last = heapq.heapreplace(kept, (number, key))
            del held[last]
            held[key] = 1
    return held, num_read


def choose_dev(files: CorpusFiles, seed: int) -> Choice | None:
    """Choose the sources of a dev corpus, of a mixture in its first corpus.

    Returns None if there are too few pairs. `DataError` if a file cannot be used.
    """
    return choose(_translated_sources(*files.sides[0]), None, seed)


def _key(source: str, seed: int) -> bytes:
    """Hash of a source, as it is after normalization, and a seed."""
    text = normalize(source).encode()
    return blake2b(text, digest_size=16, key=seed.to_bytes(8)).digest()


def hold_out_pairs(files: CorpusFiles, folder: Path, seed: int) -> CorpusFiles | None:
    """Write files as training and dev text to a folder; None if pairs are too few.

    Older files of the same names are replaced.

    The dev text of a mixture is held out of its first corpus, and its sources are taken
    out of the others, too. `DataError` if a file cannot be used.
    """
    for sides in files.sides:
        require_files((*sides[0], *sides[1]))
    choice = choose_dev(files, seed)
    if choice is None:
        return None
    folder.mkdir(exist_ok=True)
    source, target = files.sides[0]
    dev = _outputs(folder, "dev")
    parts = [_outputs(folder, "training")]
    parts += [_outputs(folder, f"training-{i}") for i in range(1, len(files.sides))]
    write_split(source, target, choice, [parts[0], dev])
    for part, sides in zip(parts[1:], files.sides[1:], strict=True):
        if not write_split(*sides, choice, [part])[0]:
            raise DataError(
                f"{sides[0][0]}: at least one pair must be left to train on, but the "
                "corpus is empty, or all of it is held out as dev corpus."
            )
    corpora = [
        replace(corpus, source=str(source), target=str(target))
        for corpus, (source, target) in zip(files.corpora, parts, strict=False)
    ]
    labels = {
        part[0]: f"{sides[0][0]} without the pairs held out"
        for part, sides in zip(parts, files.sides, strict=True)
    }
    return CorpusFiles(
        source=tuple(source for source, _ in parts),
        target=tuple(target for _, target in parts),
        dev_source=dev[:1],
        dev_target=dev[1:],
        corpora=tuple(corpora),
        labels={**labels, dev[0]: f"The pairs held out of {source[0]}"},
    )


def _outputs(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.source", folder / f"{name}.target"


def write_split(
    source: Sequence[Path],
    target: Sequence[Path],
    choice: Choice,
    outputs: Sequence[tuple[Path, Path]],
) -> list[int]:
    """Write training text and held-out parts; return the number of pairs of each.

    Several pairs may have one held-out source: the first with a translation is written,
    and the others are dropped. The first output is that of training. Pairs of a part
    without an output are dropped.
    """
    counts, written = [0] * len(outputs), set[str]()
    with ExitStack() as stack:
        files = [
            [stack.enter_context(path.open("wb")) for path in sides]
            for sides in outputs
        ]
        for pair in read_pairs(source, target):
            part = choice.part_of(pair.source)
            if part is not None:
                key = normalize(pair.source)
                if key in written or not pair.target.strip():
                    continue
                written.add(key)
            number = 0 if part is None else part + 1
            if number >= len(outputs):
                continue
            is_first, (source_file, target_file) = counts[number] == 0, files[number]
            source_file.write(line_in_file(pair.source.encode(), is_first=is_first))
            target_file.write(line_in_file(pair.target.encode(), is_first=is_first))
            counts[number] += 1
    return counts


def require_choice(
    source: Sequence[Path], target: Sequence[Path], sizes: Sequence[int], seed: int
) -> Choice:
    """Choose pairs to hold out; `DataError` if files have too few.

    `ConfigError` if a size is below 1 or the seed is out of bounds.
    """
    for size in sizes:
        if size < 1:
            raise ConfigError(
                f"A part must have at least 1 pair, but {size:,} are requested; give "
                "another number."
            )
    if not 0 <= seed < 2**63:
        raise ConfigError(f"`seed` must be from 0 to 2^63 - 1, but is {seed}.")
    choice = choose(_translated_sources(source, target), sizes, seed)
    if choice is None:
        raise DataError(
            f"{source[0]}: holding out {counted(sum(sizes), 'pair')} needs as many "
            "different sources that have a translation, and as many pairs with other "
            "sources to train on, but there are fewer; hold out fewer."
        )
    return choice


def _translated_sources(
    source: Sequence[Path], target: Sequence[Path]
) -> Iterator[str]:
    """Yield the source of each pair; blank, so that it is not held out, if it has no
    translation."""
    for pair in read_pairs(source, target):
        yield pair.source if pair.target.strip() else ""


DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that combines two digests; odd, so that no information is lost."""


def text_digest(text: str) -> int:
    """64-bit digest of a text after normalization."""
    return int.from_bytes(blake2b(normalize(text).encode(), digest_size=8).digest())


def pair_digests(
    source: UInt64[np.ndarray, " pairs"], target: UInt64[np.ndarray, " pairs"]
) -> UInt64[np.ndarray, " pairs"]:
    """Combine the digests of both sides."""
    return source * DIGEST_FACTOR + target
