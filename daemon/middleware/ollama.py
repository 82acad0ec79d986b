"""Ollama's /api/chat and /api/generate.

Source: Ollama's API documentation and the types of its server. `ollama_stream.py` writes the answers,
`ollama_options.py` reads what these routes share with `ollama_embed.py`. `tool_choice` is mgr's own, in OpenAI's shape.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from daemon.chat import (
    Answer,
    Audio,
    ChatRequest,
    CompletionRequest,
    Image,
    JsonFormat,
    LoadRequest,
    Message,
    Request,
    Sampling,
    Text,
    TokenRequest,
    ToolCall,
)
from daemon.errors import InvalidRequest, MgrError
from daemon.framing import to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import Dialect, Encoder, Reply, read_object
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown
from daemon.middleware.media import media
from daemon.middleware.ollama_embed import EMBED, EMBEDDINGS
from daemon.middleware.ollama_options import Target, read_options
from daemon.middleware.ollama_stream import (
    JSON,
    NDJSON,
    OllamaEncoder,
    Shape,
    as_message,
    as_response,
    error_reply,
    head,
    scores,
    tail,
)
from daemon.middleware.tooling import tool_calls, tool_choice, tools

__all__ = ["CHAT", "EMBED", "EMBEDDINGS", "GENERATE", "JSON", "NDJSON", "read_message", "read_options"]

_UNBUILT: Mapping[str, tuple[Any, ...]] = {"_debug_render_only": (False,)}

MAX_TOP_LOGPROBS = 20


# ---- requests


def _chat(fields: Fields) -> Request:
    question = _Question.read(fields)
    messages = _messages(fields)
    if not messages:
        return question.target.load_only()
    offered = tools(fields)
    return replace(question.chat(messages), tools=offered, tool_choice=tool_choice(fields, offered))


def _generate(fields: Fields) -> Request:
    raw = fields.boolean("raw")
    if raw and any(fields.data.get(key) for key in ("template", "system", "context")):
        raise InvalidRequest("raw mode does not support template, system, or context")
    if fields.string("template"):
        raise FieldNotSupported("template", "is not supported; create a model with that TEMPLATE and ask it")
    question = _Question.read(fields)
    prompt, suffix = fields.string("prompt") or "", fields.string("suffix")
    images = _images(fields)
    if not prompt and not suffix and not images:
        return question.target.load_only()
    if suffix:
        _refuse_beside_suffix(fields)
    if raw or suffix:
        return replace(question.completion(prompt), suffix=suffix or None, images=images)
    return _conversation(fields, question, Message("user", _parts(prompt, images)))


def _conversation(fields: Fields, question: "_Question", turn: Message) -> ChatRequest:
    """A chat of one turn, and what was before it as tokens; these do not exist for images."""
    system, context = fields.string("system"), _context(fields)
    shows_more = any(not isinstance(part, Text) for part in turn.parts)
    if context and shows_more:
        raise FieldNotSupported(
            "context", "is not supported beside images; send the conversation to /api/chat"
        )
    messages = (Message("system", (Text(system),)), turn) if system else (turn,)
    return replace(question.chat(messages), context=context, wants_context=not shows_more)


def _refuse_beside_suffix(fields: Fields) -> None:
    """The engine fills in between two texts, nothing else. A system prompt has no place there, in Ollama neither."""
    for key in ("images", "context"):
        if fields.data.get(key):
            raise FieldNotSupported(key, "is not supported together with suffix; leave one of them out")


@dataclass(frozen=True, slots=True)
class _Question:
    """What both routes read in the same way."""

    target: Target
    stream: bool
    truncate: bool
    format: JsonFormat | None
    thinking: bool | str | None

    @classmethod
    def read(cls, fields: Fields) -> Self:
        fields.refuse_unbuilt(_UNBUILT)
        # mgr never shifts a window that is full: an answer ends there, and says so.
        fields.boolean("shift")
        target = Target.read(fields)
        return cls(
            target=replace(target, sampling=_with_logprobs(fields, target.sampling)),
            stream=fields.boolean("stream") is not False,
            truncate=fields.boolean("truncate") is not False,
            format=_format(fields),
            thinking=pieces.thinking(fields, "think"),
        )

    def chat(self, messages: tuple[Message, ...]) -> ChatRequest:
        return ChatRequest(
            model=self.target.model,
            load=self.target.load,
            keep_alive=self.target.keep_alive,
            sampling=self.target.sampling,
            messages=messages,
            stream=self.stream,
            format=self.format,
            thinking=self.thinking,
            truncate=self.truncate,
        )

    def completion(self, prompt: str) -> CompletionRequest:
        """`think` says nothing here: what a raw model thinks is part of its text."""
        return CompletionRequest(
            model=self.target.model,
            load=self.target.load,
            keep_alive=self.target.keep_alive,
            sampling=self.target.sampling,
            prompt=prompt,
            stream=self.stream,
            format=self.format,
            truncate=self.truncate,
        )


def _with_logprobs(fields: Fields, sampling: Sampling) -> Sampling:
    top = fields.integer("top_logprobs", -pieces.MAX_INT, pieces.MAX_INT)
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise BadField("top_logprobs", f"must be between 0 and {MAX_TOP_LOGPROBS}")
    if not fields.boolean("logprobs"):
        return sampling
    return replace(sampling, logprobs=True, top_logprobs=top or None)


def _format(fields: Fields) -> JsonFormat | None:
    match fields.data.get("format"):
        case None | "":
            return None
        case "json":
            return JsonFormat()
        case dict() as schema:
            return JsonFormat(schema)
        case other:
            raise InvalidRequest(
                f'invalid format: {shown(other)}; expected "json" or a valid JSON Schema object'
            )


def _context(fields: Fields) -> tuple[int, ...] | None:
    value = fields.data.get("context")
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        type(token) is int and 0 <= token <= pieces.MAX_INT for token in value
    ):
        raise BadField("context", "must be an array of token ids, as an earlier answer gave it")
    return tuple(value) or None


# ---- messages


def read_message(message: Mapping[str, Any]) -> Message:
    """A message that a model brings along. Raises InvalidRequest or NotSupported."""
    return _message(Fields(message, "the model's message "))


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    waiting: list[ToolCall] = []
    for item in pieces.messages(fields):
        message = _message(item)
        if message.tool_calls:
            waiting = [*message.tool_calls]
        messages.append(_matched(message, waiting) if message.role == "tool" else message)
    return tuple(messages)


def _message(fields: Fields) -> Message:
    role = pieces.role(fields)
    return Message(
        role=role,
        parts=_parts(fields.string("content") or "", _images(fields)),
        thinking=fields.string("thinking") or None,
        tool_calls=tool_calls(fields),
        tool_call_id=fields.string("tool_call_id") or None,
        name=fields.string("tool_name") or fields.string("name") if role == "tool" else None,
    )


def _parts(text: str, images: tuple[Image | Audio, ...]) -> tuple[Image | Audio | Text, ...]:
    """Images come first, as Ollama puts them before a message's text."""
    return (*images, Text(text)) if text else images


def _images(fields: Fields) -> tuple[Image | Audio, ...]:
    """Sound comes in the same field."""
    return tuple(
        media(fields.name(f"images[{index}]"), data)
        for index, data in enumerate(fields.strings("images") or ())
    )


def _matched(result: Message, waiting: list[ToolCall]) -> Message:
    """A tool's result with the id and name of the call it answers, which waits no longer.

    That is the call with its id; a result without one answers the first call to its tool, else the first call.
    """
    if result.tool_call_id:
        fitting = [call for call in waiting if call.id == result.tool_call_id]
    else:
        fitting = [call for call in waiting if call.name == result.name] or waiting
    if not fitting:
        return result
    call = fitting[0]
    waiting.remove(call)
    return replace(result, tool_call_id=call.id, name=result.name or call.name)


# ---- answers


@dataclass(frozen=True, slots=True)
class OllamaDialect(Dialect):
    """One of Ollama's routes that write text. `clock` gives the wall-clock time that each line of a stream shows."""

    read: Callable[[Fields], Request]
    shape: Shape
    clock: Callable[[], float] = time.time

    @property
    def defaults(self) -> Sampling:
        return Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.0)

    @property
    def strict_thinking(self) -> bool:
        return True

    @property
    def stream_media_type(self) -> str:
        return NDJSON

    def parse(self, body: bytes) -> Request:
        return self.read(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> Encoder:
        return OllamaEncoder(request.model, self.shape, self.clock)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        piece = self.shape(answer.text, answer.thinking, enumerate(answer.tool_calls))
        end = tail(answer.done) | scores(answer.logprobs)
        return Reply(200, to_json(head(request.model, created) | piece | end), JSON)

    def loaded(self, request: LoadRequest, created: float) -> Reply:
        end = {"done": True, "done_reason": "unload" if request.keep_alive == 0 else "load"}
        return Reply(200, to_json(head(request.model, created) | self.shape("") | end), JSON)

    def error(self, error: MgrError) -> Reply:
        return error_reply(error)


CHAT = OllamaDialect(_chat, as_message)
GENERATE = OllamaDialect(_generate, as_response)
