"""Running text as sentences, and what stands between them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transduce.languages import base
from transduce.text.documents.inline_tags import SentenceTags
from transduce.text.documents.sentence_ends import sentence_ends

LINE = re.compile(r"[^\r\n]+|[\r\n]+")
"""A line, or what ends lines."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a document that is translated as one sentence, or copied."""

    text: str
    """As it stands in the document."""
    sentence: str | None = None
    """What is translated; none if the text is copied."""
    tags: SentenceTags | None = None
    """The markup within the sentence, if there is any."""

    @property
    def is_sentence(self) -> bool:
        return self.sentence is not None


def split_text(
    text: str, language: str | None = None, *, splits_lines: bool = True
) -> list[Stretch]:
    """Stretches that in a row are the text; a sentence is within a line.

    Sentences end as they do in the language, a BCP 47 tag. Without `splits_lines` each
    line is one sentence. What has no letter is copied.
    """
    code = None if language is None else base(language)
    stretches: list[Stretch] = []
    for match in LINE.finditer(text):
        if not has_letter(match[0]):
            stretches.append(Stretch(match[0]))
            continue
        start = 0
        for begin, end in sentence_spans(match[0], code, splits_lines):
            stretches += _copied(match[0][start:begin])
            stretches.append(_stretch(match[0][begin:end]))
            start = end
        stretches += _copied(match[0][start:])
    return stretches


def sentence_spans(
    line: str, language: str | None, splits_lines: bool
) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line begin and end, without the space around them."""
    begin, last = len(line) - len(line.lstrip()), len(line.rstrip())
    for end, next_begin in sentence_ends(line, language) if splits_lines else ():
        yield begin, end
        begin = next_begin
    if begin < last:
        yield begin, last


def has_letter(text: str) -> bool:
    """Whether there is anything to translate."""
    return any(map(str.isalpha, text))


def sentences(stretches: Sequence[Stretch]) -> list[str]:
    """What is to be translated."""
    return [each.sentence for each in stretches if each.sentence is not None]


def join_text(stretches: Sequence[Stretch], translations: Sequence[str]) -> str:
    """The stretches in a row, each sentence replaced by its translation."""
    found = iter(translations)
    return "".join(next(found) if p.is_sentence else p.text for p in stretches)


def _stretch(text: str) -> Stretch:
    return Stretch(text, sentence=text if has_letter(text) else None)


def _copied(text: str) -> list[Stretch]:
    return [Stretch(text)] if text else []
