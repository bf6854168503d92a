"""Changes of the text of training pairs: case, typos, full stops, joined sentences.

A model translates text as it has seen it in training. Changed copies of its pairs, new
in each epoch, make it robust against text in capitals, with typos, without a full stop,
or of two sentences on a line. Tags such as >>de<< or <bt> are never changed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal, get_args
from unicodedata import normalize

from transduce.errors import ConfigError
from transduce.settings import Bounds, Share, convert_and_check
from transduce.text.corpus import SentencePair
from transduce.text.languages import UNSPACED_LETTERS, WORD_MARKS, base
from transduce.text.splitting import SPACED_STOPS, UNSPACED_STOPS, space_between
from transduce.text.vocabulary import TAG_IN_TEXT

Sides = Literal["both", "source", "target"]
Case = Literal["upper", "title", "lower"]
CASES: tuple[Case, ...] = get_args(Case)
SHARES = (*CASES, "typos", "no_end", "joined")
"""Settings that are shares of the pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAugmentationConfig:
    """Settings of the changes of training pairs, new in each epoch.

    By default there are none.
    """

    # Unlike the paper: training pairs can be changed anew in each epoch. Off by
    # default: the table `augmentation`.
    upper: Share = 0.0
    """Share of pairs in ALL CAPS, both sides."""
    title: Share = 0.0
    """Share of pairs in Title Case, both sides."""
    lower: Share = 0.0
    """Share of pairs in lower case, both sides."""
    typos: Share = 0.0
    """Share of pairs with typos in the source: in about one of ten words, at least
    one."""
    no_end: Share = 0.0
    """Share of pairs that lose the full stop, or another mark, at the end of both
    sides."""
    joined: Share = 0.0
    """Share of pairs that are joined with another one to a line of two sentences."""
    subword_dropout: Share = 0.0
    """Probability with which a merge of byte-pair encoding is dropped, so that words
    are cut differently in each epoch (Provilkov et al., 2020, have 0.1)."""
    subword_alpha: Annotated[float, Bounds(0, 10)] = 0.0
    """Exponent of the probabilities by which segmentations of a SentencePiece tokenizer
    are sampled (Kudo, 2018, has 0.1 to 0.5); the smaller, the more varied they are. 0
    for no sampling."""
    subword_sides: Sides = "both"
    """Sides with dropout or sampling of sub-words: "both", "source" or "target"."""

    def __post_init__(self) -> None:
        convert_and_check(self, "augmentation.")
        if (total := sum(getattr(self, case) for case in CASES)) > 1 + 1e-9:
            raise ConfigError(
                "`augmentation.upper`, `augmentation.title` and `augmentation.lower` "
                f"are shares of the same pairs and must sum up to at most 1, but do to "
                f"{total:g}."
            )

    @property
    def used(self) -> dict[str, float]:
        """Shares and rates that are not 0, by name."""
        names = (*SHARES, "subword_dropout", "subword_alpha")
        return {name: value for name in names if (value := getattr(self, name))}

    @property
    def changes_text(self) -> bool:
        """Whether text changes, not only its segmentation into sub-words."""
        return any(getattr(self, name) for name in SHARES)


DOTTED = ("az", "crh", "tr")
"""Languages that write i with and without a dot, also as capitals."""
LONE_ETA = re.compile(r"(?<![^\W\d_])ή(?![^\W\d_])")
"""Pattern of the Greek word for "or", whose capital keeps its accent."""
GREEK_HIATUS = re.compile(
    "[αεηουΑΕΗΟΥ][\u0313\u0314]?[\u0300\u0301\u0342][ιυΙΥ](?![\u0300-\u036f])"
)
"""Pattern of two vowels of decomposed Greek text, of which the accent on the first one
says that they are no diphthong."""
GREEK_ACCENTS = re.compile(
    "(?<=[\u0370-\u03ff\u0308])[\u0300\u0301\u0313\u0314\u0342]+"
)
DUTCH_START = re.compile(r"\bIj")
WORD_START = re.compile(r"(?<!\S)[^\W\d_]|(?<!\S)[^\w\s]+[^\W\d_]")


def in_case(text: str, case: Case, language: str | None = None) -> str:
    """Return a text in another case by Unicode's rules; tags stay.

    German ß becomes SS. `language` is a BCP 47 tag: the capital of the Turkish i has a
    dot, Greek capitals have no accents, and Dutch words begin with IJ. Scripts without
    case do not change.
    """
    code = None if language is None else base(language)
    change = {"upper": _upper, "title": _titled, "lower": _lower}[case]
    return _outside_tags(text, lambda part: change(part, code))


def _upper(text: str, language: str | None) -> str:
    if language == "el":
        return "Ή".join(map(_greek_capitals, LONE_ETA.split(text)))
    return (text.replace("i", "İ") if language in DOTTED else text).upper()


def _greek_capitals(text: str) -> str:
    """Write capitals without accents; a diaeresis parts vowels that an accent parted,
    as in ΜΑΪΟΣ."""
    spelt = normalize("NFD", text)
    spelt = GREEK_HIATUS.sub("\\g<0>\u0308", spelt)
    return normalize("NFC", GREEK_ACCENTS.sub("", spelt)).upper()


def _lower(text: str, language: str | None) -> str:
    if language in DOTTED:
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def _titled(text: str, language: str | None) -> str:
    """Capitalize the first letter of each word; the others stay, as in "McDonald's"."""

    def capitalized(match: re.Match[str]) -> str:
        signs, letter = match[0][:-1], match[0][-1]
        has_dot = language in DOTTED and letter == "i"
        return signs + ("İ" if has_dot else letter.title())

    text = WORD_START.sub(capitalized, text)
    return DUTCH_START.sub("IJ", text) if language == "nl" else text


def _outside_tags(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for tag in TAG_IN_TEXT.finditer(text):
        parts += [change(text[end : tag.start()]), tag[0]]
        end = tag.end()
    return "".join([*parts, change(text[end:])])


KEYBOARDS = (
    ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
)
"""Rows of the keys of letters, each half a key to the right of the one above."""
TYPO_SHARE = 0.1
"""Share of the words of a text with typos that have one."""
_LETTER = rf"(?![{UNSPACED_LETTERS}])[^\W\d_][{WORD_MARKS}]*"
TYPED_LETTER = re.compile(_LETTER)
"""Pattern of a letter of a script with spaces, with its marks, such as vowel signs."""
TAG_OR_TYPED_WORD = re.compile(
    rf"(?:{TAG_IN_TEXT.pattern})|(?P<word>(?:{_LETTER}){{3,}})"
)
"""Pattern of a tag, or of a word that may have a typo: three such letters."""


def with_typos(text: str, random: Random) -> str:
    """Return a text with a typo in about every tenth word, and in at least one.

    Two letters are swapped, one is left out, doubled, or that of a neighbouring key.
    Tags, digits and scripts without spaces between words stay.
    """
    found = TAG_OR_TYPED_WORD.finditer(text)
    words = [each.span() for each in found if each["word"]]
    if not words:
        return text
    number = max(sum(random.random() < TYPO_SHARE for _ in words), 1)
    parts, rest = [], len(text)  # from the end
    for start, end in sorted(random.sample(words, number), reverse=True):
        parts += [text[end:rest], _mistyped(text[start:end], random)]
        rest = start
    return "".join([text[:rest], *reversed(parts)])


def _mistyped(word: str, random: Random) -> str:
    """Return a word with a typo; a letter is doubled if the drawn one is impossible."""
    letters = TYPED_LETTER.findall(word)
    place = random.randrange(len(letters) - 1)
    first, second = letters[place : place + 2]
    before, after = "".join(letters[:place]), "".join(letters[place + 2 :])
    match random.choice(("swap", "drop", "double", "neighbour")):
        case "swap" if first != second:
            typed = second + first
        case "drop":
            typed = second
        case "neighbour" if keys := NEIGHBOURS.get(first.lower()):
            key = random.choice(keys)
            typed = (key.upper() if first.isupper() else key) + second
        case _:
            typed = first + first + second
    return before + typed + after


AROUND = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
"""Rows and columns of the neighbours of a key, relative to its own."""


def _neighbours() -> dict[str, str]:
    """Return the letters of the keys around each letter's."""
    found: dict[str, str] = {}
    for rows in KEYBOARDS:
        letter_at = {
            (row, column): letter
            for row, letters in enumerate(rows)
            for column, letter in enumerate(letters)
        }
        for (row, column), letter in letter_at.items():
            around = [(row + down, column + right) for down, right in AROUND]
            found[letter] = "".join(letter_at.get(place, "") for place in around)
    return found


NEIGHBOURS = _neighbours()
"""Letters of neighbouring keys, by lower-case letter."""

END_MARKS = f".!?…‼⁇⁈⁉‽{UNSPACED_STOPS}{SPACED_STOPS}፡"
"""Marks that may end a text."""


def without_end(pair: SentencePair) -> SentencePair:
    """Return a pair without the marks at its end, if both sides end with one."""
    source, target = without_end_marks(pair.source), without_end_marks(pair.target)
    is_possible = source and target
    if not is_possible or source == pair.source or target == pair.target:
        return pair
    return SentencePair(source=source, target=target)


def without_end_marks(text: str) -> str:
    """Return a text without the marks at its end, and the space before them."""
    rest = text.rstrip(END_MARKS)
    return text if rest == text else rest.rstrip()


LEADING_TAGS = re.compile(rf"(?:(?:{TAG_IN_TEXT.pattern})\s*)*")


def joined(first: SentencePair, second: SentencePair) -> SentencePair | None:
    """Return two pairs as one; None if their sources have different tags.

    A space separates the sentences, except between scripts without spaces. The tags at
    the beginning of the second source are left out.
    """
    tags, others = (_leading_tags(pair.source) for pair in (first, second))
    if tags.split() != others.split():
        return None
    return SentencePair(
        source=_beside(first.source, second.source[len(others) :]),
        target=_beside(first.target, second.target),
    )


def _leading_tags(text: str) -> str:
    match = LEADING_TAGS.match(text)
    return match[0] if match else ""


def _beside(first: str, second: str) -> str:
    return first + space_between(first, second) + second
