import json
from dataclasses import replace
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    ChatRequest,
    Done,
    Event,
    FinishReason,
    Message,
    Progress,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import Busy, EngineFailed, ModelNotFound, NotSupported, PromptTooLong
from daemon.middleware import ollama
from daemon.middleware.dialect import Reply

CREATED = 1_767_323_045.5
CREATED_AT = "2026-01-02T03:04:05.500000000Z"
REQUEST = ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),), stream=True)
DONE = Done(FinishReason.STOP, Usage(30, 20, 7), Timings(2.0, 0.5, 0.25, 1.25))
METRICS = {
    "total_duration": 2_000_000_000,
    "load_duration": 500_000_000,
    "prompt_eval_count": 30,
    "prompt_eval_duration": 250_000_000,
    "eval_count": 7,
    "eval_duration": 1_250_000_000,
}


def stream(dialect: ollama.OllamaDialect, *events: Event) -> list[dict[str, Any]]:
    times = iter(CREATED + second for second in range(100))
    encoder = replace(dialect, clock=lambda: next(times)).encoder(REQUEST, CREATED)
    output = b"".join([encoder.feed(event) for event in events] + [encoder.finish()])
    return [json.loads(line) for line in output.splitlines()]


def test_chat_stream() -> None:
    first, second, last = stream(ollama.CHAT, Progress(1, 2), TextDelta("Hi"), TextDelta(" you"), DONE)
    content = {"role": "assistant", "content": "Hi"}
    assert first == {"model": "m", "created_at": CREATED_AT, "message": content, "done": False}
    assert second["message"]["content"] == " you"
    assert second["created_at"] == "2026-01-02T03:04:06.500000000Z"
    assert last == {
        "model": "m",
        "created_at": "2026-01-02T03:04:07.500000000Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        **METRICS,
    }


def test_generate_stream() -> None:
    first, last = stream(ollama.GENERATE, TextDelta("Hi"), Done(FinishReason.LENGTH))
    assert first == {"model": "m", "created_at": CREATED_AT, "response": "Hi", "done": False}
    assert list(last) == ["model", "created_at", "response", "done", "done_reason"]  # zeros are left out
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "length")


def test_thinking_in_a_stream() -> None:
    first, _ = stream(ollama.CHAT, ThinkingDelta("hm"), DONE)
    assert first["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    first, _ = stream(ollama.GENERATE, ThinkingDelta("hm"), DONE)
    assert (first["response"], first["thinking"]) == ("", "hm")


def test_each_call_gets_a_line_as_soon_as_it_is_whole() -> None:
    encoder = ollama.CHAT.encoder(REQUEST, CREATED)
    assert encoder.feed(ToolCallDelta(0, '{"x"', "c0", "f")) == b""
    assert encoder.feed(ToolCallDelta(0, ":1}")) == b""
    first = json.loads(encoder.feed(ToolCallDelta(1, "{", "c1", "g")))
    assert encoder.feed(Done(FinishReason.TOOL_CALLS)) == b""
    second, last = map(json.loads, encoder.finish().splitlines())
    assert [line["message"] for line in (first, second, last)] == [
        {"role": "assistant", "content": "", "tool_calls": [written]}
        if written
        else {"role": "assistant", "content": ""}
        for written in (
            {"id": "c0", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
            {"id": "c1", "function": {"index": 1, "name": "g", "arguments": {"raw": "{"}}},
            None,
        )
    ]
    assert [line["done"] for line in (first, second, last)] == [False, False, True]
    assert last["done_reason"] == "stop"


def test_a_call_that_was_cut_off_is_not_shown() -> None:
    encoder = ollama.CHAT.encoder(REQUEST, CREATED)
    encoder.feed(ToolCallDelta(0, '{"x"', "c0", "f"))
    assert encoder.fail(EngineFailed("the engine stopped")) == b'{"error":"the engine stopped"}\n'


TOP = {"token": " I", "logprob": -0.5, "bytes": [32, 73]}
SCORED = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": [TOP]}
WITHOUT_TOP = {"token": "Hi", "logprob": -0.1, "bytes": None, "top_logprobs": []}


@pytest.mark.parametrize("dialect", [ollama.CHAT, ollama.GENERATE])
def test_logprobs_stand_beside_the_text(dialect: ollama.OllamaDialect) -> None:
    deltas = [TextDelta("Hi", (SCORED,)), TextDelta("", (WITHOUT_TOP,))]
    first, second, last = stream(dialect, *deltas, DONE)
    assert first["logprobs"] == [SCORED]
    assert second["logprobs"] == [{"token": "Hi", "logprob": -0.1}]
    assert [line.get("message", {}).get("content", line.get("response")) for line in (first, second)] == [
        "Hi",
        "",
    ]
    assert "logprobs" not in last
    answer = Answer("Hi", "", (), DONE, (SCORED, WITHOUT_TOP))
    whole = json.loads(dialect.reply(REQUEST, answer, CREATED).body)
    assert whole["logprobs"] == [*first["logprobs"], *second["logprobs"]]


def test_what_could_not_be_kept_to_is_said() -> None:
    done = replace(DONE, truncated=True, warnings=("the schema was not enforced",))
    (last,) = stream(ollama.CHAT, done)
    whole = json.loads(ollama.CHAT.reply(REQUEST, Answer("", "", (), done), CREATED).body)
    for end in (last, whole):
        assert (end["truncated"], end["warnings"]) == (True, ["the schema was not enforced"])


def test_context_is_at_the_end() -> None:
    done = replace(DONE, context=(1, 2))
    *_, last = stream(ollama.GENERATE, TextDelta("Hi"), done)
    assert last["context"] == [1, 2]
    whole = json.loads(ollama.GENERATE.reply(REQUEST, Answer("Hi", "", (), done), CREATED).body)
    assert whole["context"] == [1, 2]


def test_keep_alive_is_a_chunk_without_content() -> None:
    for dialect, piece in (
        (ollama.CHAT, {"message": {"role": "assistant", "content": ""}}),
        (ollama.GENERATE, {"response": ""}),
    ):
        encoder = replace(dialect, clock=lambda: CREATED).encoder(REQUEST, CREATED)
        line = encoder.keep_alive()
        assert line.endswith(b"\n")
        assert json.loads(line) == {"model": "m", "created_at": CREATED_AT, **piece, "done": False}


def test_error_in_a_stream_is_the_last_line() -> None:
    encoder = ollama.CHAT.encoder(REQUEST, CREATED)
    encoder.feed(TextDelta("Hi"))
    assert encoder.fail(EngineFailed("the engine stopped")) == b'{"error":"the engine stopped"}\n'


def test_whole_answers() -> None:
    answer = Answer("Hi", "hm", (ToolCall("c", "f", "{}"),), DONE)
    reply = ollama.CHAT.reply(REQUEST, answer, CREATED)
    call = {"id": "c", "function": {"index": 0, "name": "f", "arguments": {}}}
    assert (reply.status, reply.media_type) == (200, "application/json; charset=utf-8")
    assert json.loads(reply.body) == {
        "model": "m",
        "created_at": CREATED_AT,
        "message": {"role": "assistant", "content": "Hi", "thinking": "hm", "tool_calls": [call]},
        "done": True,
        "done_reason": "stop",
        **METRICS,
    }
    plain = json.loads(ollama.GENERATE.reply(REQUEST, Answer("Hi", "", (), DONE), CREATED).body)
    assert plain == {
        "model": "m",
        "created_at": CREATED_AT,
        "response": "Hi",
        "done": True,
        "done_reason": "stop",
        **METRICS,
    }


def test_times_have_nine_digits_and_a_z() -> None:
    encoder = replace(ollama.CHAT, clock=lambda: 1.0000019073486328125).encoder(REQUEST, 0)
    assert json.loads(encoder.keep_alive())["created_at"] == "1970-01-01T00:00:01.000001907Z"


def test_errors() -> None:
    def body(reply: Reply) -> Any:
        assert reply.media_type == "application/json; charset=utf-8"
        return json.loads(reply.body)

    missing = ollama.CHAT.error(ModelNotFound("m"))
    assert (missing.status, body(missing)) == (404, {"error": "model 'm' not found"})
    busy = ollama.CHAT.error(Busy("the queue is full", retry_after=3))
    assert (busy.status, busy.headers) == (503, {"Retry-After": "3"})
    long = ollama.CHAT.error(PromptTooLong(9000, 4096))
    assert long.status == 400
    assert "9000" in body(long)["error"]
    assert ollama.CHAT.error(NotSupported("no")).status == 501


def test_documented_defaults() -> None:
    expected = Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.0)
    assert ollama.CHAT.defaults == ollama.GENERATE.defaults == expected
    assert ollama.CHAT.stream_media_type == "application/x-ndjson"
