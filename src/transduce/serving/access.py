"""Access by host and origin (CORS), and JSON answers to unexpected failures."""

import ipaddress
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.errors import ConfigError

LOCAL_NAME = "localhost"
ANY = "*"
METHODS = ("GET", "HEAD", "POST")
EXPOSED = ("retry-after",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Host names the server answers to, and origins whose pages may use it."""

    is_local: bool = False
    """Whether the server listens on this machine only. Then requests must name this
    machine, so that no other site's page can reach it through a local browser."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names; without any, a server that is not local allows every name."""
    cors_origins: tuple[str, ...] = ()
    """Origins (https://example.org) whose pages may use it (CORS); "*" allows any."""

    def __post_init__(self) -> None:
        for name in self.allowed_hosts:
            if not name or host_name(name) != name.lower().strip("[]"):
                raise ConfigError(
                    "`allowed_hosts` must be names without scheme and port, such as "
                    f"example.org, but one is {name!r}."
                )
        for origin in self.cors_origins:
            if origin != ANY and _canonical_origin(origin) is None:
                raise ConfigError(
                    "`cors_origins` must be origins such as https://example.org, or "
                    f"*, but one is {origin!r}."
                )

    def allows_host(self, host: str) -> bool:
        """Whether a request's Host header names an allowed host."""
        if not self.is_local and not self.allowed_hosts:
            return True
        name = host_name(host)
        return self._is_named(name) or is_loopback(name)

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of the origin may send requests to the host."""
        if not self.is_local or ANY in self.cors_origins:
            return True
        canonical = _canonical_origin(origin)
        if canonical is None:
            return False
        if canonical in map(_canonical_origin, self.cors_origins):
            return True
        netloc = urlsplit(canonical).netloc
        return netloc == _netloc(host, canonical) or self._is_named(host_name(netloc))

    def _is_named(self, name: str) -> bool:
        return name in [each.lower().strip("[]") for each in self.allowed_hosts]


def is_loopback(name: str) -> bool:
    """Whether a host name or an address is this machine itself."""
    name = name.lower().rstrip(".")
    if name == LOCAL_NAME or name.endswith(f".{LOCAL_NAME}"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """The name in a Host header, in lower case, without a port; "" if it has none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # must be a number
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


class AnswerFailures:
    """Answers any unhandled failure in JSON, a panic of a Rust library included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except BaseException as error:
            if scope["type"] != "http" or is_an_end(error):
                raise
            log_failure(error)
            if has_begun:
                raise ConnectionAbortedError("the answer cannot be finished") from None
            await failure_answer(error)(scope, receive, send)


class GuardOrigins:
    """Refuses requests for another host, and those of another site's pages."""

    def __init__(self, app: ASGIApp, config: AccessConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host"), headers.get("origin")
            refusal = None
            if host is not None and not self._config.allows_host(host):
                refusal = (
                    f"The host must be a name of this server, but is {_quoted(host)}; "
                    "allow it by --allowed-hosts."
                )
            elif origin is not None and not self._config.allows_origin(
                origin, host or ""
            ):
                refusal = (
                    "Pages of other sites need permission to use this server, but "
                    f"{_quoted(origin)} has none; allow it by --cors-origins."
                )
            if refusal is not None:
                answer = JSONResponse({"error": refusal}, HTTPStatus.FORBIDDEN)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


class AllowOrigins(CORSMiddleware):
    """Starlette's CORS middleware with refusals in JSON, like all others."""

    def __init__(self, app: ASGIApp, config: AccessConfig) -> None:
        super().__init__(
            app,
            allow_origins=[
                each if each == ANY else _canonical_origin(each) or each
                for each in config.cors_origins
            ],
            allow_methods=METHODS,
            allow_headers=("authorization", "content-type"),
            expose_headers=EXPOSED,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request like Starlette, but refuse in JSON."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name not in ("content-length", "content-type")
        }
        refusal = f"{bytes(answer.body).decode()}."
        return JSONResponse({"error": refusal}, answer.status_code, kept)


def is_an_end(error: BaseException) -> bool:
    """Whether an error ends a task or the program and is no failure of a request."""
    from asyncio import CancelledError

    return isinstance(
        error, (CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
    )


def log_failure(error: BaseException) -> None:
    """Log a failure with its traceback for the server's operator."""
    log = logging.getLogger("transduce.serving")
    log.error("A request failed.", exc_info=error)


def failure_sentence(error: BaseException) -> str:
    """Return the message to a client about a failure of the server."""
    return (
        f"The server failed ({type(error).__name__}); its log has the details. Try "
        "another text, or try again later."
    )


def failure_answer(error: BaseException) -> JSONResponse:
    """Return the answer (500) to a request that failed without the client's fault."""
    content = {"error": failure_sentence(error)}
    return JSONResponse(content, HTTPStatus.INTERNAL_SERVER_ERROR)


def _canonical_origin(origin: str) -> str | None:
    """Origin in lower case without its scheme's default port; None if malformed."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
        return None
    return f"{parts.scheme}://{_with_port(parts.hostname, port, parts.scheme)}"


def _netloc(host: str, origin: str) -> str | None:
    """The host of a header as an origin of the same scheme would name it."""
    canonical = _canonical_origin(f"{urlsplit(origin).scheme}://{host}")
    return None if canonical is None else urlsplit(canonical).netloc


def _with_port(name: str, port: int | None, scheme: str) -> str:
    bracketed = f"[{name}]" if ":" in name else name
    own: Mapping[str, int] = {"http": 80, "https": 443}
    return bracketed if port in (None, own[scheme]) else f"{bracketed}:{port}"


def _quoted(value: str) -> str:
    """Header value quoted for a message, truncated if long."""
    most = 80
    return json.dumps(value if len(value) <= most else value[:most] + "…")
