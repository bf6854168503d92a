"""The HTTP interface: LibreTranslate's, and what more a model can tell."""

import math
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

import transduce
from transduce.errors import ConfigError, RequestError, TransduceError
from transduce.interruption import stop_on_signal, terminations
from transduce.serving.http import messages
from transduce.serving.http.admission import (
    FORM,
    JSON,
    Admission,
    AdmissionConfig,
    RefusedError,
    status_of,
)
from transduce.serving.http.documentation import documentation
from transduce.serving.http.endpoints import Endpoints, JsonLines
from transduce.serving.http.monitoring import CountRequests, Monitor
from transduce.serving.served_models import ServedModel

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/attention.js": ("attention.js", "text/javascript; charset=utf-8"),
    "/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
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
LINES: dict[str, type[BaseModel]] = {
    "/v1/translate": messages.StreamedStretch,
    "/v1/parse": messages.StreamedParse,
}
"""By path, what each line of an answer is that comes bit by bit."""
MAX_PORT = 65_535
GRACE_S = 5.0
"""For answers to be sent after the last sentence's time is up."""


def create_app(
    models: Sequence[ServedModel], config: AdmissionConfig | None = None
) -> FastAPI:
    """The whole interface; what the queues took is finished when it ends."""

    @asynccontextmanager
    async def finishing(_: FastAPI) -> AsyncIterator[None]:
        yield
        for model in models:
            model.queue.close()

    # The usual pages of documentation load scripts from elsewhere; /docs is our own.
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
    _add_asked(app, "/v1/parse", endpoints.parse, messages.ParseRequest)
    _add_asked(app, "/v1/score", endpoints.score, messages.ScoreRequest)
    _add_asked(app, "/v1/attention", endpoints.attention, messages.AttentionRequest)
    app.get("/languages")(endpoints.languages)
    app.get("/v1/models")(endpoints.models)
    app.get("/health")(endpoints.health)
    app.get("/metrics", response_class=Response)(endpoints.metrics)
    for path, (name, kind) in PAGE.items():
        app.get(path, include_in_schema=False)(_page_file(name, kind))
    app.get("/docs", include_in_schema=False)(_documentation(app))
    app.exception_handler(RefusedError)(_refuse)
    app.exception_handler(TransduceError)(_refuse_error)
    app.exception_handler(HTTPException)(_refuse_http)
    app.add_middleware(CountRequests, monitor=monitor)
    _document_lines(app)
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
    """Answer until Ctrl-C, SIGTERM or a hangup, and then finish what was taken."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(timeout_s + GRACE_S),
    )
    server = uvicorn.Server(config)
    # The server raises the signal again once it is done, which is here no failure.
    with stop_on_signal():
        if threading.current_thread() is threading.main_thread():
            for number in terminations():
                signal.signal(number, server.handle_exit)
        server.run(sockets=[listener])


def _add_asked(
    app: FastAPI,
    path: str,
    endpoint: Callable[[Request], Coroutine[Any, Any, Any]],
    asked: type[messages.Asked],
) -> None:
    schema = asked.model_json_schema()
    answers: dict[int | str, dict[str, Any]] = {
        status: {"model": messages.Refusal, "description": description}
        for status, description in REFUSALS.items()
    }
    if path in LINES:
        answers[200] = {"model": LINES[path]}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model_exclude_none=asked is messages.TranslateRequest,
        responses=answers,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": schema}, FORM: {"schema": schema}},
            }
        },
    )


def _document_lines(app: FastAPI) -> None:
    """Else they would be documented as one piece of JSON. All paths must be known."""
    for path in LINES:
        answer = app.openapi()["paths"][path]["post"]["responses"]["200"]
        answer["content"] = {JsonLines.media_type: answer["content"][JSON]}


def _page_file(name: str, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    content = (files("transduce.serving") / "page" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    return answer


def _documentation(app: FastAPI) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def answer() -> Response:
        return HTMLResponse(documentation(app.openapi()))

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
