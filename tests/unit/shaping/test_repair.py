"""Arguments of tool calls: valid ones pass at once, others are mended or passed on with a warning; never lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import FinishReason, Piece, TextDelta, ToolCallDelta
from daemon.shaping.repair import RepairedCalls
from tests.fakes.readings import chunks, plain, read

CUTS = st.lists(st.integers(0, 99), max_size=20)


def call(text: str, cuts: list[int] | None = None, index: int = 0) -> list[Piece]:
    first, *rest = chunks(text, cuts or []) or [""]
    return [ToolCallDelta(index, first, f"id{index}", "tool"), *(ToolCallDelta(index, each) for each in rest)]


@given(value=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), cuts=CUTS)
def test_valid_arguments_are_passed_on_as_they_come(value: Any, cuts: list[int]) -> None:
    text = json.dumps(value)
    reader = RepairedCalls()
    assert [out for piece in call(text, cuts) for out in reader.feed(piece)] == call(text, cuts)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"a": 1} garbage', '{"a": 1}'),
        ('{"a": 1}\n', '{"a": 1}'),
        ('{"a": {"b": [1', '{"a": {"b": [1]}}'),
        ('[{"a": 1}]', '{"a": 1}'),
        ('```json\n{"a": 1}```', '{"a": 1}'),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        ("", "{}"),
    ],
)
@given(cuts=CUTS)
def test_what_is_plain_is_mended_in_any_chunking(text: str, meant: str, cuts: list[int]) -> None:
    answer = read(RepairedCalls(), call(text, cuts), FinishReason.TOOL_CALLS)
    assert plain(answer) == ("", "", [("tool", meant)], FinishReason.TOOL_CALLS, ())
    assert answer.tool_calls[0].id == "id0"


@pytest.mark.parametrize("text", ["Paris", "{'a': 1}", '{"a": 1]}', '{"a": "open', '{"a": tru}', "[1]"])
@given(cuts=CUTS)
def test_what_is_not_plain_is_passed_on_and_said(text: str, cuts: list[int]) -> None:
    answer = read(RepairedCalls(), call(text, cuts))
    assert [each.arguments for each in answer.tool_calls] == [text]
    assert answer.done.warnings == (
        (
            "the arguments of the call of 'tool' are not valid JSON, and it is not plain what was meant; "
            "they are passed on as written"
        ),
    )


def test_a_call_that_was_cut_is_not_completed() -> None:
    answer = read(RepairedCalls(), call('{"a": [1'), FinishReason.LENGTH)
    assert answer.tool_calls[0].arguments == '{"a": [1'
    assert answer.done.warnings == ("the arguments of the call of 'tool' were cut off by the token limit",)


def test_each_of_several_calls_is_mended_before_the_next_begins() -> None:
    pieces = [TextDelta("Hi"), *call('{"a": 1', index=0), *call('[{"b": 2}]', index=1)]
    answer = read(RepairedCalls(), pieces)
    assert answer.text == "Hi"
    assert [each.arguments for each in answer.tool_calls] == ['{"a": 1}', '{"b": 2}']


def test_a_call_without_an_id_gets_one() -> None:
    answer = read(RepairedCalls(), [ToolCallDelta(0, "{}", None, "tool")])
    assert answer.tool_calls[0].id.startswith("call_")
    assert len(answer.tool_calls[0].id) == 29
