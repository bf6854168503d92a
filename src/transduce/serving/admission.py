"""Admission of requests: hosts and origins, authentication, rate limits, refusals.

It also answers unexpected failures in JSON.
"""

import asyncio
import hmac
import ipaddress
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.errors import (
    AccessError,
    BusyError,
    CheckpointError,
    ConfigError,
    LackOfMemoryError,
    OverdueError,
    TimeLimitError,
    TooLongError,
    TransduceError,
    counted,
    in_seconds,
)
from transduce.serving.messages import (
    RefusedError,
    RequestMessage,
    RequestType,
    quoted,
    read_message,
)
from transduce.serving.translation import require_few_characters
from transduce.text.corpus import read_text

LOCAL_NAME = "localhost"
ANY = "*"
METHODS = ("GET", "HEAD", "POST")
EXPOSED = ("retry-after",)
ASKS_PRIVATE = b"access-control-request-private-network"
"""Header by which a browser asks whether a public page may use a private network."""
ALLOWS_PRIVATE = "access-control-allow-private-network"
HOST = re.compile("[a-z0-9_-][a-z0-9._-]*", re.ASCII)
"""Pattern of a host's name in lower case."""
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
"""Ports of the schemes by which browsers load pages from hosts."""


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
            bare = _bare(name)
            if _bare(host_name(_in_brackets(name))) != bare or not can_be_host(bare):
                raise ConfigError(
                    "`allowed_hosts` must be names without scheme and port, and "
                    "without wildcards, such as example.org, but one is "
                    f"{name!r}.{_ascii_hint(name)}"
                )
        for origin in self.cors_origins:
            if origin != ANY and _canonical_origin(origin) is None:
                raise ConfigError(
                    "`cors_origins` must be origins such as https://example.org, or "
                    f"*, but one is {origin!r}.{_ascii_hint(origin)}"
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
        scheme, netloc = urlsplit(canonical)[:2]
        if scheme not in DEFAULT_PORTS:
            return False  # such as a browser's extension, which no host serves
        return netloc == _netloc(host, canonical) or self._is_named(host_name(netloc))

    def _is_named(self, name: str) -> bool:
        return _bare(name) in map(_bare, self.allowed_hosts)


def is_loopback(name: str) -> bool:
    """Whether a host name or an address is this machine itself."""
    name = name.lower().rstrip(".")
    if name == LOCAL_NAME or name.endswith(f".{LOCAL_NAME}"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # Python 3.13 is the first to see through an IPv4 address in the form of IPv6.
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _bare(name: str) -> str:
    """Return a name in lower case, an IPv6 address without brackets and as short as
    it can be written."""
    bare = name.lower().strip("[]")
    return str(ipaddress.ip_address(bare)) if _is_ipv6(bare) else bare


def _in_brackets(name: str) -> str:
    """Return a name as a Host header has it: an IPv6 address is in brackets there."""
    return f"[{name}]" if _is_ipv6(name) else name


def _is_ipv6(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).version == 6
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


class ReadBodies:
    """Reads the rest of a request's body before the answer begins.

    A client may miss an answer that begins before: a connection that is closed while
    the client sends is reset. One that waits for permission to send its body, which it
    gets when the body is requested, is answered at once. Its connection then ends, as
    either the body or another request could follow (RFC 9110, section 10.1.1), and so
    does that of a body that does not come in time (section 15.5.9). `Connection` reads
    what is sent meanwhile.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_rest, end = True, asyncio.get_running_loop().time() + self._timeout_s
        is_waiting = _awaits_permission(scope)

        async def watched() -> Message:
            nonlocal has_rest, is_waiting
            is_waiting = False
            message = await receive()
            has_rest = message.get("more_body", False)  # not if the client has gone
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and has_rest:
                await read_rest()
                if has_rest:
                    headers = [*message.get("headers", ()), (b"connection", b"close")]
                    message = {**message, "headers": headers}
            await send(message)

        async def read_rest() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    while has_rest and not is_waiting:
                        await watched()

        await self._app(scope, watched, answer)


def _awaits_permission(scope: Scope) -> bool:
    """Whether a client announces that it awaits permission to send its body, which has
    no meaning in HTTP/1.0."""
    values = ",".join(Headers(scope=scope).getlist("expect")).lower().split(",")
    return scope.get("http_version") != "1.0" and "100-continue" in map(
        str.strip, values
    )


class GuardOrigins:
    """Refuses requests for another host, and those of another site's pages."""

    def __init__(self, app: ASGIApp, config: AccessConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            answer = JSONResponse({"error": refusal}, HTTPStatus.FORBIDDEN)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused; None if it is not."""
        headers, config = Headers(scope=scope), self._config
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not config.allows_host(host):
            return (
                f"The host must be a name of this server, but is {quoted(host)}; "
                "allow it by `transduce serve --allowed-hosts`."
            )
        if origin is not None and not config.allows_origin(origin, host or ""):
            is_name = _canonical_origin(origin) is not None
            value = "" if is_name else " '*'"
            effect = "" if is_name else ", which allows all sites"
            return (
                "Pages of other sites need permission to use this server, but "
                f"{quoted(origin)} has none; allow it by `transduce serve "
                f"--cors-origins{value}`{effect}."
            )
        return None


class AllowOrigins(CORSMiddleware):
    """Starlette's CORS middleware with refusals in JSON, like all others.

    Origins are compared in lower case, as Safari sends those of extensions in upper
    case.
    """

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

    def is_allowed_origin(self, origin: str) -> bool:
        """Return whether pages of an origin may read answers."""
        return self.allow_all_origins or _canonical_origin(origin) in self.allow_origins

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request like Starlette, but refuse in JSON.

        Pages of allowed origins may use a server in a private network, as this one is
        that the browser's own machine runs.
        """
        others = [each for each in request_headers.raw if each[0] != ASKS_PRIVATE]
        answer = super().preflight_response(Headers(raw=others))
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            if len(others) < len(request_headers.raw):
                answer.headers[ALLOWS_PRIVATE] = "true"
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
    return isinstance(
        error,
        (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit),
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
    host = parts.hostname or ""
    if not parts.scheme or not can_be_host(host) or not is_bare:
        return None
    return f"{parts.scheme}://{_with_port(host, port, parts.scheme)}"


def can_be_host(name: str) -> bool:
    """Whether requests can name a host so: "*" and "a.org,b.org" would never match."""
    if HOST.fullmatch(name):
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _ascii_hint(name: str) -> str:
    """Return advice for a name that is not in ASCII; browsers send none."""
    if name.isascii():
        return ""
    return " Write an international name as browsers send it: xn--..."


def _netloc(host: str, origin: str) -> str | None:
    """The host of a header as an origin of the same scheme would name it."""
    canonical = _canonical_origin(f"{urlsplit(origin).scheme}://{host}")
    return None if canonical is None else urlsplit(canonical).netloc


def _with_port(name: str, port: int | None, scheme: str) -> str:
    bracketed = f"[{name}]" if ":" in name else name
    is_default = port in (None, DEFAULT_PORTS.get(scheme))
    return bracketed if is_default else f"{bracketed}:{port}"


Result = TypeVar("Result")

MAX_REFUSED_PER_MINUTE = 600
"""Limit on refused requests per minute and address, unless another limit is set."""
BEARER = re.compile("bearer +(.+)", re.IGNORECASE)
NETWORK_BITS = 64
"""Prefix bits of an IPv6 address that identify one customer of a provider."""
MAX_CLIENT_TIMEOUT_S = 86_400.0
RETRY_S = 1
MAX_CLIENTS = 10_000
"""Maximum number of clients whose rates are stored; the oldest are dropped."""
CLIENT_GONE = 499
"""Status of a request whose client has gone; nginx's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Limits on requests, and accepted API keys."""

    api_keys: tuple[str, ...] = ()
    """Accepted keys; a request must have one of them. Empty to accept all requests."""
    requests_per_minute: int | None = None
    """Limit for each key or, without keys, for each address."""
    max_characters: int = 10_000
    """Maximum number of characters of all texts of a request. Of HTML, only those of
    its sentences count."""
    body_timeout_s: float = 10.0
    """Seconds that a client may take to send a request's body."""
    translates_files: bool = True
    """Whether files are translated, whose translations are kept for some minutes."""

    def __post_init__(self) -> None:
        if self.requests_per_minute is not None and self.requests_per_minute < 1:
            raise ConfigError(
                "`requests_per_minute` must be at least 1, but is "
                f"{self.requests_per_minute}."
            )
        if self.max_characters < 1:
            raise ConfigError(
                f"`max_characters` must be at least 1, but is {self.max_characters}."
            )
        if not 0 < self.body_timeout_s <= MAX_CLIENT_TIMEOUT_S:
            raise ConfigError(
                "The client timeout must be above 0 seconds and at most "
                f"{MAX_CLIENT_TIMEOUT_S:,.0f}, but is {self.body_timeout_s}."
            )

    @property
    def max_body_bytes(self) -> int:
        """Maximum size of a body in bytes: a character may take two escapes of six
        bytes."""
        return 12 * self.max_characters + 10_000


class Admission:
    """Reads requests, and admits or refuses them."""

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        limit = config.requests_per_minute
        self._rate = None if limit is None else RateLimit(limit)
        self._refused_rate = RateLimit(limit or MAX_REFUSED_PER_MINUTE)

    async def admit(
        self, request: Request, message_type: type[RequestType]
    ) -> RequestType:
        """Return the parsed request; `RefusedError` if it is not admitted."""
        address = address_of(request)
        try:
            message = read_message(request, await self._body(request), message_type)
            client = self._client(request, message, address)
        except RefusedError as refusal:
            if refusal.status != CLIENT_GONE:
                # A client with a wrong key or a malformed request counts by address.
                self._count(self._refused_rate, address)
            raise
        if self._rate:
            self._count(self._rate, client)
        require_few_characters(message.limited_texts, self.config.max_characters)
        return message

    async def _body(self, request: Request) -> bytes:
        most, body = self.config.max_body_bytes, bytearray()
        self._check_head(request)
        try:
            async with asyncio.timeout(self.config.body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise self._too_large()
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The body must come within {in_seconds(self.config.body_timeout_s)}.",
            ) from None
        except ClientDisconnect:
            raise RefusedError(CLIENT_GONE, "The client has gone.") from None
        return bytes(body)

    def _check_head(self, request: Request) -> None:
        """Raise `RefusedError` for a body that need not be read to be refused."""
        headers = request.headers
        encodings = ",".join(headers.getlist("content-encoding")).lower().split(",")
        if not {each.strip() for each in encodings} <= {"", "identity"}:
            raise RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "The body must be sent without content-encoding, but has one.",
            )
        if int(headers.get("content-length", "0")) > self.config.max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> RefusedError:
        return RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body must have at most {self.config.max_body_bytes:,} bytes, but has "
            "more.",
        )

    def _client(self, request: Request, message: RequestMessage, address: str) -> str:
        """Identity that a client's requests count for: its key, or else its address."""
        if not self.config.api_keys:
            return address
        header = _decoded(request.headers.get("authorization", ""))
        bearer = BEARER.fullmatch(header.strip())
        key = message.api_key or (bearer[1] if bearer else "")
        if not is_accepted(key, self.config.api_keys):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "`api_key` must be a key of this server, but is not.",
            )
        return key

    def _count(self, rate: "RateLimit", client: str) -> None:
        if seconds := rate.seconds_to_wait(client):
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"At most {counted(rate.per_minute, 'request')} a minute may be "
                f"sent; try again in {counted(seconds, 'second')}.",
                retry_after_s=seconds,
            )


def address_of(request: Request) -> str:
    """Address that requests are counted by; for IPv6, the customer's network."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), NETWORK_BITS), strict=False))


def _decoded(header: str) -> str:
    """Return the text of a header, which is UTF-8, or Latin-1 as browsers send it."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


def refusal_of(error: TransduceError) -> RefusedError:
    """Return the HTTP refusal for an error.

    An error of the server's own files is logged, as it names them; clients read only
    that the server failed.
    """
    match error:
        case CheckpointError() | AccessError():
            log_failure(error)
            failed = HTTPStatus.INTERNAL_SERVER_ERROR
            return RefusedError(failed, failure_sentence(error))
        case OverdueError() | LackOfMemoryError():
            # Work that needs more memory than there ever is must not be sent for ever.
            seconds = RETRY_S if isinstance(error, OverdueError) else None
            return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), seconds)
        case TimeLimitError():
            return RefusedError(HTTPStatus.GATEWAY_TIMEOUT, str(error))
        case BusyError():
            return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, str(error), RETRY_S)
        case TooLongError():
            return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
    return RefusedError(HTTPStatus.BAD_REQUEST, str(error))


async def while_connected(
    request: Request, work: Coroutine[object, object, Result]
) -> Result:
    """Await a result; cancel the work once the client has gone.

    The body must have been read before.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RefusedError(CLIENT_GONE, "The client has gone.")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working})  # cancels what the task waits for


def read_keys(path: Path) -> tuple[str, ...]:
    """Read keys from a file, one per line; `ConfigError` if there is none."""
    keys = tuple(line.strip() for line in read_text([path]) if line.strip())
    if not keys:
        raise ConfigError(f"{path}: must hold a key a line, but holds none.")
    return keys


def is_accepted(key: str, keys: Sequence[str]) -> bool:
    """Return whether a key is accepted, in constant time."""
    given = key.encode("utf-8", "replace")
    return any([hmac.compare_digest(given, each.encode("utf-8")) for each in keys])


class RateLimit:
    """Limit of requests per minute for each client; bursts are allowed."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_minute = per_minute
        self._per_second = per_minute / 60
        self._most = float(per_minute)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, client: str) -> int:
        """Count a request and return 0, or return the seconds until the next
        attempt."""
        now = self._clock()
        left, then = self._left.pop(client, (self._most, now))
        left = min(left + (now - then) * self._per_second, self._most)
        is_free = left >= 1
        self._left[client] = (left - 1 if is_free else left, now)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return 0 if is_free else math.ceil((1 - left) / self._per_second)
