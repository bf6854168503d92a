"""Subtitles as sentences and the lines of times between them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import RequestError
from transduce.text.splitting import sentences
from transduce.text.subtitles import (
    TIMES,
    divided,
    split_subtitles,
    written_subtitles,
)

SRT = """1
00:00:01,000 --> 00:00:02,000
<i>This is a sentence that
goes over two cues</i>

2
00:00:02,100 --> 00:00:04,000
and <b>ends</b> here. Mr. Smith & I left.

3
00:00:05,000 --> 00:00:06,000
- Really?
- Yes, <i>really</i> now.

4
00:00:10,000 --> 00:00:12,000
[DOOR OPENS]

5
00:00:12,100 --> 00:00:13,000
♪ Singing all day ♪
"""
VTT = """\ufeffWEBVTT - A film

STYLE
::cue { color: white }

NOTE It is a draft.

intro
00:01.000 --> 00:02.000 line:0
<v Ann>You &amp; I
are &lt;here&gt;.

NOTE The end.

00:03.000 --> 00:04.000
<v Bob>It is <00:03.500>late
"""


def cue(number: int, text: str, start_s: int | None = None) -> str:
    start = number if start_s is None else start_s
    return f"{number}\n00:00:{start:02},000 --> 00:00:{start + 1:02},000\n{text}\n\n"


def translated(document: str, is_escaped: bool = False, **words: str) -> str:
    """Replace sentences, or write them in capitals."""
    return "".join(
        written_subtitles(
            each, words.get("all") or each.sentence.upper(), is_escaped=is_escaped
        )
        if each.sentence is not None
        else each.text
        for each in split_subtitles(document, "en", is_escaped=is_escaped)
    )


def test_a_sentence_goes_over_lines_and_cues_but_not_over_speakers() -> None:
    assert sentences(split_subtitles(SRT, "en")) == [
        "This is a sentence that goes over two cues and ends here.",
        "Mr. Smith & I left.",
        "Really?",
        "Yes, really now.",
        "[DOOR OPENS]",
        "Singing all day",
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_times_tags_and_line_ends_stay(end: str) -> None:
    document = SRT.replace("\n", end)
    segments = split_subtitles(document, "en")
    assert "".join(each.text for each in segments) == document
    expected = document.upper()
    for tag in ("<I>", "</I>", "<B>", "</B>"):
        expected = expected.replace(tag, tag.lower())
    assert translated(document) == expected


def test_webvtt_keeps_notes_styles_settings_and_references() -> None:
    segments = split_subtitles(VTT, "en", is_escaped=True)
    assert sentences(segments) == ["You & I are <here>.", "It is late"]
    expected = VTT.replace("You &amp; I\nare &lt;here", "YOU &amp; I\nARE &lt;HERE")
    expected = expected.replace("It is <00:03.500>late", "IT IS <00:03.500>LATE")
    assert translated(VTT, is_escaped=True) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("one <b>two<br>three</b> four", "Und eins <b>zwei<br></b> drei vier"),
        ("one <i>two <b>three</i> four", "Und <i>eins <b>zwei drei</i> vier"),
        ("one <c.red>two</c> three four", "Und <c.red>eins</c> zwei drei vier"),
    ],
)
def test_a_tag_ends_with_the_next_of_its_own_name(line: str, expected: str) -> None:
    assert translated(cue(1, line), all="Und eins zwei drei vier") == cue(1, expected)


@pytest.mark.parametrize(
    ("texts", "starts", "expected"),
    [
        (["Well, then", "we left."], [1, 2], ["Well, then we left."]),
        (["Well, then", "we left."], [1, 9], ["Well, then", "we left."]),
        (["They came.", "We left."], [1, 2], ["They came.", "We left."]),
        (["We saw Dr.", "Smith."], [1, 2], ["We saw Dr. Smith."]),
        (["Well", "- So what"], [1, 2], ["Well", "So what"]),
        (["Well", "(sighs)", "so"], [1, 2, 3], ["Well", "(sighs)", "so"]),
        (["It is", "-5 degrees."], [1, 2], ["It is -5 degrees."]),
        (["他说", "很好。"], [1, 2], ["他说很好。"]),
        ([f"word{i}" for i in range(8)], range(1, 9),
         ["word0 word1 word2 word3 word4 word5", "word6 word7"]),
        (["1999", "..."], [1, 2], []),
    ],
)  # fmt: skip
def test_cues_are_joined_where_a_sentence_goes_on(
    texts: list[str], starts: list[int], expected: list[str]
) -> None:
    document = "".join(
        cue(number, text, start)
        for number, (text, start) in enumerate(zip(texts, starts, strict=True), start=1)
    )
    assert sentences(split_subtitles(document, "en")) == expected


def test_each_line_is_a_sentence_if_lines_are_not_split() -> None:
    segments = split_subtitles(SRT, "en", splits_lines=False)
    assert sentences(segments)[:3] == [
        "This is a sentence that",
        "goes over two cues",
        "and ends here. Mr. Smith & I left.",
    ]


def test_a_cue_may_have_a_blank_line_and_a_number_as_text_in_subrip() -> None:
    document = cue(1, "One.\n\nTwo.\n3") + cue(2, "Three.")
    assert sentences(split_subtitles(document, "en")) == ["One.", "Two.", "3 Three."]


@pytest.mark.parametrize(
    ("text", "shares", "parts"),
    [
        ("Der Hund läuft schnell, aber die Katze schläft.", [0.4],
         ["Der Hund läuft schnell, ", "aber die Katze schläft."]),
        ("ja nein doch", [0.1, 0.2], ["ja ", "nein ", "doch"]),
        ("ja nein", [0.1, 0.2, 0.3], ["ja ", "nein", "", ""]),
        ("ja", [0.5], ["ja", ""]),
        ("他说他很好。", [0.9], ["他说他很", "好。"]),
    ],
)  # fmt: skip
def test_a_translation_is_divided_in_proportion(
    text: str, shares: list[float], parts: list[str]
) -> None:
    places = divided(text, shares)
    found = [text[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert found == parts


def test_a_translation_with_too_few_words_leaves_no_blank_line_in_a_cue() -> None:
    found = translated(cue(1, "one\ntwo\nthree"), all="eins zwei")
    assert found == cue(1, "eins\nzwei")
    assert translated(cue(1, "one") + cue(2, "two"), all="eins") == (
        cue(1, "eins") + cue(2, "")
    )


def test_a_sentence_without_a_translation_is_copied() -> None:
    segments = split_subtitles(cue(1, "one"), "en")
    assert [written_subtitles(each, " ") for each in segments] == [
        each.text for each in segments
    ]


def test_text_without_times_is_no_subtitles() -> None:
    for document in ("A dog runs.", "1\n2\n", "{\\an8}-->"):
        with pytest.raises(RequestError, match="must have lines of times"):
            split_subtitles(document)
    for document in ("", " \n", "WEBVTT\n"):
        assert sentences(split_subtitles(document, is_escaped=True)) == []


def times_of(document: str) -> list[str]:
    lines = re.split("\r\n|\r|\n", document)
    return [line for line in lines if TIMES.match(line)]


PIECES = [
    "00:00:01,000 --> 00:00:02,000", "00:09.5-->1:2.5", "\n", "\r\n", "\r", " ", "1",
    "a b", "Dr. ", "end. ", "<i>", "</i>", "<b", "{\\an8}", "&amp;", "&", "-", "♪",
    "他", "[", "]", "\u3000", "<v Ann>", "NOTE", "\0", "\ud83d",
]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.booleans(), st.booleans())
def test_any_text_comes_back_with_its_lines_of_times(
    pieces: list[str], is_escaped: bool, splits_lines: bool
) -> None:
    document = "00:00:00,000 --> 00:00:00,500\n" + "".join(pieces)
    segments = split_subtitles(
        document, "en", is_escaped=is_escaped, splits_lines=splits_lines
    )
    assert "".join(each.text for each in segments) == document
    for words in ("x", "Ein Wort, und noch eines mehr."):
        found = "".join(
            written_subtitles(each, words, is_escaped=is_escaped)
            if each.sentence is not None
            else each.text
            for each in segments
        )
        assert times_of(found) == times_of(document)
        for tag in ("<i>", "</i>", "<v Ann>", "{\\an8}"):
            assert found.count(tag) == document.count(tag)


@pytest.mark.parametrize(
    "row",
    [" " * 5_000, "x" + " " * 5_000 + "x", "-" * 5_000 + "1", "<a" * 2_500]
    + ["<i>a" * 1_200, "<i>a</i> " * 500, "a. " * 1_500, "A.\n" * 1_500]
    + ["{\\" * 2_500, ">" * 5_000, "a <" * 1_500 + ">", "Dr.\n" * 1_200],
    ids=range(12),
)
def test_a_row_of_hostile_text_comes_back(row: str) -> None:
    document = cue(1, row) + cue(2, "Zwei.")
    segments = split_subtitles(document, "en", is_escaped=True)
    assert "".join(each.text for each in segments) == document
    for each in segments:
        written_subtitles(each, "Ein Wort. " * 1_000, is_escaped=True)
