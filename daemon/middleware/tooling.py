"""Tools in the shape that OpenAI's and Ollama's chats share: what the model may call, and what it has called before.

Source: OpenAI's API reference (`tools`, `tool_calls`). A call in the history is never refused for what the model once
wrote as its arguments: it would poison every later turn.
"""

from collections.abc import Sequence
from typing import Any

from daemon.chat import Tool, ToolCall, ToolChoice
from daemon.framing import to_json
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

MAX_TOOLS = 1024
MAX_NAME = 256

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def tools(fields: Fields) -> tuple[Tool, ...]:
    """The functions in `tools`, in their order."""
    return distinct(fields, [_function(item) for item in fields.objects("tools")])


def _function(item: Fields) -> Tool:
    kind = item.string("type")
    if kind not in (None, "function"):
        raise FieldNotSupported(item.name("type"), f"{shown(kind)} is not supported; only functions are")
    return tool(item.object("function"), "parameters")


def tool(fields: Fields, parameters: str) -> Tool:
    """A tool whose name and description stand beside its schema, which is at `parameters`."""
    schema = fields.object(parameters).data or _NO_PARAMETERS
    return Tool(tool_name(fields), fields.string("description") or "", schema)


def tool_name(fields: Fields, key: str = "name") -> str:
    name = fields.required(key)
    if not 1 <= len(name) <= MAX_NAME:
        raise BadField(fields.name(key), f"must have 1 to {MAX_NAME} characters, not {len(name)}")
    return name


def distinct(fields: Fields, found: list[Tool]) -> tuple[Tool, ...]:
    """Raises BadField for too many, and for two of one name: a call would not say which is meant."""
    if len(found) > MAX_TOOLS:
        raise BadField(fields.name("tools"), f"has {len(found)} entries; at most {MAX_TOOLS} are allowed")
    names = [each.name for each in found]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadField(fields.name(f"tools[{index}]"), f"has the name {shown(name)} of an earlier tool")
    return tuple(found)


def tool_choice(fields: Fields, tools: Sequence[Tool]) -> ToolChoice:
    """Whether the model must call one of `tools`: a word, or an object that names one."""
    match fields.data.get("tool_choice"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            if not tools:
                raise BadField(fields.name("tool_choice"), 'is "required", and there are no tools')
            return ToolChoice("required")
        case dict():
            return named_choice(fields.object("tool_choice").object("function"), tools)
        case other:
            raise BadField(
                fields.name("tool_choice"),
                f'must be "auto", "none", "required" or an object that names a function, not {shown(other)}',
            )


def named_choice(chosen: Fields, tools: Sequence[Tool]) -> ToolChoice:
    """The choice of the tool whose name stands in `chosen`. Raises BadField when it is not one of `tools`."""
    name = tool_name(chosen)
    if name not in [tool.name for tool in tools]:
        raise BadField(chosen.name("name"), f"is {shown(name)}, which is not one of the tools")
    return ToolChoice("required", name)


def tool_calls(message: Fields) -> tuple[ToolCall, ...]:
    """The calls of an assistant's turn; arguments may be JSON text or an object. One without an id gets its place."""
    return tuple(_call(item, index) for index, item in enumerate(message.objects("tool_calls")))


def _call(item: Fields, index: int) -> ToolCall:
    return called(item.object("function"), item.string("id") or f"call_{index}")


def called(function: Fields, call_id: str) -> ToolCall:
    """The call of a function from its `name` and `arguments`; without arguments they are an empty object."""
    arguments = function.data.get("arguments")
    if not isinstance(arguments, str):
        arguments = to_json({} if arguments is None else arguments).decode()
    return ToolCall(call_id, tool_name(function), arguments)
