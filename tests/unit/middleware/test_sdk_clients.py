"""The official clients of the three APIs read what the dialects write, keep-alives and errors included.

They run with a transport that answers from memory.
"""

import importlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic as anthropic_sdk
import httpx
import ollama as ollama_sdk
import openai as openai_sdk
import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from daemon.chat import (
    Answer,
    Done,
    Event,
    FinishReason,
    LoadRequest,
    Progress,
    TextDelta,
    ThinkingDelta,
    Timings,
    TokenRequest,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed, ModelNotFound
from daemon.framing import NdjsonDecoder, SseDecoder
from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.dialect import Dialect, Reply

DONE = Done(FinishReason.TOOL_CALLS, Usage(30, 20, 7), Timings(2.0, 0.5, 0.25, 1.25))
EVENTS: list[Event] = [
    Progress(10, 30, 20),
    ThinkingDelta("hm"),
    TextDelta("Hi"),
    TextDelta(" \u2028you"),
    ToolCallDelta(0, "", "c0", "f"),
    ToolCallDelta(0, '{"x"'),
    ToolCallDelta(0, ":1}"),
    DONE,
]
ANSWER = Answer("Hi \u2028you", "hm", (ToolCall("c0", "f", '{"x":1}'),), DONE)
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def request_from(dialect: Dialect, body: bytes) -> TokenRequest:
    request = dialect.parse(body)
    assert not isinstance(request, LoadRequest)
    return request  # type: ignore[return-value]


def served(dialect: Dialect, body: bytes, failure: str | None = None) -> Reply:
    """What the daemon would answer to this body, with a keep-alive before every event."""
    request = dialect.parse(body)
    if isinstance(request, LoadRequest):
        return dialect.loaded(request, 0)
    if not request.stream:
        return dialect.reply(request_from(dialect, body), ANSWER, 0)
    encoder = dialect.encoder(request_from(dialect, body), 0)
    events = EVENTS[:4] if failure else EVENTS
    output = b"".join(encoder.keep_alive() + encoder.feed(event) for event in events)
    output += encoder.fail(EngineFailed(failure)) if failure else encoder.finish()
    return Reply(200, output, dialect.stream_media_type)


def http_of(sdk: Any) -> Any:
    """The HTTP library that a version of an SDK uses."""
    bases: tuple[type, ...] = sdk.DefaultHttpxClient.__mro__
    names = [base.__module__.partition(".")[0] for base in bases]
    return importlib.import_module(next(name for name in names if name.startswith("httpx")))


def transport(http: Any, routes: dict[str, Dialect], failure: str | None = None) -> Any:
    def handle(request: Any) -> Any:
        reply = served(routes[request.url.path], request.content, failure)
        headers = {"content-type": reply.media_type, **reply.headers}
        return http.Response(reply.status, content=reply.body, headers=headers)

    return http.MockTransport(handle)


# ---- Ollama


@pytest.fixture
def ollama_client() -> Iterator[Any]:
    routes: dict[str, Dialect] = {"/api/chat": ollama.CHAT, "/api/generate": ollama.GENERATE}
    client: Any = ollama_sdk.Client("http://mgr.test", transport=transport(httpx, routes))
    yield client
    client.close()


def test_ollama_chat(ollama_client: Any) -> None:
    whole = ollama_client.chat("m", MESSAGES)
    chunks = list(ollama_client.chat("m", MESSAGES, stream=True, options={"temperature": 0}, keep_alive="5m"))
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content == ANSWER.text
    assert "".join(chunk.message.thinking or "" for chunk in chunks) == whole.message.thinking == "hm"
    last = chunks[-1]
    for end in (whole, last):
        (call,) = end.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("f", {"x": 1})
        assert (end.done, end.done_reason, end.prompt_eval_count, end.eval_count) == (True, "stop", 30, 7)
        assert end.total_duration == 2_000_000_000
    assert not any(chunk.done for chunk in chunks[:-1])


def test_ollama_generate(ollama_client: Any) -> None:
    whole = ollama_client.generate("m", "hi", raw=True)
    chunks = list(ollama_client.generate("m", "hi", system="s", stream=True))
    assert "".join(chunk.response or "" for chunk in chunks) == whole.response == ANSWER.text
    assert (chunks[-1].done, chunks[-1].done_reason) == (True, "stop")


def test_ollama_load_and_unload(ollama_client: Any) -> None:
    assert ollama_client.chat("m").done_reason == "load"
    assert ollama_client.generate("m", keep_alive=0).done_reason == "unload"


def test_ollama_error_in_a_stream() -> None:
    mocked = transport(httpx, {"/api/chat": ollama.CHAT}, "the engine stopped")
    client: Any = ollama_sdk.Client("http://mgr.test", transport=mocked)
    with pytest.raises(ollama_sdk.ResponseError, match="the engine stopped"):
        list(client.chat("m", MESSAGES, stream=True))
    client.close()


def test_a_blank_line_would_break_ollamas_client() -> None:
    """Why the keep-alive of Ollama's dialect is a chunk; when this fails, a line end would do."""
    answer = httpx.MockTransport(lambda _: httpx.Response(200, content=b"\n"))
    client: Any = ollama_sdk.Client("http://mgr.test", transport=answer)
    with pytest.raises(json.JSONDecodeError):
        list(client.chat("m", MESSAGES, stream=True))
    client.close()


# ---- OpenAI


def openai_client(failure: str | None = None) -> Any:
    http = http_of(openai_sdk)
    mocked = transport(http, {"/v1/chat/completions": openai.CHAT}, failure)
    return openai_sdk.OpenAI(
        base_url="http://mgr.test/v1",
        api_key="none",
        http_client=http.Client(transport=mocked),
        max_retries=0,
    )


def test_openai_whole_answer() -> None:
    with openai_client() as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (ANSWER.text, "tool_calls")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (30, 37)


def test_openai_stream() -> None:
    with openai_client() as client:
        chunks: Any = client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        *deltas, usage = list(chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == ANSWER.text
    assert [chunk.choices[0].finish_reason for chunk in deltas][-2:] == [None, "tool_calls"]
    assert (usage.choices, usage.usage.prompt_tokens_details.cached_tokens) == ([], 20)


def test_openai_stream_helper_puts_tool_calls_together() -> None:
    with openai_client() as client, client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        answer = stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("c0", "f", '{"x":1}')


def test_openai_error_in_a_stream() -> None:
    with openai_client("the engine stopped") as client:
        chunks = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai_sdk.APIError, match="the engine stopped"):
            list(chunks)


def test_openai_types() -> None:
    body = json.dumps(
        {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    )
    events = SseDecoder().feed(served(openai.CHAT, body.encode()).body)
    for event in events[:-1]:
        ChatCompletionChunk.model_validate_json(event.data, strict=True)
    reply = openai.CHAT.reply(request_from(openai.CHAT, body.encode()), ANSWER, 0)
    ChatCompletion.model_validate_json(reply.body, strict=True)


# ---- Anthropic


def anthropic_client(failure: str | None = None) -> Any:
    http = http_of(anthropic_sdk)
    mocked = transport(http, {"/v1/messages": anthropic.MESSAGES}, failure)
    return anthropic_sdk.Anthropic(
        base_url="http://mgr.test", api_key="none", http_client=http.Client(transport=mocked), max_retries=0
    )


def test_anthropic_whole_answer() -> None:
    with anthropic_client() as client:
        answer = client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("tool_use", 10, 7)


def test_anthropic_stream() -> None:
    with (
        anthropic_client() as client,
        client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream,
    ):
        answer = stream.get_final_message()
    thinking, text, call = answer.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "hm"
    assert text.type == "text"
    assert text.text == ANSWER.text
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("c0", "f", {"x": 1})
    assert answer.stop_reason == "tool_use"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (10, 20)


def test_anthropic_error_in_a_stream() -> None:
    with anthropic_client("the engine stopped") as client:
        chunks = client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
        with pytest.raises(anthropic_sdk.APIError, match="the engine stopped"):
            list(chunks)


def test_anthropic_types() -> None:
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": MESSAGES, "stream": True})
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    events = SseDecoder().feed(served(anthropic.MESSAGES, body.encode()).body)
    kinds = {adapter.validate_json(event.data, strict=True).type for event in events if event.event != "ping"}
    assert len(kinds) == 6
    reply = anthropic.MESSAGES.reply(request_from(anthropic.MESSAGES, body.encode()), ANSWER, 0)
    anthropic_sdk.types.Message.model_validate_json(reply.body, strict=True)


# ---- errors before the stream


def test_errors_keep_their_words_in_all_clients() -> None:
    error = ModelNotFound("m")

    def refuse(http: Any, dialect: Dialect) -> Any:
        reply = dialect.error(error)
        return http.MockTransport(lambda _: http.Response(reply.status, content=reply.body))

    client: Any = ollama_sdk.Client("http://mgr.test", transport=refuse(httpx, ollama.CHAT))
    with pytest.raises(ollama_sdk.ResponseError, match=r"^model 'm' not found") as refused:
        client.chat("m", MESSAGES)
    assert refused.value.status_code == 404
    client.close()

    http = http_of(openai_sdk)
    with openai_sdk.OpenAI(
        base_url="http://mgr.test/v1",
        api_key="none",
        http_client=http.Client(transport=refuse(http, openai.CHAT)),
    ) as openai_one:
        with pytest.raises(openai_sdk.NotFoundError) as missing:
            openai_one.chat.completions.create(model="m", messages=MESSAGES)
        assert missing.value.code == "model_not_found"

    http = http_of(anthropic_sdk)
    with (
        anthropic_sdk.Anthropic(
            base_url="http://mgr.test",
            api_key="none",
            http_client=http.Client(transport=refuse(http, anthropic.MESSAGES)),
        ) as anthropic_one,
        pytest.raises(anthropic_sdk.NotFoundError, match="model 'm' not found"),
    ):
        anthropic_one.messages.create(model="m", max_tokens=9, messages=MESSAGES)


def test_ollama_lines_are_typed() -> None:
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    for line in NdjsonDecoder().feed(served(ollama.CHAT, body).body):
        ollama_sdk.ChatResponse.model_validate(line)
