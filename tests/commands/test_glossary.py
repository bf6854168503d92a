"""`transduce translate --glossary` translates lines with given terms."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator, load

LINES = b"one two three\nfour\ntwo five\n"


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    path = tmp_path / "terms.tsv"
    path.write_text("two\tpaar\nfive\tHand\nfive\tHandvoll\n")
    return path


def test_lines_with_terms_are_translated_with_them(
    succeeds: Callable[..., str], model: Path, terms: Path
) -> None:
    lines = succeeds("translate", model, "--glossary", terms, stdin=LINES).splitlines()
    glossary = {"two": "paar", "five": ["Hand", "Handvoll"]}
    translator = load(model, device="cpu").with_glossary(glossary)
    found = translator.translate(LINES.decode().splitlines())
    assert lines == [each.text for each in found]
    plain = succeeds("translate", model, stdin=LINES).splitlines()
    assert [a == b for a, b in zip(lines, plain, strict=True)] == [False, True, False]


def test_a_line_with_terms_has_one_hypothesis(
    succeeds: Callable[..., str], model: Path, terms: Path
) -> None:
    options = ("--glossary", terms, "--nbest", "3", "--jsonl")
    lines = succeeds("translate", model, *options, stdin=LINES).splitlines()
    assert [len(json.loads(line)["hypotheses"]) for line in lines] == [1, 3, 1]


def test_an_output_is_resumed_only_with_the_same_glossary(
    succeeds: Callable[..., str],
    command: Callable[..., object],
    refuses: Callable[..., str],
    model: Path,
    terms: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.write_bytes(LINES)
    arguments = ("translate", model, "--input", source, "--glossary", terms)
    expected = succeeds(*arguments)

    translate_stream = Translator.translate_stream

    def stop(*arguments: Any) -> Iterator[Translation]:
        yield next(translate_stream(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate_stream", stop)
        assert command(*arguments, "--output", out).code
    before = terms.read_text()
    terms.write_text("two\tzwo\n")
    resumed = (*arguments, "--output", out, "--resume")
    assert "another glossary" in refuses(*resumed)
    terms.write_text(before)
    succeeds(*resumed)
    assert out.read_text() == expected


def test_a_damaged_glossary_is_refused_before_the_output(
    refuses: Callable[..., str], model: Path, terms: Path, tmp_path: Path
) -> None:
    terms.write_text("two\tpaar\tzwei\n")
    out = tmp_path / "out"
    options = ("--glossary", terms, "--output", out)
    said = refuses("translate", model, *options, stdin=LINES)
    assert "terms.tsv:1: a line must have a term" in said
    assert not out.exists()


def test_a_glossary_is_never_overwritten(
    refuses: Callable[..., str], model: Path, terms: Path
) -> None:
    options = ("--glossary", terms, "--output", terms, "--force")
    assert "is the same" in refuses("translate", model, *options, stdin=LINES)


def test_standard_input_cannot_be_source_and_glossary(
    refuses: Callable[..., str], model: Path
) -> None:
    assert "tandard input" in refuses("translate", model, "--glossary", "-")
