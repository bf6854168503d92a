import pytest
import torch

from transduce.analysis.words import (
    are_spelt,
    between_words,
    groups_of,
    groups_of_words,
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
    ],
    ids=str,
)
def test_a_word_begins_with_a_space_or_beside_punctuation(
    pieces: list[str], starts: list[int]
) -> None:
    assert word_starts(pieces) == starts


def test_weights_to_a_word_are_summed_and_from_a_word_averaged() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    groups = groups_of([0, 1], 3)  # a word of one piece, and one of two
    found = between_words(weights, groups, groups)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.2, 0.8]]))


def test_pieces_belong_to_the_words_that_they_spell() -> None:
    pieces = [" Mar", "tin", "'s", " cannot", "."]
    groups = groups_of_words(pieces, ["Martin", "'s", "can", "not", "."])
    expected = torch.zeros(5, 5)
    expected[0, 0] = expected[1, 0] = expected[2, 1] = expected[4, 4] = 1
    expected[3, 2] = expected[3, 3] = 0.5
    torch.testing.assert_close(groups, expected)


def test_bytes_belong_to_the_letter_that_they_spell() -> None:
    pieces = [" gr", "<0xC3>", "<0xBC>", "n", "<0xC3>", "<0xA4>"]
    groups = groups_of_words(pieces, ["grün", "ä"])
    assert groups.argmax(dim=1).tolist() == [0, 0, 0, 0, 1, 1]
    torch.testing.assert_close(groups.sum(dim=1), torch.ones(6))


def test_a_letter_that_a_tokenizer_lost_is_missed() -> None:
    assert are_spelt(["grün", "."], [" gr", "<0xC3>", "<0xBC>", "n", "."])
    assert not are_spelt(["grün", "."], [" gr", "n", "."])
