"""Where the sentences of a line end: by rules, and by a library's where it is there.

The rules decide what shape and a table of abbreviations can tell: initials, ordinals,
list numbers, ellipses, quotes after the stop, scripts without spaces. Of a full stop
after a word that they do not know, `sentencex` (with the extra `serve`) is asked, as it
has the abbreviations of some 300 languages; without it the stop ends the sentence.
All take time linear in the text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

from transduce.text.documents.abbreviations import Abbreviations, abbreviations

Judgement = Literal["end", "inside", "unknown"]
Segment = Callable[[str, str], list[str]]
"""Sentences, which in a row are the text, by language and text."""

CLOSERS = "\"'\u2019\u201d\u201c\u2018»«›‹)\\]}」』）】〉》〕〗］｝＂＇"
UNSPACED_STOPS = "。！？｡．"
"""Ends of Chinese and Japanese: no space follows."""
SPACED_STOPS = "।॥։።፧፨؟۔။។៕།܀᱾᠃꓿\u037e"
"""Ends of other scripts: they always end a sentence, with or without a space."""
STOP = re.compile(
    rf"[.!?…‼⁇⁈⁉‽{UNSPACED_STOPS}{SPACED_STOPS}]+"
    rf"(?:[{CLOSERS}]+|[ \u00a0\u202f](?=[»›](?:\s|$))[»›])?"
)
"""Marks in a row and what closes after them; French writes a space before ». """
SPACE = re.compile(r"\s*")
OPENERS = "\"'(\\[{«»‹›„“”‚‘’¿¡「『（【〈《*_#–—\\-"
NEXT_WORD = re.compile(rf"[{OPENERS}\s]{{0,16}}([^\s{CLOSERS},;:.!?…]{{0,32}})")
LAST_WORD = re.compile(r"\S{1,48}$")
UNSPACED = "\\u2e80-\\u30ff\\u31c0-\\u9fff\\uf900-\\ufaff\\uff00-\\uffef"
UNSPACED_SCRIPT = re.compile(rf"[{UNSPACED}]")
LEADING = re.compile(rf"^(?:.*[{UNSPACED}])?[\"'(\[{{«»‹›„“”‚‘’¿¡「『（【*_#/–—-]*")
"""Signs that open before a word, and Chinese or Japanese that it stands in."""
NUMBER = re.compile(r"[0-9]{1,9}\Z")
ROMAN = re.compile(r"[IVXLCDM]{1,7}\Z")
COUNTED = re.compile(r"[0-9(#]|[IVXLC]+\b|[A-Z]?[0-9]|[A-Z]\b")
"""What a word such as "No." is an abbreviation before."""
PARTS = re.compile(r"[^\W\d_]{1,3}(?:[.\u00a0\u202f]{1,2}[^\W\d_]{1,3})+\Z")
"""A word of short parts with stops between, such as "U.S" or "e.g"."""
LIST_MARKER = re.compile(r"\s*[(\[]?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{1,5})\Z")
BOUND_BEFORE = re.compile(r"^.*[-/](?=.)|^[^\W\d_]{1,5}['\u2019](?=[^\W\d_]{3})")
"""What is written together with a word: "und/" in "und/bzw.", "l'" in "l'art."."""
LIST_NUMBER = re.compile(r"\s+[0-9]{1,3}[.)]\s")
WIDE_NUMBER = re.compile(r"\d{1,3}")
CASED_LIKE_A_NAME = re.compile(r"[a-z]{1,2}[A-Z]")
GOES_ON_AFTER_QUOTE = re.compile(
    "[とはがをのにもへでや、，：；:,;～)）」』】]|って|だ|です"
)
"""What goes on with a sentence whose quotation has ended, mostly in Japanese."""
CLOSES_QUOTE = re.compile(r"[」』”’）】〉》]\Z")
EXCLAIMING_NAMES = frozenset({"yahoo", "jeopardy", "joomla", "kahoot", "wham", "yum"})
"""Names that are written with an exclamation mark."""
CUT = re.compile(r"\s\w")
"""Where a text, read from its end, may be cut: a space after a letter or digit."""
LOOK_BACK = 64
"""Characters in which the word before a stop is looked for."""
MAX_ASKED = 2_000
"""Characters that the library reads at once: its time grows with the square of a text
that opens quotes and closes none."""
MAX_ORDINAL = 31
"""Greatest number that is taken for an ordinal by itself: days have no greater."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """A place where a sentence may end."""

    line: str
    begin: int
    """Of the sentence so far."""
    start: int
    """Of the marks."""
    marks: str
    end: int
    """After what closes; the next word comes after the space there."""

    @property
    def space(self) -> str:
        found = SPACE.match(self.line, self.end)
        return found[0] if found else ""

    @property
    def before(self) -> str:
        """The word that the marks end, without what opens before it."""
        begin = max(self.start - LOOK_BACK, self.begin)
        found = LAST_WORD.search(self.line[begin : self.start])
        return LEADING.sub("", found[0]) if found else ""

    @property
    def word_before_last(self) -> str:
        """The word before that word, its own stop kept."""
        text = self.line[max(self.begin, self.start - 2 * LOOK_BACK) : self.start]
        words = text.rsplit(None, 2)
        return LEADING.sub("", words[-2]) if len(words) > 1 else ""

    @property
    def is_first_word(self) -> bool:
        """Whether the sentence so far is but this word."""
        if self.start - self.begin > LOOK_BACK:
            return False
        return len(self.line[self.begin : self.start].split(None, 1)) < 2

    @property
    def after(self) -> str:
        """The next word, without what opens before it."""
        found = NEXT_WORD.match(self.line, self.end)
        return found[1] if found else ""

    @property
    def is_among_han(self) -> bool:
        """Whether it is an ASCII mark that Chinese or Japanese goes on after."""
        if self.space or self.marks[-1] not in "!?":
            return False
        return UNSPACED_SCRIPT.match(self.line, self.end) is not None

    @property
    def is_remark(self) -> bool:
        """Whether it stands alone in brackets, as in (!)."""
        return self.start > 0 and self.line[self.start - 1] in "(["

    @property
    def is_closed(self) -> bool:
        """Whether a bracket or a quotation closes after it."""
        return self.end > self.start + len(self.marks)

    def is_before_starter(self, table: Abbreviations) -> bool:
        """Whether the next word is one that is capitalised to begin a sentence."""
        found = NEXT_WORD.match(self.line, self.end)
        word = found[1] if found else ""
        if not found or word[:1].islower() or word.lower() not in table.starters:
            return False
        # A letter with a stop is an initial.
        return len(word) > 1 or self.line[found.end() : found.end() + 1] != "."


def sentence_ends(line: str, language: str | None = None) -> list[tuple[int, int]]:
    """Where each sentence but the last ends, and where the next one begins.

    The language is a base language, such as "de", or unknown. White space is between
    the two, or nothing where none is written.
    """
    table = abbreviations(language)
    known = _LibraryEnds(line, language)
    found: list[tuple[int, int]] = []
    begin = len(line) - len(line.lstrip())
    last = len(line.rstrip())
    for match in STOP.finditer(line):
        end = match.end()
        if end >= last:
            break
        marks = match[0].rstrip(" \u00a0\u202f" + CLOSERS.replace("\\", ""))
        stop = _Stop(line, begin, match.start(), marks, end)
        judgement = _judge(stop, table)
        if judgement == "unknown":
            judgement = "end" if known.has_end(stop) else "inside"
        if judgement == "end":
            begin = end + len(stop.space)
            found.append((end, begin))
    return found


def sentence_spans(
    line: str, language: str | None = None, *, splits_lines: bool = True
) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line begin and end, without the space around them.

    The line is one sentence without `splits_lines`.
    """
    begin, last = len(line) - len(line.lstrip()), len(line.rstrip())
    for end, next_begin in sentence_ends(line, language) if splits_lines else ():
        yield begin, end
        begin = next_begin
    if begin < last:
        yield begin, last


def _judge(stop: _Stop, table: Abbreviations) -> Judgement:
    """What shape and table tell of a stop."""
    if stop.marks[-1] in SPACED_STOPS:
        return "end"
    if stop.marks[-1] in UNSPACED_STOPS or stop.is_among_han:
        return _judge_unspaced(stop)
    if not stop.space or stop.is_remark or _goes_on(stop):
        return "inside"
    if stop.is_closed:
        return _judge_closed(stop, table)
    if stop.marks == ".":
        return _judge_full_stop(stop, table)
    is_name = stop.marks == "!" and stop.before.lower() in EXCLAIMING_NAMES
    return "inside" if is_name else "end"


def _judge_unspaced(stop: _Stop) -> Judgement:
    """Of Chinese and Japanese: a quotation's end may be within the sentence."""
    if set(stop.marks) <= {"…"} or _is_wide_point(stop):
        return "inside"
    is_quote = CLOSES_QUOTE.search(stop.line[stop.end - 1 : stop.end])
    goes_on = GOES_ON_AFTER_QUOTE.match(stop.line, stop.end)
    return "inside" if is_quote and goes_on else "end"


def _is_wide_point(stop: _Stop) -> bool:
    """Whether a full-width point stands within a number, or after a list's number."""
    if stop.marks != "．" or not stop.line[stop.start - 1 : stop.start].isdecimal():
        return False
    is_list_number = WIDE_NUMBER.fullmatch(stop.line, stop.begin, stop.start)
    return bool(is_list_number) or stop.line[stop.end : stop.end + 1].isdecimal()


def _judge_closed(stop: _Stop, table: Abbreviations) -> Judgement:
    """A bracket or a quotation closes after the stop: "(e.g.) A" has no end."""
    is_bracketed = stop.line[stop.start + len(stop.marks)] in ")]}"
    is_short = stop.marks == "." and is_bracketed and _is_short_form(stop, table)
    return "inside" if is_short else "end"


def _goes_on(stop: _Stop) -> bool:
    """Whether lower case shows that the sentence goes on, where it began otherwise."""
    after = stop.after
    if not after[:1].islower() or CASED_LIKE_A_NAME.match(after):
        return False
    return not stop.line[stop.begin].islower()


def _is_short_form(stop: _Stop, table: Abbreviations) -> bool:
    word = stop.before.lower()
    return word in table.never or PARTS.match(word) is not None


def _judge_full_stop(stop: _Stop, table: Abbreviations) -> Judgement:
    word = stop.before
    if not word:
        return "end"  # a stop that stands alone, as in text cut into words
    starts = stop.is_before_starter(table)
    if stop.is_first_word and LIST_MARKER.match(stop.line[stop.begin : stop.start]):
        return "inside"
    is_known = word.lower() in table.never or word.lower() in table.final
    if _is_letter(word) and not is_known:
        return _judge_initial(stop, starts)
    if NUMBER.match(word) or ROMAN.match(word):
        return _judge_number(stop, table, starts)
    return _judge_word(stop, table, starts)


def _is_letter(word: str) -> bool:
    """Whether it is one letter of a script with two cases, its marks not counted."""
    letters = word if word.isascii() else "".join(c for c in word if c.isalnum())
    return len(letters) == 1 and letters.lower() != letters.upper()


def _judge_number(stop: _Stop, table: Abbreviations, starts: bool) -> Judgement:
    """An ordinal, or a number that ends a sentence."""
    word, after = stop.before, stop.after
    if word.isdigit() and len(word) < 3 and after.lower() in table.months:
        return "inside"
    if starts or not table.has_ordinal_stop:
        return "end"
    if stop.word_before_last.lower() in table.before_ordinals:
        return "inside"
    is_low = not word.isdigit() or int(word) <= MAX_ORDINAL
    return "inside" if is_low and after[:1].isalpha() else "end"


def _judge_initial(stop: _Stop, starts: bool) -> Judgement:
    """A letter with a stop: of a name, of an abbreviation in parts, or a last word."""
    before = stop.word_before_last
    is_lower = stop.before.islower() or (before[-1:] == "." and before[:1].islower())
    return "inside" if is_lower or not starts else "end"


def _judge_word(stop: _Stop, table: Abbreviations, starts: bool) -> Judgement:
    word, after = BOUND_BEFORE.sub("", stop.before.lower()), stop.after
    is_street = word.endswith(table.street_endings) and after[:1].isdigit()
    if is_street or (word in table.numeric and COUNTED.match(after)):
        starts_one = starts and (stop.before.islower() or word == "no")
        return "end" if starts_one else "inside"
    is_known = word in table.never or word in table.numeric
    if not is_known and LIST_NUMBER.match(stop.line, stop.end):
        return "end"
    if word in table.final:
        return "end" if starts or _ends_clause(word, after, table) else "inside"
    if word in table.never:
        return "inside"
    if PARTS.match(word) and not starts:
        return "inside"
    is_sure = starts or word in table.numeric or not after[:1].isalnum()
    return "end" if is_sure else "unknown"


def _ends_clause(word: str, after: str, table: Abbreviations) -> bool:
    """Whether what may be a last word is one before a capital: "5 p.m. Monday" not."""
    is_day = after.lower() in table.months
    return word not in table.never and after[:1].isupper() and not is_day


class _LibraryEnds:
    """Ends of a line's sentences as the library finds them, asked for part by part."""

    def __init__(self, line: str, language: str | None) -> None:
        self._line = line
        self._segment = None if language is None else _library()
        self._language = language or ""
        self._parts = self._bounded_parts()
        self._read = 0
        self._ends: set[int] = set()

    def has_end(self, stop: _Stop) -> bool:
        """Whether a sentence ends with the stop; it does where there is no library."""
        if self._segment is None:
            return True
        begin = stop.end + len(stop.space)
        while self._read < begin and (part := next(self._parts, "")):
            self._take(part)
        return any(end in self._ends for end in range(stop.start + 1, begin + 1))

    def _take(self, part: str) -> None:
        assert self._segment is not None
        place = self._read
        for sentence in self._segment(self._language, part):
            place += len(sentence)
            self._ends.add(place)
        self._read += len(part)

    def _bounded_parts(self) -> Iterator[str]:
        """The line in parts, each cut after a space that follows no stop."""
        start = 0
        while start < len(self._line):
            end = min(start + MAX_ASKED, len(self._line))
            if end < len(self._line):
                cut = CUT.search(self._line[start:end][::-1])
                end -= cut.start() if cut else 0
            yield self._line[start:end]
            start = end


@cache
def _library() -> Segment | None:
    try:
        segment: Segment = import_module("sentencex").segment
    except ImportError:
        return None
    return segment
