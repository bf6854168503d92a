"""Over-long text in parts: nothing lost, nothing too long, cut where it hurts least."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.text.splitting import split_long


def count_words(texts: Sequence[str]) -> list[int]:
    """A token for each begun four characters of a word."""
    return [sum(-(-len(word) // 4) for word in text.split()) for text in texts]


SPEECH = ["他说：「你好啊你好啊。」", "然后他就走了再也没有回来。"]
CHINESE = ["一二三四五六七。", "八九十一二三！", "一二三四，五六七八。"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("short", ["short"]),
        ("a b c d e f", ["a b c d e f"]),
        ("a b c dd. e f g!", ["a b c dd.", "e f g!"]),
        ("a bb. c d? e f… g", ["a bb.", "c d?", "e f…", "g"]),
        ('He said: "a b." c d e f', ['He said: "a b."', "c d e f"]),
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
        ("I saw Dr. No. He saw J. R. too.", ["I saw Dr. No.", "He saw J. R. too."]),
        ("I saw Dr. Who. He saw me too.", ["I saw Dr. Who.", "He saw me too."]),
    ],
)
def test_text_is_cut_where_it_hurts_least(text: str, parts: list[str]) -> None:
    assert split_long(text, 6, count_words) == parts


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet='ab .,!?"。，', min_size=1, max_size=80),
    max_tokens=st.integers(1, 6),
)
def test_nothing_is_lost_and_nothing_too_long(text: str, max_tokens: int) -> None:
    parts = split_long(text, max_tokens, count_words)
    assert "".join("".join(parts).split()) == "".join(text.split())
    place = 0
    for part in parts:  # nothing is put in where there was nothing
        place = text.index(part, place) + len(part)
    assert all(count <= max_tokens for count in count_words(parts))
