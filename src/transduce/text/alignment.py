"""Word alignment by IBM model 1 (Brown et al., 1993), and a dictionary made by it.

Each target word comes from one word of its source, or from none, with a probability
t(target | source) that depends on nothing else. Expectation maximisation finds the
probabilities, whose likelihood has no other maximum; it never falls.

The dictionary translates unknown words (Luong et al., 2015). It is learned from the
training text, in both directions. A model whose vocabulary is of words keeps it in its
folder; `decoding.translations` uses it.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from transduce.errors import CheckpointError
from transduce.files import parse_json, read_bounded, reason
from transduce.native import Work, check, ffi, library, pointer, require_free
from transduce.settings import shown
from transduce.signals import call_interruptibly
from transduce.text.corpus import SentencePair
from transduce.text.sentence_pieces import SURROGATE
from transduce.text.tokenizer import WordTokenizer

ITERATIONS = 5
"""Usual number of iterations for model 1, after which alignments hardly change."""
NULL = -1
"""Source id of target words that come from no source word."""
CHUNK_LINKS = 2**21
"""Links computed at once. A link is a target word with a possible source word."""

LEARNING = "Learning word translations"
"""Name of the work, for messages if memory is lacking."""
BYTES_OF_TARGET = 8
"""Bytes of a target's id and probability, as the native library returns them."""

IdPair = tuple[Sequence[int], Sequence[int]]
"""Ids of a source and of a target, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationTable:
    """Probabilities of target words given source words that occur with them.

    Entries are ordered by source, then target; all other probabilities are 0.
    """

    source: Int64[np.ndarray, " entries"]
    """Source ids; `NULL` for none."""
    target: Int64[np.ndarray, " entries"]
    probability: Float64[np.ndarray, " entries"]

    def best(self, *, min_probability: float = 0.0) -> dict[int, int]:
        """Return the likeliest target of each source, if it is probable enough.

        `NULL` is left out. Equal probabilities give the smallest id.
        """
        kept = self.picked(
            (self.source != NULL) & (self.probability >= min_probability)
        )
        found = kept.picked(ranked(kept, 1))
        return dict(zip(found.source.tolist(), found.target.tolist(), strict=True))

    def picked(
        self, chosen: Bool[np.ndarray, " entries"] | Int64[np.ndarray, " picked"]
    ) -> "TranslationTable":
        """Return some entries, given by a mask or by their indices."""
        return TranslationTable(
            source=self.source[chosen],
            target=self.target[chosen],
            probability=self.probability[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPairs:
    """Sentence pairs as ids; the sentences of a side follow one another."""

    sources: Int32[np.ndarray, " source_words"]
    targets: Int32[np.ndarray, " target_words"]
    source_ends: Int64[np.ndarray, " pairs"]
    """Number of words up to the end of each source."""
    target_ends: Int64[np.ndarray, " pairs"]

    @classmethod
    def of(cls, pairs: Iterable[IdPair]) -> "EncodedPairs":
        """Join the ids of all pairs."""
        sides: tuple[array[int], array[int]] = array("i"), array("i")
        ends: tuple[array[int], array[int]] = array("q"), array("q")
        for pair in pairs:
            for ids, side, side_ends in zip(pair, sides, ends, strict=True):
                side.extend(ids)
                side_ends.append(len(side))
        return cls(
            sources=np.array(sides[0], dtype=np.int32),
            targets=np.array(sides[1], dtype=np.int32),
            source_ends=np.array(ends[0], dtype=np.int64),
            target_ends=np.array(ends[1], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.source_ends)

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids of each pair."""
        sources, targets = self.sources.tolist(), self.targets.tolist()
        source, target = 0, 0
        for ends in zip(
            self.source_ends.tolist(), self.target_ends.tolist(), strict=True
        ):
            yield sources[source : ends[0]], targets[target : ends[1]]
            source, target = ends

    def swapped(self) -> "EncodedPairs":
        """Return the pairs with source and target exchanged."""
        return EncodedPairs(
            sources=self.targets,
            targets=self.sources,
            source_ends=self.target_ends,
            target_ends=self.source_ends,
        )


def ibm_model_1(pairs: EncodedPairs, iterations: int = ITERATIONS) -> TranslationTable:
    """Learn t(target | source) by expectation maximisation.

    Pairs with an empty side are left out. Memory is about 30 bytes for each pair of a
    source and a target word in the same sentence pair, so the caller limits these.
    """
    corpus = _Corpus.of(pairs)
    keys = _distinct(corpus.keys(links) for links in corpus.links())
    indices = [
        np.searchsorted(keys, corpus.keys(links)).astype(np.int32)
        for links in corpus.links()
    ]
    source, target = np.divmod(keys, corpus.num_targets)
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    sizes = np.diff(starts, append=len(source))
    probability = np.full(len(keys), 1 / max(corpus.num_targets, 1))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for links, index in zip(corpus.links(), indices, strict=True):
            terms = probability[index]
            sums = np.add.reduceat(terms, links.starts)
            terms /= np.repeat(sums, links.sizes)
            counts += np.bincount(index, terms, minlength=len(keys))
        totals = np.add.reduceat(counts, starts) if len(starts) else counts
        probability = counts / np.repeat(totals, sizes)
    return TranslationTable(source=source - 1, target=target, probability=probability)


def likeliest_targets(
    pairs: EncodedPairs, best: int, *, num_threads: int = 1
) -> TranslationTable:
    """Learn the `best` likeliest targets of each source id, as `ibm_model_1` does.

    The native library learns them, if there is one: much faster, and with memory for
    the distinct pairs of ids only. It drops probabilities below 1e-5. Raises
    `RequestError` if memory is lacking.
    """
    native = library()
    if native is None:
        table = ibm_model_1(pairs)
        return table.picked(np.sort(ranked(table, best)))
    source_vocab = int(pairs.sources.max(initial=0)) + 1
    target_vocab = int(pairs.targets.max(initial=0)) + 1
    best = min(best, target_vocab)
    require_free(
        (source_vocab + 1) * best * BYTES_OF_TARGET,
        Work(LEARNING, "end other programs, or keep fewer targets of a source piece"),
    )
    tokens = np.empty((source_vocab + 1, best), dtype=np.int32)
    probabilities = np.empty((source_vocab + 1, best), dtype=np.float32)

    def learn() -> None:
        # It holds the arrays until the call ends, even if a signal ends the caller.
        query = ffi.new(
            "td_sentence_pairs *",
            {
                "pairs": len(pairs),
                "source_vocab": source_vocab,
                "target_vocab": target_vocab,
                "sources": pointer(pairs.sources, "int32_t *"),
                "targets": pointer(pairs.targets, "int32_t *"),
                "source_ends": pointer(pairs.source_ends, "int64_t *"),
                "target_ends": pointer(pairs.target_ends, "int64_t *"),
            },
        )
        check(
            native.td_learn_lexicon(
                query,
                ITERATIONS,
                best,
                num_threads,
                pointer(tokens, "int32_t *"),
                pointer(probabilities, "float *"),
            ),
            Work(LEARNING, "give fewer sentence pairs"),
        )

    call_interruptibly(learn)  # minutes for millions of pairs
    return _table(tokens, probabilities)


def _table(
    tokens: Int32[np.ndarray, "sources best"],
    probabilities: Float32[np.ndarray, "sources best"],
) -> TranslationTable:
    """Return the entries with a target; the last row is that of `NULL`."""
    source, place = np.nonzero(tokens >= 0)
    target = tokens[source, place].astype(np.int64)
    kept = probabilities[source, place].astype(np.float64)
    source[source == len(tokens) - 1] = NULL
    order = np.lexsort((target, source))
    return TranslationTable(
        source=source[order], target=target[order], probability=kept[order]
    )


def ranked(table: TranslationTable, best: int) -> Int64[np.ndarray, " entries"]:
    """Return the places of the `best` likeliest entries of each source, likeliest
    first, source by source."""
    order = np.lexsort((table.target, -table.probability, table.source))
    source = table.source[order]
    is_first = np.diff(source, prepend=NULL - 1) != 0
    first = np.flatnonzero(is_first)
    ranks = np.arange(len(order)) - first[np.cumsum(is_first) - 1]
    chosen: Int64[np.ndarray, " entries"] = order[ranks < best]
    return chosen


def symmetrized(
    forward: TranslationTable, backward: TranslationTable
) -> TranslationTable:
    """Return the products t(target | source) t(source | target).

    `backward` is learned from the same pairs with their sides swapped. In one direction
    alone, a rare word takes the translations of all words around it; the other
    direction gives it little for these.
    """
    forward, backward = _without_null(forward), _without_null(backward)
    width = int(max(forward.target.max(initial=0), backward.source.max(initial=0))) + 1
    keys = forward.source * width + forward.target
    reverse = backward.target * width + backward.source
    _, mine, theirs = np.intersect1d(
        keys, reverse, assume_unique=True, return_indices=True
    )
    return TranslationTable(
        source=forward.source[mine],
        target=forward.target[mine],
        probability=forward.probability[mine] * backward.probability[theirs],
    )


def _without_null(table: TranslationTable) -> TranslationTable:
    return table.picked(table.source != NULL)


class _Links(NamedTuple):
    """Links of consecutive target words, those of one target word together."""

    words: slice
    """Target words."""
    starts: Int64[np.ndarray, " words"]
    """First link of each target word."""
    sizes: Int64[np.ndarray, " words"]
    """Number of links of each target word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corpus:
    """Words of all pairs, without boundaries."""

    source: Int32[np.ndarray, " source_words"]
    """Source ids plus 1, with 0 for `NULL` before each source."""
    target: Int32[np.ndarray, " target_words"]
    first: Int64[np.ndarray, " target_words"]
    """Position in `source` where the source of each target word begins."""
    sizes: Int64[np.ndarray, " target_words"]
    """Length of the source of each target word, `NULL` included."""
    num_targets: int

    @classmethod
    def of(cls, pairs: EncodedPairs) -> "_Corpus":
        """Take the pairs without an empty side."""
        source_sizes = np.diff(pairs.source_ends, prepend=0)
        target_sizes = np.diff(pairs.target_ends, prepend=0)
        is_used = (source_sizes > 0) & (target_sizes > 0)
        sources = pairs.sources[np.repeat(is_used, source_sizes)]
        targets = pairs.targets[np.repeat(is_used, target_sizes)]
        source_sizes, target_sizes = source_sizes[is_used], target_sizes[is_used]
        begins = np.cumsum(source_sizes) - source_sizes
        return cls(
            source=np.insert(sources, begins, NULL) + np.int32(1),
            target=targets,
            first=np.repeat(begins + np.arange(len(begins)), target_sizes),
            sizes=np.repeat(source_sizes + 1, target_sizes),
            num_targets=int(targets.max(initial=0)) + 1,
        )

    def links(self) -> Iterator[_Links]:
        """Yield the links in chunks of about `CHUNK_LINKS`."""
        chunk = np.cumsum(self.sizes) // CHUNK_LINKS
        ends = np.flatnonzero(np.diff(chunk, append=-1)) + 1
        start = 0
        for end in ends.tolist():
            sizes = self.sizes[start:end]
            yield _Links(slice(start, end), np.cumsum(sizes) - sizes, sizes)
            start = end

    def keys(self, links: _Links) -> Int64[np.ndarray, " links"]:
        """Return a number for the source and target word of each link."""
        shift = self.first[links.words] - links.starts
        places = np.arange(int(links.sizes.sum())) + np.repeat(shift, links.sizes)
        target = np.repeat(self.target[links.words], links.sizes)
        return self.source[places].astype(np.int64) * self.num_targets + target


def _distinct(
    chunks: Iterable[Int64[np.ndarray, " _"]],
) -> Int64[np.ndarray, " keys"]:
    """Return the distinct keys of all chunks in order."""
    merged = [np.zeros(0, dtype=np.int64)]
    for chunk in chunks:
        merged.append(_sorted_distinct(chunk))
        # Merge similar sizes, so that a key is sorted few times.
        while len(merged) > 1 and len(merged[-2]) <= 2 * len(merged[-1]):
            merged[-2:] = [_sorted_distinct(np.concatenate(merged[-2:]))]
    return _sorted_distinct(np.concatenate(merged))


def _sorted_distinct(keys: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " keys"]:
    # `np.unique` takes ten times as long: it puts the keys into a hash table first.
    keys = np.sort(keys)
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = keys[1:] != keys[:-1]
    return keys[is_new]


DICTIONARY_FILE = "dictionary.json"
"""Name of the dictionary's file in model folders and run folders."""
DICTIONARY_FORMAT = 1
MAX_DICTIONARY_BYTES = 2**28
"""Maximum size of a dictionary's file in bytes."""
MAX_LINKS = 2**25
"""Maximum number of links to learn from, which need about 1 GB. A larger corpus is
sampled evenly."""
MAX_WORDS = 100
"""Words of a side above which a sentence pair is left out, as its links are many and
say little."""
MIN_PROBABILITY = 0.1
"""Least product of the probabilities of both directions; a less certain translation of
a rare word is worse than a copy, as most rare words are names and numbers."""
KNOWN_CHUNKS = 1_000_000
"""Maximum number of cached runs of text between spaces."""

ReadPairs = Callable[[], Iterable[SentencePair]]
"""Function that reads a corpus from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordDictionary:
    """The likeliest translation of each source word, without spaces around words.

    Words that stay the same, or that have no certain translation, are left out.
    """

    translations: Mapping[str, str]

    def translation(self, word: str) -> str:
        """Return the translation of a source word, by default the word itself."""
        return self.translations.get(word, word)

    def save(self, path: Path) -> None:
        """Write the dictionary as JSON."""
        content = {"format": DICTIONARY_FORMAT, "words": dict(self.translations)}
        text = json.dumps(content, ensure_ascii=False, indent=0)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "WordDictionary":
        """Read a saved dictionary; `CheckpointError` if it is damaged."""
        try:
            content = parse_json(read_bounded(path, MAX_DICTIONARY_BYTES))
            if not isinstance(content, dict):
                raise ValueError("it holds no JSON object")
            if content.get("format") != DICTIONARY_FORMAT:
                number = shown(content.get("format"))
                raise ValueError(
                    f"its format must be {DICTIONARY_FORMAT}, but is {number}"
                )
            words = content.get("words")
            if not isinstance(words, dict) or set(map(type, words.values())) - {str}:
                raise ValueError("its `words` must have a string for each word")
            for word, translation in words.items():
                if SURROGATE.search(translation):
                    raise ValueError(
                        f"the translation of {shown(word)} has half a character"
                    )
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: the dictionary is damaged ({reason(error)}); restore the "
                "file, or remove it to copy unknown words."
            ) from None
        return cls(translations=words)


def learn_dictionary(
    read: ReadPairs, tokenizer: WordTokenizer, max_links: int = MAX_LINKS
) -> WordDictionary:
    """Learn a dictionary of all words of a corpus, also those outside the vocabulary.

    The corpus is read twice. At most about `max_links` pairs of a source and a target
    word in the same sentence pair are used, which bounds the memory.
    """
    links = sum(_num_links(pair) for pair in _usable(read()))
    every = sampling_interval(links, max_links)
    words = _Words(tokenizer)
    pairs = EncodedPairs.of(
        (words.ids(pair.source), words.ids(pair.target))
        for pair in islice(_usable(read()), 0, None, every)
    )
    products = symmetrized(ibm_model_1(pairs), ibm_model_1(pairs.swapped()))
    table = products.best(min_probability=MIN_PROBABILITY)
    known = list(words.id_of)
    translations = ((known[source], known[target]) for source, target in table.items())
    return WordDictionary(
        translations={
            source: target for source, target in translations if source != target
        }
    )


def sampling_interval(links: int, max_links: int) -> int:
    """Return n so that every n-th pair, taken together, has about `max_links` links.

    It is 1 for a corpus that has fewer.
    """
    return max(-(-links // max_links), 1)


def _usable(pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
    for pair in pairs:
        if max(len(pair.source.split()), len(pair.target.split())) <= MAX_WORDS:
            yield pair


def _num_links(pair: SentencePair) -> int:
    return len(pair.source.split()) * len(pair.target.split())


class _Words:
    """Ids of the words of a corpus, in the order in which they first occur."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.id_of: dict[str, int] = {}
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        """Ids of runs of text between spaces."""

    def ids(self, text: str) -> list[int]:
        return [i for chunk in text.split() for i in self._ids(chunk)]

    def _ids(self, chunk: str) -> list[int]:
        if (ids := self._known.get(chunk)) is None:
            words = map(str.strip, self._tokenizer.split(chunk))
            ids = [self.id_of.setdefault(word, len(self.id_of)) for word in words]
            if len(self._known) >= KNOWN_CHUNKS:
                self._known.clear()
            self._known[chunk] = ids
        return ids
