import pytest
import torch

from transduce.analysis.word_links import (
    between_words,
    have_same_letters,
    letter_groups,
    piece_texts,
    word_groups,
    word_starts,
)


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        ([], []),
        ([" The", " sh", "ip", "."], [0, 1, 3]),
        ([" Mar", "ia", "'", "s", " dog"], [0, 2, 3, 4]),
        ([" gr", "<0xC3>", "<0xBC>", "n"], [0]),
        ([" ", "<0x78>", "y", " z"], [0, 3]),
        (["un", "do"], [0]),
        # In scripts without spaces each piece is a word.
        ([" ", "我们", "喜欢", "猫", "。"], [0, 2, 3, 4]),
        ([" ", "我", "<0xE9>", "<0xBE>", "<0x98>", "了"], [0, 2, 5]),
        ([" ", "用", "i", "Phone", "打"], [0, 2, 4]),
        ([" I", " ", "爱", " you"], [0, 1, 3]),
        ([" ", "ภา", "ษา", "\u0e31ไทย"], [0, 2]),
        ([" ", "ラーメン", "を", "食べ"], [0, 2, 3]),
        ([" ", "<0xE2>", "<0x9D>", "<0xA4>", "!"], [0, 4]),
        ([" ", "👩", "\u200d", "👧", " a"], [0, 4]),
    ],
    ids=str,
)
def test_a_word_begins_with_a_space_or_beside_punctuation(
    pieces: list[str], starts: list[int]
) -> None:
    assert word_starts(pieces) == starts


def test_weights_to_a_word_are_summed_and_from_a_word_averaged() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    groups = word_groups([0, 1], 3)  # a word of one piece, and one of two
    found = between_words(weights, groups, groups)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.2, 0.8]]))


def test_pieces_belong_to_the_words_that_they_spell() -> None:
    pieces = [" Mar", "tin", "'s", " cannot", "."]
    groups = letter_groups(pieces, ["Martin", "'s", "can", "not", "."])
    expected = torch.zeros(5, 5)
    expected[0, 0] = expected[1, 0] = expected[2, 1] = expected[4, 4] = 1
    expected[3, 2] = expected[3, 3] = 0.5
    torch.testing.assert_close(groups, expected)


def test_bytes_belong_to_the_letter_that_they_spell() -> None:
    pieces = [" gr", "<0xC3>", "<0xBC>", "n", "<0xC3>", "<0xA4>"]
    groups = letter_groups(pieces, ["grün", "ä"])
    assert groups.argmax(dim=1).tolist() == [0, 0, 0, 0, 1, 1]
    torch.testing.assert_close(groups.sum(dim=1), torch.ones(6))


def test_a_letter_dropped_by_the_tokenizer_is_detected() -> None:
    assert have_same_letters(["grün", "."], [" gr", "<0xC3>", "<0xBC>", "n", "."])
    assert not have_same_letters(["grün", "."], [" gr", "n", "."])


def test_a_letter_in_bytes_is_shown_at_its_first_byte() -> None:
    pieces = [" a", "<0xE9>", "<0xBE>", "<0x98>", "<0xC3>", "<0xA4>", "<0xA4>", "b"]
    assert piece_texts(pieces) == [" a", "龘", "", "", "ä", "", "\ufffd", "b"]
    assert piece_texts(["<0xC3>", "<0xA4>", "<0x41>"]) == ["ä", "", "A"]


def test_a_single_space_belongs_to_the_next_word() -> None:
    pieces = [" ", "我们", "走", "<0xE9>", "<0xBE>", "<0x98>"]
    groups = letter_groups(pieces, ["我", "们走", "龘"])
    assert groups.sum(dim=1).tolist() == [1] * 6
    assert groups[0].tolist() == [1, 0, 0]
    assert groups[3:].argmax(dim=1).tolist() == [2, 2, 2]
