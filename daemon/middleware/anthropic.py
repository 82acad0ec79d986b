"""Anthropic's /v1/messages.

Source: Anthropic's API reference and the types of its Python SDK. Beside its own options the route takes those of
chat.Sampling and `keep_alive`, as extra fields; fields it does not know are ignored. The reader is lenient: new
versions of clients bring new fields before they are documented. Temperatures up to 2 are accepted, as elsewhere.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from daemon.chat import (
    Answer,
    ChatRequest,
    Done,
    FinishReason,
    Message,
    Progress,
    Request,
    Text,
    ThinkingDelta,
    TokenRequest,
    ToolCallDelta,
    Usage,
)
from daemon.errors import Kind, MgrError, PromptTooLong
from daemon.framing import Template, sse, to_json
from daemon.middleware import request as pieces
from daemon.middleware.dialect import (
    DEFAULT_ERROR_TYPE,
    ERROR_TYPES,
    SDK_STATUS,
    Dialect,
    Reply,
    read_object,
    retry_headers,
)
from daemon.middleware.encoding import StreamEncoder, arguments_object
from daemon.middleware.fields import BadField, FieldNotSupported, Fields

# Fields that are not built, with the values that mean "off"; then objects, with the types that do.
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "mcp_servers": ([],),
    "container": (),
    "output_config": ({},),
    "output_format": (),
    "compaction": (),
    "thread": (),
}
_BUILT_TYPES: Mapping[str, tuple[str, ...]] = {"tool_choice": ("auto", "none"), "thinking": ("disabled",)}

_TYPES: Mapping[Kind, str] = {
    **ERROR_TYPES,
    Kind.TOO_LARGE: "request_too_large",
    Kind.BUSY: "overloaded_error",
}

_STOP_REASON: Mapping[FinishReason, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}


# ---- requests


def _messages(fields: Fields) -> ChatRequest:
    fields.refuse_unbuilt(_UNBUILT)
    fields.refuse_unbuilt_types(_BUILT_TYPES)
    turns = [_message(item) for item in pieces.messages(fields)]
    if not turns:
        raise BadField("messages", "must hold at least one message")
    if turns[-1].role == "assistant":
        place = f"messages[{len(turns) - 1}]"
        raise FieldNotSupported(
            place, "starts the answer, which is not supported; end with a message of the user"
        )
    system, _ = _content(fields, "system")
    if system:
        turns.insert(0, Message("system", (Text(system),)))
    return ChatRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        messages=tuple(turns),
        sampling=pieces.sampling(fields, max_tokens=_max_tokens(fields), stop="stop_sequences"),
        stream=fields.boolean("stream") is True,
    )


def _max_tokens(fields: Fields) -> int:
    count = fields.integer("max_tokens", -pieces.MAX_INT, pieces.MAX_INT)
    if count is None or count < 1:
        raise BadField("max_tokens", "is required and must be positive")
    return count


def _message(fields: Fields) -> Message:
    """A system message among the others stays where it is."""
    role = pieces.role(fields)
    text, thinking = _content(fields, "content")
    if text is None:
        raise BadField(fields.name("content"), "is required")
    return Message(role, (Text(text),), thinking=thinking or None)


def _content(fields: Fields, key: str) -> tuple[str | None, str]:
    """Text and thinking of a string or an array of blocks."""
    if not isinstance(fields.data.get(key), list):
        return fields.string(key), ""
    text: list[str] = []
    thinking: list[str] = []
    for block in fields.objects(key):
        match block.required("type"):
            case "text":
                text.append(block.required("text"))
            case "thinking":
                thinking.append(block.required("thinking"))
            case "redacted_thinking":
                pass  # only its author can read it
            case _:
                raise pieces.unbuilt_kind(block)
    return "".join(text), "".join(thinking)


# ---- answers


def _identifier(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _usage(usage: Usage) -> dict[str, int]:
    """The three kinds of input add up to the prompt."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def _stop(done: Done) -> dict[str, str | None]:
    matched = done.stop_sequence if done.reason is FinishReason.STOP else None
    reason = "stop_sequence" if matched is not None else _STOP_REASON[done.reason]
    return {"stop_reason": reason, "stop_sequence": matched}


def _envelope(model: str, content: list[Any], stop: Mapping[str, str | None], usage: Usage) -> dict[str, Any]:
    head = {"id": _identifier("msg"), "type": "message", "role": "assistant", "model": model}
    return head | {"content": content, **stop, "usage": _usage(usage)}


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.thinking:
        blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    blocks.extend(
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": arguments_object(call.arguments),
        }
        for call in answer.tool_calls
    )
    return blocks


def _error_object(error: MgrError) -> dict[str, Any]:
    kind = _TYPES.get(error.kind, DEFAULT_ERROR_TYPE)
    return {
        "type": "error",
        "error": {"type": kind, "message": _words(error)},
        "request_id": _identifier("req"),
    }


def _words(error: MgrError) -> str:
    """Clients look for "prompt is too long", and for the two numbers behind it."""
    if isinstance(error, PromptTooLong):
        counts = f": {error.needed} tokens > {error.available} maximum" if error.needed else ""
        return f"prompt is too long{counts}"
    return error.message


def _event(kind: str, **values: Any) -> bytes:
    return sse(to_json({"type": kind, **values}), kind)


class _Encoder(StreamEncoder):
    """The message starts with its first content. At most one block is open: "text", "thinking" or a call's index."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._prompt = Usage()
        self._started = False
        self._open: str | int | None = None
        self._index = -1
        self._template: Template  # of the block of text that is open

    def _progress(self, event: Progress) -> None:
        self._prompt = Usage(prompt=event.total, cached=event.cached)

    def _text(self, text: str) -> bytes:
        if self._open == "text":
            return self._template.fill(text)
        opening = self._enter("text", {"type": "text", "text": ""})
        self._template = self._text_template()
        return opening + self._template.fill(text)

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        opening = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opening + self._piece({"type": "thinking_delta", "thinking": delta.text})

    def _call(self, delta: ToolCallDelta) -> bytes:
        call = {"type": "tool_use", "id": delta.id or "", "name": delta.name or "", "input": {}}
        opening = self._enter(delta.index, call)
        if not delta.arguments:
            return opening
        return opening + self._piece({"type": "input_json_delta", "partial_json": delta.arguments})

    def _enter(self, block: str | int, start: dict[str, Any]) -> bytes:
        if block == self._open:
            return b""
        before = self._start() + self._close()
        self._open = block
        self._index += 1
        return before + _event("content_block_start", index=self._index, content_block=start)

    def _text_template(self) -> Template:
        """Of the block that is open now."""
        return Template(lambda text: self._piece({"type": "text_delta", "text": text}))

    def _piece(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        stop = {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=_envelope(self._model, [], stop, self._prompt))

    def _ping(self) -> bytes:
        return _event("ping")

    def _end(self, done: Done) -> bytes:
        before = self._start() + self._close()
        return (
            before
            + _event("message_delta", delta=_stop(done), usage=_usage(done.usage))
            + _event("message_stop")
        )

    def _error(self, error: MgrError) -> bytes:
        return sse(to_json(_error_object(error)), "error")


class AnthropicDialect(Dialect):
    @property
    def stream_media_type(self) -> str:
        return "text/event-stream"

    def parse(self, body: bytes) -> Request:
        return _messages(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return _Encoder(request.model)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        message = _envelope(request.model, _blocks(answer), _stop(answer.done), answer.done.usage)
        return Reply(200, to_json(message))

    def error(self, error: MgrError) -> Reply:
        body = to_json(_error_object(error))
        return Reply(SDK_STATUS[error.kind], body, headers=retry_headers(error))


MESSAGES = AnthropicDialect()
