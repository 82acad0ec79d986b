"""The surface every dialect has: bytes to a canonical request, events to bytes, errors to an envelope.

A dialect is pure: no I/O, no clock of its own beyond `created`, no knowledge of models or processes. One object
serves one route ("/api/chat", "/v1/messages", ...) and keeps no state; the state of one streamed answer lives in
its Encoder.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from daemon.chat import Answer, Event, Request, Sampling
from daemon.errors import Busy, InvalidRequest, Kind, MgrError

STATUS: Mapping[Kind, int] = {
    Kind.INVALID: 400,
    Kind.TOO_LONG: 400,
    Kind.NOT_SUPPORTED: 501,
    Kind.UNAUTHORIZED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.TOO_LARGE: 413,
    Kind.BUSY: 503,
    Kind.LOAD_FAILED: 500,
    Kind.UPSTREAM: 502,
    Kind.BAD_MODEL: 422,
    Kind.PULL_FAILED: 502,
    Kind.STORAGE: 507,
    Kind.MISCONFIGURED: 500,
    Kind.INTERNAL: 500,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Encoder(Protocol):
    """One streamed answer. Every method returns bytes to send now, possibly none; no other call follows `finish` or
    `fail`, except that nothing happens twice if one does."""

    def feed(self, event: Event) -> bytes:
        """Bytes for one event; `Progress` gives none."""

    def keep_alive(self) -> bytes:
        """Bytes that a client of this dialect ignores, at any point of the stream."""

    def finish(self) -> bytes:
        """Closes what is open, after the Done event was fed."""

    def fail(self, error: MgrError) -> bytes:
        """The dialect's terminal error, in-band."""


class Dialect(Protocol):
    @property
    def defaults(self) -> Sampling:
        """What the API documents for options that neither the request nor the model gives."""

    @property
    def stream_media_type(self) -> str: ...

    def parse(self, body: bytes) -> Request:
        """The canonical request. Raises InvalidRequest or NotSupported, never anything else."""

    def wants_stream(self, request: Request) -> bool: ...

    def encoder(self, request: Request, created: float) -> Encoder:
        """`created` is the wall-clock time of the request, in seconds since 1970."""

    def reply(self, request: Request, answer: Answer, created: float) -> Reply:
        """The whole answer of a request that did not ask for a stream."""

    def loaded(self, request: Request, created: float) -> Reply:
        """The answer to a LoadRequest."""

    def error(self, error: MgrError) -> Reply: ...


def retry_headers(error: MgrError) -> dict[str, str]:
    return {"Retry-After": str(error.retry_after)} if isinstance(error, Busy) else {}


# ---- reading JSON that a stranger wrote

MAX_DEPTH = 100


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body, whatever the content type said.

    Raises InvalidRequest for an empty body, for anything that is not strict JSON (NaN, Infinity, numbers beyond
    a double, lone surrogates), for a value that is not an object, and beyond MAX_DEPTH levels.
    """
    if not body.strip():
        raise InvalidRequest("missing request body")
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
        _check(value, 0)
    except UnicodeDecodeError:
        raise InvalidRequest("the request body is not UTF-8") from None
    except RecursionError:
        raise InvalidRequest(f"the request body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {_brief(error)}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _brief(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    text = str(error)
    return "a number has too many digits" if "int_max_str_digits" in text or "digits" in text else text


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError("a string holds a lone surrogate") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, depth + 1)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
