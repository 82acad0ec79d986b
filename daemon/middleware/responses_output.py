"""What an answer of /v1/responses consists of: the response object and the items of its output.

Source: the types of OpenAI's Python SDK (openai.types.responses). Fields that mgr has nothing to say about are null.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.chat import Message, Text, ToolCall, Usage
from daemon.errors import Kind, MgrError
from daemon.middleware.responses_input import ENCRYPTED
from daemon.middleware.responses_request import ResponsesRequest

IN_PROGRESS = "in_progress"

_NULLS = (
    "access_programs",
    "completed_at",
    "conversation",
    "error",
    "image",
    "incomplete_details",
    "input_transformations",
    "moderation",
    "prompt",
    "prompt_cache_diagnostics",
    "prompt_cache_options",
    "prompt_cache_retention",
    "tool_usage",
    "usage",
)

# A failed response knows few codes; the `error` event before it has the precise one.
_CODES: Mapping[Kind, str] = {
    Kind.INVALID: "invalid_prompt",
    Kind.TOO_LONG: "invalid_prompt",
    Kind.NOT_SUPPORTED: "invalid_prompt",
    Kind.BUSY: "rate_limit_exceeded",
}


# ---- the response object


def response_object(request: ResponsesRequest, created: float) -> dict[str, Any]:
    """The object at its beginning."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(created),
        "status": IN_PROGRESS,
        "model": request.model,
        "output": [],
        "background": False,
        **dict.fromkeys(_NULLS),
        "store": request.store,
        **request.echo,
    }


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """The engine does not count thinking apart, so `reasoning_tokens` is always 0."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def failure(error: MgrError) -> dict[str, Any]:
    return {"code": _CODES.get(error.kind, "server_error"), "message": error.message}


# ---- items of the output, and their parts


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


def thinking_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def summary_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def message_item(key: str, status: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"id": key, "type": "message", "role": "assistant", "status": status, "content": [*parts]}


def thinking_item(key: str, status: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`parts` are of one type, "reasoning_text" or "summary_text"."""
    summaries = [part for part in parts if part["type"] == "summary_text"]
    texts = [part for part in parts if part["type"] == "reasoning_text"]
    return {"id": key, "type": "reasoning", "status": status, "summary": summaries, "content": texts}


def encrypted_item(key: str, status: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**thinking_item(key, status, parts), "encrypted_content": ENCRYPTED + _texts(parts)}


def call_item(key: str, status: str, call: ToolCall) -> dict[str, Any]:
    head = {"id": key, "type": "function_call", "status": status}
    return {**head, "call_id": call.id, "name": call.name, "arguments": call.arguments}


def score(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token with its log probability and its alternatives, each with all fields that the API requires."""
    alternatives = [_token(each) for each in entry.get("top_logprobs") or ()]
    return {**_token(entry), "top_logprobs": alternatives}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    token = entry["token"]
    return {"token": token, "logprob": entry["logprob"], "bytes": entry.get("bytes") or [*token.encode()]}


# ---- and back to the canonical form


def remembered(conversation: tuple[Message, ...], output: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The conversation with its answer. An assistant's turn at its end was a beginning, which the answer went on."""
    answer = _turn(output)
    last = conversation[-1]
    if last.role != "assistant" or last.tool_calls:
        return (*conversation, answer)
    thinking = (last.thinking or "") + (answer.thinking or "") or None
    whole = Message("assistant", last.parts + answer.parts, thinking, answer.tool_calls)
    return (*conversation[:-1], whole)


def _turn(output: Sequence[Mapping[str, Any]]) -> Message:
    text = thinking = ""
    calls: list[ToolCall] = []
    for item in output:
        match item["type"]:
            case "message":
                text += _texts(item["content"])
            case "reasoning":
                thinking += _texts(item["content"]) or _texts(item["summary"])
            case "function_call":
                calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
    return Message("assistant", (Text(text),) if text else (), thinking or None, tuple(calls))


def _texts(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(part["text"] for part in parts)
