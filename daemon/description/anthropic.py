"""Anthropic's routes. Source: Anthropic's API reference."""

from collections.abc import Mapping

from daemon.description.options import COUNT, EXTRAS, JSON_SCHEMA, KEEP_ALIVE, SAMPLING, STOP, messages
from daemon.description.schema import (
    BOOLEAN,
    INTEGER,
    MODEL_ERRORS,
    SOME_STRING,
    SSE,
    STRING,
    Operation,
    Schema,
    array,
    either,
    nullable,
    obj,
    one_of,
    optional,
)

ERROR: Schema = obj(
    "type error",
    type=one_of("error"),
    error=obj("type message", type=STRING, message=STRING),
    request_id=STRING,
)

# A full queue is 529 here.
_ERRORS = (*MODEL_ERRORS, 529)

_BLOCK = obj("type", type=STRING)
_TEXT = obj("type text", type=one_of("text"), text=STRING)
_TOOL = obj("name input_schema", name=STRING, description=STRING, input_schema=JSON_SCHEMA)
_TOOL_CHOICE = obj(
    "type", type=one_of("auto", "any", "tool", "none"), name=STRING, disable_parallel_tool_use=BOOLEAN
)
_CONVERSATION: dict[str, Schema] = {
    "model": SOME_STRING,
    "messages": messages(
        obj("role content", role=one_of("user", "assistant", "system"), content=either(STRING, array(_BLOCK)))
    ),
    "system": either(STRING, array(_TEXT)),
    "tools": array(_TOOL),
    "tool_choice": _TOOL_CHOICE,
    "thinking": obj("type", type=one_of("enabled", "disabled", "adaptive"), budget_tokens=COUNT),
}
_USAGE = obj(
    "input_tokens output_tokens",
    input_tokens=INTEGER,
    cache_creation_input_tokens=INTEGER,
    cache_read_input_tokens=INTEGER,
    output_tokens=INTEGER,
)
_MESSAGE = obj(
    "id type role model content stop_reason stop_sequence usage",
    id=STRING,
    type=one_of("message"),
    role=one_of("assistant"),
    model=STRING,
    content=array(_BLOCK),
    stop_reason=nullable(one_of("end_turn", "max_tokens", "stop_sequence", "tool_use")),
    stop_sequence=nullable(STRING),
    usage=_USAGE,
    **EXTRAS,
)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/messages"): Operation(
        "answer a conversation",
        _MESSAGE,
        optional(
            obj(
                "model messages max_tokens",
                **SAMPLING,
                **_CONVERSATION,
                max_tokens=COUNT,
                stream=BOOLEAN,
                stop_sequences=STOP,
                metadata={"type": "object"},
                output_config={"type": "object"},
                keep_alive=KEEP_ALIVE,
            )
        ),
        (SSE, either(obj("type", type=STRING), ERROR)),
        _ERRORS,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "how many tokens a request has",
        obj("input_tokens", input_tokens=INTEGER),
        optional(obj("model messages", **_CONVERSATION)),
        errors=_ERRORS,
    ),
}
