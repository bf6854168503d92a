"""Served models and glossaries, and the routes of models between two languages.

A route is one model, or two with a pivot language between them. Models and routes are
found by name or by languages, and glossaries by name for the languages of a model.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from transduce.errors import ConfigError, RequestError
from transduce.files import real_path
from transduce.serving.request_queue import RequestQueue
from transduce.serving.translation import Step
from transduce.text.corpus import require_one_standard_input
from transduce.text.glossary import Glossary, read_glossary
from transduce.text.languages import (
    SCRIPTS,
    best_match,
    canonical,
    english_name,
    is_known,
)
from transduce.text.vocabulary import (
    find_corpus_tag,
    find_language_tag,
    languages_of,
)

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

    def step(self, target: str, corpus_tag: str, glossary: str | None) -> Step:
        """Return the model's work for a request, with what it has of the request's.

        By default the glossary is the default one. The tag of a corpus that the model
        lacks is left out, and so is a glossary of another name.
        """
        own = best_match(target, self.targets) or self.target
        has_tag = corpus_tag in self.queue.translator.tokenizer.corpus_tags
        return Step(
            queue=self.queue,
            language_tag=self.tag_for(target),
            corpus_tag=corpus_tag if has_tag else "",
            glossary=None
            if glossary == NO_GLOSSARY
            else self._nearest_glossary(glossary or DEFAULT, own),
        )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Way from a language to others: one model, or two with a pivot language."""

    models: tuple[ServedModel, ...]
    targets: tuple[str, ...]
    """Target languages of the last model; with a pivot, those that no single model has
    from the source."""
    pivot: str | None = None
    """Language into which the first of two models translates, as its BCP 47 tag."""

    @classmethod
    def of(cls, model: ServedModel) -> "Route":
        """Return the route of a model alone."""
        return cls(models=(model,), targets=tuple(model.targets))

    @property
    def name(self) -> str:
        """Name of the model, or both names with a plus, which no name has."""
        return "+".join(each.name for each in self.models)

    @property
    def source(self) -> str:
        return self.models[0].source

    @property
    def target(self) -> str:
        """Target language of requests that name none."""
        own = self.models[-1].target
        return own if own in self.targets else self.targets[0]

    @property
    def language(self) -> str | None:
        """BCP 47 tag of the source language; None if it is unknown."""
        return self.models[0].language

    @property
    def corpus_tags(self) -> list[str]:
        """Tags of the corpora on which one of the models was trained."""
        tokenizers = (each.queue.translator.tokenizer for each in self.models)
        return list(
            dict.fromkeys(tag for each in tokenizers for tag in each.corpus_tags)
        )

    def into(self, target: str | None) -> str:
        """Return the target language that matches a request's best."""
        return best_match(target or self.target, self.targets) or self.target

    def glossaries_for(self, target: str) -> dict[str, int]:
        """Return the number of terms of each glossary into a target, by its name."""
        counts: dict[str, int] = {}
        for model, language in zip(self.models, self._through(target), strict=True):
            for name, terms in model.glossaries_for(language).items():
                counts[name] = counts.get(name, 0) + len(terms)
        return counts

    def steps(
        self, target: str | None, corpus_tag: str | None, glossary: str | None
    ) -> tuple[Step, ...]:
        """Return the work of each model for a request.

        Each of two models uses the tag of a corpus and the glossary if it has them.
        Raises `RequestError` for a tag or a glossary that no model has.
        """
        into = self.into(target)
        tag = (
            "" if corpus_tag is None else find_corpus_tag(corpus_tag, self.corpus_tags)
        )
        known = self.glossaries_for(into)
        if glossary not in (None, NO_GLOSSARY, *known):
            several = ", ".join((*known, NO_GLOSSARY))
            raise RequestError(
                f"`glossary` must be a glossary from {self.source} to {into} "
                f"({several}), but is {_shown(glossary)}."
            )
        return tuple(
            model.step(language, tag, glossary)
            for model, language in zip(
                self.models, self._through(target or self.target), strict=True
            )
        )

    def _through(self, target: str) -> list[str]:
        """Return the language into which each model translates."""
        return [target] if self.pivot is None else [self.pivot, target]


def find_routes(models: Sequence[ServedModel], pivots: Sequence[str]) -> list[Route]:
    """Return a route of each model that translates, then those through pivots.

    A pivot joins two models whose languages it matches, into languages that no single
    model and no pivot before it has from the same source. Raises `ConfigError` for a
    pivot that joins no models so.
    """
    translating = [model for model in models if not model.is_parser]
    routes = list(map(Route.of, translating))
    for pivot in map(canonical, pivots):
        joined = list(_routes_through(pivot, translating, routes))
        if not joined:
            pairs = ", ".join(f"{a}:{b}" for a, b in _pairs(routes))
            raise ConfigError(
                "A pivot must be a language through which two models translate from "
                f"and into others ({pairs}), but {pivot!r} joins none into a new pair; "
                "leave it out."
            )
        routes += joined
    return routes


def _routes_through(
    pivot: str, models: Sequence[ServedModel], routes: Sequence[Route]
) -> Iterator[Route]:
    """Yield the routes through a pivot into languages that the others lack."""
    known = set(_pairs(routes))
    for first in models:
        for last in models:
            into = best_match(pivot, first.targets)
            targets = tuple(
                each
                for each in last.targets
                if each != first.source and (first.source, each) not in known
            )
            if (
                into
                and best_match(into, [last.source])
                and first is not last
                and targets
            ):
                yield Route(models=(first, last), targets=targets, pivot=into)


def _pairs(routes: Iterable[Route]) -> list[Pair]:
    """Return the pairs of languages of routes, without repetition."""
    pairs = ((each.source, target) for each in routes for target in each.targets)
    return list(dict.fromkeys(pairs))


Named = TypeVar("Named", ServedModel, Route)


def by_name(models: Sequence[Named], name: str | None) -> Named:
    """Return the model of a name, or the only model; `RequestError` otherwise."""
    _require_any(models)
    found = [model for model in models if name in (None, model.name)]
    if len(found) != 1:
        raise RequestError(
            f"`model` must be one of {', '.join(model.name for model in models)}, but "
            f"is {_shown(name)}."
        )
    return found[0]


def by_languages(routes: Sequence[Route], source: str, target: str | None) -> Route:
    """Return the route whose languages match best; the source may be auto.

    A language is a BCP 47 tag in any case; if no model has it, one of the same base
    language matches. A route through a pivot is found only if no single model matches.
    `RequestError` if no route matches, or routes of several sources match auto.
    """
    _require_any(routes)
    direct = [each for each in routes if each.pivot is None]
    others = [each for each in routes if each.pivot is not None]
    found = _matching(direct, source, target) or _matching(others, source, target)
    if not found or len({route.source for route in found}) > 1:
        targets: dict[str, dict[str, None]] = {}
        for from_language, into in _pairs(routes):
            targets.setdefault(from_language, {})[into] = None
        pairs = ", ".join(f"{a} to {' or '.join(each)}" for a, each in targets.items())
        raise RequestError(
            f"`source` and `target` must be languages of a model ({pairs}), but are "
            f"{_shown(source)} and {_shown(target)}."
        )
    return found[0]


def _matching(routes: list[Route], source: str, target: str | None) -> list[Route]:
    """Return the routes that match best, of several sources only if it is auto."""
    found = routes
    if not is_auto(source):
        found = [route for route in found if best_match(source, [route.source])]
    if target is not None:
        best = best_match(target, [each for route in found for each in route.targets])
        found = [route for route in found if best in route.targets]
    if not is_auto(source):  # among the models with the best target
        best = best_match(source, [route.source for route in found])
        found = [route for route in found if route.source == best]
    return found


def is_auto(source: str) -> bool:
    """Return whether the source language is left to the models."""
    return source.strip().lower() == AUTO


def require_target(
    model: ServedModel | Route, language: str | None, field: str
) -> None:
    """Raise `RequestError` if a field of a request has another target language."""
    if language is not None and best_match(language, model.targets) is None:
        raise RequestError(
            f"`{field}` must be a target language of the model "
            f"({', '.join(model.targets)}), but is {_shown(language)}."
        )


def _require_any(models: Sequence[object]) -> None:
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
