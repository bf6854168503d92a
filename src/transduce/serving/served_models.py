"""Served models and glossaries, and translation of documents by them.

Models are found by name or by languages, and glossaries by name for the languages of a
model. A document is split into sentences, translated, and joined.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
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
from transduce.errors import ConfigError, RequestError, TooLongError
from transduce.files import real_path
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import Deadline, RequestQueue, in_thread
from transduce.text.corpus import require_one_standard_input
from transduce.text.glossary import Glossary, read_glossary
from transduce.text.inline_tags import WordLinks
from transduce.text.languages import (
    SCRIPTS,
    best_match,
    canonical,
    english_name,
    is_known,
)
from transduce.text.splitting import Segment, sentences
from transduce.text.tokenizer import tagged
from transduce.text.vocabulary import find_language_tag, languages_of

NAME = re.compile(r"[\w.-]+")
TAG_IN_NAME = re.compile(
    rf"[a-z]{{2,3}}(-({'|'.join(SCRIPTS)}))?(-([a-z]{{2}}|[0-9]{{3}}))?", re.IGNORECASE
)
"""Pattern of a language tag in a model's name: language, script and region."""
AUTO = "auto"
DEFAULT, NO_GLOSSARY = "default", "none"
"""Name of the glossary of requests that name none, and the name for no glossary."""
MAX_SHOWN = 40
"""Maximum number of characters of a field that a refusal quotes."""

Pair = tuple[str, str]
"""Source and target language, as BCP 47 tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """Name and folder of a model, and the languages stated with them."""

    name: str
    folders: tuple[Path, ...]
    """Folder of the model, or those of an ensemble."""
    stated: Pair | None = None
    """Languages given with the name; they override those that the model keeps."""

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Parse `NAME=FOLDER`, `SOURCE:TARGET=FOLDER`, or a folder that gives the name.

        FOLDER may be several with commas between them, which form an ensemble; the
        first then gives the name. A text that names an existing folder is never split.
        Raises `ConfigError` for an invalid name, for ambiguous languages in it, or
        without a folder.
        """
        name, equals, folder = text.partition("=")
        is_folder = not equals or Path(text).exists()
        folders = _folders(text if is_folder else folder)
        # An unset variable leaves no text, which Path takes for this folder.
        if not all(folders):
            raise ConfigError(
                "A model must be a folder, or a name with a folder as in "
                f"en-de=FOLDER, but is {text!r}."
            )
        paths = tuple(map(Path, folders))
        if is_folder:
            return cls(name=_checked(real_path(paths[0]).name), folders=paths)
        source, colon, target = name.partition(":")
        if colon:
            pair = (canonical(source), canonical(target))
            return cls(name="-".join(pair), folders=paths, stated=pair)
        likely = _likely_pairs(_checked(name))
        if len(likely) > 1:
            ways = ", ".join(f"{a}:{b}" for a, b in likely)
            raise ConfigError(
                f"The languages in {name!r} must be clear, but may be {ways}; write "
                "them as SOURCE:TARGET=FOLDER."
            )
        stated = next((pair for pair in likely if "-".join(pair) == name), None)
        return cls(name=name, folders=paths, stated=stated)

    @property
    def guessed(self) -> Pair:
        """Languages for a model that keeps none: read from its name, or made of it."""
        likely = _likely_pairs(self.name)
        if len(likely) == 1:
            return likely[0]
        return f"{self.name}.source", f"{self.name}.target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model with its queue."""

    name: str
    source: str
    """BCP 47 tag of the language, or a placeholder if it is unknown."""
    target: str
    queue: RequestQueue
    tags: tuple[str, ...] = ()
    """Tags of several target languages, such as >>de<<; empty for one language."""
    glossaries: tuple["ServedGlossary", ...] = ()
    """Glossaries of all languages."""

    @classmethod
    def of(
        cls,
        name: ModelName,
        queue: RequestQueue,
        glossaries: Iterable["ServedGlossary"] = (),
    ) -> "ServedModel":
        """Describe a model by its stated languages, its own, or those of its name."""
        translator = queue.translator
        if translator.symbols is not None:
            return cls(name=name.name, source="en", target="trees", queue=queue)
        source, target = name.stated or (
            translator.source_language or name.guessed[0],
            translator.target_language or name.guessed[1],
        )
        tags = tuple(translator.tokenizer.language_tags)
        if tags and name.stated:  # only into this one
            tags = (find_language_tag(target, tags),)
        elif tags:
            known = languages_of(tags)
            target = best_match(target, known) or known[0]
        return cls(
            name=name.name,
            source=source,
            target=target,
            queue=queue,
            tags=tags,
            glossaries=tuple(glossaries),
        )

    @property
    def targets(self) -> list[str]:
        """Target languages: one, or those of the model's tags."""
        if len(self.tags) < 2:
            return [self.target]
        # Several tags may be of one language, such as >>cmn<< and >>zho<<.
        return list(dict.fromkeys(languages_of(self.tags)))

    def require_target(self, language: str | None, field: str) -> None:
        """Raise `RequestError` if a field of a request has another target language."""
        if language is not None and best_match(language, self.targets) is None:
            raise RequestError(
                f"`{field}` must be a target language of the model "
                f"({', '.join(self.targets)}), but is {_shown(language)}."
            )

    def tag_for(self, target: str) -> str:
        """Return the tag of a target language; empty for a model of one language."""
        return find_language_tag(target, self.tags) if self.tags else ""

    def glossaries_for(self, target: str) -> dict[str, Glossary]:
        """Return the glossaries from the source to a target language, by their names.

        A glossary of the same base languages fits. Of several with one name, the one
        with the nearest languages counts, and one for all languages comes last.
        """
        names = dict.fromkeys(each.name for each in self.glossaries)
        found = {name: self._nearest_glossary(name, target) for name in names}
        return {name: terms for name, terms in found.items() if terms is not None}

    def glossary(self, name: str | None, language: str | None) -> Glossary | None:
        """Return the glossary of a request by its name and its target language.

        Without a name it is the default one, if there is one. Raises `RequestError` if
        there is none of that name.
        """
        target = best_match(language or self.target, self.targets) or self.target
        if name == NO_GLOSSARY:
            return None
        found = self._nearest_glossary(name or DEFAULT, target)
        if name is not None and found is None:
            several = ", ".join((*self.glossaries_for(target), NO_GLOSSARY))
            raise RequestError(
                f"`glossary` must be a glossary from {self.source} to {target} "
                f"({several}), but is {_shown(name)}."
            )
        return found

    def _nearest_glossary(self, name: str, target: str) -> Glossary | None:
        """Return the glossary of a name with the nearest languages, or None."""
        own = {
            (each.source, each.target): each.terms
            for each in self.glossaries
            if each.name == name
        }
        fitting = [
            (source, into)
            for source, into in own
            if source is not None
            and into is not None
            and best_match(self.source, [source])
        ]
        nearest = best_match(target, [into for _, into in fitting])
        source = best_match(self.source, [a for a, b in fitting if b == nearest])
        return own.get((source, nearest))

    @property
    def language(self) -> str | None:
        """BCP 47 tag of the source language; None if it is unknown."""
        try:
            return canonical(self.source)
        except ConfigError:
            return None

    @property
    def is_parser(self) -> bool:
        """Whether it is a parser of English rather than a translator."""
        return self.queue.translator.symbols is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedGlossary:
    """A glossary with its name and languages."""

    name: str
    terms: Glossary
    source: str | None = None
    """BCP 47 tag of the source language; None, as for the target, for all models."""
    target: str | None = None

    @classmethod
    def read(cls, text: str) -> "ServedGlossary":
        """Read a glossary that is given as the option of a command.

        It is `FILE`, `NAME=FILE`, `SOURCE:TARGET=FILE` or `SOURCE:TARGET:NAME=FILE`. A
        text that names an existing file is never split. Raises `ConfigError` for an
        invalid name or language, and the errors of `read_glossary`.
        """
        given, file = _name_and_file(text)
        pieces = given.split(":")
        if not file or len(pieces) > 3:
            raise ConfigError(
                "A glossary must be a file, or a name, languages or both with a file "
                f"as in en:de:medicine=FILE, but is {text!r}."
            )
        name = DEFAULT if len(pieces) == 2 else pieces[-1]
        if name == NO_GLOSSARY:
            raise ConfigError(
                f"A glossary must have another name than {NO_GLOSSARY!r}, by which "
                "requests choose no glossary; rename it."
            )
        source: str | None = None
        target: str | None = None
        if len(pieces) > 1:
            source, target = canonical(pieces[0]), canonical(pieces[1])
        return cls(
            name=_checked(name, "a glossary", "medicine=FILE"),
            terms=Glossary(read_glossary(Path(file))),
            source=source,
            target=target,
        )

    def __str__(self) -> str:
        languages = filter(None, (self.source, self.target))
        return ":".join((*languages, self.name))


def read_glossaries(texts: Sequence[str]) -> list[ServedGlossary]:
    """Read the glossaries that are given as options of a command.

    Raises the errors of `ServedGlossary.read`, `DataError` if several are standard
    input, and `ConfigError` if two have the same name and languages.
    """
    require_one_standard_input([Path(_name_and_file(text)[1]) for text in texts])
    glossaries = [ServedGlossary.read(text) for text in texts]
    _require_distinct_glossaries(glossaries)
    return glossaries


def _name_and_file(text: str) -> tuple[str, str]:
    """Split an option into the name, with languages, and the file of a glossary."""
    name, equals, file = text.partition("=")
    return (name, file) if equals and not Path(text).exists() else (DEFAULT, text)


def _require_distinct_glossaries(glossaries: Sequence[ServedGlossary]) -> None:
    """Raise `ConfigError` if two glossaries have the same name and languages."""
    for i, each in enumerate(glossaries):
        if str(each) in map(str, glossaries[:i]):
            raise ConfigError(
                "Glossaries of the same languages must have different names, but two "
                f"are {each.name!r}; name them as in medicine=FILE."
            )


def require_usable(
    glossaries: Sequence[ServedGlossary], models: Sequence[ServedModel]
) -> None:
    """Raise `ConfigError` for a glossary with a misleading name, without a model, or
    with one that cannot use it."""
    translating = [model for model in models if not model.is_parser]
    pairs = {(each.source, target) for each in translating for target in each.targets}
    for each in glossaries:
        is_of_model = each.name in {model.name for model in models} - {DEFAULT}
        if is_of_model or not pairs.isdisjoint(_likely_pairs(each.name)):
            raise ConfigError(
                "A glossary must not be named like a model or its languages, but is "
                f"{each.name!r}; write languages as in en:de=FILE."
            )
        if not (using := _models_with(each, translating)):
            known = ", ".join(f"{a}:{b}" for a, b in sorted(pairs))
            raise ConfigError(
                "A glossary must have the languages of a model that translates "
                f"({known}), but {str(each)!r} has others, or another of its name has "
                "nearer ones."
            )
        for model in using:
            _require_cross_attention(model)


def _models_with(
    glossary: ServedGlossary, models: Sequence[ServedModel]
) -> list[ServedModel]:
    """Return the models that can use a glossary for one of their targets."""
    return [
        model
        for model in models
        if any(
            glossary.terms in model.glossaries_for(each).values()
            for each in model.targets
        )
    ]


def _require_cross_attention(model: ServedModel) -> None:
    if not model.queue.translator.config.has_cross_attention:
        raise ConfigError(
            "A model that uses a glossary must have cross-attention, which shows the "
            f"places of terms, but {model.name} has none; write the languages of the "
            "other models as in en:de=FILE."
        )


def require_distinct(names: Sequence[ModelName]) -> None:
    """Raise `ConfigError` if two models have the same name."""
    for i, each in enumerate(names):
        if any(each.name == other.name for other in names[:i]):
            raise ConfigError(
                f"The names of models must be different, but two are {each.name!r}; "
                "name them as in en-de=FOLDER de-en=FOLDER."
            )


def by_name(models: Sequence[ServedModel], name: str | None) -> ServedModel:
    """Return the model of a name, or the only model; `RequestError` otherwise."""
    _require_any(models)
    found = [model for model in models if name in (None, model.name)]
    if len(found) != 1:
        raise RequestError(
            f"`model` must be one of {', '.join(model.name for model in models)}, but "
            f"is {_shown(name)}."
        )
    return found[0]


def by_languages(
    models: Sequence[ServedModel], source: str, target: str | None
) -> ServedModel:
    """Return the model whose languages match best; the source may be auto.

    A language is a BCP 47 tag in any case; if no model has it, one of the same base
    language matches. `RequestError` if no model matches, or several match auto.
    """
    _require_any(models)
    found = list(models)
    if not is_auto(source):
        found = [model for model in found if best_match(source, [model.source])]
    if target is not None:
        best = best_match(target, [each for model in found for each in model.targets])
        found = [model for model in found if best in model.targets]
    if not is_auto(source):  # among the models with the best target
        best = best_match(source, [model.source for model in found])
        found = [model for model in found if model.source == best]
    if not found or len({model.source for model in found}) > 1:
        # Several models may have the same languages.
        pairs = ", ".join(
            dict.fromkeys(
                f"{model.source} to {' or '.join(model.targets)}" for model in models
            )
        )
        raise RequestError(
            f"`source` and `target` must be languages of a model ({pairs}), but are "
            f"{_shown(source)} and {_shown(target)}."
        )
    return found[0]


def is_auto(source: str) -> bool:
    """Return whether the source language is left to the models."""
    return source.strip().lower() == AUTO


def _require_any(models: Sequence[ServedModel]) -> None:
    if not models:
        raise RequestError(
            "A model must be served that can do this, but none is; /v1/models tells "
            "what each model does."
        )


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if unknown."""
    try:
        return english_name(code)
    except ConfigError:
        return code


def _folders(text: str) -> list[str]:
    """Return the folder that a text names, or several with commas between them."""
    return [text] if Path(text).exists() else [each.strip() for each in text.split(",")]


def _shown(value: str | None) -> str:
    if value is None:
        return "not given"
    return repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "…")


def _checked(name: str, of: str = "a model", example: str = "en-de=FOLDER") -> str:
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"The name of {of} must be letters, digits, dots, hyphens or underscores, "
            f"but is {name!r}; name it as in {example}."
        )
    return name


def _likely_pairs(name: str) -> list[Pair]:
    """Return readings of a name as two tags with a dash between them.

    A reading that spells the tags as they are written is preferred to the others.
    """
    pieces = name.replace("_", "-").split("-")
    sides = (
        ("-".join(pieces[:i]), "-".join(pieces[i:])) for i in range(1, len(pieces))
    )
    found = [
        (canonical(a), canonical(b)) for a, b in sides if _is_tag(a) and _is_tag(b)
    ]
    return [pair for pair in found if "-".join(pair) == name] or found


def _is_tag(text: str) -> bool:
    return TAG_IN_NAME.fullmatch(text) is not None and is_known(text)


Found = TypeVar("Found")


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
    corpus_tag: str = ""
    """Tag of a corpus before each sentence; empty for none."""
    glossary: Glossary | None = None
    max_characters: int | None = None
    """Maximum number of characters of all sentences of a request."""


def search_for(own: SearchConfig, num_alternatives: int) -> SearchConfig:
    """Return the model's search, with a beam wide enough for the alternatives."""
    num_best = num_alternatives + 1
    beam_size = max(own.beam_size, num_best)
    return replace(own, beam_size=beam_size, num_best=num_best)


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


def reader_of(queue: RequestQueue, options: DocumentOptions) -> Translator:
    """Return the translator that puts the tags of a document before each source."""
    translator = queue.translator
    if options.corpus_tag:
        translator = translator.with_tag(options.corpus_tag)
    # The language as it is written in the tag >>fr<<.
    return translator.into(options.tag[2:-2]) if options.tag else translator


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
    split_documents = await in_thread(deadline, split, documents, options)
    # The sentences of all documents are translated together, in their order.
    segments = [each for document in split_documents for each in document]
    sentence_segments = [each for each in segments if each.is_sentence]
    search = search_for(queue.translator.search, num_alternatives)
    texts = sources(segments, options, queue)
    found = await queue.translate(
        texts, search, deadline, options.corpus_tag, options.glossary
    )
    pairs = list(zip(sentence_segments, found, strict=True))
    reader = reader_of(queue, options)
    links = await _links(queue, reader, pairs, deadline)
    write = partial(written, options.format)
    pieces = await in_thread(
        deadline, lambda: list(map(write, sentence_segments, found, links))
    )
    # Each document takes its own results from these.
    results = zip(pieces, (each.text for each in found), strict=True)
    return [_joined_document(document, results) for document in split_documents]


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
    queue: RequestQueue,
    segments: Sequence[Segment],
    futures: Sequence[Future[Translation]],
    options: DocumentOptions,
    deadline: Deadline,
) -> AsyncIterator[TranslatedSegment]:
    """Yield each segment as soon as it and all before it are translated.

    Copied segments follow with the next sentence.
    """
    reader = reader_of(queue, options)
    joiner = SegmentJoiner()
    async for segment, found in found_segments(segments, futures):
        piece, text = copied(segment), ""
        if found is not None:
            [links] = await _links(queue, reader, [(segment, found)], deadline)
            piece = written(options.format, segment, found, links)
            text = found.text
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
    queue: RequestQueue,
    reader: Translator,
    found: Sequence[tuple[Segment, Translation]],
    deadline: Deadline,
) -> list[list[WordLinks | None]]:
    """Return word links of each sentence to its translation and alternatives.

    None stands for each of them if the sentence has no tags.
    """
    texts = [texts_of(translation) for _, translation in found]
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
        link = partial(attended_links, reader, pairs)
        linked = await queue.run(link, deadline, is_new=False)
        for (i, k), each in zip(chosen, linked, strict=True):
            links[i][k] = each
    return links
