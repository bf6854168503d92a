"""Served models, by name and by languages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transduce.errors import ConfigError, RequestError
from transduce.serving.request_queue import RequestQueue
from transduce.text.languages import (
    SCRIPTS,
    best_match,
    canonical,
    english_name,
    is_known,
)
from transduce.text.vocabulary import find_language_tag

NAME = re.compile(r"[\w.-]+")
TAG_IN_NAME = re.compile(
    rf"[a-z]{{2,3}}(-({'|'.join(SCRIPTS)}))?(-([a-z]{{2}}|[0-9]{{3}}))?", re.IGNORECASE
)
"""Pattern of a language tag in a model's name: language, script and region."""
AUTO = "auto"
MAX_SHOWN = 40
"""Maximum number of characters of a field that a refusal quotes."""

Pair = tuple[str, str]
"""Source and target language, as BCP 47 tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """Name and folder of a model, and the languages stated with them."""

    name: str
    path: Path
    stated: Pair | None = None
    """Languages given with the name; they override those that the model keeps."""

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Parse `NAME=FOLDER`, `SOURCE:TARGET=FOLDER`, or a folder that gives the name.

        A text that names an existing folder is never split at "=". Raises `ConfigError`
        for an invalid name, or for ambiguous languages in it.
        """
        name, equals, folder = text.partition("=")
        if not equals or Path(text).exists():
            name, folder = Path(text).resolve().name, text
            return cls(name=_checked(name), path=Path(folder))
        source, colon, target = name.partition(":")
        if colon:
            pair = (canonical(source), canonical(target))
            return cls(name="-".join(pair), path=Path(folder), stated=pair)
        found = _pairs_in(_checked(name))
        as_written = [pair for pair in found if "-".join(pair) == name]
        if len(as_written or found) > 1:
            ways = ", ".join(f"{a}:{b}" for a, b in as_written or found)
            raise ConfigError(
                f"The languages in {name!r} must be clear, but may be {ways}; write "
                "them as SOURCE:TARGET=FOLDER."
            )
        return cls(
            name=name,
            path=Path(folder),
            stated=as_written[0] if as_written else None,
        )

    @property
    def guessed(self) -> Pair:
        """Languages for a model that keeps none: read from its name, or made of it."""
        found = _pairs_in(self.name)
        as_written = [pair for pair in found if "-".join(pair) == self.name]
        likely = as_written or found
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
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of several target languages, by BCP 47 tag; empty for one."""

    @classmethod
    def of(cls, name: ModelName, queue: RequestQueue) -> "ServedModel":
        """Describe a model by its stated languages, its own, or those of its name."""
        translator = queue.translator
        if translator.symbols is not None:
            return cls(name=name.name, source="en", target="trees", queue=queue)
        source, target = name.stated or (
            translator.source_language or name.guessed[0],
            translator.target_language or name.guessed[1],
        )
        tags = dict(
            zip(
                translator.target_languages,
                translator.tokenizer.language_tags,
                strict=True,
            )
        )
        if tags and name.stated:  # only into this one
            tags = {target: find_language_tag(target, list(tags.values()))}
        if tags and target not in tags:
            target = next(iter(tags))
        return cls(name=name.name, source=source, target=target, queue=queue, tags=tags)

    @property
    def targets(self) -> list[str]:
        """Target languages: one, or those of the model's tags."""
        return list(self.tags) or [self.target]

    def tag_for(self, target: str | None) -> str:
        """Return the tag of a target language; empty for a model of one language."""
        best = None if target is None else best_match(target, list(self.tags))
        return "" if best is None else self.tags[best]

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
    is_any = is_auto(source)
    found = [
        model
        for model in models
        if (is_any or best_match(source, [model.source]))
        and (target is None or best_match(target, model.targets))
    ]
    if target is not None:
        best = best_match(target, [each for model in found for each in model.targets])
        found = [model for model in found if best in model.targets]
    if not is_any:
        best = best_match(source, [model.source for model in found])
        found = [model for model in found if model.source == best]
    if not found or len({model.source for model in found}) > 1:
        pairs = ", ".join(
            f"{model.source} to {' or '.join(model.targets)}" for model in models
        )
        raise RequestError(
            f"`source` and `target` must be languages of a model ({pairs}), but are "
            f"{_shown(source)} and {_shown(target)}."
        )
    return found[0]


def is_auto(source: str) -> bool:
    """Whether the source language is left to the models."""
    return source.strip().lower() == AUTO


def _require_any(models: Sequence[ServedModel]) -> None:
    if not models:
        raise RequestError(
            "A model must be served that can do this, but none is; /v1/models tells "
            "what those that are do."
        )


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if unknown."""
    try:
        return english_name(code)
    except ConfigError:
        return code


def _shown(value: str | None) -> str:
    if value is None:
        return "not given"
    return repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "…")


def _checked(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            "The name of a model must be letters, digits, dots, hyphens or "
            f"underscores, but is {name!r}; name it as in en-de=FOLDER."
        )
    return name


def _pairs_in(name: str) -> list[Pair]:
    """Every reading of a name as two tags with a dash between them."""
    pieces = name.replace("_", "-").split("-")
    sides = (
        ("-".join(pieces[:i]), "-".join(pieces[i:])) for i in range(1, len(pieces))
    )
    return [(canonical(a), canonical(b)) for a, b in sides if _is_tag(a) and _is_tag(b)]


def _is_tag(text: str) -> bool:
    return TAG_IN_NAME.fullmatch(text) is not None and is_known(text)
