"""Translation of a request's documents by one model, or by two with a pivot language.

A document is split into sentences, translated, and joined. With a pivot language, the
first model translates a sentence into it, and the second model the result, as one
sentence whatever marks it has. Word links of both models together place tags.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from transduce.decoding.alignment import attended_links
from transduce.decoding.documents import (
    LINKED_AT_ONCE,
    Format,
    SegmentJoiner,
    TranslatedDocument,
    TranslatedSegment,
    copied,
    joined,
    split_document,
    texts_of,
    written,
)
from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator
from transduce.errors import TooLongError
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import (
    Deadline,
    RequestQueue,
    in_thread,
    when_done,
)
from transduce.text.glossary import Glossary
from transduce.text.inline_tags import PlacedTerm, WordLinks
from transduce.text.splitting import Segment, sentences
from transduce.text.tokenizer import tagged

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Work of one model for a request: its queue, and what the request chooses."""

    queue: RequestQueue
    language_tag: str = ""
    """Tag of the target language before each sentence; empty for none."""
    corpus_tag: str = ""
    """Tag of a corpus before each sentence; empty for none."""
    glossary: Glossary | None = None

    @property
    def reader(self) -> Translator:
        """Translator that puts the tags before each source."""
        translator = self.queue.translator
        if self.corpus_tag:
            translator = translator.with_tag(self.corpus_tag)
        # The language as it is written in the tag >>fr<<.
        language = self.language_tag[2:-2]
        return translator.into(language) if language else translator

    def tagged(self, text: str) -> str:
        """Return a sentence with the tag of the target language."""
        return tagged(text, self.language_tag, self.queue.translator.tokenizer)

    def search(self, num_alternatives: int) -> SearchConfig:
        """Return the model's search, with a beam wide enough for the alternatives."""
        own = self.queue.translator.search
        num_best = num_alternatives + 1
        beam_size = max(own.beam_size, num_best)
        return replace(own, beam_size=beam_size, num_best=num_best)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """Format and language of documents, and how they are split."""

    format: Format = "text"
    language: str | None = None
    """Language of the documents, as a BCP 47 tag."""
    splits_lines: bool = True
    """Whether a line of text, or a block of HTML, is split into sentences."""
    max_characters: int | None = None
    """Maximum number of characters of all sentences of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSentence:
    """Translation of a sentence by all steps."""

    translation: Translation
    """Translation by the last model."""
    into_pivot: Translation | None = None
    """Translation into the pivot language, which the last model read; None without."""

    @property
    def pivot(self) -> str | None:
        """The sentence in the pivot language; None without one."""
        return None if self.into_pivot is None else self.into_pivot.text

    @property
    def may_lack_terms(self) -> bool:
        """Whether terms of a model's glossary may be missing in its translation."""
        several = (self.into_pivot, self.translation)
        return any(each.may_lack_terms for each in several if each is not None)


def require_few_characters(texts: Iterable[str], most: int) -> None:
    """Raise `TooLongError` for texts with more characters than a request may have."""
    length = sum(map(len, texts))
    if length > most:
        raise TooLongError(
            f"A request must have at most {most:,} characters of text, but has "
            f"{length:,}; send it in parts."
        )


def split(documents: Sequence[str], options: DocumentOptions) -> list[list[Segment]]:
    """Split documents into sentences and the text between them.

    Raises `TooLongError` if the sentences have more characters than they may have.
    """
    split_each = partial(
        split_document,
        format=options.format,
        language=options.language,
        splits_lines=options.splits_lines,
    )
    found = list(map(split_each, documents))
    if options.max_characters is not None:
        texts = (text for segments in found for text in sentences(segments))
        require_few_characters(texts, options.max_characters)
    return found


async def submit(
    steps: Sequence[Step],
    texts: Sequence[str],
    num_alternatives: int,
    deadline: Deadline,
) -> list[Future[TranslatedSentence]]:
    """Enqueue sentences for all steps; return a future of each translation.

    The last step finds the alternatives. Raises the errors of `RequestQueue.submit`,
    and `TooLongError` for too many tokens. What the first model writes is not counted,
    as its length is bounded by that of the sentences.
    """
    first, *others = steps
    first.queue.require_few(len(texts))
    given = list(map(first.tagged, texts))
    await first.queue.require_short(given, deadline)
    for step in others:
        step.queue.require_room(len(texts))
    found = first.queue.submit(
        given,
        first.search(0 if others else num_alternatives),
        deadline,
        first.corpus_tag,
        first.glossary,
    )
    if not others:
        return [when_done(each, _translated_at_once) for each in found]
    [last] = others
    enqueue = last.queue.open_request(
        last.search(num_alternatives), deadline, last.corpus_tag, last.glossary
    )
    return [when_done(each, partial(_translate_on, last, enqueue)) for each in found]


def _translated_at_once(translation: Translation) -> TranslatedSentence:
    return TranslatedSentence(translation=translation)


def _translate_on(
    step: Step,
    enqueue: Callable[[str], Future[Translation]],
    into_pivot: Translation,
) -> Future[TranslatedSentence]:
    """Translate the result of the first model by a second one."""
    found = enqueue(step.tagged(into_pivot.text))
    return when_done(
        found,
        lambda last: TranslatedSentence(translation=last, into_pivot=into_pivot),
    )


async def translate_documents(
    steps: Sequence[Step],
    documents: Sequence[str],
    options: DocumentOptions,
    num_alternatives: int,
) -> list[TranslatedDocument]:
    """Translate documents, each with at most `num_alternatives` alternatives."""
    deadline = steps[0].queue.deadline()
    split_documents = await in_thread(deadline, split, documents, options)
    # The sentences of all documents are translated together, in their order.
    segments = [each for document in split_documents for each in document]
    sentence_segments = [each for each in segments if each.is_sentence]
    futures = await submit(steps, sentences(segments), num_alternatives, deadline)
    try:
        found = await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        for future in futures:  # one failed, or the caller was cancelled
            future.cancel()
    pairs = list(zip(sentence_segments, found, strict=True))
    links = await _links(steps, pairs, deadline)
    write = partial(_written, options.format)
    pieces = await in_thread(
        deadline, lambda: list(map(write, sentence_segments, found, links))
    )
    # Each document takes its own results from these.
    results = zip(pieces, (each.translation.text for each in found), strict=True)
    return [_joined_document(document, results) for document in split_documents]


def _written(
    format: Format,
    segment: Segment,
    found: TranslatedSentence,
    links: Sequence[WordLinks | None],
) -> TranslatedSegment:
    """Return a sentence's translations as `written`, with what all steps know of it."""
    piece = written(format, segment, found.translation, links)
    return replace(piece, pivot=found.pivot, may_lack_terms=found.may_lack_terms)


def _joined_document(
    segments: Sequence[Segment], results: Iterator[tuple[TranslatedSegment, str]]
) -> TranslatedDocument:
    """Join a document from the next results of its sentences.

    A result is as `SegmentJoiner.add` takes it.
    """
    joiner = SegmentJoiner()
    pieces: list[TranslatedSegment] = []
    for segment in segments:
        result = next(results) if segment.is_sentence else (copied(segment), "")
        pieces += joiner.add(segment, *result)
    return joined([*pieces, *joiner.rest()])


async def translated_segments(
    steps: Sequence[Step],
    segments: Sequence[Segment],
    futures: Sequence[Future[TranslatedSentence]],
    format: Format,
    deadline: Deadline,
) -> AsyncIterator[TranslatedSegment]:
    """Yield each segment as soon as it and all before it are translated.

    Copied segments follow with the next sentence.
    """
    joiner = SegmentJoiner()
    async for segment, found in found_segments(segments, futures):
        piece, text = copied(segment), ""
        if found is not None:
            [links] = await _links(steps, [(segment, found)], deadline)
            piece = _written(format, segment, found, links)
            text = found.translation.text
        for each in joiner.add(segment, piece, text):
            yield each
    for each in joiner.rest():
        yield each


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


async def _links(
    steps: Sequence[Step],
    found: Sequence[tuple[Segment, TranslatedSentence]],
    deadline: Deadline,
) -> list[list[WordLinks | None]]:
    """Return word links of each sentence to its translation and alternatives.

    None stands for each of them if the sentence has no tags.
    """
    texts = [texts_of(each.translation) for _, each in found]
    links: list[list[WordLinks | None]] = [[None] * len(each) for each in texts]
    tagged = [i for i, (segment, _) in enumerate(found) if segment.is_linked]
    read = [segment.sentence or "" for segment, _ in found]
    into_pivot: dict[int, WordLinks | None] = {}
    if len(steps) > 1:
        first = [
            (read[i], each.text, each.placed_terms)
            for i in tagged
            if (each := found[i][1].into_pivot) is not None
        ]
        linked = await _linked(steps[0], first, deadline)
        into_pivot = dict(zip(tagged, linked, strict=True))
        read = [each.pivot or "" for _, each in found]
    places = [(i, k) for i in tagged for k in range(len(texts[i]))]
    last = [
        (read[i], texts[i][k], found[i][1].translation.placed_terms) for i, k in places
    ]
    linked = await _linked(steps[-1], last, deadline)
    for (i, k), own in zip(places, linked, strict=True):
        links[i][k] = own
        if i in into_pivot:
            before = into_pivot[i]
            links[i][k] = None if before is None or own is None else before.then(own)
    return links


async def _linked(
    step: Step,
    translated: Sequence[tuple[str, str, Sequence[PlacedTerm]]],
    deadline: Deadline,
) -> list[WordLinks | None]:
    """Return the word links of each sentence to its translation by a step.

    The terms of its glossary are linked as they are placed.
    """
    links: list[WordLinks | None] = []
    for start in range(0, len(translated), LINKED_AT_ONCE):
        chosen = translated[start : start + LINKED_AT_ONCE]
        pairs = [(sentence, text) for sentence, text, _ in chosen]
        link = partial(attended_links, step.reader, pairs)
        found = await step.queue.run(link, deadline, is_new=False)
        links += [
            each and each.with_terms(sentence, terms)
            for each, (sentence, _, terms) in zip(found, chosen, strict=True)
        ]
    return links
