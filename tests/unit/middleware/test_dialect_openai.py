import base64
import json
import math
from typing import Any

import pytest

from daemon.chat import (
    Audio,
    Batch,
    ChatRequest,
    Image,
    JsonFormat,
    Message,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
)
from daemon.errors import (
    InvalidRequest,
    NotSupported,
)
from daemon.middleware import openai

HI = {"role": "user", "content": "hi"}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 8).decode()
WAV = base64.b64encode(b"RIFF0000WAVE" + b"0" * 8).decode()
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
F = {"type": "function", "function": {"name": "f", "description": "does f", "parameters": SCHEMA}}
G = {"type": "function", "function": {"name": "g"}}


def parse(**body: Any) -> ChatRequest:
    request = parse_any(**body)
    assert isinstance(request, ChatRequest)
    return request


def parse_any(**body: Any) -> Any:
    return openai.CHAT.parse(json.dumps({"model": "m", "messages": [HI], **body}).encode())


def batch(**body: Any) -> Batch:
    request = parse_any(**body)
    assert isinstance(request, Batch)
    return request


def test_minimal() -> None:
    assert parse() == ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),))


def test_messages() -> None:
    request = parse(
        messages=[
            {"role": "developer", "content": "be brief"},
            {
                "role": "system",
                "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
            },
            {"role": "user", "content": "a", "name": "ann"},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": "b", "reasoning_content": "hm"},
            {"role": "assistant", "content": "c", "reasoning": "mh"},
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]},
            {"role": "user", "content": []},
        ]
    )
    assert request.messages == (
        Message("system", (Text("be brief"),)),
        Message("system", (Text("be "), Text("kind"))),
        Message("user", (Text("a"),), name="ann"),
        Message("assistant"),
        Message("assistant", (Text("b"),), thinking="hm"),
        Message("assistant", (Text("c"),), thinking="mh"),
        Message("assistant", (Text("no"),)),
        Message("assistant", (Text("never"),)),
        Message("user"),
    )


def test_parts_stay_in_one_message_in_their_order() -> None:
    content = [
        {"type": "text", "text": "what is "},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PNG}", "detail": "low"}},
        {"type": "text", "text": " or "},
        {"type": "image_url", "image_url": f"data:;base64,{PNG}"},
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
    ]
    assert parse(messages=[{"role": "user", "content": content}]).messages == (
        Message(
            "user",
            (
                Text("what is "),
                Image(PNG, "image/png"),
                Text(" or "),
                Image(PNG, "image/png"),
                Audio(WAV, "wav"),
            ),
        ),
    )


def test_calls_and_their_results() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"y": [None]}}},
    ]
    request = parse(
        messages=[
            HI,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}],
            },
            {"role": "tool", "tool_call_id": "c9", "content": None, "name": "h"},
        ]
    )
    assert request.messages[1:] == (
        Message(
            "assistant", tool_calls=(ToolCall("c1", "f", '{"x":1}'), ToolCall("c2", "g", '{"y":[null]}'))
        ),
        Message("tool", (Text("two"),), tool_call_id="c2", name="g"),
        Message("tool", (Text("o"), Text("ne")), tool_call_id="c1", name="f"),
        Message("tool", tool_call_id="c9", name="h"),
    )


def test_a_call_that_is_not_json_does_not_poison_the_history() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{"}}
    history = [
        HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "bad"},
        HI,
    ]
    assert parse(messages=history).messages[1].tool_calls == (ToolCall("c1", "echo", "{"),)


def test_older_function_calls() -> None:
    request = parse(
        messages=[
            HI,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "done"},
        ],
        functions=[{"name": "f", "parameters": SCHEMA}],
        function_call={"name": "f"},
    )
    assert request.messages[1:] == (
        Message("assistant", tool_calls=(ToolCall("call_f", "f", "{}"),)),
        Message("tool", (Text("done"),), tool_call_id="call_f", name="f"),
    )
    assert request.tools == (Tool("f", "", SCHEMA),)
    assert request.tool_choice == ToolChoice("required", "f")
    functions = [{"name": "f"}]
    assert parse(functions=functions, function_call="none").tool_choice == ToolChoice("none")
    assert parse(functions=functions, function_call="auto").tool_choice == ToolChoice()


def test_a_turn_of_the_assistant_may_be_begun() -> None:
    request = parse(messages=[HI, {"role": "assistant", "content": "The"}])
    assert request.messages[-1] == Message("assistant", (Text("The"),))


def test_tools() -> None:
    request = parse(tools=[F, G], parallel_tool_calls=False)
    assert request.tools == (
        Tool("f", "does f", SCHEMA),
        Tool("g", "", {"type": "object", "properties": {}}),
    )
    assert request.parallel_tool_calls is False
    assert parse(tools=[F]).parallel_tool_calls is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("required", "g")),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    assert parse(tools=[F, G], tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones(mode: Any) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    request = parse(tools=[F, G], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [tool.name for tool in request.tools] == ["g"]
    assert request.tool_choice == ToolChoice(mode)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "text"}, None),
        ({}, None),
        ({"type": "json_object"}, JsonFormat()),
        ({"type": "json_object", "schema": SCHEMA}, JsonFormat(SCHEMA)),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, JsonFormat(SCHEMA)),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, JsonFormat({})),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": True}}, JsonFormat(True)),
        ({"type": "json_schema", "schema": SCHEMA}, JsonFormat(SCHEMA)),
    ],
)
def test_formats(given: Any, expected: JsonFormat | None) -> None:
    assert parse(response_format=given).format == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "medium"}, "medium"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"reasoning_effort": "max"}, "high"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "low"),
        ({"think": False}, False),
        ({"think": True}, True),
        ({"think": "high"}, "high"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning": {}, "chat_template_kwargs": {"other": 1}}, None),
        ({"reasoning_effort": None, "think": False}, False),
    ],
)
def test_thinking_is_one_switch(body: dict[str, Any], expected: bool | str | None) -> None:
    thinking = parse(**body).thinking
    assert (thinking, type(thinking)) == (expected, type(expected))


def test_budget_for_thinking() -> None:
    assert parse(reasoning={"max_tokens": 100}).thinking_budget == 100


def test_logprobs_and_bias() -> None:
    sampling = parse(logprobs=True, top_logprobs=20, logit_bias={"5": -100, "0": 1.5}).sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 20)
    assert sampling.logit_bias == ((5, -100.0), (0, 1.5))
    assert parse(logprobs=True).sampling == Sampling(logprobs=True)


def test_several_answers_are_a_batch_with_seeds_that_count_up() -> None:
    requests = batch(n=3, seed=2**32 - 3, stream=True).requests
    assert [request.sampling.seed for request in requests] == [2**32 - 3, 2**32 - 2, 0]
    assert {request.stream for request in requests} == {True}
    assert [request.sampling.seed for request in batch(n=2).requests] == [None, -1]
    assert [request.sampling.seed for request in batch(n=2, seed=-1).requests] == [-1, -1]
    assert len(batch(n=16).requests) == 16
    assert parse(n=1, seed=5).sampling.seed == 5


def test_truncation_has_to_be_asked_for() -> None:
    assert parse().truncate is False
    assert parse(truncate=True).truncate is True


def test_options() -> None:
    request = parse(
        max_tokens=5, temperature=0, top_p=1, seed=3, stop="x", presence_penalty=1, min_p=0.1, keep_alive=-1
    )
    assert request.sampling == Sampling(
        max_tokens=5, temperature=0, top_p=1, seed=3, stop=("x",), presence_penalty=1, min_p=0.1
    )
    assert request.keep_alive == math.inf


def test_of_two_limits_both_hold() -> None:
    assert parse(max_completion_tokens=5).sampling.max_tokens == 5
    assert parse(max_completion_tokens=5, max_tokens=9).sampling.max_tokens == 5
    assert parse(max_completion_tokens=9, max_tokens=5).sampling.max_tokens == 5


def test_minus_one_is_no_limit() -> None:
    assert parse(max_tokens=-1).sampling.max_tokens == -1
    assert parse(max_completion_tokens=-1, max_tokens=5).sampling.max_tokens == 5


def test_usage_is_part_of_a_stream_only_when_asked_for() -> None:
    assert parse(stream=True).include_usage is False
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage is True
    assert parse(stream=True, stream_options={"include_usage": False}).include_usage is False
    assert parse(stream=True, stream_options=None).include_usage is False
    assert parse().include_usage is True


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": None}, "model is required"),
        ({"messages": []}, "messages must hold at least one message"),
        ({"messages": None}, "messages must hold at least one message"),
        ({"messages": "hi"}, 'messages must be an array, not "hi"'),
        ({"messages": [HI, {"role": "user"}]}, "messages[1].content is required"),
        ({"messages": [HI, {"role": "user", "content": None}]}, "messages[1].content is required"),
        ({"messages": [HI, {"role": "user", "content": 5}]}, "messages[1].content must be a string, not 5"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0] must be an object"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text is required",
        ),
        ({"stream": 1}, "stream must be true or false, not 1"),
        ({"stream_options": []}, "stream_options must be an object"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage must be true or false"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1 to 2147483647, not 0"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens must be an integer"),
        ({"temperature": 2.5}, "temperature must be a number from 0 to 2, not 2.5"),
        ({"n": 0}, "n must be an integer from 1 to 16, not 0"),
        ({"n": True}, "n must be an integer from 1 to 16, not true"),
        ({"keep_alive": "soon"}, "keep_alive must be a number of seconds"),
        ({"n": 17}, "n must be an integer from 1 to 16, not 17"),
        ({"response_format": "json"}, "response_format must be an object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema must be an object",
        ),
        ({"tools": [G, G]}, 'tools[1] has the name "g" of an earlier tool'),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name is required"),
        ({"tool_choice": "required"}, 'tool_choice is "required", and there are no tools'),
        ({"tool_choice": "any"}, 'tool_choice must be "auto", "none", "required" or an object'),
        (
            {"tools": [G], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            'tool_choice.function.name is "x", which is not one of the tools',
        ),
        ({"tools": [G], "tool_choice": {"type": "function"}}, "tool_choice.function.name is required"),
        (
            {
                "tools": [G],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            },
            "tool_choice.allowed_tools.tools names none of the tools",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "some"}}},
            'tool_choice.allowed_tools.mode must be "auto" or "required", not "some"',
        ),
        ({"function_call": "required"}, "function_call must be an object"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be an integer from 0 to 20, not 21"),
        ({"logprobs": 3}, "logprobs must be true or false, not 3"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5 must be a number from -100 to 100, not 101"),
        ({"logit_bias": {"the": 1}}, 'logit_bias has the key "the", which is not a token id'),
        ({"logit_bias": {"-1": 1}}, 'logit_bias has the key "-1", which is not a token id'),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias has 1025 entries; at most 1024"),
        ({"reasoning_effort": "huge"}, "reasoning_effort must be true, false or one of none, minimal, low"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort must be true, false or one of"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls[0].function.name is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url.url is required",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url.url is a link, and mgr fetches none",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": PNG}}]}
                ]
            },
            "messages[0].content[0].input_audio.data is an image, not sound",
        ),
    ],
)
def test_wrong_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [G], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
    ],
)
def test_what_is_not_built_is_said(body: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(**body)
    assert caught.value.message.startswith(f"{field} ")
    error = json.loads(openai.CHAT.error(caught.value).body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert error["code"] == "unsupported_parameter"


def test_values_that_change_nothing_are_accepted() -> None:
    off = {
        "tools": [],
        "tool_choice": "auto",
        "functions": None,
        "response_format": {"type": "text"},
        "logprobs": False,
        "n": 1,
        "logit_bias": {},
        "modalities": ["text"],
        "reasoning": {},
        "truncate": False,
    }
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": False,
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "unknown": [1],
    }
    assert parse(**off, **harmless) == parse()
    assert parse(tools=None, tool_choice=None, logprobs=None, n=None, response_format=None) == parse()
