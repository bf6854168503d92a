"""Words of raw English text, as those of the Penn Treebank (Marcus et al., 1993).

`don't` is `do n't`, quotes are `` and '', brackets -LRB- and -RRB-. A text is one
sentence: a full stop is parted from its word only at the end, and before a bracket.
Characters that show nothing, such as zero-width spaces, are left out.
"""

import re

from transduce.text.languages import without_invisible

ADDRESS = re.compile(
    r"""(?ix)
    (?: (?<![\w/])(?:(?:https?|ftp)://|www\.)[^\s<>"]+
      | (?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,10}
      | (?<![\w.@-])(?:[a-z][\w-]{0,62}\.){1,10}[a-z]{2,24}/[^\s<>"]*
      | (?<![\w@\#])[@\#][a-z]\w* )"""
)
"""Pattern of URLs, e-mail addresses, handles and hashtags, with signs after them."""


AFTER_ADDRESS = ".,;:!?'*]}—–"
"""Signs that end an address without belonging to it."""


STAND_IN = "\ue000"
"""Placeholder of an address while the rules cut the text around it."""


ELISION = r"(?:[Tt](?:is|was|were|will)|[Ee]m|[Nn]|[Cc]ause|[Tt]il|[Bb]out|[Rr]ound)\b"


QUOTE = re.compile(r"(?<![\w`])``(?!`)|(?<!`)``(?![\w`])|(?<!\w)''|''(?!\w)|['\"]")
"""Pattern of a quote. Double ones may be written `` and '', as in TeX; three signs `
begin or end code."""


BEFORE_OPENING = re.compile(r"(?:[\s(\[{<`'\"—–]|--)$")


NO_QUOTE = re.compile(rf"'(?:\d0s|\d\d(?!\d)|{ELISION})")
"""Pattern of an apostrophe for left-out characters: '80s, 'tis."""


CLOSING_SINGLE = re.compile(r"(?<=[^\s'\"])'(?![\w'])")


CLOSERS = r"""['`\s)\]}]*"""


ALTERED = (
    # Dots and dashes.
    (r"…|(?<!\.)\.\.\.(?=\.?(?!\.))|\.{5,}", " ... "),
    (r"—|(?<=\s)–(?=\s)|--+", " -- "),
    # The full stop that ends the text, even that of an abbreviation. As in the
    # treebank, only U.S. also keeps its own, there and before a bracket.
    (rf"(?<![.'&\w])(U\.S\.)({CLOSERS})$", r"\1 . \2"),
    (r"(?<![.'&\w])(U\.S\.)(?=[)}\]](?!,))", r"\1 . "),
    (rf"(?<=[^\s.])\.({CLOSERS})$", r" .\1"),
    # The stop of a list's number, and the one before a bracket.
    (r"^(\d+)\.(?=\s)", r"\1 ."),
    (r"(?<![\w.])([A-Z][\w.]{0,40})(?<!\.)\.(?=\s*[({\[]|[)}\]](?!,))", r"\1 ."),
    (rf"(?<={STAND_IN})\.", " ."),
    # Signs that are words by themselves; between digits , and : are part of a number.
    (r"[;@#?!]|(?<!\w)&|&(?!\w)|%(?!-\w)", r" \g<0> "),
    (r"(?<![^\W_])([A-Z]{0,3}\$)|\$", r" \g<0> "),
    (r"[£€¥₹₩₽¢]", r" \g<0> "),
    (r"(?<!\d)[,:]|[,:](?!\d)", r" \g<0> "),
    (r"\(", " -LRB- "),
    (r"\)", " -RRB- "),
    (r"\{", " -LCB- "),
    (r"\}", " -RCB- "),
    (r"[\[\]<>]", r" \g<0> "),
    # Contractions and possessives.
    (rf"(?i)(?<=[\w.{STAND_IN}])(n't|'(?:s|m|d|ll|re|ve))(?!\w)", r" \1"),
    (r"(?i)\b(can)(not)\b", r"\1 \2"),
    # Capitalised within a sentence they are parts of titles: "You Gotta Have Wa".
    (r"(^[Gg]|\bg)(on)(na)\b", r"\1\2 \3"),
    (r"(^[Ww]|\bw)(an)(na)\b", r"\1\2 \3"),
    (r"(^[Gg]|\bg)(ot)(ta)\b", r"\1\2 \3"),
    (r"(?i)\b(gim|lem)(me)\b", r"\1 \2"),
    (r"(?i)\b(d')(you|ye)\b", r"\1 \2"),
    (r"(?i)\b(more)('n)\b", r"\1 \2"),
    (r"(?i)(?<!\S)('t)(is|was|were|will)\b", r"\1 \2"),
    # A dropped g leaves its apostrophe on the word: nothin', Dunkin' Donuts.
    (r"(?<!\s'n)(?<!\bd)(?<!\bD)(?<=[^\s'`])(?<!\w\win)'(?=\s|$)", " '"),
)


RULES = tuple((re.compile(pattern), changed) for pattern, changed in ALTERED)


def penn_words(text: str) -> list[str]:
    """Cut a sentence of raw English into words as in the Penn Treebank."""
    text = without_invisible(text)
    text = text.translate({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'"})
    addresses: list[str] = []

    def stand_in(match: re.Match[str]) -> str:
        address, rest = _without_end(match[0])
        addresses.append(address)
        return STAND_IN + (" " if rest.startswith((".", "'s")) else "") + rest

    text = ADDRESS.sub(stand_in, text.replace(STAND_IN, " "))
    text = _with_quotes(text)
    for pattern, changed in RULES:
        text = pattern.sub(changed, text)
    found = iter(addresses)
    return [re.sub(STAND_IN, lambda _: next(found), word) for word in text.split()]


def _without_end(address: str) -> tuple[str, str]:
    """Split an address from the signs after it; it keeps brackets that it opened."""
    end = len(address)
    unopened = address.count(")") - address.count("(")
    while end > 1:
        if address.endswith("'s", 0, end):
            end -= 2
        elif address[end - 1] in AFTER_ADDRESS:
            end -= 1
        elif address[end - 1] == ")" and unopened > 0:
            end, unopened = end - 1, unopened - 1
        else:
            break
    return address[:end], address[end:]


def _with_quotes(text: str) -> str:
    """Write quotes as `` and '', single ones as ` and '; apostrophes stay."""
    last_closing = max((m.start() for m in CLOSING_SINGLE.finditer(text)), default=-1)
    written: list[str] = []
    start, is_open = 0, False
    for match in QUOTE.finditer(text):
        place = match.start()
        is_after_closing = place == start > 0 and "`" not in written[-1]
        written.append(text[start:place])
        if is_after_closing and match[0] == "'":
            written.append("'")
        elif len(match[0]) > 1:
            written.append(f" {match[0]} ")
        else:
            is_closed = place < last_closing
            written.append(_quote(text, place, is_open=is_open, is_closed=is_closed))
        if match[0] != "'":
            is_open = "`" in written[-1]
        start = match.end()
    return "".join(written) + text[start:]


def _quote(text: str, place: int, *, is_open: bool, is_closed: bool) -> str:
    """Penn Treebank sign of a quote: opening, closing, or an apostrophe.

    A double quote between spaces closes if another `is_open`; one on its own belongs to
    the sentence before or the next one. A single quote opens if another `is_closed`.
    """
    before, after = text[max(place - 2, 0) : place], text[place + 1 : place + 2]
    can_open = not before or BEFORE_OPENING.search(before) is not None
    is_before_space = not after or after.isspace()
    if text[place] == '"':
        if is_before_space:
            is_apart = can_open and (not before or before[-1].isspace())
            is_paired = is_open if before else text.count('"') % 2 == 1
            can_open = is_apart and not is_paired
        return " `` " if can_open else " '' "
    if not can_open or is_before_space or NO_QUOTE.match(text, place):
        return "'"
    return " ` " if is_closed or after.isupper() or after == '"' else "'"
