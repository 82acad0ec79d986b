"""The surface every dialect has: bytes to a canonical request, events to bytes, errors to an envelope.

A dialect is pure: no I/O, no clock of its own beyond `created`, no knowledge of models or processes. One object
serves one route ("/api/chat", "/v1/messages", ...) and keeps no state; the state of one streamed answer lives in
its Encoder.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from daemon.chat import (
    Answer,
    Batch,
    Choice,
    CountRequest,
    Embeddings,
    EmbedRequest,
    Event,
    LoadRequest,
    Ranking,
    Request,
    RerankRequest,
    Sampling,
    TokenRequest,
)
from daemon.errors import Busy, InvalidRequest, Kind, LoadFailed, MgrError
from daemon.framing import to_json

STATUS: Mapping[Kind, int] = {
    Kind.INVALID: 400,
    Kind.TOO_LONG: 400,
    Kind.POISON: 422,
    Kind.NOT_SUPPORTED: 501,
    Kind.UNAUTHORIZED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.TOO_LARGE: 413,
    Kind.BUSY: 503,
    Kind.LOAD_FAILED: 500,
    Kind.UPSTREAM: 502,
    Kind.TIMEOUT: 504,
    Kind.BAD_MODEL: 422,
    Kind.PULL_FAILED: 502,
    Kind.STORAGE: 507,
    Kind.MISCONFIGURED: 500,
    Kind.INTERNAL: 500,
}

# OpenAI's and Anthropic's SDKs know 4xx as the caller's mistake and repeat a 5xx, so there what is not built is a 400.
SDK_STATUS: Mapping[Kind, int] = {**STATUS, Kind.NOT_SUPPORTED: 400}

# The `type` of an error in OpenAI's and Anthropic's envelopes.
ERROR_TYPES: Mapping[Kind, str] = {
    Kind.INVALID: "invalid_request_error",
    Kind.TOO_LONG: "invalid_request_error",
    Kind.POISON: "invalid_request_error",
    Kind.NOT_SUPPORTED: "invalid_request_error",
    Kind.CONFLICT: "invalid_request_error",
    Kind.TOO_LARGE: "invalid_request_error",
    Kind.BAD_MODEL: "invalid_request_error",
    Kind.UNAUTHORIZED: "authentication_error",
    Kind.FORBIDDEN: "permission_error",
    Kind.NOT_FOUND: "not_found_error",
}
DEFAULT_ERROR_TYPE = "api_error"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Ending(Protocol):
    """How a streamed answer is kept up and ended. Every method returns bytes to send now, possibly none.

    The stream ends with `finish` or `fail`, whichever comes first; after that every method returns nothing.
    `StreamEncoder` in `encoding.py` is the one implementation of this rule.
    """

    def keep_alive(self) -> bytes:
        """Bytes that a client of this dialect ignores, at any point of the stream."""

    def finish(self) -> bytes:
        """Closes what is open and ends the stream, after every Done event was fed. Without one it is a `fail`."""

    def fail(self, error: MgrError) -> bytes:
        """The dialect's terminal error, in-band."""


class Encoder(Ending, Protocol):
    """One streamed answer."""

    def feed(self, event: Event) -> bytes:
        """Bytes for one event; `Progress` and `Done` give none."""

    def feed_quoted(self, text: bytes) -> bytes:
        """Bytes for a piece of text, which is not empty, as `framing.quoted` gives it. Not after the end."""


class BatchEncoder(Ending, Protocol):
    """The answers to a Batch, in one stream."""

    def feed_choice(self, choice: Choice) -> bytes:
        """Bytes for one event of one of the answers."""


class Dialect(Protocol):
    """Dialects inherit from this: most answers are the same for nearly all of them."""

    @property
    def defaults(self) -> Sampling:
        """What the API documents for options that neither the request nor the model gives; most document nothing."""
        return Sampling()

    @property
    def strict_thinking(self) -> bool:
        """Whether it is an error to ask a model to think that does not; else the wish is dropped."""
        return False

    @property
    def stream_media_type(self) -> str: ...

    def parse(self, body: bytes) -> Request:
        """The canonical request. Raises InvalidRequest or NotSupported, never anything else."""

    def encoder(self, request: TokenRequest, created: float) -> Encoder:
        """`created` is the wall-clock time of the request, in seconds since 1970."""

    def batch_encoder(self, request: Batch, created: float) -> BatchEncoder:
        """The same for a Batch, which only OpenAI's API can ask for. Raises TypeError elsewhere."""
        raise TypeError("this API has no request with several answers")

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        """The whole answer of a request that did not ask for a stream."""

    def replies(self, request: Batch, answers: Sequence[Answer], created: float) -> Reply:
        """The same for a Batch, which only OpenAI's API can ask for. Raises TypeError elsewhere."""
        raise TypeError("this API has no request with several answers")

    def loaded(self, request: LoadRequest, created: float) -> Reply:
        """The answer to a LoadRequest, which only Ollama's API can ask for. Raises TypeError elsewhere."""
        raise TypeError("this API has no request that only loads a model")

    def embedded(self, request: EmbedRequest, embeddings: Embeddings, created: float) -> Reply:
        raise TypeError("this API has no request for embeddings")

    def ranked(self, request: RerankRequest, ranking: Ranking, created: float) -> Reply:
        raise TypeError("this API has no request for a ranking")

    def counted(self, request: CountRequest, tokens: int) -> Reply:
        raise TypeError("this API has no request for a count of tokens")

    def error(self, error: MgrError) -> Reply: ...


def retry_headers(error: MgrError) -> dict[str, str]:
    """What the client should know about trying again. OpenAI's and Anthropic's SDKs repeat any 5xx otherwise."""
    match error:
        case Busy():
            return {"Retry-After": str(error.retry_after)}
        case LoadFailed(permanent=True):
            return {"x-should-retry": "false"}
    return {}


# ---- reading JSON that a stranger wrote

MAX_DEPTH = 100
MAX_DIGITS = 100

# A string that is not closed runs to the end of the text, so that the scan stays linear.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body in UTF-8, whatever the content type said; of equal keys the last counts.

    Raises InvalidRequest for an empty body, for anything that is not strict JSON (NaN, Infinity, numbers beyond
    a double or MAX_DIGITS, lone surrogates), for a value that is not an object, and beyond MAX_DEPTH levels.
    """
    if not body.strip():
        raise InvalidRequest("missing request body")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("the request body is not UTF-8") from None
    if _too_deep(text):
        raise InvalidRequest(f"the request body is nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer)
        if _SURROGATE_ESCAPE.search(text):
            to_json(value)
    except UnicodeEncodeError:
        raise InvalidRequest("the request body is not valid JSON: a string holds a lone surrogate") from None
    except ValueError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {_brief(error)}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def _too_deep(text: str) -> bool:
    """Whether brackets nest deeper than MAX_DEPTH.

    The parser recurses in C, and how deep is safe there differs between Python versions and stack sizes, so this
    is known before it starts.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        piece = match[0]
        if piece in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif piece in "]}":
            depth -= 1
    return False


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _brief(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
    return str(error)
