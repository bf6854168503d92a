"""Documents, which are text of several sentences, HTML or subtitles, and translations.

`text.splitting`, `text.markup` and `text.subtitles` find the sentences of a document. A
translation keeps what is between them; tags within a sentence go around the words that
attention links to theirs. `translate_document` does this at once, the server in its own
steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from transduce.decoding.alignment import WHY_UNALIGNED, attended_links
from transduce.decoding.translations import Pace, Translation, with_best
from transduce.errors import packages_for, shortened, warn_caller
from transduce.search_config import SearchConfig
from transduce.text.corpus import full_windows, require_characters
from transduce.text.inline_tags import WordLinks
from transduce.text.splitting import Segment, Spacing, sentences, split_text
from transduce.text.subtitles import split_subtitles, written_subtitles

if TYPE_CHECKING:
    from transduce.decoding.translator import Translator

Format = Literal["text", "html", "srt", "vtt"]
LINKED_AT_ONCE = 32
"""Maximum number of sentences with tags whose words are linked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedDocument:
    """Translation of a document, with alternatives."""

    text: str
    alternatives: list[str]
    may_lack_terms: bool = False
    """Whether that holds for one of its sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSegment:
    """Piece of a document with its text in the translation."""

    source: str
    text: str
    score: float | None = None
    """Score of the translation; None if the piece was copied."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Alternative texts with their scores."""
    pivot: str | None = None
    """The sentence in the pivot language, if two models translated it."""
    may_lack_terms: bool = False
    """Whether terms of the glossary may be missing in the text."""


def translate_document(
    translator: "Translator",
    document: str,
    format: Format,
    config: SearchConfig | None = None,
) -> Iterator[str]:
    """Yield the pieces of a document's translation, in order.

    A `TransduceWarning` quotes each sentence that is so long that it is translated in
    parts, or whose translation may lack terms of the glossary.

    Raises `RequestError` for text that is not valid Unicode, and for HTML if the
    package that reads it is not installed.
    """
    require_characters(document)
    segments = split_document(document, format, translator.source_language)
    texts = sentences(segments)
    pace = Pace(on_unplaced=partial(_warn_of_unplaced, texts))
    several = translator.translate_stream(texts, config, pace=pace)
    found = (with_best(each, 1) for each in several)
    joiner = SegmentJoiner()
    for window in full_windows(segments, LINKED_AT_ONCE):
        translated = [each for each in window if each.is_sentence]
        pairs = list(zip(translated, islice(found, len(translated)), strict=True))
        results = iter(zip(pairs, _links(translator, pairs), strict=True))
        for segment in window:
            piece, text = copied(segment), ""
            if segment.is_sentence:
                (_, translation), links = next(results)
                if translation.num_parts > 1:
                    warn_caller(
                        f"The sentence {shortened(segment.sentence or '')} is too long,"
                        f" and is translated in {translation.num_parts} parts."
                    )
                piece = written(format, segment, translation, [links])
                text = translation.text
            yield from (each.text for each in joiner.add(segment, piece, text))
    yield from (each.text for each in joiner.rest())


def _warn_of_unplaced(texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Quote the sentences of these numbers, from 1, which may lack terms."""
    for number in numbers:
        warn_caller(
            "Terms of the glossary may be missing in the translation of the sentence "
            f"{shortened(texts[number - 1])}: {WHY_UNALIGNED}."
        )


def _links(
    translator: "Translator", found: Sequence[tuple[Segment, Translation]]
) -> list[WordLinks | None]:
    """Return the word links of each sentence to its translation; None without tags."""
    tagged = [i for i, (segment, _) in enumerate(found) if segment.is_linked]
    pairs = [(found[i][0].sentence or "", found[i][1].text) for i in tagged]
    links: list[WordLinks | None] = [None] * len(found)
    for i, each in zip(tagged, attended_links(translator, pairs), strict=True):
        segment, translation = found[i]
        terms = translation.placed_terms
        links[i] = each and each.with_terms(segment.sentence or "", terms)
    return links


def split_document(
    document: str, format: Format, language: str | None, *, splits_lines: bool = True
) -> list[Segment]:
    """Split a document into its sentences and what is between them.

    Without `splits_lines`, each line of text or block of HTML is one sentence. Raises
    `RequestError` for HTML if the package that reads it is not installed, and for
    subtitles without a line of times.
    """
    if format == "text":
        return split_text(document, language, splits_lines=splits_lines)
    if format != "html":
        return split_subtitles(
            document,
            language,
            splits_lines=splits_lines,
            is_escaped=format == "vtt",
        )
    with packages_for("HTML", "serve"):
        from transduce.text.markup import split_html
    return split_html(document, language, splits_lines=splits_lines)


def texts_of(translation: Translation) -> list[str]:
    """Return a translation and its alternatives, best first."""
    return [translation.text, *(each.text for each in translation.hypotheses[1:])]


def written(
    format: Format,
    segment: Segment,
    translation: Translation,
    links: Sequence[WordLinks | None],
) -> TranslatedSegment:
    """Return a sentence's translations in the format of its document.

    `links` place its tags: those of the translation, then of each alternative.
    """
    texts = texts_of(translation)
    if format == "html":
        from transduce.text.markup import written_html  # with the extra serve

        texts = [
            written_html(segment, text, each)
            for text, each in zip(texts, links, strict=True)
        ]
    elif format != "text":
        texts = [
            written_subtitles(segment, text, each, is_escaped=format == "vtt")
            for text, each in zip(texts, links, strict=True)
        ]
    scores = [each.score for each in translation.hypotheses[1:]]
    return TranslatedSegment(
        source=segment.text,
        text=texts[0],
        score=translation.score,
        alternatives=tuple(zip(texts[1:], scores, strict=True)),
        may_lack_terms=translation.may_lack_terms,
    )


def copied(segment: Segment) -> TranslatedSegment:
    """Return a piece that every translation has."""
    return TranslatedSegment(source=segment.text, text=segment.copied)


class SegmentJoiner:
    """Puts spaces between the pieces of a document, which are added in order."""

    def __init__(self) -> None:
        self._spacing = Spacing()
        self._waiting: list[tuple[Segment, TranslatedSegment]] = []
        """Copied pieces after the last sentence; the next translation decides on the
        space between them."""

    def add(
        self, segment: Segment, piece: TranslatedSegment, text: str
    ) -> list[TranslatedSegment]:
        """Add a segment's piece; return the pieces that are done with it.

        `text` is the translation of a sentence as the model generated it, which decides
        on spaces; `piece` has it in the format of the document.
        """
        self._waiting.append((segment, piece))
        return self.rest(text) if segment.is_sentence else []

    def rest(self, text: str = "") -> list[TranslatedSegment]:
        """Return the pieces that wait for a translation, `text` or none."""
        pieces = [
            _after(self._spacing.space_before(segment, text), piece)
            for segment, piece in self._waiting
        ]
        self._waiting.clear()
        return pieces


def _after(space: str, segment: TranslatedSegment) -> TranslatedSegment:
    """Return a segment with space before it, in the alternatives as well."""
    return replace(
        segment,
        text=space + segment.text,
        alternatives=tuple((space + text, s) for text, s in segment.alternatives),
    )


def joined(segments: Sequence[TranslatedSegment]) -> TranslatedDocument:
    """Join segments; the k-th alternative joins the k-th best of each sentence."""
    most = max((len(each.alternatives) for each in segments), default=0)
    return TranslatedDocument(
        text="".join(each.text for each in segments),
        alternatives=[
            "".join(
                each.alternatives[k][0] if k < len(each.alternatives) else each.text
                for each in segments
            )
            for k in range(most)
        ],
        may_lack_terms=any(each.may_lack_terms for each in segments),
    )
