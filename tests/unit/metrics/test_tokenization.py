"""BLEU tokenizes by language and names the tokenizer."""

import sys
from collections.abc import Callable

import pytest

from transduce.errors import RequestError
from transduce.metrics.scores import (
    Tokenization,
    choose_tokenization,
    corpus_bleu,
    require_tokenizer,
    tokenizer_of,
)
from transduce.text.languages import UNSPACED_SCRIPTS

TEXTS = {
    "zh": "我们的邻居今天需要那座大房子。",
    "ja": "私は毎日図書館へ行きます。",
    "ko": "저는 매일 도서관에 갑니다.",
    "th": "ฉันไปห้องสมุดทุกวัน",
    "lo": "ຂ້ອຍໄປຫ້ອງສະໝຸດທຸກມື້",
    "km": "ខ្ញុំទៅបណ្ណាល័យរាល់ថ្ងៃ",
    "my": "ကျွန်တော်နေ့တိုင်းစာကြည့်တိုက်သွားတယ်",
    "de": "Ich gehe jeden Tag in die Bibliothek.",
    "ru": "Я хожу в библиотеку каждый день.",
}
TOKENIZERS = {
    "zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab", "th": "char", "lo": "char",
    "km": "char", "my": "char", "de": "13a", "ru": "13a",
}  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_chooses_the_tokenizer(language: str) -> None:
    never_read: list[str] = []
    chosen = choose_tokenization("auto", language, never_read)
    assert chosen == Tokenization(name=TOKENIZERS[language])


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("zh-Hant-TW", "zh"),
        ("yue", "zh"),
        ("gan", "zh"),
        ("cdo-Latn", "13a"),
        ("nod", "char"),
        ("jv-Java", "char"),
        ("jv", "13a"),
        ("ja-JP", "ja-mecab"),
        ("bo", "char"),
        ("zh-Latn", "13a"),
        ("vi", "13a"),
        ("xyz", "13a"),
    ],
)
def test_a_tag_of_any_form_chooses_the_tokenizer(tag: str, name: str) -> None:
    assert tokenizer_of(tag) == name


@pytest.mark.parametrize(
    ("script", "tag"),
    [(each.name, tag) for each in UNSPACED_SCRIPTS for tag in each.tags],
)
def test_a_script_that_the_tokenizer_cuts_is_not_scored_by_words(
    script: str, tag: str
) -> None:
    assert tokenizer_of(f"tai-{tag}") == "char", script


@pytest.mark.parametrize("language", TEXTS)
def test_the_script_chooses_the_tokenizer_of_an_unknown_language(language: str) -> None:
    chosen = choose_tokenization("auto", None, [TEXTS[language]])
    assert chosen.name == TOKENIZERS[language]
    is_usual = language in ("de", "ru")
    assert (chosen.reason == "") == is_usual
    if not is_usual:
        assert "as the references are in the script of " in str(chosen)


def test_a_given_tokenizer_is_used() -> None:
    assert choose_tokenization("intl", "zh", [TEXTS["zh"]]).name == "intl"


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_against_itself_scores_100(language: str) -> None:
    lines = [TEXTS[language]]
    tokenization = choose_tokenization("auto", language, lines)
    score = corpus_bleu(lines, lines, tokenization=tokenization)
    assert score.score == pytest.approx(100)
    assert f"|tok:{TOKENIZERS[language]}" in score.signature
    assert f", tokenizer {TOKENIZERS[language]})" in str(score)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("ja-mecab", "MeCab", "ja"), ("ko-mecab", "mecab_ko", "ko")],
)
def test_a_missing_package_is_named_with_its_extra(
    import_anew: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    extra: str,
) -> None:
    import_anew(f"sacrebleu.tokenizers.tokenizer_{name.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RequestError) as error:
        require_tokenizer(name)
    message = str(error.value)
    assert f"BLEU with the tokenizer {name} needs the package `mecab-" in message
    assert f"'.[{extra}]'" in message
    assert message.endswith("Or choose another tokenizer, such as char.")


def test_a_tokenizer_whose_model_cannot_be_fetched_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", unreachable, raising=True)
    with pytest.raises(RequestError, match="but: Name or service not known; choose"):
        require_tokenizer("flores200")
