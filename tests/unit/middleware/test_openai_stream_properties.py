"""For answers side by side, however they were cut and mixed: each choice of the stream is the choice of the reply."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    Batch,
    Choice,
    Done,
    Event,
    FinishReason,
    Progress,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from daemon.framing import SseDecoder
from daemon.middleware import openai
from daemon.middleware.dialect import Dialect
from daemon.middleware.openai_completions import COMPLETIONS
from tests.fakes.answers import assemble

COUNTS = st.integers(0, 10**6)
TOKENS = st.builds(
    lambda token, logprob, top: {"token": token, "logprob": logprob, "top_logprobs": top},
    st.text(max_size=3),
    st.floats(-9, 0),
    st.lists(st.fixed_dictionaries({"token": st.text(max_size=3), "logprob": st.floats(-9, 0)}), max_size=2),
)


@st.composite
def scored(draw: st.DrawFn) -> TextDelta:
    tokens = draw(st.lists(TOKENS, max_size=3))
    return TextDelta("".join(token["token"] for token in tokens), tuple(tokens))


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    thinking = [ThinkingDelta(text) for text in draw(st.lists(st.text(), max_size=2))]
    text = draw(st.lists(scored(), max_size=4))
    calls: list[Event] = []
    for index in range(draw(st.integers(0, 2))):
        calls.append(ToolCallDelta(index, "", f"call_{index}", "f"))
        calls.extend(ToolCallDelta(index, piece) for piece in draw(st.lists(st.text(), max_size=2)))
    usage = Usage(draw(COUNTS), 0, draw(COUNTS))
    warnings = tuple(draw(st.lists(st.sampled_from(["a", "b"]), max_size=2)))
    done = Done(draw(st.sampled_from(FinishReason)), usage, truncated=draw(st.booleans()), warnings=warnings)
    return [Progress(1, 2), *thinking, *text, *calls, done]


@st.composite
def mixed(draw: st.DrawFn, several: list[list[Event]]) -> list[Choice]:
    """All events of all answers, each answer's in their order."""
    left = [list(events) for events in several]
    choices: list[Choice] = []
    while remaining := [index for index, events in enumerate(left) if events]:
        index = draw(st.sampled_from(remaining))
        choices.append(Choice(index, left[index].pop(0)))
    return choices


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[Event]], list[Choice]]:
    several = draw(st.lists(answers(), min_size=2, max_size=3))
    return several, draw(mixed(several))


def request_of(dialect: Dialect, n: int) -> Batch:
    body = {"model": "m", "n": n, "stream": True, "stream_options": {"include_usage": True}, "prompt": "p"}
    request = dialect.parse(json.dumps({**body, "messages": [{"role": "user", "content": "hi"}]}).encode())
    assert isinstance(request, Batch)
    return request


def read(output: bytes, count: int) -> tuple[list[dict[str, Any]], Any]:
    """What a client puts together: the choices and the usage."""
    *datas, end = [event.data for event in SseDecoder().feed(output)]
    assert end == b"[DONE]"
    *chunks, usage = [json.loads(data) for data in datas]
    assert usage["choices"] == []
    found: list[dict[str, Any]] = [{"ended": [], "logprobs": []} for _ in range(count)]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        into = found[choice["index"]]
        assert into["ended"] == []  # nothing of a choice follows its end
        _add(into, choice.get("delta", {"text": choice.get("text")}))
        into["logprobs"].append(choice.get("logprobs"))
        if choice["finish_reason"] is not None:
            into["ended"].append(choice["finish_reason"])
    return found, usage["usage"]


def _add(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("content", "reasoning_content", "reasoning", "text", "role"):
        into[key] = into.get(key, "") + (delta.get(key) or "")
    for call in delta.get("tool_calls", []):
        calls = into.setdefault("calls", {})
        if "id" in call:
            calls[call["index"]] = [call["id"], call["function"]["name"], ""]
        calls[call["index"]][2] += call["function"]["arguments"]


@given(batch=batches())
def test_chats(batch: tuple[list[list[Event]], list[Choice]]) -> None:
    several, choices = batch
    request = request_of(openai.CHAT, len(several))
    encoder = openai.CHAT.batch_encoder(request, 0)
    output = b"".join(encoder.feed_choice(choice) for choice in choices) + encoder.finish()
    found, usage = read(output, len(several))
    reply = json.loads(openai.CHAT.replies(request, [assemble(events) for events in several], 0).body)
    assert usage == reply["usage"]
    for streamed, whole in zip(found, reply["choices"], strict=True):
        message = whole["message"]
        assert streamed["role"] == "assistant"
        assert streamed["content"] == (message["content"] or "")
        assert streamed["reasoning_content"] == streamed["reasoning"] == message.get("reasoning_content", "")
        assert streamed["ended"] == [whole["finish_reason"]]
        calls = [
            [call["id"], call["function"]["name"], call["function"]["arguments"]]
            for call in message.get("tool_calls", [])
        ]
        assert list(streamed.get("calls", {}).values()) == calls
        entries = [entry for part in streamed["logprobs"] if part for entry in part["content"]]
        assert entries == (whole["logprobs"] or {"content": []})["content"]


@given(batch=batches())
def test_completions(batch: tuple[list[list[Event]], list[Choice]]) -> None:
    several, choices = batch
    request = request_of(COMPLETIONS, len(several))
    encoder = COMPLETIONS.batch_encoder(request, 0)
    output = b"".join(encoder.feed_choice(choice) for choice in choices) + encoder.finish()
    found, usage = read(output, len(several))
    reply = json.loads(COMPLETIONS.replies(request, [assemble(events) for events in several], 0).body)
    assert usage == reply["usage"]
    for streamed, whole in zip(found, reply["choices"], strict=True):
        assert streamed["text"] == whole["text"]
        assert streamed["ended"] == [whole["finish_reason"]]
        for key in ("tokens", "token_logprobs", "text_offset"):
            joined = [item for part in streamed["logprobs"] if part for item in part[key]]
            assert joined == (whole["logprobs"] or {key: []})[key]


@pytest.mark.parametrize("dialect", [openai.CHAT, COMPLETIONS])
@given(batch=batches())
def test_warnings_are_said_once_for_each_choice(
    dialect: Dialect, batch: tuple[list[list[Event]], list[Choice]]
) -> None:
    several, choices = batch
    encoder = dialect.batch_encoder(request_of(dialect, len(several)), 0)
    output = b"".join(encoder.feed_choice(choice) for choice in choices) + encoder.finish()
    chunks = [json.loads(event.data) for event in SseDecoder().feed(output) if event.data != b"[DONE]"]
    ends = [events[-1] for events in several]
    said = {chunk["choices"][0]["index"]: chunk.get("warnings", []) for chunk in chunks if chunk["choices"]}
    for index, end in enumerate(ends):
        assert isinstance(end, Done)
        assert said[index] == list(dict.fromkeys(end.warnings))
    assert sum(chunk.get("truncated", False) for chunk in chunks) == sum(
        end.truncated for end in ends if isinstance(end, Done)
    )
