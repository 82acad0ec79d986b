"""Required tool calls: the schema that forces them, and reading the answer in any chunking."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import (
    Answer,
    ChatRequest,
    FinishReason,
    JsonFormat,
    Piece,
    Sampling,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from daemon.errors import InvalidRequest
from daemon.shaping.forced import MAX_CALLS, ForcedCalls, forced
from tests.fakes.readings import plain, read, read_text

WEATHER = Tool(
    "weather", "", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
TIME = Tool("time", "", {"type": "object", "properties": {}})
CUTS = st.lists(st.integers(0, 300), max_size=40)


def request(*tools: Tool, name: str | None = None, parallel: bool | None = None) -> ChatRequest:
    return ChatRequest(
        model="m",
        messages=(),
        tools=tools,
        tool_choice=ToolChoice("required", name),
        parallel_tool_calls=parallel,
        sampling=Sampling(stop=("}",)),
    )


def schema(made: ChatRequest) -> Any:
    assert isinstance(made.format, JsonFormat)
    return made.format.schema


def reader() -> ForcedCalls:
    return forced(request(WEATHER, TIME))[1]


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


IN_TIME = call("time", {"type": "object", "properties": {}, "required": [], "additionalProperties": False})
IN_WEATHER = call("weather", {**WEATHER.parameters, "additionalProperties": False})


def test_one_call_of_any_tool_is_asked_for() -> None:
    made, _ = forced(request(WEATHER, TIME))
    assert schema(made) == {"anyOf": [IN_WEATHER, IN_TIME]}


def test_a_named_tool_is_the_only_one_and_called_once() -> None:
    made, _ = forced(request(WEATHER, TIME, name="time", parallel=True))
    assert schema(made) == IN_TIME


def test_several_calls_are_allowed_when_the_request_says_so() -> None:
    made, _ = forced(request(TIME, parallel=True))
    assert schema(made) == {"type": "array", "items": IN_TIME, "minItems": 1, "maxItems": MAX_CALLS}


def test_the_tools_stay_in_the_prompt_and_nothing_stops_the_json() -> None:
    made, _ = forced(request(WEATHER, TIME))
    assert made.tools == (WEATHER, TIME)
    assert made.tool_choice == ToolChoice("auto")
    assert made.sampling.stop == ()


def test_references_of_different_tools_do_not_meet() -> None:
    def tool(name: str, kind: str) -> Tool:
        return Tool(name, "", {"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": kind}}})

    made, _ = forced(request(tool("x", "string"), tool("y", "integer")))
    refs = [each["properties"]["arguments"]["properties"]["a"]["$ref"] for each in schema(made)["anyOf"]]
    assert [schema(made)["$defs"][ref.removeprefix("#/$defs/")] for ref in refs] == [
        {"type": "string"},
        {"type": "integer"},
    ]


@pytest.mark.parametrize(("tools", "name"), [((), None), ((WEATHER,), "time")])
def test_a_choice_of_no_tool_is_refused(tools: tuple[Tool, ...], name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="not among the tools"):
        forced(request(*tools, name=name))


def test_a_tool_whose_parameters_are_no_schema_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="the parameters of the tool 'bad' are not a valid JSON schema"):
        forced(request(Tool("bad", "", {"properties": 5})))


ONE = '{ "name": "weather",\n "arguments": {"city": "P}\\"]{aris"} }'
TWO = '[{"name":"weather","arguments":{"city":"Paris"}}, {"name": "time", "arguments": {}}]'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (ONE, [("weather", '{"city": "P}\\"]{aris"}')]),
        (f"\n{ONE}\n", [("weather", '{"city": "P}\\"]{aris"}')]),
        (TWO, [("weather", '{"city":"Paris"}'), ("time", "{}")]),
        ('{"arguments": {}, "name": "time"}', [("time", "{}")]),
        ('```json\n{"name": "time", "arguments": {}}\n```', [("time", "{}")]),
    ],
)
@given(cuts=CUTS)
def test_the_answer_is_calls_in_any_chunking(
    text: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    answer = read_text(reader, text, cuts)
    assert plain(answer) == ("", "", calls, FinishReason.TOOL_CALLS, ())
    assert len({each.id for each in answer.tool_calls}) == len(calls)
    assert all(each.id.startswith("call_") and len(each.id) == 29 for each in answer.tool_calls)


@given(city=st.text(), cuts=CUTS)
def test_fragments_re_assemble(city: str, cuts: list[int]) -> None:
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    answer = read_text(reader, f'{{"name": "weather", "arguments": {arguments}}}', cuts)
    assert [each.arguments for each in answer.tool_calls] == [arguments]


def test_arguments_come_as_they_are_written() -> None:
    made = reader()
    pieces = [out for char in ONE for out in made.feed(TextDelta(char))]
    assert isinstance(pieces[0], ToolCallDelta)
    assert (pieces[0].index, pieces[0].name, pieces[0].arguments) == (0, "weather", "")
    assert [piece.arguments for piece in pieces[1:] if isinstance(piece, ToolCallDelta)] == [
        *'{"city": "P}\\"]{aris"}'
    ]


def cut(text: str) -> Answer:
    return read_text(reader, text, reason=FinishReason.LENGTH)


def test_a_call_that_was_cut_says_so() -> None:
    answer = cut('{"name": "weather", "arguments": {"city": "Pa')
    assert plain(answer)[2:4] == ([("weather", '{"city": "Pa')], FinishReason.LENGTH)
    assert answer.done.warnings == ("the answer was cut inside a tool call; its arguments are not complete",)


def test_a_list_that_was_cut_says_so() -> None:
    answer = cut('[{"name": "time", "arguments": {}}, {"na')
    assert plain(answer)[2:4] == ([("time", "{}")], FinishReason.LENGTH)
    assert "may have been more" in answer.done.warnings[0]


def test_a_limit_at_the_very_end_cuts_nothing() -> None:
    assert plain(cut('{"name": "time", "arguments": {}'))[2:] == (
        [("time", "{}")],
        FinishReason.TOOL_CALLS,
        (),
    )


def test_text_instead_of_a_call_is_passed_on_and_said() -> None:
    answer = read_text(reader, "I cannot do that.")
    assert answer.text == "I cannot do that."
    assert answer.done.reason == FinishReason.STOP
    assert answer.done.warnings == ("the model did not make the tool call that was asked for",)


def test_calls_of_the_engine_are_passed_on() -> None:
    pieces: list[Piece] = [ToolCallDelta(0, '{"city":', "call_1", "weather"), ToolCallDelta(0, '"Oslo"}')]
    answer = read(reader(), pieces)
    assert plain(answer) == ("", "", [("weather", '{"city":"Oslo"}')], FinishReason.TOOL_CALLS, ())
    assert answer.tool_calls[0].id == "call_1"


def test_arguments_that_are_not_valid_are_named() -> None:
    answer = read_text(reader, '{"name": "weather", "arguments": {}}')
    assert answer.done.warnings == (
        "the arguments of the call of 'weather' are not valid for its schema: 'city' is a required property at #",
    )


def test_what_the_grammar_cannot_enforce_is_noted_and_checked() -> None:
    tool = Tool("heat", "", {"type": "object", "properties": {"to": {"type": "number", "maximum": 30}}})
    answer = read_text(lambda: forced(request(tool))[1], '{"name": "heat", "arguments": {"to": 99.5}}')
    assert answer.done.warnings == (
        "'maximum' at #/properties/to cannot be enforced for numbers (it can for integers)",
        (
            "the arguments of the call of 'heat' are not valid for its schema: "
            "99.5 is greater than the maximum of 30 at #/to"
        ),
    )
