"""The HTTP interface: LibreTranslate's, and what more a model can tell."""

import math
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import transduce
from transduce.decoding.translator import Translation
from transduce.errors import ConfigError, RequestError, TransduceError
from transduce.interruption import stop_on_signal
from transduce.serving import messages
from transduce.serving.admission import (
    FORM,
    JSON,
    Admission,
    AdmissionConfig,
    RefusedError,
    status_of,
    while_connected,
)
from transduce.serving.attention_weights import attention_weights
from transduce.serving.monitoring import CONTENT_TYPE, CountRequests, Monitor
from transduce.serving.served_models import (
    AUTO,
    ServedModel,
    by_languages,
    by_name,
    language_name,
)
from transduce.serving.translation import (
    other_hypotheses,
    search_for,
    split,
    translate_documents,
    translate_pieces,
)
from transduce.text.documents.running_text import Piece, sentences

JSON_LINES = "application/x-ndjson"
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/attention.js": ("attention.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""By path, all there is: nothing of a request names a file."""
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
REFUSALS = {
    400: "Not as it must be, or for no model that is served.",
    403: "Without a key of this server.",
    408: "The body did not come in time.",
    413: "Too long.",
    415: "Neither JSON nor a form.",
    429: "Too much to do, or too many requests: try again later.",
}
MAX_PORT = 65_535
GRACE_S = 5.0
"""For answers to be sent after the last sentence's time is up."""


class Endpoints:
    """What is done for each path."""

    def __init__(
        self, models: Sequence[ServedModel], admission: Admission, monitor: Monitor
    ) -> None:
        self._models = models
        self._admission = admission
        self._monitor = monitor

    async def translate(self, request: Request) -> messages.TranslateAnswer:
        """Translate texts, as LibreTranslate does."""
        asked = await self._admission.admit(request, messages.TranslateRequest)
        model = by_languages(self._models, asked.source, asked.target)
        work = translate_documents(
            model.queue, asked.texts, asked.format, asked.alternatives
        )
        found = await while_connected(request, work)
        detected = messages.DetectedLanguage(confidence=0.0, language=model.source)
        several = messages.TranslateAnswer(
            translatedText=[each.text for each in found],
            alternatives=[each.alternatives for each in found],
            detectedLanguage=[detected for _ in found],
        )
        return _shaped(asked, several)

    async def languages(self) -> list[messages.Language]:
        """The languages of the models; those only translated into have no targets."""
        codes = {m.source: None for m in self._models}
        codes |= {m.target: None for m in self._models}
        return [
            messages.Language(
                code=code,
                name=language_name(code),
                targets=[m.target for m in self._models if m.source == code],
            )
            for code in codes
        ]

    async def detect(self, request: Request) -> list[messages.DetectedLanguage]:
        """The source languages, all with confidence 0: nothing here detects any."""
        await self._admission.admit(request, messages.DetectRequest)
        codes = {model.source: None for model in self._models}
        return [
            messages.DetectedLanguage(confidence=0.0, language=code) for code in codes
        ]

    async def models(self) -> list[messages.Model]:
        """The models by name, which is what /v1 calls them by."""
        return [
            messages.Model(
                name=model.name,
                source=model.source,
                target=model.target,
                source_name=language_name(model.source),
                target_name=language_name(model.target),
            )
            for model in self._models
        ]

    async def stream(self, request: Request) -> StreamingResponse:
        """Translate a text, each sentence a line of JSON as soon as it is done.

        The last line has an `error` if one occurs.
        """
        asked = await self._admission.admit(request, messages.StreamRequest)
        queue = by_name(self._models, asked.model).queue
        pieces = split(asked.q, asked.format)
        search = search_for(asked.alternatives)
        futures = queue.submit(sentences(pieces), search)
        lines = _lines(asked, pieces, futures)
        return StreamingResponse(lines, media_type=JSON_LINES)

    async def score(self, request: Request) -> list[messages.Score]:
        """How likely the model holds given translations."""
        asked = await self._admission.admit(request, messages.ScoreRequest)
        queue = by_name(self._models, asked.model).queue
        work = partial(queue.translator.score, asked.source, asked.target)
        found = await while_connected(request, queue.run(work))
        return [
            messages.Score(
                log_probability=each.log_probability,
                num_tokens=each.num_tokens,
                perplexity=each.perplexity if math.isfinite(each.perplexity) else None,
            )
            for each in found
        ]

    async def attention(self, request: Request) -> messages.Attention:
        """Who attends to whom in a sentence and its translation."""
        asked = await self._admission.admit(request, messages.AttentionRequest)
        queue = by_name(self._models, asked.model).queue
        work = partial(
            attention_weights, queue.translator, asked.source, asked.target, asked.kind
        )
        found = await while_connected(request, queue.run(work))
        return messages.Attention(
            queries=found.queries, keys=found.keys, weights=found.weights
        )

    async def health(self) -> messages.Health:
        """That models are loaded and requests are taken."""
        return messages.Health(models=[model.name for model in self._models])

    async def metrics(self) -> Response:
        """Figures in Prometheus' text format."""
        return Response(self._monitor.text(), media_type=CONTENT_TYPE)


def create_app(
    models: Sequence[ServedModel], config: AdmissionConfig | None = None
) -> FastAPI:
    """The whole interface; what the queues took is finished when it ends."""

    @asynccontextmanager
    async def finishing(_: FastAPI) -> AsyncIterator[None]:
        yield
        for model in models:
            model.queue.close()

    # The documentation's usual pages load scripts from elsewhere: /openapi.json alone.
    app = FastAPI(
        title="transduce",
        version=transduce.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=finishing,
    )
    monitor = Monitor(models)
    endpoints = Endpoints(models, Admission(config or AdmissionConfig()), monitor)
    _add_asked(app, "/translate", endpoints.translate, messages.TranslateRequest)
    _add_asked(app, "/detect", endpoints.detect, messages.DetectRequest)
    _add_asked(app, "/v1/translate", endpoints.stream, messages.StreamRequest)
    _add_asked(app, "/v1/score", endpoints.score, messages.ScoreRequest)
    _add_asked(app, "/v1/attention", endpoints.attention, messages.AttentionRequest)
    app.get("/languages")(endpoints.languages)
    app.get("/v1/models")(endpoints.models)
    app.get("/health")(endpoints.health)
    app.get("/metrics", response_class=Response)(endpoints.metrics)
    for path, (name, kind) in PAGE.items():
        app.get(path, include_in_schema=False)(_page_file(name, kind))
    app.exception_handler(RefusedError)(_refuse)
    app.exception_handler(TransduceError)(_refuse_error)
    app.exception_handler(HTTPException)(_refuse_http)
    app.add_middleware(CountRequests, monitor=monitor)
    return app


def listen(host: str, port: int) -> socket.socket:
    """Where requests come in; `RequestError` if it cannot be there."""
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"`port` must be from 0 to {MAX_PORT}, but is {port}.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise RequestError(
            f"{host}:{port} must be free to listen at, but is not ({reason}); choose "
            "another by --host or --port."
        ) from None


def serve(app: FastAPI, listener: socket.socket, timeout_s: float) -> None:
    """Answer until SIGTERM or Ctrl-C, and then finish what was taken."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(timeout_s + GRACE_S),
    )
    # The server raises the signal again once it is done, which is here no failure.
    with stop_on_signal():
        uvicorn.Server(config).run(sockets=[listener])


def _add_asked(
    app: FastAPI,
    path: str,
    endpoint: Callable[[Request], Coroutine[Any, Any, Any]],
    asked: type[messages.Asked],
) -> None:
    schema = asked.model_json_schema()
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model_exclude_none=asked is messages.TranslateRequest,
        responses={
            status: {"model": messages.Refusal, "description": description}
            for status, description in REFUSALS.items()
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": schema}, FORM: {"schema": schema}},
            }
        },
    )


def _shaped(
    asked: messages.TranslateRequest, several: messages.TranslateAnswer
) -> messages.TranslateAnswer:
    """A list if a list was given, and what was asked for alone."""
    left_out = set() if asked.alternatives else {"alternatives"}
    left_out |= set() if asked.source == AUTO else {"detectedLanguage"}
    fields = several.model_dump(exclude=left_out)
    if isinstance(asked.q, str):
        fields = {name: each[0] for name, each in fields.items()}
    return messages.TranslateAnswer.model_validate(fields)


async def _lines(
    asked: messages.StreamRequest,
    pieces: Sequence[Piece],
    futures: Sequence[Future[Translation]],
) -> AsyncIterator[str]:
    try:
        async for piece, translation in translate_pieces(pieces, futures):
            yield _line(asked, piece, translation).model_dump_json() + "\n"
    except TransduceError as error:
        yield messages.Refusal(error=str(error)).model_dump_json() + "\n"


def _line(
    asked: messages.StreamRequest, piece: Piece, translation: Translation | None
) -> messages.StreamedPiece:
    if translation is None:
        return messages.StreamedPiece(source=piece.text, translation=piece.text)
    others = other_hypotheses(translation, asked.alternatives)

    def shown(text: str) -> str:
        return escape(text, quote=False) if asked.format == "html" else text

    return messages.StreamedPiece(
        source=piece.text,
        translation=shown(translation.text),
        score=translation.score,
        alternatives=[
            messages.ScoredText(text=shown(each.text), score=each.score)
            for each in others
        ],
    )


def _page_file(name: str, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    content = (files("transduce.serving") / "page" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    return answer


async def _refuse(_: Request, refused: Exception) -> JSONResponse:
    assert isinstance(refused, RefusedError)
    seconds = refused.retry_after_s
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    refusal = messages.Refusal(error=str(refused))
    return JSONResponse(refusal.model_dump(), refused.status, headers)


async def _refuse_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TransduceError)
    return await _refuse(request, status_of(error))


async def _refuse_http(request: Request, error: Exception) -> JSONResponse:
    """No such path or method."""
    assert isinstance(error, HTTPException)
    return await _refuse(request, RefusedError(error.status_code, f"{error.detail}."))
