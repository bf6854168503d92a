"""Rules that drop a single pair."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.cleaning_rules import (
    NAMES,
    RULES,
    CleaningConfig,
    PairRules,
    SideText,
    longest_loop,
    text_fault,
)
from transduce.errors import ConfigError
from transduce.settings import apply_assignments

LINEAR_S = 5.0
"""Seconds that 60 kB may take at most; a quadratic pattern takes longer."""
LONG_WORD = "Donaudampfschifffahrts" * 3
FAULTY = {
    "not-text": [
        (b"caf\xe9 au lait", b"Kaffee", "source: byte 4 is 0xe9"),
        ("Kaffee", b"co\0ffee", "target: byte 3 is 0x00"),
        ("Kaffee", "Kaf " * 250_001, "target: more than 1,000,000 bytes"),
    ],
    "empty": [
        ("A dog barks.", " \t", "target"),
        ("\u3000", "\u00a0", "source and target"),
    ],
    "replacement-character": [("A caf\ufffd opens.", "Es öffnet.", "source: U+FFFD")],
    "doubly-encoded-letter": [
        ("The dog is here.", "Der Hund ist Ã¼ber.", "target: U+00C3 U+00BC"),
        ("The street.", "Die StraÃŸe.", "target: U+00C3 U+0178"),
        ("It\u00e2\u20ac\u2122s a dog.", "Ein Hund.", "source: U+00E2 U+20AC"),
        ("Hello there.", "ÐŸÑ\u0080Ð¸Ð²ÐµÑ\u0082.", "target: "),
    ],
    "control-character": [("A \x07 dog.", "Ein Hund.", "source: U+0007")],
    "line-separator": [("A dog.\u2028A cat.", "Ein Hund.", "source: U+2028")],
    "markup": [
        ("A <b>dog</b> barks.", "Ein Hund bellt.", 'source: "<b>"'),
        ('See <a href="x">here</a>.', "Siehe hier.", """source: "<a href="x">\""""),
        ("Salt &amp; pepper.", "Salz und Pfeffer.", 'source: "&amp;"'),
        ("It works.", "Es l&#228;uft.", 'target: "&#228;"'),
    ],
    "url-only": [
        ("https://example.org/a/b", "Eine Seite.", "source: "),
        ("Write to us.", "<info@example.org>,", "target: "),
    ],
    "few-letters": [
        ("Twelve and more.", "12.5 % / 37.1 % = ?", "letters are 0 of 13"),
        ("*** --- !!!! a", "Ein Hund.", "source: letters are 1 of 11"),
        ("★★★★★★★", "Five stars.", "source: letters are 0 of 7"),
    ],
    "wrong-script": [
        ("Мама мыла раму.", "Мама мыла раму вчера.", "source: 0 of 12 letters"),
    ],
    "too-long": [("one two " * 101, "eins zwei", "source: 202 words")],
    "long-word": [("A ship.", f"Die {LONG_WORD}.", "target: ")],
    "identical": [
        ("The dog barks in the yard.", "the dog barks in the yard", "but for case"),
    ],
    "numbers": [
        ("It costs 17 euros.", "Es kostet 71 Euro.", "17 in the source, 71 in the tar"),
        ("7 dogs and 4 cats.", "17 Hunde und 4 Katzen.", "7 in the source, 17 in"),
        ("In 1984 it began.", "1985 begann es.", "1984 in the source, 1985"),
        ("In 84 it began.", "1985 begann es.", "84 in the source, 1985"),
        ("13 dogs came.", "25 Hunde kamen.", "13 in the source, 25"),
        ("It is 3,5 km.", "Es sind 35 km.", "3 in the source, 35"),
        ("It costs 1.99.", "Es kostet 199.", "1 in the source, 199"),
        ("It is version 1.2.", "Es ist Version 12.", "1 in the source, 12"),
        ("See page 1543.", "Siehe Seite 1000.", "1543 in the source, 1000"),
        ("In 1989 it began.", "1446 begann es.", "1989 in the source, 1446"),
        ("In 1989 it began.", "1367 begann es.", "1989 in the source, 1367"),
    ],
    "loop": [
        ("The dog barks.", "Der Hund Hund Hund Hund bellt.", '"hund" 4 times'),
        ("No.", "Nein, das ist es, das ist es, das ist es, das ist es,", " 4 times"),
    ],
}
"""Pairs, English and German, with the broken rule and a part of the reason."""
SOUND = [
    ("A dog barks.", "Ein Hund bellt."),
    ("DNA", "DNA"),
    ("Berlin", "Berlin"),
    ("New York City", "New York City"),
    ("USB 3.0", "USB 3.0"),
    ("A-1", "A-1"),
    ("Ω", "Ohm"),
    ("motor vehicle", "Kfz."),
    ("3D", "3D"),
    ("yes", "Selbstverständlich"),
    ("3 million people came.", "3.000.000 Menschen kamen."),
    ("At 3 pm on 12/31/99.", "Um 15 Uhr am 31.12.1999."),
    ("Three dogs and 2 cats.", "Drei Hunde und zwei Katzen."),
    ("Three dogs and 2 cats.", "3 Hunde und 2 Katzen."),
    ("In 84 it began.", "1984 begann es."),
    ("1,234.5 km", "1.234,5 km"),
    ("Q&XY; more", "Q&XY; mehr"),
    ("Very, very, very good.", "Sehr, sehr, sehr gut."),
    ("Ha ha ha ha ha!", "Ha ha ha ha ha ha!"),
    ("If a < b and b > c, stop.", "Wenn a < b und b > c, halt."),
    ("Johnson & Johnson; more", "Johnson & Johnson; mehr"),
    ("See www.example.org for more.", "Mehr auf www.example.org."),
    ("A caf\u00e9\u0301.", "Ein Cafe\u0301."),
    ("The SÃO PAULO office.", "Das Büro in SÃO PAULO."),
    ("\ttab", "Tab"),
    (f"See <https://example.org/{'a' * 60}>.", "Siehe dort."),
]
"""Pairs that no rule drops, short entries among them."""


def broken(
    source: str | bytes, target: str | bytes, rules: PairRules | None = None
) -> tuple[str, str]:
    """Name of the rule that a pair breaks, and the detail."""
    rules = rules or PairRules(CleaningConfig(), "en", "de")
    contents = [
        each if isinstance(each, bytes) else each.encode() for each in (source, target)
    ]
    found = rules.judge(contents[0], contents[1])
    return NAMES[found.code], found.detail


@pytest.mark.parametrize(
    ("rule", "source", "target", "detail"),
    [(rule, *each) for rule, pairs in FAULTY.items() for each in pairs],
)
def test_a_faulty_pair_is_dropped_with_its_reason(rule, source, target, detail) -> None:
    found, said = broken(source, target)
    assert found == rule
    assert detail in said


@pytest.mark.parametrize(("source", "target"), SOUND)
def test_a_sound_pair_is_kept_in_both_directions(source: str, target: str) -> None:
    assert broken(source, target) == ("kept", "")
    assert broken(target, source, PairRules(CleaningConfig(), "de", "en"))[0] == "kept"


@pytest.mark.parametrize("rule", [rule for rule in FAULTY if rule != "not-text"])
def test_a_rule_that_is_off_drops_nothing(rule: str) -> None:
    rules = PairRules(CleaningConfig(off=(rule,)), "en", "de")
    assert rule not in {broken(*each[:2], rules)[0] for each in FAULTY[rule]}


def test_every_rule_for_single_pairs_has_an_example() -> None:
    of_the_corpus = {"in-dev", "length-ratio", "low-score"}
    repeats = {"duplicate", "duplicate-source", "duplicate-target"}
    assert FAULTY.keys() == RULES.keys() - of_the_corpus - repeats


@pytest.mark.parametrize(
    ("language", "text", "rule"),
    [
        ("zh", "两个穿着衬衫的年轻人站在外面。", "kept"),
        ("zh", "我用 iPhone 和 Android 手机。", "kept"),
        ("zh", "WTO", "kept"),
        ("zh", "Two young men are outside.", "wrong-script"),
        ("zh-Latn", "Liang ge nianqing ren zai waimian.", "kept"),
        ("ja", "二人の若い男性が外にいます。", "kept"),
        ("ko", "두 젊은 남자가 밖에 있다.", "kept"),
        ("ar", "رجلان شابان في الخارج.", "kept"),
        ("ar", "שני גברים צעירים בחוץ.", "wrong-script"),
        ("he", "שני גברים צעירים בחוץ.", "kept"),
        ("fa", "دو مرد جوان بیرون هستند.", "kept"),
        ("hi", "दो युवक बाहर हैं।", "kept"),
        ("th", "ชายหนุ่มสองคนอยู่ข้างนอก", "kept"),
        ("sr", "Dva mladića su napolju.", "kept"),
        ("sr", "Два младића су напољу.", "kept"),
        ("sr-Cyrl", "Dva mladića su napolju.", "wrong-script"),
        ("el", "Δύο νέοι είναι έξω.", "kept"),
        ("vi", "Hai thanh niên ở ngoài.", "kept"),
        ("de", "Два младића су напољу.", "wrong-script"),
        ("xx", "Два младића су напољу.", "kept"),
        (None, "Два младића су напољу.", "kept"),
    ],
)
def test_the_script_of_the_language_is_required(language, text, rule) -> None:
    rules = PairRules(CleaningConfig(), "en", language)
    assert broken("Two young men are outside.", text, rules)[0] == rule


@pytest.mark.parametrize(
    ("language", "text", "detail"),
    [
        ("zh", "二人の若い男性が外にいます。", "target: 7 of 13 letters are kana"),
        ("yue", "二人の若い男性が外にいます。", "target: 7 of 13 letters are kana"),
        ("zh", "我喜欢在冬天吃日本的おでん。", ""),
        ("zh", "两个穿着衬衫的年轻人站在外面。", ""),
        (
            "ja",
            "两个穿着衬衫的年轻人站在外面,一个女人从他们身边走过。",
            "target: 25 Chinese characters without kana",
        ),
        ("ja", "独立行政法人国立高等専門学校機構", ""),
        ("ja", "iPhone 12 Pro Max 本日発売開始 Apple Store", ""),
        ("ja-Latn", "Futari no wakai dansei ga soto ni imasu.", ""),
        (
            "ko",
            "两个年轻人站在外面。",
            "target: 9 Chinese characters without Hangul",
        ),
        ("ko", "大韓民國 헌법", ""),
        ("ko", "LG電子 OLED TV", ""),
        ("nan", "Goá beh khì 學校讀冊。", ""),
    ],
)
def test_languages_with_chinese_characters_are_told_apart(
    language: str, text: str, detail: str
) -> None:
    rules = PairRules(CleaningConfig(), "en", language)
    rule = "wrong-script" if detail else "kept"
    assert broken("Two young men are outside.", text, rules) == (rule, detail)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("The town has 1.2 million people.", "这座城市有120万人。"),
        ("The town has 12,345 people.", "这座城市有1万2345人。"),
        ("It costs 350,050,000 euros.", "비용은 3억 5005만 유로이다."),
        ("The town has 1,234,567 people.", "शहर में 12,34,567 लोग हैं।"),
        ("The town has 1,234,567 people.", "শহরে ১২,৩৪,৫৬৭ জন লোক আছে।"),
        ("The town has 1,234.5 people.", "في المدينة ١٬٢٣٤٫٥ نسمة."),
        ("The town has 1,234 people.", "这座城市有１，２３４人。"),
        ("The law of 2020 is new.", "กฎหมายปี พ.ศ. 2563 ใหม่"),
        ("The law of 2020 is new.", "قانون سال ۱۳۹۹ جدید است."),
        ("The law of 12 May 2018 is new.", "平成30年5月12日の法律は新しい。"),
        ("The law of 2018 is new.", "民國107年的法律是新的。"),
        ("The town has 1.2 million people.", "Die Stadt hat 1 200 000 Menschen."),
        ("The town has 1.2 million people.", "शहर में १२ लाख लोग हैं।"),
        ("It costs 35,000,000 euros.", "কাজটির দাম ৩ কোটি ৫০ লাখ ইউরো।"),
        ("The town has 12 345 people.", "这座城市有1万2345人。"),
        ("The town has 15,000 people.", "这座城市有1.5万人。"),
        ("It costs Rs 1.2 million.", "Rs 12 Lakh is the price of the house."),
        ("It costs 15 million rupees.", "₹1.5 Crore is the price."),
        (
            "Rufen Sie bitte die Nummer 01.23.45.67.89 an.",
            "Please call the number 0123456789.",
        ),
        ("Die Akte ist 12.34.56.", "The file is 123456."),
        ("The share is 0.375.", "Der Anteil ist 37,5 %."),
    ],
)
def test_a_number_is_the_same_in_other_scripts_groups_and_calendars(
    source: str, target: str
) -> None:
    rules = PairRules(CleaningConfig())
    assert broken(source, target, rules) == ("kept", "")
    assert broken(target, source, rules) == ("kept", "")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("The town has 1.2 million people.", "这座城市有130万人。"),
        ("The town has 12,345 people.", "这座城市有1万2346人。"),
        ("The law of 2019 is new.", "平成30年の法律は新しい。"),
        ("The law of 2020 is new.", "กฎหมายปี พ.ศ. 2564 ใหม่"),
        ("The law of 2020 is new.", "กฎหมายปี พ.ศ. 1399 ใหม่"),
        ("It is 3.5 km.", "它有35公里。"),
        ("It is 12.5 km.", "它有1.25公里。"),
        ("The town has 7 people.", "1万" + "2" * 30 + "人住在这座非常美丽的城市里面。"),
    ],
)
def test_another_number_in_another_script_breaks_the_rule(
    source: str, target: str
) -> None:
    assert broken(source, target, PairRules(CleaningConfig()))[0] == "numbers"


def test_vowel_signs_are_parts_of_words_in_loops_and_identical_sides() -> None:
    rules = PairRules(CleaningConfig(), "ta", "ta")
    # Tamil words with the consonant of "pa" in a row, and Hindi words that differ only
    # in their vowel signs.
    assert broken("பாப்பா பேபி பூ", "அம்மா இங்கே", rules)[0] == "kept"
    rules = PairRules(CleaningConfig(), "hi", "mr")
    one, other = "मैं घर जा रहा हूँ अभी", "मै घर जी रही हं अभी"
    assert broken(one, other, rules)[0] == "kept"
    assert broken("கா " * 6, "அம்மா", rules)[1] == 'source: "கா" 6 times'


def test_a_mark_between_ethiopic_words_ends_a_long_word() -> None:
    rules = PairRules(CleaningConfig(max_word_characters=40), "en", "am")
    words = "ሰላም፡ለዓለም፡ሁሉ፡ይሁን፡እና፡ሕይወት፡በዚህ፡ምድር፡ላይ፡እንደገና፡ይታደስ፡ብለን፡እንመኛለን።"
    assert len(words) > 40
    source = "We wish peace to all the world, and that life on earth be new again."
    assert broken(source, words, rules)[0] == "kept"


def test_a_loop_in_text_without_spaces_is_found() -> None:
    rules = PairRules(CleaningConfig(), "en", "zh")
    found = broken("A dog is here.", "这里有一只狗" * 5, rules)
    assert found == ("loop", 'target: "这里有一只狗" 5 times')


@pytest.mark.parametrize(
    "text", ["这要花1000000元。", "他没说......", "看 zzzz ♥♥♥♥♥♥", "ราคา 5555 บาท"]
)
def test_repeated_digits_and_signs_beside_unspaced_letters_are_no_loop(text) -> None:
    assert longest_loop(SideText("target", text.encode()), max_repeats=3) is None


@pytest.mark.parametrize(
    "text",
    [
        "It costs 1,000,000,000,000 dollars.",
        "Set the address to 0.0.0.0 first.",
        "Die Quote war 1-1-1-1 für über 5x5x5x5 Meter.",
        "Siehe www.a.com/a/a/a/a für 192-000-000-000-000.",
        "这要花10,000,000,000,000元。",
    ],
)
def test_a_number_or_an_address_with_its_marks_is_no_loop(text: str) -> None:
    assert longest_loop(SideText("target", text.encode()), max_repeats=3) is None


def test_repeated_numbers_and_addresses_are_a_loop() -> None:
    for unit in ("0.0.0.0", "a@b.org", "7"):
        side = SideText("target", " ".join([unit] * 5).encode())
        assert longest_loop(side, max_repeats=3) == (5, unit)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("ha " * 8, "nein", ("loop", 'source: "ha" 8 times')),
        ("Ha ha ha ha!", "nein", ("loop", 'source: "ha" 4 times')),
        ("ha " * 8, "la " * 3 + "nein", ("loop", 'source: "ha" 8 times')),
        ("ha " * 8, "la " * 4 + "nein", ("kept", "")),
        ("ha " * 4, "la la nein", ("kept", "")),
        ("ha " * 4, "la nein", ("loop", 'source: "ha" 4 times')),
        ("no", "ja nein " * 4 + "ja ja", ("loop", 'target: "nein ja" 4 times')),
        ("ha-Ha-hA-ha", "nein", ("loop", 'source: "ha" 4 times')),
    ],
)
def test_a_loop_must_be_translated_at_least_half_as_often(
    source: str, target: str, expected: tuple[str, str]
) -> None:
    assert broken(source, target) == expected


@pytest.mark.parametrize(
    ("target", "rule"), [("UNESCO", "kept"), ("UNESCOs", "wrong-script")]
)
def test_a_short_side_may_be_in_any_script(target: str, rule: str) -> None:
    assert broken("A name.", target, PairRules(CleaningConfig(), "en", "zh"))[0] == rule


@pytest.mark.parametrize(
    ("target", "rule"), [("abcd фгхй", "kept"), ("abc фгхйк", "wrong-script")]
)
def test_half_of_the_letters_is_not_below_one_half(target: str, rule: str) -> None:
    rules = PairRules(CleaningConfig(min_script=0.5), "en", "de")
    assert broken("A name.", target, rules)[0] == rule


def test_letters_of_unspaced_scripts_count_as_half_words() -> None:
    rules = PairRules(CleaningConfig(max_words=10), "en", "zh")
    assert broken("A short one.", "一二三四五六七八九十" * 2, rules) == (
        "too-long",
        "target: 11 words",
    )


def test_sources_of_the_dev_text_are_dropped_whatever_their_spaces() -> None:
    from transduce.data.corpus_files import text_digest

    digests = frozenset([text_digest("A dog  barks. ")])
    rules = PairRules(CleaningConfig(), "en", "de", digests)
    assert broken("A dog barks.", "Ein Hund.", rules)[0] == "in-dev"
    assert broken("Ein Hund.", "A dog barks.", rules)[0] == "kept"


@pytest.mark.parametrize(
    ("assignment", "source", "target", "rule"),
    [
        ("max_words=3", "one two three four", "eins", "too-long"),
        ("max_word_characters=4", "A horse.", "Ein.", "long-word"),
        ("min_letters=0.9", "A dog, 1234.", "Hund und 1234.", "few-letters"),
        ("identical_words=0", "Berlin", "Berlin", "identical"),
        ("max_repeats=2", "No dog.", "Hund Hund.", "kept"),
        ("max_repeats=2", "No dog.", "Hund Hund Hund", "loop"),
        ("short_characters=0", "A-1-2", "Das", "few-letters"),
        ("min_script=1", "A dog.", "Ein Hund слон.", "wrong-script"),
    ],
)
def test_a_threshold_can_be_set(assignment, source, target, rule) -> None:
    config = apply_assignments(CleaningConfig(), [assignment])
    assert broken(source, target, PairRules(config, "en", "de"))[0] == rule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"off": ("loops",)}, "There is no rule `loops`; did you mean `loop`?"),
        ({"off": ("qqq",)}, "There is no rule `qqq`; known are not-text, empty, "),
        ({"off": ("not-text",)}, "The rule not-text must be applied"),
        ({"off": "loop"}, '`off` must be a list of rules, but is "loop"; put it'),
        ({"off": ("loop", 5)}, "`off[2]` must be a string, but is 5"),
        ({"off": None}, "`off` must be a list, but is None"),
        ({"max_words": "9"}, "`max_words` must be a whole number, but is '9'"),
        ({"unique_source": "no"}, "`unique_source` must be true or false, but is 'no'"),
        ({"min_letters": 1.5}, "`min_letters` must be at most 1"),
        ({"min_script": -1.0}, "`min_script` must be at least 0"),
        ({"max_repeats": 0}, "`max_repeats` must be at least 1"),
        ({"max_words": -1}, "`max_words` must be at least 0"),
        ({"ratio_factor": 0.5}, "`ratio_factor` must be at least 1"),
        ({"ratio_spreads": -2.0}, "`ratio_spreads` must be at least 0"),
    ],
)
def test_an_impossible_setting_is_refused(change, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        CleaningConfig(**change)
    assert message in str(refused.value)


def test_rules_that_are_off_can_be_a_set() -> None:
    assert CleaningConfig(off={"loop", "empty"}).off == ("empty", "loop")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_two_lines_are_judged(source: bytes, target: bytes) -> None:
    found = PairRules(CleaningConfig(), "en", "zh").judge(source, target)
    if found.code:
        assert found.detail
    else:
        assert source.decode().split()
        assert target.decode().split()
    if NAMES[found.code] == "not-text":
        side = source if found.detail.startswith("source") else target
        assert found.detail.endswith(text_fault(side))


@given(st.text(alphabet="aé 1.,<>&;:/@漢\u0301", max_size=80), st.text(max_size=80))
def test_any_two_texts_are_judged(source: str, target: str) -> None:
    rules = PairRules(CleaningConfig(max_words=9, max_word_characters=9), "en", "ja")
    broken(source.replace("\0", ""), target.encode("utf-8", "ignore"), rules)


@pytest.mark.parametrize(
    "part",
    [
        *(
            "a",
            "<a",
            "<a b",
            "&a",
            "&#1",
            "a@",
            "a@b.",
            "www.",
            "http://",
            "1.234",
            "12,",
        ),
        *("Ã¼", "字", "字a", "a ", "1 234", "-", "\u0301", "<!--", "(", "a.b", "1.234"),
    ],
)
def test_a_long_line_takes_little_time(part: str) -> None:
    text = part * (60_000 // len(part))
    config = CleaningConfig(off=("too-long", "doubly-encoded-letter", "markup"))
    started = time.process_time()
    broken(text, "Ein Hund.", PairRules(config, "en", "de"))
    broken("A dog.", text, PairRules(CleaningConfig(), "en", "zh"))
    assert time.process_time() - started < LINEAR_S
