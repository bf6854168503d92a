import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text import sentence_splitting as module
from transduce.text.sentence_splitting import (
    Segment,
    join_text,
    sentence_ends,
    sentences,
    split_text,
)

TEXTS = st.text(alphabet="aB .!?\n\r\t\u00a0。」<>&;'\"/-p1", max_size=60)
LANGUAGES = st.sampled_from([None, "en", "de", "fr", "zh", "ru", "th"])

# A bar is where a sentence ends.
TABLE = [
    ("de", "Er kam am 3. Mai an. |Sie ging."),
    ("de", "Das ist z. B. Er. |Gut."),
    ("de", "Wir, d. h. alle, kamen u. a. Die Stadt."),
    ("de", "Dr. Müller und Prof. Weber kamen. |Herr Dr. med. Schmidt nicht."),
    ("de", "Am 10. Oktober war es kalt."),
    ("de", "Nr. 7 ist da. |Siehe Abb. 2 auf S. 15. |Es gilt Art. 5 GG."),
    ("de", "Sie feiern das 100. Jubiläum."),
    ("de", "Das 20. Jahrhundert begann. |Er wurde 3. |Dann ging er."),
    (
        "de",
        "Ludwig XIV. regierte lange. |Er starb 1715. |Danach kam Ludwig XV.",
    ),
    ("de", "Im Jahr 1990. |Dann."),
    ("de", "Äpfel, Birnen usw. |Das reicht."),
    ("de", "Sie sagte: „Komm!“ |Er kam."),
    ("de", "„Komm!“, sagte sie. |Er kam."),
    ("de", "Der 2. Weltkrieg endete."),
    ("de", "Dipl.-Ing. Weber kam."),
    ("de", "Es kostet ca. 5 Mio. Euro. |Viel."),
    ("de", "Das war im 1. Stock. |Wo?"),
    ("de", "Er wohnt in der Hauptstr. 5. |Sie nicht."),
    ("en", "It arrived at 5 p.m. on Monday. |He left at 5 p.m. |She stayed."),
    ("en", "The U.S. Army came. |It left the U.S. |The end."),
    ("en", "Mr. J. R. R. Tolkien wrote books. |He died."),
    ("en", "See No. 5 and Fig. 3. |He said no. |She left."),
    ("en", "On Jan. 5 it was cold. |In Jan. |It was cold."),
    ("en", "Visit www.example.com. |Then leave."),
    ("en", "Yahoo! said so. |Yahoo! Inc. did."),
    ("en", "What?! |No. |Wait... |What? |Yes... maybe."),
    ("en", 'He said "Stop!" and left. |"Stop!" he said. |(It was late.) |Then.'),
    ("en", "1. First item"),
    ("en", "a. First item"),
    ("en", "John F. Kennedy spoke. |So do I. |Then he left."),
    ("en", "e.g. The Beatles, i.e. four men, vs. The Stones."),
    ("en", "Version 3.11 is out. |It is 3.5 times faster."),
    ("en", "dept. med. office"),
    ("en", "St. Peter's in St. Louis. |He lives on Main St. |He is old."),
    ("en", "Apple Inc. |The firm grew. |Martin Luther King Jr. Day is in January."),
    ("en", "Vitamin C. |The rest."),
    ("en", "He is 42. |Then."),
    ("en", "It (really!) works (!) Well."),
    ("en", "a dog runs . |it barks ."),
    ("en", "iPhones sell. |iPads too."),
    ("en", "I met Dr. Who. |They left."),
    ("en", "See pp. 5–7. |See Sec. IV and Vol. II. |Done."),
    ("en", "Hello! |:) How are you?"),
    ("fr", "M. Dupont est là. |Mme Curie aussi. |M. Le Pen non."),
    ("fr", "« Oui ! » |Elle part. |« Non ! » dit-il."),
    ("fr", "Voir p. 5 et art. 3. |Etc. |Puis il dort."),
    ("es", "El Sr. García vino. |La Sra. Pérez no. |¿Qué? |¡Sí!"),
    ("it", "Il sig. Rossi è qui. |Il dott. Bianchi no."),
    ("pt", "O Sr. Silva veio. |A Dra. Costa não."),
    ("nl", "Dhr. Jansen kwam. |Bijv. De Vries niet."),
    ("zh", "他说：“你好。”|然后走了。|真的吗？！|是的。|「好。」|她说。"),
    ("zh", "好吧……我走。|真的吗?|是的!|好"),
    ("ja", "「これは犬。」と言った。|それは猫。"),
    ("hi", "यह है। |वह गया। |डॉ. शर्मा आए।"),
    ("th", "สวัสดีครับ ผมชื่อจอห์น"),
    ("ar", "هل أنت هنا؟ |نعم. |حسنا."),
    ("hy", "Բարև։ |Ինչպես ես։"),
    ("am", "ሰላም። |እንዴት ነህ።"),
    ("ru", "Это т. е. дом. |А. С. Пушкин родился. |В 1990 г. |Потом он уехал."),
    ("pl", "Mieszka na ul. Długiej. |W 2010 r. |Potem wyjechał. |Dnia 3. maja."),
    ("cs", "Bylo to 3. května. |Karel IV. vládl."),
    ("fi", "Se oli 3. toukokuuta. |Hän tuli."),
    ("da", "Det var den 3. maj. |Han kom."),
    ("ko", "그는 집에 간다. |나는 안 해. |그래?"),
    (None, "Er kam am 3. Mai an. |She left at No. 5. |Then."),
    ("ur", "یہ ہے۔ |وہ گیا۔"),
    ("el", "Ο κ. Παπαδόπουλος ήρθε. |Έφυγε."),
    ("tr", "Dr. Yılmaz geldi. |3. Mayıs günü. |Gitti."),
    ("hu", "Május 3. napján jött. |Elment."),
    ("it", "L'art. 5 e l'ing. Rossi. |Fine."),
    (None, "It is John's. |5 men left. |She can't. |5 men can."),
    ("de", "Die Müller & Co. KG liefert und/bzw. Andere liefern. |Gut."),
    ("de", "1. Öffnen Sie die Tür. |2. Gehen Sie hinein. |3. Warten Sie."),
    ("en", "1) Open the door. |2) Walk in. |3) Wait."),
    ("ja", "分かった。|Mr. Smithです。|彼はNo. 5です。|円周率は３．１４だ。|終わり。"),
    ("zh", "１．苹果很好。|２．香蕉也好。|他来了. |我走了．|他也走了。"),
    ("pl", "Jan, ur. 5 maja 1990 r. w Krakowie. |Tak."),
]


@pytest.fixture(params=["with sentencex", "without it"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without it":
        monkeypatch.setattr(module, "_library", lambda: None)
    else:
        pytest.importorskip("sentencex")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(("language", "text"), TABLE)
def test_sentences_end_as_in_their_language(language: str | None, text: str) -> None:
    expected = [each.strip() for each in text.split("|")]
    assert sentences(split_text(text.replace("|", ""), language)) == expected


def test_the_library_recognises_abbreviations_beyond_the_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sentencex")
    text = "Seisan koki. Oy Abp. Kettu tuli."
    asked = []

    def segment(language: str, part: str) -> list[str]:
        asked.append((language, part))
        return ["Seisan koki. ", "Oy Abp. Kettu tuli."]

    monkeypatch.setattr(module, "_library", lambda: segment)
    assert sentences(split_text(text, "fi")) == ["Seisan koki.", "Oy Abp. Kettu tuli."]
    assert asked == [("fi", text)]


def test_the_library_reads_a_long_line_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def segment(_: str, part: str) -> list[str]:
        asked.append(part)
        return [part]

    monkeypatch.setattr(module, "_library", lambda: segment)
    text = "Word after word. " * 1_000
    assert sentence_ends(text, "en") == []
    assert "".join(asked).startswith(text.rstrip()[:-10])
    assert max(map(len, asked)) <= module.MAX_ASKED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("A dog.", ["A dog."]),
        ("A dog runs. It barks!", ["A dog runs.", "It barks!"]),
        ("a dog runs . it barks .", ["a dog runs .", "it barks ."]),
        ("Really? yes, really. \n\nNo.", ["Really? yes, really.", "No."]),
        ("Mr. Fox and Dr. Who met. They", ["Mr. Fox and Dr. Who met.", "They"]),
        ("Das ist z. B. Er. Gut", ["Das ist z. B. Er.", "Gut"]),
        ("Version 3.11 is out", ["Version 3.11 is out"]),
        ("one\ntwo\r\nthree", ["one", "two", "three"]),
        ("これは犬。それは猫。", ["これは犬。", "それは猫。"]),
        ("Who?! »Me.« Then", ["Who?!", "»Me.«", "Then"]),
    ],
)
def test_text_is_split_where_sentences_end(text: str, expected: list[str]) -> None:
    assert sentences(split_text(text)) == expected


def test_text_without_a_letter_is_copied() -> None:
    text = "3.14 \n--- 😀 ... !\nA 1. 2! So.\n"
    segments = split_text(text, "en")
    assert [each.text for each in segments if each.is_sentence] == ["A 1.", "So."]
    assert join_text(segments, ["x", "y"]) == "3.14 \n--- 😀 ... !\nx 2! y\n"


def test_a_line_is_one_sentence_without_splitting() -> None:
    text = " A dog. It barks.\nEin Hund. "
    segments = split_text(text, "en", splits_lines=False)
    assert sentences(segments) == ["A dog. It barks.", "Ein Hund."]
    assert join_text(segments, ["x", "y"]) == " x\ny "


def test_a_language_may_have_a_region() -> None:
    assert sentences(split_text("Am 3. Mai. Gut.", "de-AT")) == ["Am 3. Mai.", "Gut."]


@given(TEXTS, LANGUAGES)
def test_segments_concatenate_to_the_text(text: str, language: str | None) -> None:
    segments = split_text(text, language)
    assert "".join(each.text for each in segments) == text
    assert join_text(segments, sentences(segments)) == text
    assert all("\n" not in each for each in sentences(segments))


@given(TEXTS, LANGUAGES)
def test_no_sentence_begins_or_ends_with_space(text: str, language: str | None) -> None:
    for each in sentences(split_text(text, language)):
        assert each.strip() == each != ""


def test_a_copied_segment_has_no_sentence() -> None:
    assert not Segment(" ").is_sentence
