import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text.document import (
    Piece,
    join_html,
    join_text,
    sentences,
    split_html,
    split_text,
)

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
    pieces = split_text(text)
    assert join_text(pieces, sentences(pieces)) == text
    assert all("\n" not in each for each in sentences(pieces))


@given(TEXTS)
def test_no_sentence_begins_or_ends_with_space(text: str) -> None:
    for each in sentences(split_text(text)):
        assert each.strip() == each != ""


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>A &amp; B</p>", ["A & B"]),
        ("<a title=\"x > y\" href='>'>in</a>", ["in"]),
        ("1 < 2 and 3 > 2", ["1 < 2 and 3 > 2"]),
        ("<!-- no > no --> yes", ["yes"]),
        ("<SCRIPT>if (a < b) {}</Script >yes", ["yes"]),
        ("<pre>a\n<b>b</b></pre> c", ["c"]),
        ("<!doctype html><br/>x", ["x"]),
        ("x <b never closed", ["x"]),
        ("x <!-- never closed", ["x"]),
        ("x <style> never closed", ["x"]),
    ],
)
def test_markup_is_not_translated(html: str, expected: list[str]) -> None:
    assert sentences(split_html(html)) == expected


@given(TEXTS)
def test_markup_survives(html: str) -> None:
    pieces = split_html(html)
    again = split_html(join_html(pieces, sentences(pieces)))
    tags = [each for each in pieces if each.text.startswith("<")]
    assert [each for each in again if each.text.startswith("<")] == tags


def test_a_translation_is_no_markup() -> None:
    pieces = [Piece("<p>", is_sentence=False), Piece("a", is_sentence=True)]
    assert join_html(pieces, ["<b> & c"]) == "<p>&lt;b&gt; &amp; c"
