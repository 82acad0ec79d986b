"""What a request to /v1/responses asks for.

Source: OpenAI's API reference and the types of its Python SDK (openai.types.responses.ResponseCreateParams).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daemon.chat import ChatRequest, JsonFormat, Message, Sampling, Text, Tool, ToolChoice
from daemon.errors import InvalidRequest
from daemon.middleware import request as pieces
from daemon.middleware import tooling
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown
from daemon.middleware.openai_common import MAX_TOP_LOGPROBS
from daemon.middleware.responses_history import History
from daemon.middleware.responses_input import conversation

MAX_METADATA = 16

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"

# Fields that are not built, with the values that mean "off".
_UNBUILT: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "context_management": ([],),
    "moderation": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(ChatRequest):
    """`echo` are the fields of the answer that repeat the request. `conversation` is what to remember with `store`: the
    messages without the instructions. `summary`: thinking is shown as a summary of it, else as the text that it is.
    `encrypted`: it comes as `encrypted_content` too."""

    echo: Mapping[str, Any]
    conversation: tuple[Message, ...]
    store: bool = True
    summary: bool = False
    encrypted: bool = False


class PreviousNotFound(InvalidRequest):
    """There is no such response to go on from. Programs know the words that OpenAI's API has for it."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id {shown(response_id)} not found. It was not stored, or has made room for newer "
            "ones; send the whole conversation as input."
        )


def read(fields: Fields, history: History) -> ResponsesRequest:
    """Raises PreviousNotFound, BadField, FieldNotSupported."""
    fields.refuse_unbuilt(_UNBUILT)
    if isinstance(fields.data.get("prompt"), dict):
        raise FieldNotSupported(
            "prompt", "refers to a stored prompt, and there is none; send its text as instructions"
        )
    instructions = fields.string("instructions")
    messages = conversation(fields, _previous(fields, history), history.item)
    include = fields.strings("include") or ()
    tools = _tools(fields)
    choice, callable_tools = _tool_choice(fields, tools)
    reasoning = fields.object("reasoning")
    return ResponsesRequest(
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        messages=(*_system(instructions), *messages),
        sampling=_sampling(fields, include),
        stream=fields.boolean("stream") is True,
        tools=callable_tools,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        format=_format(fields.object("text").object("format")),
        thinking=pieces.thinking(reasoning, "effort"),
        truncate=_truncation(fields) == "auto",
        echo=_echo(fields, tools),
        conversation=messages,
        store=fields.boolean("store") is not False,
        summary=_summary(reasoning) is not None,
        encrypted=_ENCRYPTED in include,
    )


def _previous(fields: Fields, history: History) -> tuple[Message, ...]:
    response_id = fields.string("previous_response_id")
    if response_id is None:
        return ()
    stored = history.find(response_id)
    if stored is None:
        raise PreviousNotFound(response_id)
    return stored.messages


def _system(instructions: str | None) -> tuple[Message, ...]:
    return (Message("system", (Text(instructions),)),) if instructions else ()


def _sampling(fields: Fields, include: Sequence[str]) -> Sampling:
    """Asking for the number of alternatives is asking for log probabilities, too."""
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    sampling = pieces.sampling(fields, max_tokens=fields.integer("max_output_tokens", 1, pieces.MAX_INT))
    if _LOGPROBS not in include and not top:
        return sampling
    return replace(sampling, logprobs=True, top_logprobs=top)


def _format(chosen: Fields) -> JsonFormat | None:
    match chosen.string("type"):
        case None | "text":
            return None
        case "json_object":
            return JsonFormat()
        case "json_schema":
            chosen.required("name")
            if chosen.data.get("schema") is None:
                raise BadField(chosen.name("schema"), "is required")
            return JsonFormat(chosen.object("schema").data)
        case kind:
            raise FieldNotSupported(chosen.name("type"), f"{shown(kind)} is not supported")


# ---- tools


def _tools(fields: Fields) -> tuple[Tool, ...]:
    return tooling.distinct(fields, [_function(item) for item in fields.objects("tools")])


def _function(item: Fields) -> Tool:
    kind = item.required("type")
    if kind != "function":
        raise FieldNotSupported(item.name("type"), f"{shown(kind)} is not supported; only functions are")
    return tooling.tool(item, "parameters")


def _tool_choice(fields: Fields, tools: Sequence[Tool]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """The choice, and the tools that the model may call."""
    if not isinstance(fields.data.get("tool_choice"), dict):
        return tooling.tool_choice(fields, tools), tuple(tools)
    chosen = fields.object("tool_choice")
    match chosen.required("type"):
        case "function":
            return tooling.named_choice(chosen, tools), tuple(tools)
        case "allowed_tools":
            return _allowed(chosen, tools)
        case kind:
            raise FieldNotSupported(
                chosen.name("type"), f"{shown(kind)} is not supported; only functions are"
            )


def _allowed(chosen: Fields, tools: Sequence[Tool]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    names = {tooling.named_choice(item, tools).name for item in chosen.objects("tools")}
    mode = _one_of(chosen, "mode", ("auto", "required"))
    if mode == "required" and not names:
        raise BadField(chosen.name("tools"), 'must name at least one tool, as the mode is "required"')
    choice = ToolChoice("required") if mode == "required" else ToolChoice()
    return choice, tuple(tool for tool in tools if tool.name in names)


# ---- what the answer repeats


def _echo(fields: Fields, tools: Sequence[Tool]) -> dict[str, Any]:
    """Options that were not given are null, as the model's own are not known here, or what the API documents."""
    reasoning = fields.object("reasoning")
    parallel = fields.boolean("parallel_tool_calls")
    return {
        "instructions": fields.string("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens", 1, pieces.MAX_INT),
        "max_tool_calls": fields.integer("max_tool_calls", 1, pieces.MAX_INT),
        "metadata": _metadata(fields),
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": fields.string("previous_response_id"),
        "prompt_cache_key": fields.string("prompt_cache_key"),
        "reasoning": {"effort": reasoning.string("effort"), "summary": _summary(reasoning)},
        "safety_identifier": fields.string("safety_identifier"),
        "service_tier": "default",
        "temperature": fields.number("temperature", 0, 2),
        "text": _text(fields.object("text")),
        "tool_choice": fields.data.get("tool_choice") or "auto",
        "tools": [_shown_tool(item, tool) for item, tool in zip(fields.objects("tools"), tools, strict=True)],
        "top_logprobs": fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0,
        "top_p": fields.number("top_p", 0, 1),
        "truncation": _truncation(fields),
        "user": fields.string("user"),
    }


def _shown_tool(item: Fields, tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": item.string("description"),
        "parameters": tool.parameters,
        "strict": item.boolean("strict") is True,
    }


def _text(text: Fields) -> dict[str, Any]:
    """`verbosity` has no effect: no engine knows it."""
    verbosity = _one_of(text, "verbosity", ("medium", "low", "high"))
    return {"format": text.object("format").data or {"type": "text"}, "verbosity": verbosity}


def _metadata(fields: Fields) -> dict[str, str]:
    metadata = fields.object("metadata")
    if len(metadata.data) > MAX_METADATA:
        raise BadField("metadata", f"has {len(metadata.data)} entries; at most {MAX_METADATA} are allowed")
    if not all(isinstance(value, str) for value in metadata.data.values()):
        raise BadField("metadata", "must hold strings only")
    return dict(metadata.data)


def _truncation(fields: Fields) -> str:
    return _one_of(fields, "truncation", ("disabled", "auto"))


def _summary(reasoning: Fields) -> str | None:
    """`generate_summary` is the older name."""
    for key in ("summary", "generate_summary"):
        if reasoning.data.get(key) is not None:
            return _one_of(reasoning, key, ("auto", "concise", "detailed"))
    return None


def _one_of(fields: Fields, key: str, words: Sequence[str]) -> str:
    """One of `words`; the first of them when nothing is given."""
    text = fields.string(key)
    if text is not None and text not in words:
        raise BadField(fields.name(key), f"must be one of {', '.join(words)}, not {shown(text)}")
    return text or words[0]
