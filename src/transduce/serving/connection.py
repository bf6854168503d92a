"""HTTP connections with limits on their number and on the time each may take."""

import asyncio
import errno
import json
import logging
import math
import re
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from transduce.errors import ConfigError, in_seconds
from transduce.serving.request_queue import SHUTTING_DOWN

DRAIN_S = 2.0
"""Seconds for which a client's input is read after its last answer, so that the client
gets it: a connection that is closed while the client sends is reset."""
DRAIN_BYTES = 2**28
"""Maximum size of the input that is read so."""
LEFT_AFTER_S = 1.0
"""Seconds after a client half-closed its connection until it is probed."""
PROBE_EVERY_S = 5.0
ECHO_S = 0.1
"""Seconds that a vanished client's system may take to answer a probe with a reset."""
MAX_HEAD_BYTES = 16_384
"""Maximum size of a request line with its headers, and of chunk extensions."""
REQUEST_LINE_BYTES = len("  HTTP/1.1\r\n")
"""Size of a request line beside its method and target. A header has `: ` and CRLF."""
TOO_LARGE = (
    "The request line, headers and chunk extensions must be shorter: at most "
    f"{MAX_HEAD_BYTES:,} bytes are read."
)
NO_PROXY = "The method must not be CONNECT, as this server is no proxy."
EMPTY_LINES = re.compile(rb"(?:\r?\n)+")
INVALID = "The request must be valid HTTP/1.1, but is not."
ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)
"""Pattern of a request's target that is a whole URL: its host and its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Limits on the number of connections and on the time each may take."""

    max_connections: int = 1000
    header_timeout_s: float = 10.0
    """Seconds that a client may take to send a request's headers."""
    idle_timeout_s: float = 30.0
    """Seconds for which an idle connection is kept for another request."""
    write_timeout_s: float = 30.0
    """Seconds for which a client may leave an answer unread."""

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ConfigError(
                f"`max_connections` must be at least 1, but is {self.max_connections}."
            )
        for name in ("header_timeout_s", "idle_timeout_s", "write_timeout_s"):
            seconds = getattr(self, name)
            if not 0 < seconds < math.inf:
                raise ConfigError(f"`{name}` must be above 0, but is {seconds}.")


@dataclass(slots=True)
class OpenConnections:
    """Limits of a server, and its connections that wait for a request."""

    config: ConnectionConfig
    overflow: int = 0
    """Connections beyond the limit that are kept only to receive a refusal."""
    is_stopping: bool = False
    """Whether the server shuts down, so that new connections are refused."""
    on_refusal: Callable[[int], object] = lambda _: None
    """Callback that receives the status of each refusal of a request that the
    application has not received."""
    waiting: "dict[Connection, None]" = field(default_factory=dict)
    """Connections that wait for a request, the longest waiting first."""


class RefusedHeadError(h11.RemoteProtocolError):
    """Request line or headers that are refused with a status and a message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message, error_status_hint=status)


class RequestReader(h11.Connection):
    """h11's parser, which also refuses requests that RFC 9112 lets a server refuse.

    Two servers could find the end of such a request at different places, so that
    another request hides in its body (sections 6.1 and 11.2).
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)

    def next_event(self) -> Any:
        """Return h11's next event; `RefusedHeadError` for a head that is refused."""
        is_idle = self.their_state is h11.IDLE
        if is_idle and self._skip_empty_lines():
            return h11.NEED_DATA
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            if status != HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                raise
            if is_idle and b"\n" not in self.trailing_data[0]:
                status = HTTPStatus.REQUEST_URI_TOO_LONG
            raise RefusedHeadError(status, TOO_LARGE) from None
        return _checked(event) if isinstance(event, h11.Request) else event

    def _skip_empty_lines(self) -> bool:
        """Skip empty lines before a request line, which old clients send after a body
        (RFC 9112, section 2.2); return whether a half of a line break is left."""
        given, _ = self.trailing_data
        if breaks := EMPTY_LINES.match(given):
            given = given[breaks.end() :]
            # h11 has no public way to take bytes out of its buffer.
            self._receive_buffer.maybe_extract_at_most(breaks.end())
        return given == b"\r"


def _checked(request: h11.Request) -> h11.Request:
    """Return the request with its target in origin form (RFC 9112, section 3.2)."""
    size = len(request.method) + len(request.target) + REQUEST_LINE_BYTES
    if size > MAX_HEAD_BYTES:
        raise RefusedHeadError(HTTPStatus.REQUEST_URI_TOO_LONG, TOO_LARGE)
    size += sum(len(name) + len(value) + 4 for name, value in request.headers)
    if size > MAX_HEAD_BYTES:
        raise RefusedHeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LARGE)
    version = request.http_version
    if not version.startswith(b"1."):
        raise RefusedHeadError(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            f"The HTTP version must be 1.x, but is {version.decode()}.",
        )
    if request.method == b"CONNECT":
        # What follows may be meant for the tunnel (RFC 9110, section 9.3.6).
        raise RefusedHeadError(HTTPStatus.NOT_IMPLEMENTED, NO_PROXY)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise _malformed(
            "A request must have either a content-length or a transfer-encoding, but "
            "has both."
        )
    if b"transfer-encoding" in names and version == b"1.0":
        raise _malformed(
            "A request of HTTP/1.0 must have no transfer-encoding, but has one."
        )
    if b"host" not in names and version != b"1.0":
        raise _malformed(INVALID)
    return _in_origin_form(request)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return the request with a path as target; an absolute target names the host."""
    target = request.target
    absolute = ABSOLUTE_TARGET.fullmatch(target)
    if absolute is None:
        is_star = (request.method, target) == (b"OPTIONS", b"*")
        if target.startswith(b"/") or is_star:
            return request
        raise _malformed(INVALID)
    host, path = absolute.groups()
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *others],
        http_version=request.http_version,
    )


def _malformed(message: str) -> RefusedHeadError:
    return RefusedHeadError(HTTPStatus.BAD_REQUEST, message)


class Connection(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol (h11) with limits on time and number.

    Headers that do not arrive, idle connections and unread answers time out. At the
    limit of connections, a new one replaces the one that has waited longest for a
    request. A client that half-closed its connection is still answered.
    """

    def __init__(self, *arguments: Any, shared: OpenConnections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = RequestReader()
        self._shared = shared
        self._limits = shared.config
        self._waiting = shared.waiting
        self.timeout_keep_alive = self._limits.idle_timeout_s  # type: ignore[assignment] # it may be a fraction
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        """Timer of each method that is scheduled."""
        self._is_ending = False
        """Whether the last answer is sent, so that the rest of the input is skipped."""
        self._num_drained = 0
        """Bytes of input that were skipped."""
        self._has_sent_all = False
        """Whether the client has ended its side of the connection."""

    @property
    def _is_answering(self) -> bool:
        # Uvicorn declares the cycle, but has none before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if self._shared.is_stopping:
            # The system accepted it before the server stopped listening.
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, SHUTTING_DOWN)
            return
        if len(self.connections) > self._limits.max_connections:
            if not self._waiting:
                self._refuse(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"All {self._limits.max_connections:,} connections of this server "
                    "are in use; try again later.",
                )
                most = self._limits.max_connections + self._shared.overflow
                if len(self.connections) > most:
                    self._close()
                return
            next(iter(self._waiting)).give_up()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.pop(self, None)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:
            answer = _AnswerTransport(self.transport, self.end_answers)
            self.cycle.transport = answer  # type: ignore[assignment] # all that it needs

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            self._num_drained += len(data)
            if self._num_drained > DRAIN_BYTES:
                self._abort()
            return
        if not self._is_answering:
            self._await_head()
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def eof_received(self) -> bool:  # type: ignore[override] # as asyncio has it
        """Keep the connection open while there is something to answer."""
        self._has_sent_all = True
        if self._is_ending or not self._is_answering:
            return False
        if self.cycle.more_body:
            self._refuse(
                HTTPStatus.BAD_REQUEST, "The body must be sent whole, but ends early."
            )
            return True
        self._schedule(LEFT_AFTER_S, self._probe)
        return True

    def shutdown(self) -> None:
        """Close an idle connection at once, and a busy one after its answer.

        One that is drained closes by itself; h11 may not let it end within a request.
        """
        if not self._is_ending:
            super().shutdown()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_answering:
            return  # the next request has already arrived
        if self._is_ending:
            self._unset_keepalive_if_required()
            return
        if self.transport.is_closing():
            self._schedule(self._limits.write_timeout_s, self._abort)
            return
        if self._has_sent_all:
            self._close()
            return
        self._waiting[self] = None
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse in JSON a request that cannot be parsed."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST)
        message = INVALID
        if isinstance(error, RefusedHeadError):
            message = str(error)
        elif status == HTTPStatus.NOT_IMPLEMENTED:
            message = "The transfer-encoding must be chunked, or none."
        self._refuse(status, message)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._schedule(self._limits.write_timeout_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():
            return  # what is left to write must be read in time, too
        if self._is_ending:  # `_drain` lets this be called once all is written
            self._schedule(DRAIN_S, self._abort)
        else:
            self._cancel(self._abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._schedule(self._limits.write_timeout_s, self._abort)

    def give_up(self) -> None:
        """Close at once to make room for another connection."""
        self._waiting.pop(self, None)
        self._abort()

    def _await_head(self) -> None:
        """Wait for a request, whose head must come in time."""
        self._waiting.setdefault(self)
        if self._time_out_head not in self._timers:
            self._schedule(self._limits.header_timeout_s, self._time_out_head)

    def _stop_waiting(self) -> None:
        """Note that a request has come, or is refused."""
        self._waiting.pop(self, None)
        self._cancel(self._time_out_head)

    def _time_out_head(self) -> None:
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "The headers must come within "
                f"{in_seconds(self._limits.header_timeout_s)}.",
            )
        else:
            self._close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, drain the input, and close."""
        if self._is_ending:
            return
        has_begun = self._is_answering and self.cycle.response_started
        self._is_ending = True
        self._stop_waiting()
        if not self._is_answering:
            self._shared.on_refusal(status)
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if has_begun or self.transport.is_closing():
            self._close()
            return
        body = json.dumps({"error": message}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self._drain()

    def end_answers(self) -> None:
        """Close after the last answer, which the client gets even if it still sends."""
        is_sent = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        if is_sent and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self._is_ending = True
            self._drain()

    def _drain(self) -> None:
        """Close once the client has ended its side, or after a while."""
        if self._has_sent_all:
            self._close()
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client may have reset the connection by now
                self.transport.write_eof()
        self.transport.set_write_buffer_limits(high=0)
        is_written = self.transport.get_write_buffer_size() == 0
        seconds = DRAIN_S if is_written else self._limits.write_timeout_s
        self._schedule(seconds, self._abort)

    def _probe(self) -> None:
        """Find out whether a half-closed client has left, and look again later.

        If the client has left, its system answers whatever is written with a reset.
        Before the answer begins, a status line that clients skip is written.
        """
        if not self._is_answering or self.transport.is_closing():
            return
        if not self.cycle.response_started and self.scope["http_version"] == "1.1":
            proceed = h11.InformationalResponse(
                status_code=100, headers=[], reason="Continue"
            )
            self.transport.write(self.conn.send(proceed))
        self._schedule(ECHO_S, self._abort_if_reset)
        self._schedule(PROBE_EVERY_S, self._probe)

    def _abort_if_reset(self) -> None:
        """Abort if the client's system has answered a probe with a reset."""
        there = self.transport.get_extra_info("socket")
        if there.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._abort()

    def _close(self) -> None:
        self.transport.close()
        self._schedule(self._limits.write_timeout_s, self._abort)

    def _abort(self) -> None:
        self.transport.abort()

    def _schedule(self, seconds: float, action: Callable[[], None]) -> None:
        """Call a method later, instead of when it was scheduled before."""
        self._cancel(action)

        def run() -> None:
            self._timers.pop(action, None)
            action()

        self._timers[action] = self.loop.call_later(seconds, run)

    def _cancel(self, action: Callable[[], None]) -> None:
        if timer := self._timers.pop(action, None):
            timer.cancel()


class _AnswerTransport:
    """Transport of an answer, whose end is that of all answers of its connection."""

    def __init__(
        self, transport: asyncio.Transport, end_answers: Callable[[], None]
    ) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = end_answers


class AcceptFailures:
    """Logs at most once a minute that connections cannot be accepted."""

    PERIOD_S = 60.0

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def __call__(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        error = context.get("exception")
        is_full = isinstance(error, OSError) and error.errno in (
            errno.EMFILE,
            errno.ENFILE,
            errno.ENOBUFS,
            errno.ENOMEM,
        )
        if not is_full:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._logged_at >= self.PERIOD_S:
            self._logged_at = time.monotonic()
            logging.getLogger("uvicorn.error").error(
                "No connection can be accepted now (%s); raise the limit on open files "
                "(ulimit -n), or allow fewer (`transduce serve --max-connections`).",
                error,
            )
