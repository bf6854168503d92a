"""A corpus ready to train on: its tokenizer and its ids, made once.

What is made depends on the lines of the files and on the settings of tokenizer and
filter alone. These are its key: where a run nearby has the same, its files are
shared, not made again.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

import tokenizers

from transduce.data.dataset import open_dataset
from transduce.errors import DataError, TransduceError
from transduce.preparation.corpus_files import CorpusFiles, Reading, read_through
from transduce.preparation.encoding import PairCounts, encode_corpus
from transduce.text.corpus import SentencePair, read_pairs, write_lines
from transduce.text.tokenizer import (
    LEARNING_CHARACTERS,
    Tokenizer,
    TokenizerConfig,
    learn_tokenizer,
)

FORMAT = 1
"""Of the files; raised when the same text would be written in another way."""
TOKENIZER, CORPUS = "tokenizer.json", "corpus"
TRAINING, DEV = f"{CORPUS}/training", f"{CORPUS}/dev"
RECORD = f"{CORPUS}/preparation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCorpus:
    """What was made of the files."""

    key: str
    """Stands for all that it was made of."""
    training: PairCounts
    dev: PairCounts | None
    vocab_size: int
    shared_with: Path | None = None
    """The folder whose files these are, if they were there before."""


def prepare(
    files: CorpusFiles,
    tokenizer: TokenizerConfig,
    max_length: int,
    folder: Path,
    neighbours: Iterable[Path] = (),
) -> PreparedCorpus:
    """Learn the tokenizer, and write it and the encoded corpora into the folder.

    If one of the neighbours has been prepared from the same, its files are linked, or
    copied where the disk has no links. All files are read to their end before
    anything is written. `DataError` if one cannot be used, or no pair is left to
    train on.
    """
    reading = read_through(files.source, files.target)
    has_dev = files.dev_source or files.dev_target
    dev = read_through(files.dev_source, files.dev_target) if has_dev else None
    key = _key(reading, dev, tokenizer, max_length)
    for neighbour in neighbours:
        if (prepared := _read(neighbour, key)) is not None:
            _share(neighbour, folder)
            return prepared
    prepared = _make(files, reading, tokenizer, max_length, folder, key)
    record = asdict(prepared)
    del record["shared_with"]
    text = json.dumps(record, indent=2) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")
    return prepared


def learning_texts(pairs: Iterable[SentencePair], num_characters: int) -> Iterator[str]:
    """What the tokenizer is learned from: both sides of the pairs.

    Of a corpus of more than `LEARNING_CHARACTERS`, as many pairs as that allows, from
    all of it.
    """
    every = max(-(-num_characters // LEARNING_CHARACTERS), 1)
    for pair in islice(pairs, 0, None, every):
        yield pair.source
        yield pair.target


def _key(
    training: Reading,
    dev: Reading | None,
    tokenizer: TokenizerConfig,
    max_length: int,
) -> str:
    parts = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "tokenizer": asdict(tokenizer),
        "max_length": max_length,
        "training": training.digest,
        "dev": dev and dev.digest,
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _make(
    files: CorpusFiles,
    reading: Reading,
    config: TokenizerConfig,
    max_length: int,
    folder: Path,
    key: str,
) -> PreparedCorpus:
    pairs = read_pairs(files.source, files.target)
    texts = learning_texts(pairs, reading.num_characters)
    tokenizer = learn_tokenizer(texts, config)
    tokenizer.save(folder / TOKENIZER)
    training = encode_corpus(
        read_pairs(files.source, files.target),
        tokenizer,
        max_length,
        folder / TRAINING,
    )
    if training.kept == 0:
        raise DataError(
            f"{files.source[0]}: at least one pair must be left to train on, but "
            f"{training}."
        )
    return PreparedCorpus(
        key=key,
        training=training,
        dev=_make_dev(files, tokenizer, max_length, folder / DEV),
        vocab_size=tokenizer.vocab_size,
    )


def _make_dev(
    files: CorpusFiles, tokenizer: Tokenizer, max_length: int, folder: Path
) -> PairCounts | None:
    if not files.dev_source:
        return None
    pairs = list(read_pairs(files.dev_source, files.dev_target))
    counts = encode_corpus(pairs, tokenizer, max_length, folder)
    if counts.kept == 0:
        raise DataError(
            f"{files.dev_source[0]}: at least one pair must be left to validate on, "
            f"but {counts}."
        )
    # All of its text is translated, whatever was left out of its loss.
    write_lines(folder / "source.txt", (pair.source for pair in pairs))
    write_lines(folder / "target.txt", (pair.target for pair in pairs))
    return counts


def _read(folder: Path, key: str) -> PreparedCorpus | None:
    """What was made there from the same, if it is still sound."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["key"] != key:
            return None
        for corpus in (TRAINING, DEV) if record["dev"] else (TRAINING,):
            open_dataset(folder / corpus)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        return PreparedCorpus(
            key=key,
            training=PairCounts(**record["training"]),
            dev=record["dev"] and PairCounts(**record["dev"]),
            vocab_size=tokenizer.vocab_size,
            shared_with=folder,
        )
    except (OSError, ValueError, LookupError, TypeError, TransduceError):
        return None  # damaged, or of another version: it is made again


def _share(neighbour: Path, folder: Path) -> None:
    for path in (neighbour / TOKENIZER, *(neighbour / CORPUS).rglob("*")):
        if path.is_file():
            copy = folder / path.relative_to(neighbour)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, copy)
            except OSError:  # a disk without links
                shutil.copyfile(path, copy)
