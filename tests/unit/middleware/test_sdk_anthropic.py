"""The official client of Anthropic's API reads what the dialect writes; each event is checked against its types.

It runs with a transport that answers from memory.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import anthropic as sdk
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from daemon.chat import (
    ChatRequest,
    CountRequest,
    Done,
    Event,
    FinishReason,
    Progress,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from daemon.errors import (
    BodyTooLarge,
    Busy,
    EngineFailed,
    InvalidRequest,
    MgrError,
    ModelNotFound,
    PromptTooLong,
    Unauthorized,
)
from daemon.framing import SseDecoder
from daemon.middleware import anthropic
from daemon.middleware.dialect import Reply, read_object
from tests.fakes.answers import assemble

USAGE = Usage(30, 20, 7)
PROGRESS = Progress(10, 30, 20)
ANSWERS: dict[str, list[Event]] = {
    "text": [PROGRESS, TextDelta("Hi"), TextDelta(" \u2028you"), Done(FinishReason.STOP, USAGE)],
    "json": [TextDelta('{"name"'), TextDelta(':"Rome"}'), Done(FinishReason.STOP, USAGE)],
    "empty": [Done(FinishReason.STOP, USAGE)],
    "limit": [TextDelta("Hi"), Done(FinishReason.LENGTH, USAGE)],
    "stop": [TextDelta("Hi"), Done(FinishReason.STOP, USAGE, stop_sequence="END")],
    "thinking": [ThinkingDelta("h"), ThinkingDelta("m"), Done(FinishReason.LENGTH, USAGE)],
    "notes": [TextDelta("Hi"), Done(FinishReason.STOP, USAGE, truncated=True, warnings=("no",))],
    "calls": [
        PROGRESS,
        ThinkingDelta("hm"),
        TextDelta("Hi"),
        ToolCallDelta(0, "", "call_0", "f"),
        ToolCallDelta(0, '{"x"'),
        ToolCallDelta(0, ":1}"),
        ToolCallDelta(1, "", "call_1", "g"),
        Done(FinishReason.TOOL_CALLS, USAGE),
    ],
}
STOPS = {"limit": "max_tokens", "stop": "stop_sequence", "thinking": "max_tokens", "calls": "tool_use"}
OWN_FIELDS = {"truncated", "warnings"}
MODELS = [("a:latest", datetime(2026, 1, 2, tzinfo=UTC)), ("b:latest", datetime(2026, 1, 3, tzinfo=UTC))]
ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}

every_answer = pytest.mark.parametrize("name", ANSWERS)


# ---- the validator

_UNIONS: tuple[Any, ...] = (RawMessageStreamEvent, BetaRawMessageStreamEvent)
EVENT_TYPES: list[TypeAdapter[Any]] = [TypeAdapter(union) for union in _UNIONS]
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


def check_stream(output: bytes) -> None:
    """Fails unless each event is of the SDK's types, with no field that they do not know, and in the right place."""
    events = [(event.event, json.loads(event.data)) for event in SseDecoder().feed(output)]
    assert all(name == data["type"] for name, data in events)
    told = [data for name, data in events if name != "ping"]
    for adapter in EVENT_TYPES:
        for data in told:
            check_fields(adapter.validate_json(json.dumps(data), strict=True))
    first, *blocks, delta, stop = told
    assert (first["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    assert first["message"]["content"] == []
    assert first["message"]["stop_reason"] is None
    assert delta["delta"]["stop_reason"] is not None
    check_blocks(blocks)


def check_fields(value: Any) -> None:
    """Fails for a field that the SDK does not know, at any depth."""
    match value:
        case BaseModel():
            assert set(value.model_extra or {}) <= OWN_FIELDS
            for name in type(value).model_fields:
                check_fields(getattr(value, name))
        case list():
            for item in value:
                check_fields(item)


def check_blocks(events: Sequence[Mapping[str, Any]]) -> None:
    """One block after the other, none without content, each delta of its block's kind, a signature last."""
    index = -1
    open_block: dict[str, Any] | None = None
    kinds: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                index, open_block, kinds = index + 1, event["content_block"], []
            case "content_block_delta":
                assert open_block is not None
                kinds.append(event["delta"]["type"])
                assert kinds[-1] in DELTAS[open_block["type"]]
            case "content_block_stop":
                assert open_block is not None
                assert kinds or open_block["type"] == "tool_use"
                assert kinds.count("signature_delta") == (open_block["type"] == "thinking")
                assert "signature_delta" not in kinds[:-1]
                open_block = None
            case other:
                raise AssertionError(f"{other} stands among the blocks")
        assert event["index"] == index
    assert open_block is None


# ---- a server in memory


def served(body: bytes, name: str, failure: str | None = None) -> Reply:
    """What the daemon would answer to this body, with a keep-alive before every event."""
    request = anthropic.MESSAGES.parse(body)
    assert isinstance(request, ChatRequest)
    events = ANSWERS[name]
    if not request.stream:
        return anthropic.MESSAGES.reply(request, assemble(events), 0)
    encoder = anthropic.MESSAGES.encoder(request, 0)
    output = b"".join(encoder.keep_alive() + encoder.feed(event) for event in events)
    output += encoder.fail(EngineFailed(failure)) if failure else encoder.finish()
    return Reply(200, output, anthropic.MESSAGES.stream_media_type)


def counted(body: bytes) -> Reply:
    request = anthropic.COUNT_TOKENS.parse(body)
    assert isinstance(request, CountRequest)
    return anthropic.COUNT_TOKENS.counted(request, 42)


def answered(path: str, body: bytes, name: str, failure: str | None) -> Reply:
    match path:
        case "/v1/messages":
            return served(body, name, failure)
        case "/v1/messages/count_tokens":
            return counted(body)
        case "/v1/models":
            return Reply(200, json.dumps(anthropic.models_list(MODELS)).encode())
        case _:
            return Reply(200, json.dumps(anthropic.model_one(MODELS[0])).encode())


def client(
    name: str = "text",
    failure: str | None = None,
    error: MgrError | None = None,
    seen: list[bytes] | None = None,
) -> Any:
    """The official client; `seen` gets the bodies that it sends."""
    # The HTTP library that this version of the SDK uses.
    bases: tuple[type, ...] = sdk.DefaultHttpxClient.__mro__
    names = [base.__module__.partition(".")[0] for base in bases]
    http: Any = importlib.import_module(next(each for each in names if each.startswith("httpx")))

    def handle(request: Any) -> Any:
        if seen is not None:
            seen.append(request.content)
        reply = (
            anthropic.MESSAGES.error(error)
            if error
            else answered(request.url.path, request.content, name, failure)
        )
        return http.Response(
            reply.status, content=reply.body, headers={"content-type": reply.media_type, **reply.headers}
        )

    mocked = http.Client(transport=http.MockTransport(handle))
    return sdk.Anthropic(base_url="http://mgr.test", api_key="none", http_client=mocked, max_retries=0)


# ---- answers


@every_answer
def test_each_event_is_of_the_clients_types(name: str) -> None:
    check_stream(served(json.dumps({**ASK, "stream": True}).encode(), name).body)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Thinking, texts and calls in any order, in pieces that may be empty."""
    events: list[Event] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["thinking", "text", "call"]), max_size=5)):
        pieces = draw(st.lists(st.text(max_size=4), min_size=1, max_size=3))
        if kind == "call":
            events.append(ToolCallDelta(calls, "", f"call_{calls}", "f"))
            events += [ToolCallDelta(calls, piece) for piece in pieces]
            calls += 1
        else:
            events += [ThinkingDelta(piece) if kind == "thinking" else TextDelta(piece) for piece in pieces]
    stop = draw(st.none() | st.text(min_size=1, max_size=3))
    return [*events, Done(draw(st.sampled_from(FinishReason)), USAGE, stop_sequence=stop)]


@given(events=answers())
def test_each_event_of_any_answer_is_of_the_clients_types(events: list[Event]) -> None:
    request = anthropic.MESSAGES.parse(json.dumps(ASK).encode())
    assert isinstance(request, ChatRequest)
    encoder = anthropic.MESSAGES.encoder(request, 0)
    output = b"".join(encoder.keep_alive() + encoder.feed(event) for event in events)
    check_stream(output + encoder.finish())


@every_answer
def test_the_whole_answer_is_of_the_clients_types(name: str) -> None:
    body = served(json.dumps(ASK).encode(), name).body
    check_fields(Message.model_validate_json(body, strict=True))
    check_fields(BetaMessage.model_validate_json(body, strict=True))


@every_answer
def test_the_stream_helper_puts_together_the_whole_answer(name: str) -> None:
    with client(name) as one, one.messages.stream(**ASK) as stream:
        streamed = stream.get_final_message()
        whole = one.messages.create(**ASK)
    blocks = [block.model_dump(exclude={"parsed_output"}) for block in streamed.content]
    assert blocks == [block.model_dump() for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason == STOPS.get(name, "end_turn")
    assert streamed.stop_sequence == whole.stop_sequence == ("END" if name == "stop" else None)
    assert streamed.usage == whole.usage
    assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (10, 20)
    assert whole.usage.output_tokens == 7


def test_content() -> None:
    with client("calls") as one:
        answer = one.messages.create(**ASK)
    thinking, text, first, second = answer.content
    assert (thinking.type, thinking.thinking) == ("thinking", "hm")
    assert thinking.signature
    assert (text.type, text.text) == ("text", "Hi")
    assert (first.type, first.id, first.name, first.input) == ("tool_use", "call_0", "f", {"x": 1})
    assert (second.id, second.name, second.input) == ("call_1", "g", {})


def test_the_text_stream() -> None:
    with client() as one, one.messages.stream(**ASK) as stream:
        assert list(stream.text_stream) == ["Hi", " \u2028you"]


def test_the_beta_helper_reads_the_same() -> None:
    with client("calls") as one, one.beta.messages.stream(**ASK, betas=["x"]) as stream:
        answer = stream.get_final_message()
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[2].input == {"x": 1}


def test_an_answer_can_be_sent_back() -> None:
    """What the client was given it sends again, with what else its types hold."""
    with client("calls") as one:
        answer = one.messages.create(**ASK)
    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "x"} for each in answer.content[2:]]
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": results},
    ]
    request = anthropic.MESSAGES.parse(json.dumps({**ASK, "messages": turns}).encode())
    assert isinstance(request, ChatRequest)
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool"]
    assert request.messages[1].thinking == "hm"
    assert [(call.id, call.arguments) for call in request.messages[1].tool_calls] == [
        ("call_0", '{"x":1}'),
        ("call_1", "{}"),
    ]


def test_structured_output_of_the_clients_helper() -> None:
    class City(BaseModel):
        name: str

    seen: list[bytes] = []
    with client("json", seen=seen) as one:
        assert one.messages.parse(**ASK, output_format=City).parsed_output == City(name="Rome")
        with one.messages.stream(**ASK, output_format=City) as stream:
            assert stream.get_final_message().parsed_output == City(name="Rome")
    for body in seen:
        request = anthropic.MESSAGES.parse(body)
        assert isinstance(request, ChatRequest)
        assert request.format is not None
        assert isinstance(request.format.schema, Mapping)
        assert request.format.schema["required"] == ["name"]


# ---- counts and models


def test_count_tokens() -> None:
    body = {key: value for key, value in ASK.items() if key != "max_tokens"}
    with client() as one:
        assert one.messages.count_tokens(**body).input_tokens == 42
    reply = counted(json.dumps(body).encode())
    check_fields(MessageTokensCount.model_validate_json(reply.body, strict=True))


def test_models() -> None:
    with client() as one:
        listed = list(one.models.list())
        assert [model.id for model in listed] == ["a:latest", "b:latest"]
        assert listed[0] == one.models.retrieve("a:latest")
    assert (listed[0].type, listed[0].created_at) == ("model", MODELS[0][1])
    info = sdk.types.ModelInfo.model_validate_json(json.dumps(anthropic.model_one(MODELS[0])), strict=True)
    check_fields(info)


# ---- errors


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (InvalidRequest("no"), sdk.BadRequestError, "no"),
        (PromptTooLong(9, 4), sdk.BadRequestError, "prompt is too long: 9 tokens > 4 maximum"),
        (Unauthorized("no"), sdk.AuthenticationError, "no"),
        (ModelNotFound("m"), sdk.NotFoundError, "model 'm' not found"),
        (BodyTooLarge("no"), sdk.APIStatusError, "request_too_large"),
        (Busy("full", 2), sdk.InternalServerError, "overloaded_error"),
        (EngineFailed("broken"), sdk.InternalServerError, "broken"),
    ],
)
def test_errors_keep_class_and_words(error: MgrError, kind: type[Exception], words: str) -> None:
    with client(error=error) as one, pytest.raises(kind, match=words):
        one.messages.create(**ASK)
    with client(error=error) as one, pytest.raises(kind, match=words):
        list(one.messages.create(**ASK, stream=True))


def test_an_error_in_a_stream() -> None:
    with client("calls", failure="the engine stopped") as one, one.messages.stream(**ASK) as stream:
        with pytest.raises(sdk.APIError, match="the engine stopped"):
            stream.get_final_message()
        snapshot = stream.current_message_snapshot
    assert [block.type for block in snapshot.content][:2] == ["thinking", "text"]


def test_pings_may_come_before_the_message() -> None:
    output = served(json.dumps({**ASK, "stream": True}).encode(), "text").body
    assert output.startswith(b"event: ping\n")
    assert read_object(SseDecoder().feed(output)[0].data) == {"type": "ping"}
    with client() as one:
        kinds = [event.type for event in one.messages.create(**ASK, stream=True)]
    assert kinds[0] == "message_start"
    assert "ping" not in kinds
