"""The text files of a run, and what they come to when read through once."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from transduce.errors import DataError
from transduce.text.corpus import SentencePair, aligned_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFiles:
    """The text files of a run, line-aligned, in pairs."""

    source: tuple[Path, ...]
    target: tuple[Path, ...]
    dev_source: tuple[Path, ...] = ()
    dev_target: tuple[Path, ...] = ()

    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")
    """What says how good translations are."""

    @property
    def has_dev(self) -> bool:
        return bool(self.dev_source or self.dev_target)

    def absolute_names(self) -> dict[str, list[str]]:
        """The names of the files by their part, whatever the current folder."""
        return {
            part: [str(path.absolute()) for path in paths]
            for part, paths in asdict(self).items()
        }


class Reading:
    """What has been read of two line-aligned sides so far."""

    def __init__(self) -> None:
        self.num_characters = 0
        """Of both sides, with an end for each pair."""
        self._lines = sha256()

    def pairs(
        self, source: Sequence[Path], target: Sequence[Path]
    ) -> Iterator[SentencePair]:
        """The sentence pairs of the files, taken note of."""
        for source_line, target_line in aligned_lines(source, target):
            pair = SentencePair(source=source_line.text(), target=target_line.text())
            self.num_characters += num_characters(pair)
            # No line holds the end of a line.
            for line in (source_line, target_line):
                self._lines.update(line.content + b"\n")
            yield pair

    @property
    def digest(self) -> str:
        """Stands for the lines of both sides, however they were cut into files."""
        return self._lines.hexdigest()


def read_through(source: Sequence[Path], target: Sequence[Path]) -> Reading:
    """Read all pairs once, so that a fault anywhere is found before any work.

    `DataError` if there is one, or no line at all.
    """
    for path in (*source, *target):
        if path.exists() and not path.is_file():
            raise DataError(
                f"{path}: a corpus must be a file, since it is read several times, but "
                "is a folder or a pipe."
            )
    reading = Reading()
    deque(reading.pairs(source, target), maxlen=0)
    if reading.num_characters == 0:
        raise DataError(
            f"{source[0]}: a corpus must have at least one line, but is empty."
        )
    return reading


def num_characters(pair: SentencePair) -> int:
    """Of both sides, with an end."""
    return len(pair.source) + len(pair.target) + 1
