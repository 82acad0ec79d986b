"""The events of /v1/responses, in their order, with their numbers and indices."""

import json
from typing import Any

import pytest

from daemon.chat import Done, Event, FinishReason, Progress, TextDelta, ThinkingDelta, ToolCallDelta
from daemon.errors import Busy, EngineFailed, MgrError, PromptTooLong
from daemon.framing import SseDecoder
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from daemon.middleware.responses_stream import ResponsesEncoder

STOP = Done(FinishReason.STOP)
BEGUN = ["created", "in_progress"]
MESSAGE = ["output_item.added", "content_part.added"]
MESSAGE_END = ["output_text.done", "content_part.done", "output_item.done"]
CALL_END = ["function_call_arguments.done", "output_item.done"]


def encoder(history: History | None = None, **body: Any) -> ResponsesEncoder:
    dialect = ResponsesDialect(history or History())
    request = dialect.parse(json.dumps({"model": "m", "input": "hi", "stream": True, **body}).encode())
    return dialect.encoder(request, 5)  # type: ignore[arg-type]


def read(output: bytes) -> list[dict[str, Any]]:
    """The events; each one's number, and its name in the frame, are checked."""
    frames = SseDecoder().feed(output)
    events = [json.loads(frame.data) for frame in frames]
    assert [frame.event for frame in frames] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def streamed(*events: Event, **body: Any) -> list[dict[str, Any]]:
    one = encoder(**body)
    return read(b"".join(map(one.feed, events)) + one.finish())


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text() -> None:
    events = streamed(Progress(1, 2), TextDelta("a"), TextDelta(""), TextDelta("b\u2028"), STOP)
    deltas = ["output_text.delta"] * 2
    assert kinds(events) == [*BEGUN, *MESSAGE, *deltas, *MESSAGE_END, "completed"]
    assert [event["delta"] for event in events if "delta" in event] == ["a", "b\u2028"]
    assert events[6]["text"] == events[7]["part"]["text"] == "ab\u2028"
    assert {event["output_index"] for event in events[2:-1]} == {0}
    assert {event["content_index"] for event in events if "content_index" in event} == {0}
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}


def test_the_response_keeps_its_id_and_gets_its_output() -> None:
    events = streamed(TextDelta("a"), STOP)
    created, progress, done = (event["response"] for event in events if "response" in event)
    assert created["id"] == progress["id"] == done["id"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert (done["status"], done["output"]) == ("completed", [events[-2]["item"]])


def test_thinking_text_and_calls_each_have_their_index() -> None:
    events = streamed(
        ThinkingDelta("t"),
        TextDelta("a"),
        ToolCallDelta(0, "", "c0", "f"),
        ToolCallDelta(0, "{"),
        ToolCallDelta(0, "}"),
        ToolCallDelta(1, "{}", "c1", "g"),
        Done(FinishReason.TOOL_CALLS),
    )
    delta = "function_call_arguments.delta"
    assert kinds(events) == [
        *BEGUN,
        *["output_item.added", "content_part.added"],
        *["reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"],
        *[*MESSAGE, "output_text.delta", *MESSAGE_END],
        *["output_item.added", delta, delta, *CALL_END],
        *["output_item.added", delta, *CALL_END],
        "completed",
    ]
    items = [(event["output_index"], event["item"]["type"]) for event in events if "item" in event]
    expected = enumerate(["reasoning", "message", "function_call", "function_call"])
    assert items == [each for each in expected for _ in range(2)]
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"]) for event in done] == [("f", "{}"), ("g", "{}")]


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    events = streamed(TextDelta("a"), ToolCallDelta(0, "{}", "c0", "f"), TextDelta("b"), STOP)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert output[2]["content"][0]["text"] == "b"


def test_a_summary_has_its_own_events() -> None:
    events = streamed(ThinkingDelta("t"), TextDelta("a"), STOP, reasoning={"summary": "auto"})
    assert kinds(events)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert {event["summary_index"] for event in events[3:7]} == {0}


def test_logprobs_come_with_their_text() -> None:
    entries = [{"token": t, "logprob": -1.0, "bytes": [97], "top_logprobs": []} for t in ("a", "b")]
    events = streamed(TextDelta("a", (entries[0],)), TextDelta("", (entries[1],)), TextDelta("c"), STOP)
    assert [event["logprobs"] for event in events if "delta" in event] == [[entries[0]], [entries[1]], []]
    assert events[7]["logprobs"] == events[8]["part"]["logprobs"] == entries


def test_a_cut_answer_is_incomplete() -> None:
    events = streamed(TextDelta("a"), Done(FinishReason.LENGTH))
    assert kinds(events)[-1] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-2]["item"]["status"] == "incomplete"


def test_a_cut_before_the_first_token_has_no_output() -> None:
    events = streamed(Done(FinishReason.LENGTH))
    assert kinds(events) == [*BEGUN, "incomplete"]
    assert events[-1]["response"]["output"] == []


@pytest.mark.parametrize("before", [(), (ThinkingDelta("t"),)])
def test_an_answer_without_text_gets_an_empty_message(before: tuple[Event, ...]) -> None:
    events = streamed(*before, STOP)
    assert kinds(events)[-6:] == [*MESSAGE, *MESSAGE_END, "completed"]


def test_the_first_keep_alive_begins_the_stream() -> None:
    one = encoder()
    first = one.keep_alive()
    assert kinds(read(first)) == BEGUN
    assert first.endswith(b"\n\n: keep-alive\n\n")
    assert one.keep_alive() == b": keep-alive\n\n"
    assert kinds(read(first + one.feed(TextDelta("a")))) == [*BEGUN, *MESSAGE, "output_text.delta"]


@pytest.mark.parametrize(
    ("error", "code", "failed"),
    [
        (EngineFailed("it broke"), None, "server_error"),
        (Busy("full"), "server_is_overloaded", "rate_limit_exceeded"),
        (PromptTooLong(9, 5), "context_length_exceeded", "invalid_prompt"),
    ],
)
def test_an_error_ends_the_stream_as_failed(error: MgrError, code: str | None, failed: str) -> None:
    one = encoder()
    events = read(one.feed(TextDelta("a")) + one.fail(error))
    assert kinds(events) == [*BEGUN, *MESSAGE, "output_text.delta", "error", "failed"]
    assert events[-2]["code"] == events[-2]["error"]["code"] == code
    assert events[-2]["message"] == events[-2]["error"]["message"]
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", failed)
    (item,) = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")
    assert one.finish() == one.keep_alive() == one.feed(STOP) == b""


def test_an_error_before_anything_else_still_begins_the_stream() -> None:
    assert kinds(read(encoder().fail(EngineFailed("it broke")))) == [*BEGUN, "error", "failed"]


def test_an_answer_that_broke_off_is_a_failure() -> None:
    one = encoder()
    assert kinds(read(one.feed(TextDelta("a")) + one.finish()))[-2:] == ["error", "failed"]


def test_only_what_ended_well_is_stored() -> None:
    history = History()
    good, bad, private = encoder(history), encoder(history), encoder(history, store=False)
    for one in (good, bad, private):
        one.feed(TextDelta("a"))
    bad.fail(EngineFailed("it broke"))
    for one in (good, private):
        one.feed(STOP)
        one.finish()
    found = [history.find(one.response["id"]) is not None for one in (good, bad, private)]
    assert found == [True, False, False]
