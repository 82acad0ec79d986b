import json
import re
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    Batch,
    ChatRequest,
    Choice,
    Done,
    Event,
    FinishReason,
    LoadRequest,
    Progress,
    Sampling,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import (
    Busy,
    EngineFailed,
    EngineHung,
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
    request = parse_any(**body)
    assert isinstance(request, ChatRequest)
    return request


def parse_any(**body: Any) -> Any:
    return openai.CHAT.parse(json.dumps({"model": "m", "messages": [HI], **body}).encode())


def batch(**body: Any) -> Batch:
    request = parse_any(**body)
    assert isinstance(request, Batch)
    return request


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
        ({"role": "assistant", "reasoning_content": "hm", "reasoning": "hm"}, None),
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
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_whole_answer_with_thinking_and_tool_calls() -> None:
    answer = Answer("", "hm", (ToolCall("c", "f", '{"x":'),), Done(FinishReason.TOOL_CALLS))
    (only,) = json.loads(openai.CHAT.reply(parse(), answer, CREATED).body)["choices"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":'}}
    assert only["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "reasoning": "hm",
        "tool_calls": [call],
    }
    assert only["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("no"), 400, "invalid_request_error", None),
        (ModelNotFound("m"), 404, "not_found_error", "model_not_found"),
        (NotFound("no"), 404, "not_found_error", None),
        (Unauthorized("no"), 401, "authentication_error", "invalid_api_key"),
        (NotSupported("no"), 400, "invalid_request_error", None),
        (Busy("full", 2), 503, "api_error", "server_is_overloaded"),
        (EngineFailed("broken"), 502, "api_error", None),
        (EngineHung("silent"), 504, "api_error", None),
        (MgrError("internal"), 500, "api_error", None),
    ],
)
def test_errors(error: MgrError, status: int, kind: str, code: str | None) -> None:
    reply = openai.CHAT.error(error)
    assert reply.status == status
    assert json.loads(reply.body) == {
        "error": {"message": error.message, "type": kind, "param": None, "code": code}
    }


def test_a_prompt_that_is_too_long_is_told_in_openais_words() -> None:
    reply = openai.CHAT.error(PromptTooLong(9, 4))
    assert reply.status == 400
    assert json.loads(reply.body)["error"] == {
        "message": "This model's maximum context length is 4 tokens. However, the prompt has 9 tokens and the "
        "context window has 4; shorten it, or ask for a larger window",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }
    unknown = json.loads(openai.CHAT.error(PromptTooLong(0, 0)).body)["error"]
    assert unknown["message"] == "the prompt is longer than this model's maximum context length; shorten it"
    assert unknown["code"] == "context_length_exceeded"


def test_headers_about_trying_again() -> None:
    assert openai.CHAT.error(Busy("full", 2)).headers == {"Retry-After": "2"}


def test_no_defaults_and_no_load_request() -> None:
    assert openai.CHAT.defaults == Sampling()
    assert openai.CHAT.stream_media_type == "text/event-stream"
    with pytest.raises(TypeError):
        openai.CHAT.loaded(LoadRequest(model="m"), CREATED)


SCORED = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}


def test_logprobs_come_with_their_text() -> None:
    first, second, last, _ = stream(TextDelta("Hi", (SCORED,)), TextDelta("", (SCORED,)), DONE, logprobs=True)
    assert choice(first) == ({"role": "assistant", "content": "Hi"}, None)
    assert choice(second) == ({"content": ""}, None)
    for chunk in (first, second):
        assert chunk["choices"][0]["logprobs"] == {"content": [SCORED], "refusal": None}
    assert choice(last) == ({}, "stop")
    reply = openai.CHAT.reply(parse(logprobs=True), Answer("Hi", "", (), DONE, (SCORED, SCORED)), CREATED)
    (only,) = json.loads(reply.body)["choices"]
    assert only["logprobs"] == {"content": [SCORED, SCORED], "refusal": None}


def test_what_has_to_be_said_is_said_beside_the_format() -> None:
    done = Done(FinishReason.STOP, truncated=True, warnings=("a", "b"))
    *_, last, end = stream(TextDelta("Hi"), done)
    assert (last["truncated"], last["warnings"], end) == (True, ["a", "b"], "[DONE]")
    body = json.loads(openai.CHAT.reply(parse(), Answer("Hi", "", (), done), CREATED).body)
    assert (body["truncated"], body["warnings"]) == (True, ["a", "b"])


# ---- several answers


def side_by_side(request: Batch, *events: tuple[int, Event]) -> list[Any]:
    encoder = openai.CHAT.batch_encoder(request, CREATED)
    output = b"".join(encoder.feed_choice(Choice(*event)) for event in events)
    return chunks(output + encoder.finish())


def test_each_choice_of_a_stream_has_its_role_and_its_end() -> None:
    *deltas, usage, end = side_by_side(
        batch(n=2, stream=True, stream_options={"include_usage": True}),
        (1, TextDelta("b")),
        (0, Progress(1, 2)),
        (0, TextDelta("a")),
        (1, TextDelta("d")),
        (1, Done(FinishReason.LENGTH, Usage(30, 20, 5))),
        (0, TextDelta("c")),
        (0, Done(FinishReason.STOP, Usage(30, 10, 7))),
    )
    assert [
        (only["index"], only["delta"], only["finish_reason"]) for [only] in (d["choices"] for d in deltas)
    ] == [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "b"}, None),
        (0, {"content": "a"}, None),
        (1, {"content": "d"}, None),
        (1, {}, "length"),
        (0, {"content": "c"}, None),
        (0, {}, "stop"),
    ]
    assert len({chunk["id"] for chunk in [*deltas, usage]}) == 1
    # The prompt is the same for all, and counts once.
    assert usage["usage"]["prompt_tokens"] == 30
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 10
    assert usage["usage"]["completion_tokens"] == 12
    assert (usage["choices"], end) == ([], "[DONE]")


def test_a_batch_ends_only_when_all_have_ended() -> None:
    encoder = openai.CHAT.batch_encoder(batch(n=2, stream=True), CREATED)
    encoder.feed_choice(Choice(0, DONE))
    (error,) = chunks(encoder.finish())
    assert error["error"]["message"] == "the engine's answer broke off"
    assert encoder.finish() == encoder.fail(Busy("x")) == encoder.keep_alive() == b""
    assert encoder.feed_choice(Choice(1, TextDelta("late"))) == b""


def test_an_error_ends_a_batch() -> None:
    encoder = openai.CHAT.batch_encoder(batch(n=2, stream=True), CREATED)
    assert encoder.keep_alive() == b": keep-alive\n\n"
    assert encoder.feed_choice(Choice(0, TextDelta("Hi"))) != b""
    (error,) = chunks(encoder.fail(EngineFailed("the engine stopped")))
    assert error["error"]["message"] == "the engine stopped"
    assert encoder.feed_choice(Choice(1, TextDelta("x"))) + encoder.finish() == b""


def test_several_whole_answers() -> None:
    answers = [
        Answer("a", "", (), Done(FinishReason.STOP, Usage(30, 20, 5), warnings=("w",))),
        Answer("b", "", (), Done(FinishReason.LENGTH, Usage(30, 30, 7), truncated=True, warnings=("w",))),
    ]
    body = json.loads(openai.CHAT.replies(batch(n=2), answers, CREATED).body)
    assert [
        (each["index"], each["message"]["content"], each["finish_reason"]) for each in body["choices"]
    ] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert body["usage"] == {**USAGE, "completion_tokens": 12, "total_tokens": 42}
    assert (body["truncated"], body["warnings"]) == (True, ["w"])
