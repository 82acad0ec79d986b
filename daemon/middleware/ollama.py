"""Ollama's /api/chat and /api/generate.

Source: Ollama's API documentation and the types of its server. Streams are NDJSON; durations are integer nanoseconds;
numbers that are zero are left out. Options that Ollama does not know are ignored, as it does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from daemon.chat import (
    Answer,
    Assembly,
    ChatRequest,
    CompletionRequest,
    Done,
    FinishReason,
    LoadOptions,
    LoadRequest,
    Message,
    Request,
    Sampling,
    Text,
    ThinkingDelta,
    TokenRequest,
    ToolCall,
    ToolCallDelta,
)
from daemon.errors import InvalidRequest, MgrError
from daemon.framing import Template, ndjson, to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import STATUS, Dialect, Reply, read_object, retry_headers
from daemon.middleware.encoding import StreamEncoder, arguments_object
from daemon.middleware.fields import BadField, Fields

JSON = "application/json; charset=utf-8"
NDJSON = "application/x-ndjson"
MIN_WINDOW = 4

# Fields that are not built, with the values that mean "off".
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "format": ("",),
    "think": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "_debug_render_only": (False,),
}
_UNBUILT_CHAT: Mapping[str, tuple[Any, ...]] = {**_UNBUILT, "tools": ([],)}
_UNBUILT_GENERATE: Mapping[str, tuple[Any, ...]] = {
    **_UNBUILT,
    "suffix": ("",),
    "template": ("",),
    "context": ([],),
    "images": ([],),
}
_UNBUILT_MESSAGE: Mapping[str, tuple[Any, ...]] = {"images": ([],), "tool_calls": ([],)}

_DONE_REASON: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",
}


# ---- requests


def _chat(fields: Fields) -> Request:
    fields.refuse_unbuilt(_UNBUILT_CHAT)
    target = _Target.read(fields)
    messages = tuple(_message(item) for item in pieces.messages(fields))
    return target.chat(messages) if messages else target.load_only()


def _generate(fields: Fields) -> Request:
    raw = fields.boolean("raw")
    if raw and any(fields.data.get(key) for key in ("template", "system", "context")):
        raise InvalidRequest("raw mode does not support template, system, or context")
    fields.refuse_unbuilt(_UNBUILT_GENERATE)
    target = _Target.read(fields)
    system, prompt = fields.string("system"), fields.string("prompt")
    if not prompt:
        return target.load_only()
    if raw:
        return target.completion(prompt)
    user = Message("user", (Text(prompt),))
    return target.chat((Message("system", (Text(system),)), user) if system else (user,))


def _message(fields: Fields) -> Message:
    fields.refuse_unbuilt(_UNBUILT_MESSAGE)
    role, content = pieces.role(fields), fields.string("content")
    parts = () if content is None else (Text(content),)
    return Message(role, parts, thinking=fields.string("thinking") or None)


@dataclass(frozen=True, slots=True)
class _Target:
    """What both routes read in the same way."""

    model: str
    keep_alive: float | None
    load: LoadOptions
    sampling: Sampling
    stream: bool

    @classmethod
    def read(cls, fields: Fields) -> "_Target":
        # A prompt that does not fit is refused, never cut: that is `truncate: false`, for now whatever is asked.
        for key in ("truncate", "shift"):
            fields.boolean(key)
        sampling, load = _options(fields.object("options"))
        return cls(
            model=pieces.model(fields),
            keep_alive=pieces.keep_alive(fields),
            load=load,
            sampling=sampling,
            stream=fields.boolean("stream") is not False,
        )

    def load_only(self) -> LoadRequest:
        return LoadRequest(model=self.model, load=self.load, keep_alive=self.keep_alive)

    def chat(self, messages: tuple[Message, ...]) -> ChatRequest:
        return ChatRequest(
            model=self.model,
            load=self.load,
            keep_alive=self.keep_alive,
            messages=messages,
            sampling=self.sampling,
            stream=self.stream,
        )

    def completion(self, prompt: str) -> CompletionRequest:
        return CompletionRequest(
            model=self.model,
            load=self.load,
            keep_alive=self.keep_alive,
            prompt=prompt,
            sampling=self.sampling,
            stream=self.stream,
        )


def read_options(parameters: Mapping[str, Any]) -> tuple[Sampling, LoadOptions]:
    """The options that a model brings along, stored under the names that `options` of a request has.

    Raises InvalidRequest.
    """
    return _options(Fields(parameters, "the model's parameter "))


def read_message(message: Mapping[str, Any]) -> Message:
    """A message that a model brings along. Raises InvalidRequest or NotSupported."""
    return _message(Fields(message, "the model's message "))


def _options(options: Fields) -> tuple[Sampling, LoadOptions]:
    sampling = pieces.sampling(options, max_tokens=_num_predict(options), max_temperature=100)
    return sampling, _load_options(options)


def _num_predict(options: Fields) -> int | None:
    count = options.integer("num_predict", -pieces.MAX_INT, pieces.MAX_INT)
    if count == 0:
        raise BadField(options.name("num_predict"), "must be at least 1, or -1 for no limit, not 0")
    return count if count is None else max(count, -1)


def _load_options(options: Fields) -> LoadOptions:
    """Zero, and for num_gpu -1, is "automatic"."""
    window = options.integer("num_ctx", 0, pieces.MAX_WINDOW)
    gpu_layers = options.integer("num_gpu", -1, 100_000)
    return LoadOptions(
        window=max(window, MIN_WINDOW) if window else None,
        gpu_layers=None if gpu_layers == -1 else gpu_layers,
        threads=options.integer("num_thread", 0, 1024) or None,
        batch=options.integer("num_batch", 0, 65_536) or None,
        main_gpu=options.integer("main_gpu", 0, 1023),
        mmap=options.boolean("use_mmap"),
    )


# ---- answers


class _Shape(Protocol):
    """How a route writes a piece of an answer."""

    def __call__(
        self, text: str, thinking: str = "", calls: Sequence[ToolCall] = (), /
    ) -> dict[str, Any]: ...


def _as_message(text: str, thinking: str = "", calls: Sequence[ToolCall] = (), /) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text, **_extras(thinking, calls)}}


def _as_response(text: str, thinking: str = "", calls: Sequence[ToolCall] = (), /) -> dict[str, Any]:
    return {"response": text, **_extras(thinking, calls)}


def _extras(thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    extras: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if calls:
        extras["tool_calls"] = [
            {
                "id": call.id,
                "function": {"index": i, "name": call.name, "arguments": arguments_object(call.arguments)},
            }
            for i, call in enumerate(calls)
        ]
    return extras


def _head(model: str, created_at: str) -> dict[str, Any]:
    return {"model": model, "created_at": created_at}


def _moment(when: float) -> str:
    second = int(when)
    return f"{_second(second)}{_fraction(when - second)}"


def _second(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}."


def _fraction(fraction: float) -> str:
    return f"{int(fraction * 1e9):09d}Z"


def _tail(done: Done) -> dict[str, Any]:
    """`prompt_eval_count` includes what came from the cache."""
    numbers = {
        "total_duration": round(done.timings.total * 1e9),
        "load_duration": round(done.timings.load * 1e9),
        "prompt_eval_count": done.usage.prompt,
        "prompt_eval_duration": round(done.timings.prompt * 1e9),
        "eval_count": done.usage.completion,
        "eval_duration": round(done.timings.generation * 1e9),
    }
    reason = _DONE_REASON[done.reason]
    return {"done": True, "done_reason": reason} | {key: value for key, value in numbers.items() if value}


class _Encoder(StreamEncoder):
    """Tool calls are held back for the last line, as their arguments must be whole objects."""

    def __init__(self, model: str, shape: _Shape, clock: Callable[[], float]) -> None:
        super().__init__()
        self._model = model
        self._shape = shape
        self._clock = clock
        self._calls = Assembly()
        self._second, self._before = 0, b""
        self._template = Template(lambda text: ndjson(shape(text) | {"done": False})[1:])

    def _line(self, piece: dict[str, Any], tail: dict[str, Any]) -> bytes:
        return ndjson(_head(self._model, _moment(self._clock())) | piece | tail)

    def _text(self, text: str) -> bytes:
        when = self._clock()
        if int(when) != self._second:
            self._second = int(when)
            self._before = to_json(_head(self._model, _second(self._second)))[: -len('"}')]
        moment = _fraction(when - self._second).encode()
        return b'%b%b",%b' % (self._before, moment, self._template.fill(text))

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return self._line(self._shape("", delta.text), {"done": False})

    def _call(self, delta: ToolCallDelta) -> bytes:
        self._calls.feed(delta)
        return b""

    def _ping(self) -> bytes:
        # Not a blank line: the official Python client parses every line as JSON.
        return self._line(self._shape(""), {"done": False})

    def _end(self, done: Done) -> bytes:
        self._calls.feed(done)
        return self._line(self._shape("", "", self._calls.answer().tool_calls), _tail(done))

    def _error(self, error: MgrError) -> bytes:
        return ndjson({"error": error.message})


@dataclass(frozen=True, slots=True)
class OllamaDialect(Dialect):
    """One of Ollama's routes. `clock` gives the wall-clock time that each line of a stream shows."""

    read: Callable[[Fields], Request]
    shape: _Shape
    clock: Callable[[], float] = time.time

    @property
    def defaults(self) -> Sampling:
        return Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.0)

    @property
    def stream_media_type(self) -> str:
        return NDJSON

    def parse(self, body: bytes) -> Request:
        return self.read(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return _Encoder(request.model, self.shape, self.clock)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        piece = self.shape(answer.text, answer.thinking, answer.tool_calls)
        return Reply(200, to_json(_head(request.model, _moment(created)) | piece | _tail(answer.done)), JSON)

    def loaded(self, request: LoadRequest, created: float) -> Reply:
        tail = {"done": True, "done_reason": "unload" if request.keep_alive == 0 else "load"}
        return Reply(200, to_json(_head(request.model, _moment(created)) | self.shape("") | tail), JSON)

    def error(self, error: MgrError) -> Reply:
        body = to_json({"error": error.message})
        return Reply(STATUS[error.kind], body, JSON, retry_headers(error))


CHAT = OllamaDialect(_chat, _as_message)
GENERATE = OllamaDialect(_generate, _as_response)
