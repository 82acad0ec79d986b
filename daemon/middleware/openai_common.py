"""What OpenAI's routes share: error envelope, usage, heads of answers, streams of one and of several choices.

Source: OpenAI's API reference and the types of its Python SDK. Beside the API's own fields an answer may have
`truncated` and `warnings` at its top level (`encoding.notes`); in a stream they are in the chunk that ends a choice.
"""

import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from daemon.chat import (
    Answer,
    Batch,
    ChatRequest,
    Choice,
    CompletionRequest,
    Done,
    TokenRequest,
    Usage,
)
from daemon.errors import EngineFailed, Kind, MgrError, ModelNotFound, PromptTooLong
from daemon.framing import sse, sse_comment, to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import (
    DEFAULT_ERROR_TYPE,
    ERROR_TYPES,
    SDK_STATUS,
    Dialect,
    Reply,
    retry_headers,
)
from daemon.middleware.encoding import StreamEncoder, notes
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

SYSTEM_FINGERPRINT = "fp_mgr"
MAX_N = 16
MAX_CHOICES = 128
MAX_INPUTS = 2048
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20

_CODES: Mapping[Kind, str] = {
    Kind.TOO_LONG: "context_length_exceeded",
    Kind.UNAUTHORIZED: "invalid_api_key",
    Kind.BUSY: "server_is_overloaded",
}

_R = TypeVar("_R", ChatRequest, CompletionRequest)


# ---- requests


def include_usage(fields: Fields, stream: bool) -> bool:
    """Whether the answer tells its usage: a stream only where `stream_options` asks for it."""
    asked = fields.object("stream_options").boolean("include_usage") is True
    return asked or not stream


def limit(fields: Fields, key: str) -> int | None:
    """A number of tokens; -1, which llama.cpp and LM Studio take, is no limit."""
    return -1 if fields.data.get(key) == -1 else fields.integer(key, 1, pieces.MAX_INT)


def logit_bias(fields: Fields) -> tuple[tuple[int, float], ...] | None:
    """Token ids with -100 to 100 each."""
    biases = fields.object("logit_bias")
    if len(biases.data) > MAX_BIASES:
        raise BadField(
            fields.name("logit_bias"), f"has {len(biases.data)} entries; at most {MAX_BIASES} are allowed"
        )
    return (
        tuple((_token_id(biases, key), biases.number(key, -100, 100) or 0.0) for key in biases.data) or None
    )


def _token_id(biases: Fields, key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= pieces.MAX_INT):
        raise BadField("logit_bias", f"has the key {shown(key)}, which is not a token id")
    return int(key)


def several(requests: Sequence[_R], n: int) -> _R | Batch:
    """`n` answers to each request, in OpenAI's order. Equal ones would be of no use, so a given seed counts up."""
    batch = tuple(_variant(request, place) for request in requests for place in range(n))
    if len(batch) > MAX_CHOICES:
        raise BadField("n", f"asks for {len(batch)} answers in all; at most {MAX_CHOICES} are given at once")
    return Batch(batch) if len(batch) > 1 else batch[0]


def _variant(request: _R, place: int) -> _R:
    if place == 0:
        return request
    seed = pieces.later_seed(request.sampling.seed, place)
    return replace(request, sampling=replace(request.sampling, seed=seed))


def inputs(fields: Fields, key: str) -> tuple[str | tuple[int, ...], ...]:
    """A text or token ids, or an array of either. They may be empty."""
    value = fields.data.get(key)
    if value is None:
        raise BadField(fields.name(key), "is required")
    if isinstance(value, str) or (isinstance(value, list) and value and _is_token(value[0])):
        return (_input(fields.name(key), value),)
    if not isinstance(value, list):
        raise BadField(
            fields.name(key), f"must be a string, token ids or an array of those, not {shown(value)}"
        )
    if not 1 <= len(value) <= MAX_INPUTS:
        raise BadField(fields.name(key), f"must have 1 to {MAX_INPUTS} entries, not {len(value)}")
    return tuple(_input(fields.name(f"{key}[{index}]"), item) for index, item in enumerate(value))


def _input(name: str, value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadField(name, f"must be a string or an array of token ids, not {shown(value)}")
    wrong = next((index for index, item in enumerate(value) if not _is_token(item)), None)
    if wrong is not None:
        raise BadField(f"{name}[{wrong}]", f"must be a token id, not {shown(value[wrong])}")
    return tuple(value)


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value <= pieces.MAX_INT


# ---- answers


def identifier(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def head(prefix: str, kind: str, model: str, created: float) -> dict[str, Any]:
    """What an answer begins with. In a stream it is the same in all chunks."""
    return {
        "id": identifier(prefix),
        "object": kind,
        "created": int(created),
        "model": model,
        "system_fingerprint": SYSTEM_FINGERPRINT,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _sum(requests: Sequence[TokenRequest], usages: Sequence[Usage]) -> Usage:
    """As OpenAI counts: a prompt that several choices share counts once."""
    prompts: dict[Any, Usage] = {}
    for request, usage in zip(requests, usages, strict=True):
        prompts.setdefault(request.messages if isinstance(request, ChatRequest) else request.prompt, usage)
    return Usage(
        sum(usage.prompt for usage in prompts.values()),
        sum(usage.cached for usage in prompts.values()),
        sum(usage.completion for usage in usages),
    )


def whole(
    head: Mapping[str, Any],
    requests: Sequence[TokenRequest],
    answers: Sequence[Answer],
    choice: Callable[[int, TokenRequest, Answer], dict[str, Any]],
) -> Reply:
    """A whole answer with a choice for each request."""
    ends = [answer.done for answer in answers]
    choices = [choice(index, *both) for index, both in enumerate(zip(requests, answers, strict=True))]
    usage = usage_object(_sum(requests, [end.usage for end in ends]))
    return Reply(200, to_json({**head, "choices": choices, "usage": usage, **notes(ends)}))


# ---- errors


def error_object(error: MgrError) -> dict[str, Any]:
    code = _CODES.get(error.kind)
    if isinstance(error, ModelNotFound):
        code = "model_not_found"
    elif isinstance(error, FieldNotSupported):
        code = "unsupported_parameter"
    return {
        "error": {
            "message": _words(error),
            "type": ERROR_TYPES.get(error.kind, DEFAULT_ERROR_TYPE),
            "param": error.field if isinstance(error, BadField | FieldNotSupported) else None,
            "code": code,
        }
    }


def _words(error: MgrError) -> str:
    """Programs look for OpenAI's own words about a prompt that is too long."""
    if not isinstance(error, PromptTooLong):
        return error.message
    if not error.needed:
        return "the prompt is longer than this model's maximum context length; shorten it"
    return f"This model's maximum context length is {error.available} tokens. However, {error.message}"


# ---- streams


class ChoiceEncoder(StreamEncoder):
    """A choice of a stream, and the whole stream where it is the only one."""

    def __init__(self, head: Mapping[str, Any], index: int, request: TokenRequest) -> None:
        super().__init__()
        self._head = head
        self._index = index
        self._include_usage = request.include_usage

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        return sse(to_json({**self._head, "choices": [{"index": self._index, **choice}]}))

    def _ending(self, choice: Mapping[str, Any], done: Done) -> bytes:
        return sse(to_json({**self._head, "choices": [{"index": self._index, **choice}], **notes([done])}))

    def first(self) -> bytes:
        """The chunk that begins the choice where there are several."""
        return b""

    @abstractmethod
    def last(self, done: Done) -> bytes:
        """The chunk that ends the choice."""

    def _ping(self) -> bytes:
        return sse_comment("keep-alive")

    def _end(self, done: Done) -> bytes:
        return self.last(done) + _tail(self._head, done.usage if self._include_usage else None)

    def _error(self, error: MgrError) -> bytes:
        return sse(to_json(error_object(error)))


def _tail(head: Mapping[str, Any], usage: Usage | None) -> bytes:
    """The end of a stream, whose choices have all ended."""
    if usage is None:
        return sse(b"[DONE]")
    return sse(to_json({**head, "choices": [], "usage": usage_object(usage)})) + sse(b"[DONE]")


class ManyEncoder:
    """Choices side by side in one stream. Each ends by itself; the stream ends when all have.

    They begin in their order, before any goes on: the official client's helper for streams relies on it.
    """

    def __init__(
        self,
        request: Batch,
        head: Mapping[str, Any],
        encoder: Callable[[Mapping[str, Any], int, TokenRequest], ChoiceEncoder],
    ) -> None:
        self._requests = request.requests
        self._head = head
        self._include_usage = request.requests[0].include_usage
        self._encoders = [encoder(head, index, each) for index, each in enumerate(request.requests)]
        self._firsts = b"".join([each.first() for each in self._encoders])
        self._ends: dict[int, Done] = {}
        self._ended = False

    def feed_choice(self, choice: Choice) -> bytes:
        encoder, event = self._encoders[choice.index], choice.event
        if self._ended or choice.index in self._ends:
            return b""
        if isinstance(event, Done):
            self._ends[choice.index] = event
            return self._begun(encoder.last(event))
        return self._begun(encoder.feed(event))

    def _begun(self, chunk: bytes) -> bytes:
        if not (self._firsts and chunk):
            return chunk
        firsts, self._firsts = self._firsts, b""
        return firsts + chunk

    def keep_alive(self) -> bytes:
        return b"" if self._ended else self._encoders[0].keep_alive()

    def finish(self) -> bytes:
        if len(self._ends) < len(self._requests):
            return self.fail(EngineFailed("the engine's answer broke off"))
        if self._ended:
            return b""
        self._ended = True
        usage = _sum(self._requests, [self._ends[index].usage for index in range(len(self._ends))])
        return _tail(self._head, usage if self._include_usage else None)

    def fail(self, error: MgrError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        return self._encoders[0].fail(error)


class OpenAIDialect(Dialect):
    """What no route of this API does in its own way."""

    @property
    def stream_media_type(self) -> str:
        return "text/event-stream"

    def error(self, error: MgrError) -> Reply:
        return Reply(SDK_STATUS[error.kind], to_json(error_object(error)), headers=retry_headers(error))
