"""Documents are split into sentences, translated, and joined again."""

import sys
from typing import Literal

import pytest
import torch

from transduce.checkpoint import Checkpoint
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS
from transduce.decoding.documents import LINKED_AT_ONCE
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, RequestError, TransduceWarning
from transduce.search_config import SearchConfig


@pytest.fixture(scope="module")
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


def test_sentences_are_translated_one_by_one(translator: Translator) -> None:
    first, second = translator.translate(["One two.", "Three four."])
    found = translator.translate_document("One two. Three four.\n\n")
    assert found == f"{first.text} {second.text}\n\n"


@pytest.mark.parametrize("format", ["srt", "vtt"])
def test_a_sentence_of_subtitles_is_translated_whole_and_divided_again(
    translator: Translator, format: Literal["srt", "vtt"]
) -> None:
    times = "00:00:0{}.000 --> 00:00:0{}.500\n"
    subtitles = (
        f"{times.format(1, 1)}One two\n\n{times.format(2, 2)}three <i>four</i>.\n"
    )
    found = translator.translate_document(subtitles, format=format)
    first, second = found.split("\n\n")
    assert first.startswith(times.format(1, 1))
    assert second.startswith(times.format(2, 2))
    assert second.endswith("\n")
    words = [each.partition("\n")[2].rstrip("\n") for each in (first, second)]
    assert (found.count("<i>"), found.count("</i>")) == (1, 1)
    plain = " ".join(words).replace("<i>", "").replace("</i>", "")
    assert plain == translator.translate("One two three four.").text


def test_each_of_many_sentences_has_its_own_translation_and_tags(
    translator: Translator,
) -> None:
    numbers = ("One", "Two", "Three", "Four", "Five")
    words = [numbers[i % 5] for i in range(LINKED_AT_ONCE + 8)]
    html = "".join(f"<p>{word}<p><b>{word} two.</b> {word} three." for word in words)
    found = translator.translate_document(html, format="html")
    alone = [
        translator.translate_document(
            f"<p>{word}<p><b>{word} two.</b> {word} three.", format="html"
        )
        for word in numbers
    ]
    assert found == "".join(alone[i % 5] for i in range(len(words)))
    assert found.count("<b>") == len(words)


def test_a_document_has_the_best_translation_whatever_their_number(
    translator: Translator,
) -> None:
    html = "<p>One <b>two</b> three."
    config = SearchConfig(beam_size=3, num_best=3)
    found = translator.translate_document(html, config, format="html")
    best = SearchConfig(beam_size=3)
    assert found == translator.translate_document(html, best, format="html")


def test_text_without_a_sentence_stays(translator: Translator) -> None:
    assert translator.translate_document(" \n5 + 5\n") == " \n5 + 5\n"
    assert translator.translate_document("") == ""


def test_sentences_in_parts_and_without_their_terms_are_quoted(
    translator: Translator,
) -> None:
    long = "one two " * 200 + "three."
    with pytest.warns(TransduceWarning) as caught:
        translator.translate_document(f"One two.\n{long}\nOne.")
    [warning] = caught
    assert str(warning.message).startswith("The sentence 'one two one two ")
    assert "…' is too long, and is translated in " in str(warning.message)
    length = SearchConfig(
        beam_size=1, min_length=MAX_ALIGNED_TOKENS, max_length=MAX_ALIGNED_TOKENS + 50
    )
    with pytest.warns(TransduceWarning) as caught:
        translator.with_glossary({"two": "paar"}).translate_document(
            "One three. One two. One.", length
        )
    [warning] = caught
    assert "in the translation of the sentence 'One two.': words" in str(
        warning.message
    )


def test_html_without_its_package_is_refused(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "transduce.text.markup", raising=False)
    monkeypatch.delitem(sys.modules, "transduce.text.html_pieces", raising=False)
    monkeypatch.setitem(sys.modules, "turbohtml", None)
    with pytest.raises(RequestError, match=r"HTML needs .*`turbohtml`.*\[serve\]"):
        translator.translate_document("<p>One two.", format="html")


def test_wrong_arguments_are_refused(translator: Translator) -> None:
    with pytest.raises(
        ConfigError, match='must be "text", "html", "srt" or "vtt", but'
    ):
        translator.translate_document("one", format="markdown")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        translator.translate_document("<p>\ud800", format="html")


def test_a_parser_is_refused(parsing_checkpoint: Checkpoint) -> None:
    parser = Translator(parsing_checkpoint, torch.device("cpu"))
    with pytest.raises(RequestError, match="this one parses"):
        parser.translate_document("One two.")
