"""Translations contain the terms of a glossary."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS
from transduce.decoding.search import score_pairs
from transduce.decoding.terms import (
    MAX_VARIANTS,
    _Draft,
    _likeliest_form,
    _Place,
    _Variant,
)
from transduce.decoding.translations import (
    MAX_SOURCE_TOKENS,
    Pace,
    Part,
    Translation,
)
from transduce.decoding.translator import Translator
from transduce.errors import RequestError, TransduceWarning
from transduce.metrics.scores import TargetScore
from transduce.search_config import SearchConfig
from transduce.text.glossary import Glossary, Occurrence, find_word
from transduce.text.inline_tags import units
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


def test_a_translation_tells_the_places_of_its_terms(
    translator: Translator,
) -> None:
    """The source is normalized: its spaces are single."""
    sources = ["five  two", "one\u00a0two, two", "three"]
    found = translator.with_glossary(TERMS).translate(sources)
    for source, each in zip(["five two", "one two, two", "three"], found, strict=True):
        for term in each.placed_terms:
            forms = TERMS[source[slice(*term.source)]]
            written = each.text[slice(*term.target)]
            assert source[slice(*term.source)] == term.text
            assert written in forms or written.lower() in forms
    assert found[0].placed_terms
    assert found[1].placed_terms
    assert not found[2].placed_terms
    assert not any(each.may_lack_terms for each in found)


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


def test_a_line_whose_terms_stand_already_has_one_hypothesis_as_well(
    translator: Translator,
) -> None:
    search = SearchConfig(beam_size=4, num_best=3)
    [plain] = translator.translate_stream(["one two"], search)
    with_term = translator.with_glossary({"two": plain.text.split()[0]})
    [found] = with_term.translate_stream(["one two"], search)
    assert found.hypotheses == plain.hypotheses[:1]


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
            expected[place] = "paar"
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


@pytest.mark.parametrize(
    ("text", "is_kept", "expected"),
    [
        ("Lampe fiel", False, "Leuchte fiel"),
        ("2 fielen", False, "Leuchte fielen"),
        ("Lampe fiel", True, "leuchte fiel"),
        ("lampe fiel", False, "leuchte fiel"),
    ],
)
def test_a_form_at_the_beginning_has_a_capital_unless_that_is_small_or_kept(
    text: str, is_kept: bool, expected: str
) -> None:
    term = Occurrence(start=0, end=4, forms=("leuchte",), is_kept=is_kept)
    place = _Place(term=term, start=0, end=text.index(" "), form="leuchte")
    found = Translation(text=text, score=0.0, hypotheses=())
    assert _Draft(PART, 0, "lamp", [term], found, [place]).written() == expected


def written(
    source: str, text: str, terms: dict[str, str], attended: list[int], prefix: str = ""
) -> str:
    """Return a translation, whose units attend to those of the source, with terms."""
    part = PART._replace(prefix_text=prefix)
    found = Translation(text=text, score=0.0, hypotheses=())
    draft = _Draft(part, 0, source, Glossary(terms).terms_in(source), found)
    attention = np.eye(len(units(source)) + 1, dtype=np.float32)[attended]
    draft.places = draft.missing(attention)
    return draft.written()


def test_a_term_replaces_words_with_marks_and_unlinked_words_between_them() -> None:
    terms = {"the foreign minister": "Außenminister", "fell because": "fiel, da"}
    text = "Minister für Auswärtige Dinge sprach"
    source = "the foreign minister spoke"
    assert written(source, text, terms, [2, 4, 1, 1, 3]) == "Außenminister sprach"
    assert written("it fell because", "es fiel um, weil", terms, [0, 1, 1, 3, 2]) == (
        "es fiel, da"
    )


def test_a_form_that_attention_misses_is_not_written_again() -> None:
    text, terms = "eine Leuchte fiel", {"lamp": "Leuchte"}
    assert written("a lamp fell", text, terms, [1, 0, 2]) == text


def test_an_emoji_in_the_translation_is_not_written_again() -> None:
    assert (
        written("a 🎉 fell", "eine 🎊 fiel", {"🎉": "🎊"}, [0, 1, 2]) == "eine 🎊 fiel"
    )


def test_each_place_of_a_term_has_words_of_its_own() -> None:
    text = "Leuchte und Lampe"
    terms = {"lamp": "Leuchte"}
    assert written("lamp and lamp", text, terms, [2, 1, 0]) == "Leuchte und Leuchte"


@pytest.mark.parametrize("word", ["Leuchte", "Lampe", "Lam"])
def test_a_term_that_the_prefix_translates_is_not_written_again(word: str) -> None:
    text = f"die {word} fiel, als die Lampe kam"
    source, terms = "the lamp fell when the lamp came", {"lamp": "Leuchte"}
    attended = [0, 1, 2, 7, 3, 4, 5, 6]
    assert written(source, text, terms, attended, f"die {word[:3]}") == (
        f"die {word} fiel, als die Leuchte kam"
    )


def test_a_character_of_another_word_is_no_translation_of_a_term() -> None:
    assert written("人喝酒", "wine or 酒吧 wine", {"酒": "酒"}, [3, 3, 0, 3, 2]) == (
        "wine or 酒吧 酒"
    )


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


def test_terms_are_placed_by_the_tag_of_their_line(
    tagged_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(tagged_checkpoint, "cpu").into("de")
    plain = translator.cross_attention
    first_tokens: set[int] = set()
    assert plain is not None

    def attention(
        _: Translator, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        first_tokens.update(source[0] for source in sources)
        return plain(sources, targets)

    monkeypatch.setattr(Translator, "cross_attention", attention)
    lines = [">>fr<< one two", "one two"]
    translator.with_glossary({"two": "paar"}).translate(lines, min_length=1)
    tags = map(translator.tokenizer.tag_id, (">>fr<<", ">>de<<"))
    assert first_tokens == {*tags}


def test_a_translation_longer_than_its_source_has_the_terms(
    translator: Translator,
) -> None:
    with_term = translator.with_glossary({"two": "paar"})
    found = with_term.translate("two", beam_size=1, min_length=300, max_length=400)
    assert find_word(found.text, "paar") >= 0


def test_a_translation_that_cannot_be_aligned_is_named(translator: Translator) -> None:
    length = SearchConfig(
        beam_size=1, min_length=MAX_ALIGNED_TOKENS, max_length=MAX_ALIGNED_TOKENS + 50
    )
    lines = ["one", "two"]
    plain = list(translator.translate_stream(lines, length))
    with_term = translator.with_glossary({"two": "paar"})
    with pytest.warns(TransduceWarning, match="missing in line 2: words"):
        found = list(with_term.translate_stream(lines, length))
    assert found == [plain[0], replace(plain[1], may_lack_terms=True)]


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


NUMERALS = ["one", "two", "three", "four", "five", "six", "seven"]


def num_scored(
    translator: Translator, source: str, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Translate a source whose words have five forms each; count scored variants."""
    scored = 0

    def counted(
        models: Any, sources: Sequence[Any], *rest: Any
    ) -> Iterator[tuple[int, TargetScore]]:
        nonlocal scored
        scored += len(sources)
        return score_pairs(models, sources, *rest)

    monkeypatch.setattr("transduce.decoding.terms.score_pairs", counted)
    terms = {
        word: [f"{form}{i}" for form in ("paar", "zwo", "duo", "zwei", "deux")]
        for i, word in enumerate(NUMERALS)
    }
    found = translator.with_glossary(terms).translate(source)
    for word in NUMERALS:
        forms = [each for form in terms[word] for each in (form, form.capitalize())]
        assert num_words(found.text, forms) == source.split().count(word)
    assert found.score == pytest.approx(
        translator.search.score(
            found.hypotheses[0].log_probability,
            len(found.hypotheses[0].token_log_probabilities),
        )
    )
    return scored


def test_the_work_of_a_line_does_not_grow_with_its_terms(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = num_scored(translator, "one two", monkeypatch)
    many = num_scored(translator, " ".join(NUMERALS * 8), monkeypatch)
    assert few == 2 * 5
    assert many <= MAX_VARIANTS + 1


def test_the_places_of_a_round_are_far_from_each_other() -> None:
    forms = tuple("abcde")
    term = Occurrence(start=0, end=1, forms=forms, is_kept=False)
    places = [_Place(term=term, start=i, end=i, form="a") for i in range(7)]
    places[3].term = replace(term, forms=("a",))
    found = Translation(text="", score=0.0, hypotheses=())
    rounds = _Draft(PART, 0, "", [], found, places).rounds()
    assert [[each.start for each in own] for own in rounds] == [[0, 4], [1, 5], [2, 6]]


def test_each_place_of_a_round_gets_its_own_likeliest_form() -> None:
    # The second form is likelier at the first place, and the first at the second.
    first, second = [(-3.0,), (-1.0, -1.0)], [(-1.0,), (-2.0, -2.0)]
    config = SearchConfig(length_penalty=0.0)
    for place, form in ((0, "b"), (1, "a")):
        assert _likeliest_form(("a", "b"), [first, second], place, config) == form


def test_tokens_are_cut_where_the_terms_begin(translator: Translator) -> None:
    text = "eins zwei drei zwei"
    [hypothesis] = translator.translate_stream(["one"], SearchConfig())
    tokens = translator.tokenizer.pieces(translator.tokenizer.encode_targets([text])[0])
    numbers = tuple(float(-i) for i in range(len(tokens) + 1))
    best = replace(
        hypothesis.hypotheses[0],
        text=text, tokens=tuple(tokens), token_log_probabilities=numbers,
    )  # fmt: skip
    found = Translation(text=text, score=0.0, hypotheses=(best,))
    starts = [text.index("zwei"), text.rindex("zwei")]
    cut = _Variant(text, starts).stretches(found, translator.tokenizer)
    assert [each for stretch in cut for each in stretch] == [*numbers]
    first = int(-cut[1][0])
    assert "".join(tokens[first:]).split() == ["zwei"]


def test_scoring_forms_ends_when_no_caller_waits(translator: Translator) -> None:
    class EndedError(Exception):
        """Raised between two batches."""

    steps = 0

    def on_step() -> None:
        nonlocal steps
        steps += 1
        if steps > searched:
            raise EndedError

    searched = 10**9
    list(translator.translate_stream(["two"], None, None, Pace(on_step=on_step)))
    steps, searched = 0, steps
    with_terms = translator.with_glossary({"two": ["paar", "zwo"]})
    with pytest.raises(EndedError):
        list(with_terms.translate_stream(["two"], None, None, Pace(on_step=on_step)))


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
