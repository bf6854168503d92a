"""Glossary: terms of the source language, and the words in which to translate them.

A file has a term and its translation on each line, with a tab between them. Several
lines with one term give several translations, one of which will do, such as the forms
of an inflected word. A term without a translation is kept as it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from transduce.errors import DataError, RequestError
from transduce.settings import shown
from transduce.text.corpus import read_text, require_characters
from transduce.text.inline_tags import is_within_character, is_within_word
from transduce.text.languages import without_invisible
from transduce.text.tokenizer import normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A term of a glossary in a text."""

    start: int
    """Place of its first letter in the normalized text."""
    end: int
    forms: tuple[str, ...]
    """Translations, one of which must be used."""
    is_kept: bool
    """Whether the term itself is its only translation, as the text spells it."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The translations, also with a capital as at the beginning of a sentence."""
        if self.is_kept:
            return self.forms
        return (*self.forms, *map(capitalized, self.forms))


class Glossary:
    """Terms, and the words in which to translate them."""

    def __init__(self, terms: Mapping[str, str | Iterable[str]]) -> None:
        """Take each term with its translation, or with several.

        Raises `RequestError` if a term or a translation has no word or is no string.
        """
        if not isinstance(terms, Mapping):
            raise RequestError(
                "Terms must be given as a dict of each term and its translation, but "
                f"are given as {type(terms).__name__}."
            )
        self._forms: dict[str, tuple[str, ...]] = {}
        """Translations of each term."""
        for term, given in terms.items():
            several = _translations(given)
            if not several:
                raise RequestError(
                    f"A term must have a translation, but {shown(term)} has none; give "
                    "the term itself to keep it as it is."
                )
            # Sources are read without invisible characters.
            own = _words_of(without_invisible(_words_of(term)))
            self._forms[own] = tuple(dict.fromkeys(map(_words_of, several)))
        self._spellings: dict[str, str] = {}
        """Terms by their spellings."""
        lengths: dict[str, set[int]] = {}
        for term in self._forms:
            # A term with the capital of another one counts as itself.
            for spelling in (term, capitalized(term)):
                own = spelling if spelling in self._forms else term
                self._spellings[spelling] = own
                lengths.setdefault(spelling[0], set()).add(len(spelling))
        self._lengths = {
            first: sorted(several, reverse=True) for first, several in lengths.items()
        }
        """Lengths of spellings by their first character, the longest first."""

    def __len__(self) -> int:
        return len(self._forms)

    def terms_in(self, text: str) -> list[Occurrence]:
        """Return the terms in a normalized text, from left to right.

        Terms are whole words, written as in the glossary or with a capital. Of terms
        that begin at one place the longest counts, and none overlaps another.
        """
        found: list[Occurrence] = []
        place = 0
        while place < len(text):
            if spelling := self._spelling_at(text, place):
                term = self._spellings[spelling]
                is_kept = self._forms[term] == (term,)
                found.append(
                    Occurrence(
                        start=place,
                        end=place + len(spelling),
                        forms=(spelling,) if is_kept else self._forms[term],
                        is_kept=is_kept,
                    )
                )
            place += max(len(spelling), 1)
        return found

    def _spelling_at(self, text: str, place: int) -> str:
        """Return the longest spelling of a term at a place; empty if there is none."""
        for length in self._lengths.get(text[place], ()):
            spelling = text[place : place + length]
            if spelling in self._spellings and _is_word_at(text, spelling, place):
                return spelling
        return ""

    def digest(self) -> str:
        """Return a checksum of the contents."""
        hashed = blake2b(digest_size=16)
        for term, forms in self._forms.items():
            hashed.update("\t".join((term, *forms)).encode() + b"\n")
        return hashed.hexdigest()


def read_glossary(path: Path) -> dict[str, list[str]]:
    """Read the terms of a file with their translations; blank lines are left out.

    Raises `DataError` for a line without a term or with too many fields, and for a file
    without terms, or with spaces in place of tabs.
    """
    terms: dict[str, list[str]] = {}
    lines = list(read_text([path]))
    if not any("\t" in line for line in lines):
        _require_no_columns(path, lines)
    for number, line in enumerate(lines, start=1):
        fields = list(map(normalize, line.split("\t")))
        if not any(fields):
            continue
        term, *translations = without_invisible(fields[0]), *fields[1:]
        if not term or len(translations) > 1:
            raise DataError(
                f"{path}:{number:,}: a line must have a term and, after a tab, its "
                f"translation, but is {shown(line)}; correct or remove it."
            )
        terms.setdefault(term, []).append("".join(translations) or term)
    if not terms:
        raise DataError(
            f"{path}: a glossary must have a term and its translation on each line, "
            "but has none."
        )
    return terms


def _require_no_columns(path: Path, lines: Iterable[str]) -> None:
    """Raise `DataError` if spaces separate the fields of a line, as if by a tab.

    All lines of such a file would be terms to keep as they are.
    """
    for number, line in enumerate(lines, start=1):
        if "  " in line.strip():
            raise DataError(
                f"{path}:{number:,}: a tab must separate a term and its translation, "
                f"but {shown(line)} has spaces, and no line of the file has a tab."
            )


def capitalized(text: str) -> str:
    """Return a text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def find_word(text: str, word: str, start: int = 0) -> int:
    """Return the first place of a word, or words, in a text; -1 if there is none."""
    while (place := text.find(word, start)) >= 0:
        if _is_word_at(text, word, place):
            return place
        start = place + 1
    return -1


def _is_word_at(text: str, word: str, place: int) -> bool:
    """Return whether a word stands at a place, and is not a part of a longer one."""
    ends = place, place + len(word)
    return text.startswith(word, place) and not any(
        is_within_word(text, each) or is_within_character(text, each) for each in ends
    )


def _translations(given: object) -> tuple[object, ...]:
    """Return the one or several translations of a term; `_words_of` checks each."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray):
        return tuple(given)
    return (given,)


def _words_of(text: object) -> str:
    """Return a term or a translation as the tokenizer normalizes it."""
    if not isinstance(text, str):
        raise RequestError(
            f"Terms and their translations must be strings, but one is {shown(text)}."
        )
    require_characters(text)
    if not (normal := normalize(text)):
        raise RequestError(
            f"Terms and their translations must have words, but one is {shown(text)}."
        )
    return normal
