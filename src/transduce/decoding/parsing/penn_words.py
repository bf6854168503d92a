"""Raw English text to words as the Penn Treebank has them.

So are its own sentences cut (Marcus et al., 1993): `don't` is `do n't`, quotes are ``
and '', brackets -LRB- and -RRB-. One sentence a text: a full stop is parted from its
word only at the end.
"""

import re

CLOSERS = r"""["'”’)\]}]*"""
ALTERED = (
    # Quotes: what begins a word opens.
    (r'(?:^|(?<=[\s(\[{<]))"|“', " `` "),
    (r'"|”', " '' "),
    ("‘", " ` "),
    ("’", "'"),
    # Dots and dashes.
    (r"…|\.\.\.+", " ... "),
    (r"—|--+", " -- "),
    # The full stop that ends the text; an abbreviation keeps its own.
    (rf"(?<!\.)((?:\b[A-Za-z]\.)+)(\s*(?:''|\s|{CLOSERS})*)$", r"\1 . \2"),
    (rf"(?<=[^\s.])\.(\s*(?:''|\s|{CLOSERS})*)$", r" .\1"),
    # What is a word by itself; between digits , and : are part of a number.
    (r"[;@#$%&?!]", r" \g<0> "),
    (r"(?<!\d)[,:]|[,:](?!\d)", r" \g<0> "),
    (r"\(", " -LRB- "),
    (r"\)", " -RRB- "),
    (r"\{", " -LCB- "),
    (r"\}", " -RCB- "),
    (r"[\[\]<>]", r" \g<0> "),
    # Contractions and possessives.
    (r"(?i)(?<=\w)(n't|'(?:s|m|d|ll|re|ve))\b", r" \1"),
    (r"(?i)\b(can)(not)\b", r"\1 \2"),
    (r"(?i)\b(gon|wan)(na)\b", r"\1 \2"),
    (r"(?i)\b(got)(ta)\b", r"\1 \2"),
    (r"(?i)\b(gim|lem)(me)\b", r"\1 \2"),
    (r"(?i)(?<!\S)('t)(is|was)\b", r"\1 \2"),
    (r"(?<=[^\s'`])'(?=\s|$)", " '"),
)
RULES = tuple((re.compile(pattern), changed) for pattern, changed in ALTERED)


def penn_words(text: str) -> list[str]:
    """The words of one sentence."""
    for pattern, changed in RULES:
        text = pattern.sub(changed, text)
    return text.split()
