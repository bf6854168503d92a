"""A glossary finds its terms in a text."""

from pathlib import Path
from time import process_time

import pytest

from transduce.errors import DataError, RequestError
from transduce.text.glossary import Glossary, find_word, read_glossary


def found_in(text: str, terms: dict[str, str | list[str]]) -> list[str]:
    """Return the terms in a text, as they are spelt there."""
    return [text[each.start : each.end] for each in Glossary(terms).terms_in(text)]


def test_terms_are_whole_words() -> None:
    terms: dict[str, str | list[str]] = {"lamp": "Leuchte", "C++": "C++"}
    text = "lamp, lamps, clamp, lamp's C++ C+ lamp-post 3lamp lamp"
    assert found_in(text, terms) == ["lamp", "lamp", "C++", "lamp", "lamp"]


def test_a_term_may_have_a_capital_but_no_small_letter_in_its_place() -> None:
    terms: dict[str, str | list[str]] = {"lamp": "Leuchte", "Polish": "polnisch"}
    assert found_in("Lamp LAMP polish Polish", terms) == ["Lamp", "Polish"]


def test_a_term_with_the_capital_of_another_is_another() -> None:
    glossary = Glossary({"polish": "polieren", "Polish": "polnisch"})
    forms = [each.forms for each in glossary.terms_in("Polish polish")]
    assert forms == [("polnisch",), ("polieren",)]


def test_the_longest_term_at_a_place_counts_and_none_overlaps_it() -> None:
    terms: dict[str, str | list[str]] = {
        "red wine": "Rotwein", "red": "rot", "wine bar": "Weinbar",
    }  # fmt: skip
    assert found_in("red wine bar, red bar", terms) == ["red wine", "red"]


def test_terms_of_scripts_without_spaces_are_found_within_text() -> None:
    assert found_in("我们喝红酒吧。", {"红酒": "red wine"}) == ["红酒"]


def test_signs_and_emoji_beside_a_term_are_no_part_of_it() -> None:
    terms: dict[str, str | list[str]] = {"lamp": "Leuchte", "🎉": "🎊", "👩": "Frau"}
    text = "lamp🎉 lamp™ →lamp 🎉🎉 👩 👩\u200d🔬"
    assert found_in(text, terms) == ["lamp", "🎉", "lamp", "lamp", "🎉", "🎉", "👩"]


def test_the_beginning_of_a_character_is_no_term() -> None:
    # The vowel of Thai is written in one with the consonant before it.
    assert len(found_in("กกำ กก", {"กก": "k"})) == 1


def test_terms_that_begin_alike_are_not_compared_one_by_one() -> None:
    glossary = Glossary({f"the {i:05}": "das" for i in range(50_000)})
    text = "the 00000 " * 2_000
    started = process_time()
    assert len(glossary.terms_in(text)) == 2_000
    assert process_time() - started < 2  # 10 s and more if all are compared


def test_terms_and_translations_are_normalized() -> None:
    glossary = Glossary({"cafe\u0301  au lait": ["Milch\u00a0Kaffee"]})
    [found] = glossary.terms_in("café au lait")
    assert found.forms == ("Milch Kaffee",)


def test_a_kept_term_has_no_other_spelling() -> None:
    glossary = Glossary({"git": "git", "lamp": "licht"})
    [kept, other] = glossary.terms_in("git lamp")
    assert kept.is_kept
    assert kept.spellings == ("git",)
    [with_capital] = glossary.terms_in("Git")
    assert with_capital.spellings == ("Git",)
    assert other.spellings == ("licht", "Licht")


def test_a_word_is_found_where_no_longer_one_has_it() -> None:
    assert find_word("Lampen und Lampe", "Lampe") == 11
    assert find_word("Lampen", "Lampe") == -1


def test_lines_with_one_term_give_several_translations(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("lamp\tLeuchte\n\ngit\nlamp\tLeuchten\ngo \t\n", encoding="utf-8")
    terms = read_glossary(path)
    assert terms == {"lamp": ["Leuchte", "Leuchten"], "git": ["git"], "go": ["go"]}


def test_the_checksum_depends_on_terms_and_translations() -> None:
    digests = {
        Glossary(terms).digest()
        for terms in ({"a": "b"}, {"a": "c"}, {"b": "b"}, {"a": ["b", "c"]})
    }
    assert len(digests) == 4


@pytest.mark.parametrize("line", ["lamp\tLeuchte\tLampe", "\tLeuchte", "\u00ad\tx"])
def test_a_line_without_a_term_or_with_too_many_fields_is_refused(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"a\tb\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"terms\.tsv:2: a line must have a term"):
        read_glossary(path)


def test_a_file_with_spaces_in_place_of_tabs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("git \nlamp    Leuchte\n")
    with pytest.raises(DataError, match=r"tsv:2: a tab must .* 'lamp    Leuchte'"):
        read_glossary(path)
    path.write_text("git\nlamp  post\nlamp\tLeuchte\n")  # tabs are known to it
    assert read_glossary(path)["lamp post"] == ["lamp post"]


def test_a_file_without_terms_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(DataError, match="but has none"):
        read_glossary(tmp_path / "empty")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"": "x"}, "must have words"),
        ({"a": " "}, "must have words"),
        ({"a": []}, "must have a translation"),
        ({"a": [3]}, "must be strings"),
        ({"a": None}, "must be strings, but one is None"),
        ({"a": b"x"}, "must be strings, but one is b'x'"),
        ({3: "a"}, "must be strings"),
        ({"a": "\ud800"}, "half of a surrogate pair"),
        (["lamp"], "given as a dict"),
    ],
)
def test_terms_and_translations_that_are_no_words_are_refused(
    terms: object, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        Glossary(terms)  # type: ignore[arg-type] # wrong on purpose
