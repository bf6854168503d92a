"""Text is split without loss at ends of sentences, or at the least harmful places."""

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joining import join_text

from transduce.text import splitting as module
from transduce.text.inline_tags import is_within_word
from transduce.text.splitting import (
    UNSPACED_STOPS,
    Segment,
    sentences,
    split_long,
    split_text,
)

TEXTS = st.text(alphabet="aB .!?\n\r\t\u00a0。」<>&;'\"/-p1", max_size=60)
LANGUAGES = st.sampled_from([None, "en", "de", "fr", "zh", "ru", "th"])

# A bar is where a sentence ends.
TABLE = [
    ("am", "ሰላም ነው፡፡ |እንዴት ነህ? |እሺ።"),
    ("bn", "আমি যাই। |ড. রহমান এলেন।"),
    ("bo", "ང་འགྲོ། ། |ཁྱོད་ཡོང་། །"),
    ("km", "ក្រូច ចេក ។ល។ |ខ្ញុំទៅ ។ |គាត់មក។"),
    ("ta", "நான் போகிறேன். |திரு. ராமன் வந்தார். |ரூ. 500 தந்தார்."),
    ("th", "เวลา 10.30 น. ดร. สมชายไป"),
    ("ta", "இது ஒரு எண். |5 பேர் வந்தனர்."),
    ("hi", "उसने रु. ५०० दिए। |Fig. A देखें।"),
    ("mr", "पृ. ५ पहा. |तो Microsoft Inc. भारत येथे आला."),
    ("ne", "उसले रु. ५०० दियो। |Vol. २ हेर।"),
    ("bn", "পৃ. ৫ দেখুন। |Fig. ৫ দেখুন।"),
    ("vi", "TP. Hồ Chí Minh đẹp. |TS. Nam đến. |Ở Q. 1."),
    ("vi", "Anh ở Microsoft Corp. Việt Nam. |Xem approx. 5 và Vol. II."),
    ("vi", "Anh ở ABC Co., Ltd. Việt Nam. |Gặp ThS. Nam. |Hay."),
    ("vi", "Bản No. 5 hay. |Tôi ăn no. |5 người chưa ăn. |Gen. Nam đến."),
    ("vi", "Anh ăn no. |Em cũng vậy. |Tôi về ngày 5. |Mai tôi đi."),
    ("vi", "Hà Nội có 50 ca. |Trong đó 3 ca nặng. |Giá 5 mio. |Anh mua."),
    ("vi", "Đây là đột biến gen. |Nó hiếm. |Có hoa sen. |Mùa hè rất đẹp."),
    ("hi", "तारीख 5. |Mai तारीख है।"),
    ("de", "Er kam am 3. Mai an. |Sie ging."),
    ("de", "Das ist z. B. Er. |Gut."),
    ("de", "Wir, d. h. alle, kamen u. a. Die Stadt."),
    ("de", "Dr. Müller und Prof. Weber kamen. |Herr Dr. med. Schmidt nicht."),
    ("de", "Am 10. Oktober war es kalt."),
    ("de", "Sie wurde am 3. 4. 1980 geboren. |Er kam 24. 12. 99 an. |Gut."),
    ("de", "Am Fr., 3. 5., um 12. |Es endete am 1. 12. 1999. |Das war 2003."),
    ("cs", "Dne 3. 4. 1980. |Ano."),
    ("pl", "Ur. 15. 11. 1980 w Łodzi. |Tak."),
    ("fr", "MM. Dupont et Durand sont là. |Louis XIV. |Puis MM. les juges."),
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
    ("en", "It starts at 3 p.m. EST today. |It ends at 5 p.m. |Then we go."),
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
    # “ and ‘ open, unless the language or „ before them says otherwise
    ("zh", "他走了。|“好。”|她说。|她问：“谁？”|‘我！’|“是。”"),
    ("zh", "真的!|“是的!”|他说。"),
    ("ja", "彼は来た。|“はい。”|彼女は言った。"),
    (None, "他走了。|“好。”|她说。"),
    ("en", "It ended.|“Yes,” she said. |‘No!’|“Why?” |Then she left."),
    ("en", "Those are the boys’. |He said ‘stop.’ |She left."),
    ("en", "He met Dr.“Bones” there."),
    ("de", "Sie: „Ja.“ |Er: ‚Nein.‘ |Er fuhr fort.“ |Sie ging."),
    ("cs", "„Ano.“ |Odešel. |Řekl.“ |Šla."),
    ("ru", "Он сказал: „Да.“ |Она ушла. |«Нет.» |Всё."),
    (None, "Sie: „Ja.“ |Er ging.“ |Sie blieb.|“Gut.” |Er ging."),
    ("pl", "„Tak.” |Wyszedł. |„Nie.” |Koniec."),
    # so do the pointed ones
    ("de", "»Ja.« |Er ging.|»Nein.« |Sie rief.« |Gut."),
    ("de", "«Ja.» |Er ging. |›Nein.‹ |Sie rief.» |Gut."),
    ("fr", "«Oui.» |Il part.|«Non.» |Fin. » |Il dort. |« Si. » |Bien."),
    ("fi", "»Niin.» |Hän lähti. |”Ei.” |Hän tuli."),
    (None, "Han gik. |»Ja.« |Fin.|«Oui.» |Fin."),
    # abbreviations before names and numbers
    ("de", "Sie kauft bei Fa. Schulz und Fam. Meier. |Siehe Pos. 3 der Liste."),
    ("en", "See ref. 12. |Approx. 5 people read refs. 3 and 4. |He is a ref. |Bye."),
    ("nl", "Open t.e.m. 15. |Daarna niet. |Het was van Fa. Jansen."),
    ("nl", "Open t.e.m. 15 mei. |Daarna m.i.v. 3. |Zie bijl. 2."),
    ("en", "Come at 5 p.m. |2. Go home. |3. Sleep."),
    ("fr", "Voir réf. 5 des Ets. Dupont. |Fin."),
    ("sv", "Se bil. 2 och avd. 5. |Slut."),
    ("el", "Τι κάνεις; |Καλά είμαι. |Εσύ; |(Κι αυτός;) |Ναι."),
    ("el", "Βλέπε (Γεωργίου 2001; Ιωάννου 2003; Smith 2004). |Ναι."),
    ("el", "Γράψε const A = 5; B = 6; Δες."),
    ("en", "He came; I left. |Then; Now."),
    # notes, emphasis, emoji and what shows nothing belong to the sentence before them
    ("en", "It runs.[1][a] |He sits.¹² |See approx.[2] Five.† |End.[12]No."),
    ("en", "**It runs.** |_He sits._ |`Done.` Dr.* Smith came. |**Bold** end."),
    ("en", "~~No.~~ |Yes.* |They do. |**Dogs (all).** |_Cats_ too."),
    ("de", "**Wichtig!** |Dateien sichern. |Am **3.** Mai war es."),
    ("de", "**1.** Öffnen Sie die Tür."),
    ("fr", "**Vraiment ?** |Alice dort.[1] |Quoi ?[2] |Bob part."),
    ("en", "It was 1990.[1] |Bob left in 5.[2] |They stayed. |See fig. 3.[a] Bob did."),
    # but signs of code, and of numbers, are inside a sentence
    ("en", "copy *.* to the folder"),
    ("en", "a regex like .* or .+ works, as .+_ and .~ do"),
    ("en", "type `?` or `!` for help"),
    ("de", "Der `?` Operator ist gut. |Alle temp.* Dateien und ?* Namen."),
    ("en", "The macro `vec!` Rust has. |Use **!** To negate, or __.__ Bob."),
    ("en", "Take arr.[0] Then, or x = 2.² Y and arr.[1] as z."),
    ("en", "see arr.[1] for it, or foo.² here"),
    ("en", "It runs.😀 |He sits!👍🏽👨\u200d👩\u200d👧 |Done?♥\ufe0f |End.😀No."),
    ("zh", "他跑。[1]|他坐！😀|好。** |**他说**。|是。"),
    ("he", "שלום.\u200f |מה שלומך?\u200f |טוב. |\u202bכן.\u202c |\u202bלא.\u202c"),
    ("ar", "نعم.\u200f |حسنا؟\u200f |\u200fنعم."),
    ("en", "It runs.\u200b |He sits.\u00ad\ufeff |“Done.\u200e”\u2060 |End."),
    ("en", "See Dr.\u200b Smith, \u200be.g. Ann. |Yes.\u200bNo."),
    ("en", "It runs. . . |Then. . . it sits. |Well . . . maybe."),
    ("es", "¿Corre?|¡Sí!|¿Y él? |Sí.¿no?"),
    ("es", "¿Qué?|¿¡Quién!?|¡¿Yo?! |Sí.¿¡no!?"),
    # a short quotation in Chinese, Japanese or Korean is part of one sentence
    ("ja", "「雨だ。明日は晴れだ。」と彼は言った。|それは猫。"),
    ("ja", "彼は「雨だ。晴れだ！」と言った。|『はい。「いいえ。」どうぞ。』|終わり。"),
    ("ja", "｢雨だ｡晴れだ｡｣と言った｡|はい｡|彼は“雨だ。晴れだ。”と言った。"),
    ("ja", "「はい」。|「いいえ。」。|「雨だ。|晴れだ。|終わり。"),
    ("zh", "他说：“今天下雨。明天晴。”|然后走了。|“好。走吧。”|她说。"),
    ("zh", '他说："今天下雨。明天晴。"|然后走了。|"好。走吧。"|她说。|"是!"|好。'),
    ("zh", "他看了《你好！世界》。|他喜欢《加油！》这本书。|“好！”的时候。"),
    ("zh", "太好了（真的！）。|（他没来。病了。）|走吧。|“好。”|的确好。"),
    ("zh", "他说：“I came. I saw.”|然后走了。|他说：“I came. Did you?”|走。"),
    ("zh", "“好。|" + "今天下雨。|" * 30 + "明天晴。”|走吧。"),
    ("zh", "(他没来。病了。)|走吧。|他(昨天。病了!)，来了[见注。]。"),
    ("ja", "Yahoo!は良い。|彼は来た!|はい。"),
    ("ko", "그는 “비가 온다. 내일은 맑다.”라고 말했다. |그래."),
    ("ko", '그는 "비가 온다. 내일은 맑다."라고 말했다. |그래.'),
    # but not in other languages
    ("en", 'He said “I came. |I saw.” |Then "Go. |Now." |It has 5" or 3". |Yes.'),
]


@pytest.fixture(params=["with sentencex", "without it"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without it":
        monkeypatch.setattr(module, "segment_function", lambda: None)
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

    monkeypatch.setattr(module, "segment_function", lambda: segment)
    assert sentences(split_text(text, "fi")) == ["Seisan koki.", "Oy Abp. Kettu tuli."]
    assert asked == [("fi", text)]


def test_the_library_reads_a_line_with_half_of_a_surrogate_pair() -> None:
    pytest.importorskip("sentencex")
    text = "Die Welt \ud83d dort. Menschen gehen."
    assert sentences(split_text(text, "de")) == [
        "Die Welt \ud83d dort.",
        "Menschen gehen.",
    ]


def test_the_library_reads_a_long_line_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def segment(_: str, part: str) -> list[str]:
        asked.append(part)
        return [part]

    monkeypatch.setattr(module, "segment_function", lambda: segment)
    text = "Word after word. " * 1_000
    assert [each.text for each in split_text(text, "en")] == [text.strip(), " "]
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


@pytest.mark.parametrize(
    ("text", "translations", "joined"),
    [
        ("你好。我是学生。\n你呢？", "Hello.|I learn.|You?", "Hello. I learn.\nYou?"),
        ("你好。我是学生。", "はい。|そうです。", "はい。そうです。"),
        ("你好。我是学生。你呢？", "Hello.||You?", "Hello. You?"),
        ("It runs.“He said so.”", "你好。|我是。", "你好。我是。"),
        ("It runs.“He said so.”", "Er läuft.|„Ja.“", "Er läuft. „Ja.“"),
        ("It runs.  He sits.", "Er läuft.|Er sitzt.", "Er läuft.  Er sitzt."),
        ("It runs.  He sits.", "他跑。|他坐。", "他跑。他坐。"),
        ("It runs. 5! He sits. 6!", "他跑。|他坐。", "他跑。5!他坐。6!"),
        ("It runs. He sits.\nDone. ", "他跑。|5 个。|好。", "他跑。 5 个。\n好。 "),
        ("It runs. He sits.", "他跑。|Er sitzt.", "他跑。 Er sitzt."),
        ("It runs. He sits.", "Er läuft.|他坐。", "Er läuft. 他坐。"),
        ("It runs. 42", "他跑。", "他跑。42"),
        ("他跑。 42", "走る。", "走る。 42"),
        ("It runs.\tHe sits.", "他跑。|他坐。", "他跑。\t他坐。"),
        ("他跑。 他坐。", "走る。|座る。", "走る。 座る。"),
        ("走る。\u3000座る。", "He runs.|He sits.", "He runs. He sits."),
        ("走る。\u3000座る。", "他跑。|他坐。", "他跑。\u3000他坐。"),
        ("\u3000他跑。\n\u3000\u3000他坐。", "A.|B.", "\u3000A.\n\u3000\u3000B."),
        ("他跑。\u3000\u3000他坐。", "A.|B.", "A.\u3000\u3000B."),
        ("他说：“好。”“我来了。”", "“好。”|“来。”", "“好。”“来。”"),
        ("你好。5。你呢？", "Hello.|You?", "Hello. 5。 You?"),
        ("你好。5。你呢？", "はい。|君は？", "はい。5。君は？"),
        ("5。6。你好。7。", "Hello.", "5。 6。 Hello. 7。"),
        ("5。6。你好。7。", "はい。", "5。6。はい。7。"),
        ("你好。5。\n你呢？", "Hello.|You?", "Hello. 5。\nYou?"),
        ("你好。5。你呢？", "Hello.|", "Hello. 5。"),
        ("你好。5。你呢？", "|", "5。"),
    ],
)
def test_translations_of_sentences_without_space_between_are_spaced_as_needed(
    text: str, translations: str, joined: str
) -> None:
    assert join_text(split_text(text), translations.split("|")) == joined


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
    joined = join_text(segments, sentences(segments))
    # After a stop of Chinese or Japanese the text that follows decides about a space.
    has_stop = any(stop in text for stop in UNSPACED_STOPS)
    if has_stop or any(each.is_adjacent for each in segments):
        assert "".join(joined.split()) == "".join(text.split())
    else:
        assert joined == text
    assert all("\n" not in each for each in sentences(segments))


@given(TEXTS, LANGUAGES)
def test_no_sentence_begins_or_ends_with_space(text: str, language: str | None) -> None:
    for each in sentences(split_text(text, language)):
        assert each.strip() == each != ""


def test_a_copied_segment_has_no_sentence() -> None:
    assert not Segment(" ").is_sentence


def count_words(texts: Sequence[str]) -> list[int]:
    """Count one token for each four characters of a word, rounded up."""
    return [sum(-(-len(word) // 4) for word in text.split()) for text in texts]


def count_letters(texts: Sequence[str]) -> list[int]:
    return [len(text.replace(" ", "")) for text in texts]


SPEECH = ["他说：「你好啊你好啊。」", "然后他就走了再也没有回来。"]
CHINESE = ["一二三四五六七。", "八九十一二三！", "一二三四，五六七八。"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("short", ["short"]),
        ("a b c d e f", ["a b c d e f"]),
        ("a b c dd. e f g!", ["a b c dd.", "e f g!"]),
        ("a bb. c d? e f… g", ["a bb.", "c d?", "e f…", "g"]),
        ('He said: "a b." C d e f', ['He said: "a b."', "C d e f"]),
        ("a b, c d; e f: g h", ["a b, c d; e f:", "g h"]),
        ("a b c d e f g h i", ["a b c d e f", "g h i"]),
        (
            "aaaabbbbccccddddeeeeffffggg",
            ["aaaabb", "bbcccc", "ddddee", "eeffff", "ggg"],
        ),
        ("一二三四五六七。八九十一二三！一二三四，五六七八。", CHINESE),
        ("一，二，三，四，五，六，七，八", ["一，二，三，四，五，六，七，八"]),
        ("他说：「你好啊你好啊。」然后他就走了再也没有回来。", SPEECH),
        ("ab. " * 9, ["ab."] * 9),
        ("I saw Dr. Who. He saw me too.", ["I saw Dr. Who.", "He saw me too."]),
    ],
)
def test_text_is_cut_at_the_least_harmful_places(text: str, parts: list[str]) -> None:
    assert split_long(text, 6, count_words) == parts


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet='ab .,!?"。，', min_size=1, max_size=80),
    max_tokens=st.integers(1, 6),
)
def test_no_text_is_lost_and_no_part_is_too_long(text: str, max_tokens: int) -> None:
    parts = split_long(text, max_tokens, count_words)
    assert "".join("".join(parts).split()) == "".join(text.split())
    place = 0
    for part in parts:  # no space is added where there was none
        place = text.index(part, place) + len(part)
    assert all(count <= max_tokens for count in count_words(parts))
    assert parts == [text] or all(count_words(parts))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("กำลังเดินทางไปที่บ้าน", ["กำลัง", "เดิน", "ทางไป", "ที่", "บ้าน"]),
        ("e\u0301" * 4, ["e\u0301" * 2, "e\u0301" * 2]),
        ("きょうはチャンス", ["きょうは", "チャンス"]),
        ("किताबेंघर", ["किता", "बेंघर"]),  # Hindi
        ("မလူသစ်", ["မလူ", "သစ်"]),  # Burmese
        ("ང་ཁྲིམ་", ["ང་", "ཁྲིམ་"]),  # Tibetan
        ("ទៅ\u200bមកមក", ["ទៅ\u200b", "មកមក"]),  # Khmer, with a space of no width
        ("\u1112\u1161\u11ab" * 2, ["\u1112\u1161\u11ab"] * 2),  # Korean in letters
        ("ﾊﾞﾊﾟﾊﾞ", ["ﾊﾞﾊﾟ", "ﾊﾞ"]),  # narrow Kana
        ("葛\U000e0100" * 3, ["葛\U000e0100" * 2, "葛\U000e0100"]),
        ("ab🇩🇪c🇫🇷", ["ab🇩🇪c", "🇫🇷"]),
        ("abcd🇩🇪", ["abcd", "🇩🇪"]),
        ("🏴\U000e0067\U000e007f" * 2, ["🏴\U000e0067\U000e007f"] * 2),
    ],
)
def test_no_letter_is_separated_from_its_marks(text: str, parts: list[str]) -> None:
    assert "".join(split_long(text, 5, count_letters)) == text
    for part in split_long(text, 5, count_letters)[1:]:
        assert unicodedata.category(part[0]) != "Mn"
    assert split_long(text, 5, count_letters) == parts


def test_a_text_may_begin_with_characters_of_no_tokens() -> None:
    def count_seen(texts: Sequence[str]) -> list[int]:
        return [len(text.replace("\u200b", "")) for text in texts]

    assert split_long("\u200b\u200babcd", 2, count_seen) == ["\u200b\u200bab", "cd"]


@pytest.mark.parametrize("space", [" ", "  ", " \u200b "])
def test_space_beside_words_that_are_too_long_is_no_part(space: str) -> None:
    def count_seen(texts: Sequence[str]) -> list[int]:
        return [len("".join(text.replace("\u200b", "").split())) for text in texts]

    text = f"aaaaa{space}bbbbb"
    parts = split_long(text, 3, count_seen)
    assert [each.strip(" \u200b") for each in parts] == ["aaa", "aa", "bbb", "bb"]


@pytest.mark.parametrize(
    ("text", "place", "is_within"),
    [
        ("hello", 2, True),
        ("hello you", 6, False),
        ("привет", 3, True),
        ("我们走", 1, False),
        ("ภาษาไทย", 4, False),
        ("ភាសាខ្មែរ", 4, False),
    ],
)
def test_a_cut_within_a_spaced_word_is_recognized(
    text: str, place: int, is_within: bool
) -> None:
    assert is_within_word(text, place) is is_within


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("他已经来了！？我们走了吧。", ["他已经来了！？", "我们走了吧。"]),
        ("“他已经来了。”我们走吧。", ["“他已经来了。”", "我们走吧。"]),
        ("“他来了，好。我们走吧，好。”", ["“他来了，好。", "我们走吧，好。”"]),
        ("「はい。」と言った。だめ。", ["「はい。」と言った。", "だめ。"]),
        ("彼は何も食べた｡私は飲んだ", ["彼は何も食べた｡", "私は飲んだ"]),
        ("円周率は３．１４｡二は二だ", ["円周率は３．１４｡", "二は二だ"]),
        ("円は３．１４１５９、二は二だ", ["円は３．１４１５９、", "二は二だ"]),
        ("他走了……我们也走了——再见", ["他走了……我们也走了——", "再见"]),
        ("မြန်မာစာ။ဟုတ်ကဲ့။", ["မြန်မာစာ။", "ဟုတ်ကဲ့။"]),
        ("मैं जाता हूँ। वह आता है।", ["मैं जाता हूँ।", "वह आता है।"]),
        ("هل هو هنا الآن؟ نعم هو", ["هل هو هنا الآن؟", "نعم هو"]),
    ],
)
def test_sentence_ends_of_other_scripts_are_recognized(
    text: str, parts: list[str]
) -> None:
    assert split_long(text, 12, count_letters) == parts


@pytest.mark.parametrize(
    ("language", "text", "parts"),
    [
        (
            "de",
            "Er kam am 3. Mai an. Sie blieb.",
            ["Er kam am 3. Mai an.", "Sie blieb."],
        ),
        (
            None,
            "Er kam am 3. Mai an. Sie blieb.",
            ["Er kam am 3. Mai an.", "Sie blieb."],
        ),
        ("de-AT", "Am 5. Tag, z. B. heute. Ja.", ["Am 5. Tag, z. B. heute.", "Ja."]),
        (
            "en",
            "It is No. 5 of Fig. 3. He left.",
            ["It is No. 5 of Fig. 3.", "He left."],
        ),
        ("fr", "M. Petit et Mme. Roy. Il rit.", ["M. Petit et Mme. Roy.", "Il rit."]),
        ("en", "I saw J. R. Brown. He left me.", ["I saw J. R. Brown.", "He left me."]),
        (
            "ja",
            "「はい。」と言った。だめだめだめ。",
            ["「はい。」と言った。", "だめだめだめ。"],
        ),
    ],
)
def test_a_long_line_is_cut_where_its_language_ends_sentences(
    language: str | None, text: str, parts: list[str]
) -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [len(text) - text.count(" ") for text in texts]

    assert split_long(text, max(count(parts)), count, language) == parts
