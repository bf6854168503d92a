"""Scripts with and without spaces between words, by their characters.

Scripts are ranges of Unicode, so that Python's `re` and every regular expression engine
that reads a `tokenizer.json` agree on them. `transduce.text.languages` lists the
languages without spaces.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Script without spaces between words."""

    name: str
    letters: str
    """Ranges of its letters and marks, for a character class."""
    longest_piece: int
    """Maximum number of letters of a learned piece: about a word, never a clause."""


KANA_MARKS = "\u3099\u309a\u30fc\uff70\uff9e\uff9f"
"""Voicing and length marks, shared by both kinds of Kana."""

UNSPACED_SCRIPTS = (
    Script(
        name="Han",
        letters="\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf"
        "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
        longest_piece=4,
    ),
    Script(
        name="Hiragana",
        letters=f"\u3041-\u3096\u309d-\u309f\U0001b001-\U0001b11f{KANA_MARKS}",
        longest_piece=8,
    ),
    Script(
        name="Katakana",
        letters="\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\uff66-\uff6f\uff71-\uff9d"
        f"{KANA_MARKS}",
        longest_piece=16,
    ),
    Script(name="Bopomofo", letters="\u3105-\u312f\u31a0-\u31bf", longest_piece=4),
    Script(name="Yi", letters="\ua000-\ua48c", longest_piece=4),
    Script(
        name="Thai", letters="\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e", longest_piece=16
    ),
    Script(name="Lao", letters="\u0e81-\u0ece\u0edc-\u0edf", longest_piece=16),
    Script(name="Khmer", letters="\u1780-\u17d3\u17d7\u17dc\u17dd", longest_piece=16),
    Script(
        name="Myanmar",
        letters="\u1000-\u103f\u104c-\u108f\u109a-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f",
        longest_piece=16,
    ),
    # The tsheg after a syllable belongs to the syllable.
    Script(
        name="Tibetan",
        letters="\u0f00\u0f0b\u0f0c\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0fbc",
        longest_piece=16,
    ),
    Script(name="Tai Le", letters="\u1950-\u1974", longest_piece=16),
    Script(name="New Tai Lue", letters="\u1980-\u19c9", longest_piece=16),
    Script(name="Tai Tham", letters="\u1a20-\u1a7c", longest_piece=16),
    Script(name="Tai Viet", letters="\uaa80-\uaadd", longest_piece=16),
    Script(name="Balinese", letters="\u1b00-\u1b4c", longest_piece=16),
    Script(name="Javanese", letters="\ua980-\ua9c0", longest_piece=16),
)
UNSPACED_LETTERS = "".join(script.letters for script in UNSPACED_SCRIPTS)
UNSPACED_LETTER = re.compile(f"[{UNSPACED_LETTERS}]")
UNSPACED_RUN = re.compile("|".join(f"[{s.letters}]+" for s in UNSPACED_SCRIPTS))
"""Pattern of a run of letters of one such script."""

SPACED_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali"),
    *("Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam"),
    *("Sinhala", "Hangul", "Armenian", "Georgian", "Ethiopic", "Mongolian"),
)
"""Scripts with spaces whose border with another script separates words."""
_SCRIPT_OF_RUN = re.compile(
    "|".join(f"([{script.letters}])" for script in UNSPACED_SCRIPTS)
)


def unspaced_script(text: str) -> Script | None:
    """Script without spaces that a text begins with, or None."""
    match = _SCRIPT_OF_RUN.match(text)
    return UNSPACED_SCRIPTS[match.lastindex - 1] if match and match.lastindex else None


def is_longer_than_a_word(piece: str) -> bool:
    """Whether a piece of a script without spaces is longer than its words."""
    script = unspaced_script(piece)
    return script is not None and len(piece) > script.longest_piece
