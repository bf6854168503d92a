"""Parts of long lines: the source of each, and whether it continues a word."""

import pytest

from transduce.decoding import translations as module
from transduce.decoding.translations import Part, encode_lines
from transduce.text.tokenizer import Tokenizer


def cut(text: str, tokenizer: Tokenizer) -> list[Part]:
    [parts] = encode_lines([(7, (text, "acht"))], tokenizer)
    return parts


def test_a_short_line_is_one_part(tokenizer: Tokenizer) -> None:
    [only] = cut("one two", tokenizer)
    assert only.source == tokenizer.encode("one two")
    assert only.prefix == tokenizer.encode("acht")
    assert (only.line, only.number, only.continues_word) == (7, 0, False)


@pytest.mark.parametrize(
    ("text", "continued"),
    [
        ("one two three four. five six! seven eight one two.", [False] * 3),
        ("zzzzzzzzzzzzzzzzzzzz", [False, True]),
        ("one two qqqqqqqqqqqqqqqqqqqq", [False, False, True, True, True]),
        # Word boundaries in Han script are unknown and not needed.
        ("中文中文中文", [False, False]),
    ],
)
def test_a_part_records_whether_it_continues_a_word(
    text: str,
    continued: list[bool],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SOURCE_TOKENS", 12)
    found = cut(text, tokenizer)
    assert [part.continues_word for part in found] == continued
    assert [part.number for part in found] == list(range(len(found)))
    assert all(0 < len(part.source) <= 12 for part in found)
    assert [bool(part.prefix) for part in found] == [True] + [False] * (len(found) - 1)
