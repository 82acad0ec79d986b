"""Tool calls that an engine left in the content become calls; all other text stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import FinishReason, Piece, TextDelta, ToolCallDelta
from daemon.shaping.tooltags import ToolTags
from tests.fakes.readings import plain, read, read_text

CUTS = st.lists(st.integers(0, 200), max_size=30)
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
MADE = ("weather", '{"city":"Paris"}')


def reader() -> ToolTags:
    return ToolTags(["weather", "time"])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [MADE]),
        (f"Let me see.\n\n<tool_call>{CALL}</tool_call>", "Let me see.", [MADE]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [MADE, MADE]),
        (f"<function_call>{CALL}</function_call>", "", [MADE]),
        (f"[TOOL_CALLS][{CALL}, {CALL}]", "", [MADE, MADE]),
        ('<|python_tag|>{"name": "time", "parameters": {}}', "", [("time", "{}")]),
        (CALL, "", [MADE]),
        (f" [{CALL}] ", "", [MADE]),
        ('<tool_call>{"name": "time"}</tool_call>', "", [("time", "{}")]),
        (f"<tool_call>{CALL}", "", [MADE]),
        (f"<tool_call>{CALL[:-1]}</tool_call>", "", [MADE]),
        (r'<tool_call>{"name": "time", "arguments": "{\"a\": 1}"}</tool_call>', "", [("time", '{"a":1}')]),
    ],
)
@given(cuts=CUTS)
def test_calls_are_found_in_any_chunking(
    text: str, content: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    answer = read_text(reader, text, cuts)
    assert plain(answer) == (content, "", calls, FinishReason.TOOL_CALLS, ())
    assert len({call.id for call in answer.tool_calls}) == len(calls)


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "  spaced  ",
        '{"name": "Paris", "population": 2}',
        '{"name": "weather", "arguments": 5}',
        '{"answer": 42}',
        "<tool_call>no JSON</tool_call> and text",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        "a <tool_cal",
        "a <tool_call>",
        f"Like this: {CALL}",
        "",
    ],
)
@given(cuts=CUTS)
def test_text_stays_text_in_any_chunking(text: str, cuts: list[int]) -> None:
    assert plain(read_text(reader, text, cuts)) == (text, "", [], FinishReason.STOP, ())


@given(text=st.text(alphabet='<tool_call>/{}"name: \n', max_size=60), cuts=CUTS)
def test_no_chunking_makes_a_difference(text: str, cuts: list[int]) -> None:
    assert plain(read_text(reader, text, cuts)) == plain(read_text(reader, text))


def test_a_call_that_was_cut_stays_text() -> None:
    text = f"<tool_call>{CALL[:-1]}"
    assert plain(read_text(reader, text, reason=FinishReason.LENGTH)) == (
        text,
        "",
        [],
        FinishReason.LENGTH,
        (),
    )


def test_calls_come_after_those_of_the_engine() -> None:
    pieces: list[Piece] = [
        ToolCallDelta(0, "{}", "call_1", "time"),
        TextDelta(f"<tool_call>{CALL}</tool_call>"),
    ]
    answer = read(reader(), pieces, FinishReason.TOOL_CALLS)
    assert [call.name for call in answer.tool_calls] == ["time", "weather"]


def test_text_is_passed_on_at_once() -> None:
    first = reader()
    assert list(first.feed(TextDelta("Hello"))) == [TextDelta("Hello")]
    assert list(first.feed(TextDelta(" you"))) == [TextDelta(" you")]
