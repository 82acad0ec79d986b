from typing import Any

import pytest

from daemon.chat import Tool, ToolCall, ToolChoice
from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware import tooling
from daemon.middleware.fields import Fields

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = (Tool("f", "", SCHEMA), Tool("g", "", SCHEMA))


def test_tools_in_their_order() -> None:
    items = [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}},
        {"function": {"name": "g", "parameters": None}},
    ]
    assert tooling.tools(Fields({"tools": items})) == (
        Tool("f", "d", SCHEMA),
        Tool("g", "", {"type": "object", "properties": {}}),
    )
    assert tooling.tools(Fields({})) == ()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"type": "function"}], "tools[0].function.name is required"),
        ([{"function": {"name": ""}}], "tools[0].function.name must have 1 to 256 characters, not 0"),
        (
            [{"function": {"name": "x" * 257}}],
            "tools[0].function.name must have 1 to 256 characters, not 257",
        ),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters must be an object"),
        ([{"function": {"name": "f"}}] * 2, 'tools[1] has the name "f" of an earlier tool'),
        (
            [{"function": {"name": f"f{i}"}} for i in range(1025)],
            "tools has 1025 entries; at most 1024 are allowed",
        ),
        ("f", 'tools must be an array, not "f"'),
    ],
)
def test_wrong_tools(items: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tooling.tools(Fields({"tools": items}))
    assert caught.value.message.startswith(message)


def test_only_functions_are_tools() -> None:
    with pytest.raises(NotSupported, match=r'^tools\[0\]\.type "web_search" is not supported'):
        tooling.tools(Fields({"tools": [{"type": "web_search"}]}))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"function": {"name": "g"}}, ToolChoice("required", "g")),
    ],
)
def test_choice(choice: Any, expected: ToolChoice) -> None:
    assert tooling.tool_choice(Fields({"tool_choice": choice}), TOOLS) == expected


@pytest.mark.parametrize(
    ("choice", "tools", "message"),
    [
        ("required", (), 'tool_choice is "required", and there are no tools'),
        (
            {"function": {"name": "x"}},
            TOOLS,
            'tool_choice.function.name is "x", which is not one of the tools',
        ),
        ({"function": {}}, TOOLS, "tool_choice.function.name is required"),
        ("f", TOOLS, 'tool_choice must be "auto", "none", "required" or an object'),
        (["f"], TOOLS, 'tool_choice must be "auto", "none", "required" or an object'),
    ],
)
def test_wrong_choice(choice: Any, tools: tuple[Tool, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tooling.tool_choice(Fields({"tool_choice": choice}), tools)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"x": 1}', '{"x": 1}'),
        ({"x": ["ö", None]}, '{"x":["ö",null]}'),
        (None, "{}"),
        ("{", "{"),
        ("", ""),
        ([1], "[1]"),
        (5, "5"),
    ],
)
def test_arguments_of_a_call_are_kept(arguments: Any, text: str) -> None:
    message = {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}
    assert tooling.tool_calls(Fields(message)) == (ToolCall("c", "f", text),)


def test_a_call_without_an_id_gets_its_place() -> None:
    calls = [{"function": {"name": "f"}}, {"id": "", "function": {"name": "g"}}]
    found = tooling.tool_calls(Fields({"tool_calls": calls}))
    assert [call.id for call in found] == ["call_0", "call_1"]
    assert tooling.tool_calls(Fields({})) == ()
