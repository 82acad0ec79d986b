import json
import math
import re
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    ChatRequest,
    Done,
    Event,
    FinishReason,
    LoadRequest,
    Message,
    Progress,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import (
    Busy,
    EngineFailed,
    InvalidRequest,
    MgrError,
    ModelNotFound,
    NotFound,
    NotSupported,
    PromptTooLong,
    Unauthorized,
)
from daemon.framing import SseDecoder
from daemon.middleware import openai

CREATED = 1_767_323_045.9
DONE = Done(FinishReason.STOP, Usage(30, 20, 7))
USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 7,
    "total_tokens": 37,
    "prompt_tokens_details": {"cached_tokens": 20},
}
HI = {"role": "user", "content": "hi"}


def parse(**body: Any) -> ChatRequest:
    request = openai.CHAT.parse(json.dumps({"model": "m", "messages": [HI], **body}).encode())
    assert isinstance(request, ChatRequest)
    return request


# ---- requests


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
        Message("system", (Text("be kind"),)),
        Message("user", (Text("a"),), name="ann"),
        Message("assistant"),
        Message("assistant", (Text("b"),), thinking="hm"),
        Message("assistant", (Text("c"),), thinking="mh"),
        Message("assistant", (Text("no"),)),
        Message("assistant", (Text("never"),)),
        Message("user", (Text(""),)),
    )


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
        ({"n": 0}, "n must be an integer from 1 to 128, not 0"),
        ({"n": True}, "n must be an integer from 1 to 128, not true"),
        ({"keep_alive": "soon"}, "keep_alive must be a number of seconds"),
        ({"response_format": "json"}, "response_format must be an object"),
    ],
)
def test_wrong_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.type"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ],
)
def test_what_is_not_built_is_said(body: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(**body)
    assert caught.value.message.startswith(f"{field} ")
    error = json.loads(openai.CHAT.error(caught.value).body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)


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
        "reasoning_effort": "none",
    }
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": False,
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "unknown": [1],
    }
    assert parse(**off, **harmless) == parse()
    assert parse(tools=None, tool_choice="none", logprobs=None, n=None, response_format=None) == parse()


# ---- answers


def chunks(output: bytes) -> list[Any]:
    events = SseDecoder().feed(output)
    assert {event.event for event in events} == {"message"}
    return [event.data.decode() if event.data == b"[DONE]" else json.loads(event.data) for event in events]


def stream(*events: Event, **body: Any) -> list[Any]:
    encoder = openai.CHAT.encoder(parse(stream=True, **body), CREATED)
    return chunks(b"".join([encoder.feed(event) for event in events] + [encoder.finish()]))


def choice(chunk: Any) -> Any:
    (only,) = chunk["choices"]
    assert only["index"] == 0
    return only["delta"], only["finish_reason"]


def test_stream() -> None:
    first, second, last, end = stream(Progress(1, 2), TextDelta("Hi"), TextDelta(" you"), DONE)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", first["id"])
    assert first == {
        "id": first["id"],
        "object": "chat.completion.chunk",
        "created": 1_767_323_045,
        "model": "m",
        "system_fingerprint": "fp_mgr",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
    }
    assert choice(second) == ({"content": " you"}, None)
    assert choice(last) == ({}, "stop")
    assert {chunk["id"] for chunk in (first, second, last)} == {first["id"]}
    assert "usage" not in last
    assert end == "[DONE]"


def test_stream_with_usage() -> None:
    *_, last, usage, end = stream(TextDelta("Hi"), DONE, stream_options={"include_usage": True})
    assert choice(last) == ({}, "stop")
    assert (usage["choices"], usage["usage"]) == ([], USAGE)
    assert usage["id"] == last["id"]
    assert end == "[DONE]"


def test_empty_stream_still_has_a_role() -> None:
    only, end = stream(Done(FinishReason.LENGTH))
    assert choice(only) == ({"role": "assistant", "content": ""}, "length")
    assert end == "[DONE]"


def test_thinking_and_tool_calls_in_a_stream() -> None:
    deltas = stream(
        ThinkingDelta("hm"),
        TextDelta("Hi"),
        ToolCallDelta(0, "", "c0", "f"),
        ToolCallDelta(0, '{"x":1}'),
        ToolCallDelta(1, "{}", "c1", "g"),
        Done(FinishReason.TOOL_CALLS),
    )[:-1]
    assert [choice(delta) for delta in deltas] == [
        ({"role": "assistant", "reasoning_content": "hm"}, None),
        ({"content": "Hi"}, None),
        (
            {
                "tool_calls": [
                    {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}
                ]
            },
            None,
        ),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]}, None),
        (
            {
                "tool_calls": [
                    {"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}}
                ]
            },
            None,
        ),
        ({}, "tool_calls"),
    ]


def test_keep_alive_is_a_comment() -> None:
    encoder = openai.CHAT.encoder(parse(), CREATED)
    assert encoder.keep_alive() == b": keep-alive\n\n"
    assert SseDecoder().feed(encoder.keep_alive()) == []


def test_error_in_a_stream_ends_it_without_done() -> None:
    encoder = openai.CHAT.encoder(parse(), CREATED)
    encoder.feed(TextDelta("Hi"))
    output = encoder.fail(EngineFailed("the engine stopped")) + encoder.finish()
    error = {"message": "the engine stopped", "type": "api_error", "param": None, "code": None}
    assert chunks(output) == [{"error": error}]


def test_whole_answer() -> None:
    reply = openai.CHAT.reply(parse(), Answer("Hi", "", (), DONE), CREATED)
    body = json.loads(reply.body)
    assert (reply.status, reply.media_type) == (200, "application/json")
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", body.pop("id"))
    assert body == {
        "object": "chat.completion",
        "created": 1_767_323_045,
        "model": "m",
        "system_fingerprint": "fp_mgr",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def test_whole_answer_with_thinking_and_tool_calls() -> None:
    answer = Answer("", "hm", (ToolCall("c", "f", '{"x":'),), Done(FinishReason.TOOL_CALLS))
    (only,) = json.loads(openai.CHAT.reply(parse(), answer, CREATED).body)["choices"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":'}}
    assert only["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [call],
    }
    assert only["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("no"), 400, "invalid_request_error", None),
        (PromptTooLong(9, 4), 400, "invalid_request_error", "context_length_exceeded"),
        (ModelNotFound("m"), 404, "not_found_error", "model_not_found"),
        (NotFound("no"), 404, "not_found_error", None),
        (Unauthorized("no"), 401, "authentication_error", "invalid_api_key"),
        (NotSupported("no"), 400, "invalid_request_error", None),
        (Busy("full", 2), 503, "api_error", None),
        (EngineFailed("broken"), 502, "api_error", None),
        (MgrError("internal"), 500, "api_error", None),
    ],
)
def test_errors(error: MgrError, status: int, kind: str, code: str | None) -> None:
    reply = openai.CHAT.error(error)
    assert reply.status == status
    assert json.loads(reply.body) == {
        "error": {"message": error.message, "type": kind, "param": None, "code": code}
    }


def test_headers_about_trying_again() -> None:
    assert openai.CHAT.error(Busy("full", 2)).headers == {"Retry-After": "2"}


def test_no_defaults_and_no_load_request() -> None:
    assert openai.CHAT.defaults == Sampling()
    assert openai.CHAT.stream_media_type == "text/event-stream"
    with pytest.raises(TypeError):
        openai.CHAT.loaded(LoadRequest(model="m"), CREATED)
