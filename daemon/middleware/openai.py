"""OpenAI's /v1/chat/completions.

Source: OpenAI's API reference and the types of its Python SDK. Beside its own options the route takes those of
chat.Sampling and `keep_alive`, as extra fields; fields it does not know are ignored.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from daemon.chat import (
    Answer,
    ChatRequest,
    Done,
    Message,
    Request,
    Text,
    ThinkingDelta,
    TokenRequest,
    ToolCallDelta,
    Usage,
)
from daemon.errors import Kind, MgrError, ModelNotFound
from daemon.framing import Template, sse, sse_comment, to_json
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
from daemon.middleware.encoding import StreamEncoder
from daemon.middleware.fields import BadField, FieldNotSupported, Fields

SYSTEM_FINGERPRINT = "fp_mgr"

# Fields that are not built, with the values that mean "off".
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "think": (False,),
    "reasoning": ({}, {"effort": "none"}),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
}
_UNBUILT_MESSAGE: Mapping[str, tuple[Any, ...]] = {"tool_calls": ([],), "function_call": (), "audio": ()}


# ---- requests


def _chat(fields: Fields) -> ChatRequest:
    fields.refuse_unbuilt(_UNBUILT)
    fields.refuse_unbuilt_types({"response_format": ("text",)})
    if (fields.integer("n", 1, 128) or 1) > 1:
        raise FieldNotSupported("n", "above 1 is not supported; send the request once for each answer")
    messages = tuple(_message(item) for item in pieces.messages(fields))
    if not messages:
        raise BadField("messages", "must hold at least one message")
    stream = fields.boolean("stream") is True
    include_usage = fields.object("stream_options").boolean("include_usage") is True
    return ChatRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        messages=messages,
        sampling=pieces.sampling(fields, max_tokens=_max_tokens(fields)),
        stream=stream,
        include_usage=include_usage or not stream,
    )


def _max_tokens(fields: Fields) -> int | None:
    """`max_tokens` is the older name; of two limits both hold."""
    limits = [fields.integer(key, 1, pieces.MAX_INT) for key in ("max_completion_tokens", "max_tokens")]
    return min((limit for limit in limits if limit is not None), default=None)


def _message(fields: Fields) -> Message:
    fields.refuse_unbuilt(_UNBUILT_MESSAGE)
    role = pieces.role(fields)
    text = _content(fields)
    if text is None and role == "assistant":
        text = fields.string("refusal")
    elif text is None:
        raise BadField(fields.name("content"), "is required")
    return Message(
        role,
        () if text is None else (Text(text),),
        thinking=fields.string("reasoning_content") or fields.string("reasoning") or None,
        name=fields.string("name"),
    )


def _content(fields: Fields) -> str | None:
    if isinstance(fields.data.get("content"), list):
        return "".join(_part(part) for part in fields.objects("content"))
    return fields.string("content")


def _part(part: Fields) -> str:
    kind = part.required("type")
    if kind in {"text", "refusal"}:
        return part.required(kind)
    raise pieces.unbuilt_kind(part)


# ---- answers


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _head(kind: str, model: str, created: float) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(created),
        "model": model,
        "system_fingerprint": SYSTEM_FINGERPRINT,
    }


def _error_object(error: MgrError) -> dict[str, Any]:
    codes = {Kind.TOO_LONG: "context_length_exceeded", Kind.UNAUTHORIZED: "invalid_api_key"}
    code = "model_not_found" if isinstance(error, ModelNotFound) else codes.get(error.kind)
    return {
        "error": {
            "message": error.message,
            "type": ERROR_TYPES.get(error.kind, DEFAULT_ERROR_TYPE),
            "param": error.field if isinstance(error, BadField | FieldNotSupported) else None,
            "code": code,
        }
    }


class _Encoder(StreamEncoder):
    """The id and time are the same in all chunks; the role comes with the first one only."""

    def __init__(self, model: str, include_usage: bool, created: float) -> None:
        super().__init__()
        self._head = _head("chat.completion.chunk", model, created)
        self._include_usage = include_usage
        self._role = {"role": "assistant"}
        self._template = Template(lambda text: sse(to_json(self._body({"content": text}))))

    def _body(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return self._head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        role, self._role = self._role, {}
        return sse(to_json(self._body(role | delta, finish_reason)))

    def _text(self, text: str) -> bytes:
        return self._chunk({"content": text}) if self._role else self._template.fill(text)

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return self._chunk({"reasoning_content": delta.text})

    def _call(self, delta: ToolCallDelta) -> bytes:
        return self._chunk({"tool_calls": [_call_delta(delta)]})

    def _ping(self) -> bytes:
        return sse_comment("keep-alive")

    def _end(self, done: Done) -> bytes:
        last = self._chunk({"content": ""} if self._role else {}, done.reason)
        if self._include_usage:
            last += sse(to_json(self._head | {"choices": [], "usage": _usage(done.usage)}))
        return last + sse(b"[DONE]")

    def _error(self, error: MgrError) -> bytes:
        return sse(to_json(_error_object(error)))


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    function = {"name": delta.name} if delta.name is not None else {}
    first = {"id": delta.id, "type": "function"} if delta.id is not None else {}
    return {"index": delta.index, **first, "function": function | {"arguments": delta.arguments}}


class OpenAIDialect(Dialect):
    @property
    def stream_media_type(self) -> str:
        return "text/event-stream"

    def parse(self, body: bytes) -> Request:
        return _chat(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return _Encoder(request.model, request.include_usage, created)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.tool_calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.tool_calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": answer.done.reason}
        head = _head("chat.completion", request.model, created)
        return Reply(200, to_json(head | {"choices": [choice], "usage": _usage(answer.done.usage)}))

    def error(self, error: MgrError) -> Reply:
        body = to_json(_error_object(error))
        return Reply(SDK_STATUS[error.kind], body, headers=retry_headers(error))


CHAT = OpenAIDialect()
