"""The messages of OpenAI's chat: roles, parts, calls and their results, the older function calls too.

Source: OpenAI's API reference and the types of its Python SDK. `reasoning_content` (DeepSeek, llama.cpp) and
`reasoning` (Ollama, vLLM) hold what an assistant's turn thought.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daemon.chat import Audio, Image, Message, Part, Text, ToolCall
from daemon.middleware import media, tooling
from daemon.middleware import request as pieces
from daemon.middleware.fields import BadField, Fields

_UNBUILT: Mapping[str, tuple[Any, ...]] = {"audio": ()}


def messages(fields: Fields) -> tuple[Message, ...]:
    """All messages. The result of a call gets the name of its function, which some templates need."""
    found: list[Message] = []
    names: dict[str | None, str] = {}
    for item in pieces.messages(fields):
        message = _message(item)
        names.update((call.id, call.name) for call in message.tool_calls)
        if message.role == "tool" and message.name is None:
            message = replace(message, name=names.get(message.tool_call_id))
        found.append(message)
    if not found:
        raise BadField("messages", "must hold at least one message")
    return tuple(found)


def _message(fields: Fields) -> Message:
    fields.refuse_unbuilt(_UNBUILT)
    role = pieces.role(fields)
    name = fields.string("name")
    parts = _content(fields)
    match role:
        case "assistant":
            return _assistant(fields, parts, name)
        case "tool":
            # A result of the older kind has only the name of its function.
            call_id = fields.string("tool_call_id") or (_function_call_id(name) if name else None)
            return Message(role, parts or (), tool_call_id=call_id, name=name)
    if parts is None:
        raise BadField(fields.name("content"), "is required")
    return Message(role, parts, name=name)


def _assistant(fields: Fields, parts: tuple[Part, ...] | None, name: str | None) -> Message:
    refusal = fields.string("refusal")
    if parts is None:
        parts = (Text(refusal),) if refusal else ()
    return Message(
        "assistant",
        parts,
        thinking=fields.string("reasoning_content") or fields.string("reasoning") or None,
        tool_calls=tooling.tool_calls(fields) or _function_call(fields),
        name=name,
    )


def _function_call(fields: Fields) -> tuple[ToolCall, ...]:
    """The older kind of call, which has no id."""
    function = fields.object("function_call")
    if not function.data:
        return ()
    call = tooling.called(function, "")
    return (replace(call, id=_function_call_id(call.name)),)


def _function_call_id(name: str) -> str:
    return f"call_{name}"


def _content(fields: Fields) -> tuple[Part, ...] | None:
    if isinstance(fields.data.get("content"), list):
        return tuple(_part(part) for part in fields.objects("content"))
    text = fields.string("content")
    return None if text is None else (Text(text),)


def _part(part: Fields) -> Part:
    match part.required("type"):
        case "text" | "refusal" as kind:
            return Text(part.required(kind))
        case "image_url":
            return _image(part)
        case "input_audio":
            return _audio(part.object("input_audio"))
    raise pieces.unbuilt_kind(part)


def _image(part: Fields) -> Image:
    """The link may stand there as it is, which is not documented and often sent."""
    if isinstance(part.data.get("image_url"), str):
        return media.image_url(part.name("image_url"), part.required("image_url"))
    link = part.object("image_url")
    return media.image_url(link.name("url"), link.required("url"))


def _audio(sound: Fields) -> Audio:
    return media.audio(sound.name("data"), sound.required("data"))
