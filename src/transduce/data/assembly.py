"""Assembly of downloaded archives into line-aligned files, one per language.

The folder holds files such as `train.en`, and `corpus.json`, which lists them;
`downloads/` keeps the archives. The files appear once all of them are complete.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Protocol

from transduce.data.download import DownloadObserver, fetch, lines_of
from transduce.data.named_corpora import NamedCorpus, Part, Split
from transduce.errors import ConfigError, DataError
from transduce.files import sync
from transduce.text.corpus import MAX_LINE_BYTES, Line

CORPUS_RECORD, DOWNLOADS = "corpus.json", "downloads"
REPORT_LINES = 10_000
"""Lines between two calls of the observer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """Numbers of kept and dropped lines of a split."""

    num_pairs: int
    """Number of pairs written."""
    num_empty: int = 0
    """Number of pairs dropped because a side is empty."""
    num_no_text: int = 0
    """Number of pairs dropped because a side is not UTF-8, holds a NUL byte, or is too
    long for a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledCorpus:
    """Named corpus on disk."""

    corpus: NamedCorpus
    folder: Path
    counts: dict[str, SplitCounts]
    """Counts by name of the split."""
    is_new: bool
    """Whether it was assembled now; False if it existed already."""

    def path(self, split: Split, language: str) -> Path:
        return _path(self.folder, split, language)


class PreparationObserver(DownloadObserver, Protocol):
    """Observer of the progress of downloads and assembly."""

    def assembled(self, split: str, num_lines: int) -> None:
        """Report the number of lines of a split read so far."""


def assemble(
    corpus: NamedCorpus,
    folder: Path,
    observer: PreparationObserver,
    mirror: str | None = None,
) -> AssembledCorpus:
    """Download and assemble a corpus, unless the folder holds it already.

    Raises `ConfigError` if the folder holds something else, and `DataError` for other
    failures. Downloads are kept, and the next call continues from there.
    """
    counts = _existing_counts(corpus, folder)
    if counts is not None:
        return AssembledCorpus(
            corpus=corpus, folder=folder, counts=counts, is_new=False
        )
    downloads = folder / DOWNLOADS
    for file in [file.on(mirror) if mirror else file for file in corpus.files]:
        fetch(file, downloads / file.name, observer)
    counts = _assemble(corpus, folder, observer)
    return AssembledCorpus(corpus=corpus, folder=folder, counts=counts, is_new=True)


def _existing_counts(
    corpus: NamedCorpus, folder: Path
) -> dict[str, SplitCounts] | None:
    """Read the counts of an assembled corpus; None if it is not yet assembled."""
    if not (folder / CORPUS_RECORD).exists():
        _refuse_other_contents(folder)
        return None
    try:
        record = json.loads((folder / CORPUS_RECORD).read_text(encoding="utf-8"))
        name = record["corpus"]
        counts = {
            split: SplitCounts(**entry) for split, entry in record["splits"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"{folder / CORPUS_RECORD}: the file is damaged; delete it and the texts "
            "beside it, and run the command again."
        ) from None
    if name != corpus.name:
        raise ConfigError(
            f"{folder}: the output folder must be new or hold {corpus.name}, but holds "
            f"{name}; choose another folder."
        )
    return counts if all(path.exists() for path in _paths(corpus, folder)) else None


def _refuse_other_contents(folder: Path) -> None:
    if folder.is_dir():
        is_free = {path.name for path in folder.iterdir()} <= {DOWNLOADS}
    else:
        is_free = not folder.exists()
    if not is_free:
        raise ConfigError(
            f"{folder}: the output folder must be new or empty, but is not; choose "
            "another folder."
        )


def _assemble(
    corpus: NamedCorpus, folder: Path, observer: PreparationObserver
) -> dict[str, SplitCounts]:
    new = folder / DOWNLOADS / "unfinished"
    shutil.rmtree(new, ignore_errors=True)
    try:
        with _write_errors(folder):
            new.mkdir(parents=True)
            counts = {
                split.name: _write_split(corpus, split, new, observer)
                for split in corpus.splits
            }
            _put_in_place(corpus, counts, new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return counts


def _put_in_place(
    corpus: NamedCorpus, counts: dict[str, SplitCounts], new: Path, folder: Path
) -> None:
    """Move all files into place; the record first, so that a crash can be repaired."""
    splits = {name: asdict(each) for name, each in counts.items()}
    record = json.dumps({"corpus": corpus.name, "splits": splits}, indent=2)
    (new / CORPUS_RECORD).write_text(record + "\n", encoding="utf-8")
    sync(new)
    for path in (new / CORPUS_RECORD, *_paths(corpus, new)):
        path.replace(folder / path.name)


def _write_split(
    corpus: NamedCorpus, split: Split, new: Path, observer: PreparationObserver
) -> SplitCounts:
    downloads, is_training = new.parent, split == corpus.train
    tally: Counter[str] = Counter()
    with ExitStack() as stack:
        paths = [_path(new, split, language) for language in corpus.languages]
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for number, lines in enumerate(_rows(split, downloads), start=1):
            fault = _fault(lines) if is_training else None
            tally[fault or "none"] += 1
            if fault is None:
                _write(files, lines)
            if number % REPORT_LINES == 0:
                observer.assembled(split.name, number)
    counts = SplitCounts(
        num_pairs=tally["none"], num_empty=tally["empty"], num_no_text=tally["no text"]
    )
    if split.num_pairs not in (None, counts.num_pairs):
        raise DataError(
            f"{downloads}: {split.name} must have {split.num_pairs:,} pairs, but has "
            f"{counts.num_pairs:,}; delete the archives and run the command again."
        )
    return counts


def _write(files: Sequence[BinaryIO], lines: Sequence[Line]) -> None:
    """Add a line to each file; `DataError` if one is not text."""
    for file, line in zip(files, lines, strict=True):
        file.write(line.text().encode("utf-8") + b"\n")


def _rows(split: Split, downloads: Path) -> Iterator[list[Line]]:
    for part in split.parts:
        yield from _rows_of_part(part, downloads)


def _rows_of_part(part: Part, downloads: Path) -> Iterator[list[Line]]:
    texts = [lines_of(downloads / text.file.name, text.member) for text in part]
    for number, row in enumerate(zip_longest(*texts), start=1):
        lines = [line for line in row if line is not None]
        if len(lines) < len(row):
            ended = part[row.index(None)]
            raise DataError(
                f"{downloads / ended.file.name / (ended.member or '')}: must have as "
                f"many lines as {lines[0].path}, but has {number - 1:,}; delete the "
                "archive and run the command again."
            )
        yield lines


def _fault(lines: Sequence[Line]) -> str | None:
    """Return why training cannot use a pair, or None."""
    try:
        texts = [line.text() for line in lines]
    except DataError:
        return "no text"
    if any(len(line.content) > MAX_LINE_BYTES for line in lines):
        return "no text"
    return None if all(text.strip() for text in texts) else "empty"


def _paths(corpus: NamedCorpus, folder: Path) -> list[Path]:
    return [
        _path(folder, split, language)
        for split in corpus.splits
        for language in corpus.languages
    ]


def _path(folder: Path, split: Split, language: str) -> Path:
    return folder / f"{split.name}.{language}"


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: the texts cannot be written ({error.strerror or error}); "
            "correct that and run the command again, which keeps the downloads."
        ) from None
