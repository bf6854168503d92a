"""Long text is split without loss at the least harmful places."""

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.text.splitting import is_within_word, split_long


def count_words(texts: Sequence[str]) -> list[int]:
    """Count one token for each four characters of a word, rounded up."""
    return [sum(-(-len(word) // 4) for word in text.split()) for text in texts]


def count_letters(texts: Sequence[str]) -> list[int]:
    return [len(text.replace(" ", "")) for text in texts]


SPEECH = ["他说：「你好啊你好啊。」", "然后他就走了再也没有回来。"]
CHINESE = ["一二三四五六七。", "八九十一二三！", "一二三四，五六七八。"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("short", ["short"]),
        ("a b c d e f", ["a b c d e f"]),
        ("a b c dd. e f g!", ["a b c dd.", "e f g!"]),
        ("a bb. c d? e f… g", ["a bb.", "c d?", "e f…", "g"]),
        ('He said: "a b." C d e f', ['He said: "a b."', "C d e f"]),
        ("a b, c d; e f: g h", ["a b, c d; e f:", "g h"]),
        ("a b c d e f g h i", ["a b c d e f", "g h i"]),
        (
            "aaaabbbbccccddddeeeeffffggg",
            ["aaaabb", "bbcccc", "ddddee", "eeffff", "ggg"],
        ),
        ("一二三四五六七。八九十一二三！一二三四，五六七八。", CHINESE),
        ("一，二，三，四，五，六，七，八", ["一，二，三，四，五，六，七，八"]),
        ("他说：「你好啊你好啊。」然后他就走了再也没有回来。", SPEECH),
        ("ab. " * 9, ["ab."] * 9),
        ("I saw Dr. Who. He saw me too.", ["I saw Dr. Who.", "He saw me too."]),
    ],
)
def test_text_is_cut_at_the_least_harmful_places(text: str, parts: list[str]) -> None:
    assert split_long(text, 6, count_words) == parts


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet='ab .,!?"。，', min_size=1, max_size=80),
    max_tokens=st.integers(1, 6),
)
def test_no_text_is_lost_and_no_part_is_too_long(text: str, max_tokens: int) -> None:
    parts = split_long(text, max_tokens, count_words)
    assert "".join("".join(parts).split()) == "".join(text.split())
    place = 0
    for part in parts:  # no space is added where there was none
        place = text.index(part, place) + len(part)
    assert all(count <= max_tokens for count in count_words(parts))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("กำลังเดินทางไปที่บ้าน", ["กำลัง", "เดิน", "ทางไป", "ที่", "บ้าน"]),
        ("e\u0301" * 4, ["e\u0301" * 2, "e\u0301" * 2]),
        ("きょうはチャンス", ["きょうは", "チャンス"]),
    ],
)
def test_no_letter_is_separated_from_its_marks(text: str, parts: list[str]) -> None:
    assert "".join(split_long(text, 5, count_letters)) == text
    for part in split_long(text, 5, count_letters)[1:]:
        assert unicodedata.category(part[0]) != "Mn"
    assert split_long(text, 5, count_letters) == parts


def test_a_text_may_begin_with_characters_of_no_tokens() -> None:
    def count_seen(texts: Sequence[str]) -> list[int]:
        return [len(text.replace("\u200b", "")) for text in texts]

    assert split_long("\u200b\u200babcd", 2, count_seen) == ["\u200b\u200bab", "cd"]


@pytest.mark.parametrize(
    ("text", "place", "is_within"),
    [
        ("hello", 2, True),
        ("hello you", 6, False),
        ("привет", 3, True),
        ("我们走", 1, False),
        ("ภาษาไทย", 4, False),
        ("ភាសាខ្មែរ", 4, False),
    ],
)
def test_a_cut_within_a_spaced_word_is_recognized(
    text: str, place: int, is_within: bool
) -> None:
    assert is_within_word(text, place) is is_within


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("他已经来了！？我们走了吧。", ["他已经来了！？", "我们走了吧。"]),
        ("“他已经来了。”我们走吧。", ["“他已经来了。”", "我们走吧。"]),
        ("「はい。」と言った。だめ。", ["「はい。」と言った。", "だめ。"]),
        ("彼は何も食べた｡私は飲んだ", ["彼は何も食べた｡", "私は飲んだ"]),
        ("円周率は３．１４｡二は二だ", ["円周率は３．１４｡", "二は二だ"]),
        ("他走了……我们也走了——再见", ["他走了……我们也走了——", "再见"]),
        ("မြန်မာစာ။ဟုတ်ကဲ့။", ["မြန်မာစာ။", "ဟုတ်ကဲ့။"]),
        ("मैं जाता हूँ। वह आता है।", ["मैं जाता हूँ।", "वह आता है।"]),
        ("هل هو هنا الآن؟ نعم هو", ["هل هو هنا الآن؟", "نعم هو"]),
    ],
)
def test_sentence_ends_of_other_scripts_are_recognized(
    text: str, parts: list[str]
) -> None:
    assert split_long(text, 12, count_letters) == parts


@pytest.mark.parametrize(
    ("language", "text", "parts"),
    [
        (
            "de",
            "Er kam am 3. Mai an. Sie blieb.",
            ["Er kam am 3. Mai an.", "Sie blieb."],
        ),
        (
            None,
            "Er kam am 3. Mai an. Sie blieb.",
            ["Er kam am 3. Mai an.", "Sie blieb."],
        ),
        ("de-AT", "Am 5. Tag, z. B. heute. Ja.", ["Am 5. Tag, z. B. heute.", "Ja."]),
        (
            "en",
            "It is No. 5 of Fig. 3. He left.",
            ["It is No. 5 of Fig. 3.", "He left."],
        ),
        ("fr", "M. Petit et Mme. Roy. Il rit.", ["M. Petit et Mme. Roy.", "Il rit."]),
        ("en", "I saw J. R. Brown. He left me.", ["I saw J. R. Brown.", "He left me."]),
        (
            "ja",
            "「はい。」と言った。だめだめだめ。",
            ["「はい。」と言った。", "だめだめだめ。"],
        ),
    ],
)
def test_a_long_line_is_cut_where_its_language_ends_sentences(
    language: str | None, text: str, parts: list[str]
) -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [len(text) - text.count(" ") for text in texts]

    assert split_long(text, max(count(parts)), count, language) == parts
