"""Requests and answers of the HTTP interface: their fields, and how requests are read.

A request is read from JSON, or from a form and the query, in one of many charsets.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import parse_qs, unquote_to_bytes

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from python_multipart import create_form_parser
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from transduce.decoding.documents import Format
from transduce.model.config import AttentionKind
from transduce.serving.served_models import AUTO

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
FormatName = Annotated[
    Format,
    BeforeValidator(_in_lower_case),
    Field(
        description="Plain text; HTML, whose tags stay around the words they mark; or "
        "subtitles of SubRip (srt) or WebVTT (vtt), whose times stay."
    ),
]
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
MAY_LACK_TERMS = (
    "Whether terms of the glossary may be missing, as the words of a sentence and its "
    "translation could not be aligned."
)
CorpusTag = Annotated[
    str | None,
    Field(description="Tag of a corpus of the training, before each source."),
]
GlossaryNamed = Annotated[
    str | None,
    Field(
        description="Name of a glossary: see /v1/glossaries. Without a name, it is the "
        "glossary `default` if there is one; `none` is for no glossary. A sentence "
        "with a term has no alternatives."
    ),
]
SplitSentences = Annotated[
    bool,
    Field(
        description="Whether a line of text, or a block of HTML, is cut into "
        "sentences; otherwise it is one sentence."
    ),
]
LanguageCode = Annotated[str, Field(description="BCP 47 code, such as de.")]
LanguageName = Annotated[str, Field(description="English name, such as German.")]
SEARCH_SCORE = "Log-probability divided by the length penalty."


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Texts = Annotated[list[str], BeforeValidator(_as_list)]
"""List of texts; a form sends a single text without a list."""


class RequestMessage(BaseModel):
    """Base of all requests; null and empty fields count as missing."""

    TEXTS: ClassVar[tuple[str, ...]] = ("q",)
    """Fields that may be empty."""
    FILES: ClassVar[tuple[str, ...]] = ()
    """Fields that are files of a form."""

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
        """All texts of the request."""

    @property
    def limited_texts(self) -> list[str]:
        """Texts whose characters are limited as the request arrives."""
        return self.texts


class _TextRequest(RequestMessage):
    """A request with one text."""

    q: Annotated[str, Field(description="The text.")]

    @property
    def texts(self) -> list[str]:
        return [self.q]


class TranslateRequest(RequestMessage):
    """Texts to translate, as in LibreTranslate."""

    q: Annotated[str | list[str], Field(description="A text, or a list of texts.")]
    source: Annotated[str, Field(description="A code of /languages, or auto.")] = AUTO
    target: Annotated[str | None, Field(description="A code of /languages.")] = None
    tag: CorpusTag = None
    glossary: GlossaryNamed = None
    format: FormatName = "text"
    alternatives: Alternatives = 0
    split_sentences: SplitSentences = True

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q

    @property
    def limited_texts(self) -> list[str]:
        # Sentences count once they are known, without the markup or the times.
        return self.texts if self.format == "text" else []


class UploadedFile:
    """File of a form."""

    def __init__(self, name: str, content: bytes, content_type: str) -> None:
        self.name = name
        self.content = content
        self.content_type = content_type


def _as_file(given: Any) -> Any:
    if not isinstance(given, UploadedFile):
        raise PydanticCustomError(
            "file", "Input should be one file with a name, in multipart/form-data"
        )
    return given


class FileRequest(RequestMessage):
    """File to translate, as in LibreTranslate."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    TEXTS = ()
    FILES = ("file",)

    file: Annotated[UploadedFile, BeforeValidator(_as_file)]
    source: str = AUTO
    target: str | None = None
    tag: str | None = None
    glossary: str | None = None

    @property
    def texts(self) -> list[str]:
        return []  # they count once they are read


class FileAnswer(BaseModel):
    """Address of a translated file, as in LibreTranslate."""

    translatedFileUrl: str  # noqa: N815


class DetectedLanguage(BaseModel):
    """Source language assumed for the source "auto"."""

    confidence: Annotated[
        float, Field(description="Always 0, since nothing is detected.")
    ]
    language: Annotated[str, Field(description="Code of the language.")]


class TranslateAnswer(BaseModel):
    """Translations, as in LibreTranslate; lists if the texts were a list."""

    translatedText: Annotated[  # noqa: N815
        str | list[str], Field(description="The translation.")
    ]
    alternatives: Annotated[
        list[str] | list[list[str]] | None,
        Field(description="Further translations, if the request asks for them."),
    ] = None
    detectedLanguage: Annotated[  # noqa: N815
        DetectedLanguage | list[DetectedLanguage] | None,
        Field(description='Only for the source "auto".'),
    ] = None
    mayLackTerms: Annotated[  # noqa: N815
        bool | list[bool] | None,
        Field(description=f"{MAY_LACK_TERMS} Left out if it holds for no text."),
    ] = None


class DetectRequest(_TextRequest):
    """Text whose language is requested, as in LibreTranslate."""


class NamedLanguage(BaseModel):
    """Code and English name of a language; both empty if no model translates."""

    code: LanguageCode
    name: LanguageName


class FrontendLanguages(BaseModel):
    """Languages that are selected when a page opens."""

    source: Annotated[NamedLanguage, Field(description="Always auto.")]
    target: Annotated[
        NamedLanguage, Field(description="Target language of the first model.")
    ]


class FrontendSettings(BaseModel):
    """Settings of LibreTranslate's web page, with its field names."""

    apiKeys: Annotated[  # noqa: N815
        bool, Field(description="Whether the server has keys.")
    ]
    charLimit: Annotated[  # noqa: N815
        int,
        Field(
            description="Maximum number of characters of a request, without the markup "
            "of HTML."
        ),
    ]
    filesTranslation: Annotated[  # noqa: N815
        bool, Field(description="Whether the server translates files.")
    ]
    frontendTimeout: Annotated[  # noqa: N815
        int, Field(description="Milliseconds without typing before translating.")
    ] = 500
    keyRequired: Annotated[  # noqa: N815
        bool, Field(description="Whether a request needs a key.")
    ]
    language: Annotated[FrontendLanguages, Field(description="Languages at the start.")]
    suggestions: Annotated[
        bool, Field(description="Always false: the server stores none.")
    ] = False
    supportedFilesFormat: Annotated[  # noqa: N815
        list[str],
        Field(description="Endings of the names of files that the server translates."),
    ]


class Language(BaseModel):
    """Source language with its targets, as in LibreTranslate."""

    code: LanguageCode
    name: LanguageName
    targets: Annotated[
        list[str],
        Field(description="Codes of its targets; empty if it is only a target."),
    ]


class Model(BaseModel):
    """Served model, or two of them with a pivot language in between."""

    name: Annotated[
        str,
        Field(
            description="Name in requests to /v1; that of two models, such as "
            "de-en+en-fr, only in those to /v1/translate."
        ),
    ]
    task: Annotated[
        Literal["translate", "parse"], Field(description="What the model does.")
    ]
    source: Annotated[str, Field(description="Code of the source language.")]
    target: Annotated[
        str, Field(description="Code of the target language if a request has none.")
    ]
    targets: Annotated[
        list[str],
        Field(description="Target languages; several of a multilingual model."),
    ]
    source_name: Annotated[str, Field(description="English name of `source`.")]
    target_name: Annotated[str, Field(description="English name of `target`.")]
    target_names: Annotated[list[str], Field(description="English names of `targets`.")]
    tags: Annotated[list[str], Field(description="Tags of its training's corpora.")]
    models: Annotated[
        list[str],
        Field(
            description="Names of the models that take part: its own or, with a pivot "
            "language, those of two."
        ),
    ]
    pivot: Annotated[
        str | None,
        Field(
            description="Code of the language into which the first of two models "
            "translates; null for a single model."
        ),
    ]
    pivot_name: Annotated[str | None, Field(description="English name of `pivot`.")]


class ListedGlossary(BaseModel):
    """Glossary that a model can use for a target language."""

    name: Annotated[
        str,
        Field(
            description="Name in requests; `default` is used by requests without one."
        ),
    ]
    model: Annotated[str, Field(description="Name of the model.")]
    source: Annotated[str, Field(description="Code of the model's source language.")]
    target: Annotated[str, Field(description="Code of the target language.")]
    num_terms: Annotated[
        int, Field(description="Number of terms, those of both of two models.")
    ]


class StreamRequest(_TextRequest):
    """Text to translate sentence by sentence."""

    model: ModelNamed = None
    target: TargetLanguage = None
    tag: CorpusTag = None
    glossary: GlossaryNamed = None
    format: FormatName = "text"
    alternatives: Alternatives = 0
    split_sentences: SplitSentences = True

    @property
    def limited_texts(self) -> list[str]:
        return self.texts if self.format == "text" else []


class ScoredText(BaseModel):
    """Translation with its search score."""

    text: Annotated[str, Field(description="The translation.")]
    score: Annotated[float, Field(description=SEARCH_SCORE)]


class StreamedSegment(BaseModel):
    """Line of a streamed answer; all lines together give the translated text."""

    source: Annotated[
        str, Field(description="Sentence, or the text between two sentences.")
    ]
    translation: Annotated[
        str, Field(description="Its translation; text between sentences is copied.")
    ]
    score: Annotated[
        float | None, Field(description=f"{SEARCH_SCORE} Null if the text is copied.")
    ] = None
    pivot: Annotated[
        str | None,
        Field(
            description="The sentence in the pivot language, as plain text, if two "
            "models translated it."
        ),
    ] = None
    alternatives: Annotated[
        list[ScoredText], Field(description="Further translations, best first.")
    ] = []
    may_lack_terms: Annotated[bool, Field(description=MAY_LACK_TERMS)] = False


class ParseRequest(_TextRequest):
    """English text to parse sentence by sentence."""

    model: ModelNamed = None
    constrained: Annotated[
        bool,
        Field(description="Search for trees only, so that no repair is needed."),
    ] = False
    split_sentences: SplitSentences = True


class Leaf(BaseModel):
    """Word with its part of speech."""

    tag: Annotated[str, Field(description="Part of speech, such as NN.")]
    word: Annotated[str, Field(description="The word.")]


class Constituent(BaseModel):
    """Phrase over the leaves from `start` up to, but not including, `end`."""

    label: Annotated[str, Field(description="Kind of phrase, such as NP.")]
    start: Annotated[int, Field(description="Index of the first leaf.")]
    end: Annotated[int, Field(description="Index after the last leaf.")]


class StreamedParse(BaseModel):
    """Line of a streamed answer; text between sentences has no tree."""

    source: Annotated[
        str, Field(description="Sentence, or the text between two sentences.")
    ]
    tree: Annotated[str | None, Field(description="Tree in brackets.")] = None
    score: Annotated[float | None, Field(description=SEARCH_SCORE)] = None
    num_repairs: Annotated[
        int, Field(description="Number of repairs that turn the output into a tree.")
    ] = 0
    is_overlong: Annotated[
        bool, Field(description="Whether it was too long to be read: its tree is flat.")
    ] = False
    leaves: Annotated[list[Leaf], Field(description="Words in their order.")] = []
    constituents: Annotated[
        list[Constituent],
        Field(description="An outer one before those inside it; first the root."),
    ] = []


class ScoreRequest(RequestMessage):
    """Translations to score."""

    TEXTS = ("source", "target")

    source: Annotated[Texts, Field(description="Source texts.")]
    target: Annotated[
        Texts, Field(description="A target for each source, in the same order.")
    ]
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

    source: Annotated[str, Field(description="The sentence.")]
    target: Annotated[str, Field(description="Its translation, or its tree.")]
    kind: Annotated[
        AttentionKind,
        Field(
            description="Self-attention of the encoder or of the decoder, or the "
            "decoder's attention to the encoder's output."
        ),
    ] = "encoder-decoder"
    model: ModelNamed = None
    target_language: TargetLanguage = None
    tag: CorpusTag = None

    @property
    def texts(self) -> list[str]:
        return [self.source, self.target]


class Attention(BaseModel):
    """Attention weights; the first token of each word begins with a space."""

    queries: Annotated[
        list[str], Field(description="Tokens of the positions that attend.")
    ]
    keys: Annotated[
        list[str], Field(description="Tokens of the positions attended to.")
    ]
    weights: Annotated[
        list[list[list[list[float]]]],
        Field(description="By layer, head, query and key; of a query they sum to 1."),
    ]


class Health(BaseModel):
    """State of the server: models are loaded and requests are accepted."""

    status: Annotated[
        Literal["ok"],
        Field(description="Always ok; if a model hangs, the answer is an error."),
    ] = "ok"
    models: Annotated[list[str], Field(description="Names of the models.")]


class Refusal(BaseModel):
    """Reason why a request was refused."""

    error: Annotated[str, Field(description="The reason, in a sentence.")]


RequestType = TypeVar("RequestType", bound=RequestMessage)

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MAX_FIELDS = 1000
CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE | re.ASCII)
CODECS: Mapping[str, str] = {
    label: codec
    for codec, labels in {
        "utf-8": "utf8 unicode11utf8",
        "utf-16": "utf16 unicode ucs2",
        "utf-16-le": "utf16le",
        "utf-16-be": "utf16be",
        "utf-32": "utf32 ucs4",
        "utf-32-le": "utf32le",
        "utf-32-be": "utf32be",
        # As in browsers: clients that name Latin-1 mean its extension by Windows.
        "cp1252": "windows1252 cp1252 iso88591 latin1 usascii ascii",
        "cp1250": "windows1250 cp1250",
        "cp1251": "windows1251 cp1251",
        "cp1253": "windows1253 cp1253",
        "cp1254": "windows1254 cp1254 iso88599 latin5",
        "cp1255": "windows1255 cp1255",
        "cp1256": "windows1256 cp1256",
        "cp1257": "windows1257 cp1257",
        "cp1258": "windows1258 cp1258",
        "cp874": "windows874 cp874 tis620 iso885911",
        "iso8859-2": "iso88592 latin2",
        "iso8859-3": "iso88593 latin3",
        "iso8859-4": "iso88594 latin4",
        "iso8859-5": "iso88595",
        "iso8859-6": "iso88596",
        "iso8859-7": "iso88597",
        "iso8859-8": "iso88598",
        "iso8859-10": "iso885910 latin6",
        "iso8859-13": "iso885913",
        "iso8859-14": "iso885914",
        "iso8859-15": "iso885915 latin9",
        "iso8859-16": "iso885916 latin10",
        "koi8-r": "koi8r",
        "koi8-u": "koi8u",
        "cp866": "cp866 ibm866",
        "mac-roman": "macintosh macroman",
        "gb18030": "gb18030 gbk gb2312 cp936 windows936",
        "cp950": "big5 cp950 windows950",
        "big5hkscs": "big5hkscs",
        "cp932": "shiftjis sjis cp932 windows31j",
        "euc-jp": "eucjp",
        "iso2022_jp_ext": "iso2022jp csiso2022jp",
        "cp949": "euckr cp949 windows949 ksc56011987 ksc5601",
    }.items()
    for label in labels.split()
}
"""Python's codec of each charset that a client may name.

Labels are in lower case, without the signs between their letters and digits, as clients
write shift_jis and Shift-JIS. Only these are looked up: Python keeps each unknown name
that it is given.
"""
ISO_2022_JP = CODECS["iso2022jp"]
WIDE = "utf-16", "utf-32"
"""Beginnings of the names of codecs whose characters have several bytes each."""
MARK = "\ufeff"
"""Byte order mark."""
ESCAPE = b"\x1b"
"""Byte that begins a change of alphabet in ISO-2022-JP."""
NOT_READ = re.compile("utf7|65000|hz|iso2022|cp5022|scsu|bocu")
"""Pattern of labels of charsets that are not read, but whose text looks like ASCII.
Browsers do not read them either (WHATWG, Encoding, 4.2)."""

HALF_PAIR = re.compile(
    "unexpected end of hex escape|lone leading surrogate in hex escape"
)
"""Pattern of pydantic's messages for half of a surrogate pair, as in "\\ud83d", which
programs send that cut text between UTF-16 units."""


class RefusedError(Exception):
    """Refusal of a request, with status and message."""

    def __init__(
        self, status: int, message: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


def read_message(
    request: Request, body: bytes, message_type: type[RequestType]
) -> RequestType:
    """Parse a request; `RefusedError` if it cannot be read."""
    try:
        return _read(request, body, message_type)
    except ValidationError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, _first_problem(error)) from None
    except UnicodeDecodeError:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "The body must be in UTF-8 or in the charset that its content-type names, "
            "but is in neither.",
        ) from None
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"The form cannot be read ({error})."
        ) from None


def _read(
    request: Request, body: bytes, message_type: type[RequestType]
) -> RequestType:
    """Read a request from JSON, or from a form and the query."""
    content_type = request.headers.get("content-type") or FORM
    kind = content_type.partition(";")[0].strip().lower()
    if body and (kind == JSON or kind.endswith("+json")):
        # As RFC 8259 lets a reader do, a byte order mark is ignored, and UTF-16 is
        # recognised, as some clients of Windows send it.
        text = _text(body, content_type, json.detect_encoding(body))
        return message_type.model_validate_json(text)
    fields: dict[str, list[Any]] = {**_query_fields(request.url.query)}
    if body and kind == FORM:
        if body.lstrip().startswith(b"{"):
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"The body looks like JSON; send it with content-type: {JSON}.",
            )
        fields |= _form_fields(body, content_type)
    elif body and kind == MULTIPART:
        fields |= _part_fields(body, content_type, message_type.FILES)
    elif body:
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body must be {JSON}, {FORM} or {MULTIPART}, but is {kind[:80]}.",
        )
    return message_type.model_validate(
        {name: each if len(each) > 1 else each[0] for name, each in fields.items()}
    )


def _text(
    content: bytes, content_type: str, unicode_codec: str, *, is_wide: bool = False
) -> str:
    """Decode JSON or a part of a form by a codec, or else by the charset of its type.

    With `is_wide`, a named UTF-16 or UTF-32 takes the place of `unicode_codec`.
    """
    codec = _codec(content_type) or ""
    if (is_wide and codec.startswith(WIDE)) or (
        codec == ISO_2022_JP and ESCAPE in content
    ):
        return content.decode(codec).removeprefix(MARK)
    try:
        return content.decode(unicode_codec)
    except UnicodeDecodeError:
        return content.decode(_required_codec(content_type))


def _codec(content_type: str) -> str | None:
    """Return the codec of the charset that the type of a body names, if it is known.

    `RefusedError` if it is not read, but its text would look like UTF-8.
    """
    label = _label(content_type)
    codec = CODECS.get(label)
    if codec is None and NOT_READ.search(label):
        raise _not_read(content_type)
    return codec


def _required_codec(content_type: str) -> str:
    """Return the codec of the charset that the type of a body names.

    `RefusedError` if it names UTF-8, as the body is in another encoding then, or no
    charset, or one that the server does not read.
    """
    label = _label(content_type)
    codec = CODECS.get(label)
    if label and codec is None:
        raise _not_read(content_type)
    if codec is None or codec == "utf-8":
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "The body must be in UTF-8, or its charset must be named in the "
            "content-type, as in `charset=windows-1252`.",
        )
    return codec


def _label(content_type: str) -> str:
    """Return the label of a charset as `CODECS` has it; empty if none is named."""
    named = CHARSET.search(content_type)
    return label_of(named[1]) if named else ""


def label_of(charset: str) -> str:
    """Return the name of a charset as `CODECS` has it."""
    return re.sub("[^a-z0-9]", "", charset.lower())


def _not_read(content_type: str) -> RefusedError:
    named = CHARSET.search(content_type)
    return RefusedError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The body must be in UTF-8 or in another charset that this server reads, but "
        f"the content-type names {quoted(named[1] if named else '')}; send it in "
        "UTF-8.",
    )


def _first_problem(error: ValidationError) -> str:
    """Return the problem of the first malformed field.

    A field of several types has a problem of each; the one returned is of the type that
    fits farthest into the value.
    """
    problems = error.errors(include_url=False, include_context=False)
    field = problems[0]["loc"][:1]
    problem = max(
        (each for each in problems if each["loc"][:1] == field),
        key=lambda each: len(each["loc"]),
    )
    # Behind the field's name are positions in its list, and the names of its types.
    place = (*field, *(part for part in problem["loc"][1:] if isinstance(part, int)))
    where = ".".join(map(str, place)) or "The body"
    message = HALF_PAIR.sub("half of a surrogate pair", problem["msg"])
    return f"{where}: {' '.join(message.split())}."


def _query_fields(query: str) -> dict[str, list[str]]:
    """Return the texts of each field of a query; `ValueError` if it is malformed."""
    try:
        return _fields(query, "utf-8")
    except UnicodeDecodeError:
        raise ValueError("the query must be in UTF-8") from None


def _form_fields(form: bytes, content_type: str) -> dict[str, list[str]]:
    """Return the texts of each field of a URL-encoded body; `ValueError` if malformed.

    It is in UTF-8 or the charset that its type names.
    """
    codec = _codec(content_type) or ""
    if codec.startswith(WIDE) and b"\0" in form:
        return _fields(form.decode(codec).removeprefix(MARK), "utf-8")
    if codec != ISO_2022_JP or ESCAPE not in unquote_to_bytes(form):
        try:
            return _fields(form.decode("utf-8-sig"), "utf-8")
        except UnicodeDecodeError:
            codec = _required_codec(content_type)
    return _fields(form.decode(codec), codec)


def _fields(form: str, codec: str) -> dict[str, list[str]]:
    """Return the texts of each field of a URL-encoded form or query."""
    return parse_qs(
        form,
        keep_blank_values=True,
        encoding=codec,
        errors="strict",
        max_num_fields=MAX_FIELDS,
    )


def _part_fields(
    body: bytes, content_type: str, files: Sequence[str]
) -> dict[str, list[Any]]:
    """Return the texts of each field of multipart form data, and its files.

    `ValueError` if it is malformed or has a file in a field that takes none.
    """
    parts: dict[str, list[Any]] = {}

    def add(field: Any) -> None:
        content = field.value or b""
        # Older versions of the library do not read it.
        own = getattr(field, "content_type", None) or ""
        is_own = CHARSET.search(own) is not None
        # Many clients name the charset of their program for the form, but write in
        # UTF-8.
        is_wide = is_own or b"\0" in content
        kind = own if is_own else content_type
        text = _text(content, kind, "utf-8-sig", is_wide=is_wide)
        keep(field, text)

    def keep(part: Any, value: Any) -> None:
        parts.setdefault(_part_name(part), []).append(value)
        if len(parts) > MAX_FIELDS:
            raise ValueError("Max number of fields exceeded")

    def add_file(file: Any) -> None:
        if _part_name(file) not in files:
            raise ValueError(f"`{_part_name(file)[:80]}` must be text, but is a file")
        file.file_object.seek(0)
        name = (file.file_name or b"").decode(errors="replace")
        kind = getattr(file, "content_type", None) or ""
        keep(file, UploadedFile(name, file.file_object.read(), kind))

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if boundary is not None and b"--%s--" % boundary not in body:
        raise ValueError("its end is missing")
    parser = create_form_parser(
        {"Content-Type": content_type.encode("latin-1")},
        add,
        add_file,
        # The body is in memory already, so that a file need not go to the disk.
        config={"UPLOAD_ERROR_ON_BAD_CTE": True, "MAX_MEMORY_FILE_SIZE": len(body)},
    )
    parser.write(body)
    parser.finalize()
    return parts


def _part_name(part: Any) -> str:
    """Name of a part of a form; a name that is not in UTF-8 is of no field."""
    return (part.field_name or b"").decode(errors="replace")


def quoted(value: str) -> str:
    """Header value quoted for a message, truncated if long."""
    most = 80
    return json.dumps(value if len(value) <= most else value[:most] + "…")
