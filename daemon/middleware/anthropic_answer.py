"""The forms of Anthropic's answers: the message, whole or as the events of a stream, and the error.

Source: Anthropic's API reference and the types of its Python SDK.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from daemon.chat import Answer, Done, FinishReason, Progress, ThinkingDelta, ToolCallDelta, Usage
from daemon.errors import Kind, MgrError, PromptTooLong
from daemon.framing import Template, quoted, sse, to_json
from daemon.middleware.dialect import DEFAULT_ERROR_TYPE, ERROR_TYPES
from daemon.middleware.encoding import StreamEncoder, arguments_object, notes

# Clients send a block of thinking back only with a signature. Anthropic's proves where it comes from; here nobody asks.
SIGNATURE = "bWdyOm5vdC1zaWduZWQ="

_TYPES: Mapping[Kind, str] = {
    **ERROR_TYPES,
    Kind.TOO_LARGE: "request_too_large",
    Kind.BUSY: "overloaded_error",
    Kind.TIMEOUT: "timeout_error",
}

_STOP_REASON: Mapping[FinishReason, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}


def error_object(error: MgrError) -> dict[str, Any]:
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


def message_object(model: str, answer: Answer) -> dict[str, Any]:
    done = answer.done
    return _envelope(model, _blocks(answer), _stop(done), done.usage) | notes([done])


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.thinking:
        blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": SIGNATURE})
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


def _envelope(model: str, content: list[Any], stop: Mapping[str, str | None], usage: Usage) -> dict[str, Any]:
    head = {"id": _identifier("msg"), "type": "message", "role": "assistant", "model": model}
    return head | {"content": content, **stop, "usage": _usage(usage)}


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


# ---- the stream


def _event(kind: str, **values: Any) -> bytes:
    return sse(to_json({"type": kind, **values}), kind)


class MessageEncoder(StreamEncoder):
    """The message starts with its first content. At most one block is open: "text", "thinking" or a call's index."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._prompt = Usage()
        self._started = False
        self._open: str | int | None = None
        self._index = -1
        self._template: Template  # of the open block's deltas

    def _progress(self, event: Progress) -> None:
        self._prompt = Usage(prompt=event.total, cached=event.cached)

    def feed_quoted(self, text: bytes) -> bytes:
        if self._open == "text":
            return self._template.fill(text)
        opening = self._enter("text", {"type": "text", "text": ""}, "text_delta", "text")
        return opening + self._template.fill(text)

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        start = {"type": "thinking", "thinking": "", "signature": ""}
        opening = self._enter("thinking", start, "thinking_delta", "thinking")
        return opening + self._template.fill(quoted(delta.text))

    def _call(self, delta: ToolCallDelta) -> bytes:
        start = {"type": "tool_use", "id": delta.id or "", "name": delta.name or "", "input": {}}
        opening = self._enter(delta.index, start, "input_json_delta", "partial_json")
        return opening + (self._template.fill(quoted(delta.arguments)) if delta.arguments else b"")

    def _enter(self, block: str | int, start: dict[str, Any], delta: str, key: str) -> bytes:
        """Opens `block` if it is not open yet; the texts of its deltas stand at `key`."""
        if block == self._open:
            return b""
        before = self._start() + self._close()
        self._open = block
        self._index += 1
        self._template = Template(lambda text: self._delta({"type": delta, key: text}))
        return before + _event("content_block_start", index=self._index, content_block=start)

    def _delta(self, delta: Mapping[str, str]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._open == "thinking"
        self._open = None
        signature = self._delta({"type": "signature_delta", "signature": SIGNATURE}) if signed else b""
        return signature + _event("content_block_stop", index=self._index)

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
        last = _event("message_delta", delta=_stop(done), usage=_usage(done.usage), **notes([done]))
        return before + last + _event("message_stop")

    def _error(self, error: MgrError) -> bytes:
        return sse(to_json(error_object(error)), "error")
