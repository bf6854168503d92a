"""Raw text is cut as the Penn Treebank is."""

import pytest

from transduce.decoding.parsing.penn_words import penn_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("The dog barks.", "The dog barks ."),
        ("They live in the U.S.", "They live in the U.S. ."),
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
    ],
)
def test_a_text_has_these_words(text: str, words: str) -> None:
    assert " ".join(penn_words(text)) == words


@pytest.mark.parametrize(
    "text", ["The dog barks .", "He ca n't -LRB- go -RRB- .", "``"]
)
def test_words_that_are_cut_already_stay(text: str) -> None:
    assert penn_words(text) == text.split()
