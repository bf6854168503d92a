"""Requests: read, admitted, or refused in one sentence."""

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.requests import Request

from transduce.errors import BusyError, ConfigError, TooLongError, TransduceError
from transduce.serving.http.messages import Asked
from transduce.text.corpus import read_text

AskedFor = TypeVar("AskedFor", bound=Asked)
Result = TypeVar("Result")

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MAX_FIELDS = 1000
RETRY_S = 1
MAX_CLIENTS = 10_000
"""Whose rates are remembered; those not seen for longest are forgotten."""
CLIENT_GONE = 499
"""What no client is there to read; as nginx calls it."""


class RefusedError(Exception):
    """A request that is not done."""

    def __init__(
        self, status: int, message: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """What is taken, and from whom."""

    api_keys: tuple[str, ...] = ()
    """Of which a request must have one; none if there are none."""
    requests_per_minute: int | None = None
    """Of each key or, without keys, each address."""
    max_characters: int = 10_000
    """Of all texts of a request."""
    body_timeout_s: float = 10.0
    """How long a client may take to send a request's body."""

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

    @property
    def max_body_bytes(self) -> int:
        """Each character may be escaped, at worst as a pair of six each."""
        return 12 * self.max_characters + 10_000


class Admission:
    """Reads requests, and lets in those that may be done."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        limit = config.requests_per_minute
        self._rate = None if limit is None else RateLimit(limit)

    async def admit(self, request: Request, message: type[AskedFor]) -> AskedFor:
        """What is asked; `RefusedError` if it may not or cannot be."""
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await self._body(request)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The body must come within {self._config.body_timeout_s:g} seconds.",
            ) from None
        asked = _parsed(request, body, message)
        self._check_client(request, asked)
        self._check_length(asked)
        return asked

    async def _body(self, request: Request) -> bytes:
        most, body = self._config.max_body_bytes, b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise RefusedError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"The body must have at most {most:,} bytes, but has more.",
                )
        return body

    def _check_client(self, request: Request, asked: Asked) -> None:
        client = request.client.host if request.client else ""
        if self._config.api_keys:
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            client = asked.api_key or bearer
            if not is_known(client, self._config.api_keys):
                raise RefusedError(
                    HTTPStatus.FORBIDDEN,
                    "`api_key` must be a key of this server, but is not.",
                )
        if self._rate and (seconds := self._rate.seconds_to_wait(client)):
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"At most {self._config.requests_per_minute:,} requests a minute are "
                f"taken; try again in {seconds} seconds.",
                retry_after_s=seconds,
            )

    def _check_length(self, asked: Asked) -> None:
        most, length = self._config.max_characters, sum(map(len, asked.texts))
        if length > most:
            raise TooLongError(
                f"A request must have at most {most:,} characters of text, but has "
                f"{length:,}; send it in parts."
            )


def _parsed(request: Request, body: bytes, message: type[AskedFor]) -> AskedFor:
    """From JSON or a form; from the address if there is no body."""
    kind = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    try:
        if not body:
            return message.model_validate(_fields(request.url.query))
        if kind == JSON:
            return message.model_validate_json(body)
        if kind == FORM:
            return message.model_validate(_fields(body.decode()))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "The body"
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}."
        ) from None
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"The form cannot be read ({error})."
        ) from None
    raise RefusedError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"The body must be {JSON} or {FORM}, but is {kind}.",
    )


def _fields(form: str) -> dict[str, str | list[str]]:
    values = parse_qs(
        form, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
    )
    return {name: each if len(each) > 1 else each[0] for name, each in values.items()}


def status_of(error: TransduceError) -> RefusedError:
    """How an error is told over HTTP."""
    match error:
        case BusyError():
            return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, str(error), RETRY_S)
        case TooLongError():
            return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
    return RefusedError(HTTPStatus.BAD_REQUEST, str(error))


async def while_connected(
    request: Request, work: Coroutine[object, object, Result]
) -> Result:
    """The result; the work is given up, and over, once the client has gone.

    The body must have been read.
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
        await asyncio.wait({working})  # what it waits for is given up only then


def read_keys(path: Path) -> tuple[str, ...]:
    """Keys from a file, one a line; `ConfigError` if there is none."""
    keys = tuple(line.strip() for line in read_text([path]) if line.strip())
    if not keys:
        raise ConfigError(f"{path}: must hold a key a line, but holds none.")
    return keys


def is_known(key: str, keys: Sequence[str]) -> bool:
    """Whether it is one of the keys, in a time that does not tell which is near."""
    given = key.encode("utf-8", "replace")
    return any([hmac.compare_digest(given, each.encode("utf-8")) for each in keys])


class RateLimit:
    """So many requests a minute for each client, all at once if it likes."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_minute / 60
        self._most = float(per_minute)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, client: str) -> int:
        """None, and the request is counted; or until when it is to be tried again."""
        now = self._clock()
        left, then = self._left.pop(client, (self._most, now))
        left = min(left + (now - then) * self._per_second, self._most)
        is_free = left >= 1
        self._left[client] = (left - 1 if is_free else left, now)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return 0 if is_free else math.ceil((1 - left) / self._per_second)
