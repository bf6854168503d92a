"""Vocabularies of words: unknown words are lost, all other text is restored."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transduce.errors import CheckpointError, ConfigError, RequestError
from transduce.interop.portable_tokenizer import portable_tokenizer
from transduce.text.tokenizer import (
    WordTokenizer,
    learn_tokenizer,
    load_tokenizer,
    normalize,
)
from transduce.text.vocabulary import UNKNOWN_IDS, TokenizerConfig

CORPUS = (
    "The cat (a big one) doesn't see 12 dogs, or does it?",
    "The dog isn't in state-of-the-art homes: the cat is.",
    "Ein Mann schläft; Mann!",
)
SPACED, JOINED = UNKNOWN_IDS


@cache
def learned(size: int = 1_000, corpus: tuple[str, ...] = CORPUS) -> WordTokenizer:
    tokenizer = learn_tokenizer(corpus, TokenizerConfig(kind="word", vocab_size=size))
    assert isinstance(tokenizer, WordTokenizer)
    return tokenizer


@pytest.mark.parametrize("text", [*CORPUS, "", "  The   cat (a\tbig one) "])
def test_text_of_known_words_is_restored(text: str) -> None:
    tokenizer = learned()
    ids = tokenizer.encode(text)
    assert not set(ids) & set(UNKNOWN_IDS)
    assert tokenizer.decode(ids) == " ".join(text.split())


def test_unknown_words_keep_the_space_before_them() -> None:
    tokenizer = learned()
    ids = tokenizer.encode("The (elephant) sees 99 elephants-of-war")
    words = [" The", " (", "<unk>", ")", " <unk>", " <unk>", " <unk>", "-", "of", "-"]
    assert tokenizer.pieces(ids) == [*words, "<unk>"]
    assert ids[2] == JOINED
    assert ids[4] == SPACED
    assert tokenizer.decode(ids) == "The (<unk>) <unk> <unk> <unk>-of-<unk>"


def test_there_is_an_id_for_each_split_word() -> None:
    tokenizer = learned()
    for text in ["An elephant's 3,5 trunks…", "漢字 and <unk> and </s>", "x" * 200, ""]:
        words = tokenizer.split(text)
        assert len(words) == len(tokenizer.encode(text))
        assert tokenizer.join(words) == " ".join(text.split())


@given(st.text())
@example("\uf700 x\u0301 1.5€ <unk>\u00a0</s>")
@settings(deadline=None, max_examples=200)
def test_any_text_is_split_and_restored(text: str) -> None:
    tokenizer = learned()
    words = tokenizer.split(text)
    assert len(words) == len(tokenizer.encode(text))
    assert tokenizer.join(words) == normalize(text)
    known = {piece for piece in tokenizer.pieces(range(5, tokenizer.vocab_size))}
    shown = tokenizer.pieces(tokenizer.encode(text))
    for word, piece in zip(words, shown, strict=True):
        unknown = " <unk>" if word.startswith(" ") else "<unk>"
        assert piece == (word if word in known else unknown)


def test_half_of_a_surrogate_pair_is_refused() -> None:
    tokenizer = learned()
    for read in (tokenizer.split, tokenizer.encode):
        with pytest.raises(RequestError, match="half of a surrogate pair"):
            read("The \ud800")


def test_the_most_frequent_words_are_kept_and_ties_go_by_code_point() -> None:
    tokenizer = learned(9, ("b a c", "b a d", "b"))
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    assert pieces[5:] == [" b", " a", " c", " d"]
    assert tokenizer == learned(9, ("b a c", "b a d", "b"))
    assert learned(7, ("b a c", "b a d", "b")).vocab_size == 7


def test_a_user_cannot_write_an_unknown_word_or_a_special_token() -> None:
    ids = learned().encode("<unk> <s> </s> <pad>")
    assert min(ids) >= SPACED
    assert len(ids) == 12


def test_a_saved_vocabulary_is_loaded_again(tmp_path: Path) -> None:
    tokenizer = learned()
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(loaded, WordTokenizer)
    assert loaded == tokenizer
    assert loaded.encode(CORPUS[0]) == tokenizer.encode(CORPUS[0])


def test_a_file_without_the_pieces_of_unknown_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    content = json.loads(learned().json())
    vocabulary = content["model"]["vocab"]
    vocabulary["other"] = vocabulary.pop("<unk>")
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="unknown words are missing"):
        load_tokenizer(path)


def test_a_file_with_another_piece_for_unknown_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    content = json.loads(learned().json())
    content["model"]["unk_token"] = "</s>"
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="`model.unk_token` must be its piece"):
        load_tokenizer(path)


def test_a_script_without_spaces_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have text with spaces between words"):
        learned(corpus=("我们在这里测试没有学过的汉字", "The cat sat."))


def test_a_vocabulary_of_words_must_have_room_for_a_word() -> None:
    with pytest.raises(ConfigError, match=r"above 5 \(special tokens and unknown"):
        TokenizerConfig(kind="word", vocab_size=5)


def test_a_vocabulary_of_words_is_not_exported() -> None:
    with pytest.raises(RequestError, match="but has one of words"):
        portable_tokenizer(learned())
