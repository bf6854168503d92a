"""Filters and files of synthetic text."""

import re
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.decoding.translations import TranslationHypothesis
from transduce.errors import ConfigError, DataError, TransduceWarning
from transduce.experiments.synthetic_text import (
    InputText,
    OutputRules,
    TranslatedLine,
    keep_whole_lines,
    read_translations,
    write_kept,
)


def hypothesis(text: str, *, is_finished: bool = True) -> TranslationHypothesis:
    tokens = tuple(text.split())
    return TranslationHypothesis(
        text=text,
        score=-1.0,
        log_probability=-1.0,
        tokens=tokens,
        token_log_probabilities=(-0.1,) * (len(tokens) + is_finished),
    )


@pytest.mark.parametrize(
    ("source", "found", "reason"),
    [
        ("a b c", hypothesis("x y z"), None),
        ("a " * 251, hypothesis("x y z"), "too-long"),
        ("a b c", None, "empty"),
        ("a b c", hypothesis(" "), "empty"),
        ("a b c", hypothesis("x y z", is_finished=False), "cut-off"),
        ("a b c d", hypothesis("x x x x"), "loop"),
        ("a b c", hypothesis("x x x"), None),
        ("a a a a", hypothesis("x x x x"), None),
        ("a", hypothesis("p q r s t u v"), None),  # (7 + 2) / (1 + 2) = 3
        ("a", hypothesis("p q r s t u v w"), "length-ratio"),
        ("p q r s t u v w", hypothesis("a"), "length-ratio"),
        ("a b c d", hypothesis("a b  C d"), "identical"),
        ("Berlin", hypothesis("Berlin"), None),
        ("1 2 3", hypothesis("1 2 3"), None),
        ("page 12 is", hypothesis("seite 13 ist"), "numbers"),
        ("a b", hypothesis("A" + "o" * 60), "long-word"),
        ("a b", hypothesis("die \ufffd"), "replacement-character"),
        ("a b", hypothesis("die\0 katze"), "not-text"),
        ("this is it", hypothesis("это правда так"), "wrong-script"),
        ("<b>this</b> is it", hypothesis("das ist <b>es</b>"), None),
    ],
)
def test_a_useless_translation_has_a_reason(
    source: str, found: TranslationHypothesis | None, reason: str | None
) -> None:
    ids = [ord(word[0]) for word in source.split()]
    assert OutputRules(3.0, "en", "de").broken(source, ids, found) == reason


def written(path: Path, *lines: TranslatedLine) -> None:
    path.write_text("".join(line.as_json() for line in lines), encoding="utf-8")


def line(number: int, score: float | None = -1.0, dropped=None) -> TranslatedLine:
    text = f"line {number}\u2028\r"
    return TranslatedLine(input=text, output=text, score=score, dropped=dropped)


@pytest.mark.parametrize(
    ("damage", "multiple", "kept"),
    [
        (b"", 1, 3),
        (b'{"input": "a", ', 1, 3),
        (b"\0\0\0\0", 1, 3),
        (b"", 2, 2),
        (b"", 4, 0),
    ],
)
def test_only_whole_lines_are_kept(
    tmp_path: Path, damage: bytes, multiple: int, kept: int
) -> None:
    path = tmp_path / "translations.jsonl"
    lines = [line(i) for i in range(3)]
    written(path, *lines)
    with path.open("ab") as file:
        file.write(damage)
    assert keep_whole_lines(path, multiple) == kept
    assert list(read_translations(path)) == lines[:kept]


@pytest.mark.parametrize(("multiple", "first"), [(1, 2), (2, 1)])
@pytest.mark.parametrize(
    "damage",
    [
        b"\0\0\0\0\n",
        b'{"input": 1, "output": "", "score": null, "dropped": null}\n',
        b'{"input": "a", "output": "", "score": null, "dropped": "x"}\n',
        b"null\n",
    ],
)
def test_lines_after_a_damaged_one_are_not_dropped_without_a_warning(
    tmp_path: Path, damage: bytes, multiple: int, first: int
) -> None:
    path = tmp_path / "translations.jsonl"
    written(path, *(line(i) for i in range(4)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage, *lines[2:]]))
    said = f"{path}: line 2 is damaged; lines from {first} on are translated again."
    with pytest.warns(TransduceWarning, match=re.escape(said)):
        assert keep_whole_lines(path, multiple) == first - 1


def test_a_last_line_without_its_end_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "translations.jsonl"
    written(path, line(0), line(1))
    path.write_bytes(path.read_bytes()[:-1])
    assert keep_whole_lines(path, 1) == 1


def test_the_worst_share_is_exact_also_among_equal_scores(tmp_path: Path) -> None:
    path = tmp_path / "translations.jsonl"
    scores = (-1.0, -5.0, -1.0, -1.0, -0.5, -1.0)
    written(
        path,
        line(9, None, "empty"),
        *(line(i, score) for i, score in enumerate(scores)),
        line(8, -9.0, "loop"),
    )
    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    counts = write_kept(path, inputs, outputs, drop_worst=0.5)
    assert {k: n for k, n in counts.items() if n} == {
        "kept": 3, "empty": 1, "loop": 1, "low-score": 3,
    }  # fmt: skip
    assert inputs.read_bytes() == outputs.read_bytes()
    kept = inputs.read_bytes().decode().split("\n")[:-1]
    assert kept == [line(i).input for i in (3, 4, 5)]


def test_no_file_is_written_if_all_translations_are_useless(tmp_path: Path) -> None:
    path = tmp_path / "translations.jsonl"
    written(path, line(0, None, "empty"), line(1, -1.0, "loop"), line(2, -1.0, "loop"))
    with pytest.raises(DataError, match=r"all are useless \(1 empty, 2 loop\); use"):
        write_kept(path, tmp_path / "inputs", tmp_path / "outputs")
    assert [each.name for each in tmp_path.iterdir()] == ["translations.jsonl"]


def test_a_repeated_line_is_translated_once_with_its_first_reference(
    tmp_path: Path,
) -> None:
    source, reference = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one two\n one\ttwo \n\nthree\none two\n")
    reference.write_text("1\n2\n3\n4\n5\n")
    text = InputText(paths=[source], references=[reference])
    assert [tuple(each) for each in text.lines()] == [("one two", "1"), ("three", "4")]
    figures = text.figures()
    assert (figures.lines, figures.blank, figures.repeated) == (5, 1, 2)
    alone = InputText(paths=[source]).figures()
    assert alone.digest != figures.digest
    source.write_text("Gr\u00fc\u00dfe\nGru\u0308\u00dfe\n1\n2\n3\n")
    assert InputText(paths=[source]).figures().repeated == 1


@pytest.mark.usefixtures("unchecked_types")
def test_a_callback_that_is_no_function_is_refused(tmp_path: Path) -> None:
    callback: Any = 5
    with pytest.raises(ConfigError, match="`on_progress` must be a function, but is 5"):
        transduce.back_translate("model", "my.de", tmp_path, on_progress=callback)
    with pytest.raises(ConfigError, match="`on_pairs` must be a function, but is 5"):
        transduce.clean("my.en", "my.de", tmp_path, on_pairs=callback)


@pytest.mark.parametrize(
    ("name", "kind"), [("search", "SearchConfig"), ("sampling", "SamplingConfig")]
)
@pytest.mark.usefixtures("unchecked_types")
def test_settings_of_another_kind_are_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be a {kind}, but is {{'a"):
        transduce.back_translate("model", "my.de", tmp_path / "out", **{name: {"a": 1}})
