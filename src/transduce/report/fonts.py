"""Fonts that have the letters of a picture, found among those of the machine.

Matplotlib brings a font for Latin, Greek, Cyrillic and a few other scripts. For what it
lacks, the fonts that are installed are searched; what none of them has is written as
its code point, since a box says nothing.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import matplotlib
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

USUAL = "DejaVu Sans"
PREFERRED = ("Noto Sans", "Source Han Sans", "WenQuanYi", "Microsoft YaHei", "PingFang")
"""Where several fonts have the letters, those whose names begin so, in this order."""

LAST_RESORT = "Last Resort"
"""A font of boxes, for each character the block of Unicode that it is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fonts:
    """The families that texts are drawn in, one after the other."""

    families: tuple[str, ...]
    missing: frozenset[str]
    """The characters that no font has."""

    def shown(self, text: str) -> str:
        """The text with code points for the characters that no font has."""
        if self.missing.isdisjoint(text):
            return text
        return "".join(
            f"[{ord(character):04X}]" if character in self.missing else character
            for character in text
        )


def fonts_for(texts: Iterable[str]) -> Fonts:
    """The fonts of this machine that have the characters of all texts."""
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
    """Draw text in these fonts."""
    with matplotlib.rc_context({"font.family": list(fonts.families)}):
        yield


def advice(missing: Collection[str]) -> str:
    """What to tell who wanted a picture of characters that no font here has."""
    some = "".join(sorted(missing)[:8])
    return (
        f"No font of this machine has {len(missing):,} of the picture's characters "
        f"({some}): their code points stand for them; install a font that has them, "
        "such as Noto Sans CJK, or look at a page (--out), which takes the browser's."
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
    """All that a font has a picture of; none if it cannot be drawn."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(map(chr, font.get_charmap()))
