import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    ChatRequest,
    CountRequest,
    Done,
    Event,
    FinishReason,
    Progress,
    Sampling,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import (
    BodyTooLarge,
    Busy,
    EngineFailed,
    EngineHung,
    Forbidden,
    InvalidRequest,
    MgrError,
    ModelNotFound,
    NotSupported,
    PromptTooLong,
    Unauthorized,
)
from daemon.framing import SseDecoder
from daemon.middleware import anthropic
from daemon.middleware.anthropic_answer import SIGNATURE

DONE = Done(FinishReason.STOP, Usage(30, 20, 7))
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 20,
    "output_tokens": 7,
}
NO_USAGE = dict.fromkeys(USAGE, 0)
HI = {"role": "user", "content": "hi"}


def parse(**body: Any) -> ChatRequest:
    whole = {"model": "m", "max_tokens": 9, "messages": [HI], **body}
    request = anthropic.MESSAGES.parse(json.dumps(whole).encode())
    assert isinstance(request, ChatRequest)
    return request


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


# ---- answers


def decoded(output: bytes) -> list[Any]:
    """The data of all events, each checked for the right name."""
    events = [(event.event, json.loads(event.data)) for event in SseDecoder().feed(output)]
    assert all(name == data["type"] for name, data in events)
    return [data for _, data in events]


def stream(*events: Event) -> list[Any]:
    encoder = anthropic.MESSAGES.encoder(parse(stream=True), 0)
    return decoded(b"".join([encoder.feed(event) for event in events] + [encoder.finish()]))


def start(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **content}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_stream() -> None:
    first, *blocks, last, end = stream(TextDelta("Hi"), TextDelta(" you"), DONE)
    assert re.fullmatch(r"msg_[0-9a-f]{24}", first["message"].pop("id"))
    assert first == {
        "type": "message_start",
        "message": {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": NO_USAGE,
        },
    }
    assert blocks == [
        start(0, type="text", text=""),
        delta(0, "text_delta", text="Hi"),
        delta(0, "text_delta", text=" you"),
        stop(0),
    ]
    assert last == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": USAGE,
    }
    assert end == {"type": "message_stop"}


def test_the_start_counts_the_prompt_that_progress_told_of() -> None:
    first, *_ = stream(Progress(20, 30, 20), Progress(30, 30, 20), TextDelta("Hi"), DONE)
    assert first["message"]["usage"] == {**USAGE, "output_tokens": 0}


def test_the_start_waits_for_content() -> None:
    encoder = anthropic.MESSAGES.encoder(parse(), 0)
    assert encoder.feed(Progress(1, 2)) == encoder.feed(TextDelta("")) == b""
    assert decoded(encoder.feed(TextDelta("Hi")))[0]["type"] == "message_start"


def test_blocks_only_when_they_have_content() -> None:
    kinds = [event["type"] for event in stream(TextDelta(""), DONE)]
    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_thinking_text_and_tools_in_a_stream() -> None:
    _, *blocks, last, _ = stream(
        ThinkingDelta("hm"),
        TextDelta("Hi"),
        ToolCallDelta(0, "", "c0", "f"),
        ToolCallDelta(0, '{"x"'),
        ToolCallDelta(0, ":1}"),
        ToolCallDelta(1, "{}", "c1", "g"),
        TextDelta("!"),
        Done(FinishReason.TOOL_CALLS),
    )
    assert blocks == [
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="hm"),
        delta(0, "signature_delta", signature=SIGNATURE),
        stop(0),
        start(1, type="text", text=""),
        delta(1, "text_delta", text="Hi"),
        stop(1),
        start(2, type="tool_use", id="c0", name="f", input={}),
        delta(2, "input_json_delta", partial_json='{"x"'),
        delta(2, "input_json_delta", partial_json=":1}"),
        stop(2),
        start(3, type="tool_use", id="c1", name="g", input={}),
        delta(3, "input_json_delta", partial_json="{}"),
        stop(3),
        start(4, type="text", text=""),
        delta(4, "text_delta", text="!"),
        stop(4),
    ]
    assert last["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("done", "reason", "sequence"),
    [
        (Done(FinishReason.STOP), "end_turn", None),
        (Done(FinishReason.STOP, stop_sequence="END"), "stop_sequence", "END"),
        (Done(FinishReason.LENGTH), "max_tokens", None),
        (Done(FinishReason.TOOL_CALLS), "tool_use", None),
    ],
)
def test_stop_reasons(done: Done, reason: str, sequence: str | None) -> None:
    expected = {"stop_reason": reason, "stop_sequence": sequence}
    *_, last, _ = stream(TextDelta("x"), done)
    assert last["delta"] == expected
    body = json.loads(anthropic.MESSAGES.reply(parse(), Answer("x", "", (), done), 0).body)
    assert {key: body[key] for key in expected} == expected


def test_what_needs_saying_stands_beside_the_answer() -> None:
    done = Done(FinishReason.STOP, truncated=True, warnings=("the schema's format is not enforced",))
    noted = {"truncated": True, "warnings": ["the schema's format is not enforced"]}
    *_, last, _ = stream(TextDelta("x"), done)
    assert last == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": NO_USAGE,
        **noted,
    }
    body = json.loads(anthropic.MESSAGES.reply(parse(), Answer("x", "", (), done), 0).body)
    assert {key: body[key] for key in noted} == noted


def test_keep_alive_is_a_ping() -> None:
    encoder = anthropic.MESSAGES.encoder(parse(), 0)
    assert encoder.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_error_in_a_stream() -> None:
    encoder = anthropic.MESSAGES.encoder(parse(), 0)
    encoder.feed(TextDelta("Hi"))
    (error,) = decoded(encoder.fail(EngineFailed("the engine stopped")) + encoder.finish())
    assert re.fullmatch(r"req_[0-9a-f]{24}", error.pop("request_id"))
    assert error == {"type": "error", "error": {"type": "api_error", "message": "the engine stopped"}}


def test_whole_answer() -> None:
    calls = (ToolCall("c0", "f", '{"x":1}'), ToolCall("c1", "g", "{"))
    reply = anthropic.MESSAGES.reply(parse(), Answer("Hi", "hm", calls, DONE), 0)
    body = json.loads(reply.body)
    assert (reply.status, reply.media_type) == (200, "application/json")
    assert re.fullmatch(r"msg_[0-9a-f]{24}", body.pop("id"))
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "c0", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "c1", "name": "g", "input": {"raw": "{"}},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_an_empty_answer_has_no_block() -> None:
    assert json.loads(anthropic.MESSAGES.reply(parse(), Answer("", "", (), DONE), 0).body)["content"] == []


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (InvalidRequest("no"), 400, "invalid_request_error", "no"),
        (PromptTooLong(9, 4), 400, "invalid_request_error", "prompt is too long: 9 tokens > 4 maximum"),
        (PromptTooLong(0, 0), 400, "invalid_request_error", "prompt is too long"),
        (Unauthorized("no"), 401, "authentication_error", "no"),
        (Forbidden("no"), 403, "permission_error", "no"),
        (ModelNotFound("m"), 404, "not_found_error", "model 'm' not found"),
        (BodyTooLarge("no"), 413, "request_too_large", "no"),
        (Busy("full", 2), 529, "overloaded_error", "full"),
        (NotSupported("no"), 400, "invalid_request_error", "no"),
        (EngineFailed("broken"), 502, "api_error", "broken"),
        (EngineHung("silent"), 504, "timeout_error", "silent"),
        (MgrError("internal"), 500, "api_error", "internal"),
    ],
)
def test_errors(error: MgrError, status: int, kind: str, message: str) -> None:
    reply = anthropic.MESSAGES.error(error)
    body = json.loads(reply.body)
    assert reply.status == status
    assert re.fullmatch(r"req_[0-9a-f]{24}", body.pop("request_id"))
    assert body == {"type": "error", "error": {"type": kind, "message": message}}


def test_headers_about_trying_again() -> None:
    assert anthropic.MESSAGES.error(Busy("full", 2)).headers == {"Retry-After": "2"}


def test_no_defaults() -> None:
    assert anthropic.MESSAGES.defaults == Sampling()
    assert anthropic.MESSAGES.stream_media_type == "text/event-stream"


# ---- counts and models


def test_count() -> None:
    reply = anthropic.COUNT_TOKENS.counted(CountRequest(chat=parse()), 42)
    assert (reply.status, json.loads(reply.body)) == (200, {"input_tokens": 42})


def test_models() -> None:
    old = ("a:latest", datetime(2026, 1, 2, 3, 4, 5, 600, UTC))
    new = ("hf.co/b/c:q4", datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2))))
    shown = {
        "type": "model",
        "id": "a:latest",
        "display_name": "a:latest",
        "created_at": "2026-01-02T03:04:05Z",
        "lifecycle": "active",
    }
    assert anthropic.model_one(old) == shown
    listed = anthropic.models_list([old, new])
    assert listed["data"] == [shown, {**shown, "id": "hf.co/b/c:q4", "display_name": "hf.co/b/c:q4"}]
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "a:latest", "hf.co/b/c:q4")


def test_no_models() -> None:
    assert anthropic.models_list([]) == {"data": [], "has_more": False, "first_id": None, "last_id": None}
