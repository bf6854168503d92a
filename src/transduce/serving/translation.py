"""Translation of documents: split into sentences, translated, and joined."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

from transduce.decoding.translations import (
    Translation,
    TranslationHypothesis,
)
from transduce.decoding.translator import Translator
from transduce.errors import missing_in
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import Deadline, RequestQueue, in_thread
from transduce.text.inline_tags import WordLinks
from transduce.text.markup import split_html, written_html
from transduce.text.splitting import Segment, sentences, split_text
from transduce.text.tokenizer import tagged

Found = TypeVar("Found")

Format = Literal["text", "html"]
LINKED_AT_ONCE = 32
"""Maximum number of sentences with tags whose words are linked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """Format and language of documents, and how they are split."""

    format: Format = "text"
    language: str | None = None
    """Language of the documents, as a BCP 47 tag."""
    splits_lines: bool = True
    """Whether a line of text, or a block of HTML, is split into sentences."""
    tag: str = ""
    """Tag of the target language before each sentence; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedDocument:
    """Translation of a document, with alternatives."""

    text: str
    alternatives: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSegment:
    """Piece of a document with its text in the translation."""

    source: str
    text: str
    score: float | None = None
    """Score of the translation; None if the piece was copied."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Alternative texts with their scores."""


def search_for(own: SearchConfig, num_alternatives: int) -> SearchConfig:
    """Return the model's search, with a beam wide enough for the alternatives."""
    num_best = num_alternatives + 1
    beam_size = max(own.beam_size, num_best)
    return replace(own, beam_size=beam_size, num_best=num_best)


def split(document: str, options: DocumentOptions) -> list[Segment]:
    """Split a document into sentences and the text between them."""
    split_format = split_html if options.format == "html" else split_text
    return split_format(document, options.language, splits_lines=options.splits_lines)


def sources(
    segments: Sequence[Segment], options: DocumentOptions, queue: RequestQueue
) -> list[str]:
    """Return the sentences of segments, with the tag of the target language."""
    tokenizer = queue.translator.tokenizer
    return [tagged(each, options.tag, tokenizer) for each in sentences(segments)]


async def translate_documents(
    queue: RequestQueue,
    documents: Sequence[str],
    options: DocumentOptions,
    num_alternatives: int,
) -> list[TranslatedDocument]:
    """Translate documents, each with at most `num_alternatives` alternatives."""
    deadline = queue.deadline()
    split_documents = await in_thread(
        deadline, lambda: [split(document, options) for document in documents]
    )
    every = [each for segments in split_documents for each in segments]
    search = search_for(queue.translator.search, num_alternatives)
    texts = sources(every, options, queue)
    found = await queue.translate(texts, search, deadline)
    marked = [each for each in every if each.is_sentence]
    pairs = list(zip(marked, found, strict=True))
    links = await _links(queue, pairs, num_alternatives, deadline)
    write = partial(_written, options.format, num_alternatives)
    written = iter(
        await in_thread(deadline, lambda: list(map(write, marked, found, links)))
    )
    return [
        _joined([next(written) if p.is_sentence else _copied(p) for p in segments])
        for segments in split_documents
    ]


async def translated_segments(
    queue: RequestQueue,
    segments: Sequence[Segment],
    futures: Sequence[Future[Translation]],
    format: Format,
    num_alternatives: int,
    deadline: Deadline,
) -> AsyncIterator[TranslatedSegment]:
    """Yield each segment as soon as it and all before it are translated."""
    async for segment, found in found_segments(segments, futures):
        if found is None:
            yield _copied(segment)
            continue
        [links] = await _links(queue, [(segment, found)], num_alternatives, deadline)
        yield _written(format, num_alternatives, segment, found, links)


async def found_segments(
    segments: Sequence[Segment], futures: Sequence[Future[Found]]
) -> AsyncIterator[tuple[Segment, Found | None]]:
    """Yield each segment with its result, as soon as those before it are done.

    The result is None between sentences. Closing the iterator cancels pending work.
    """
    waiting = iter(futures)
    try:
        for segment in segments:
            if segment.is_sentence:
                found = await asyncio.wrap_future(next(waiting))
                yield segment, found
            else:
                yield segment, None
    finally:
        for future in futures:
            future.cancel()


def other_hypotheses(
    translation: Translation, most: int
) -> list[TranslationHypothesis]:
    """Return at most `most` hypotheses besides the best, best first."""
    return list(translation.hypotheses[1 : most + 1])


async def _links(
    queue: RequestQueue,
    found: Sequence[tuple[Segment, Translation]],
    num_alternatives: int,
    deadline: Deadline,
) -> list[list[WordLinks | None]]:
    """Return word links of each sentence to its translation and alternatives.

    None stands for each of them if the sentence has no tags.
    """
    texts = [_texts(translation, num_alternatives) for _, translation in found]
    places = [
        (i, k)
        for i, (segment, _) in enumerate(found)
        if segment.tags
        for k in range(len(texts[i]))
    ]
    links: list[list[WordLinks | None]] = [[None] * len(each) for each in texts]
    for start in range(0, len(places), LINKED_AT_ONCE):
        chosen = places[start : start + LINKED_AT_ONCE]
        pairs = [(found[i][0].sentence or "", texts[i][k]) for i, k in chosen]
        link = partial(_linked, queue.translator, pairs)
        linked = await queue.run(link, deadline)
        for (i, k), each in zip(chosen, linked, strict=True):
            links[i][k] = each
    return links


def _linked(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Return word links by the model's attention; None for each without PyTorch."""
    try:
        from transduce.analysis.attention_maps import attended_links
    except ImportError as error:
        if missing_in(error) is None:
            raise
        return [None] * len(pairs)
    return attended_links(translator, pairs)


def _texts(translation: Translation, num_alternatives: int) -> list[str]:
    others = other_hypotheses(translation, num_alternatives)
    return [translation.text, *(each.text for each in others)]


def _written(
    format: Format,
    num_alternatives: int,
    segment: Segment,
    translation: Translation,
    links: Sequence[WordLinks | None],
) -> TranslatedSegment:
    texts = _texts(translation, num_alternatives)
    if format == "html":
        texts = [
            written_html(segment, text, each)
            for text, each in zip(texts, links, strict=True)
        ]
    others = other_hypotheses(translation, num_alternatives)
    scores = [each.score for each in others]
    return TranslatedSegment(
        source=segment.text,
        text=texts[0],
        score=translation.score,
        alternatives=tuple(zip(texts[1:], scores, strict=True)),
    )


def _copied(segment: Segment) -> TranslatedSegment:
    return TranslatedSegment(source=segment.text, text=segment.text)


def _joined(segments: Sequence[TranslatedSegment]) -> TranslatedDocument:
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
    )
