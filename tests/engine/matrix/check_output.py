"""JSON, schemas, and calls of tools."""

import json
from dataclasses import replace

import jsonschema

from tests.engine.matrix.asks import Ask, Call, Told, Tool, Turn, user
from tests.engine.matrix.cells import Cell
from tests.engine.matrix.prompts import ADD, QUESTION, SCHEMA, TOOL_ASK, TOOLS


def json_object(cell: Cell) -> None:
    ask = Ask(turns=(user('Answer with this JSON: {"name": "Tom", "age": 5}'),), format="json", limit=40)
    told = cell.told(ask)
    assert told.finish == "stop"
    assert isinstance(json.loads(told.text), dict)
    assert told.text == cell.agreed(told.text)


def schema(cell: Cell) -> None:
    ask = Ask(turns=(user("What is the color of the sky?"),), format=SCHEMA, limit=40)
    told = cell.told(ask)
    assert told.finish == "stop"
    jsonschema.validate(json.loads(told.text), SCHEMA)
    assert told.text == cell.agreed(told.text)


def tools_defined(cell: Cell) -> None:
    """Tools that may be called are part of the prompt, the same for all, and the answer is the same."""
    ask = replace(TOOL_ASK, turns=(user(QUESTION),), limit=8)
    told, without = cell.told(ask), cell.told(replace(ask, tools=()))
    said = (told.text, [(call.name, call.arguments) for call in told.calls], told.prompt_tokens)
    assert said == cell.agreed(said)
    assert told.text or told.calls
    assert told.prompt_tokens > without.prompt_tokens + 100


def tools_called(cell: Cell) -> None:
    told = cell.told(replace(TOOL_ASK, choice="required", limit=60))
    _check_calls(cell, told, TOOLS)


def tool_named(cell: Cell) -> None:
    told = cell.told(replace(TOOL_ASK, choice=ADD.name, limit=60))
    _check_calls(cell, told, (ADD,))


def _check_calls(cell: Cell, told: Told, tools: tuple[Tool, ...]) -> None:
    by_name = {tool.name: tool for tool in tools}
    assert told.calls
    for call in told.calls:
        assert call.name in by_name
        jsonschema.validate(call.arguments, by_name[call.name].parameters)
    said = [(call.name, call.arguments) for call in told.calls]
    assert said == cell.agreed(said)
    assert told.finish == ("stop" if cell.api == "ollama" else "tool_calls")
    ids = [call.id for call in told.calls]
    assert all(ids) or (cell.api, cell.language) == ("ollama", "python"), (
        "Ollama's client for Python drops ids"
    )
    assert len(set(ids)) == len(ids)


def tool_result(cell: Cell) -> None:
    call = Call("get_weather", {"city": "Rome", "days": 1}, "call_1")
    turns = (
        *TOOL_ASK.turns,
        Turn("assistant", calls=(call,)),
        Turn("tool", ("It is 21 degrees and sunny.",), result_of=call),
    )
    told, before = cell.told(replace(TOOL_ASK, turns=turns, limit=6)), cell.told(replace(TOOL_ASK, limit=1))
    said = (told.text, told.prompt_tokens)
    assert said == cell.agreed(said)
    assert told.text
    assert told.prompt_tokens > before.prompt_tokens + 20
