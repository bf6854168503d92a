"""A vocabulary of characters restores any text, one id a character."""

from pathlib import Path

import pytest

from transduce.errors import ConfigError
from transduce.text.tokenizer import (
    SubwordTokenizer,
    Tokenizer,
    learn_tokenizer,
    load_tokenizer,
    normalize,
)
from transduce.text.vocabulary import BYTE_PIECES, NUM_RESERVED, TokenizerConfig

CORPUS = ["Ein Hund läuft.", "A dog runs, and runs!"]
TEXTS = [
    "Ein Hund läuft.",
    "  A  dog\truns ",
    "",
    "Grüße aus 東京 \U0001f600 <s> </s>",
    "x" * 500,
    BYTE_PIECES[65],
    "e\u0301",
]


def learned(size: int = 1_000, corpus: list[str] = CORPUS) -> SubwordTokenizer:
    return learn_tokenizer(corpus, TokenizerConfig(kind="character", vocab_size=size))


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_restored(text: str) -> None:
    tokenizer = learned()
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)


def test_each_character_and_each_space_has_an_id() -> None:
    tokenizer = learned()
    pieces = tokenizer.pieces(tokenizer.encode("A dog runs"))
    assert pieces == list(" A dog runs")


def test_the_vocabulary_holds_the_characters_of_the_text_after_the_bytes() -> None:
    tokenizer = learned()
    characters = set("".join(CORPUS))
    assert tokenizer.vocab_size == NUM_RESERVED + len(characters)
    known = tokenizer.pieces(range(NUM_RESERVED, tokenizer.vocab_size))
    assert set(known) == characters
    assert known[0] == " "
    assert known[1] in "un"  # the most frequent
    assert learned().json() == tokenizer.json()


def test_rare_characters_are_bytes_in_a_small_vocabulary() -> None:
    tokenizer = learned(NUM_RESERVED + 5)
    assert tokenizer.vocab_size == NUM_RESERVED + 5
    # The space, then by frequency and code point.
    assert tokenizer.pieces(range(NUM_RESERVED, NUM_RESERVED + 5)) == list(" nudr")
    assert tokenizer.pieces(tokenizer.encode("und!")) == [*" und", "<0x21>"]
    assert tokenizer.decode(tokenizer.encode(CORPUS[0])) == CORPUS[0]


def test_unspaced_text_is_cut_into_characters() -> None:
    tokenizer = learned(corpus=["東京に行く", "大阪に行く"])
    assert tokenizer.pieces(tokenizer.encode("東京に行く")) == list(" 東京に行く")


def test_a_saved_tokenizer_is_read_back(tmp_path: Path) -> None:
    tokenizer: Tokenizer = learned()
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    assert loaded.encode("A dog läuft") == tokenizer.encode("A dog läuft")


def test_a_vocabulary_without_characters_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 259 .special tokens and bytes."):
        TokenizerConfig(kind="character", vocab_size=259)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match='"word" or "character", but is "letter"'):
        TokenizerConfig(kind="letter")  # type: ignore[arg-type] # wrong on purpose
