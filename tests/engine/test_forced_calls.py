"""Must hold: a tool choice is a guarantee with a real engine and a model that is far too small for tools, in all four
dialects, streamed and not; and the template that a model was created with reaches the engine as a file."""

import re
from pathlib import Path

import httpx
import jsonschema
import pytest

from tests.engine.conftest import TOOLS_TEMPLATE
from tests.engine.matrix.asks import Ask, Tool, user
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess
from tests.fakes.dialects import Way, way_id
from tests.fakes.exchange import DIALECTS, body, finished, heard

MODEL = "with-tools"
TOOLS = {
    "weather": Tool(
        "weather",
        "Tells the weather of a city.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    ),
    "add": Tool(
        "add",
        "Adds two numbers.",
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 999},
                "b": {"type": "integer", "minimum": 0, "maximum": 999},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    ),
}
_ID = re.compile(r"call_[0-9a-f]{24}")


def post(daemon: DaemonProcess, way: Way, ask: Ask, **more: object) -> httpx.Response:
    sent = {**body(way, ask), **more}
    return httpx.post(f"{daemon.url}{way.path}", json=sent, timeout=GUARD_SECONDS, trust_env=False)


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_tool_choice_is_a_guarantee(tools_daemon: DaemonProcess, way: Way, choice: str) -> None:
    """The question is about no tool at all. An id that came with two fragments would be longer than one."""
    ask = Ask(
        turns=(user("Write a poem about the sea."),),
        model=MODEL,
        tools=tuple(TOOLS.values()),
        choice=choice,
        limit=150,
    )
    answer = heard(way, post(tools_daemon, way, ask).raise_for_status().content)
    [call] = answer.told.calls
    assert call.name == choice if choice in TOOLS else call.name in TOOLS
    jsonschema.validate(call.arguments, TOOLS[call.name].parameters)
    assert _ID.fullmatch(call.id)
    assert answer.told.finish == finished(way, "tool_calls")
    assert (answer.told.text, answer.warnings) == ("", ())


def test_parallel_calls_are_each_valid(tools_daemon: DaemonProcess) -> None:
    """How many a model makes is its own choice, from one to eight."""
    [way] = [way for way in DIALECTS if way.name == "openai" and way.stream]
    ask = Ask(turns=(user("Add 1 and 2."),), model=MODEL, tools=(TOOLS["add"],), choice="required", limit=400)
    reply = post(tools_daemon, way, ask, parallel_tool_calls=True).raise_for_status()
    answer = heard(way, reply.content)
    assert 1 <= len(answer.calls) <= 8
    for name, arguments in answer.calls:
        jsonschema.validate(arguments, TOOLS[name].parameters)
    assert len({call.id for call in answer.told.calls}) == len(answer.calls)
    assert answer.told.finish == "tool_calls"


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
def test_a_forced_call_that_was_cut_says_so(tools_daemon: DaemonProcess, way: Way) -> None:
    ask = Ask(turns=(user("Hi"),), model=MODEL, tools=(TOOLS["add"],), choice="required", limit=4)
    raw = post(tools_daemon, way, ask).raise_for_status().text
    assert "the model did not make the tool call that was asked for" in raw
    told = heard(way, raw.encode()).told
    assert (told.calls, told.finish) == ((), "length")


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
def test_tools_are_refused_where_the_template_cannot_carry_them(
    tools_daemon: DaemonProcess, way: Way
) -> None:
    ask = Ask(turns=(user("Hi"),), model="smollm2", tools=(TOOLS["add"],), choice="required")
    reply = post(tools_daemon, way, ask)
    assert reply.status_code == 400
    assert '"smollm2" does not support tools' in way.error(reply.json())


def test_the_template_of_a_model_reaches_the_engine_as_a_file(tools_daemon: DaemonProcess) -> None:
    ask = Ask(turns=(user("Hi"),), model=MODEL, limit=1)
    post(tools_daemon, DIALECTS[0], ask).raise_for_status()
    lines = [process.cmdline() for process in tools_daemon.engines()]
    files = [line[line.index("--chat-template-file") + 1] for line in lines if "--chat-template-file" in line]
    assert {Path(file).read_text() for file in files} == {TOOLS_TEMPLATE.read_text()}
