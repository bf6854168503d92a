"""Rules that drop a sentence pair from a corpus, each of them with a reason.

A rule here looks at one pair only. `cleaning` adds the rules that need the whole
corpus: length ratio, duplicates, and a model's scores. Rules leave short entries such
as "DNA" or "Berlin" alone where their shares and ratios mean nothing.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html.entities import html5
from operator import eq
from typing import NamedTuple

from transduce.data.corpus_files import ANY_MARK, MARKS, text_digest
from transduce.errors import ConfigError, unknown_name
from transduce.settings import convert_and_check, require_between
from transduce.text.corpus import MAX_LINE_BYTES, is_iso_2022
from transduce.text.languages import (
    SCRIPT_LETTERS,
    UNSPACED_LETTER,
    UNSPACED_LETTERS,
    UNSPACED_RUN,
    WORD_MARKS,
    east_asian,
    english_name,
    script_letters,
)

RULES = {
    "not-text": "A line is not UTF-8, is in ISO-2022, holds a NUL byte, or is above a "
    "million bytes.",
    "empty": "A side is only white space.",
    "in-dev": "The source is also a source of the dev text.",
    "replacement-character": "U+FFFD stands where a letter was lost.",
    "doubly-encoded-letter": "A letter was encoded twice, such as Ã¼ for ü.",
    "control-character": "A character is a control character.",
    "line-separator": "A character separates lines elsewhere, such as U+2028.",
    "markup": "A side has HTML tags or entities.",
    "url-only": "A side has no letters but those of addresses.",
    "few-letters": "Too few of a side's characters are letters.",
    "wrong-script": "Too few of a side's letters are of its language's script.",
    "too-long": "A side has too many words.",
    "long-word": "A word is too long.",
    "identical": "Both sides are the same text.",
    "numbers": "Each side has a number that the other does not have.",
    "loop": "A side repeats a phrase in a row, and the other does not.",
    "length-ratio": "The lengths of the sides are in an unusual ratio.",
    "duplicate": "An earlier pair is the same.",
    "duplicate-source": "An earlier pair has the same source.",
    "duplicate-target": "An earlier pair has the same target.",
    "low-score": "The model gives the pair one of the worst scores.",
}
"""Rules in the order in which they are applied; the first that a pair breaks is its
reason."""
CODES = {rule: code for code, rule in enumerate(RULES, start=1)}
"""Numbers of the rules; 0 stands for a kept pair."""
NAMES = ("kept", *RULES)
"""Names by number."""

NOT_TEXT = re.compile(r"[\x00\udc80-\udcff]")
"""NUL, or a byte that is not UTF-8 as Python's `surrogateescape` decodes it."""
TAG = re.compile(r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>|<!--|-->|<!\[CDATA\[")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
ADDRESS = re.compile(
    r"(?:(?:https?|ftp)://|www\.)\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.IGNORECASE
)
"""URL or e-mail address."""
AROUND_ADDRESS = "<>()[]{}\"'.,;:!?"
"""Punctuation that may stand around an address."""
LETTERS = re.compile(r"[^\W\d_]+")
LETTER = rf"[\w{WORD_MARKS}]"
"""Pattern of a letter or digit of a word, or of a mark on it, such as a vowel sign."""
WORDS = re.compile(f"{LETTER}+")
ETHIOPIC_SPACE = "፡"
"""Mark between Ethiopic words in some texts."""


def _units(letter: str) -> str:
    """Return the pattern of a number, a word or an address of such letters."""
    number = rf"\d+(?:[^\w\s]\d+)*(?!{letter})"
    return rf"{number}|(?:{letter})+(?:[./:@]+(?:{letter})+)*"


UNITS = re.compile(_units(LETTER))
"""Pattern of the unit that a loop repeats: a word, or a number or address with its
marks."""
UNSPACED_UNITS = re.compile(
    rf"[{UNSPACED_LETTERS}]|" + _units(rf"(?:(?![{UNSPACED_LETTERS}]){LETTER})")
)
"""Pattern of the unit that a loop repeats in text of scripts without spaces, where each
letter is a unit."""
ASCII_WITHOUT_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha())
"""Bytes that are deleted from UTF-8 to find its letters, faster than by a pattern."""
BELOW_UNSPACED = bytes(range(0xE0))
"""Bytes of UTF-8 that are not the first of a letter of a script without spaces."""
NUMBER = re.compile(r"\d{1,3}(?:[.,'’ \u00a0\u2009\u202f]\d{3})+(?!\d)|\d+")
"""Whole number, with or without marks between its thousands."""
NUMBER_MARKS = ".,'’\u060c\u066b\u066c，．"
"""Marks within numbers; those of Arabic and Persian, and wide ones, included."""
EXPONENTS = {
    "万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8, "兆": 12, "조": 12,
    "lakh": 5, "लाख": 5, "লাখ": 5, "লক্ষ": 5, "ਲੱਖ": 5, "લાખ": 5, "ଲକ୍ଷ": 5,
    "லட்சம்": 5, "లక్ష": 5, "ಲಕ್ಷ": 5, "ലക്ഷം": 5, "لاکھ": 5,
    "crore": 7, "करोड": 7, "करो\u095c": 7, "कोटी": 7, "কোটি": 7, "ਕਰੋੜ": 7, "કરોડ": 7,
    "କୋଟି": 7, "கோடி": 7, "కోటి": 7, "ಕೋಟಿ": 7, "കോടി": 7, "کروڑ": 7,
}  # fmt: skip
"""Powers of ten by their words in Chinese, Japanese, Korean, and languages of India and
Pakistan."""
_MARKED_NUMBER = rf"\d+(?:[{NUMBER_MARKS}]\d+)*"
_POWER = rf"[ \u00a0]?(?i:{'|'.join(EXPONENTS)})"
COMPOUND = re.compile(rf"({_MARKED_NUMBER})({_POWER})?[ \u00a0]?(?=(\d)?)")
"""Number with its marks and the power of ten after it, as in 1万2345; group 3 is set if
a number follows at once."""
MAX_POWER_DIGITS = 18
"""Maximum number of digits of a number with a power of ten."""
YEAR_BEFORE_ERA = {
    "明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018,
    "民國": 1911, "民国": 1911,
}  # fmt: skip
"""Year before the first one of eras of Japan and Taiwan."""
ERA_YEAR = re.compile(rf"({'|'.join(YEAR_BEFORE_ERA)})[ \u00a0]?(\d{{1,3}})(?!\d)")
CALENDARS = (
    (re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"), (543,)),
    (re.compile("[\u0600-\u06ff\u0750-\u077f]"), (621, 622)),
)
"""Scripts of Thai, Lao, Burmese and Khmer, and of Persian, with the differences between
the years of the Buddhist and the Persian calendar and ours."""
LOST_MARK = 1, 2
"""Powers of ten by which two numbers with the same digits differ if one lacks a decimal
mark. Words such as thousand, lakh, million and crore differ by more."""
NOON = 12
YEAR_DIGITS = 2, 4
"""Digits of a year without and with its century."""

HAN, KANA, HANGUL = (SCRIPT_LETTERS[language] for language in ("zh", "ja", "ko"))
"""Patterns of a letter of the scripts of Chinese, Japanese and Korean."""
MANY_KANA = 0.3
"""Share of kana among the letters of a side above which it is Japanese."""
HAN_WITHOUT_KANA = 20
"""Largest number of Chinese characters of a Japanese side without kana, such as the
name of an office or the title of a law."""
UNSPACED_WORD = 2
"""Number of letters that count as a word where words are not separated by spaces."""
LONGEST_PHRASE = 10
"""Maximum number of words, or letters of an unspaced script, of a phrase in a loop."""
MAX_NUMBER = 10**9
"""Largest threshold of a number of words, characters or repeats."""
SHOWN = 40
"""Maximum number of characters of a text in a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningConfig:
    """Thresholds of the rules, and rules that are switched off."""

    off: tuple[str, ...] = ()
    """Names of rules that are not applied; `not-text` always is, since training refuses
    such lines."""
    min_letters: float = 0.3
    """Smallest share of letters among a side's characters, without spaces."""
    short_characters: int = 10
    """Largest number of characters, without spaces, of a side that one letter makes
    text, such as 10 km."""
    min_script: float = 0.2
    """Smallest share of letters in the script of the side's language."""
    short_letters: int = 6
    """Largest number of letters of a side that may be in any script, such as an
    acronym."""
    max_words: int = 200
    """Largest number of words of a side."""
    max_word_characters: int = 60
    """Largest number of characters of a word that is not an address."""
    identical_words: int = 3
    """Identical sides of at most this many words are kept: names and loan words."""
    max_repeats: int = 3
    """Largest number of times that a side has a phrase in a row, unless the other side
    has one at least half as often."""
    ratio_spreads: float = 5.0
    """Largest deviation of the logarithm of the length ratio from its median, in
    standard deviations (estimated from the median deviation)."""
    ratio_factor: float = 2.0
    """Factor by which a length may always deviate from the usual ratio."""
    unique_source: bool = False
    """Whether to drop a pair whose source occurred before."""
    unique_target: bool = False
    """Whether to drop a pair whose target occurred before."""

    def __post_init__(self) -> None:
        if isinstance(self.off, str):
            raise ConfigError(
                f"`off` must be a list of rules, but is {shown(self.off)}; put it into "
                "a list."
            )
        if isinstance(self.off, set | frozenset):
            object.__setattr__(self, "off", tuple(sorted(self.off, key=str)))
        convert_and_check(self)
        for name in self.off:
            require_rule(name)
        for share in ("min_letters", "min_script"):
            require_between(share, getattr(self, share), 0, 1)
        for number in (
            "short_characters",
            "short_letters",
            "max_words",
            "max_word_characters",
            "identical_words",
        ):
            require_between(number, getattr(self, number), 0, MAX_NUMBER)
        require_between("max_repeats", self.max_repeats, 1, MAX_NUMBER)
        require_between("ratio_spreads", self.ratio_spreads, 0, math.inf)
        require_between("ratio_factor", self.ratio_factor, 1, math.inf)

    def has(self, rule: str) -> bool:
        """Whether a rule is applied."""
        if rule == "duplicate-source":
            return self.unique_source and rule not in self.off
        if rule == "duplicate-target":
            return self.unique_target and rule not in self.off
        return rule not in self.off


def require_rule(name: str) -> None:
    """Raise `ConfigError` for the name of no rule, or of one that is always applied."""
    if name == "not-text":
        raise ConfigError(
            "The rule not-text must be applied, since training refuses such lines, but "
            "is switched off; leave it out of `off`."
        )
    if name not in RULES:
        raise ConfigError(unknown_name("rule", name, RULES))


class SideText:
    """Side of a pair, with the views of its text that several rules share."""

    def __init__(self, name: str, content: bytes) -> None:
        """Decode a line; raise `UnicodeDecodeError` if it is not UTF-8."""
        self.name = name
        self.text = content.decode("utf-8")
        self.is_ascii = self.text.isascii()
        self.words = self.text.split()
        self.size = sum(map(len, self.words))
        """Number of characters without white space."""
        self._content = content

    @cached_property
    def letters(self) -> str:
        """The letters alone, without their combining marks."""
        rest = self._content.translate(None, ASCII_WITHOUT_LETTERS).decode("utf-8")
        return rest if self.is_ascii else "".join(LETTERS.findall(rest))

    @cached_property
    def unspaced_letters(self) -> int:
        """Number of letters of scripts without spaces between words."""
        if not self._content.translate(None, BELOW_UNSPACED):
            return 0
        return sum(map(len, UNSPACED_RUN.findall(self.text)))

    @property
    def num_words(self) -> int:
        """Number of words, estimated for scripts without spaces between them."""
        return len(self.words) + self.unspaced_letters // UNSPACED_WORD


Check = Callable[[SideText, SideText], str | None]
"""Function that returns the fault of a pair; None if it has none."""


class Judgement(NamedTuple):
    """Finding of the rules for single pairs; sizes and digests only of a kept pair."""

    code: int
    """Number of the broken rule; 0 for none."""
    detail: str
    """Explanation: the words that break the rule, and their side."""
    source_size: int = 0
    """Number of characters of the source without white space."""
    target_size: int = 0
    source_digest: int = 0
    target_digest: int = 0


class Loop(NamedTuple):
    """Phrase that a text repeats in a row."""

    times: int
    phrase: str


class PairRules:
    """The rules that look at one pair only, for the languages of one corpus."""

    def __init__(
        self,
        config: CleaningConfig,
        source_language: str | None = None,
        target_language: str | None = None,
        dev_sources: frozenset[int] = frozenset(),
    ) -> None:
        """Prepare the rules.

        Languages are BCP 47 tags; without one, a side may be in any script.
        `dev_sources` are the digests of the sources of the dev text.
        """
        self._config = config
        self._dev_sources = dev_sources if config.has("in-dev") else frozenset()
        self._languages = {"source": source_language, "target": target_language}
        self._scripts = {
            side: None if tag is None else script_letters(tag)
            for side, tag in self._languages.items()
        }
        self._east_asian = {
            side: None if tag is None else east_asian(tag)
            for side, tag in self._languages.items()
        }
        patterns = {kind.replace(" ", "-"): each for kind, each in MARKS.items()}
        self._marks = {
            rule: patterns[rule]
            for rule in RULES
            if rule in patterns and config.has(rule)
        }
        checks: dict[str, Check] = {
            "markup": _on_either(_markup),
            "url-only": _on_either(_only_addresses),
            "few-letters": _on_either(self._few_letters),
            "wrong-script": _on_either(self._wrong_script),
            "too-long": _on_either(self._too_long),
            "long-word": _on_either(self._long_word),
            "identical": self._identical,
            "numbers": _numbers,
            "loop": self._loop,
        }
        self._checks = [
            (CODES[rule], check) for rule, check in checks.items() if config.has(rule)
        ]

    def judge(self, source: bytes, target: bytes) -> Judgement:
        """Apply the rules to a pair of lines; the first broken one counts."""
        first, second = _side("source", source), _side("target", target)
        if first is None or second is None:
            name, content = ("source", source) if first is None else ("target", target)
            return _dropped("not-text", f"{name}: {text_fault(content)}")
        if self._config.has("empty") and not (first.words and second.words):
            return _dropped("empty", _empty_sides(first, second))
        source_digest = text_digest(first.text)
        if source_digest in self._dev_sources:
            return _dropped("in-dev", "source")
        if mark := self._mark(first) or self._mark(second):
            return mark
        for code, check in self._checks:
            if (detail := check(first, second)) is not None:
                return Judgement(code, detail)
        return Judgement(
            0, "", first.size, second.size, source_digest, text_digest(second.text)
        )

    def _mark(self, side: SideText) -> Judgement | None:
        if side.is_ascii and side.text.isprintable():  # most text, and faster
            return None
        if not ANY_MARK.search(side.text):
            return None
        for rule, pattern in self._marks.items():
            if match := pattern.search(side.text):
                return _dropped(rule, f"{side.name}: {code_points(match[0])}")
        return None

    def _few_letters(self, side: SideText) -> str | None:
        required = self._config.min_letters * side.size
        if side.size <= self._config.short_characters:
            required = min(required, 1)
        number = len(side.letters)
        if number and number >= required:
            return None
        # Vowel signs and other marks belong to the letters.
        number += sum(unicodedata.category(each)[0] == "M" for each in side.text)
        if number and number >= required:
            return None
        return f"letters are {number:,} of {side.size:,} characters"

    def _wrong_script(self, side: SideText) -> str | None:
        pattern = self._scripts[side.name]
        number = len(side.letters)
        if pattern is None or number <= self._config.short_letters:
            return None
        if side.is_ascii and pattern.match("a"):
            return None
        expected = len(pattern.findall(side.letters))
        if expected >= self._config.min_script * number:
            return self._other_east_asian(side)
        language = english_name(self._languages[side.name] or "")
        return f"{expected:,} of {number:,} letters are of the script of {language}"

    def _other_east_asian(self, side: SideText) -> str | None:
        """Detail of a side in another of the languages with Chinese characters.

        Sentences have kana in Japanese, Hangul in Korean, and neither in Chinese.
        """
        match self._east_asian[side.name]:
            case "zh":
                number, kana = len(side.letters), len(KANA.findall(side.letters))
                if kana <= MANY_KANA * number:
                    return None
                return f"{kana:,} of {number:,} letters are kana"
            case "ja":
                own, name, most = KANA, "kana", HAN_WITHOUT_KANA
            case "ko":
                own, name, most = HANGUL, "Hangul", self._config.short_letters
            case _:
                return None
        if own.search(side.letters):
            return None
        number = len(HAN.findall(side.letters))
        if number <= most:
            return None
        return f"{number:,} Chinese characters without {name}"

    def _too_long(self, side: SideText) -> str | None:
        if side.size <= self._config.max_words or (
            side.num_words <= self._config.max_words
        ):
            return None
        return f"{side.num_words:,} words"

    def _long_word(self, side: SideText) -> str | None:
        if side.size <= self._config.max_word_characters:
            return None
        longest = max(side.words, key=len)
        if len(longest) <= self._config.max_word_characters:
            return None
        for word in side.words:
            parts = UNSPACED_RUN.sub("", word).split(ETHIOPIC_SPACE)
            length = max(map(len, parts))
            if length > self._config.max_word_characters and not _is_address(word):
                return f"{shown(word)} has {len(word):,} characters"
        return None

    def _identical(self, source: SideText, target: SideText) -> str | None:
        if len(source.letters) != len(target.letters):
            return None
        if source.letters.casefold() != target.letters.casefold():
            return None
        if source.num_words <= self._config.identical_words:
            return None
        if _words_alone(source) != _words_alone(target):
            return None
        return "but for case and punctuation"

    def _loop(self, source: SideText, target: SideText) -> str | None:
        for side, other in ((source, target), (target, source)):
            loop = longest_loop(side, self._config.max_repeats)
            if loop is None:
                continue
            # The other side may translate the loop, with half as many repeats or more.
            half = (loop.times + 1) // 2
            if longest_loop(other, max_repeats=max(half - 1, 1)) is None:
                return f"{side.name}: {shown(loop.phrase)} {loop.times:,} times"
        return None


def text_fault(content: bytes) -> str:
    """Describe why a line is not text: by its length, its encoding, or its first
    invalid byte, whose position counts from 1."""
    if len(content) > MAX_LINE_BYTES:
        return f"more than {MAX_LINE_BYTES:,} bytes"
    if b"\0" not in content and is_iso_2022(content):
        return "in ISO-2022"
    valid, *_ = NOT_TEXT.split(content.decode("utf-8", "surrogateescape"), maxsplit=1)
    offset = len(valid.encode("utf-8"))
    return f"byte {offset + 1} is 0x{content[offset]:02x}"


def code_points(text: str) -> str:
    """Write characters as U+0041 U+0042."""
    return " ".join(f"U+{ord(character):04X}" for character in text)


def longest_loop(side: SideText, max_repeats: int) -> Loop | None:
    """Phrase that a side has most often in a row, if more than `max_repeats` times.

    A phrase has at most `LONGEST_PHRASE` words, or letters of scripts without spaces.
    `max_repeats` is at least 1.
    """
    pattern = UNSPACED_UNITS if side.unspaced_letters else UNITS
    units = pattern.findall(side.text.casefold())
    if len(units) - len(set(units)) < max_repeats:
        return None
    found: Loop | None = None
    for length in range(1, min(LONGEST_PHRASE, len(units) // (max_repeats + 1)) + 1):
        # A loop has so many equal units at this distance; nearly all text has fewer.
        if sum(map(eq, units[length:], units)) < length * max_repeats:
            continue
        times, end = _most_in_a_row(units, length)
        if times > (max_repeats if found is None else found.times):
            phrase = units[end - length : end]
            is_unspaced = UNSPACED_LETTER.match(phrase[0])
            found = Loop(times, ("" if is_unspaced else " ").join(phrase))
    return found


def _most_in_a_row(units: Sequence[str], length: int) -> tuple[int, int]:
    """Return how many times in a row a phrase of `length` units occurs at most.

    The second number is the end of the last occurrence. Without a repetition, the
    numbers are 1 and 0.
    """
    run = longest = end = 0
    for position in range(length, len(units)):
        run = run + 1 if units[position] == units[position - length] else 0
        if run > longest:
            longest, end = run, position + 1
    return longest // length + 1, end


def shown(text: str) -> str:
    """Quote a text, cut to `SHOWN` characters."""
    return f'"{text}"' if len(text) <= SHOWN else f'"{text[:SHOWN]}..."'


def _side(name: str, content: bytes) -> SideText | None:
    """Decode a side; None if training refuses it: see `Line.text`."""
    if len(content) > MAX_LINE_BYTES or b"\0" in content or is_iso_2022(content):
        return None
    try:
        return SideText(name, content)
    except UnicodeDecodeError:
        return None


def _dropped(rule: str, detail: str) -> Judgement:
    return Judgement(CODES[rule], detail)


def _on_either(find: Callable[[SideText], str | None]) -> Check:
    def check(source: SideText, target: SideText) -> str | None:
        for side in (source, target):
            if (detail := find(side)) is not None:
                return f"{side.name}: {detail}"
        return None

    return check


def _empty_sides(source: SideText, target: SideText) -> str:
    return " and ".join(side.name for side in (source, target) if not side.words)


def _markup(side: SideText) -> str | None:
    has_bracket = "<" in side.text or "-->" in side.text
    if has_bracket and (match := TAG.search(side.text)):
        return shown(match[0])
    if "&" in side.text:
        for match in ENTITY.finditer(side.text):
            if match[0][1] == "#" or match[0][1:] in html5:
                return shown(match[0])
    return None


def _only_addresses(side: SideText) -> str | None:
    address = ""
    for word in side.words:
        if _is_address(word):
            address = word
        elif LETTERS.search(word):
            return None
    return shown(address) if address else None


def _is_address(word: str) -> bool:
    return ADDRESS.fullmatch(word.strip(AROUND_ADDRESS)) is not None


def _words_alone(side: SideText) -> str:
    """Letters and digits of a text, without case and punctuation."""
    return "".join(WORDS.findall(side.text)).casefold()


def _numbers(source: SideText, target: SideText) -> str | None:
    found = NUMBER.findall(source.text)
    others = NUMBER.findall(target.text) if found else []
    if not others or found == others:
        return None
    ours, theirs = _by_digits(found), _by_digits(others)
    if ours.keys() <= theirs.keys() or theirs.keys() <= ours.keys():
        return None
    our_readings, their_readings = _readings(source.text), _readings(target.text)
    only_ours = _not_among(ours, our_readings, theirs, their_readings)
    only_theirs = _not_among(theirs, their_readings, ours, our_readings)
    calendars = {
        difference
        for letters, differences in CALENDARS
        if letters.search(source.text) or letters.search(target.text)
        for difference in differences
    }
    ours_alone = _without_other_form(only_ours, only_theirs, calendars)
    theirs_alone = _without_other_form(only_theirs, only_ours, calendars)
    if not ours_alone or not theirs_alone:
        return None
    return f"{ours_alone[0]} in the source, {theirs_alone[0]} in the target"


def _by_digits(numbers: Iterable[str]) -> dict[str, str]:
    """Digits of numbers, by their digits without the zeros at both ends.

    Numbers with the same key are equal: 3 million and 300 ten thousands, 09:00 and 9.
    """
    digits = {each.strip("0"): each for each in map(_ascii_digits, numbers)}
    digits.pop("", None)
    return digits


Readings = dict[str, dict[int, set[str]]]
"""Parts of the numbers of a text, as keys of `_by_digits`, by the number's own key and
the power of ten after its digits: 1.2 has the key 12, the power -1, and the parts 1 and
2."""


def _readings(text: str) -> Readings:
    """Find numbers, also those that are read as one: 1.2 as 12, 1万2345 as 12345.

    The year of an era, such as 平成30年, can be read as our year.
    """
    found: Readings = {}

    def add(whole: str, num_decimals: int, parts: Iterable[str]) -> None:
        power = len(whole) - len(whole.rstrip("0")) - num_decimals
        by_power = found.setdefault(whole.strip("0"), {})
        by_power.setdefault(power, set()).update(parts)

    for number in NUMBER.findall(text):
        add(_ascii_digits(number), 0, _by_digits([number]))
    digits, parts = "", set[str]()
    value, is_before = 0, False
    for match in COMPOUND.finditer(text):
        if not is_before:
            digits, parts, value = "", set(), 0
        own = _ascii_digits(match[1])
        digits += own
        parts |= _by_digits(NUMBER.findall(match[1])).keys()
        is_before = bool(match[2] and match[3]) and len(digits) <= MAX_POWER_DIGITS
        if len(digits) <= MAX_POWER_DIGITS:
            value += int(own) * 10 ** EXPONENTS.get((match[2] or "").strip().lower(), 0)
        if not is_before:
            whole = str(value) if len(digits) <= MAX_POWER_DIGITS else digits
            add(whole, _num_decimals(match[1]), parts)
    for match in ERA_YEAR.finditer(text):
        year = YEAR_BEFORE_ERA[match[1]] + int(match[2])
        add(str(year), 0, _by_digits([match[2]]))
    return found


def _num_decimals(number: str) -> int:
    """Count the digits after the last mark of a number, if it is a decimal mark.

    A mark that occurs twice is none. Three digits after a mark are thousands, except
    after 0, as in 0.375.
    """
    last = re.search(rf"([{NUMBER_MARKS}])(\d+)\Z", number)
    if last is None or number.count(last[1]) > 1:
        return 0
    is_below_one = _ascii_digits(number[: last.start()]) == "0"
    return 0 if len(last[2]) == len("000") and not is_below_one else len(last[2])


def _not_among(
    numbers: dict[str, str],
    readings: Readings,
    others: dict[str, str],
    other_readings: Readings,
) -> list[str]:
    """Numbers that the other side does not have, in any reading of both."""
    known = set(others)
    for whole, by_power in readings.items():
        powers = other_readings.get(whole, {})
        for power, parts in by_power.items():
            if not all(_is_mark_lost(power, other) for other in powers):
                known |= parts
    return [numbers[each] for each in numbers if each not in known]


def _is_mark_lost(power: int, other: int) -> bool:
    """Whether numbers with the same digits differ by a decimal mark alone.

    A share and its percentage differ by 2 as well, but are one number: 0.375 is 37.5 %.
    """
    is_percentage = abs(power - other) == len("00") and power < 0 and other < 0
    return abs(power - other) in LOST_MARK and not is_percentage


def _ascii_digits(number: str) -> str:
    if number.isascii() and number.isdigit():
        return number
    return "".join(str(unicodedata.digit(each)) for each in number if each.isdigit())


def _without_other_form(
    numbers: Sequence[str], others: Sequence[str], calendars: Container[int]
) -> list[str]:
    """Numbers that are not another form of one of the others.

    Forms differ as 1990 and 90 do, as 2020 and 2563 of the Buddhist calendar, or as 3
    pm and 15 Uhr. The years of other calendars differ by `calendars` from ours.
    """
    return [
        each
        for each in numbers
        if not any(
            _is_same_year(each, o, calendars) or _is_same_hour(each, o) for o in others
        )
    ]


def _is_same_year(one: str, other: str, calendars: Container[int]) -> bool:
    shorter, longer = sorted((one, other), key=len)
    _, with_century = YEAR_DIGITS
    if len(shorter) == len(longer) == with_century:
        return abs(int(one) - int(other)) in calendars
    return (len(shorter), len(longer)) == YEAR_DIGITS and longer.endswith(shorter)


def _is_same_hour(one: str, other: str) -> bool:
    earlier, later = sorted((int(one[:20]), int(other[:20])))
    return later - earlier == NOON and later < 2 * NOON
