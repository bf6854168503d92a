"""Documents through a queue: split into sentences, translated, and put together."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from transduce.decoding.translation.translations import (
    Translation,
    TranslationHypothesis,
)
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import RequestQueue, in_thread
from transduce.text.documents.markup import join_html, split_html
from transduce.text.documents.running_text import (
    Stretch,
    join_text,
    sentences,
    split_text,
)

Found = TypeVar("Found")

Format = Literal["text", "html"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedDocument:
    """A document, with other ways to translate it."""

    text: str
    alternatives: list[str]


def search_for(own: SearchConfig, num_alternatives: int) -> SearchConfig:
    """The model's own search, wide enough for so many besides the best."""
    num_best = num_alternatives + 1
    beam_size = max(own.beam_size, num_best)
    return replace(own, beam_size=beam_size, num_best=num_best)


def split(document: str, format: Format) -> list[Stretch]:
    """Sentences, and what stands between them."""
    return split_html(document) if format == "html" else split_text(document)


async def translate_documents(
    queue: RequestQueue, documents: Sequence[str], format: Format, num_alternatives: int
) -> list[TranslatedDocument]:
    """Each with at most so many alternatives."""
    split_documents = await in_thread(
        lambda: [split(document, format) for document in documents]
    )
    texts = [text for stretches in split_documents for text in sentences(stretches)]
    search = search_for(queue.translator.search, num_alternatives)
    found = iter(await queue.translate(texts, search))
    return await in_thread(
        lambda: [
            _joined(
                stretches,
                [next(found) for _ in sentences(stretches)],
                format,
                num_alternatives,
            )
            for stretches in split_documents
        ]
    )


async def found_stretches(
    stretches: Sequence[Stretch], futures: Sequence[Future[Found]]
) -> AsyncIterator[tuple[Stretch, Found | None]]:
    """Each stretch with what was found for it, as soon as those before it are done.

    For what stands between sentences that is nothing. What was not come to is given up.
    """
    waiting = iter(futures)
    try:
        for stretch in stretches:
            if stretch.is_sentence:
                found = await asyncio.wrap_future(next(waiting))
                yield stretch, found
            else:
                yield stretch, None
    finally:
        for future in futures:
            future.cancel()


def other_hypotheses(
    translation: Translation, most: int
) -> list[TranslationHypothesis]:
    """At most so many besides the best, best first."""
    return list(translation.hypotheses[1 : most + 1])


def _joined(
    stretches: Sequence[Stretch],
    translations: Sequence[Translation],
    format: Format,
    num_alternatives: int,
) -> TranslatedDocument:
    """The k-th alternative has the k-th best of each sentence that has so many."""
    join = join_html if format == "html" else join_text
    best = [each.text for each in translations]
    others = [
        [each.text for each in other_hypotheses(t, num_alternatives)]
        for t in translations
    ]
    alternatives = [
        [
            other[k] if k < len(other) else first
            for first, other in zip(best, others, strict=True)
        ]
        for k in range(max(map(len, others), default=0))
    ]
    return TranslatedDocument(
        text=join(stretches, best),
        alternatives=[join(stretches, each) for each in alternatives],
    )
