"""Splitting of text into sentences, and of long sentences into parts.

Rules with shapes and a table of abbreviations find the ends of sentences: they cover
initials, ordinals, list numbers, ellipses, quotes after the stop and scripts without
spaces. For a full stop after an unknown word, `sentencex` (with the extra `serve`)
decides, as it has the abbreviations of some 300 languages; without it the stop ends the
sentence. Everything takes time linear in the text. Sentences that are too long for a
model are split at clauses or words.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import chain
from string import digits
from typing import Literal

from transduce.text.abbreviations import Abbreviations, abbreviations
from transduce.text.inline_tags import HAN_OR_KANA, LineBorder, SentenceTags
from transduce.text.languages import WORD_MARKS, base
from transduce.text.sentence_pieces import SURROGATE

Judgement = Literal["end", "inside", "unknown"]
SegmentFunction = Callable[[str, str], list[str]]
"""Function that splits a text of a language into sentences that join to it again."""

CLOSERS = "\"'\u2019\u201d\u201c\u2018»«›‹)\\]}」』）】〉》〕〗〙〛］｝｣〞〟﹂﹄＂＇"
UNSPACED_STOPS = "。！？｡．"
"""Sentence ends of Chinese and Japanese, which no space follows."""
SPACED_STOPS = "।॥։።፧፨؟۔။។៕།܀᱾᠃꓿\u037e"
"""Sentence ends of other scripts, which always end a sentence."""
WIDE_SPACE = "\u3000"
WORD_SPACES = "፡፡"
"""Two marks between Ethiopic words, which many texts have in place of ።."""
KHMER_REST = "ល។"
"""Rest of ។ល។, which means "and so on", after its first mark."""
STOPS = f"[.!?…‼⁇⁈⁉‽{UNSPACED_STOPS}{SPACED_STOPS}]"
UNSEEN = "\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""Characters that show nothing, such as marks of direction."""
EMOJI = "[\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55\U0001f000-\U0001faff]\ufe0f?"
NOTE_NUMBER = r"\[(?:[1-9][0-9]{0,2}|[a-z])\]|[\u00b9\u00b2\u00b3\u2070-\u2079]"
NOTE = re.compile(rf"{NOTE_NUMBER}|[*_~†‡]")
"""Pattern of the number of a note, or of a sign of a note or of emphasis. Such signs
are a part of code and of numbers as well: temp.*, 2.²."""
AFTER_STOP = "|".join((
    NOTE_NUMBER,
    r"[*_~†‡]{1,3}(?=\s|$)",
    rf"{EMOJI}(?:\u200d{EMOJI})*",
    f"[{UNSEEN}]",
))  # fmt: skip
"""Pattern of text that may follow the end of a sentence and belongs to it: the number
of a note, signs that end emphasis in plain text, an emoji, or invisible characters."""
EMPHASIS = re.compile(r"\*+|_+|~+")
OPENS_EMPHASIS = re.compile(rf"[^\W_]|[\"'(\[«»‹›„“”‚‘’¿¡{UNSEEN}]")
"""Pattern of the character after a sign that begins emphasis."""
CODE_SIGN = re.compile(r"[\s*_~`/\\(\[{<|=+^&$#@:;,-]")
"""Pattern of the character before a stop that is itself a sign, as in *.* and .*."""
STOP = re.compile(
    rf"(?P<marks>\.(?:[ \u00a0\u202f]\.){{2,}}|{WORD_SPACES}|།+(?:[ \u00a0]།+)+"
    rf"|{STOPS}+)"
    rf"(?P<closers>[{UNSEEN}]*[{CLOSERS}][{CLOSERS}{UNSEEN}]*"
    r"|[ \u00a0\u202f](?=[»›](?:\s|$))[»›])?"
    rf"(?P<notes>(?:{AFTER_STOP})*)"
)
"""Pattern of marks, the closing signs after them, and notes. French has a space before
». Dots with spaces between them are an ellipsis."""
GREEK_QUESTION = rf"(?<=[\u0370-\u03ff\u1f00-\u1fff{CLOSERS}]);"
GREEK_STOP = re.compile(STOP.pattern.replace(STOPS, f"(?:{STOPS}|{GREEK_QUESTION})", 1))
"""The same in Greek, where a semicolon after a word is a question mark. After a number
or a foreign word, as in citations and code, it is a semicolon."""
LOW_QUOTED = frozenset(
    {
        "de", "lb", "cs", "sk", "sl", "hr", "sr", "bs", "mk", "bg", "et", "lt", "lv",
        "is", "ka", "fo", "hsb", "dsb",
    }
)  # fmt: skip
"""Languages in which “ and ‘ close, as in „so“."""
POINTED_INWARDS = frozenset(
    {"de", "lb", "da", "cs", "sk", "sl", "hr", "sr", "bs", "hu", "pl"}
)
"""Languages in which « and ‹ close, as in »so«; some texts use «so» as well."""
QUOTE_SIGN = re.compile("[„“”‚‘«»‹›]")
OPENED_BY = {
    "“": "„", "”": "„", "‘": "‚", "«": "»", "»": "«", "‹": "›", "›": "‹",
}  # fmt: skip
"""Opening signs by the closing ones that may also open."""
OPENING = "“„‘‚«»‹›"
SPACE = re.compile(r"\s*")
ALL_UNSEEN = re.compile(f"[{UNSEEN}]+")
OPENERS = f"\"'(\\[{{«»‹›„“”‚‘’¿¡「『（【〈《*_#–—\\-{UNSEEN}"
NEXT_WORD = re.compile(rf"[{OPENERS}\s]{{0,16}}([^\s{CLOSERS},;:.!?…]{{0,32}})")
LAST_WORD = re.compile(r"\S{1,48}$")
UNSPACED = "\\u2e80-\\u30ff\\u31c0-\\u9fff\\uf900-\\ufaff\\uff00-\\uffef"
BEFORE_OPENING = re.compile(rf"[{OPENING}¿¡]{{1,4}}([^\W\d_])")
UNSPACED_SCRIPT = re.compile(rf"[“‘]?[{UNSPACED}]")
LEADING = re.compile(
    rf"^(?:.*[{UNSPACED}])?[\"'(\[{{«»‹›„“”‚‘’¿¡「『（【*_#/–—{UNSEEN}-]*"
)
"""Signs that open before a word, and Chinese or Japanese that it stands in."""
NUMBER = re.compile(r"[0-9]{1,9}\Z")
YEAR = re.compile(r"[0-9]{4}\Z")
ROMAN = re.compile(r"[IVXLCDM]{1,7}\Z")
COUNTED = re.compile(r"[\d(#]|[IVXLC]+\b|[A-Z]?\d|[A-Z]\b")
"""Pattern of the next word that makes words such as "No." an abbreviation."""
PARTS = re.compile(r"[^\W\d_]{1,3}(?:[.\u00a0\u202f]{1,2}[^\W\d_]{1,3})+\Z")
"""Pattern of short parts with stops between them, such as "U.S" or "e.g"."""
LIST_MARKER = re.compile(r"\s*[*_]{0,3}[(\[]?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{1,5})\Z")
BOUND_BEFORE = re.compile(r"^.*[-/](?=.)|^[^\W\d_]{1,5}['\u2019](?=[^\W\d_]{3})")
"""Pattern of a part joined to a word: "und/" in "und/bzw.", "l'" in "l'art."."""
LIST_NUMBER = re.compile(r"\s+[0-9]{1,3}[.)]\s")
WIDE_NUMBER = re.compile(r"\d{1,3}")
CASED_LIKE_A_NAME = re.compile(r"[a-z]{1,2}[A-Z]")
GOES_ON_AFTER_QUOTE = re.compile(
    "[とはがをのにもへでや、，：；:,;～)）」』】｣。！？｡．]|って|だ|です|的(?![确確])"
)
"""Pattern of text that continues a sentence after a quotation, mostly in Japanese."""
CLOSES_QUOTE = re.compile(r"[」』”’）】〉》｣〞〟﹂﹄\"＂)\]]\Z")
CLOSES_TITLE = re.compile(r"[〉》]\Z")
"""Pattern of signs after a title, which is a part of a sentence and never all of it."""
CLOSED_BY = {
    "「": "」", "『": "』", "｢": "｣", "﹁": "﹂", "﹃": "﹄", "（": "）", "《": "》",
    "〈": "〉", "【": "】", "〔": "〕", "〖": "〗", "“": "”", "‘": "’", "(": ")",
    "[": "]",
}  # fmt: skip
"""Closing signs of quotations, brackets and titles in Chinese and Japanese."""
STRAIGHT = '"＂'
"""Quotation marks that both open and close: every second one closes."""
OF_ALL_SCRIPTS = f"“‘([{STRAIGHT}"
"""Opening signs of other languages as well."""
BRACKET = re.compile(f"[{re.escape(''.join(chain(*CLOSED_BY.items())))}{STRAIGHT}]")
MAX_QUOTED = 120
"""Maximum number of characters of a quotation in Chinese, Japanese or Korean that is
not split at its own sentences, as a model reads one sentence, or few, at a time."""
HANGUL = re.compile("[\uac00-\ud7a3]")
EXCLAIMING_NAMES = frozenset({"yahoo", "jeopardy", "joomla", "kahoot", "wham", "yum"})
"""Names that are written with an exclamation mark."""
CUT = re.compile(r"\s\w")
"""Pattern of a place to cut reversed text: a space after a letter or digit."""
LOOK_BACK = 64
"""Characters before a stop that are searched for the word before it."""
MAX_ASKED = 2_000
"""Maximum number of characters the library reads at once: with unclosed quotes, its
time is quadratic."""
MAX_ORDINAL = 31
"""Largest number that counts as an ordinal by itself, such as the day of a month."""
MONTH_OF_DATE = re.compile(r"[ \u00a0\u202f](?:0?[1-9]|1[0-2])\.")
YEAR_OF_DATE = re.compile(
    r"[ \u00a0\u202f](?:[0-9]{4}(?![0-9])|['\u2019]?[0-9]{2}(?![0-9.]))"
)
"""Pattern of the year after the day and the month in numbers, as in 3. 4. 1980."""
TIME_ZONES = frozenset(
    {
        "est", "edt", "cst", "cdt", "mst", "mdt", "pst", "pdt", "et", "pt", "gmt",
        "utc", "bst", "cet",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stop:
    """Place where a sentence may end."""

    line: str
    begin: int
    """Offset of the beginning of the current sentence."""
    start: int
    """Offset of the marks."""
    marks: str
    closers: str
    """Closing signs after the marks."""
    notes: str
    """Notes, signs and emoji after the closing signs."""
    ends_emphasis: bool
    """Whether a sign among the notes ends emphasis that began before."""
    end: int
    """Offset after all that belongs to the sentence; space and the next word follow."""

    @property
    def space(self) -> str:
        found = SPACE.match(self.line, self.end)
        return found[0] if found else ""

    @property
    def before(self) -> str:
        """Word before the marks, without opening signs."""
        begin = max(self.start - LOOK_BACK, self.begin)
        found = LAST_WORD.search(self.line[begin : self.start])
        return ALL_UNSEEN.sub("", LEADING.sub("", found[0])) if found else ""

    @property
    def word_before_last(self) -> str:
        """Word before `before`, with its own stop."""
        text = self.line[max(self.begin, self.start - 2 * LOOK_BACK) : self.start]
        words = text.rsplit(None, 2)
        return LEADING.sub("", words[-2]) if len(words) > 1 else ""

    @property
    def is_first_word(self) -> bool:
        """Whether the current sentence has only this word so far."""
        if self.start - self.begin > LOOK_BACK:
            return False
        return len(self.line[self.begin : self.start].split(None, 1)) < 2

    @property
    def after(self) -> str:
        """Next word, without opening signs."""
        found = NEXT_WORD.match(self.line, self.end)
        return found[1] if found else ""

    @property
    def is_among_han(self) -> bool:
        """Whether it is an ASCII mark followed at once by Chinese or Japanese; a full
        stop only with a quotation mark, as it may be a point."""
        is_quoted = self.marks == "." and CLOSES_QUOTE.search(self.closers)
        if self.space or not (is_quoted or self.marks[-1] in "!?"):
            return False
        return UNSPACED_SCRIPT.match(self.line, self.end) is not None

    @property
    def is_before_opening(self) -> bool:
        """Whether a quotation, or a question in Spanish, follows at once, begun by a
        letter that is not small."""
        found = BEFORE_OPENING.match(self.line, self.end)
        return found is not None and not found[1].islower()

    @property
    def is_after_text(self) -> bool:
        """Whether the marks end a text, and are no sign themselves, as in *.* or .*."""
        last = self.start - 1
        if self.marks[-1] in "!?" and self.line[last : last + 1] in " \u00a0\u202f":
            last -= 1  # as in French
        return last >= 0 and CODE_SIGN.match(self.line, last) is None

    @property
    def is_remark(self) -> bool:
        """Whether the marks stand alone in brackets, as in (!)."""
        return self.start > 0 and self.line[self.start - 1] in "(["

    def is_before_starter(self, table: Abbreviations) -> bool:
        """Whether the next word is a starter, capitalised to begin a sentence."""
        found = NEXT_WORD.match(self.line, self.end)
        word = found[1] if found else ""
        if not found or word[:1].islower() or word.lower() not in table.starters:
            return False
        # A letter with a stop is an initial.
        return len(word) > 1 or self.line[found.end() : found.end() + 1] != "."


def sentence_spans(
    line: str, language: str | None = None, *, splits_lines: bool = True
) -> Iterator[tuple[int, int]]:
    """Spans of the sentences of a line, without the space around them.

    The language is a base language, such as "de", or unknown. Without `splits_lines`
    the line is one sentence.
    """
    begin, last = len(line) - len(line.lstrip()), len(line.rstrip())
    if splits_lines:
        for end, begin_of_next in _sentence_ends(line, begin, last, language):
            yield begin, end
            begin = begin_of_next
    if begin < last:
        yield begin, last


def _sentence_ends(
    line: str, begin: int, last: int, language: str | None
) -> Iterator[tuple[int, int]]:
    """End of each sentence but the last, with the beginning of the next one.

    Text begins at `begin` and ends at `last`.
    """
    table = abbreviations(language)
    known = _LibraryEnds(line, language)
    quotes = _Quotes(line, language)
    emphasis = _ends_of_emphasis(line)
    for match in (GREEK_STOP if language == "el" else STOP).finditer(line):
        end_of_marks, notes = match.end("marks"), match.start("notes")
        end = quotes.end_of_closers(end_of_marks, match.end())
        if end >= last:
            break
        if quotes.is_quoted(match.start(), end):
            continue
        stop = _Stop(
            line=line,
            begin=begin,
            start=match.start(),
            marks=match["marks"],
            closers=ALL_UNSEEN.sub("", line[end_of_marks : min(end, notes)]),
            notes=line[notes:end],
            ends_emphasis=any(place in emphasis for place in range(notes, end)),
            end=end,
        )
        judgement = _judge(stop, table)
        if judgement == "end" or (judgement == "unknown" and known.has_end(stop)):
            begin = end + len(stop.space)
            yield end, begin


def _judge(stop: _Stop, table: Abbreviations) -> Judgement:
    """Judge a stop by its shape and the table."""
    if stop.marks[-1] in SPACED_STOPS or stop.marks == WORD_SPACES:
        is_and_so_on = stop.line.startswith(KHMER_REST, stop.end)
        return "inside" if stop.marks == "។" and is_and_so_on else "end"
    if stop.marks[-1] in UNSPACED_STOPS or stop.is_among_han:
        return _judge_unspaced(stop)
    has_border = stop.space or stop.is_before_opening
    is_within = stop.is_remark or _goes_on(stop) or _has_doubtful_note(stop, table)
    if not has_border or is_within:
        return "inside"
    if stop.closers:
        return _judge_closed(stop, table)
    if stop.marks == ".":
        return _judge_full_stop(stop, table)
    is_name = stop.marks == "!" and stop.before.lower() in EXCLAIMING_NAMES
    return "inside" if is_name else "end"


def _judge_unspaced(stop: _Stop) -> Judgement:
    """Judge a Chinese or Japanese stop; a quotation may end within the sentence."""
    if set(stop.marks) <= {"…"} or _is_wide_point(stop):
        return "inside"
    is_quote = CLOSES_QUOTE.search(stop.closers)
    goes_on = GOES_ON_AFTER_QUOTE.match(stop.line, stop.end)
    is_name = stop.marks == "!" and stop.before.lower() in EXCLAIMING_NAMES
    is_title = CLOSES_TITLE.search(stop.closers) and not stop.space
    is_within = is_name or is_title or (is_quote and goes_on)
    return "inside" if is_within else "end"


def _is_wide_point(stop: _Stop) -> bool:
    """Whether a full-width point stands within a number, or after a list's number."""
    if stop.marks != "．" or not stop.line[stop.start - 1 : stop.start].isdecimal():
        return False
    is_list_number = WIDE_NUMBER.fullmatch(stop.line, stop.begin, stop.start)
    return bool(is_list_number) or stop.line[stop.end : stop.end + 1].isdecimal()


def _judge_closed(stop: _Stop, table: Abbreviations) -> Judgement:
    """Judge a stop before a closing sign: "(e.g.) A" is one sentence."""
    if stop.marks != "." or stop.closers[0] not in ")]}":
        return "end"
    word = stop.before.lower()
    is_short = word in table.never or PARTS.match(word)
    return "inside" if is_short else "end"


def _goes_on(stop: _Stop) -> bool:
    """Whether lower case after the stop continues a capitalized sentence."""
    after = stop.after
    if not after[:1].islower() or CASED_LIKE_A_NAME.match(after):
        return False
    return not stop.line[stop.begin].islower()


def _has_doubtful_note(stop: _Stop, table: Abbreviations) -> bool:
    """Whether signs follow a stop that are no certain note or end of emphasis.

    They may be a part of code or of a number: temp.*, *.*, 2.².
    """
    if NOTE.search(stop.notes) is None:
        return False
    after = stop.after
    is_lower = after[:1].islower() and not CASED_LIKE_A_NAME.match(after)
    if is_lower or not stop.is_after_text:
        return True
    is_sign = any(sign in stop.notes for sign in "*_~")
    is_numeric = stop.marks == "." and stop.before[-1:].isdigit()
    is_doubtful = is_sign or (is_numeric and not YEAR.match(stop.before))
    is_certain = stop.ends_emphasis or stop.is_before_starter(table)
    return is_doubtful and not is_certain


def _judge_full_stop(stop: _Stop, table: Abbreviations) -> Judgement:
    """Judge a full stop by the words before and after it."""
    word = stop.before
    if not word:
        return "end"  # a stop that stands alone, as in tokenized text
    starts = stop.is_before_starter(table)
    if stop.is_first_word and LIST_MARKER.match(stop.line[stop.begin : stop.start]):
        return "inside"
    is_known = word.lower() in table.never or word.lower() in table.final
    if _is_letter(word) and not is_known:
        return _judge_initial(stop, starts)
    if NUMBER.match(word) or (ROMAN.match(word) and not is_known):
        return _judge_number(stop, table, starts)
    return _judge_word(stop, table, starts)


def _is_letter(word: str) -> bool:
    """Whether a word is one letter of a script with two cases, ignoring its marks."""
    letters = word if word.isascii() else "".join(c for c in word if c.isalnum())
    return len(letters) == 1 and letters.lower() != letters.upper()


def _judge_number(stop: _Stop, table: Abbreviations, starts: bool) -> Judgement:
    """Judge a number: an ordinal, or the end of a sentence."""
    word, after = stop.before, stop.after
    if word.isdigit() and len(word) < 3 and after.lower() in table.months:
        return "inside"
    if starts or not table.has_ordinal_stop:
        return "end"
    if _is_within_date(stop):
        return "inside"
    if stop.word_before_last.lower() in table.before_ordinals:
        return "inside"
    is_low = not word.isdigit() or int(word) <= MAX_ORDINAL
    return "inside" if is_low and after[:1].isalpha() else "end"


def _is_within_date(stop: _Stop) -> bool:
    """Whether a number is the day of a date in numbers, or its month before the year:
    24. 12. 1999."""
    if not stop.before.isdigit() or int(stop.before) > MAX_ORDINAL:
        return False
    if MONTH_OF_DATE.match(stop.line, stop.end):
        return True
    day = stop.word_before_last
    is_month = day.endswith(".") and day[:-1].isdecimal() and int(stop.before) <= 12
    return is_month and YEAR_OF_DATE.match(stop.line, stop.end) is not None


def _judge_initial(stop: _Stop, starts: bool) -> Judgement:
    """Judge a letter: an initial, a part of an abbreviation, or a last word."""
    before = stop.word_before_last
    is_lower = stop.before.islower() or (before[-1:] == "." and before[:1].islower())
    return "inside" if is_lower or not starts else "end"


def _judge_word(stop: _Stop, table: Abbreviations, starts: bool) -> Judgement:
    """Judge a word: an abbreviation, or a last word, which `starts` makes likelier.

    `starts` says whether the next word is one that begins sentences.
    """
    if stop.before in table.words:
        return "end"
    word, after = BOUND_BEFORE.sub("", stop.before.lower()), stop.after
    is_numeric, is_final = word in table.numeric, word in table.final
    is_street = word.endswith(table.street_endings) and after[:1].isdigit()
    if is_street or (is_numeric and COUNTED.match(after)):
        may_be_last = stop.before.islower() or word == "no"
        return "end" if starts and may_be_last else "inside"
    has_parts = PARTS.match(word) is not None
    is_known = is_numeric or word in table.never or (has_parts and not is_final)
    if not is_known and LIST_NUMBER.match(stop.line, stop.end):
        return "end"
    if is_final:
        return "end" if starts or _ends_clause(word, after, table) else "inside"
    if word in table.never or (has_parts and not starts):
        return "inside"
    is_sure = starts or is_numeric or not after[:1].isalnum()
    return "end" if is_sure else "unknown"


def _ends_clause(word: str, after: str, table: Abbreviations) -> bool:
    """Whether a possible last word is one, by the capital after it.

    Days and time zones are no evidence: "5 p.m. Monday" and "5 p.m. EST" go on.
    """
    is_of_time = after.lower() in table.months or after.lower() in TIME_ZONES
    return word not in table.never and after[:1].isupper() and not is_of_time


def _ends_of_emphasis(line: str) -> set[int]:
    """Places of the signs in plain text that end emphasis: the second ** of **so**."""
    ends: set[int] = set()
    opened: set[str] = set()
    for match in EMPHASIS.finditer(line):
        sign, before = match[0], line[max(match.start() - 1, 0) : match.start()]
        if sign in opened:
            if not before.isspace():
                opened.remove(sign)
                ends.add(match.start())
        elif not before.isalnum() and OPENS_EMPHASIS.match(line, match.end()):
            opened.add(sign)
    return ends


def _short_quotations(line: str) -> list[tuple[int, int]]:
    """Places of the signs around each short quotation or title in Chinese, Japanese or
    Korean, without those within another one."""
    found: list[tuple[int, int]] = []
    opened: list[tuple[str, int]] = []
    awaited = Counter[str]()
    has_pairs = {sign: line.count(sign) % 2 == 0 for sign in STRAIGHT}
    for match in BRACKET.finditer(line):
        sign, end = match[0], match.start()
        closer = CLOSED_BY.get(sign, sign)
        if closer != sign or (has_pairs.get(sign) and not awaited[sign]):
            opened.append((closer, end))
            awaited[closer] += 1
        while awaited[sign] and opened[-1][1] < end:
            closer, begin = opened.pop()
            awaited[closer] -= 1
            if closer == sign:
                if end - begin <= MAX_QUOTED and _is_east_asian(line, begin, end):
                    found.append((begin, end))
                break
    outermost: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if not outermost or begin > outermost[-1][1]:
            outermost.append((begin, end))
    return outermost


def _is_east_asian(line: str, begin: int, end: int) -> bool:
    """Whether a quotation is in a text in Chinese or Japanese, or joined to a word in
    Korean, as its signs may be of other languages as well."""
    if line[begin] not in OF_ALL_SCRIPTS:
        return True
    around = (line[max(begin - 1, 0) : begin], line[begin + 1], line[end - 1])
    after = line[end + 1 : end + 2]
    return any(map(UNSPACED_SCRIPT.match, (*around, after))) or bool(
        HANGUL.match(after)
    )


class _Quotes:
    """Signs of a line that open a quotation in some languages and close it in others.

    A sign closes if its counterpart is open before it. Otherwise the language decides,
    or the next character: a sign before a letter opens.
    """

    def __init__(self, line: str, language: str | None) -> None:
        self._line = line
        self._language = language
        points_inwards = language is None or language in POINTED_INWARDS
        self._closing: set[int] = set()
        opened: set[str] = set()
        for match in QUOTE_SIGN.finditer(line):
            sign = match[0]
            opener = OPENED_BY.get(sign, "")
            if opener not in opened and sign in opened and sign in "»›":
                opener = sign  # as in Finnish: »so»
            if opener in opened:
                opened.remove(opener)
                self._closing.add(match.start())
            elif sign not in "»›" or points_inwards:
                opened.add(sign)
        self._quoted = _short_quotations(line)
        self._straight_openings = {
            begin for begin, _ in self._quoted if line[begin] in STRAIGHT
        }

    def is_quoted(self, start: int, end: int) -> bool:
        """Whether a stop that ends at `end` is followed by more of a quotation in
        Chinese, Japanese or Korean, which is part of a sentence."""
        number = bisect_right(self._quoted, (start, start)) - 1
        return number >= 0 and end <= self._quoted[number][1]

    def end_of_closers(self, start: int, end: int) -> int:
        """End of the signs between two offsets that close."""
        return next((i for i in range(start, end) if not self._closes(i)), end)

    def _closes(self, place: int) -> bool:
        sign, language = self._line[place], self._language
        if place in self._straight_openings:
            return False
        if sign not in "“‘«»‹›" or place in self._closing:
            return True
        if sign in "“‘":
            is_certain = language in LOW_QUOTED
        elif sign in "«‹":
            is_certain = language in POINTED_INWARDS
            if language is not None and not is_certain:
                return False
        else:
            is_certain = language is not None and language not in POINTED_INWARDS
        return is_certain or not self._line[place + 1 : place + 2].isalnum()


class _LibraryEnds:
    """Sentence ends of a line by the library, found part by part on demand."""

    def __init__(self, line: str, language: str | None) -> None:
        self._line = line
        self._segment = None if language is None else segment_function()
        self._language = language or ""
        self._parts = self._bounded_parts()
        self._read = 0
        self._ends: set[int] = set()

    def has_end(self, stop: _Stop) -> bool:
        """Whether a sentence ends with a stop; always true without the library."""
        if self._segment is None:
            return True
        begin = stop.end + len(stop.space)
        while self._read < begin and (part := next(self._parts, "")):
            self._take(part)
        return any(end in self._ends for end in range(stop.start + 1, begin + 1))

    def _take(self, part: str) -> None:
        assert self._segment is not None
        place = self._read
        # The library refuses half of a surrogate pair.
        for sentence in self._segment(self._language, SURROGATE.sub("\ufffd", part)):
            place += len(sentence)
            self._ends.add(place)
        self._read += len(part)

    def _bounded_parts(self) -> Iterator[str]:
        """Parts of the line, each cut after a space that follows no stop."""
        start = 0
        while start < len(self._line):
            end = min(start + MAX_ASKED, len(self._line))
            if end < len(self._line):
                cut = CUT.search(self._line[start:end][::-1])
                end -= cut.start() if cut else 0
            yield self._line[start:end]
            start = end


@cache
def segment_function() -> SegmentFunction | None:
    """Return sentencex's function that splits text; None if it is not installed."""
    try:
        segment: SegmentFunction = import_module("sentencex").segment
    except ImportError:
        return None
    return segment


BREAKS = r"\r\n\v\f\x85\u2028\u2029"
"""Line breaks of Unicode; word processors write VT or U+2028 within a paragraph."""
LINE = re.compile(rf"[^{BREAKS}]+|[{BREAKS}]+")
"""Pattern of a line, or of line breaks."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Piece of a document that is translated as one sentence, or copied."""

    text: str
    """Text of the piece in the document."""
    sentence: str | None = None
    """Sentence to translate; None if the text is copied."""
    tags: SentenceTags | None = None
    """Markup within the sentence, if there is any."""
    is_adjacent: bool = False
    """Whether a translation of the document may need a space before this segment."""
    is_kept: bool = False
    """Whether it is copied as a sentence with nothing to translate, or is the tags
    before one."""
    is_space: bool = False
    """Whether it is the space between two sentences of a language that separates them
    by spaces, which a translation into Chinese or Japanese does without, or a wide
    space of these, which translations into others write as usual."""

    @property
    def is_sentence(self) -> bool:
        return self.sentence is not None

    @property
    def is_linked(self) -> bool:
        """Whether it has tags that links of its words place, and not lines."""
        borders = (isinstance(each, LineBorder) for each in self.tags or ())
        return bool(self.tags) and not any(borders)

    @property
    def copied(self) -> str:
        """Text that every translation has; `Spacing` decides on space."""
        return "" if self.is_sentence or self.is_space else self.text


def has_letter(text: str) -> bool:
    """Whether a text has a letter, and so anything to translate."""
    return any(map(str.isalpha, text))


def has_sign(text: str) -> bool:
    """Whether a text has letters, digits or signs, and so anything to parse."""
    return text != "" and not text.isspace()


def split_text(
    text: str,
    language: str | None = None,
    *,
    splits_lines: bool = True,
    is_read: Callable[[str], bool] = has_letter,
) -> list[Segment]:
    """Split text into segments that join to it again; no sentence crosses a line.

    Sentences end by the rules of the language, a BCP 47 tag. Without `splits_lines`
    each line is one sentence. Sentences that `is_read` rejects are copied, by default
    those without a letter.
    """
    code = None if language is None else base(language)
    segments: list[Segment] = []
    for match in LINE.finditer(text):
        if not is_read(match[0]):
            segments.append(Segment(match[0]))
            continue
        start = 0
        for begin, end in sentence_spans(match[0], code, splits_lines=splits_lines):
            segments += space_of(match[0], start, begin)
            sentence = match[0][begin:end]
            last = segments[-1] if segments else None
            is_kept = not is_read(sentence)
            segments.append(
                Segment(
                    sentence,
                    sentence=None if is_kept else sentence,
                    is_adjacent=last is not None and (last.is_sentence or last.is_kept),
                    is_kept=is_kept,
                )
            )
            start = end
        segments += _copied(match[0][start:])
    return segments


def sentences(segments: Sequence[Segment]) -> list[str]:
    """List the sentences to translate."""
    return [each.sentence for each in segments if each.sentence is not None]


class Spacing:
    """Space between the sentences of a translation.

    Sentences of Chinese and Japanese stand side by side, but their translations may
    need space between them; a translation into Chinese or Japanese needs none. A
    sentence that is kept is spaced as the translations around it.
    """

    def __init__(self) -> None:
        self._before = ""
        """Last translation that is not empty."""
        self._has_kept = False

    def space_before(self, segment: Segment, translation: str) -> str:
        """Return the space before the next segment, or for the segment if it is one.

        `translation` is that of the segment or, if the segment is copied, of the next
        sentence; it is empty if no sentence follows.
        """
        before, after = self._before, translation
        if not before and self._has_kept:
            before = after
        if not after and (segment.is_kept or segment.is_space):
            after = before  # only kept sentences follow
        self._has_kept |= segment.is_kept
        if segment.is_sentence:
            self._before = translation or self._before
        if segment.is_space:
            space = space_between(before, after)
            if is_wide_space(segment.text):
                return space or segment.text
            return segment.text if space or not (before and after) else ""
        return space_between(before, after) if segment.is_adjacent else ""


def space_of(text: str, start: int, end: int) -> list[Segment]:
    """Return the segment of the white space between two sentences of a text, if any."""
    space = text[start:end]
    is_space = start > 0 and (
        is_wide_space(space)
        or (not space.strip(" ") and has_written_space(text, start, end))
    )
    return [replace(each, is_space=is_space) for each in _copied(space)]


def is_wide_space(text: str) -> bool:
    """Return whether a text is space between sentences of Chinese or Japanese, as wide
    as a character; more of it is the indentation of a paragraph."""
    return text == WIDE_SPACE


def has_written_space(text: str, start: int, end: int) -> bool:
    """Return whether the texts around a space are of scripts that write it."""
    before, after = text[max(start - LOOK_BACK, 0) : start], text[end : end + LOOK_BACK]
    # A number alone is of any script.
    return space_between(before, after.lstrip(NARROW_MARKS + digits) or before) != ""


def _copied(text: str) -> list[Segment]:
    return [Segment(text)] if text else []


CountTokens = Callable[[Sequence[str]], list[int]]
"""Function that counts the tokens of each text. Counts are additive over texts joined
by a space."""

QUOTED_END = re.compile(
    rf"(?<=[{UNSPACED_STOPS}])(?![{UNSPACED_STOPS}{CLOSERS}…]|(?<=．)\d)"
)
"""Pattern of the end of a sentence in a quotation; not a point within a number."""
CLAUSE_END = re.compile(r"(?<=[,;:–—]\s)|(?<=[，；：、､،؛፣፤၊᠂])|(?<=……)|(?<=——)")
# The zero-width space parts words of Khmer, Thai and Burmese, where it is written.
WORD_END = re.compile(r"(?<=[\s\u200b\u0f0b\u1361])")
JOINED_AFTER = (
    f"{WORD_MARKS}\u200c\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
    # Thai and Lao; Khmer, Burmese and Tibetan; Kana.
    "\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebc\u0ec6-\u0ece"
    "\u17b4-\u17d3\u102b-\u103e\u0f71-\u0f84\u0f8d-\u0fbc"
    "\u3099\u309a\uff9e\uff9f\u30fcぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮ"
    # Vowels and finals of Korean; signs of flags; variants of Han characters.
    "\u1160-\u11ff\ud7b0-\ud7fb\U000e0020-\U000e007f\U000e0100-\U000e01ef"
)
JOINED_BEFORE = "\u200d\u0e40-\u0e44\u0ec0-\u0ec4\u17d2\u1039"
"""Characters that combine with the one before, and with the one after."""
KILLED = "[\u1000-\u1021]\u1037?\u103a"
"""Pattern of a Burmese consonant that ends the syllable before it."""
FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"
"""Pattern of a letter of a flag, of which each flag has two."""
CHARACTER_END = re.compile(
    rf"(?<=[^{JOINED_BEFORE}])(?![{JOINED_AFTER}])(?!{KILLED})"
    rf"(?:(?<!{FLAG_LETTER})|(?!{FLAG_LETTER}))"
)
ANYWHERE = re.compile(r"(?<=.)", re.DOTALL)
NARROW_MARKS = "\"'\u201c\u201d\u2018\u2019\u2026\u2014()[]"
"""Marks of all scripts, beside which the next character decides on space."""


def split_long(
    text: str, max_tokens: int, count_tokens: CountTokens, language: str | None = None
) -> list[str]:
    """Split a text into parts of at most `max_tokens` tokens, unless it is short
    enough.

    Each sentence is a part; `language` is a BCP 47 tag. A sentence that is too long is
    split at clauses, else between words, into as few parts as possible; a word that is
    too long is split anywhere, with each character counted alone.
    """
    [length] = count_tokens([text])
    if length <= max_tokens:
        return [text]
    spans = sentence_spans(text, None if language is None else base(language))
    sentences = [text[begin:end] for begin, end in spans]
    return _fitting(sentences, max_tokens, count_tokens)


def space_between(before: str, after: str) -> str:
    """Return the space between two texts; empty if one is empty or neither uses
    spaces."""
    last = before.rstrip(NARROW_MARKS)[-1:]
    first = after.lstrip(NARROW_MARKS)[:1]
    is_written = HAN_OR_KANA.match(last) is None or HAN_OR_KANA.match(first) is None
    return " " if before and after and is_written else ""


def _fitting(
    sentences: list[str], max_tokens: int, count_tokens: CountTokens
) -> list[str]:
    """Split sentences that are too long at ever smaller units.

    These are the sentences of a quotation, clauses, words and characters.
    """
    parts = sentences
    for end in (QUOTED_END, CLAUSE_END, WORD_END, CHARACTER_END, ANYWHERE):
        counts = _counts(parts, count_tokens)
        fitting: list[str] = []
        for part, length in zip(parts, counts, strict=True):
            if length <= max_tokens:
                fitting.append(part)
            else:
                pieces = list(filter(None, end.split(part)))
                fitting += _packed(pieces, max_tokens, count_tokens)
        parts = fitting
    return parts


def _counts(texts: list[str], count_tokens: CountTokens) -> list[int]:
    """Return the number of tokens of each text.

    All are counted together, since each call has a fixed cost, and equal ones once,
    since words and characters repeat.
    """
    distinct = list(dict.fromkeys(texts))
    counts = dict(zip(distinct, count_tokens(distinct), strict=True))
    return [counts[text] for text in texts]


def _packed(pieces: list[str], max_tokens: int, count_tokens: CountTokens) -> list[str]:
    """Join neighbours while they fit; a piece that is too long stays alone.

    No part is without tokens: a space or the like stays with its neighbour.
    """
    packed: list[list[str]] = []
    capacity = 0
    for piece, length in zip(pieces, _counts(pieces, count_tokens), strict=True):
        is_empty = capacity == max_tokens or length == 0
        if packed and (length <= capacity or is_empty):
            packed[-1].append(piece)
        else:
            packed.append([piece])
            capacity = max_tokens
        capacity -= length
    return ["".join(part).strip() for part in packed]
