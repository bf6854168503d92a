"""The text files of a run, and what they come to when read through once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from transduce.errors import DataError
from transduce.text.corpus import SentencePair, aligned_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFiles:
    """The text files of a run, line-aligned, in pairs."""

    source: tuple[Path, ...]
    target: tuple[Path, ...]
    dev_source: tuple[Path, ...] = ()
    dev_target: tuple[Path, ...] = ()

    def absolute_names(self) -> dict[str, list[str]]:
        """The names of the files by their part, whatever the current folder."""
        return {
            part: [str(path.absolute()) for path in paths]
            for part, paths in asdict(self).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What two line-aligned sides came to."""

    num_characters: int
    """Of both sides, with an end for each pair."""
    digest: str
    """Stands for the lines of both sides, however they were cut into files."""


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
    digest = sha256()

    def pairs() -> Iterator[SentencePair]:
        for source_line, target_line in aligned_lines(source, target):
            pair = SentencePair(source=source_line.text(), target=target_line.text())
            # No line holds either of the two ends.
            digest.update(source_line.content + b"\n" + target_line.content + b"\n")
            yield pair

    num_characters = count_characters(pairs())
    if num_characters == 0:
        raise DataError(
            f"{source[0]}: a corpus must have at least one line, but is empty."
        )
    return Reading(num_characters=num_characters, digest=digest.hexdigest())


def count_characters(pairs: Iterable[SentencePair]) -> int:
    """Of both sides, with an end for each pair."""
    return sum(len(pair.source) + len(pair.target) + 1 for pair in pairs)
