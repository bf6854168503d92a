"""Prepared corpora: a tokenizer and encoded pairs, made once.

A prepared corpus depends only on the lines of the files and on the settings of
tokenizer and filter. Their hash is its key. Runs in the same folder with the same key
share it.
"""

import heapq
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers

from transduce.data.corpus_files import (
    MAIN_DEV,
    CorpusFiles,
    CorpusStatistics,
    DevSet,
    read_corpora,
    read_through,
)
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.dataset import (
    DATASET_FILES,
    EncodedPair,
    open_dataset,
    write_dataset,
)
from transduce.errors import (
    AccessError,
    CheckpointError,
    ConfigError,
    DataError,
    TransduceError,
    counted,
)
from transduce.files import parse_json, read_bounded, read_json, real_path
from transduce.text.alignment import (
    DICTIONARY_FILE,
    WordDictionary,
    learn_dictionary,
)
from transduce.text.corpus import (
    SentencePair,
    full_windows,
    read_pairs,
    write_lines,
)
from transduce.text.tokenizer import (
    LEARNING_CHARACTERS,
    TOKENIZER_FILE,
    Tokenizer,
    WordTokenizer,
    learn_tokenizer,
    load_tokenizer,
    tagged,
    word_pattern,
)
from transduce.text.vocabulary import TokenizerConfig, find_language_tag
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

CHUNK_PAIRS = 10_000
"""Number of pairs encoded at once."""
CHUNKS_AHEAD = 2
"""Number of chunks encoded ahead of writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounts:
    """Numbers of kept and dropped pairs of a corpus."""

    kept: int
    empty: int
    """Number of pairs with a side of only white space."""
    overlong: int
    """Number of pairs with a side of more than `batching.max_length` tokens."""

    @property
    def total(self) -> int:
        return self.kept + self.empty + self.overlong

    def __str__(self) -> str:
        total = counted(self.total, "pair")
        return (
            f"{self.kept:,} of {total} kept ({self.empty:,} empty and "
            f"{self.overlong:,} overlong left out)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEncoder:
    """Encoder of pairs: the tokenizer, a vocabulary of symbols for a parser's target,
    and tags before the sources."""

    tokenizer: Tokenizer
    symbols: SymbolVocabulary | None = None
    tag: int | None = None
    """Id of the corpus's tag; None for none."""
    language: int | None = None
    """Id of the tag of the target language, which comes after the corpus's tag, unless
    a source has one of its own."""

    def encode(self, pairs: Sequence[SentencePair]) -> list[EncodedPair]:
        """Return pairs as ids, the sources with their tags."""
        texts = [pair.source for pair in pairs]
        sources = self.tokenizer.encode_sources(texts)
        if self.tag is not None or self.language is not None:
            sources = list(map(self._tagged, texts, sources))
        target = self.symbols or self.tokenizer
        targets = target.encode_targets([pair.target for pair in pairs])
        return [
            EncodedPair(source=source, target=target)
            for source, target in zip(sources, targets, strict=True)
        ]

    def _tagged(self, text: str, source: list[int]) -> list[int]:
        """Put the tags before a source that is not empty."""
        if not source:
            return source
        language = None if self.tokenizer.language(text) else self.language
        return [*(i for i in (self.tag, language) if i is not None), *source]


def encode_corpus(
    pairs: Iterable[SentencePair], encoder: PairEncoder, max_length: int, folder: Path
) -> PairCounts:
    """Write the ids of usable pairs, and count the others."""
    return encode_corpora([(pairs, encoder)], max_length, folder)[0]


def encode_corpora(
    corpora: Sequence[tuple[Iterable[SentencePair], PairEncoder]],
    max_length: int,
    folder: Path,
) -> list[PairCounts]:
    """Write the ids of several corpora one after the other, and count their pairs."""
    counts = [Counter[str]() for _ in corpora]

    def kept() -> Iterator[EncodedPair]:
        for (pairs, encoder), count in zip(corpora, counts, strict=True):
            for pair in encode_pairs(pairs, encoder):
                reason = filter_reason(pair, max_length)
                count[reason] += 1
                if reason == "kept":
                    yield pair

    write_dataset(kept(), folder)
    return [
        PairCounts(kept=each["kept"], empty=each["empty"], overlong=each["overlong"])
        for each in counts
    ]


def encode_pairs(
    pairs: Iterable[SentencePair], encoder: PairEncoder
) -> Iterator[EncodedPair]:
    """Yield the pairs as ids in order, encoded a few chunks ahead."""
    with ThreadPoolExecutor(CHUNKS_AHEAD) as threads:
        ahead: deque[Future[list[EncodedPair]]] = deque()
        for chunk in full_windows(pairs, CHUNK_PAIRS):
            ahead.append(threads.submit(encoder.encode, chunk))
            if len(ahead) > CHUNKS_AHEAD:
                yield from ahead.popleft().result()
        for encoded in ahead:
            yield from encoded.result()


def kept_pairs(
    pairs: Iterable[SentencePair], encoder: PairEncoder, max_length: int
) -> list[SentencePair]:
    """Return the pairs whose ids `encode_corpus` writes."""
    given = list(pairs)
    encoded = encode_pairs(given, encoder)
    return [
        pair
        for pair, ids in zip(given, encoded, strict=True)
        if filter_reason(ids, max_length) == "kept"
    ]


def filter_reason(pair: EncodedPair, max_length: int) -> str:
    """Return whether a pair is "kept", or dropped as "empty" or "overlong"."""
    if not pair.source or not pair.target:
        return "empty"
    # The end token counts.
    if pair.length + 1 > max_length:
        return "overlong"
    return "kept"


PREPARATION_FORMAT = 2
"""Format version, raised when the same text would give other files."""
CORPUS = "corpus"
TRAINING, DEV = f"{CORPUS}/training", f"{CORPUS}/dev"
DEV_SETS = f"{CORPUS}/dev-sets"
"""Folder of the further dev sets, each in a folder of its name."""
DEV_SOURCE, DEV_TARGET = "source.txt", "target.txt"
"""Files of the dev corpus's original text."""
PREPARATION = f"{CORPUS}/preparation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCorpus:
    """Prepared corpus: sizes, key and figures."""

    key: str
    """Hash of everything that it depends on."""
    training: PairCounts
    dev: PairCounts | None
    vocab_size: int
    target_vocab_size: int | None = None
    """Size of the target vocabulary of a parser; None if the vocabulary is shared."""
    statistics: Mapping[str, CorpusStatistics] = field(
        default_factory=dict, compare=False
    )
    """Statistics of the files by split: "training" and "dev"."""
    shared_with: Path | None = None
    """Folder of the run whose files are shared; None if made anew."""
    dev_name: str = field(default=MAIN_DEV, compare=False)
    """Name of the dev set that chooses the best checkpoint."""
    dev_sets: Mapping[str, PairCounts] = field(default_factory=dict, compare=False)
    """Numbers of pairs of the further dev sets, by name."""
    is_held_out: bool = False
    """Whether the dev corpus was taken from the training corpus."""
    corpora: Mapping[str, PairCounts] = field(default_factory=dict)
    """Numbers of pairs of each corpus of a mixture, in the order of the training set;
    empty without one."""


def prepare(
    files: CorpusFiles,
    tokenizer: TokenizerConfig | Tokenizer,
    max_length: int,
    folder: Path,
    sibling_runs: Iterable[Path] = (),
    symbols: SymbolVocabulary | None = None,
    target_language: str | None = None,
) -> PreparedCorpus:
    """Learn the tokenizer, and write it and the encoded corpora into the folder.

    A tokenizer given in place of its settings is used as it is. `symbols` is a parser's
    target vocabulary. `target_language` is the language of corpora that name none; if
    the tokenizer has tags of languages, its tag is put before the sources. If one of
    `sibling_runs` was prepared from the same input, its files are shared. All files are
    read through before anything is written. Raises `DataError` if one cannot be used,
    or no pair is left to train on, and `ConfigError` or `RequestError` if a given
    tokenizer lacks a tag.
    """
    training, sizes = read_corpora(files.sides)
    dev = read_through(files.dev_source, files.dev_target) if files.has_dev else None
    inputs = _Inputs(
        tokenizer=tokenizer,
        max_length=max_length,
        training=training,
        dev=dev,
        symbols=symbols,
        corpora=files.corpora,
        sizes=sizes,
        target_language=target_language,
        dev_language=files.dev_language or target_language,
    )
    for sibling in sibling_runs:
        if _share(sibling, folder, inputs):
            prepared = _read(folder, inputs)
            if prepared is not None:
                return replace(
                    prepared, shared_with=sibling, statistics=inputs.statistics
                )
            _discard(folder)
    prepared = _make(files, inputs, folder)
    _write_record(prepared, folder)
    return replace(prepared, statistics=inputs.statistics)


def _write_record(prepared: PreparedCorpus, folder: Path) -> None:
    """Write what `_read` needs; the rest differs between runs that share the files."""
    record: dict[str, object] = {
        "key": prepared.key,
        "training": asdict(prepared.training),
        "dev": None if prepared.dev is None else asdict(prepared.dev),
        "vocab_size": prepared.vocab_size,
        "target_vocab_size": prepared.target_vocab_size,
    }
    if prepared.corpora:
        record["corpora"] = {n: asdict(each) for n, each in prepared.corpora.items()}
    text = json.dumps(record, indent=2) + "\n"
    (folder / PREPARATION).write_text(text, encoding="utf-8")


def learning_texts(
    pairs: Iterable[SentencePair], num_characters: int, *, source_only: bool = False
) -> Iterator[str]:
    """Yield the text from which the tokenizer is learned: both sides, or one.

    A corpus of more than `LEARNING_CHARACTERS` characters is sampled evenly.
    """
    every = max(-(-num_characters // LEARNING_CHARACTERS), 1)
    for pair in islice(pairs, 0, None, every):
        yield pair.source
        if not source_only:
            yield pair.target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Input and settings that a prepared corpus depends on."""

    tokenizer: TokenizerConfig | Tokenizer
    """Settings to learn a tokenizer by, or a tokenizer that is used as it is."""
    max_length: int
    training: CorpusStatistics
    dev: CorpusStatistics | None
    symbols: SymbolVocabulary | None
    corpora: tuple[CorpusConfig, ...]
    sizes: tuple[int, ...]
    """Number of pairs of each corpus in its files."""
    target_language: str | None
    """Target language of training corpora without one of their own."""
    dev_language: str | None
    """Target language of the dev corpus."""

    @property
    def target_vocab_size(self) -> int | None:
        return None if self.symbols is None else self.symbols.vocab_size

    @property
    def has_dictionary(self) -> bool:
        """Whether there is a dictionary for unknown words of translations."""
        tokenizer = self.tokenizer
        is_of_words = (
            isinstance(tokenizer, TokenizerConfig) and tokenizer.kind == "word"
        )
        # One for several target languages would give words of the wrong one.
        languages = {corpus.target_language for corpus in self.corpora}
        return is_of_words and self.symbols is None and len(languages) < 2

    @property
    def statistics(self) -> dict[str, CorpusStatistics]:
        """Statistics of the files by split."""
        dev = {} if self.dev is None else {"dev": self.dev}
        return {"training": self.training, **dev}

    @property
    def key(self) -> str:
        """Hash of the inputs; runs with the same key share a prepared corpus."""
        parts = {
            "format": PREPARATION_FORMAT,
            "tokenizers": tokenizers.__version__,
            **self._tokenizer_parts(),
            "max_length": self.max_length,
            "training": self.training.digest,
            "dev": self.dev and self.dev.digest,
            **({"symbols": asdict(self.symbols)} if self.symbols else {}),
            **({"corpora": self._corpus_parts()} if self.corpora else {}),
            **self._language_parts(),
        }
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _tokenizer_parts(self) -> dict[str, object]:
        if isinstance(self.tokenizer, TokenizerConfig):
            settings = asdict(self.tokenizer)
            del settings["model"]  # it is given as a tokenizer
            words = word_pattern(self.tokenizer.kind)
            return {"tokenizer": settings, "words": words}
        return {"tokenizer": sha256(self.tokenizer.json().encode()).hexdigest()}

    def _language_parts(self) -> dict[str, object]:
        if not self._may_have_tags:
            return {}
        parts: dict[str, object] = {"language": self.target_language}
        if self.dev is not None and self.dev_language != self.target_language:
            parts["dev_language"] = self.dev_language
        return parts

    @property
    def _may_have_tags(self) -> bool:
        """Whether sources may have tags of their target languages."""
        if isinstance(self.tokenizer, TokenizerConfig):
            return any(corpus.target_language for corpus in self.corpora)
        return bool(self.tokenizer.language_tags)

    def _corpus_parts(self) -> list[list[object]]:
        """Names, sizes and tags of the corpora; what they contain is in the digest."""
        return [
            [corpus.name, size, corpus.tag, language]
            for corpus, size, language in zip(
                self.corpora, self.sizes, self._tag_languages, strict=True
            )
        ]

    def encoders(self, tokenizer: Tokenizer) -> list[PairEncoder]:
        """Return the encoder of each corpus; `ConfigError` if a tag is missing."""
        if not self.corpora:
            return [self._plain_encoder(tokenizer, self.target_language)]
        return [
            replace(encoder_of(corpus, tokenizer, language), symbols=self.symbols)
            for corpus, language in zip(self.corpora, self._tag_languages, strict=True)
        ]

    @property
    def _tag_languages(self) -> list[str | None]:
        """Target language of each corpus whose tag is put before its sources."""
        common = self.target_language if self._may_have_tags else None
        return [corpus.target_language or common for corpus in self.corpora]

    def dev_encoder(self, tokenizer: Tokenizer) -> PairEncoder:
        """Return the encoder of the dev corpus."""
        return self._plain_encoder(tokenizer, self.dev_language)

    def _plain_encoder(self, tokenizer: Tokenizer, language: str | None) -> PairEncoder:
        language = language if self._may_have_tags else None
        return replace(encoder_of(None, tokenizer, language), symbols=self.symbols)


def encoder_of(
    corpus: CorpusConfig | None, tokenizer: Tokenizer, language: str | None
) -> PairEncoder:
    """Return the encoder of a corpus, with the tags that are put before its sources.

    The corpus is that of a mixture, or None. Raises `ConfigError` if the tokenizer
    lacks its tag, and `RequestError` if it lacks that of the target language.
    """
    tag = language_tag = None
    if corpus is not None and corpus.tag is not None:
        tag = tokenizer.tag_id(corpus.tag)
        if tag is None:
            raise ConfigError(
                f"The tag {corpus.tag} of corpus {corpus.name} must be a token of the "
                "model to start from, but its tokenizer lacks it; leave the tag out, "
                "or train a new model."
            )
    if language is not None:
        found = find_language_tag(language, tokenizer.language_tags)
        language_tag = tokenizer.tag_id(found)
    return PairEncoder(tokenizer=tokenizer, tag=tag, language=language_tag)


def _make(files: CorpusFiles, inputs: _Inputs, folder: Path) -> PreparedCorpus:
    """Write the tokenizer, its companions and the ids of all pairs into the folder."""
    tokenizer = _make_tokenizer(files, inputs)
    tokenizer.save(folder / TOKENIZER_FILE)
    if inputs.symbols is not None:
        inputs.symbols.save(folder / SYMBOLS_FILE)
    if inputs.has_dictionary and isinstance(tokenizer, WordTokenizer):
        dictionary = learn_dictionary(
            lambda: read_pairs(files.source, files.target), tokenizer
        )
        dictionary.save(folder / DICTIONARY_FILE)
    counts = _make_training(
        files, inputs, inputs.encoders(tokenizer), folder / TRAINING
    )
    names = [corpus.name for corpus in files.corpora]
    return PreparedCorpus(
        key=inputs.key,
        training=_total(counts),
        dev=_make_dev(files, inputs, inputs.dev_encoder(tokenizer), folder / DEV),
        vocab_size=tokenizer.vocab_size,
        target_vocab_size=inputs.target_vocab_size,
        corpora=dict(zip(names, counts, strict=False)),
    )


def _make_tokenizer(files: CorpusFiles, inputs: _Inputs) -> Tokenizer:
    """Return the given tokenizer, or learn one from the training corpora."""
    if not isinstance(inputs.tokenizer, TokenizerConfig):
        return inputs.tokenizer
    texts = learning_texts(
        interleaved([read_pairs(*sides) for sides in files.sides], inputs.sizes),
        inputs.training.num_characters,
        source_only=inputs.symbols is not None,
    )
    return learn_tokenizer(texts, inputs.tokenizer, files.tags)


def _make_training(
    files: CorpusFiles, inputs: _Inputs, encoders: Sequence[PairEncoder], folder: Path
) -> list[PairCounts]:
    """Write the ids of the training corpora, and count the pairs of each.

    Raises `DataError` if the files have changed, or if a corpus has no pair left.
    """
    again = CorpusStatistics()
    counts = encode_corpora(
        [
            (again.pairs(*sides), encoder)
            for sides, encoder in zip(files.sides, encoders, strict=True)
        ],
        inputs.max_length,
        folder,
    )
    _require_unchanged(files.source[0], again, inputs.training)
    for (source, _), each in zip(files.sides, counts, strict=True):
        if each.kept == 0:
            raise DataError(
                f"{files.label(source[0])}: at least one pair must be left to train "
                f"on, but {each}."
            )
    return counts


def interleaved(
    corpora: Sequence[Iterable[SentencePair]], sizes: Sequence[int]
) -> Iterator[SentencePair]:
    """Yield the pairs of corpora of these sizes, each spread evenly among the
    others."""
    placed = [_placed(*each) for each in zip(corpora, sizes, strict=True)]
    return (pair for _, pair in heapq.merge(*placed, key=itemgetter(0)))


def _placed(
    pairs: Iterable[SentencePair], size: int
) -> Iterator[tuple[float, SentencePair]]:
    """Yield the pairs of a corpus with their places in it, from 0 to 1."""
    for i, pair in enumerate(pairs):
        yield (i + 0.5) / size, pair


def _total(counts: Sequence[PairCounts]) -> PairCounts:
    return PairCounts(
        kept=sum(each.kept for each in counts),
        empty=sum(each.empty for each in counts),
        overlong=sum(each.overlong for each in counts),
    )


def _make_dev(
    files: CorpusFiles, inputs: _Inputs, encoder: PairEncoder, folder: Path
) -> PairCounts | None:
    """Write the ids and the text of the dev corpus; None if the files have none."""
    if inputs.dev is None:
        return None
    again = CorpusStatistics()
    pairs = list(again.pairs(files.dev_source, files.dev_target))
    _require_unchanged(files.dev_source[0], again, inputs.dev)
    label = files.label(files.dev_source[0])
    return _write_dev(pairs, encoder, inputs.max_length, folder, label)


def prepare_dev_set(
    dev: DevSet,
    tokenizer: Tokenizer,
    language: str | None,
    max_length: int,
    folder: Path,
) -> PairCounts:
    """Write a further dev set into a folder; `DataError` if no pair is left.

    If the tokenizer has tags of languages, the tag of the set's target language
    precedes each source that is not blank.
    """
    pairs = list(CorpusStatistics().pairs((dev.source,), (dev.target,)))
    if language is not None and tokenizer.language_tags:
        tag = find_language_tag(language, tokenizer.language_tags)
        pairs = [
            replace(each, source=tagged(each.source, tag, tokenizer)) for each in pairs
        ]
    encoder = PairEncoder(tokenizer=tokenizer)
    return _write_dev(pairs, encoder, max_length, folder, str(dev.source))


def _write_dev(
    pairs: Sequence[SentencePair],
    encoder: PairEncoder,
    max_length: int,
    folder: Path,
    label: str,
) -> PairCounts:
    """Write the ids and the text of a dev corpus, which `label` names in errors."""
    counts = encode_corpus(pairs, encoder, max_length, folder)
    if counts.kept == 0:
        raise DataError(
            f"{label}: at least one pair must be left to validate on, but {counts}."
        )
    # The whole text is translated, even the pairs that the dev loss leaves out.
    write_lines(folder / DEV_SOURCE, (pair.source for pair in pairs))
    write_lines(folder / DEV_TARGET, (pair.target for pair in pairs))
    return counts


def _require_unchanged(
    path: Path, again: CorpusStatistics, first: CorpusStatistics
) -> None:
    if again.digest != first.digest:
        raise DataError(
            f"{path}: a corpus must stay as it is while it is prepared, but it or a "
            "file beside it has changed; start again."
        )


def _share(sibling: Path, folder: Path, inputs: _Inputs) -> bool:
    """Link large files and copy the rest; return whether the sibling run has all."""
    if _key_of(sibling) != inputs.key:
        return False
    ids = [f"{TRAINING}/{name}" for name in DATASET_FILES]
    texts = [PREPARATION, TOKENIZER_FILE, *([SYMBOLS_FILE] if inputs.symbols else [])]
    texts += [DICTIONARY_FILE] if inputs.has_dictionary else []
    (folder / TRAINING).mkdir(parents=True)
    if inputs.dev is not None:
        (folder / DEV).mkdir()
        ids += [f"{DEV}/{name}" for name in DATASET_FILES]
        texts += [f"{DEV}/{DEV_SOURCE}", f"{DEV}/{DEV_TARGET}"]
    try:
        for name in ids:
            _link(sibling / name, folder / name)
        for name in texts:
            shutil.copyfile(sibling / name, folder / name)
    except OSError:  # a file is missing, or being removed
        _discard(folder)
        return False
    return True


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(real_path(path), copy)
    except OSError:  # a disk without hard links
        shutil.copyfile(path, copy)


def _discard(folder: Path) -> None:
    shutil.rmtree(folder / CORPUS, ignore_errors=True)


def _key_of(folder: Path) -> str | None:
    try:
        record = parse_json(read_bounded(folder / PREPARATION))
        return str(record["key"])
    except (OSError, ValueError, LookupError, TypeError, AccessError):
        return None  # not prepared, by another version, or not ours to read


def _read(folder: Path, inputs: _Inputs) -> PreparedCorpus | None:
    """Read the record of a prepared corpus; None if it is damaged.

    Raises `AccessError` as `access_errors` does.
    """
    try:
        record = parse_json(read_bounded(folder / PREPARATION))
        open_dataset(folder / TRAINING)
        if inputs.dev is not None:
            open_dataset(folder / DEV)
            sides = (folder / DEV / DEV_SOURCE,), (folder / DEV / DEV_TARGET,)
            if read_through(*sides).digest != inputs.dev.digest:
                return None
        if load_tokenizer(folder / TOKENIZER_FILE).vocab_size != record["vocab_size"]:
            return None
        if inputs.has_dictionary:
            WordDictionary.load(folder / DICTIONARY_FILE)
        return PreparedCorpus(
            key=record["key"],
            training=_pair_counts(record["training"]),
            dev=record["dev"] and _pair_counts(record["dev"]),
            vocab_size=record["vocab_size"],
            target_vocab_size=inputs.target_vocab_size,
            corpora=_corpora_of(record, [corpus.name for corpus in inputs.corpora]),
        )
    except AccessError:
        raise  # it may be sound, and another one would be prepared
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError),
        TransduceError,
    ):
        return None


def _pair_counts(counts: Mapping[str, Any]) -> PairCounts:
    """Return the counts of a record; `TypeError` or `ValueError` if damaged."""
    found = PairCounts(**counts)
    if not all(type(n) is int and n >= 0 for n in counts.values()):
        raise ValueError
    return found


def _corpora_of(
    record: Mapping[str, Any], names: Sequence[str]
) -> dict[str, PairCounts]:
    """Return the counts of the corpora with these names.

    Raises `AttributeError`, `TypeError` or `ValueError` if they are damaged.
    """
    corpora = {
        name: _pair_counts(counts)
        for name, counts in record.get("corpora", {}).items()  # older records lack it
    }
    if [*corpora] != [*names] or not all(each.kept for each in corpora.values()):
        raise ValueError
    return corpora


def corpus_sizes(folder: Path, names: Sequence[str], num_pairs: int) -> tuple[int, ...]:
    """Return the number of training pairs of each corpus of a prepared mixture.

    `num_pairs` is the sum that they must have. Raises `CheckpointError` if the record
    of the preparation is damaged.
    """
    record = read_json(folder / PREPARATION)
    try:
        sizes = [each.kept for each in _corpora_of(record, names).values()]
        if sum(sizes) != num_pairs:
            raise ValueError
        return tuple(sizes)
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(
            f"{folder / PREPARATION}: must hold the number of pairs of each corpus, "
            "but does not; restore the file, or start a new run in another folder."
        ) from None
