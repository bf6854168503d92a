"""HTTP server: LibreTranslate's interface, more under /v1, and a page for browsers.

The application has the paths, and the server listens, within its limits of connections.
A page documents the paths. It is the OpenAPI document as HTML that works without
network, with an example of each request, which can be changed and sent from the page.
"""

import asyncio
import ipaddress
import json
import logging
import math
import os
import re
import signal
import socket
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from html import escape
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

import transduce
from transduce.errors import ConfigError, RequestError, TransduceError
from transduce.report.report import (
    POLICY,
    Column,
    Part,
    Section,
    Table,
    as_html,
    whole_page,
)
from transduce.serving import messages
from transduce.serving.admission import (
    AccessConfig,
    Admission,
    AdmissionConfig,
    AllowOrigins,
    AnswerFailures,
    GuardOrigins,
    ReadBodies,
    refusal_of,
)
from transduce.serving.connection import (
    AcceptFailures,
    Connection,
    ConnectionConfig,
    OpenConnections,
)
from transduce.serving.endpoints import CountRequests, Endpoints, JsonLines, Monitor
from transduce.serving.messages import FORM, JSON, MULTIPART, RefusedError
from transduce.serving.request_queue import QueueConfig
from transduce.serving.served_models import ServedModel, find_routes
from transduce.signals import stop_on_signal, terminations

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/files.js": ("files.js", "text/javascript; charset=utf-8"),
    "/attention.js": ("attention.js", "text/javascript; charset=utf-8"),
    "/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Static files by path; requests cannot name any other file."""
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
    400: "The request is malformed, or no served model fits it.",
    403: "The API key is missing or unknown, or the host or origin is not allowed.",
    408: "The body did not arrive in time.",
    413: "The text is too long.",
    415: "The body is neither JSON nor a form, or its charset is not read.",
    429: "The queue is full, or the client sends too many requests; try again later.",
    500: "The server failed.",
    503: "The request waited too long, or memory is short; try again later.",
    504: "The request exceeded its time limit.",
}
LINES: dict[str, type[BaseModel]] = {
    "/v1/translate": messages.StreamedSegment,
    "/v1/parse": messages.StreamedParse,
}
"""Type of each line of streamed answers, by path."""
ATTENTION_PATH = "/v1/attention"
"""Path whose answer a thread writes as JSON, without FastAPI's validation."""
MAX_PORT = 65_535
BACKLOG = 512
"""Connections that the system queues until they are accepted, at most."""
SPARE = 16
"""Open files reserved for other purposes than connections."""
MAPPED_BITS = 96
"""Prefix bits of an IPv4 address that is written as one of IPv6."""
GRACE_S = 5.0
"""Seconds to send answers after the last deadline."""


def create_app(
    models: Sequence[ServedModel],
    config: AdmissionConfig | None = None,
    access: AccessConfig | None = None,
    pivots: Sequence[str] = (),
) -> FastAPI:
    """Build the application; at its end, the queues finish accepted requests.

    `pivots` are languages through which two models translate into languages that no
    single model has: see `find_routes`, also for errors.
    """
    routes = find_routes(models, pivots)
    access = access or AccessConfig()

    @asynccontextmanager
    async def finishing(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(AcceptFailures())
        yield
        for model in models:
            await asyncio.to_thread(model.queue.close)

    # FastAPI's documentation loads scripts from other sites; /docs is this package's.
    app = FastAPI(
        title="transduce",
        version=transduce.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=finishing,
        redirect_slashes=False,
    )
    app.state.monitor = monitor = Monitor(models)
    config = config or AdmissionConfig()
    endpoints = Endpoints(models, routes, Admission(config), monitor)
    _add_paths(app, endpoints, models)
    app.exception_handler(RefusedError)(_refuse)
    app.exception_handler(TransduceError)(_refuse_error)
    app.exception_handler(HTTPException)(_refuse_http)
    # Each middleware wraps those before it.
    app.add_middleware(AnswerFailures)
    if access.cors_origins:
        app.add_middleware(AllowOrigins, config=access)
    app.add_middleware(GuardOrigins, config=access)
    app.add_middleware(CountRequests, monitor=monitor)
    app.add_middleware(ReadBodies, timeout_s=config.body_timeout_s)
    _document_lines(app)
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of connections, trusted proxies and the time for a shutdown."""

    connections: ConnectionConfig = field(default_factory=ConnectionConfig)
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For and -Proto headers are trusted."""
    answer_within_s: float = QueueConfig().timeout_s
    """Seconds that running requests may take after the signal to stop."""

    def __post_init__(self) -> None:
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ConfigError(
                    "`trusted_proxies` must be addresses or networks, such as "
                    f"127.0.0.1 or 10.0.0.0/8, but one is {proxy!r}."
                ) from None


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket; `RequestError` if that fails."""
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"`port` must be from 0 to {MAX_PORT}, but is {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # Name the protocol: asyncio sets TCP_NODELAY only where it is named.
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (UnicodeError, socket.gaierror) as error:
        # An encoding error is that of the codec for international names.
        reason = f" ({error.strerror})" if isinstance(error, socket.gaierror) else ""
        raise RequestError(
            "The host must be a name or an address of this machine, but is "
            f"{host!r}{reason}; choose another."
        ) from None
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        written = f"[{host}]" if ":" in host else host
        raise RequestError(
            f"{written}:{port} must be free to listen at, but is not ({reason}); "
            "choose another host or port."
        ) from None
    return listener


class Server(uvicorn.Server):
    """Uvicorn server that refuses connections once it shuts down.

    It logs no tracebacks when a second Ctrl-C forces its end.
    """

    def __init__(self, config: uvicorn.Config, connections: OpenConnections) -> None:
        super().__init__(config)
        self._connections = connections

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        logger = logging.getLogger("uvicorn.error")
        level = logger.level
        try:
            super().run(sockets)
        finally:
            logger.setLevel(level)  # `handle_exit` may have raised it

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._connections.is_stopping = True
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            # The tasks that it cancels would be logged as failures.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def http_server(app: FastAPI, config: ServerConfig | None = None) -> Server:
    """Server of the app, with limits on connections."""
    config = config or ServerConfig()
    limits, backlog = within_open_files(config.connections)
    connections = OpenConnections(limits, backlog)
    if (monitor := getattr(app.state, "monitor", None)) is not None:
        connections.on_refusal = monitor.count_refusal
    protocol = partial(Connection, shared=connections)
    # Uvicorn logs mistakes of clients, who receive them as answers already.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    settings = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type] # a function can take a class's place
        ws="none",
        loop="asyncio",
        backlog=backlog,
        access_log=False,
        log_level="error",  # below, each malformed request logs a line
        server_header=False,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=_with_mapped(config.trusted_proxies),
        timeout_graceful_shutdown=math.ceil(config.answer_within_s + GRACE_S),
    )
    return Server(settings, connections)


def _with_mapped(proxies: Sequence[str]) -> list[str]:
    """Add the form of IPv4 proxies that a socket listening on `::` reports."""
    networks = map(ipaddress.ip_network, proxies)
    return [
        *proxies,
        *(
            f"::ffff:{each.network_address}/{MAPPED_BITS + each.prefixlen}"
            for each in networks
            if isinstance(each, ipaddress.IPv4Network)
        ),
    ]


def serve(
    app: FastAPI, listener: socket.socket, config: ServerConfig | None = None
) -> None:
    """Serve until Ctrl-C, SIGTERM or a hangup, then finish the running requests.

    A second Ctrl-C ends the server at once, by `KeyboardInterrupt`.
    """
    server = http_server(app, config)

    # Uvicorn raises its signals again when it is done; that is not a failure.
    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    with stop_on_signal():
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *terminations()):
                signal.signal(number, stop)
        server.run(sockets=[listener])
    if server.force_exit:
        raise KeyboardInterrupt


def within_open_files(config: ConnectionConfig) -> tuple[ConnectionConfig, int]:
    """Limit connections to what the limit on open files allows; also the backlog.

    The backlog counts twice: that many more may be accepted at once, to be refused.
    `RequestError` if the limit on open files is too low.
    """
    most = config.max_connections
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return config, BACKLOG
    taken = _num_open_files() + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = taken + most + 2 * BACKLOG
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return config, BACKLOG
    backlog = min((soft - taken) // 4, BACKLOG)
    if backlog < 1:
        raise RequestError(
            f"The server needs at least {taken + 4} open files, but the limit is "
            f"{soft}; raise it (ulimit -n)."
        )
    fewer = min(most, soft - taken - 2 * backlog)
    return replace(config, max_connections=fewer), backlog


def _num_open_files() -> int:
    try:
        return len(list(Path("/dev/fd").iterdir()))
    except OSError:
        return SPARE


def _add_paths(
    app: FastAPI, endpoints: Endpoints, models: Sequence[ServedModel]
) -> None:
    _add_post(app, "/translate", endpoints.translate, messages.TranslateRequest)
    _add_post(app, "/detect", endpoints.detect, messages.DetectRequest)
    _add_post(app, "/v1/translate", endpoints.stream, messages.StreamRequest)
    _add_post(app, "/v1/parse", endpoints.parse, messages.ParseRequest)
    _add_post(app, "/v1/score", endpoints.score, messages.ScoreRequest)
    _add_post(app, ATTENTION_PATH, endpoints.attention, messages.AttentionRequest)
    app.post("/suggest", include_in_schema=False)(endpoints.suggest)
    app.post("/translate_file", include_in_schema=False)(endpoints.translate_file)
    _add_get(
        app,
        "/download_file/{name}",
        endpoints.download_file,
        include_in_schema=False,
    )
    _add_get(app, "/languages", endpoints.languages)
    _add_get(app, "/frontend/settings", endpoints.frontend_settings)
    _add_get(app, "/v1/models", endpoints.models)
    _add_get(app, "/v1/glossaries", endpoints.glossaries)
    _add_get(app, "/health", endpoints.health)
    _add_get(app, "/metrics", endpoints.metrics, response_class=Response)
    for path, (name, kind) in PAGE.items():
        _add_get(app, path, _page_file(name, kind), include_in_schema=False)
    _add_get(app, "/docs", _documentation(app, models), include_in_schema=False)
    _add_get(app, "/spec", _specification(app), include_in_schema=False)


def _add_get(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Coroutine[Any, Any, Any]],
    **settings: Any,
) -> None:
    """Add a path that answers GET and HEAD."""
    app.add_api_route(path, endpoint, methods=["GET"], **settings)
    hidden = settings | {"include_in_schema": False}
    app.add_api_route(path, endpoint, methods=["HEAD"], **hidden)


def _add_post(
    app: FastAPI,
    path: str,
    endpoint: Callable[[Request], Coroutine[Any, Any, Any]],
    message_type: type[messages.RequestMessage],
) -> None:
    schema = message_type.model_json_schema()
    answers: dict[int | str, dict[str, Any]] = {
        status: {"model": messages.Refusal, "description": description}
        for status, description in REFUSALS.items()
    }
    if path in LINES:
        answers[200] = {"model": LINES[path]}
    if path == ATTENTION_PATH:
        answers[200] = {"model": messages.Attention}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model_exclude_none=message_type is messages.TranslateRequest,
        responses=answers,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    kind: {"schema": schema} for kind in (JSON, FORM, MULTIPART)
                },
            }
        },
    )


def _document_lines(app: FastAPI) -> None:
    """Document streamed answers as JSON lines. Call it after all paths are added."""
    for path in LINES:
        answer = app.openapi()["paths"][path]["post"]["responses"]["200"]
        answer["content"] = {JsonLines.media_type: answer["content"][JSON]}


def _page_file(name: str, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    content = (files("transduce.serving") / "page" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    return answer


def _documentation(
    app: FastAPI, models: Sequence[ServedModel]
) -> Callable[[], Coroutine[Any, Any, Response]]:
    headers = PAGE_HEADERS | {"content-security-policy": DOCUMENTATION_POLICY}
    page = cache(lambda: documentation(app.openapi(), models))

    async def answer() -> Response:
        return HTMLResponse(page(), headers=headers)

    return answer


def _specification(app: FastAPI) -> Callable[[], Coroutine[Any, Any, Response]]:
    """Endpoint of the OpenAPI document at LibreTranslate's path."""

    async def answer() -> Response:
        return JSONResponse(app.openapi())

    return answer


async def _refuse(_: Request, refused: Exception) -> JSONResponse:
    assert isinstance(refused, RefusedError)
    seconds = refused.retry_after_s
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return JSONResponse({"error": str(refused)}, refused.status, headers)


async def _refuse_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TransduceError)
    return await _refuse(request, refusal_of(error))


async def _refuse_http(request: Request, error: Exception) -> JSONResponse:
    """Answer a request for an unknown path or method.

    A known path with several slashes in place of one, as clients write that add a path
    to an address with a slash at its end, is redirected, as by LibreTranslate. An
    answer would let clients past a proxy that closes a path to them.
    """
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    given = request.scope["path"]
    path = re.sub("/{2,}", "/", given)
    known = {each.path for each in request.app.routes if isinstance(each, Route)}
    if path != given and path in known:
        query = request.scope["query_string"].decode("latin-1")
        message = f"The path must have single slashes, as in {path}."
        headers = {"location": f"{path}?{query}" if query else path}
        return JSONResponse({"error": message}, HTTPStatus.PERMANENT_REDIRECT, headers)
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"  # GET and HEAD are two routes
    message = "The path must be one that /docs describes, but is not."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = headers["Allow"].replace(", ", " or ")
        message = f"The method must be {allowed} here, but is {request.method}."
    return JSONResponse({"error": message}, error.status_code, headers)


DOCUMENTATION_POLICY = f"{POLICY}; connect-src 'self'; form-action 'none'"
"""Content security policy of the documentation: it may connect to this server only."""
LIBRETRANSLATE = (
    "LibreTranslate clients work unchanged. A body is JSON, a form or form data; null "
    "and empty fields count as missing. A language is a BCP 47 tag in any case; if no "
    "model has it, a model of the same base language answers."
)
SENTENCE, TRANSLATION = "A dog runs.", "Ein Hund läuft."

Schema = Mapping[str, Any]


def documentation(openapi: Schema, models: Sequence[ServedModel]) -> str:
    """Write the documentation's page: paths with requests and answers, then schemas."""
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
