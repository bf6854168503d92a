"""Dictionaries learned from text, and their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from transduce.errors import CheckpointError
from transduce.text.alignment import WordDictionary, learn_dictionary
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import WordTokenizer, learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig

LINES = [
    ("Der Hund schläft.", "The dog sleeps."),
    ("Der Hund bellt, Maria!", "The dog barks, Maria!"),
    ("Die Katze schläft.", "The cat sleeps."),
    ("Die Katze und der Hund", "The cat and the dog"),
    ("Maria bellt.", "Maria barks."),
] * 3
PAIRS = [SentencePair(source=source, target=target) for source, target in LINES]


def tokenizer() -> WordTokenizer:
    # The smallest vocabulary: almost every word is unknown.
    config = TokenizerConfig(kind="word", vocab_size=6)
    learned = learn_tokenizer((side for line in LINES for side in line), config)
    assert isinstance(learned, WordTokenizer)
    return learned


def test_a_dictionary_has_words_outside_the_vocabulary() -> None:
    found = learn_dictionary(lambda: PAIRS, tokenizer())
    assert found.translation("Hund") == "dog"
    assert found.translation("Katze") == "cat"
    assert found.translation("schläft") == "sleeps"
    assert found.translation("Unbekanntes") == "Unbekanntes"
    assert "Maria" not in found.translations
    assert found.translation("Maria") == "Maria"
    assert not any(word != word.strip() for word in found.translations)


def test_a_large_corpus_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def read() -> Iterator[SentencePair]:
        nonlocal reads
        reads += 1
        yield SentencePair(source="a b", target="c d")
        yield SentencePair(source="e", target="f")
        yield SentencePair(source="g", target="h")

    everything = learn_dictionary(read, tokenizer())
    assert everything.translation("e") == "f"
    sampled = learn_dictionary(read, tokenizer(), max_links=3)
    assert reads == 4
    assert sampled.translation("e") == "e"
    assert sampled.translation("g") == "h"


def test_a_saved_dictionary_is_loaded_again(tmp_path: Path) -> None:
    dictionary = WordDictionary(translations={"Straße": "street", '"': "«"})
    dictionary.save(tmp_path / "dictionary.json")
    assert WordDictionary.load(tmp_path / "dictionary.json") == dictionary


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 2, "words": {}}',
        '{"format": 1, "words": {"a": 1}}',
        # Half of a surrogate pair, which no output could hold.
        '{"format": 1, "words": {"a": "\\ud800"}}',
    ],
)
def test_a_damaged_dictionary_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "dictionary.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="the dictionary is damaged"):
        WordDictionary.load(path)
