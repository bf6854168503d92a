"""From text files to a folder that training can begin from: tokenizer and ids."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from transduce.data.batches import BatchingConfig
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.errors import DataError
from transduce.experiments.presets import RunConfig
from transduce.text.corpus import SentencePair, read_pairs, write_lines
from transduce.text.tokenizer import (
    LEARNING_CHARACTERS,
    Tokenizer,
    learn_tokenizer,
)

CHUNK_PAIRS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFiles:
    """The text files of a run, line-aligned, in pairs."""

    source: tuple[Path, ...]
    target: tuple[Path, ...]
    dev_source: tuple[Path, ...] = ()
    dev_target: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounts:
    """What became of the pairs of a corpus."""

    kept: int
    empty: int
    """With a side that holds nothing but white space."""
    overlong: int
    """With a side of more tokens than `batching.max_length`."""

    @property
    def total(self) -> int:
        return self.kept + self.empty + self.overlong

    def __str__(self) -> str:
        return (
            f"{self.kept:,} of {self.total:,} pairs kept ({self.empty:,} empty and "
            f"{self.overlong:,} overlong left out)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What was made of the files."""

    training: PairCounts
    dev: PairCounts | None
    vocab_size: int


def prepare(files: CorpusFiles, config: RunConfig, folder: Path) -> Preparation:
    """Learn the tokenizer, and write it and the encoded corpora into the folder.

    All files are read to their end before anything is written. `DataError` if one
    cannot be used, or no pair is left to train on.
    """
    num_characters = _require_pairs(files.source, files.target)
    if files.dev_source or files.dev_target:
        _require_pairs(files.dev_source, files.dev_target)
    pairs = read_pairs(files.source, files.target)
    tokenizer = learn_tokenizer(learning_texts(pairs, num_characters), config.tokenizer)
    tokenizer.save(folder / "tokenizer.json")
    training = encode_corpus(
        read_pairs(files.source, files.target),
        tokenizer,
        config.batching,
        folder / "corpus" / "training",
    )
    if training.kept == 0:
        raise DataError(
            f"{files.source[0]}: at least one pair must be left to train on, but "
            f"{training}."
        )
    dev = _prepare_dev(files, tokenizer, config.batching, folder / "corpus" / "dev")
    preparation = Preparation(
        training=training, dev=dev, vocab_size=tokenizer.vocab_size
    )
    text = json.dumps(asdict(preparation), indent=2) + "\n"
    (folder / "corpus" / "counts.json").write_text(text, encoding="utf-8")
    return preparation


def count_characters(pairs: Iterable[SentencePair]) -> int:
    """Of both sides, with an end for each pair."""
    return sum(len(pair.source) + len(pair.target) + 1 for pair in pairs)


def learning_texts(pairs: Iterable[SentencePair], num_characters: int) -> Iterator[str]:
    """What the tokenizer is learned from: both sides of the pairs.

    Of a corpus of more than `LEARNING_CHARACTERS`, as many pairs as that allows, from
    all of it.
    """
    every = max(-(-num_characters // LEARNING_CHARACTERS), 1)
    for pair in islice(pairs, 0, None, every):
        yield pair.source
        yield pair.target


def encode_corpus(
    pairs: Iterable[SentencePair],
    tokenizer: Tokenizer,
    batching: BatchingConfig,
    folder: Path,
) -> PairCounts:
    """Write the ids of the pairs that are fit to train on, and count the others."""
    fates: Counter[str] = Counter()

    def fit() -> Iterator[EncodedPair]:
        for pair in encode_pairs(pairs, tokenizer):
            fate = fate_of(pair, batching.max_length)
            fates[fate] += 1
            if fate == "kept":
                yield pair

    write_dataset(fit(), folder)
    return PairCounts(
        kept=fates["kept"], empty=fates["empty"], overlong=fates["overlong"]
    )


def encode_pairs(
    pairs: Iterable[SentencePair], tokenizer: Tokenizer
) -> Iterator[EncodedPair]:
    """The pairs as ids, a chunk at a time on all cores."""
    stream = iter(pairs)
    while chunk := list(islice(stream, CHUNK_PAIRS)):
        sources = tokenizer.encode_batch([pair.source for pair in chunk])
        targets = tokenizer.encode_batch([pair.target for pair in chunk])
        for source, target in zip(sources, targets, strict=True):
            yield EncodedPair(source=source, target=target)


def fate_of(pair: EncodedPair, max_length: int) -> str:
    """Whether a pair is "kept", or left out as "empty" or "overlong"."""
    if not pair.source or not pair.target:
        return "empty"
    # The end token counts.
    if max(len(pair.source), len(pair.target)) + 1 > max_length:
        return "overlong"
    return "kept"


def _prepare_dev(
    files: CorpusFiles, tokenizer: Tokenizer, batching: BatchingConfig, folder: Path
) -> PairCounts | None:
    if not files.dev_source:
        return None
    pairs = list(read_pairs(files.dev_source, files.dev_target))
    counts = encode_corpus(pairs, tokenizer, batching, folder)
    if counts.kept == 0:
        raise DataError(
            f"{files.dev_source[0]}: at least one pair must be left to validate on, "
            f"but {counts}."
        )
    # All of its text is translated, whatever was left out of its loss.
    write_lines(folder / "source.txt", (pair.source for pair in pairs))
    write_lines(folder / "target.txt", (pair.target for pair in pairs))
    return counts


def _require_pairs(source: Sequence[Path], target: Sequence[Path]) -> int:
    """Read all pairs once, so that a fault anywhere is found before any work.

    Returns the number of characters of both sides.
    """
    for path in (*source, *target):
        if path.exists() and not path.is_file():
            raise DataError(
                f"{path}: a corpus must be a file, since it is read several times, but "
                "is a folder or a pipe."
            )
    num_characters = count_characters(read_pairs(source, target))
    if num_characters == 0:
        raise DataError(
            f"{source[0]}: a corpus must have at least one line, but is empty."
        )
    return num_characters
