"""Text files of a run, and statistics from reading them through once."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Literal

from transduce.errors import DataError
from transduce.text.corpus import SentencePair, aligned_lines
from transduce.text.scripts import UNSPACED_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFiles:
    """Line-aligned text files of a run, in pairs."""

    source: tuple[Path, ...]
    target: tuple[Path, ...]
    dev_source: tuple[Path, ...] = ()
    dev_target: tuple[Path, ...] = ()

    task: ClassVar[Literal["translation", "parsing"]] = "translation"
    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")
    """Metrics of translations on the dev corpus."""

    @property
    def has_dev(self) -> bool:
        return bool(self.dev_source or self.dev_target)

    def absolute_names(self) -> dict[str, list[str]]:
        """Return the absolute file names by part."""
        return {
            part: [str(path.absolute()) for path in paths]
            for part, paths in asdict(self).items()
        }


MARKS = {
    "line separator": re.compile(r"[\v\f\r\x1c-\x1e\x85\u2028\u2029]"),
    "control character": re.compile(r"[\x01-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]"),
    "replacement character": re.compile("\ufffd"),
    # Two UTF-8 bytes of a letter such as u-umlaut, decoded as Latin-1.
    "doubly encoded letter": re.compile(r"[\xc2\xc3][\x80-\xbf]"),
}
"""Patterns of suspicious characters that training accepts."""
ANY_MARK = re.compile("|".join(pattern.pattern for pattern in MARKS.values()))


WHOLE_LINES, SAMPLED_LINES = 10_000, 100
"""Lines whose words and letters are counted: the first 10,000, then one in 100, which
suffices for proportions."""


@dataclass(slots=True)
class TextFigures:
    """Numbers of words and characters in the lines of a side."""

    words: int = 0
    """Number of words, separated by spaces."""
    characters: int = 0
    unspaced_letters: int = 0
    """Number of letters of scripts without spaces."""

    def add(self, text: str) -> None:
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
    def digest(self) -> str:
        """Hash of the lines of both sides, independent of their division into files."""
        return self._lines.hexdigest()


def require_files(paths: Iterable[Path]) -> None:
    """Raise `DataError` for a folder or a pipe, since a corpus is read several
    times."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise DataError(
                f"{path}: a corpus must be a file, since it is read several times, but "
                "is a folder or a pipe."
            )


def read_through(source: Sequence[Path], target: Sequence[Path]) -> CorpusStatistics:
    """Read all pairs once, so that errors are found before any work.

    Raises `DataError` for an error, or if there is no line at all.
    """
    require_files((*source, *target))
    statistics = CorpusStatistics()
    deque(statistics.pairs(source, target), maxlen=0)
    if statistics.num_characters == 0:
        raise DataError(
            f"{source[0]}: a corpus must have at least one line, but is empty."
        )
    return statistics


def num_characters(pair: SentencePair) -> int:
    """Return the number of characters of both sides, with a line end."""
    return len(pair.source) + len(pair.target) + 1
