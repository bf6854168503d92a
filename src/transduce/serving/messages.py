"""Requests and answers of the HTTP interface, and the page that documents them.

The page is the OpenAPI document as HTML that works without network. Each path has an
example, which can be changed and sent from the page.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from transduce.model.config import AttentionKind
from transduce.report.report import (
    POLICY,
    Column,
    Part,
    Section,
    Table,
    as_html,
    whole_page,
)
from transduce.serving.served_models import AUTO, Format, ServedModel

MAX_ALTERNATIVES = 10


def _no_boolean(given: Any) -> Any:
    if isinstance(given, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return given


def _in_lower_case(given: Any) -> Any:
    return given.strip().lower() if isinstance(given, str) else given


Alternatives = Annotated[
    int,
    BeforeValidator(_no_boolean),
    Field(ge=0, le=MAX_ALTERNATIVES, description="Number of further translations."),
]
FormatName = Annotated[Format, BeforeValidator(_in_lower_case)]
"""Format in any case, like the codes of languages."""
ModelNamed = Annotated[
    str | None,
    Field(description="Name of the model, if several are served: see /v1/models."),
]
TargetLanguage = Annotated[
    str | None,
    Field(
        description="Target language, if the model has several; by default its own, "
        "or else the first."
    ),
]
CorpusTag = Annotated[
    str | None,
    Field(description="Tag of a corpus of the training, before each source."),
]
SplitSentences = Annotated[
    bool,
    Field(
        description="Whether a line of text, or a block of HTML, is cut into "
        "sentences; otherwise it is one sentence."
    ),
]


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Texts = Annotated[list[str], BeforeValidator(_as_list)]
"""List of texts; a form sends a single text without a list."""


class RequestMessage(BaseModel):
    """Base of all requests; null and empty fields count as missing."""

    TEXTS: ClassVar[tuple[str, ...]] = ("q",)
    """Fields that may be empty."""

    api_key: Annotated[
        str,
        Field(
            description="A key of the server, if it needs one; the header "
            "Authorization: Bearer KEY works as well."
        ),
    ] = ""

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, values: Any) -> Any:
        """Drop null and empty fields, which clients send for unset options."""
        if not isinstance(values, dict):
            return values
        return {
            name: value
            for name, value in values.items()
            if value is not None and (value != "" or name in cls.TEXTS)
        }

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """Texts that count towards the length limit."""


class TranslateRequest(RequestMessage):
    """Texts to translate, as in LibreTranslate."""

    q: Annotated[str | list[str], Field(description="A text, or a list of texts.")]
    source: Annotated[str, Field(description="A code of /languages, or auto.")] = AUTO
    target: Annotated[str | None, Field(description="A code of /languages.")] = None
    tag: CorpusTag = None
    format: FormatName = "text"
    alternatives: Alternatives = 0
    split_sentences: SplitSentences = True

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class DetectedLanguage(BaseModel):
    """Source language assumed for the source "auto"."""

    confidence: Annotated[
        float, Field(description="Always 0, since nothing is detected.")
    ]
    language: str


class TranslateAnswer(BaseModel):
    """Translations, as in LibreTranslate; lists if the texts were a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815


class DetectRequest(RequestMessage):
    """Text whose language is requested, as in LibreTranslate."""

    q: str

    @property
    def texts(self) -> list[str]:
        return [self.q]


class NamedLanguage(BaseModel):
    """Code and English name of a language; both empty if no model translates."""

    code: str
    name: str


class FrontendLanguages(BaseModel):
    """Languages that are selected when a page opens."""

    source: NamedLanguage
    target: NamedLanguage


class FrontendSettings(BaseModel):
    """Settings of LibreTranslate's web page, with its field names."""

    apiKeys: bool  # noqa: N815
    charLimit: int  # noqa: N815
    filesTranslation: bool = False  # noqa: N815
    frontendTimeout: Annotated[  # noqa: N815
        int, Field(description="Milliseconds without typing before translating.")
    ] = 500
    keyRequired: bool  # noqa: N815
    language: FrontendLanguages
    suggestions: bool = False
    supportedFilesFormat: list[str] = []  # noqa: N815


class Language(BaseModel):
    """Source language with its targets, as in LibreTranslate."""

    code: str
    name: str
    targets: list[str]


class Model(BaseModel):
    """Served model."""

    name: str
    task: Literal["translate", "parse"]
    source: str
    target: str
    targets: Annotated[
        list[str],
        Field(description="Target languages; several of a multilingual model."),
    ]
    source_name: str
    target_name: str
    target_names: Annotated[list[str], Field(description="Those of `targets`.")]
    tags: Annotated[list[str], Field(description="Tags of its training's corpora.")]


class StreamRequest(RequestMessage):
    """Text to translate sentence by sentence."""

    q: str
    model: ModelNamed = None
    target: TargetLanguage = None
    tag: CorpusTag = None
    format: FormatName = "text"
    alternatives: Alternatives = 0
    split_sentences: SplitSentences = True

    @property
    def texts(self) -> list[str]:
        return [self.q]


class ScoredText(BaseModel):
    """Translation with its search score."""

    text: str
    score: Annotated[
        float, Field(description="Log-probability divided by the length penalty.")
    ]


class StreamedSegment(BaseModel):
    """Line of a streamed answer; all lines together give the translated text."""

    source: str
    translation: str
    score: float | None = None
    alternatives: list[ScoredText] = []


class ParseRequest(RequestMessage):
    """English text to parse sentence by sentence."""

    q: str
    model: ModelNamed = None
    constrained: Annotated[
        bool,
        Field(description="Search for trees only, so that no repair is needed."),
    ] = False
    split_sentences: SplitSentences = True

    @property
    def texts(self) -> list[str]:
        return [self.q]


class Leaf(BaseModel):
    """Word with its part of speech."""

    tag: str
    word: str


class Constituent(BaseModel):
    """Phrase over the leaves from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


class StreamedParse(BaseModel):
    """Line of a streamed answer; text between sentences has no tree."""

    source: str
    tree: Annotated[str | None, Field(description="In brackets.")] = None
    score: float | None = None
    num_repairs: Annotated[
        int, Field(description="Number of repairs that turn the output into a tree.")
    ] = 0
    is_overlong: Annotated[
        bool, Field(description="Whether it was too long to be read: its tree is flat.")
    ] = False
    leaves: list[Leaf] = []
    constituents: Annotated[
        list[Constituent],
        Field(description="An outer one before those inside it; first the root."),
    ] = []


class ScoreRequest(RequestMessage):
    """Translations to score."""

    TEXTS = ("source", "target")

    source: Texts
    target: Texts
    model: ModelNamed = None
    target_language: TargetLanguage = None
    tag: CorpusTag = None

    @property
    def texts(self) -> list[str]:
        return [*self.source, *self.target]


class Score(BaseModel):
    """Log-probability and perplexity of a target."""

    log_probability: Annotated[
        float,
        Field(
            description="Natural logarithm, summed over `token_log_probabilities`; not "
            "divided by the length."
        ),
    ]
    num_tokens: Annotated[int, Field(description="The end token counted.")]
    perplexity: Annotated[float | None, Field(description="Null if it is infinite.")]
    tokens: Annotated[
        list[str],
        Field(description="The first token of each word begins with a space."),
    ]
    token_log_probabilities: Annotated[
        list[float], Field(description="One for each token, and one for the end.")
    ]


class AttentionRequest(RequestMessage):
    """Sentence with its translation, or its bracketed tree, to inspect."""

    TEXTS = ("source", "target")

    source: str
    target: str
    kind: AttentionKind = "encoder-decoder"
    model: ModelNamed = None
    target_language: TargetLanguage = None
    tag: CorpusTag = None

    @property
    def texts(self) -> list[str]:
        return [self.source, self.target]


class Attention(BaseModel):
    """Attention weights; the first token of each word begins with a space."""

    queries: list[str]
    keys: list[str]
    weights: Annotated[
        list[list[list[list[float]]]],
        Field(description="By layer, head, query and key; of a query they sum to 1."),
    ]


class Health(BaseModel):
    """State of the server: models are loaded and requests are accepted."""

    status: Literal["ok"] = "ok"
    models: list[str]


class Refusal(BaseModel):
    """Reason why a request was refused."""

    error: str


DOCUMENTATION_POLICY = f"{POLICY}; connect-src 'self'; form-action 'none'"
"""Content security policy of the page: it may connect to this server only."""
LIBRETRANSLATE = (
    "LibreTranslate clients work unchanged. A body is JSON, a form or form data; null "
    "and empty fields count as missing. A language is a BCP 47 tag in any case; if no "
    "model has it, a model of the same base language answers."
)
SENTENCE, TRANSLATION = "A dog runs.", "Ein Hund läuft."

Schema = Mapping[str, Any]


def documentation(openapi: Schema, models: Sequence[ServedModel]) -> str:
    """Write the page: each path with its request and answer, then all schemas."""
    bodies = examples(models)
    introduction = Section(
        title="For programs",
        parts=(
            LIBRETRANSLATE,
            "The same description is at /openapi.json, in OpenAPI's format.",
        ),
    )
    paths = [
        _with_form(
            Section(
                title=f"{method.upper()} {path}", parts=tuple(_operation(operation))
            ),
            method.upper(),
            path,
            bodies.get(path),
        )
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = [
        as_html(Section(title=name, parts=tuple(_fields(schema))))
        for name, schema in openapi["components"]["schemas"].items()
    ]
    page = files("transduce.serving") / "page"
    return whole_page(
        f"The interface of {openapi['info']['title']} {openapi['info']['version']}",
        [as_html(introduction), *paths, *schemas],
        (page / "docs.css").read_text(encoding="utf-8"),
        (page / "docs.js").read_text(encoding="utf-8"),
        DOCUMENTATION_POLICY,
    )


def examples(models: Sequence[ServedModel]) -> dict[str, dict[str, Any]]:
    """Example request for each path, one that the models can answer if any can."""
    translating = [model for model in models if not model.is_parser]
    parsing = [model for model in models if model.is_parser]
    name = parser = "NAME"
    languages = {"source": "en", "target": "de"}
    if translating:
        first = translating[0]
        name, languages = first.name, {"source": first.source, "target": first.target}
    if parsing:
        parser = parsing[0].name
    pair = {"source": SENTENCE, "target": TRANSLATION, "model": name}
    tree = "(S (NP (X A) (X dog)) (VP (X runs)))"
    inspected = pair
    if parsing and not translating:
        inspected = {"source": SENTENCE, "target": tree, "model": parser}
    return {
        "/translate": {"q": SENTENCE, **languages, "format": "text", "alternatives": 2},
        "/detect": {"q": SENTENCE},
        "/v1/translate": {"q": f"{SENTENCE} {SENTENCE}", "model": name},
        "/v1/parse": {"q": SENTENCE, "model": parser},
        "/v1/score": {"source": [SENTENCE], "target": [TRANSLATION], "model": name},
        "/v1/attention": inspected,
    }


def _with_form(
    section: Section, method: str, path: str, body: Mapping[str, Any] | None
) -> str:
    """Section with an example request to try."""
    sent, request = "", ""
    if body is not None:
        text = json.dumps(body, ensure_ascii=False, indent=2)
        rows = text.count("\n") + 1
        quoted = json.dumps(body, ensure_ascii=False)
        request = f" -H 'content-type: application/json' -d {escape(quote(quoted))}"
        sent = (
            f"<p><label>Request to {escape(path)}<br>\n"
            f'<textarea rows="{rows}" spellcheck="false">\n{escape(text)}</textarea>'
            "</label></p>"
        )
    address = '<span class="address">http://localhost:5000</span>'
    form = (
        f'<form data-method="{method}" data-path="{escape(path)}">\n'
        f"<pre tabindex='0'>curl {address}{escape(path)}{request}</pre>\n{sent}\n"
        f'<button aria-label="Try it: {method} {escape(path)}">Try it</button>'
        '<output aria-live="polite"></output>\n'
        f'<pre class="answer" tabindex="0" hidden></pre>\n</form>'
    )
    return as_html(section).removesuffix("</section>") + form + "\n</section>"


def _operation(operation: Schema) -> Iterator[Part]:
    yield operation["description"]
    if body := operation.get("requestBody"):
        kinds = body["content"]
        first, *_ = kinds.values()
        *others, last = kinds
        yield f"The body is {', '.join(others)} or {last}."
        yield from _fields(first["schema"], "The body")
    rows = tuple(
        (status, _content(answer), answer["description"])
        for status, answer in operation["responses"].items()
    )
    yield Table(title="The answer", columns=_texts("status", "body", "when"), rows=rows)


def _content(answer: Schema) -> str:
    return ", ".join(
        f"{_kind(content['schema'])} as {kind}"
        for kind, content in answer.get("content", {}).items()
        if "schema" in content
    )


def _fields(schema: Schema, title: str = "") -> Iterator[Part]:
    if not title:
        yield schema["description"]
    required = schema.get("required", ())
    rows = tuple(
        (
            name,
            _kind(field),
            "none: it must be given"
            if name in required
            else json.dumps(field.get("default")),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    )
    heads = _texts("field", "kind", "default", "meaning")
    yield Table(title=title, columns=heads, rows=rows)


def _kind(schema: Schema) -> str:
    """Describe a schema's type in words."""
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "text"))


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, is_text=True) for name in names)
