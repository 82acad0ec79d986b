"""For any answer, however it was cut into events: the stream says what the whole reply says, and ends once."""

import json
import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    ChatRequest,
    Done,
    Event,
    FinishReason,
    Message,
    Progress,
    Text,
    TextDelta,
    ThinkingDelta,
    Timings,
    TokenRequest,
    ToolCallDelta,
    Usage,
)
from daemon.errors import EngineFailed
from daemon.framing import NdjsonDecoder, SseDecoder
from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.dialect import Dialect
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from daemon.middleware.responses_request import ResponsesRequest
from daemon.middleware.responses_stream import ResponsesEncoder
from tests.fakes.answers import assemble

REQUEST = ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),), stream=True, include_usage=True)

# ---- answers as events

COUNTS = st.integers(0, 10**6)
SECONDS = st.floats(0, 1e5)
ARGUMENTS = st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)

SCORES = st.lists(
    st.builds(lambda logprob: {"token": "t", "logprob": logprob}, st.floats(-9, 0)), max_size=2
).map(tuple)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces of any size, some of them empty."""
    places = draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    edges = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@st.composite
def call(draw: st.DrawFn, index: int) -> list[Event]:
    first, *others = draw(cut(draw(ARGUMENTS)))
    name = draw(st.text(min_size=1, max_size=8))
    start = ToolCallDelta(index, first, f"call_{index}", name)
    return [start, *(ToolCallDelta(index, piece) for piece in others)]


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Thinking, then text, then calls, with keep-alives of the engine in between."""
    events: list[Event] = [ThinkingDelta(piece) for piece in draw(cut(draw(st.text())))]
    events += [TextDelta(piece, draw(SCORES)) for piece in draw(cut(draw(st.text())))]
    for index in range(draw(st.integers(0, 3))):
        events += draw(call(index))
    cached = draw(COUNTS)
    done = Done(
        draw(st.sampled_from(FinishReason)),
        Usage(cached + draw(COUNTS), cached, draw(COUNTS)),
        Timings(draw(SECONDS), draw(SECONDS), draw(SECONDS), draw(SECONDS)),
        draw(st.none() | st.text(min_size=1)),
    )
    return [Progress(1, done.usage.prompt, cached), *events, done]


# ---- streams read back


@dataclass
class Read:
    """What a client puts together."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    usage: Any = None
    scores: list[Any] = field(default_factory=list)


def read_ollama(output: bytes) -> Read:
    read = Read()
    for line in NdjsonDecoder().feed(output):
        assert read.reasons == []  # nothing follows the end
        piece = line.get("message", line)
        read.text += piece.get("content", piece.get("response", ""))
        read.thinking += piece.get("thinking", "")
        read.scores += line.get("logprobs", [])
        for one in piece.get("tool_calls", []):
            read.calls.append((one["id"], one["function"]["name"], one["function"]["arguments"]))
        if line["done"]:
            read.reasons.append(line["done_reason"])
            read.usage = (line.get("prompt_eval_count", 0), line.get("eval_count", 0))
    return read


def read_openai(output: bytes) -> Read:
    read = Read()
    calls: dict[int, tuple[str, str, list[str]]] = {}
    *chunks, end = [event.data for event in SseDecoder().feed(output)]
    assert end == b"[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert len({chunk["id"] for chunk in parsed}) == 1
    for number, chunk in enumerate(parsed):
        read.usage = chunk.get("usage")
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert ("role" in delta) == (number == 0)
            read.text += delta.get("content") or ""
            read.thinking += delta.get("reasoning_content") or ""
            for one in delta.get("tool_calls", []):
                if "id" in one:
                    calls[one["index"]] = (one["id"], one["function"]["name"], [])
                calls[one["index"]][2].append(one["function"]["arguments"])
            if choice["finish_reason"] is not None:
                read.reasons.append(choice["finish_reason"])
    read.calls = [(key, name, "".join(pieces)) for _, (key, name, pieces) in sorted(calls.items())]
    return read


def read_anthropic(output: bytes) -> Read:
    read = Read()
    events = [json.loads(event.data) for event in SseDecoder().feed(output)]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    opened: int | None = None
    arguments: list[str] = []
    delta: dict[str, str] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened = event["index"]
                arguments, delta = [], {}
                block = event["content_block"]
            case "content_block_delta":
                assert event["index"] == opened
                delta = event["delta"]
                read.text += delta.get("text", "")
                read.thinking += delta.get("thinking", "")
                arguments.append(delta.get("partial_json", ""))
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
                assert ("signature" in delta) == (block["type"] == "thinking")
                if block["type"] == "tool_use":
                    read.calls.append((block["id"], block["name"], json.loads("".join(arguments))))
            case "message_delta":
                assert opened is None
                read.reasons.append(event["delta"]["stop_reason"])
                read.usage = event["usage"]
    indices = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert indices == list(range(len(indices)))
    return read


def whole_ollama(body: Any) -> Read:
    return read_ollama(json.dumps(body).encode() + b"\n")


def whole_openai(body: Any) -> Read:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls", [])
    ]
    text, thinking = message["content"] or "", message.get("reasoning_content", "")
    return Read(text, thinking, calls, [choice["finish_reason"]], body["usage"])


def whole_anthropic(body: Any) -> Read:
    read = Read(reasons=[body["stop_reason"]], usage=body["usage"])
    for block in body["content"]:
        match block["type"]:
            case "text":
                read.text += block["text"]
            case "thinking":
                read.thinking += block["thinking"]
            case "tool_use":
                read.calls.append((block["id"], block["name"], block["input"]))
    return read


class Responses(ResponsesDialect):
    """Answers REQUEST as if its `parse` had made it."""

    def encoder(self, request: TokenRequest, created: float) -> ResponsesEncoder:
        messages = REQUEST.messages
        own = ResponsesRequest(model="m", messages=messages, conversation=messages, echo={}, store=False)
        return super().encoder(own, created)


def read_responses(output: bytes) -> Read:
    """Only from what the events say one by one; the last one must say it all again."""
    events = [json.loads(event.data) for event in SseDecoder().feed(output)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    read = Read()
    items: list[Any] = []
    deltas: dict[int, str] = {}
    for event in events[2:-1]:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append(None)
                deltas[event["output_index"]] = ""
            case "response.output_item.done":
                assert event["output_index"] == len(items) - 1
                items[-1] = event["item"]
            case kind if kind.endswith(".delta"):
                assert event["output_index"] == len(items) - 1
                deltas[event["output_index"]] += event["delta"]
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                read.text += deltas[index]
            case "reasoning":
                read.thinking += deltas[index]
            case "function_call":
                read.calls.append((item["call_id"], item["name"], deltas[index]))
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"] == items
    read.reasons, read.usage = [last["status"]], last["usage"]
    return read


def whole_responses(body: Any) -> Read:
    read = Read(reasons=[body["status"]], usage=body["usage"])
    for item in body["output"]:
        match item["type"]:
            case "message":
                read.text += item["content"][0]["text"]
            case "reasoning":
                read.thinking += item["content"][0]["text"]
            case "function_call":
                read.calls.append((item["call_id"], item["name"], item["arguments"]))
    return read


Reader = Callable[[bytes], Read]
Whole = Callable[[Any], Read]
DIALECTS: dict[str, tuple[Dialect, Reader, Whole]] = {
    "ollama-chat": (ollama.CHAT, read_ollama, whole_ollama),
    "ollama-generate": (ollama.GENERATE, read_ollama, whole_ollama),
    "openai": (openai.CHAT, read_openai, whole_openai),
    "anthropic": (anthropic.MESSAGES, read_anthropic, whole_anthropic),
    "responses": (Responses(History()), read_responses, whole_responses),
}

every_dialect = pytest.mark.parametrize(("dialect", "reader", "whole"), DIALECTS.values(), ids=DIALECTS)


def encoded(dialect: Dialect, events: list[Event], pings: Set[int] = frozenset()) -> bytes:
    encoder = dialect.encoder(REQUEST, 0)
    output = b""
    for place, event in enumerate(events):
        if place in pings:
            output += encoder.keep_alive()
        output += encoder.feed(event)
    return output + encoder.finish()


@every_dialect
@given(events=answers())
def test_stream_and_reply_say_the_same(
    dialect: Dialect, reader: Reader, whole: Whole, events: list[Event]
) -> None:
    streamed = reader(encoded(dialect, events))
    answer = assemble(events)
    replied = whole(json.loads(dialect.reply(REQUEST, answer, 0).body))
    assert streamed == replied
    assert (streamed.text, streamed.thinking) == (answer.text, answer.thinking)
    assert len(streamed.reasons) == 1
    arguments = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for _, _, value in streamed.calls
    ]
    assert arguments == [one.arguments for one in answer.tool_calls]


@every_dialect
@given(events=answers(), places=st.sets(st.integers(0, 12)))
def test_keep_alives_change_nothing(
    dialect: Dialect, reader: Reader, whole: Whole, events: list[Event], places: set[int]
) -> None:
    output = encoded(dialect, events, places)
    pings = re.compile(rb'^(: keep-alive|event: ping\ndata: \{"type":"ping"\})\n\n', re.MULTILINE)
    assert reader(pings.sub(b"", output)) == reader(encoded(dialect, events))


@pytest.mark.parametrize("dialect", [openai.CHAT, anthropic.MESSAGES, Responses(History())])
@given(events=answers())
def test_stream_decodes_the_same_at_every_cut(dialect: Dialect, events: list[Event]) -> None:
    output = encoded(dialect, events)
    expected = SseDecoder().feed(output)
    decoder = SseDecoder()
    assert [event for byte in output for event in decoder.feed(bytes([byte]))] == expected
    assert decoder.flush() == []
    assert output.endswith(b"\n\n")


@every_dialect
@given(events=answers(), place=st.integers(0, 12))
def test_nothing_comes_after_an_error(
    dialect: Dialect, reader: Reader, whole: Whole, events: list[Event], place: int
) -> None:
    encoder = dialect.encoder(REQUEST, 0)
    for event in events[:place]:
        encoder.feed(event)
    assert b"the engine stopped" in encoder.fail(EngineFailed("the engine stopped"))
    rest = b"".join(encoder.feed(event) for event in events[place:])
    assert rest + encoder.keep_alive() + encoder.finish() == b""
