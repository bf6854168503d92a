"""Fonts for the letters of a picture, found among the machine's.

Matplotlib brings a font for Latin, Greek, Cyrillic and a few other scripts. Other
characters are looked up in the installed fonts. A character that no font has is written
as its code point, since a box says nothing.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import matplotlib
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

USUAL = "DejaVu Sans"
PREFERRED = ("Noto Sans", "Source Han Sans", "WenQuanYi", "Microsoft YaHei", "PingFang")
"""Beginnings of the names of preferred fonts, best first."""

CJK = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]")
"""Characters of Chinese, Japanese and Korean."""
LAST_RESORT = "Last Resort"
"""Name of a font that draws boxes with the name of a character's Unicode block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fonts:
    """Font families for some texts, tried in order, and the characters they lack."""

    families: tuple[str, ...]
    missing: frozenset[str]
    """Characters that no font has."""

    def shown(self, text: str) -> str:
        """The text, with code points in place of missing characters."""
        if self.missing.isdisjoint(text):
            return text
        return "".join(
            f"[{ord(character):04X}]" if character in self.missing else character
            for character in text
        )


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Find fonts of this machine that have the characters of all texts."""
    wanted = {
        character for text in texts for character in text if not character.isspace()
    }
    wanted -= {"\u200b", "\u200c", "\u200d", "\ufe0e", "\ufe0f"}
    missing = wanted - _characters(font_manager.findfont(USUAL))
    families = [USUAL]
    for name, path in _installed() if missing else ():
        if found := missing & _characters(path):
            families.append(name)
            missing -= found
        if not missing:
            break
    return Fonts(families=tuple(families), missing=frozenset(missing))


@contextmanager
def drawn_in(fonts: Fonts) -> Iterator[None]:
    """Draw with these fonts inside the block."""
    with matplotlib.rc_context({"font.family": list(fonts.families)}):
        yield


def advice(missing: Collection[str]) -> str:
    """Message about characters that no font of this machine has."""
    some = "".join(sorted(missing)[:8])
    font = "Noto Sans CJK" if any(map(CJK.match, missing)) else "one of the Noto fonts"
    return (
        f"No font of this machine has {len(missing):,} of the picture's characters "
        f"({some}), so their code points are drawn; install a font that has them, "
        f"such as {font}, or use a page (--out), which has the browser's fonts."
    )


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Name and file of each upright font of the usual weight, preferred ones first."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:  # installed since matplotlib made its list
            _add(path)
    fonts = {
        (entry.name, entry.fname)
        for entry in font_manager.fontManager.ttflist
        if not entry.name.startswith(LAST_RESORT)
        and entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
    }
    return tuple(sorted(fonts, key=_rank))


def _add(path: str) -> None:
    try:
        font_manager.fontManager.addfont(path)
    except (OSError, RuntimeError, UnicodeDecodeError):
        return  # a font that matplotlib cannot draw, such as one of coloured emoji


def _rank(font: tuple[str, str]) -> tuple[int, bool, str, str]:
    name, path = font
    places = (place for place, start in enumerate(PREFERRED) if name.startswith(start))
    return next(places, len(PREFERRED)), "Mono" in name, name, path


@cache
def _characters(path: str) -> frozenset[str]:
    """Characters that a font has; empty if matplotlib cannot draw it."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(map(chr, font.get_charmap()))
