"""Running text as sentences, and what stands between them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transduce.languages import base
from transduce.text.documents.inline_tags import SentenceTags
from transduce.text.documents.sentence_ends import sentence_spans

LINE = re.compile(r"[^\r\n]+|[\r\n]+")
"""Pattern of a line, or of line breaks."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Piece of a document that is translated as one sentence, or copied."""

    text: str
    """Text of the piece in the document."""
    sentence: str | None = None
    """Sentence to translate; None if the text is copied."""
    tags: SentenceTags | None = None
    """Markup within the sentence, if there is any."""

    @property
    def is_sentence(self) -> bool:
        return self.sentence is not None


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
) -> list[Stretch]:
    """Split text into stretches that join to it again; no sentence crosses a line.

    Sentences end by the rules of the language, a BCP 47 tag. Without `splits_lines`
    each line is one sentence. Sentences that `is_read` rejects are copied, by default
    those without a letter.
    """
    code = None if language is None else base(language)
    stretches: list[Stretch] = []
    for match in LINE.finditer(text):
        if not is_read(match[0]):
            stretches.append(Stretch(match[0]))
            continue
        start = 0
        for begin, end in sentence_spans(match[0], code, splits_lines=splits_lines):
            stretches += _copied(match[0][start:begin])
            sentence = match[0][begin:end]
            stretches.append(
                Stretch(sentence, sentence=sentence if is_read(sentence) else None)
            )
            start = end
        stretches += _copied(match[0][start:])
    return stretches


def sentences(stretches: Sequence[Stretch]) -> list[str]:
    """What is to be translated."""
    return [each.sentence for each in stretches if each.sentence is not None]


def join_text(stretches: Sequence[Stretch], translations: Sequence[str]) -> str:
    """The stretches in a row, each sentence replaced by its translation."""
    found = iter(translations)
    return "".join(next(found) if p.is_sentence else p.text for p in stretches)


def _copied(text: str) -> list[Stretch]:
    return [Stretch(text)] if text else []
