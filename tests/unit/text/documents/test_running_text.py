import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text.documents.running_text import join_text, sentences, split_text

TEXTS = st.text(alphabet="aB .!?\n\r\t\u00a0。」<>&;'\"/-p", max_size=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("A dog.", ["A dog."]),
        ("A dog runs. It barks!", ["A dog runs.", "It barks!"]),
        ("a dog runs . it barks .", ["a dog runs .", "it barks ."]),
        ("Really? yes, really. \n\nNo.", ["Really? yes, really.", "No."]),
        ("Mr. Fox and Dr. Who met. They", ["Mr. Fox and Dr. Who met.", "They"]),
        ("Das ist z. B. Er. Gut", ["Das ist z. B. Er.", "Gut"]),
        ("Version 3.11 is out", ["Version 3.11 is out"]),
        ("one\ntwo\r\nthree", ["one", "two", "three"]),
        ("これは犬。それは猫。", ["これは犬。", "それは猫。"]),
        ("Who?! »Me.« Then", ["Who?!", "»Me.«", "Then"]),
    ],
)
def test_text_is_split_where_sentences_end(text: str, expected: list[str]) -> None:
    assert sentences(split_text(text)) == expected


@given(TEXTS)
def test_pieces_in_a_row_are_the_text(text: str) -> None:
    stretches = split_text(text)
    assert join_text(stretches, sentences(stretches)) == text
    assert all("\n" not in each for each in sentences(stretches))


@given(TEXTS)
def test_no_sentence_begins_or_ends_with_space(text: str) -> None:
    for each in sentences(split_text(text)):
        assert each.strip() == each != ""
