"""The entry: what is done for which request, and that nothing is done where nothing has to be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    FinishReason,
    JsonFormat,
    TextDelta,
    TokenRequest,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from daemon.errors import InvalidRequest
from daemon.shaping.reader import Reader
from daemon.shaping.shape import Abilities, shape
from tests.fakes.readings import chunks, plain, read, read_text

PLAIN = Abilities(thinking=False, tools=True)
THINKING = Abilities(thinking=True, tools=True)
TOOL = Tool("time", "", {"type": "object", "properties": {}})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=(), **fields)


def reader(request: TokenRequest, abilities: Abilities = PLAIN) -> Reader:
    made = shape(request, abilities).reader
    assert made is not None
    return made


@pytest.mark.parametrize(
    "request_",
    [chat(), CompletionRequest(model="m", prompt="p"), chat(tools=(TOOL,), tool_choice=ToolChoice("none"))],
)
def test_nothing_is_done_where_nothing_has_to_be(request_: TokenRequest) -> None:
    shaped = shape(request_, PLAIN)
    assert shaped.request is request_
    assert shaped.reader is None


def test_a_completion_is_not_searched_for_thinking() -> None:
    assert shape(CompletionRequest(model="m", prompt="p"), THINKING).reader is None


def test_thinking_is_split() -> None:
    assert plain(read_text(lambda: reader(chat(), THINKING), "<think>a</think>b"))[:2] == ("b", "a")
    inside = Abilities(thinking=True, tools=False, starts_in_thinking=True)
    assert plain(read_text(lambda: reader(chat(), inside), "a</think>b"))[:2] == ("b", "a")


def test_a_schema_is_enforced_and_the_answer_is_checked() -> None:
    for request in (
        chat(format=JsonFormat({"const": 5})),
        CompletionRequest(model="m", prompt="p", format=JsonFormat({"const": 5})),
    ):
        shaped = shape(request, PLAIN)
        assert shaped.request.format == JsonFormat({"enum": [5]})
        assert shaped.reader is not None
        assert read(shaped.reader, [TextDelta("6")]).done.warnings == (
            "the answer is not valid for the format: 5 was expected at #",
        )


def test_a_schema_that_cannot_be_kept_to_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'uniqueItems' at #"):
        shape(chat(format=JsonFormat({"type": "array", "uniqueItems": True})), PLAIN)


def test_any_object_is_checked_too() -> None:
    request = chat(format=JsonFormat())
    assert shape(request, PLAIN).request.format == JsonFormat()
    assert read(reader(request), [TextDelta("{}")]).done.warnings == ()
    assert "is not of type 'object'" in read(reader(request), [TextDelta("[]")]).done.warnings[0]


def test_a_required_call_is_forced_with_thinking_before_it() -> None:
    request = chat(tools=(TOOL,), tool_choice=ToolChoice("required"), format=JsonFormat({"const": 5}))
    assert shape(request, THINKING).request.format != JsonFormat({"const": 5})
    text = '<think>Hm.</think>{"name": "time", "arguments": {}}'
    answer = read_text(lambda: reader(request, THINKING), text)
    assert plain(answer) == ("", "Hm.", [("time", "{}")], FinishReason.TOOL_CALLS, ())


def test_a_required_call_without_tools_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not among the tools"):
        shape(chat(tool_choice=ToolChoice("required")), PLAIN)


def test_tools_beside_a_format_are_said_to_be_idle() -> None:
    request = chat(tools=(TOOL,), format=JsonFormat({"const": 5}))
    assert read(reader(request), [TextDelta("5")]).done.warnings == (
        "no tool could be called, as the answer had to keep to the format",
    )


def test_calls_of_the_engine_are_repaired_and_calls_in_text_are_found() -> None:
    request = chat(tools=(TOOL,))
    answer = read(reader(request), [ToolCallDelta(0, '{"a": 1', "call_1", "time")], FinishReason.TOOL_CALLS)
    assert plain(answer)[2:] == ([("time", '{"a": 1}')], FinishReason.TOOL_CALLS, ())
    answer = read(reader(request), [TextDelta('<tool_call>{"name": "time", "arguments": {}}</tool_call>')])
    assert plain(answer)[2:] == ([("time", "{}")], FinishReason.TOOL_CALLS, ())


@given(cuts=st.lists(st.integers(0, 200), max_size=40))
def test_thinking_content_and_calls_are_the_same_for_any_chunking(cuts: list[int]) -> None:
    text = '<think>Hé!</think>\nSo: <b>\n<tool_call>{"name": "time", "arguments": {"z": "ü"}}</tool_call>'
    pieces = [TextDelta(chunk) for chunk in chunks(text, cuts)]
    answer = read(reader(chat(tools=(TOOL,)), THINKING), pieces)
    assert plain(answer) == ("So: <b>", "Hé!", [("time", '{"z":"ü"}')], FinishReason.TOOL_CALLS, ())
