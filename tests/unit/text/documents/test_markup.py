import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text.documents.markup import join_html, split_html
from transduce.text.documents.running_text import Stretch, sentences

TEXTS = st.text(alphabet="aB .!?\n\r\t\u00a0。」<>&;'\"/-p", max_size=60)


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
    stretches = split_html(html)
    again = split_html(join_html(stretches, sentences(stretches)))
    tags = [each for each in stretches if each.text.startswith("<")]
    assert [each for each in again if each.text.startswith("<")] == tags


def test_a_translation_is_no_markup() -> None:
    stretches = [Stretch("<p>", is_sentence=False), Stretch("a", is_sentence=True)]
    assert join_html(stretches, ["<b> & c"]) == "<p>&lt;b&gt; &amp; c"
