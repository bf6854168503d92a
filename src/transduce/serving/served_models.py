"""The models that are served, by name and by languages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import ConfigError, RequestError
from transduce.serving.request_queue import RequestQueue

PAIR = re.compile(r"(?P<source>[a-z]{2,3})-(?P<target>[a-z]{2,3})")
NAME = re.compile(r"[\w.-]+")
AUTO = "auto"
LANGUAGE_NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian",
    "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hu": "Hungarian", "it": "Italian", "ja": "Japanese", "ko": "Korean",
    "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "tr": "Turkish",
    "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names of ISO 639-1 codes; a language without one is called by its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """What a model is called, and where it lies."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """`NAME=FOLDER`, or a folder that gives the name; `ConfigError` if it has none.

        Only up to the first "=" of what is no folder is a name.
        """
        name, equals, folder = text.partition("=")
        if not equals or Path(text).exists():
            name, folder = Path(text).resolve().name, text
        if NAME.fullmatch(name) is None:
            raise ConfigError(
                "The name of a model must be letters, digits, dots, hyphens or "
                f"underscores, but is {name!r}; name it as in en-de=FOLDER."
            )
        return cls(name=name, path=Path(folder))

    @property
    def languages(self) -> tuple[str, str]:
        """Of source and target: a name such as en-de tells, any other does not."""
        pair = PAIR.fullmatch(self.name)
        if pair is None:
            return f"{self.name}.source", f"{self.name}.target"
        return pair["source"], pair["target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model with its queue."""

    name: str
    source: str
    """Code of the language, or what stands for one that was not told."""
    target: str
    queue: RequestQueue

    @classmethod
    def of(cls, name: ModelName, queue: RequestQueue) -> "ServedModel":
        """A model's languages are in its name, unless it parses."""
        is_parser = queue.translator.symbols is not None
        source, target = ("en", "trees") if is_parser else name.languages
        return cls(name=name.name, source=source, target=target, queue=queue)

    @property
    def is_parser(self) -> bool:
        """Whether it writes trees of English, and not translations."""
        return self.queue.translator.symbols is not None


def require_distinct(names: Sequence[ModelName]) -> None:
    """`ConfigError` if two models have one name."""
    for i, each in enumerate(names):
        if any(each.name == other.name for other in names[:i]):
            raise ConfigError(
                f"The names of models must be different, but two are {each.name!r}; "
                "name them as in en-de=FOLDER de-en=FOLDER."
            )


def by_name(models: Sequence[ServedModel], name: str | None) -> ServedModel:
    """The model of a name, or the only one; `RequestError` if there is none such."""
    _require_any(models)
    found = [model for model in models if name in (None, model.name)]
    if len(found) != 1:
        raise RequestError(
            f"`model` must be one of {', '.join(model.name for model in models)}, but "
            f"is {'not given' if name is None else repr(name)}."
        )
    return found[0]


def by_languages(
    models: Sequence[ServedModel], source: str, target: str | None
) -> ServedModel:
    """The first model between two languages; the source may be "auto".

    `RequestError` if there is none, or if several are meant by "auto".
    """
    _require_any(models)
    found = [
        model
        for model in models
        if source in (AUTO, model.source) and target in (None, model.target)
    ]
    if not found or (len({model.source for model in found}) > 1):
        pairs = ", ".join(f"{model.source} to {model.target}" for model in models)
        raise RequestError(
            f"`source` and `target` must be languages of a model ({pairs}), but are "
            f"{source!r} and {'not given' if target is None else repr(target)}."
        )
    return found[0]


def _require_any(models: Sequence[ServedModel]) -> None:
    if not models:
        raise RequestError(
            "A model must be served that can do this, but none is; /v1/models tells "
            "what those that are do."
        )


def language_name(code: str) -> str:
    """In English, as far as it is known."""
    return LANGUAGE_NAMES.get(code, code)
