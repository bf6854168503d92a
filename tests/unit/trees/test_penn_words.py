"""Raw text is cut as the Penn Treebank is."""

import time

import pytest

from transduce.trees.penn_words import penn_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("The dog barks.", "The dog barks ."),
        # Characters that show nothing
        ("\ufeffThe\u00ad dog\u200b barks.\u200b", "The dog barks ."),
        ("\u200b", ""),
        ("They live in the U.S.", "They live in the U.S. ."),
        ('They live "in the U.S."', "They live `` in the U.S. . ''"),
        ("They {in the U.S.} live", "They -LCB- in the U.S. . -RCB- live"),
        ("He lives in Charlotte, N.C.", "He lives in Charlotte , N.C ."),
        ("He left (at 5 p.m.)", "He left -LRB- at 5 p.m . -RRB-"),
        ("Mr. Smith left at 10:30, alone.", "Mr. Smith left at 10:30 , alone ."),
        ("12,000 people: $3.5, or 5%?", "12,000 people : $ 3.5 , or 5 % ?"),
        ("I don't; he can't; she won't", "I do n't ; he ca n't ; she wo n't"),
        ("It's John's, they're", "It 's John 's , they 're"),
        ("The dogs' tails", "The dogs ' tails"),
        ("I'd go, we'll go, I've gone, I'm", "I 'd go , we 'll go , I 've gone , I 'm"),
        ("Cannot, gonna, gotta", "Can not , gon na , got ta"),
        ("'Twas she, lemme", "'T was she , lem me"),
        ('He said, "Why?"', "He said , `` Why ? ''"),
        ('"No," she said.', "`` No , '' she said ."),
        ("\u201cNo,\u201d it\u2019s", "`` No , '' it 's"),
        ("Done (at last).", "Done -LRB- at last -RRB- ."),
        ("{a} [b]", "-LCB- a -RCB- [ b ]"),
        ("Wait ... or\u2026 no", "Wait ... or ... no"),
        ("yes -- no\u2014maybe", "yes -- no -- maybe"),
        ("He left. (So it goes.)", "He left. -LRB- So it goes . -RRB-"),
        # & within a word, before and after one
        ("AT&T and S&P's R&D & more.", "AT&T and S&P 's R&D & more ."),
        ("He works at S&P.", "He works at S&P ."),
        # money and shares
        ("US$5 (C$9.6), HK$1", "US$ 5 -LRB- C$ 9.6 -RRB- , HK$ 1"),
        ("£3.5m, 5€ or ¥1,000", "£ 3.5m , 5 € or ¥ 1,000"),
        ("62%-owned, 5%.", "62%-owned , 5 % ."),
        ("#14.13 more", "# 14.13 more"),
        # addresses, and what follows them
        ("Write to a.b+c@d-e.co.uk.", "Write to a.b+c@d-e.co.uk ."),
        ("Is it me@here.org?", "Is it me@here.org ?"),
        (
            "See https://x.org/a?b=c&d=1#e, please.",
            "See https://x.org/a?b=c&d=1#e , please .",
        ),
        ("(www.x.org/A_(b))", "-LRB- www.x.org/A_(b) -RRB-"),
        ('He saw "http://x.org/y".', "He saw `` http://x.org/y '' ."),
        ("http://x.org's page; x.com's", "http://x.org 's page ; x.com 's"),
        ("Ask a@b.com. Then go.", "Ask a@b.com . Then go ."),
        ("@me likes #this", "@me likes #this"),
        # quotes within quotes, before capitals and digits
        ("\"'Sit down!'\" he said.", "`` ` Sit down ! ' '' he said ."),
        ("He said 'Go,' then.", "He said ` Go , ' then ."),
        ("the 'soft landing' plan", "the ` soft landing ' plan"),
        ("the '3 Days' and \"10 days\"", "the ` 3 Days ' and `` 10 days ''"),
        ("'We said so", "` We said so"),
        ('He left. "', "He left . ``"),
        ('" He left.', "'' He left ."),
        ('He said " stop it " and left.', "He said `` stop it '' and left ."),
        ('" Go. "', "`` Go . ''"),
        ("'You \"won\",' he said", "` You `` won '' , ' he said"),
        ("\"Call it 'mine.'\"", "`` Call it ` mine . ' ''"),
        # double quotes of two signs, as in TeX
        ("He said ``hello'' to me.", "He said `` hello '' to me ."),
        (
            "``Hello,'' he said, ``I am 'here.' ''",
            "`` Hello , '' he said , `` I am ` here . ' ''",
        ),
        ("``We said so. ``Go.''", "`` We said so. `` Go . ''"),
        ("``We'' said \" no \"", "`` We '' said `` no ''"),
        ("Run ```code``` now", "Run ```code``` now"),
        ("John''s x``y 5''", "John''s x``y 5 ''"),
        # omitted characters
        ("the '80s, '90s-era and '89", "the '80s , '90s-era and '89"),
        ("'tis 'em, rock 'n' roll", "'t is 'em , rock 'n' roll"),
        ("d'you, goin' to Dunkin' Donuts", "d' you , goin' to Dunkin' Donuts"),
        ("the dogs' bone, James' hat", "the dogs ' bone , James ' hat"),
        ("Sony Corp.'s and the U.S.'s", "Sony Corp. 's and the U.S. 's"),
        ("She isn't.", "She is n't ."),
        ('You "Gotta Have Wa"', "You `` Gotta Have Wa ''"),
        # stops and dashes
        ("Wait....", "Wait ... ."),
        ("1. Buy a car.", "1 . Buy a car ."),
        ("The R. man (R., Mo.) said", "The R. man -LRB- R. , Mo . -RRB- said"),
        ("yes \u2013 no, 1990\u201395", "yes -- no , 1990\u201395"),
    ],
)
def test_a_text_has_these_words(text: str, words: str) -> None:
    assert " ".join(penn_words(text)) == words


@pytest.mark.parametrize(
    "text", ["The dog barks .", "He ca n't -LRB- go -RRB- .", "``"]
)
def test_tokenised_words_are_unchanged(text: str) -> None:
    assert penn_words(text) == text.split()


@pytest.mark.parametrize(
    "piece",
    [
        "'",
        "'a ",
        '"a ',
        "``a ",
        "''",
        ".",
        "a.",
        "A.",
        "a.b",
        "@",
        "a@",
        "http://",
        "x.y/",
        "$",
        "& ",
    ],
)
def test_tokenisation_takes_linear_time(piece: str) -> None:
    times = []
    for length in (20_000, 80_000):
        text = piece * (length // len(piece))
        begun = time.process_time()
        penn_words(text)
        times.append(time.process_time() - begun)
    assert times[1] < 10 * times[0] + 0.1
