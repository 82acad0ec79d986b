import json
import math
from dataclasses import replace
from typing import Any

import pytest

from daemon.chat import (
    Answer,
    ChatRequest,
    CompletionRequest,
    Done,
    Event,
    FinishReason,
    LoadOptions,
    LoadRequest,
    Message,
    Progress,
    Request,
    Sampling,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import Busy, EngineFailed, InvalidRequest, ModelNotFound, NotSupported, PromptTooLong
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect, Reply

CREATED = 1_767_323_045.5
CREATED_AT = "2026-01-02T03:04:05.500000000Z"
DONE = Done(FinishReason.STOP, Usage(30, 20, 7), Timings(2.0, 0.5, 0.25, 1.25))
METRICS = {
    "total_duration": 2_000_000_000,
    "load_duration": 500_000_000,
    "prompt_eval_count": 30,
    "prompt_eval_duration": 250_000_000,
    "eval_count": 7,
    "eval_duration": 1_250_000_000,
}


def parse(dialect: Dialect, **body: Any) -> Request:
    return dialect.parse(json.dumps({"model": "m", **body}).encode())


def chat(*messages: Any, **body: Any) -> ChatRequest:
    request = parse(ollama.CHAT, messages=list(messages), **body)
    assert isinstance(request, ChatRequest)
    return request


def generate(**body: Any) -> Request:
    return parse(ollama.GENERATE, **body)


def user(text: str) -> Message:
    return Message("user", (Text(text),))


HI = {"role": "user", "content": "hi"}


# ---- /api/chat


def test_chat() -> None:
    request = chat(
        {"role": "System", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "thinking": "hm"},
        {"role": "user", "content": "c"},
    )
    assert request == ChatRequest(
        model="m",
        messages=(
            Message("system", (Text("be brief"),)),
            user("a"),
            Message("assistant", (Text("b"),), thinking="hm"),
            user("c"),
        ),
        stream=True,
    )


def test_developer_is_system_and_content_may_be_null() -> None:
    request = chat({"role": "developer", "content": "x"}, {"role": "assistant", "content": None}, HI)
    assert request.messages == (Message("system", (Text("x"),)), Message("assistant"), user("hi"))


def test_stream_is_on_unless_switched_off() -> None:
    assert chat(HI).stream is True
    assert chat(HI, stream=None).stream is True
    assert chat(HI, stream=False).stream is False


def test_options() -> None:
    request = chat(
        HI,
        keep_alive="5m",
        options={
            "num_predict": 12,
            "seed": 1,
            "temperature": 3,
            "top_k": 5.0,
            "stop": "x",
            "num_ctx": 2048,
            "num_gpu": 0,
            "num_thread": 2,
            "num_batch": 256,
            "main_gpu": 1,
            "use_mmap": False,
            "mirostat": "nobody knows this option",
        },
    )
    assert request.sampling == Sampling(max_tokens=12, seed=1, temperature=3, top_k=5, stop=("x",))
    assert request.load == LoadOptions(
        window=2048, gpu_layers=0, threads=2, batch=256, main_gpu=1, mmap=False
    )
    assert request.keep_alive == 300


def test_automatic_options() -> None:
    automatic = {"num_ctx": 0, "num_gpu": -1, "num_thread": 0, "num_batch": 0, "main_gpu": None}
    assert chat(HI, options=automatic).load == LoadOptions()
    assert chat(HI, options=None).load == LoadOptions()
    assert chat(HI, options={"num_ctx": 1}).load == LoadOptions(window=4)


@pytest.mark.parametrize(("given", "read"), [(-1, -1), (-2, -1), (1, 1), (2**31 - 1, 2**31 - 1)])
def test_num_predict(given: int, read: int) -> None:
    assert chat(HI, options={"num_predict": given}).sampling.max_tokens == read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ctx": "4096"}, 'options.num_ctx must be an integer from 0 to 16777216, not "4096"'),
        ({"num_ctx": -1}, "options.num_ctx must be an integer from 0 to 16777216, not -1"),
        ({"num_ctx": 2**24 + 1}, "options.num_ctx must be an integer from 0 to 16777216, not 16777217"),
        ({"num_predict": 2**31}, "options.num_predict must be an integer"),
        ({"num_predict": 0}, "options.num_predict must be at least 1, or -1 for no limit, not 0"),
        ({"temperature": "hot"}, 'options.temperature must be a number from 0 to 100, not "hot"'),
        ({"use_mmap": 1}, "options.use_mmap must be true or false, not 1"),
        ({"num_gpu": True}, "options.num_gpu must be an integer"),
        ({"num_gpu": -2}, "options.num_gpu must be an integer"),
        ({"num_thread": 10**9}, "options.num_thread must be an integer"),
        ({"num_batch": 1.5}, "options.num_batch must be an integer"),
        ({"main_gpu": -1}, "options.main_gpu must be an integer"),
        ({"stop": [1]}, "options.stop must be a string or an array of strings"),
        ([], "options must be an object, not an array"),
    ],
)
def test_wrong_options_are_400_and_named(options: Any, message: str) -> None:
    for dialect in (ollama.CHAT, ollama.GENERATE):
        with pytest.raises(InvalidRequest) as caught:
            parse(dialect, messages=[HI], prompt="x", options=options)
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": ""}, "model is required"),
        ({"model": 5}, "model must be a string, not 5"),
        ({"messages": {}}, "messages must be an array, not an object"),
        ({"messages": ["hi"]}, 'messages[0] must be an object, not "hi"'),
        ({"messages": [HI, {"role": "robot"}]}, "messages[1].role must be one of"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content must be a string"),
        ({"stream": "yes"}, 'stream must be true or false, not "yes"'),
        ({"keep_alive": "5"}, "keep_alive must be a number of seconds"),
        ({"truncate": 1}, "truncate must be true or false, not 1"),
        ({"shift": "x"}, "shift must be true or false"),
    ],
)
def test_wrong_chat_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ollama.CHAT, **{"messages": [HI], **body})
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"format": "json"}, "format"),
        ({"format": {"type": "object"}}, "format"),
        ({"think": True}, "think"),
        ({"think": "high"}, "think"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls"),
        ({"messages": [{**HI, "images": ["aGk="]}]}, "messages[0].images"),
    ],
)
def test_what_is_not_built_is_said(body: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(ollama.CHAT, **{"messages": [HI], **body})
    assert caught.value.message.startswith(f"{field} ")


def test_values_that_mean_off_are_accepted() -> None:
    off = {"tools": [], "format": "", "think": False, "logprobs": False, "top_logprobs": 0, "truncate": False}
    message: Any = {**HI, "images": [], "tool_calls": None}
    assert chat(message, **off, shift=True, unknown={"a": 1}) == chat(HI)
    assert chat(message, tools=None, format=None, think=None, truncate=True) == chat(HI)


@pytest.mark.parametrize(
    ("body", "keep_alive", "reason"),
    [
        ({}, None, "load"),
        ({"keep_alive": "1m"}, 60, "load"),
        ({"keep_alive": -1}, math.inf, "load"),
        ({"keep_alive": 0}, 0, "unload"),
        ({"keep_alive": "0s", "stream": True}, 0, "unload"),
    ],
)
def test_an_empty_request_loads_or_unloads(
    body: dict[str, Any], keep_alive: float | None, reason: str
) -> None:
    for dialect, empty, piece in (
        (ollama.CHAT, {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        (ollama.CHAT, {}, {"message": {"role": "assistant", "content": ""}}),
        (ollama.GENERATE, {"prompt": ""}, {"response": ""}),
        (ollama.GENERATE, {"raw": True}, {"response": ""}),
    ):
        request = parse(dialect, options={"num_ctx": 64}, **empty, **body)
        assert request == LoadRequest(model="m", load=LoadOptions(window=64), keep_alive=keep_alive)
        reply = dialect.loaded(request, CREATED)
        assert (reply.status, reply.media_type) == (200, "application/json; charset=utf-8")
        head = {"model": "m", "created_at": CREATED_AT}
        assert json.loads(reply.body) == {**head, **piece, "done": True, "done_reason": reason}


# ---- /api/generate


def test_generate_is_a_chat() -> None:
    assert generate(prompt="hi", system="be brief") == ChatRequest(
        model="m", messages=(Message("system", (Text("be brief"),)), user("hi")), stream=True
    )
    assert generate(prompt="hi", system="", stream=False) == ChatRequest(
        model="m", messages=(user("hi"),), stream=False
    )


def test_raw_generate_is_a_completion() -> None:
    assert generate(prompt="<s>hi", raw=True, stream=False, options={"seed": 3}) == CompletionRequest(
        model="m", prompt="<s>hi", sampling=Sampling(seed=3), stream=False
    )


@pytest.mark.parametrize("field", ["template", "system", "context"])
def test_raw_mode_takes_nothing_else(field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^raw mode does not support template, system, or context$"):
        generate(prompt="hi", raw=True, **{field: [1] if field == "context" else "x"})
    empty: Any = [] if field == "context" else ""
    assert isinstance(generate(prompt="hi", raw=True, **{field: empty}), CompletionRequest)


@pytest.mark.parametrize(
    ("field", "value"),
    [("suffix", "x"), ("template", "x"), ("context", [1, 2]), ("images", ["aGk="]), ("think", True)],
)
def test_generate_says_what_is_not_built(field: str, value: Any) -> None:
    with pytest.raises(NotSupported, match=f"^{field} is not supported; leave it out$"):
        generate(prompt="hi", **{field: value})


def test_generate_wants_text() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt must be a string, not an array$"):
        generate(prompt=["hi"])
    with pytest.raises(InvalidRequest, match=r"^system must be a string"):
        generate(prompt="hi", system={})
    with pytest.raises(InvalidRequest, match=r"^raw must be true or false"):
        generate(prompt="hi", raw="yes")


# ---- answers


def stream(dialect: ollama.OllamaDialect, *events: Event) -> list[dict[str, Any]]:
    times = iter(CREATED + second for second in range(100))
    encoder = replace(dialect, clock=lambda: next(times)).encoder(chat(HI), CREATED)
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


def test_thinking_and_tool_calls_in_a_stream() -> None:
    calls = [
        ToolCallDelta(0, '{"x"', "c0", "f"),
        ToolCallDelta(0, ":1}"),
        ToolCallDelta(1, "{", "c1", "g"),
    ]
    first, last = stream(ollama.CHAT, ThinkingDelta("hm"), *calls, Done(FinishReason.TOOL_CALLS))
    assert first["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert last["message"]["tool_calls"] == [
        {"id": "c0", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {"id": "c1", "function": {"index": 1, "name": "g", "arguments": {"raw": "{"}}},
    ]
    assert last["done_reason"] == "stop"


def test_keep_alive_is_a_chunk_without_content() -> None:
    for dialect, piece in (
        (ollama.CHAT, {"message": {"role": "assistant", "content": ""}}),
        (ollama.GENERATE, {"response": ""}),
    ):
        encoder = replace(dialect, clock=lambda: CREATED).encoder(chat(HI), CREATED)
        line = encoder.keep_alive()
        assert line.endswith(b"\n")
        assert json.loads(line) == {"model": "m", "created_at": CREATED_AT, **piece, "done": False}


def test_error_in_a_stream_is_the_last_line() -> None:
    encoder = ollama.CHAT.encoder(chat(HI), CREATED)
    encoder.feed(TextDelta("Hi"))
    assert encoder.fail(EngineFailed("the engine stopped")) == b'{"error":"the engine stopped"}\n'


def test_whole_answers() -> None:
    answer = Answer("Hi", "hm", (ToolCall("c", "f", "{}"),), DONE)
    reply = ollama.CHAT.reply(chat(HI), answer, CREATED)
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
    plain = json.loads(ollama.GENERATE.reply(chat(HI), Answer("Hi", "", (), DONE), CREATED).body)
    assert plain == {
        "model": "m",
        "created_at": CREATED_AT,
        "response": "Hi",
        "done": True,
        "done_reason": "stop",
        **METRICS,
    }


def test_times_have_nine_digits_and_a_z() -> None:
    encoder = replace(ollama.CHAT, clock=lambda: 1.0000019073486328125).encoder(chat(HI), 0)
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
