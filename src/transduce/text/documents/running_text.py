"""Running text as sentences, and what stands between them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transduce.text.splitting import SENTENCE_END

GAP = re.compile(r"\s+|(?<=[。！？」』”’）])")
"""Where a sentence may end: white space, or nothing in languages without it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A sentence, or what stands between two."""

    text: str
    is_sentence: bool


def split_text(text: str) -> list[Stretch]:
    """Stretches that in a row are the text; a sentence is within a line."""
    stretches, start = [], 0
    for gap in GAP.finditer(text):
        if _ends_sentence(text, start, gap):
            stretches.append(Stretch(text[start : gap.start()], is_sentence=True))
            stretches.append(Stretch(gap[0], is_sentence=False))
            start = gap.end()
    stretches.append(Stretch(text[start:], is_sentence=True))
    return [stretch for stretch in stretches if stretch.text]


def sentences(stretches: Sequence[Stretch]) -> list[str]:
    """What is to be translated."""
    return [stretch.text for stretch in stretches if stretch.is_sentence]


def join_text(stretches: Sequence[Stretch], translations: Sequence[str]) -> str:
    """The stretches in a row, each sentence replaced by its translation."""
    found = iter(translations)
    return "".join(next(found) if p.is_sentence else p.text for p in stretches)


def _ends_sentence(text: str, begin: int, gap: re.Match[str]) -> bool:
    """Whether what has begun there ends with the gap.

    What goes on in lower case is the same sentence, if that began in upper case.
    """
    start, end = gap.span()
    if "\n" in gap[0] or start == 0 or end == len(text):
        return True
    goes_on = text[end].islower() and not text[begin].islower()
    return not goes_on and SENTENCE_END.match(text, start) is not None
