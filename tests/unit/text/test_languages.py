"""Language tags of BCP 47 are read, compared, named and guessed."""

import pytest

from transduce.errors import ConfigError
from transduce.text.languages import (
    NAMES,
    PREFERRED,
    SCRIPTS_OF_LANGUAGE,
    UNCERTAIN_SCRIPTS,
    LanguagesConfig,
    base,
    best_match,
    canonical,
    detect_by_script,
    english_name,
    guess,
    guess_all,
    is_known,
    is_unspaced,
    require_language,
    require_language_of_files,
    script_letters,
    without_invisible,
)


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        ("EN", "en"),
        ("pt-br", "pt-BR"),
        ("zh_hans", "zh-Hans"),
        ("ZH_HANT_tw", "zh-Hant-TW"),
        ("es-419", "es-419"),
        ("sl-ROZAJ-biske-1994", "sl-rozaj-biske-1994"),
        ("de-ch-1996-u-CO-phonebk-x-Mine", "de-CH-1996-u-co-phonebk-x-mine"),
        ("eng", "en"),
        ("deu_Latn", "de-Latn"),
        ("cmn_Hans", "zh-Hans"),
        ("zh-yue", "yue"),
        ("iw", "he"),
        ("sh", "sr-Latn"),
        ("sh-Cyrl", "sr-Cyrl"),
        ("zh-min-nan", "nan"),
        (" fr ", "fr"),
    ],
)
def test_a_tag_is_written_as_bcp_47_recommends(tag: str, written: str) -> None:
    assert canonical(tag) == written
    assert canonical(written) == written


@pytest.mark.parametrize(
    "text", ["", "e", "english", "en us", "en--us", "-en", "auto", "中文", "en.de"]
)
def test_a_malformed_tag_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a BCP 47 tag") as error:
        canonical(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("name", ["German", "Germn", "deutsch"])
def test_the_name_of_a_language_suggests_its_tag(name: str) -> None:
    with pytest.raises(ConfigError, match=f"is '{name}'; did you mean 'de'"):
        canonical(name)


def test_the_base_of_a_tag_is_its_language() -> None:
    assert [base(tag) for tag in ("pt-BR", "zh_Hans", "ger")] == ["pt", "zh", "de"]


@pytest.mark.parametrize(
    ("asked", "offered", "found"),
    [
        ("EN", ["de", "en"], "en"),
        ("en-US", ["de", "en"], "en"),
        ("pt", ["pt-BR"], "pt-BR"),
        ("pt-PT", ["en", "pt-BR"], "pt-BR"),
        ("pt-BR", ["pt", "pt-BR"], "pt-BR"),
        ("zh-Hans-CN", ["zh", "zh-Hans"], "zh-Hans"),
        ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"),
        ("zh", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("ZH_HANS", ["zh-hans"], "zh-hans"),
        ("nb", ["no"], "no"),
        ("nb", ["nn", "no"], "no"),
        ("no", ["nn", "nb"], "nb"),
        ("no-NO", ["nn", "nb"], "nb"),
        ("nn", ["nb", "nn-NO"], "nn-NO"),
        ("no", ["nn"], "nn"),
        ("eng", ["en"], "en"),
        ("mine.source", ["mine.source", "en"], "mine.source"),
        ("Mine.Source", ["mine.source"], "mine.source"),
        ("fr", ["de", "mine.source"], None),
        ("auto", ["en"], None),
        ("en", [], None),
        ("zh-TW", ["zh", "zh-Hant"], "zh-Hant"),
        ("zh-Hant", ["zh", "zh-HK"], "zh-HK"),
        ("sr-Latn-RS", ["sr", "sr-Latn"], "sr-Latn"),
        ("de-AT-1996", ["de-CH", "de", "de-AT"], "de-AT"),
        ("en-", ["en"], None),
        ("en-US-", ["en", "en-US"], None),
        ("en--us", ["en"], None),
        ("en-us-gb", ["en"], None),
        ("en_US.UTF-8", ["en"], None),
        ("mine-x.source", ["mine", "mine-x"], None),
        ("yue", ["yue-Hans", "yue-Hant"], "yue-Hant"),
        ("sr-RS", ["sr-Latn", "sr-Cyrl"], "sr-Cyrl"),
        ("pa-PK", ["pa-Guru", "pa-Arab"], "pa-Arab"),
        ("mn-CN", ["mn-Cyrl", "mn-Mong"], "mn-Mong"),
        ("sh", ["sr-Cyrl", "sr-Latn"], "sr-Latn"),
    ],
)
def test_the_nearest_offered_language_is_found(
    asked: str, offered: list[str], found: str | None
) -> None:
    assert best_match(asked, offered) == found


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("train.en", "en"),
        ("data/train.en.gz", "en"),
        ("corpus.zh-Hans", "zh-Hans"),
        ("train.zh_CN", "zh-CN"),
        ("train.pt-br.txt", "pt-BR"),
        ("europarl.de-en.en", "en"),
        ("train.tok.ja", "ja"),
        ("train.ja.tok", "ja"),
        ("flores.zho_Hant", "zh-Hant"),
        ("TRAIN.EN", "en"),
        ("train.fil", "fil"),
        ("train.txt", None),
        ("train.gz", None),
        ("train.en-fr", None),  # a pair, not the English of France
        ("train.en-pb", None),
        ("train.th-th", "th-TH"),
        ("train.ko-kr.gz", "ko-KR"),  # not a pair of Korean and Kanuri
        ("train.zh-sg", "zh-SG"),
        ("train.gl-es", None),
        ("train.in", None),
        ("train.sh", None),
        ("train.kr", None),  # mostly Korean
        ("train.src", None),
        ("model.pb", None),  # an ending of protocol buffers
        ("train.zt", None),
        ("train.ZT.gz", None),
        ("train.tgt", None),
        ("train.trees", None),
        ("my.corpus", None),
        ("train", None),
        ("en", None),
        (".en", None),
        ("en/train", None),
    ],
)
def test_a_file_ending_names_the_language(path: str, tag: str | None) -> None:
    assert guess(path) == tag


def test_files_that_disagree_name_no_language() -> None:
    assert guess_all(["a.en", "b.en.gz"]) == "en"
    assert guess_all(["a.en", "b.de"]) is None
    assert guess_all(["a.en", "b.txt"]) is None
    assert guess_all([]) is None


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("en", "English"),
        ("pt-BR", "Portuguese (Brazil)"),
        ("zh-hans", "Chinese (Simplified)"),
        ("zh-Hant-HK", "Chinese (Traditional, Hong Kong)"),
        ("de-LU", "German (LU)"),
        ("he-hira", "Hebrew (Hira)"),
        ("xyz", "xyz"),
    ],
)
def test_a_language_has_an_english_name(tag: str, name: str) -> None:
    assert english_name(tag) == name


@pytest.mark.parametrize(
    "tag", ["zh", "zh-Hant", "yue", "ja", "th", "lo", "km", "my", "bo", "ZH_cn"]
)
def test_scripts_without_spaces_are_recognized(tag: str) -> None:
    assert is_unspaced(tag)


@pytest.mark.parametrize("tag", ["en", "ko", "vi", "zh-Latn", "ja-Latn", "hi", "xyz"])
def test_scripts_with_spaces_are_recognized(tag: str) -> None:
    assert not is_unspaced(tag)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("我们的邻居今天需要那座大房子。", "zh"),
        ("私は毎日図書館へ行きます。", "ja"),
        ("カタカナ", "ja"),
        ("저는 학생입니다.", "ko"),
        ("ฉันไปโรงเรียนทุกวัน", "th"),
        ("ຂ້ອຍໄປໂຮງຮຽນ", "lo"),
        ("ខ្ញុំទៅសាលារៀន", "km"),
        ("ကျွန်တော်ကျောင်းသွားသည်", "my"),
        ("The word 世界 means world.", None),
        ("Ein Satz auf Deutsch.", None),
        ("Это предложение.", None),
        ("12.5 %", None),
        ("", None),
    ],
)
def test_a_script_identifies_the_language(text: str, tag: str | None) -> None:
    assert detect_by_script([text]) == tag


def test_a_single_line_of_another_script_does_not_decide() -> None:
    assert detect_by_script(["我们走吧。", "好的。", "OK", "他说 yes。"]) == "zh"


def test_every_preferred_code_has_a_name_and_none_is_replaced_itself() -> None:
    assert set(PREFERRED.values()) <= set(NAMES)
    assert not set(PREFERRED) & set(NAMES)
    assert is_known("de-AT")
    assert not is_known("gem")


@pytest.mark.parametrize(
    ("code", "tag", "name"),
    [
        ("zt", "zh-Hant", "Chinese (Traditional)"),
        ("PB", "pt-BR", "Portuguese (Brazil)"),
    ],
)
def test_codes_of_libretranslate_are_known(code: str, tag: str, name: str) -> None:
    assert canonical(code) == tag
    assert english_name(code) == name
    assert best_match(code, [tag[:2], tag, "de"]) == tag


def test_the_languages_of_a_run_are_kept_as_canonical_tags() -> None:
    languages = LanguagesConfig(source="EN", target="zh_hans")
    assert (languages.source, languages.target) == ("en", "zh-Hans")
    assert str(languages) == "English (en) to Chinese (Simplified) (zh-Hans)"
    assert languages.given({"source": "de", "target": None}).source == "de"
    assert str(LanguagesConfig(source="de")) == "German (de) to unknown"


def test_every_language_has_a_script_or_is_uncertain():
    without = {tag for tag in NAMES if script_letters(tag) is None}
    assert without == UNCERTAIN_SCRIPTS
    assert SCRIPTS_OF_LANGUAGE.keys() <= NAMES.keys()


@pytest.mark.parametrize(
    ("tag", "letter", "is_own"),
    [
        ("de-AT", "ß", True),
        ("zh-Hant-TW", "書", True),
        ("sr-Latn", "ж", False),
        ("ko-Kore", "한", True),
        ("ja", "ー", True),
        ("hi", "\u093f", True),  # a vowel sign
        ("ru", "a", False),
    ],
)
def test_a_script_has_its_letters_and_marks(tag, letter, is_own):
    pattern = script_letters(tag)
    assert (pattern.match(letter) is not None) == is_own


def test_an_unknown_script_has_no_letters():
    assert script_letters("en-Qaaa") is None
    assert script_letters("xx") is None


def test_a_text_of_another_language_than_the_models_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"runs/en-de: .* its source is en and here de"
    ):
        require_language("runs/en-de", "source", "en", "de")
    with pytest.raises(ConfigError, match=r"rename two\.de\.gz"):
        require_language_of_files("model", "source", "en", ["one.en", "two.de.gz"])


@pytest.mark.parametrize(
    ("known", "text_language"),
    [("en", "en"), ("pt", "pt-BR"), ("no", "nb"), ("en", None), (None, "de")],
)
def test_a_text_of_the_models_language_is_accepted(known, text_language) -> None:
    require_language("model", "source", known, text_language)


def test_files_without_a_language_in_their_name_are_accepted() -> None:
    require_language_of_files("model", "target", "de", ["lines.txt", "corpus"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("su\u00adper\u200b\u200bdog\ufeffhouse\u2060.", "superdoghouse."),
        ("\u200eC#\u200f \u202aa\u202c \u2066b\u2069 \u061c.", "C# a b ."),
        (
            "می\u200cخواهم 👩\u200d🔬 \u2764\ufe0f",
            "می\u200cخواهم 👩\u200d🔬 \u2764\ufe0f",
        ),
        ("ខ្មែរ\u200b\u200bខ្មែរ\u00ad a\u200bb", "ខ្មែរ\u200b\u200bខ្មែរ ab"),
        ("one two", "one two"),
    ],
)
def test_characters_without_meaning_are_removed(text: str, expected: str) -> None:
    assert without_invisible(text) == expected
    assert without_invisible(expected) == expected
