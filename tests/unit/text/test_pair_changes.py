"""Pairs change in case, typos and marks at the end; tags stay as they are."""

import re
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.errors import ConfigError
from transduce.text.corpus import SentencePair
from transduce.text.pair_changes import (
    KEYBOARDS,
    NEIGHBOURS,
    TYPED_LETTER,
    TextAugmentationConfig,
    in_case,
    joined,
    with_typos,
    without_end,
)


def pair(source: str, target: str) -> SentencePair:
    return SentencePair(source=source, target=target)


@pytest.mark.parametrize(
    ("text", "case", "language", "changed"),
    [
        ("Two men eat.", "upper", "en", "TWO MEN EAT."),
        ("Die Straße", "upper", "de", "DIE STRASSE"),
        ("Two MEN eat.", "lower", "en", "two men eat."),
        ("ΟΔΟΣ", "lower", "el", "οδος"),
        ("istanbul ılık", "upper", "tr", "İSTANBUL ILIK"),
        ("İSTANBUL ILIK", "lower", "tr-TR", "istanbul ılık"),
        ("istanbul", "upper", None, "ISTANBUL"),
        ("istanbul iyi", "title", "az", "İstanbul İyi"),
        ("don't (see) McDonald's well-known", "title", "en",
         "Don't (See) McDonald's Well-known"),
        ("ǆep «über» 3rd _x", "title", None, "ǅep «Über» 3rd _x"),
        ("ο Μάιος ή η ώρα της Ρεβέκκας· ἄνθρωπος, ΐδιος", "upper", "el",
         "Ο ΜΑΪΟΣ Ή Η ΩΡΑ ΤΗΣ ΡΕΒΕΚΚΑΣ· ΑΝΘΡΩΠΟΣ, ΪΔΙΟΣ"),
        ("και είναι το παιδί του", "upper", "el", "ΚΑΙ ΕΙΝΑΙ ΤΟ ΠΑΙΔΙ ΤΟΥ"),
        ("ijs op (ijzeren) wijk", "title", "nl-BE", "IJs Op (IJzeren) Wijk"),
        ("我们在这里。", "upper", "zh", "我们在这里。"),
        ("", "title", "en", ""),
    ],
)  # fmt: skip
def test_case_changes_by_the_rules_of_unicode(text, case, language, changed):
    assert in_case(text, case, language) == changed


@pytest.mark.parametrize(
    ("text", "upper", "title"),
    [
        ("a >> b << c", "A >> B << C", "A >> B << C"),
        (">>de<< two men", ">>de<< TWO MEN", ">>de<< Two Men"),
        ("<bt> two <x1>men</x1>", "<bt> TWO <x1>MEN</x1>", "<bt> Two <x1>Men</x1>"),
        ("<bt> >>fra<< a", "<bt> >>fra<< A", "<bt> >>fra<< A"),
        ("3 < 4 and 5 > 4", "3 < 4 AND 5 > 4", "3 < 4 And 5 > 4"),
    ],
)
def test_case_does_not_change_in_tags(text, upper, title):
    assert in_case(text, "upper") == upper
    assert in_case(text, "title") == title
    assert in_case(upper, "lower") == text


SENTENCE = "a young woman is climbing the rock face in 2016 with 我们 and музыка"


def test_typos_change_about_a_tenth_of_the_words_and_at_least_one():
    text = " ".join(["climbing"] * 50)
    numbers = []
    for seed in range(200):
        words = with_typos(text, Random(seed)).split()
        numbers.append(sum(word != "climbing" for word in words))
    assert min(numbers) >= 1
    assert 4.5 < sum(numbers) / len(numbers) < 5.5
    assert all(with_typos("climbing", Random(s)) != "climbing" for s in range(50))


def kind_of_typo(word: str, typed: str) -> str:
    if sorted(word) == sorted(typed):
        return "swapped"
    if len(typed) < len(word):
        assert any(word[:i] + word[i + 1 :] == typed for i in range(len(word)))
        return "dropped"
    if len(typed) > len(word):
        assert any(word[:i] + word[i] + word[i:] == typed for i in range(len(word)))
        return "doubled"
    [(letter, other)] = [(a, b) for a, b in zip(word, typed, strict=True) if a != b]
    assert other.lower() in NEIGHBOURS[letter.lower()]
    assert other.isupper() == letter.isupper()
    return "neighbour"


@pytest.mark.parametrize("word", ["climbing", "CLIMBING", "музыка"])
def test_a_typo_swaps_drops_doubles_or_mistypes_one_letter(word):
    found = [kind_of_typo(word, with_typos(word, Random(s))) for s in range(400)]
    assert {found.count(kind) > 60 for kind in set(found)} == {True}
    assert set(found) == {"swapped", "dropped", "doubled", "neighbour"}


def test_a_typo_in_hindi_keeps_vowel_signs_with_their_letters():
    letters = {"कि", "ता", "बें"}
    found = [with_typos("किताबें", Random(seed)) for seed in range(60)]
    typed = {tuple(TYPED_LETTER.findall(word)) for word in found}
    assert {("ता", "कि", "बें"), ("कि", "बें"), ("कि", "कि", "ता", "बें")} <= typed
    assert letters.issuperset(letter for word in typed for letter in word)


def test_short_words_digits_and_scripts_without_spaces_have_no_typos():
    for seed in range(100):
        typed = with_typos(SENTENCE, Random(seed))
        assert typed != SENTENCE
        for kept in (" is ", " 2016 ", " 我们 ", " in ", "a "):
            assert kept in typed
    assert with_typos("我们在这里测试 42 is", Random(1)) == "我们在这里测试 42 is"


@given(st.text(alphabet="abc <>/x1de", max_size=40), st.integers(0, 99))
def test_typos_never_touch_tags(text, seed):
    tagged = f">>deu<< <bt> climbing {text} <img/> walking"
    tags = re.compile(r">>[^<>\s]+<<|<[^<>\s]+>")
    assert tags.findall(with_typos(tagged, Random(seed))) == tags.findall(tagged)


def test_letters_of_a_keyboard_have_neighbours_on_all_sides():
    assert set(NEIGHBOURS["g"]) == set("fhtyvb")
    assert set(NEIGHBOURS["q"]) == set("wa")
    assert set("".join(map("".join, KEYBOARDS))) == NEIGHBOURS.keys()
    assert all(a in NEIGHBOURS[b] for a, around in NEIGHBOURS.items() for b in around)


@pytest.mark.parametrize(
    ("source", "target", "changed"),
    [
        ("Two men eat.", "Zwei Männer essen.", ("Two men eat", "Zwei Männer essen")),
        ("Really ?!", "Wirklich?", ("Really", "Wirklich")),
        ("好。", "Good.", ("好", "Good")),
        ("यह है।", "It is.", ("यह है", "It is")),
        ("No end", "Ohne Ende.", ("No end", "Ohne Ende.")),
        ("...", "Und.", ("...", "Und.")),
        ('He said "No."', 'Er sagte "Nein."', ('He said "No."', 'Er sagte "Nein."')),
    ],
)
def test_marks_at_the_end_are_left_out_on_both_sides_or_neither(
    source, target, changed
):
    assert without_end(pair(source, target)) == pair(*changed)


def test_signs_and_tags_without_a_word_are_changed_in_linear_time():
    begin = time.process_time()
    assert in_case("- " * 25_000 + "5", "title") == "- " * 25_000 + "5"
    unchanged = pair("." * 50_000 + "a", "a.")
    assert without_end(unchanged) == unchanged
    assert with_typos("<div>" * 20_000, Random(1)) == "<div>" * 20_000
    assert time.process_time() - begin < 5


def test_two_pairs_are_joined_with_the_space_that_their_scripts_have():
    first, second = pair("Two men eat.", "两个人吃饭。"), pair("They sit.", "他们坐。")
    assert joined(first, second) == pair(
        "Two men eat. They sit.", "两个人吃饭。他们坐。"
    )


def test_joined_pairs_have_the_tags_of_the_first_once():
    first, second = pair("<bt> >>de<< Two.", "Zwei."), pair("<bt> >>de<<Men.", "Leute.")
    assert joined(first, second) == pair("<bt> >>de<< Two. Men.", "Zwei. Leute.")
    assert joined(first, pair("<bt> >>fr<< Men.", "Hommes.")) is None
    assert joined(first, pair("Men.", "Leute.")) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"upper": 1.5}, "`augmentation.upper` must be at most 1, but is 1.5."),
        ({"typos": -0.1}, "`augmentation.typos` must be at least 0, but is -0.1."),
        ({"subword_dropout": 2.0}, "`augmentation.subword_dropout` must be at most 1"),
        ({"no_end": float("nan")}, "`augmentation.no_end` must be at least 0"),
        ({"upper": 0.6, "lower": 0.6}, "must sum up to at most 1, but do to 1.2."),
        ({"subword_alpha": 11.0}, "`augmentation.subword_alpha` must be at most 10"),
        ({"subword_sides": "left"}, '`augmentation.subword_sides` must be "both", '),
    ],
)
def test_impossible_settings_are_refused(settings, message, unchecked_types):
    with pytest.raises(ConfigError, match=re.escape(message)):
        TextAugmentationConfig(**settings)


def test_used_settings_are_those_that_are_not_zero():
    assert TextAugmentationConfig().used == {}
    config = TextAugmentationConfig(upper=0.1, title=0.2, lower=0.7)
    assert config.used == {"upper": 0.1, "title": 0.2, "lower": 0.7}
    assert config.changes_text
    assert not TextAugmentationConfig(subword_dropout=0.1).changes_text
