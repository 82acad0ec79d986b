import json
from typing import Any

import pytest

from daemon.chat import (
    ChatRequest,
    CountRequest,
    JsonFormat,
    Message,
    Sampling,
    Text,
    Tool,
    ToolChoice,
)
from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware import anthropic

HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "How it is.", "input_schema": SCHEMA}
TIME = {"name": "time", "type": "custom", "input_schema": {"type": "object"}}


def parse(**body: Any) -> ChatRequest:
    whole = {"model": "m", "max_tokens": 9, "messages": [HI], **body}
    request = anthropic.MESSAGES.parse(json.dumps(whole).encode())
    assert isinstance(request, ChatRequest)
    return request


def count(**body: Any) -> ChatRequest:
    request = anthropic.COUNT_TOKENS.parse(json.dumps({"model": "m", "messages": [HI], **body}).encode())
    assert isinstance(request, CountRequest)
    return request.chat


def test_minimal() -> None:
    assert parse() == ChatRequest(
        model="m",
        messages=(Message("user", (Text("hi"),)),),
        sampling=Sampling(max_tokens=9),
        thinking=False,
    )


def test_options() -> None:
    request = parse(
        max_tokens=5.0,
        temperature=1.5,
        top_p=0.5,
        top_k=3,
        stop_sequences=["x"],
        seed=4,
        min_p=0.25,
        stream=True,
        keep_alive="1h",
    )
    assert request.sampling == Sampling(
        max_tokens=5, temperature=1.5, top_p=0.5, top_k=3, stop=("x",), seed=4, min_p=0.25
    )
    assert (request.stream, request.keep_alive) == (True, 3600)


# ---- tools


def test_tools() -> None:
    strict = {
        **WEATHER,
        "cache_control": {"type": "ephemeral"},
        "strict": True,
        "eager_input_streaming": True,
    }
    assert parse(tools=[strict, TIME]).tools == (
        Tool("weather", "How it is.", SCHEMA),
        Tool("time", "", {"type": "object"}),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "time"}, ToolChoice("required", "time")),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    request = parse(tools=[WEATHER, TIME], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, None)


@pytest.mark.parametrize("kind", ["auto", "any"])
def test_one_call_at_a_time(kind: str) -> None:
    choice = {"type": kind, "disable_parallel_tool_use": True}
    assert parse(tools=[TIME], tool_choice=choice).parallel_tool_calls is False
    choice["disable_parallel_tool_use"] = False
    assert parse(tools=[TIME], tool_choice=choice).parallel_tool_calls is None


# ---- thinking


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (False, None)),
        ({"thinking": None}, (False, None)),
        ({"thinking": {"type": "disabled"}}, (False, None)),
        ({"output_config": {"effort": "high"}}, (False, None)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, (True, 1024)),
        ({"thinking": {"type": "enabled"}}, (True, None)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, (True, None)),
        ({"thinking": {"type": "between_tools"}}, (True, None)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, ("low", None)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, ("high", None)),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "medium"}},
            ("medium", 2000),
        ),
    ],
)
def test_thinking(body: dict[str, Any], expected: tuple[bool | str, int | None]) -> None:
    request = parse(**body)
    assert (request.thinking, request.thinking_budget) == expected


# ---- format


def test_format() -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    assert parse(output_config={"format": wanted}).format == JsonFormat(SCHEMA)
    assert parse(output_format=wanted).format == JsonFormat(SCHEMA)
    assert parse(output_config={"format": {"type": "json_schema", "schema": {}}}).format == JsonFormat({})
    assert parse(output_config={"format": None, "effort": "low"}, output_format=None).format is None


# ---- counts


def test_a_count_reads_the_same_conversation() -> None:
    body: dict[str, Any] = {
        "system": "be brief",
        "tools": [WEATHER],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "keep_alive": 5,
    }
    request = parse(**body)
    assert count(**body) == ChatRequest(
        model="m",
        keep_alive=5,
        messages=request.messages,
        tools=request.tools,
        tool_choice=ToolChoice("required"),
        thinking=True,
        thinking_budget=1024,
    )
    assert request.messages[0] == Message("system", (Text("be brief"),))


def test_a_count_needs_no_limit() -> None:
    assert count() == count(max_tokens=9, stream=True)
    with pytest.raises(InvalidRequest, match="model is required"):
        anthropic.COUNT_TOKENS.parse(b'{"messages": []}')


# ---- errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": ""}, "model is required"),
        ({"max_tokens": None}, "max_tokens is required and must be positive"),
        ({"max_tokens": 0}, "max_tokens is required and must be positive"),
        ({"max_tokens": -1}, "max_tokens is required and must be positive"),
        ({"max_tokens": "9"}, "max_tokens must be an integer"),
        ({"max_tokens": 2**31}, "max_tokens must be an integer"),
        ({"messages": []}, "messages must hold at least one message"),
        ({"messages": None}, "messages must hold at least one message"),
        ({"stream": "true"}, "stream must be true or false"),
        ({"temperature": 3}, "temperature must be a number from 0 to 2, not 3"),
        ({"stop_sequences": [""]}, "stop_sequences holds an empty string"),
        ({"thinking": True}, "thinking must be an object"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            "thinking.budget_tokens must be an integer from 1",
        ),
        ({"output_config": {"effort": "heroic"}}, "output_config.effort must be true, false or one of"),
        (
            {"output_config": {"format": {"type": "text"}}},
            'output_config.format.type must be "json_schema", not "text"',
        ),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema is required"),
        ({"tools": {}}, "tools must be an array"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name is required"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema must be an object, not 5"),
        ({"tools": [TIME, TIME]}, 'tools[1] has the name "time" of an earlier tool'),
        ({"tool_choice": "any"}, "tool_choice must be an object"),
        ({"tool_choice": {"type": "any"}}, 'tool_choice.type is "any", and there are no tools'),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type must be one of auto, any, tool, none"),
        ({"tool_choice": {"type": "tool"}, "tools": [TIME]}, "tool_choice.name is required"),
        (
            {"tool_choice": {"type": "tool", "name": "f"}, "tools": [TIME]},
            'tool_choice.name is "f", which is not',
        ),
    ],
)
def test_wrong_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"tools": [TIME, {"type": "web_search_20250305", "name": "web_search"}]},
            'tools[1].type "web_search_20250305"',
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            'tools[0].type "bash_20250124" is a tool of',
        ),
        ({"tools": [{"type": "text_editor_20250728", "name": "e"}]}, 'tools[0].type "text_editor_20250728"'),
        ({"tools": [{"type": "computer_20250124", "name": "c"}]}, 'tools[0].type "computer_20250124"'),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
        ({"container": {"skills": [{}]}}, "container is not supported"),
        ({"compaction": {"type": "summarize"}}, "compaction is not supported"),
        ({"thread": {"type": "create"}}, "thread is not supported"),
    ],
)
def test_what_is_not_built_is_said(body: dict[str, Any], message: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(**body)
    assert caught.value.message.startswith(message)


def test_values_that_change_nothing_are_accepted() -> None:
    off: dict[str, Any] = {"tools": [], "output_config": {}, "mcp_servers": None, "container": None}
    harmless: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "betas": ["x"],
        "unknown": {},
        "diagnostics": {"previous_message_id": None},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "inference_geo": None,
        "cache_control": {"type": "ephemeral"},
    }
    assert parse(**off, **harmless) == parse()
