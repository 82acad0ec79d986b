"""The turns of Anthropic's messages: content blocks of many kinds in, canonical messages out.

Source: Anthropic's API reference and the types of its Python SDK. Blocks that a new client brings and nothing here
reads are skipped, unless a turn consists of nothing else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from daemon.chat import Message, Part, Text, ToolCall
from daemon.framing import to_json
from daemon.middleware import media, tooling
from daemon.middleware import request as pieces
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

_Role = Literal["user", "assistant", "system"]
_ROLES: Mapping[str, _Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# What Claude Code puts before its system prompt: not for the model, and new with every request, so that no cache of
# the prompt's beginning would ever be of use.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:(?:\s*[^;\s]+(?:;|\Z))*\s*")

# Ends a document, and stands between turns that follow each other with the same role, which are one turn.
_PARAGRAPH = Text("\n\n")
_LINE_END = Text("\n")


@dataclass(frozen=True, slots=True)
class _Turn:
    role: _Role
    parts: tuple[Part, ...]
    thinking: str
    calls: tuple[ToolCall, ...]
    results: tuple[Message, ...]


def messages(fields: Fields) -> tuple[Message, ...]:
    """The system prompt and all turns. A last turn of the assistant with nothing in it is not there."""
    turns = [_turn(item) for item in pieces.messages(fields)]
    found = [message for _, group in groupby(turns, _role) for message in _messages(_joined(list(group)))]
    if found and found[-1].tool_calls:
        raise BadField(
            fields.name(f"messages[{len(turns) - 1}]"),
            "ends the conversation with a tool_use; a user's turn with its tool_result must follow",
        )
    if found and found[-1] == Message("assistant"):
        found.pop()
    if not found:
        raise BadField("messages", "must hold at least one message")
    return (*_system(fields), *_named(found))


def _system(fields: Fields) -> list[Message]:
    blocks = [block for block in _blocks(fields, "system") if not _only_bills(block)]
    parts = _merged(_unbilled(part) for part in _parts(blocks))
    return [Message("system", parts)] if parts else []


def _only_bills(block: Fields) -> bool:
    text = block.data.get("text")
    return isinstance(text, str) and text != "" and _BILLING.sub("", text) == ""


def _unbilled(part: Part) -> Part:
    return Text(_BILLING.sub("", part.text)) if isinstance(part, Text) else part


def _role(turn: _Turn) -> _Role:
    return turn.role


def _turn(fields: Fields) -> _Turn:
    text = fields.required("role")
    role = _ROLES.get(text)
    if role is None:
        raise BadField(fields.name("role"), f"must be one of {', '.join(_ROLES)}, not {shown(text)}")
    if fields.data.get("content") is None:
        raise BadField(fields.name("content"), "is required")
    blocks = _blocks(fields, "content")
    if blocks and not any(block.required("type") in _KNOWN for block in blocks):
        raise pieces.unbuilt_kind(blocks[0])
    return _Turn(
        role,
        _parts(blocks),
        "".join(block.required("thinking") for block in _of(blocks, "thinking")),
        tuple(_call(block, role) for block in _of(blocks, "tool_use")),
        tuple(_result(block, role) for block in _of(blocks, "tool_result")),
    )


def _blocks(fields: Fields, key: str) -> list[Fields]:
    """The blocks at `key`; a string is short for one block of text."""
    if isinstance(fields.data.get(key), list):
        return fields.objects(key)
    text = fields.string(key)
    return [] if text is None else [Fields({"type": "text", "text": text}, fields.name(f"{key}."))]


def _of(blocks: Iterable[Fields], kind: str) -> list[Fields]:
    return [block for block in blocks if block.data.get("type") == kind]


# ---- calls and their results


def _call(block: Fields, role: _Role) -> ToolCall:
    _belongs(block, role, "assistant")
    given = block.data.get("input")
    arguments = to_json({} if given is None else given).decode()
    return ToolCall(block.required("id"), tooling.tool_name(block), arguments)


def _result(block: Fields, role: _Role) -> Message:
    """A result says in words that it is an error: canonical messages have no other place for it."""
    _belongs(block, role, "user")
    parts = _parts(_blocks(block, "content"))
    text = "".join(part.text for part in parts if isinstance(part, Text))
    if block.boolean("is_error") and not text.lower().startswith("error"):
        parts = (Text("Error: "), *parts)
    return Message("tool", _merged(parts), tool_call_id=block.required("tool_use_id"))


def _belongs(block: Fields, role: _Role, owner: _Role) -> None:
    if role != owner:
        raise BadField(
            block.name("type"), f"is {shown(block.data['type'])}, which only a turn of the {owner} can have"
        )


# ---- parts


def _parts(blocks: Iterable[Fields]) -> tuple[Part, ...]:
    """What is in the blocks. Two blocks of text have a line end between them, as the engine puts it there."""
    parts: list[Part] = []
    before = ""
    for block in blocks:
        kind = block.required("type")
        made = _PARTS.get(kind, _nothing)(block)
        if made == (Text(""),):
            continue
        parts += [_LINE_END, *made] if kind == before == "text" else made
        before = kind
    return tuple(parts)


def _nothing(block: Fields) -> tuple[Part, ...]:
    return ()


def _text(block: Fields) -> tuple[Part, ...]:
    return (Text(block.required("text")),)


def _image(block: Fields) -> tuple[Part, ...]:
    source = block.object("source")
    kind = source.required("type")
    if kind != "base64":
        raise FieldNotSupported(
            source.name("type"),
            f"{shown(kind)} is not supported: mgr fetches no images; send it as a source of type base64",
        )
    return (media.image(source.name("data"), source.required("data")),)


def _document(block: Fields) -> tuple[Part, ...]:
    source = block.object("source")
    match source.required("type"):
        case "text":
            body: tuple[Part, ...] = (Text(source.required("data")),)
        case "content":
            body = _parts(_blocks(source, "content"))
        case kind:
            raise FieldNotSupported(
                source.name("type"),
                f"{shown(kind)} is not supported: mgr reads no files; send the document as a source of type text",
            )
    return (*_headed(block.string("title"), block.string("context")), *body, _PARAGRAPH)


def _search_result(block: Fields) -> tuple[Part, ...]:
    head = _headed(block.string("title"), block.string("source"))
    return (*head, *_parts(_blocks(block, "content")), _PARAGRAPH)


def _headed(*lines: str | None) -> tuple[Part, ...]:
    return tuple(Text(f"{line}\n") for line in lines if line)


def _tool_reference(block: Fields) -> tuple[Part, ...]:
    """A tool that a search for tools has found; its definition is among the tools anyway."""
    return (Text(block.required("tool_name")),)


_PARTS: Mapping[str, Callable[[Fields], tuple[Part, ...]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}

# Only its author can read redacted_thinking.
_KNOWN = {*_PARTS, "thinking", "redacted_thinking", "tool_use", "tool_result"}


# ---- from turns to messages


def _joined(turns: Sequence[_Turn]) -> _Turn:
    """One turn of several of the same role, as the API defines it."""
    parts: list[Part] = []
    for turn in turns:
        parts += [_PARAGRAPH, *turn.parts] if parts and turn.parts else turn.parts
    return _Turn(
        turns[0].role,
        _merged(parts),
        "".join(turn.thinking for turn in turns),
        tuple(call for turn in turns for call in turn.calls),
        tuple(result for turn in turns for result in turn.results),
    )


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Texts that follow each other are one, and none is empty."""
    found: list[Part] = []
    for is_text, group in groupby(parts, lambda part: isinstance(part, Text)):
        if not is_text:
            found += group
        elif text := "".join(part.text for part in group if isinstance(part, Text)):
            found.append(Text(text))
    return tuple(found)


def _messages(turn: _Turn) -> list[Message]:
    """The results of calls come first, as templates need them right behind the calls."""
    match turn.role:
        case "assistant":
            return [Message("assistant", turn.parts, turn.thinking or None, turn.calls)]
        case "user" if turn.results and not turn.parts:
            return [*turn.results]
        case role:
            return [*turn.results, Message(role, turn.parts or (Text(""),))]


def _named(messages: Iterable[Message]) -> list[Message]:
    """The result of a call gets the name of its tool, which some templates need."""
    names: dict[str | None, str] = {}
    found: list[Message] = []
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        is_result = message.role == "tool"
        found.append(replace(message, name=names.get(message.tool_call_id)) if is_result else message)
    return found
