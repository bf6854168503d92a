"""Translations contain the terms of a glossary."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.terms import _Draft, _Place
from transduce.decoding.translations import MAX_SOURCE_TOKENS, Part, Translation
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.search_config import SearchConfig
from transduce.text.glossary import Occurrence, find_word
from transduce.text.tokenizer import Tokenizer

PART = Part(line=0, number=0, source=[5], prefix=[])
TERMS = {"two": "paar", "five": ["Handvoll", "Hand"]}


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, "cpu")


def num_words(text: str, words: Sequence[str]) -> int:
    """Count the places of some words in a text."""
    count = 0
    for word in words:
        start = 0
        while (start := find_word(text, word, start)) >= 0:
            count, start = count + 1, start + len(word)
    return count


def test_each_term_is_in_the_translation_as_often_as_in_the_source(
    translator: Translator, corpus: tuple[list[str], list[str]]
) -> None:
    sources = [*corpus[0], "two two five", "Two", "five, two! five"]
    found = translator.with_glossary(TERMS).translate(sources)
    for source, each in zip(sources, found, strict=True):
        for term, forms in TERMS.items():
            forms = [forms] if isinstance(forms, str) else forms
            spellings = [*forms, *map(str.capitalize, forms)]
            wanted = num_words(source, (term, term.capitalize()))
            assert num_words(each.text, sorted({*spellings})) >= wanted


def test_lines_without_terms_are_translated_as_without_the_glossary(
    translator: Translator,
) -> None:
    sources = ["one two", "three four", "twofold one"]
    search = SearchConfig(beam_size=4, num_best=3)
    plain = list(translator.translate_stream(sources, search))
    found = list(translator.with_glossary(TERMS).translate_stream(sources, search))
    assert found[1:] == plain[1:]
    assert found[0] != plain[0]
    assert len(found[0].hypotheses) == 1


def test_a_translation_that_has_the_terms_stays(translator: Translator) -> None:
    [word, *_] = (text := translator.translate("one two").text).split()
    both = {"one two": text, "two": [word]}
    assert translator.with_glossary(both).translate("one two").text == text


@pytest.fixture
def attending_by_place(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> Translator:
    """Translator whose target tokens attend to the source tokens at their places."""

    def attention(
        _: Translator, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        return [
            np.eye(len(target), len(source), dtype=np.float32)[None]
            for source, target in zip(sources, targets, strict=True)
        ]

    monkeypatch.setattr(Translator, "cross_attention", attention)
    return translator


def test_the_word_that_attends_to_a_term_is_replaced(
    attending_by_place: Translator, corpus: tuple[list[str], list[str]]
) -> None:
    plain = attending_by_place.translate(corpus[0])
    found = attending_by_place.with_glossary({"two": "paar"}).translate(corpus[0])
    num_placed = 0
    for source, before, after in zip(corpus[0], plain, found, strict=True):
        words, expected = source.split(), before.text.split()
        num_tokens = len(before.hypotheses[0].tokens)
        if words.count("two") == 1 and len(words) == len(expected) == num_tokens:
            place = words.index("two")
            expected[place] = "paar" if place else "Paar"
            assert after.text == " ".join(expected)
            num_placed += 1
    assert num_placed > 3


@pytest.mark.parametrize(
    ("text", "places", "expected"),
    [
        ("die alte Lampe fiel", [(9, 14)], "die alte Leuchte fiel"),
        ("die „Lampe“ fiel", [(5, 10)], "die „Leuchte“ fiel"),
        ("Lampe fiel", [(0, 5)], "Leuchte fiel"),
        ("die fiel um", [(4, 4)], "die Leuchte fiel um"),
        ("die, die fiel", [(3, 3)], "die Leuchte, die fiel"),
        ("die fiel um", [(0, 0), (11, 11)], "Leuchte die fiel um Leuchte"),
        ("die Lampe fiel", [(4, 9), (9, 9)], "die Leuchte Leuchte fiel"),
        ("die Lampe fiel", [(4, 9), (10, 14)], "die Leuchte Leuchte"),
        ("die Lampe fiel", [(4, 9), (9, 14)], "die Leuchte Leuchte"),
        ("我们喝红酒吧。", [(3, 5)], "我们喝Leuchte吧。"),
    ],
)
def test_terms_replace_words_with_the_spaces_around_them(
    text: str, places: list[tuple[int, int]], expected: str
) -> None:
    term = Occurrence(start=0, end=1, forms=("Leuchte",), is_kept=False)
    own = [_Place(term=term, start=a, end=b, form="Leuchte") for a, b in places]
    draft = _Draft(
        PART, 0, "", [], Translation(text=text, score=0.0, hypotheses=()), own
    )
    assert draft.written() == expected


def test_a_mark_that_attends_to_a_term_stays() -> None:
    term = Occurrence(start=0, end=4, forms=("Leuchte",), is_kept=False)
    found = Translation(text="eine neu, obwohl", score=0.0, hypotheses=())
    draft = _Draft(PART, 0, "lamp", [term], found)
    attention = np.array([[0, 1], [0, 1], [1, 0], [0, 1]], np.float32)
    draft.places = draft.missing(attention)
    assert draft.written() == "eine neu Leuchte, obwohl"


def test_a_mark_can_be_a_term() -> None:
    term = Occurrence(start=4, end=5, forms=("!",), is_kept=False)
    found = Translation(text="da.", score=0.0, hypotheses=())
    draft = _Draft(PART, 0, "here.", [term], found)
    draft.places = draft.missing(np.eye(2, 3, dtype=np.float32))
    assert draft.written() == "da!"


def test_a_form_in_the_prefix_counts(attending_by_place: Translator) -> None:
    with_term = attending_by_place.with_glossary({"two": "acht"})
    plain = attending_by_place.translate("one two three", prefixes="eins acht")
    assert with_term.translate("one two three", prefixes="eins acht") == plain


def test_a_form_at_the_beginning_has_a_capital_unless_the_term_is_kept(
    translator: Translator,
) -> None:
    assert translator.with_glossary({"two": "paar"}).translate("two").text[0] == "P"
    assert translator.with_glossary({"two": "two"}).translate("two").text[0] == "t"


def test_a_line_does_not_depend_on_others(
    translator: Translator, corpus: tuple[list[str], list[str]]
) -> None:
    with_terms = translator.with_glossary(TERMS)
    sources = corpus[0][:12]
    together = with_terms.translate(sources)
    assert together == [with_terms.translate(each) for each in sources]


def test_several_processes_place_terms_as_one_does(
    trained_checkpoint: Checkpoint, corpus: tuple[list[str], list[str]]
) -> None:
    expected = Translator(trained_checkpoint, "cpu").with_glossary(TERMS)
    with Translator(trained_checkpoint, "cpu", num_processes=2) as several:
        found = several.with_glossary(TERMS).translate(corpus[0])
    assert found == expected.translate(corpus[0])


def test_a_prefix_stays_before_the_terms(translator: Translator) -> None:
    with_terms = translator.with_glossary(TERMS)
    found = with_terms.translate("one two three", prefixes="acht acht")
    assert found.text.startswith("acht acht")
    assert find_word(found.text, "paar", len("acht acht")) > 0


def test_long_lines_have_the_terms_of_all_their_parts(translator: Translator) -> None:
    sentence = " ".join(["one"] * 100) + " two. "
    source = sentence * (MAX_SOURCE_TOKENS // 50)
    found = translator.with_glossary({"two": "paar"}).translate(source, beam_size=1)
    assert found.num_parts > 1
    assert num_words(found.text, ("paar", "Paar")) >= found.num_parts


def test_an_ensemble_has_a_glossary_too(
    trained_checkpoint: Checkpoint, translator: Translator
) -> None:
    weights = {name: each * 0.9 for name, each in trained_checkpoint.weights.items()}
    other = replace(trained_checkpoint, weights=weights)
    both = Translator(trained_checkpoint, "cpu", other).with_glossary(TERMS)
    found = both.translate("one two three")
    assert find_word(found.text, "paar") >= 0
    scores = [each.translate("one two three").score for each in (both, translator)]
    assert scores[0] != scores[1]


def test_the_score_of_a_placed_term_is_that_of_its_translation(
    translator: Translator,
) -> None:
    found = translator.with_glossary({"two": "paar"}).translate("one two three")
    [best] = found.hypotheses
    score = translator.score("one two three", found.text)
    assert best.log_probability == pytest.approx(score.log_probability, abs=1e-4)
    expected = translator.search.score(score.log_probability, score.num_tokens)
    assert found.score == pytest.approx(expected, abs=1e-4)


def test_a_pickled_translator_keeps_its_glossary(translator: Translator) -> None:
    with_terms = translator.with_glossary(TERMS)
    other = pickle.loads(pickle.dumps(with_terms))
    assert other.translate("one two") == with_terms.translate("one two")


def test_the_likeliest_form_is_chosen(translator: Translator) -> None:
    forms = ["acht", "zwei", "sieben"]
    found = translator.with_glossary({"two": forms}).translate("two one two")
    each_alone = [translator.with_glossary({"two": form}) for form in forms]
    texts = [each.translate("two one two") for each in each_alone]
    assert found.score >= max(each.score for each in texts)


def test_samples_with_a_glossary_are_refused(translator: Translator) -> None:
    with pytest.raises(RequestError, match="drawn without one"):
        translator.with_glossary(TERMS).sample("one")


def test_a_model_without_cross_attention_is_refused(tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    config = ByteNetConfig(vocab_size=tokenizer.vocab_size, num_blocks=1, d_hidden=4)
    checkpoint = Checkpoint(
        config=config, weights=build(config).state_dict(), tokenizer=tokenizer, step=1
    )
    with pytest.raises(RequestError, match="must have cross-attention"):
        Translator(checkpoint, "cpu").with_glossary(TERMS)


def test_a_parser_is_refused(parsing_checkpoint: Checkpoint) -> None:
    with pytest.raises(RequestError, match="this one parses"):
        Translator(parsing_checkpoint, "cpu").with_glossary(TERMS)
