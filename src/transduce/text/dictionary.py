"""Dictionary of words for unknown words of translations (Luong et al., 2015).

IBM model 1 learns it from the training text, in both directions. A model whose
vocabulary is of words keeps it in its folder; `decoding.unknown_words` uses it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.files import parse_json, read_bounded, reason
from transduce.settings import shown
from transduce.text.alignment import IdPair, ibm_model_1, symmetrized
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import WordTokenizer

DICTIONARY_FILE = "dictionary.json"
"""Name of the dictionary's file in model folders and run folders."""
DICTIONARY_FORMAT = 1
MAX_DICTIONARY_BYTES = 2**28
"""Maximum size of a dictionary's file in bytes."""
MAX_LINKS = 2**25
"""Maximum number of pairs of words in the same sentence pair that are learned from:
about 1 GB. Of a larger corpus, sentence pairs are taken evenly."""
MAX_WORDS = 100
"""Words of a side above which a sentence pair is left out, as its links are many and
say little."""
LEAST_PROBABILITY = 0.1
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
                raise ValueError(f"its format must be 1, but is {number}")
            words = content.get("words")
            if not isinstance(words, dict) or set(map(type, words.values())) - {str}:
                raise ValueError("its `words` must have a string for each word")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: the dictionary is damaged ({reason(error)}); restore the "
                "file, or remove it to copy unknown words."
            ) from None
        return cls(translations=words)


def learn_dictionary(read: ReadPairs, tokenizer: WordTokenizer) -> WordDictionary:
    """Learn a dictionary of all words of a corpus, also those outside the vocabulary.

    The corpus is read twice. Memory is bounded by `MAX_LINKS`.
    """
    links = sum(_num_links(pair) for pair in _usable(read()))
    every = -(-links // MAX_LINKS) or 1
    words = _Words(tokenizer)
    pairs: list[IdPair] = [
        (words.ids(pair.source), words.ids(pair.target))
        for pair in islice(_usable(read()), 0, None, every)
    ]
    forward = ibm_model_1(pairs)
    backward = ibm_model_1((target, source) for source, target in pairs)
    table = symmetrized(forward, backward).best(least=LEAST_PROBABILITY)
    known = list(words.id_of)
    translations = ((known[source], known[target]) for source, target in table.items())
    return WordDictionary(
        translations={
            source: target for source, target in translations if source != target
        }
    )


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
            ids = list(self._new(chunk))
            if len(self._known) >= KNOWN_CHUNKS:
                self._known.clear()
            self._known[chunk] = ids
        return ids

    def _new(self, chunk: str) -> Iterator[int]:
        for word in self._tokenizer.split(chunk):
            yield self.id_of.setdefault(word.strip(), len(self.id_of))
