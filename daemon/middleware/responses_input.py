"""The `input` of /v1/responses: items, which become messages.

Source: the types of OpenAI's Python SDK (openai.types.responses.ResponseInputItem). What the model once said comes as
several items, one for its thinking, one for its text and one for each call; together they are one turn again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daemon.chat import Message, Part, Role, Text, ToolCall
from daemon.middleware import media, tooling
from daemon.middleware import request as pieces
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}

# Marks what mgr put into `encrypted_content`, which clients that keep no state send back as they got it. It hides
# nothing: it is the text that the item shows too, but some clients send back nothing else.
ENCRYPTED = "mgr:"

# Finds an item of an earlier answer by its id.
Lookup = Callable[[str], Mapping[str, Any] | None]


def conversation(fields: Fields, before: tuple[Message, ...], lookup: Lookup) -> tuple[Message, ...]:
    """The messages `before`, and those of `input` after them. Raises BadField when there are none."""
    turns = _Turns([*before])
    match fields.data.get("input"):
        case None:
            pass
        case str(text):
            turns.add(Message("user", (Text(text),)))
        case list():
            _read(turns, fields, lookup)
        case other:
            raise BadField("input", f"must be a string or an array of items, not {shown(other)}")
    messages = turns.messages()
    if not messages:
        raise BadField("input", "must hold at least one item")
    return messages


def _read(turns: "_Turns", fields: Fields, lookup: Lookup) -> None:
    items = fields.objects("input")
    if len(items) > pieces.MAX_MESSAGES:
        raise BadField("input", f"has {len(items)} items; at most {pieces.MAX_MESSAGES} are allowed")
    for item in items:
        turns.read(_resolved(item, lookup))


def _resolved(item: Fields, lookup: Lookup) -> Fields:
    """The item itself, or what it refers to."""
    if _type(item) != "item_reference":
        return item
    found = lookup(item.required("id"))
    if found is None:
        raise BadField(
            item.name("id"),
            f"is {shown(item.required('id'))}, which is not (or no longer) stored; send the item itself",
        )
    return Fields(found, item.path)


def _type(item: Fields) -> str:
    """Messages and references may come without a type."""
    kind = item.string("type")
    if kind is None:
        kind = "item_reference" if "role" not in item.data and "id" in item.data else "message"
    return kind


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant that further items may belong to."""

    thinking: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def said(self) -> bool:
        """Whether its text is there and nothing follows from it yet, so that what comes next is another turn."""
        return bool(self.parts) and not self.calls


class _Turns:
    """Puts items together to messages."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._open = _Turn()
        self._names = {call.id: call.name for message in messages for call in message.tool_calls}

    def messages(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._messages)

    def add(self, message: Message) -> None:
        self._close()
        self._messages.append(message)

    def read(self, item: Fields) -> None:
        match _type(item):
            case "message":
                self._message(item)
            case "reasoning":
                self._assistant().thinking.append(_thinking(item))
            case "function_call":
                call = tooling.called(item, item.required("call_id"))
                self._names[call.id] = call.name
                self._open.calls.append(call)
            case "function_call_output":
                self._output(item)
            case kind:
                raise FieldNotSupported(
                    item.name("type"), f"{shown(kind)} is not supported; leave the item out"
                )

    def _message(self, item: Fields) -> None:
        text = item.required("role")
        role = _ROLES.get(text)
        if role is None:
            raise BadField(item.name("role"), f"must be one of {', '.join(_ROLES)}, not {shown(text)}")
        parts = _parts(item, "content")
        if role == "assistant":
            self._assistant().parts.extend(parts)
        else:
            self.add(Message(role, parts))

    def _output(self, item: Fields) -> None:
        """The result of a call gets the name of its function, which some templates need."""
        call_id = item.required("call_id")
        name = self._names.get(call_id) or item.string("name")
        self.add(Message("tool", _parts(item, "output"), tool_call_id=call_id, name=name))

    def _assistant(self) -> _Turn:
        if self._open.said:
            self._close()
        return self._open

    def _close(self) -> None:
        """Thinking that nothing came of is left out: it would be taken for the beginning of an answer."""
        turn, self._open = self._open, _Turn()
        if turn.parts or turn.calls:
            thinking = "\n".join(filter(None, turn.thinking)) or None
            self._messages.append(Message("assistant", tuple(turn.parts), thinking, tuple(turn.calls)))


def _thinking(item: Fields) -> str:
    """What was thought, or its summary where there is no more. What another server encrypted is of no use."""
    texts = [part.required("text") for part in item.objects("content")]
    texts = texts or [part.required("text") for part in item.objects("summary")]
    encrypted = item.string("encrypted_content") or ""
    if not texts and encrypted.startswith(ENCRYPTED):
        return encrypted.removeprefix(ENCRYPTED)
    return "".join(texts)


def _parts(item: Fields, key: str) -> tuple[Part, ...]:
    if isinstance(item.data.get(key), list):
        return tuple(_part(part) for part in item.objects(key))
    return (Text(item.required(key)),)


def _part(part: Fields) -> Part:
    match part.required("type"):
        case "input_text" | "output_text" | "text":
            return Text(part.required("text"))
        case "refusal":
            return Text(part.required("refusal"))
        case "input_image":
            _refuse_file(part)
            return media.image_url(part.name("image_url"), part.required("image_url"))
        case "input_audio":
            sound = part.object("input_audio")
            return media.audio(sound.name("data"), sound.required("data"))
        case "input_file":
            raise FieldNotSupported(
                part.name("type"), '"input_file" is not supported; send what the file says as text'
            )
    raise pieces.unbuilt_kind(part)


def _refuse_file(part: Fields) -> None:
    if part.string("file_id") is not None:
        raise FieldNotSupported(
            part.name("file_id"), "is not supported; send the image as a data: URI in image_url"
        )
