"""Requests to the engine, as its builds were measured to take them."""

import json
from typing import Any

import pytest

from daemon.chat import (
    Audio,
    ChatRequest,
    CompletionRequest,
    Image,
    JsonFormat,
    Message,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
)
from daemon.errors import InvalidRequest
from daemon.runner.wire import body_for, conversation, path_for

CHAT = ChatRequest(
    model="m", messages=(Message("system", (Text("be brief"),)), Message("user", (Text("hi"),)))
)


def test_every_request_is_streamed_and_reports_its_prefill() -> None:
    for request in (CHAT, CompletionRequest(model="m", prompt="hi")):
        body = body_for(request)
        assert body["stream"] is True
        assert body["return_progress"] is True


def test_a_chat_request() -> None:
    body = body_for(CHAT)
    assert path_for(CHAT) == "/v1/chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert body["stream_options"] == {"include_usage": True}
    assert "temperature" not in body


def test_a_completion_takes_text_or_tokens() -> None:
    text = CompletionRequest(model="m", prompt="hi")
    assert path_for(text) == "/completion"
    assert body_for(text)["prompt"] == "hi"
    assert body_for(CompletionRequest(model="m", prompt=(1, 2)))["prompt"] == [1, 2]


def test_every_sampling_option_reaches_the_engine_under_its_name() -> None:
    sampling = Sampling(
        max_tokens=5, stop=("x",), seed=1, temperature=0.0, top_k=2, top_p=0.5, min_p=0.1, typical_p=0.9,
        repeat_last_n=3, repeat_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3, num_keep=4,
    )  # fmt: skip
    body = body_for(CompletionRequest(model="m", prompt="p", sampling=sampling))
    expected = {
        "n_predict": 5, "stop": ("x",), "seed": 1, "temperature": 0.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1,
        "typical_p": 0.9, "repeat_last_n": 3, "repeat_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "n_keep": 4,
    }  # fmt: skip
    assert body.items() >= expected.items()


def test_which_stop_sequence_hit_is_asked_only_when_there_are_some() -> None:
    assert "verbose" not in body_for(CHAT)
    with_stop = ChatRequest(model="m", messages=CHAT.messages, sampling=Sampling(stop=("x",)))
    assert body_for(with_stop)["verbose"] is True


# ---- content

TOOL = Tool("weather", "Tells it", {"type": "object", "properties": {"city": {"type": "string"}}})


def chat(*messages: Message, **more: Any) -> dict[str, Any]:
    return body_for(ChatRequest(model="m", messages=messages, **more))


USER = Message("user", (Text("hi"),))


def test_tools_reach_the_engine_in_openais_shape() -> None:
    body = chat(USER, tools=(TOOL,), tool_choice=ToolChoice("none"), parallel_tool_calls=False)
    function = {"name": "weather", "description": "Tells it", "parameters": TOOL.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == "none"
    assert body["parallel_tool_calls"] is False
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & chat(USER, parallel_tool_calls=True).keys()


def test_calls_and_their_results() -> None:
    called = Message("assistant", thinking="hm", tool_calls=(ToolCall("c1", "weather", '{"city": "Bern"}'),))
    result = Message("tool", (Text("sunny"),), tool_call_id="c1", name="weather")
    assert chat(USER, called, result)["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "c1",
                    "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                }
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"},
    ]


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("", {}),
        (" ", {}),
        ("{}", {}),
        ('{"a":', {"raw": '{"a":'}),
        ("[1]", {"raw": "[1]"}),
        ("null", {"raw": "null"}),
        ("[" * 100_000, {"raw": "[" * 100_000}),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_arguments_of_an_earlier_call_are_always_an_object(written: str, sent: dict[str, Any]) -> None:
    body = chat(USER, Message("assistant", tool_calls=(ToolCall("c", "f", written),)))
    assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]) == sent


def test_several_texts_are_put_together_by_the_engine() -> None:
    chat = ChatRequest(model="m", messages=(Message("user", (Text("a"), Text("b"))),))
    sent = body_for(chat)["messages"][0]["content"]
    assert sent == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_images_and_sound_are_parts_and_text_alone_is_text() -> None:
    mixed = Message("user", (Text("what?"), Image("aGk=", "image/png"), Audio("aGk=", "wav")))
    assert chat(mixed)["messages"][0]["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ]


ANY_VALUE = {"type": ["object", "array", "string", "number", "boolean", "null"]}


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        (JsonFormat(), {"type": "object"}),
        (JsonFormat({"type": "integer"}), {"type": "integer"}),
        (JsonFormat({}), ANY_VALUE),
        (JsonFormat(True), ANY_VALUE),
    ],
)
def test_a_format_is_a_schema_on_both_routes(wanted: JsonFormat, schema: dict[str, Any]) -> None:
    assert chat(USER, format=wanted)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"schema": schema},
    }
    assert body_for(CompletionRequest(model="m", prompt="p", format=wanted))["json_schema"] == schema


@pytest.mark.parametrize(
    ("thinking", "arguments"),
    [
        (None, None),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_thinking_is_an_argument_of_the_template(thinking: bool | str | None, arguments: object) -> None:
    body = chat(USER, thinking=thinking, thinking_budget=100)
    assert body.get("chat_template_kwargs") == arguments
    assert body["thinking_budget_tokens"] == 100


def test_a_last_turn_of_the_assistant_is_continued_and_not_repeated() -> None:
    begun = Message("assistant", (Text("Sure,"),))
    assert (
        chat(USER, begun).items() >= {"continue_final_message": True, "add_generation_prompt": False}.items()
    )
    assert "continue_final_message" not in chat(USER, begun, USER)


@pytest.mark.parametrize(("top", "asked"), [(None, 1), (0, 1), (5, 5)])
def test_logprobs_are_asked_in_the_way_that_both_routes_take(top: int | None, asked: int) -> None:
    sampling = Sampling(logprobs=True, top_logprobs=top, logit_bias=((5, -1.5),))
    for request in (
        ChatRequest(model="m", messages=(USER,), tools=(TOOL,), sampling=sampling),
        CompletionRequest(model="m", prompt="p", sampling=sampling),
    ):
        body = body_for(request)
        assert body["n_probs"] == asked
        assert [list(each) for each in body["logit_bias"]] == [[5, -1.5]]
    assert "n_probs" not in chat(USER, sampling=Sampling(logprobs=False, top_logprobs=3))


def test_a_gap_is_filled_on_a_route_of_its_own() -> None:
    request = CompletionRequest(
        model="m", prompt="def f(", suffix="return 1", sampling=Sampling(max_tokens=3)
    )
    body = body_for(request)
    assert path_for(request) == "/infill"
    assert body.items() >= {"input_prefix": "def f(", "input_suffix": "return 1", "n_predict": 3}.items()
    assert "prompt" not in body


def test_images_stand_before_plain_text() -> None:
    images = (Image("aGk=", "image/png"), Image("aG8=", "image/png"))
    body = body_for(CompletionRequest(model="m", prompt="what?", images=images), "<here>")
    assert body["prompt"] == {"prompt_string": "<here><here>what?", "multimodal_data": ["aGk=", "aG8="]}


@pytest.mark.parametrize(
    "request_",
    [
        CompletionRequest(model="m", prompt=(1,), suffix="b"),
        CompletionRequest(model="m", prompt="a", suffix="b", images=(Image("aGk=", "image/png"),)),
        CompletionRequest(model="m", prompt=(1,), images=(Image("aGk=", "image/png"),)),
    ],
)
def test_what_no_engine_takes_is_refused(request_: CompletionRequest) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be text"):
        body_for(request_)


def test_a_prompt_is_counted_with_all_that_makes_it_and_nothing_else() -> None:
    sampling = Sampling(temperature=0.5, stop=("x",))
    request = ChatRequest(model="m", messages=(USER,), tools=(TOOL,), thinking=True, sampling=sampling)
    run, counted = body_for(request), conversation(request)
    assert counted.keys() == {"messages", "tools", "tool_choice", "chat_template_kwargs"}
    assert run.items() >= counted.items()
