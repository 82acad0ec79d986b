"""What a client of Anthropic's API asks for, beside the turns of the conversation: tools, thinking, format, options.

Beside its own options a request takes those of chat.Sampling and `keep_alive`, as extra fields; fields it does not know
are ignored, as new versions of clients bring new ones before they are documented. Temperatures up to 2 are accepted,
as elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from daemon.chat import ChatRequest, CountRequest, JsonFormat, Sampling, Tool, ToolChoice
from daemon.middleware import request as pieces
from daemon.middleware import tooling
from daemon.middleware.anthropic_messages import messages
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

# What only Anthropic's servers have, with the values that mean "off"; without it the answer would be a wrong one.
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "mcp_servers": ([],),
    "container": ("", {}),
    "compaction": ({},),
    "thread": ({},),
}


def chat(fields: Fields) -> ChatRequest:
    sampling = pieces.sampling(fields, max_tokens=_max_tokens(fields), stop="stop_sequences")
    return _conversation(fields, sampling, stream=fields.boolean("stream") is True)


def count(fields: Fields) -> CountRequest:
    """The same conversation, of which only the prompt matters."""
    return CountRequest(chat=_conversation(fields, Sampling(), stream=False))


def _conversation(fields: Fields, sampling: Sampling, *, stream: bool) -> ChatRequest:
    fields.refuse_unbuilt(_UNBUILT)
    tools = _tools(fields)
    choice = fields.object("tool_choice")
    thinking, budget = _thinking(fields)
    return ChatRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        messages=messages(fields),
        sampling=sampling,
        stream=stream,
        tools=tools,
        tool_choice=_tool_choice(choice, tools),
        parallel_tool_calls=False if choice.boolean("disable_parallel_tool_use") else None,
        format=_format(fields),
        thinking=thinking,
        thinking_budget=budget,
    )


def _max_tokens(fields: Fields) -> int:
    count = fields.integer("max_tokens", -pieces.MAX_INT, pieces.MAX_INT)
    if count is None or count < 1:
        raise BadField("max_tokens", "is required and must be positive")
    return count


def _tools(fields: Fields) -> tuple[Tool, ...]:
    return tooling.distinct(fields, [_tool(item) for item in fields.objects("tools")])


def _tool(item: Fields) -> Tool:
    kind = item.string("type")
    if kind not in (None, "custom"):
        raise FieldNotSupported(
            item.name("type"),
            f"{shown(kind)} is a tool of Anthropic's own, which mgr does not have; leave it out, or define a custom "
            "tool with an input_schema",
        )
    return tooling.tool(item, "input_schema")


def _tool_choice(choice: Fields, tools: Sequence[Tool]) -> ToolChoice:
    match choice.string("type"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "any" if tools:
            return ToolChoice("required")
        case "any":
            raise BadField(choice.name("type"), 'is "any", and there are no tools')
        case "tool":
            return tooling.named_choice(choice, tools)
        case other:
            raise BadField(choice.name("type"), f"must be one of auto, any, tool, none, not {shown(other)}")


def _thinking(fields: Fields) -> tuple[bool | str, int | None]:
    """Whether to think, or how much, and for how many tokens. Off unless it is asked for, whatever the way."""
    choice = fields.object("thinking")
    effort = pieces.thinking(fields.object("output_config"), "effort")
    budget = choice.integer("budget_tokens", 1, pieces.MAX_INT)
    if choice.string("type") in (None, "disabled"):
        return False, None
    return True if effort is None else effort, budget


def _format(fields: Fields) -> JsonFormat | None:
    """`output_format` is where it stood before it became a part of `output_config`."""
    chosen = fields.object("output_config").object("format")
    if not chosen.data:
        chosen = fields.object("output_format")
    if not chosen.data:
        return None
    kind = chosen.required("type")
    if kind != "json_schema":
        raise BadField(chosen.name("type"), f'must be "json_schema", not {shown(kind)}')
    if chosen.data.get("schema") is None:
        raise BadField(chosen.name("schema"), "is required")
    return JsonFormat(chosen.object("schema").data)
