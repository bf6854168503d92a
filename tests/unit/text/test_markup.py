import random
import re

import html5lib
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from joining import join_html

from transduce.text.inline_tags import PlacedTerm, WordLinks, links_by_place, units
from transduce.text.markup import split_html, written_html
from transduce.text.splitting import sentences

TEXTS = st.text(alphabet="aB .!?\n\r\t\u00a0。」<>&;'\"/-p", max_size=60)
INJECTION = "<script>x</script> --> ]]> \"'/><b onclick=x> &lt;i&gt; </p> <!-- & text"


def same(html: str) -> str:
    segments = split_html(html, "en")
    return join_html(segments, sentences(segments))


def require_joined(
    html: str, language: str, translations: list[str], expected: str
) -> None:
    """Check that the segments are the whole source, and how translations are joined."""
    segments = split_html(html, language)
    assert "".join(each.text for each in segments) == html
    assert join_html(segments, translations) == expected
    assert join_html(segments, sentences(segments)) == html


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>你好。我是。你呢？</p>", "<p>A. B. C.</p>"),
        ("<p>你好。<b>我是。</b>你呢？</p>", "<p>A. <b>B.</b> C.</p>"),
        (
            "<p><i>你好。</i><b><a>我是。</a></b>你</p>",
            "<p><i>A.</i> <b><a>B.</a></b> C.</p>",
        ),
        ("<p>你好。<img><b>我</b>是。你呢？</p>", "<p>A. <img><b>B</b>. C.</p>"),
        ("<p>你好。 <b>我是。</b>\n你呢？</p>", "<p>A. <b>B.</b>\nC.</p>"),
        ("<p>你好。</p><p>我是。</p>你呢？", "<p>A.</p><p>B.</p>C."),
    ],
)
def test_translations_of_sentences_without_space_between_are_spaced(
    html: str, expected: str
) -> None:
    segments = split_html(html, "zh")
    assert "".join(each.text for each in segments) == html
    assert join_html(segments, ["A.", "B.", "C."]) == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>It runs. He\nsits.\n Done.</p>", "<p>他跑。他坐。好。</p>"),
        ("<p>It runs. <b>He sits.</b> Done.</p>", "<p>他跑。<b>他坐。</b>好。</p>"),
        ("<p>It runs.</p> <p>He sits.</p> Done.", "<p>他跑。</p> <p>他坐。</p> 好。"),
        ("<p>It runs. <img> He sits.<br> Done.", "<p>他跑。 <img> 他坐。<br> 好。"),
        ("It runs. <b> He sits. </b> Done.", "他跑。<b>他坐。</b>好。"),
        (
            "It runs. <!-- c --> He sits.<wbr> Done.",
            "他跑。<!-- c -->他坐。<wbr>好。",
        ),
        (
            "It runs. <i class=x></i> He sits. <b> <img></b> Done.",
            "他跑。 <i class=x></i> 他坐。 <b> <img></b> 好。",
        ),
    ],
)
def test_translations_into_chinese_have_no_space_between_sentences(
    html: str, expected: str
) -> None:
    segments = split_html(html, "en")
    assert join_html(segments, ["他跑。", "他坐。", "好。"]) == expected
    assert join_html(segments, sentences(segments)) == html.replace("\ns", " s")


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>你好。5。你呢？</p>", "<p>A. 5。 B.</p>"),
        ("<p>你好。<b>5。</b>你呢？</p>", "<p>A. <b>5。</b> B.</p>"),
        ("<p>你好。<b>5。你</b>呢？</p>", "<p>A. <b>5。 B</b>.</p>"),
        ("<p>你好。<code>a</code>。你呢？</p>", "<p>A. <code>a</code>。 B.</p>"),
        (
            "<p>5。<i>你好。</i></p><p>你呢？<i>6。</i></p>",
            "<p>5。 <i>A.</i></p><p>B. <i>6。</i></p>",
        ),
        ("<p>你好。 <b>5。</b> 你呢？</p>", "<p>A. <b>5。</b> B.</p>"),
        ("<p>你好。</p>5。<p>你呢？</p>", "<p>A.</p>5。<p>B.</p>"),
    ],
)
def test_sentences_without_a_letter_are_spaced_as_translations(
    html: str, expected: str
) -> None:
    require_joined(html, "zh", ["A.", "B."], expected)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("It runs. <i>5!</i> <b>6!</b> Done.", "他跑。<i>5!</i><b>6!</b>他坐。"),
        ("7! It <b>runs. 8!</b> <i>Done. 9!</i>", "7!他<b>跑。8!</b><i>他坐。9!</i>"),
        ("It runs. <i>5!</i> <img> Done.", "他跑。<i>5!</i> <img> 他坐。"),
        ("<p>It runs.</p> <p>5! 6!</p> Done.", "<p>他跑。</p> <p>5! 6!</p> 他坐。"),
    ],
)
def test_sentences_without_a_letter_have_no_space_around_them_in_chinese(
    html: str, expected: str
) -> None:
    require_joined(html, "en", ["他跑。", "他坐。"], expected)


def by_words(sentence: str, translation: str, pairs: dict[str, str]) -> WordLinks:
    """Links from words of the translation to their paired source words."""
    source, target = units(sentence), units(translation)
    words = [sentence[slice(*span)] for span in source]
    return WordLinks(
        source=source,
        target=target,
        source_of=tuple(
            words.index(pairs[word]) if (word := translation[a:b]) in pairs else None
            for a, b in target
        ),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ครูซื้อ ทำ", ["ค", "รู", "ซื้", "อ", "ทำ"]),  # Thai
        ("ខ្មែរ", ["ខ្មែ", "រ"]),  # Khmer
        ("က္ကမ", ["က္က", "မ"]),  # Burmese
        ("か\u309aき葛\U000e0100城", ["か\u309a", "き", "葛\U000e0100", "城"]),
        ("1\ufe0f\u20e32!\ufe0f?", ["1\ufe0f\u20e3", "2", "!\ufe0f", "?"]),
        ("ཁྲིམས་ཡོད།", ["ཁྲི", "མ", "ས", "་", "ཡོ", "ད", "།"]),  # Tibetan
        ("\uff76\uff9e𠮷", ["\uff76\uff9e", "𠮷"]),
    ],
)
def test_combining_marks_are_in_the_unit_of_their_character(
    text: str, expected: list[str]
) -> None:
    assert [text[slice(*span)] for span in units(text)] == expected


def test_tags_do_not_part_a_vowel_sign_from_its_consonant() -> None:
    segments = split_html("<p>a <b>b</b> c</p>", "en")
    assert join_html(segments, ["ครูซื้อ"]) == "<p>ค<b>รูซื้</b>อ</p>"


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("مرحبا؟", "<b>مرحبا</b>؟"),  # Arabic
        ("سلام۔", "<b>سلام</b>۔"),  # Urdu
        ("नमस्ते।", "<b>नमस्ते</b>।"),  # Hindi
        ("ሰላም።", "<b>ሰላም</b>።"),  # Amharic
        ("Բարև։", "<b>Բարև</b>։"),  # Armenian
        ("你好？", "<b>你</b>好？"),
    ],
)
def test_the_last_mark_of_a_sentence_is_no_part_of_its_last_word(
    translation: str, expected: str
) -> None:
    segments = split_html("<b>Hello</b>?", "en")
    assert join_html(segments, [translation]) == expected


@pytest.mark.parametrize(
    ("translations", "expected"),
    [
        (["He runs.", "He sits."], "<p>He runs. He sits.</p>"),
        (["他跑。", "他坐。"], "<p>他跑。\u3000他坐。</p>"),
    ],
)
def test_a_wide_space_between_sentences_is_a_space_in_other_scripts(
    translations: list[str], expected: str
) -> None:
    segments = split_html("<p>走る。\u3000座る。</p>", "ja")
    assert join_html(segments, translations) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("<b>\u3000\u3000他</b>跑", "He runs", "<b>\u3000\u3000He</b> runs"),
        ("<b>\u3000\u3000他</b>跑", "Rennt er", "\u3000\u3000Rennt <b>er</b>"),
        (
            "<p><b>&emsp;<i>&nbsp;他</i></b>跑",
            "Rennt er",
            "<p>&emsp;&nbsp;Rennt <b><i>er</i></b>",
        ),
        ("<p><b> 他</b>跑", "Rennt er", "<p>Rennt <b> er</b>"),
        ("他<b>跑\u3000</b>", "He runs", "He <b>runs\u3000</b>"),
        ("他<b>跑\u3000</b>", "Rennt er", "<b>Rennt</b> er\u3000"),
        (
            "好。\u3000\u3000<b>\u3000他</b>跑",
            "Rennt er",
            "Gut.\u3000\u3000\u3000Rennt <b>er</b>",
        ),
    ],
)
def test_an_element_that_moves_leaves_the_indentation_in_its_place(
    html: str, translation: str, expected: str
) -> None:
    segments = split_html(html, "zh")
    source_of = (0, 1) if translation == "He runs" else (1, 0)
    links = WordLinks(
        source=units("他跑"), target=units(translation), source_of=source_of
    )
    before = ["Gut."] * (len(sentences(segments)) - 1)
    found = join_html(segments, [*before, translation], [*[None] * len(before), links])
    assert found == expected


def test_a_copied_element_is_not_found_within_a_word_before_a_vowel_sign() -> None:
    # The letter is the first of its word; the vowel sign after it is no letter.
    segments = split_html("<code>क</code> x.", "en")
    assert join_html(segments, ["कि क यह।"]) == "कि <code>क</code> यह।"


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>A &amp; B</p>", ["A & B"]),
        ("<a title=\"x > y\" href='>'>in</a>", ["in"]),
        ("1 < 2 and 3 > 2", ["1 < 2 and 3 > 2"]),
        ("<!-- no > no --> yes", ["yes"]),
        ("<SCRIPT>if (a < b) {}</Script >yes", ["yes"]),
        ("<script>no</script/>yes", ["yes"]),
        ("<script><!-- <script> </script> --></script>yes", ["yes"]),
        ("<!-->yes<!--->also", ["yesalso"]),
        ("<!-- no --!>yes", ["yes"]),
        ("<style-guide></style-guide> yes", ["yes"]),
        ("<scripty>yes</scripty>", ["yes"]),
        ("<pre>a\n<b>b</b></pre> c", ["c"]),
        ("<!doctype html><br/>x", ["x"]),
        ("x <b never closed", ["x"]),
        ("x <a href='never closed>y</a> z", ["x"]),
        ("x <!-- never closed", ["x"]),
        ("x <style> never closed", ["x"]),
        ("x<plaintext></plaintext>no", ["x"]),
        ("<![CDATA[no]]>yes", ["yes"]),
        ("<svg><text>no</text><![CDATA[no > no]]></svg>yes", ["yes"]),
        ("<math><mi>no</mi></math>yes", ["yes"]),
        ("<svg><p>broken out</p>", ["broken out"]),
        ("<svg><foreignObject>a<p>b</svg><i>c</i>", ["a", "b", "c"]),
        ("<svg><foreignObject><svg><text>no</text></svg><pre>no</pre>yes", ["yes"]),
        ("<svg><foreignObject translate=no>no<p translate=yes>yes", ["yes"]),
        ("<pre><svg><foreignObject>no</svg></pre>yes", ["yes"]),
        ("<math><annotation-xml encoding=Text/HTML>no</math>yes", ["yes"]),
        ("<math><annotation-xml encoding=MathML>no</math>yes", ["yes"]),
        ("a <svg><title>no</title><desc>no</desc></svg> b", ["a b"]),
        ("a <img alt=no title=no> b <input placeholder=no aria-label=no>", ["a b"]),
        ("<title>A &lt; B</title>", ["A < B"]),
        ("<textarea>no</textarea>yes", ["yes"]),
        ("<template><p>no</p></template>yes", ["yes"]),
        ("<noscript><p>no</p></noscript>yes", ["yes"]),
        ("<iframe><p>no</p></iframe>yes", ["yes"]),
        ("<!--[if IE]> no <![endif]-->yes", ["yes"]),
        ("<?php no ?>yes", ["yes"]),
        ("<frameset><frame></frameset>no", []),
        ("<p translate=no>no <b>no</b></p>yes", ["yes"]),
        ("<p translate=NO>no<b translate='yes'>yes</b>no</p>", ["yes"]),
        ("<div class='a notranslate b'>no</div>yes", ["yes"]),
        ("<div class='notranslated'>yes</div>", ["yes"]),
        ("<code translate=yes>yes</code>", ["yes"]),
        ("<p>3.14</p><p>... 😀</p>", []),
        ("<p>A dog\n  runs\tfast.\n</p>", ["A dog runs fast."]),
        ("<p>The <b>red</b> dog <i>ru</i>ns.</p>", ["The red dog runs."]),
        ("<p>One. <b>Two three.</b> Four</p>", ["One.", "Two three.", "Four"]),
        ("<ul><li>One<li>Two</ul>", ["One", "Two"]),
        ("One<br>two<hr>three", ["One", "two", "three"]),
        ("<td>One</td><td>Two</td>", ["One", "Two"]),
        ("<table><tr><td>One</td><td>Two</td></table>", ["One", "Two"]),
        ("Run <code>git. A</code> now. Yes.", ["Run git. A now.", "Yes."]),
        ("<code>no</code> <kbd>no</kbd>", []),
        ("<b>a<i>b</b>c</i>", ["ab", "c"]),
        ("Am 3.<b> Mai</b> kam er.", ["Am 3. Mai kam er."]),
        ("a</>b", ["ab"]),
        ("a</><b>c</b></> d<!-- x --></><i>e</i>", ["ac de"]),
        ("Ein\0 Hund. \0Ei\0ne Katze.\0\0 Tot", ["Ein Hund.", "Eine Katze.", "Tot"]),
        ("<code>Er. B\0c</code> geht. Ja\0", ["Er. Bc geht.", "Ja"]),
        ("a <span translate=no>b<q>c</span>d", ["a", "d"]),
        ("<math></br><title><b>no</title>", []),
        ("A <svg><path d='x'/><g><rect/></g></svg> dog. B", ["A dog.", "B"]),
        ("A <svg/> dog and <math><mi>no</mi><mspace/></math> b", ["A dog and b"]),
        ("A <svg a=b/>no</svg> dog", ["A dog"]),
        ("<ruby>漢<rp>(</rp><rt>no</rt><rp>)</rp>字<rt>no</rt></ruby> a", ["漢字 a"]),
        ("<ruby><rb>漢<rt>no<rb>字<rt>no</ruby> dog. B", ["漢字 dog.", "B"]),
        ("A <rt>word alone</rt> here", ["A word alone here"]),
        ("Hi <svg class=icon/></svg> you. B", ["Hi you.", "B"]),
        ("The <ruby>漢<rp>(<rt>no<rp>)</ruby> text. B", ["The 漢 text.", "B"]),
        (
            "Use<code> x </code>now, <kbd>y </kbd> or<i translate=no> </i>z.",
            ["Use x now, y or z."],
        ),
        ("<code> x</code> is <code>a<br>b<p>c</p></code>.", ["x is a b c ."]),
        ("A su&shy;per\u00addog&#8203;house&#xFEFF;.", ["A superdoghouse."]),
        ("Ein Hund.&#8203; Eine Katze.", ["Ein Hund.", "Eine Katze."]),
        ("ខ្មែរ&#8203;ខ្មែរ", ["ខ្មែរ\u200bខ្មែរ"]),
        ("ខ្មែរ&rlm;&#8203;&shy;\u200bខ្មែរ", ["ខ្មែរ\u200b\u200bខ្មែរ"]),
        (
            "C#&lrm; \u2067می&zwnj;خواهم\u2069 👩&zwj;🔬",
            ["C# می\u200cخواهم 👩\u200d🔬"],
        ),
        ("Use <code>su&shy;per\ufeff</code>now.", ["Use supernow."]),
        (
            "A dog.<sup>1</sup> It.<sup><a>[2]</a></sup><sup>[note 3]</sup> B",
            ["A dog.1", "It.[2][note 3]", "B"],
        ),
        ("The 1<sup>st</sup> dog<sup>2</sup>. B", ["The 1st dog2.", "B"]),
        (
            "So.<sup>*</sup> “It.”<sup>1,2</sup> In 1990.<sup>[3]</sup> <sup>4</sup> B",
            ["So.*", "“It.”1,2", "In 1990.[3] 4", "B"],
        ),
        ("Look.<code> X Y </code>42. Go.", ["Look.", "Go."]),
    ],
)
def test_html_is_read_as_a_browser_reads_it(html: str, expected: list[str]) -> None:
    segments = split_html(html, "de")
    assert sentences(segments) == expected
    assert "".join(each.text for each in segments) == html


@pytest.mark.parametrize(
    ("language", "html"),
    [
        ("es", "La 2.<sup>a</sup> Guerra del 1.<sup>er</sup> Congreso terminó."),
        ("en", "D<sup>r</sup>. House read N<sup>o</sup>. 5 to S<sup>t</sup>. John."),
        ("fr", "M<sup>me</sup>. Dupont et D<sup>r</sup>. Petit dorment."),
        ("en", "Acme Inc.<sup>TM</sup> Products sold Guess?<sup>®</sup> Jeans."),
        ("en", "It is x = 2.<sup>10</sup> Y."),
    ],
)
def test_letters_above_the_line_are_no_note(language: str, html: str) -> None:
    segments = split_html(html, language)
    assert sentences(segments) == [re.sub("<[^>]*>", "", html)]


@pytest.mark.parametrize(
    "html",
    [
        '<a href="x>&quot; onmouseover=alert(1) z=" title=it\'s>y</a>',
        "<P CLASS = 'a'\n id=b >The <B >dog</B > runs.</P\n>",
        "x<img src='a' alt='Ein &amp; B'>y <wbr>z",
        "<p>W<b>or</b>t und<i> Wort </i>.</p>",
        "<b><i>A dog</i> runs</b>. <u>It</u> barks.",
        "Use <code>a < b</code> and<code></code> or <span translate=no>It</span>.",
        "<p>It costs 3 &lt; <b>4 &amp;amp; 5</b> dollars",
        "one\r\n\r\n<pre>\r\n a </pre>\r\n",
        "A <a href=x>dog. It</a> barks.",
        "a <b>b c. D</b> e<!-- c --> f",
        "x </p> y </b> z",
        "A <img> dog <svg><path/></svg> runs <input> fast.",
        "A dog <img> <img> runs <i class=icon></i> fast.",
        'A <a href=x><img></a> dog <img> "runs" <img> (fast).',
        "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby> is text.",
        "<ruby><rb>漢<rt>kan<rb>字<rt>ji</ruby> is text.",
        "Enter <input> € now <input> + <input> or <img> → (“yes”) <img> (“no”).",
        "A <img> &amp; bye <svg class=icon/></svg> now <img> .net.",
        "A <b>dog <img></b> runs <i>to <a>me <img></a></i> now.",
        "<label>Name: <input></label> goes <a><svg/></a> <img> here.",
        "<b>One. A dog <img></b> runs <b><img> to me. One</b>.",
        "Use<code> x </code>now,<kbd>y </kbd>or<i translate=no> </i>z.",
    ],
)
def test_joining_the_source_text_restores_the_document(html: str) -> None:
    assert same(html) == html


@given(TEXTS)
def test_segments_concatenate_to_the_html(html: str) -> None:
    assert "".join(each.text for each in split_html(html)) == html


def test_white_space_in_a_block_is_one_space() -> None:
    html = "<p>\n A \n dog&nbsp;&#10;<b>\truns</b>.\n</p><pre> \n x</pre>"
    expected = "<p>\n A dog\u00a0 <b>runs</b>.\n</p><pre> \n x</pre>"
    assert same(html) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("Click <img> here.", "Hier klicken.", "Hier <img> klicken."),
        ("Click <img> here.", "单击这里。", "单击 <img> 这里。"),
        ("Click <img> <svg/> here.", "单击这里。", "单击 <img> <svg/> 这里。"),
        ("Click here <img> now.", "Klicken.", "Klicken <img>."),
        ("Click <img> now here.", "Klick", "<img> Klick"),
        ("Click <img>here.", "Hier klicken.", "Hier <img>klicken."),
        ("Click <img> here please.", "Don't click.", "Don't <img> click."),
        ("Click <img> here please.", "l'ami ici.", "<img> l'ami ici."),
        ("Click <img> here.", "COVID-19-Test.", "<img> COVID-19-Test."),
        ("<i>A</i> <img> <b>b</b> c", "x-y-z", "<i>x-</i><img><b>y</b>-z"),
        ("Click <img><!-- c --> here.", "单击这里。", "单击 <img> <!-- c -->这里。"),
        ("Now click <img> (it).", "请（点）。", "请 <img> （点）。"),
        ("Big <b>dog <img></b> runs.", "大狗跑。", "大<b>狗 <img></b> 跑。"),
        ("Big <a><img> dog</a> runs.", "大狗跑。", "大 <a><img> 狗</a>跑。"),
        ("Big <img><b> dog</b> runs.", "大狗跑。", "大 <img> <b>狗</b>跑。"),
    ],
)
def test_a_picture_with_space_around_it_keeps_it_in_the_translation(
    html: str, translation: str, expected: str
) -> None:
    assert join_html(split_html(html, "en"), [translation]) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("A <!-- c --> dog runs.", "狗跑。", "狗<!-- c -->跑。"),
        ("A <wbr> dog runs.", "狗跑。", "狗<wbr>跑。"),
        ("A <script>x</script> dog runs.", "狗跑。", "狗<script>x</script>跑。"),
        ("A <a name=x></a> dog runs.", "狗跑。", "狗<a name=x></a>跑。"),
        ("Open <a name=x></a> file.", "Datei-öffnen.", "Datei<a name=x></a>-öffnen."),
    ],
)
def test_an_element_that_shows_nothing_adds_no_space(
    html: str, translation: str, expected: str
) -> None:
    assert join_html(split_html(html, "en"), [translation]) == expected


def test_markup_in_a_translation_is_escaped() -> None:
    [start, text, end] = split_html("<p>a</p>")
    assert join_html([start, text, end], ["<b> & c"]) == "<p>&lt;b&gt; &amp; c</p>"


def test_sentences_without_a_translation_are_unchanged() -> None:
    assert join_html(split_html("<p>a &amp; b</p>"), [" "]) == "<p>a &amp; b</p>"


@pytest.mark.parametrize(
    ("html", "translation", "pairs", "expected"),
    [
        (
            "The <b>red</b> dog runs.",
            "Der rote Hund läuft.",
            {"rote": "red", "Hund": "dog", "läuft": "runs", ".": "."},
            "Der <b>rote</b> Hund läuft.",
        ),
        (
            "<b>Yesterday</b> he <i>saw a dog</i>.",
            "Er sah gestern einen Hund.",
            {"Er": "he", "gestern": "Yesterday", "einen": "a", "Hund": "dog"},
            "Er sah <b>gestern</b> <i>einen Hund</i>.",
        ),
        (
            "He <a href='x'><em>gave</em> up</a>.",
            "Er gab auf.",
            {"Er": "He", "gab": "gave", "auf": "up"},
            "Er <a href='x'><em>gab</em> auf</a>.",
        ),
        (
            "Click <img src=a> here.",
            "Hier klicken.",
            {"Hier": "here", "klicken": "Click", ".": "."},
            "<img src=a> Hier klicken.",
        ),
        (
            "Run <code>make all</code> now.",
            "Jetzt make all ausführen.",
            {"Jetzt": "now", "make": "make", "all": "all", "ausführen": "Run"},
            "Jetzt <code>make all</code> ausführen.",
        ),
        (
            "I know <span translate=no>Big Ben</span> well.",
            "Ich kenne den Großen Benjamin gut.",
            {"Ich": "I", "Großen": "Big", "Benjamin": "Ben", "gut": "well"},
            "Ich kenne den <span translate=no>Big Ben</span> gut.",
        ),
        (
            "Paris<sup>1</sup> is big.",
            "Groß ist Paris1.",
            {"Groß": "big", "ist": "is", "Paris": "Paris", "1": "1"},
            "Groß ist Paris<sup>1</sup>.",
        ),
        (
            "A <b>red old</b> dog sleeps.",
            "Rot alt der Hund schläft so.",
            {"Rot": "red", "alt": "old", "so": "red"},
            "<b>Rot alt</b> der Hund schläft so.",
        ),
        (
            "<b>A dog barks. The</b> cat runs.",
            "x",
            {},
            "<b>x </b>x",
        ),
        (  # no space is underlined
            "The <u>red</u> dog runs.",
            "Der Hund läuft.",
            {"Der": "The", "Hund": "dog", "läuft": "runs", ".": "."},
            "Der<u></u> Hund läuft.",
        ),
    ],
)
def test_tags_stay_around_their_words(
    html: str, translation: str, pairs: dict[str, str], expected: str
) -> None:
    segments = split_html(html, "en")
    own = sentences(segments)
    links = [by_words(each, translation, pairs) for each in own]
    assert join_html(segments, [translation] * len(own), links) == expected


@pytest.mark.parametrize(
    ("term", "placed"),
    [
        ("zorb", "Drücke die <b>Zorb-Kugel</b> Taste."),
        ("Zorb", "Drücke <b>die</b> Zorb-Kugel Taste."),  # not as the sentence has it
    ],
)
def test_tags_stay_around_the_words_that_a_glossary_has_for_theirs(
    term: str, placed: str
) -> None:
    """Attention takes another word for the translation of a new one."""
    [segment] = split_html("Press the <b>zorb</b> key.", "en")
    translation = "Drücke die Zorb-Kugel Taste."
    pairs = {"Drücke": "Press", "die": "zorb", "Zorb": "key", "Taste": "key"}
    links = by_words(sentence := segment.sentence or "", translation, pairs)
    terms = [PlacedTerm(text=term, source=(10, 14), target=(11, 21))]
    assert (
        written_html(segment, translation, links.with_terms(sentence, terms)) == placed
    )


@pytest.mark.parametrize(
    ("translation", "words"),
    [("Er läuft.", ("Er", "läuft")), ("它在运行。", tuple("它在运行"))],
)
def test_a_copied_element_does_not_replace_the_whole_translation(
    translation: str, words: tuple[str, ...]
) -> None:
    segments = split_html("<code>x</code> runs.")
    links = by_words("x runs.", translation, dict.fromkeys(words, "x"))
    found = join_html(segments, [translation], [links])
    assert found == f"<code>x</code> {translation}"


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("Press <kbd>F1</kbd> now.", "Drücken jetzt.", "Drücken <kbd>F1</kbd> jetzt."),
        ("Press <kbd>F1</kbd> now.", "Jetzt drücken.", "Jetzt drücken <kbd>F1</kbd>."),
        ("Press <kbd>F1</kbd>.", "Drücken.", "Drücken <kbd>F1</kbd>."),
        ("<kbd>F1</kbd> now.", "Jetzt.", "<kbd>F1</kbd> Jetzt."),
        ("Press<kbd> F1 </kbd>now.", "Drücken F1.", "Drücken <kbd> F1 </kbd>."),
        ("Press <kbd>F1</kbd> now.", "F1 jetzt.", "<kbd>F1</kbd> jetzt."),
        (
            "Press (<kbd>F1</kbd>) now.",
            "Drücken () jetzt.",
            "Drücken (<kbd>F1</kbd>) jetzt.",
        ),
        (
            "Press “<kbd>F1</kbd>” now.",
            "Drücken „“ jetzt.",
            "Drücken „<kbd>F1</kbd>“ jetzt.",
        ),
    ],
)
def test_a_copied_element_without_words_in_the_translation_is_spaced(
    html: str, translation: str, expected: str
) -> None:
    segments = split_html(html)
    [sentence] = sentences(segments)
    pairs = {"Drücken": "Press", "drücken": "Press", "jetzt": "now", "Jetzt": "now"}
    pairs |= {"(": "(", ")": ")", "„": "“", "“": "”", ".": "."}
    links = by_words(sentence, translation, pairs)
    assert join_html(segments, [translation], [links]) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("Hit (<kbd>F</kbd>) now.", "Hier () drücken.", "Hier (<kbd>F</kbd>) drücken."),
        ("See “<kbd>F</kbd>”.", "Siehe es da: „“.", "Siehe es da: „<kbd>F</kbd>“."),
        ("A dog (<img>) runs.", "Der große Hund () geht.",
         "Der große Hund (<img>) geht."),
        ("A dog runs (see <kbd>F</kbd>).", "Der große Hund, er läuft (siehe).",
         "Der große Hund, er läuft (<kbd>F</kbd> siehe)."),
        ("A dog runs (<b>too</b>).", "Der große Hund, er läuft (auch).",
         "Der große Hund, er läuft (<b>auch</b>)."),
        ("A dog (too)<img> runs.", "Der große Hund, er (auch) läuft.",
         "Der große Hund, er (auch)<img> läuft."),
        ("A dog <img>(too) runs.", "Der große Hund, er (auch) läuft.",
         "Der große Hund, er <img>(auch) läuft."),
        ("Hit (b) <kbd>F</kbd> now.", "Jetzt drücken (b).",
         "Jetzt drücken (b) <kbd>F</kbd>."),
        ("A dog (see <kbd>F</kbd>, too).", "一只狗（也看）。",
         "一只狗（<kbd>F</kbd> 也看）。"),
        ("“A” (<b>b</b>) is c.", "Das (b) ist ein großes C.",
         "Das (<b>b</b>) ist ein großes C."),
    ],
)  # fmt: skip
def test_elements_stay_on_their_side_of_brackets_and_quotes(
    html: str, translation: str, expected: str
) -> None:
    assert join_html(split_html(html, "en"), [translation]) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("(Optional) <a href=x>Read more</a>", "Mehr lesen (optional)",
         "<a href=x>Mehr lesen</a> (optional)"),
        ("“Yes”, said <a>John</a>.", "John sagte: „Ja“.",
         "John <a>sagte:</a> „Ja“."),
        ('"<i>Go</i>" is a <b>game</b>.', 'Ein Spiel ist "Go".',
         'Ein Spiel <b>ist</b> "<i>Go</i>".'),
        ("(see <i>below</i>) <b>The house</b>", "Das Haus (siehe unten)",
         "<b>Das Haus</b> (siehe <i>unten</i>)"),
        ("<b>The house</b> (see below)", "(siehe unten) Das Haus",
         "(siehe unten) <b>Das Haus</b>"),
        ("<b>The <i>house</i></b> (see below)", "Das (siehe unten) Haus",
         "<b><i>Das</i></b> (siehe unten) Haus"),
        ("(<b>A</b> very old <i>dog</i>)", "(Hund) altes",
         "(<b>Hund</b>) <i>altes</i>"),
        ("One two three four five <b>six</b> seven eight nine", "Eins zwei drei",
         "Eins zwei <b>drei</b>"),
    ],
)  # fmt: skip
def test_elements_keep_words_where_brackets_and_quotes_have_moved(
    html: str, translation: str, expected: str
) -> None:
    assert join_html(split_html(html, "en"), [translation]) == expected


@st.composite
def moved_parts(draw: st.DrawFn) -> tuple[str, str]:
    """HTML of parts in brackets, in quotes or in none, with elements at random, and a
    translation with the parts in another order and at least as many words."""
    word, size = st.sampled_from(["x", "yy", "z,"]), st.integers(1, 4)
    kinds = draw(st.lists(st.sampled_from(["()", '""', "  "]), min_size=1, max_size=4))

    def part(kind: str, words: list[str]) -> str:
        return f"{kind[0]}{' '.join(words)}{kind[1]}".strip()

    def formatted(words: list[str], depth: int) -> list[str]:
        if not words or depth == 3:
            return words
        start = draw(st.integers(0, len(words) - 1))
        end = draw(st.integers(start + 1, len(words)))
        inner = formatted(words[start:end], depth + 1)
        inner[0] = f"<b>{inner[0]}"
        inner[-1] += "</b>"
        return formatted(words[:start], 3) + inner + formatted(words[end:], depth + 1)

    source = [[draw(word) for _ in range(draw(size))] for _ in kinds]
    texts = [part(*each) for each in zip(kinds, source, strict=True)]
    html = " ".join(formatted(" ".join(texts).split(), 0))
    target = [[*words, *["w"] * draw(st.integers(0, 2))] for words in source]
    moved = draw(st.permutations(list(zip(kinds, target, strict=True))))
    return html, " ".join(part(*each) for each in moved)


@given(moved_parts())
@example(('<b>(x)</b> <b>x</b> <b>"x"</b> (x)', '"x" (x) x (x)'))
def test_no_element_with_words_is_left_without_any(pair: tuple[str, str]) -> None:
    html, translation = pair
    found = join_html(split_html(html, "en"), [translation])
    assert re.sub("<.*?>", "", found) == translation
    open_elements: list[int] = []
    for at, tag in ((each.end(), each[0]) for each in re.finditer("</?b>", found)):
        if tag == "<b>":
            open_elements.append(at)
        else:
            assert re.search(
                r"\w", re.sub("<.*?>", "", found[open_elements.pop() : at])
            )


@pytest.mark.parametrize(
    ("html", "translation", "pairs", "expected"),
    [
        ("the <code>name</code>;", "имя;", {"имя": "name"}, "<code>name</code>;"),
        (
            "the <code>name</code>;",
            "名称;",
            {"名": "name", "称": "name"},
            "<code>name</code>;",
        ),
        (
            "Use <code>Save</code>.",
            "Speichern.",
            {"Speichern": "Save"},
            "<code>Save</code>.",
        ),
        (
            "the <code>user name</code>;",
            "имя пользователя;",
            {"имя": "name", "пользователя": "user"},
            "<code>user name</code>;",
        ),
    ],
)
def test_a_copied_element_replaces_its_own_words_without_others(
    html: str, translation: str, pairs: dict[str, str], expected: str
) -> None:
    """The target language may have no article, or imply the verb."""
    segments = split_html(html)
    [sentence] = sentences(segments)
    links = by_words(sentence, translation, pairs)
    assert join_html(segments, [translation], [links]) == expected


@pytest.mark.parametrize(
    ("html", "translation", "expected"),
    [
        ("Let <var>i</var> be large.", "Sei groß.", "Sei <var>i</var> groß."),
        (
            "<code>n</code> helps.",
            "Er nutzt n heute.",
            "Er nutzt <code>n</code> heute.",
        ),
        (
            "dog<kbd><br>k</kbd><kbd><br>k</kbd>",
            "dog k k",
            "dog<kbd><br>k</kbd><kbd><br>k</kbd>",
        ),
        ("un<code>do</code> it", "it undo", "it un<code>do</code>"),
    ],
)
def test_a_copied_element_tears_no_word(
    html: str, translation: str, expected: str
) -> None:
    segments = split_html(html, "en")
    assert join_html(segments, [translation]) == expected


@given(
    st.lists(st.sampled_from(["<b>", "</b>", "<i x=1>", "</i>", "<img>", "a ", "b"])),
    st.text(alphabet="xy .", min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_no_tag_is_lost_or_written_twice(
    parts: list[str], translation: str, draw: random.Random
) -> None:
    html = "".join(parts)
    segments = split_html(html)
    own = sentences(segments)
    links = []
    for each in own:
        even = links_by_place(each, translation)
        targets = [draw.choice([None, *range(len(even.source))]) for _ in even.target]
        links.append(
            WordLinks(source=even.source, target=even.target, source_of=tuple(targets))
        )
    found = join_html(segments, [translation] * len(own), links)
    assert sorted(re.findall("<[^>]*>", found)) == sorted(re.findall("<[^>]*>", html))
    assert found.count("x") == html.count("x") + len(own) * translation.count("x") or (
        not translation.strip()
    )


@pytest.mark.parametrize(
    "html",
    [
        "<p>A <b>dog</b> runs.</p>",
        "<title>A title</title><p>text",
        "<noscript><a title='</noscript>text'>text</noscript>",
        "<noscript><!--</noscript>A text --> <p title='text'>",
        "<noscript><style></noscript>text</style>text",
        '<svg><![CDATA[ > <a title="]]></svg>text<p title="A text">',
        "<b><div><svg></b><![CDATA[ > text ]]><p title='text'>",
        "<a title='text",
        "<select><title><a href='x'>text</select>",
        "<svg><title>A <p>text</title></svg>",
        "<svg><foreignObject>text<title>A</title><![CDATA[ > text ]]></svg>text",
        "<math><annotation-xml encoding='text/html'><svg><a title='</math>text'>text",
        "<select><noframes><!--</noframes>text<svg></svg>text -->text",
        "<p>a<a x=1> b<li><a translate=no>c</a>text<li><b></b></li></a>",
        "a<a><a><li>b<a x=1>c<div></div></a> d</li></a></a>",
    ],
)
def test_no_translation_adds_markup(html: str) -> None:
    segments = split_html(html)
    found = join_html(segments, [INJECTION] * len(sentences(segments)))
    assert tags(found) == tags(html)


def tags(html: str) -> list[tuple[str, list[tuple[str, str]]]]:
    tree = html5lib.parse(html, treebuilder="etree")
    return [(str(each.tag), sorted(each.attrib.items())) for each in tree.iter()]
