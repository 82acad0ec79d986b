"""Must hold, with the scripted engine: what comes of an answer is the same in all four dialects, streamed and not,
however the engine cuts it into pieces; calls are whole, and answers are what the schema asks for, or say that they are
not."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.engine.matrix.asks import Ask, Tool, user
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon
from tests.fakes.dialects import Way, way_id
from tests.fakes.exchange import DIALECTS, Heard, body, finished, heard
from tests.fakes.schemas import ENFORCED, REFUSED

TEMPLATE = "{% if tools %}{{ tools }}{% endif %}{{ messages }}<think></think>"
TOOLS = (
    Tool(
        "weather",
        "Tells the weather.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    ),
    Tool(
        "add",
        "Adds two numbers.",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    ),
)

THOUGHT = "Soll ich? Hmm — 天気 🌧, dann addieren."
CONTENT = "Grüße, 世界 🌍! Ich sehe nach."
WEATHER = ("weather", {"city": "Zürich 🌉"})
ADD = ("add", {"a": 1, "b": 2})
CALLS = [WEATHER, ADD]


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def written(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def fragments(index: int, name: str, arguments: str, size: int = 4) -> list[dict[str, Any]]:
    """Deltas of one call, as an engine sends them; the id and the name come with the first one only."""
    first = {"index": index, "id": f"engine{index}", "type": "function", "function": {"name": name}}
    rest = [{"index": index, "function": {"arguments": part}} for part in pieces(arguments, size)]
    return [{"tool_calls": [fragment]} for fragment in (first, *rest)]


BY_ENGINE = [
    delta
    for index, (name, arguments) in enumerate(CALLS)
    for delta in fragments(index, name, json.dumps(arguments, ensure_ascii=False))
]
TAGGED = f"\n<think>\n{THOUGHT}\n</think>\n\n"
CALLED = "".join(f"\n<tool_call>\n{written(*call)}\n</tool_call>" for call in CALLS)

# Every one of these is the same answer.
SAME: dict[str, dict[str, Any]] = {
    "fields": {
        "thinking": pieces(THOUGHT),
        "tokens": pieces(CONTENT),
        "deltas": BY_ENGINE,
        "reason": "tool_calls",
    },
    "whole": {
        "thinking": [THOUGHT],
        "tokens": [CONTENT],
        "deltas": [
            {
                "tool_calls": [
                    {
                        "index": i,
                        "id": f"c{i}",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    }
                    for i, (name, arguments) in enumerate(CALLS)
                ]
            }
        ],
    },
    "think_tags": {"tokens": pieces(TAGGED + CONTENT), "deltas": BY_ENGINE, "reason": "tool_calls"},
    "call_tags": {"thinking": [THOUGHT], "tokens": pieces(CONTENT + CALLED)},
    "all_tags": {"tokens": pieces(TAGGED + CONTENT + CALLED, 2)},
    "one_token": {"tokens": [TAGGED + CONTENT + CALLED]},
}
PACKETS = ("events", "one", "bytes")

# Calls that are not valid JSON -> the arguments that every dialect shows, or None where they are passed as text.
MALFORMED: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "unclosed": ({"deltas": fragments(0, "weather", '{"city": "Zürich 🌉"')}, [WEATHER]),
    "chatter": ({"deltas": fragments(0, "weather", '{"city": "Zürich 🌉"} That is it.')}, [WEATHER]),
    "fence": ({"deltas": fragments(0, "weather", '```json\n{"city": "Zürich 🌉"}\n```')}, [WEATHER]),
    "nothing": ({"deltas": fragments(0, "weather", "")}, [("weather", {})]),
    "comma_in_tags": (
        {"tokens": pieces('<tool_call>{"name": "weather", "arguments": {"city": "Zürich 🌉",}}</tool_call>')},
        [WEATHER],
    ),
    "open_tag": ({"tokens": pieces(f"<tool_call>{written(*WEATHER)}")}, [WEATHER]),
}
NO_CALL = {
    "broken_tags": '<tool_call>{"name": "weather", "arguments": {"city: }]]</tool_call>',
    "unknown_tool": '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
}
BAD = '{"city": }{ Zürich'

FORCED: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "forced_one": (written(*WEATHER), [WEATHER]),
    "forced_two": (f"[{written(*WEATHER)}, {written(*ADD)}]", CALLS),
}


def behaviours() -> dict[str, dict[str, Any]]:
    same = {
        f"{name}_{packets}": {**values, "packets": packets}
        for name, values in SAME.items()
        for packets in PACKETS
    }
    malformed = {name: {"tokens": [""], **values} for name, (values, _) in MALFORMED.items()}
    text = {name: {"tokens": pieces(said)} for name, said in NO_CALL.items()}
    forced = {name: {"tokens": pieces(said)} for name, (said, _) in FORCED.items()}
    return {
        **(same | malformed | text | forced),
        "bad": {"tokens": [""], "deltas": fragments(0, "weather", BAD)},
        "parrot": {"parrot": True},
        "cut": {"parrot": True, "reason": "length"},
    }


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedDaemon]:
    """A daemon for all of them, with one model for each behaviour; it thinks, and knows tools."""
    daemon = ScriptedDaemon(tmp_path_factory.mktemp("guarantees"), {"MAX_LOADED_MODELS": 4})
    scripts = behaviours()
    daemon.model(*scripts, **{"tokenizer.chat_template": TEMPLATE})
    daemon.script(**scripts)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def client(scripted: ScriptedDaemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted.url, timeout=GUARD_SECONDS, trust_env=False) as client:
        yield client


def asked(client: httpx.Client, way: Way, ask: Ask, **more: Any) -> Heard:
    reply = client.post(way.path, json={**body(way, ask), **more})
    assert reply.status_code == 200, reply.text
    return heard(way, reply.content)


def question(model: str, **more: Any) -> Ask:
    return Ask(turns=(user("Wie ist das Wetter?"),), model=model, limit=4000, tools=TOOLS, **more)


def ids(answer: Heard) -> list[str]:
    """Not empty, and each its own."""
    found = [call.id for call in answer.told.calls]
    assert all(found)
    assert len({*found}) == len(found)
    return found


# ---- content, thinking and calls


@pytest.mark.parametrize("packets", PACKETS)
@pytest.mark.parametrize("name", SAME)
def test_an_answer_is_the_same_however_it_is_cut(client: httpx.Client, name: str, packets: str) -> None:
    for way in DIALECTS:
        answer = asked(client, way, question(f"{name}_{packets}", think=True))
        what = (answer.told.thinking.strip(), answer.told.text.strip(), answer.calls, answer.told.finish)
        assert what == (THOUGHT, CONTENT, CALLS, finished(way, "tool_calls")), way_id(way)
        assert answer.warnings == ()
        ids(answer)


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_call_is_mended(client: httpx.Client, way: Way, name: str) -> None:
    answer = asked(client, way, question(name))
    assert answer.calls == MALFORMED[name][1]
    assert answer.told.finish == finished(way, "tool_calls")
    assert (answer.told.text, answer.warnings) == ("", ())
    ids(answer)


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
@pytest.mark.parametrize("name", NO_CALL)
def test_what_is_no_call_stays_text(client: httpx.Client, way: Way, name: str) -> None:
    answer = asked(client, way, question(name))
    assert (answer.told.text, answer.calls, answer.told.finish) == (NO_CALL[name], [], "stop")


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
def test_arguments_that_cannot_be_mended_are_passed_on_with_a_warning(client: httpx.Client, way: Way) -> None:
    reply = client.post(way.path, json=body(way, question("bad")))
    assert reply.status_code == 200
    assert (
        "are not valid JSON, and it is not plain what was meant; they are passed on as written" in reply.text
    )
    if not way.stream:
        [arguments] = whole_arguments(way, reply.json())
        assert arguments in (BAD, {"raw": BAD})


def whole_arguments(way: Way, reply: Any) -> list[Any]:
    """As the dialect has them: text or an object."""
    match way.name:
        case "chat":
            return [call["function"]["arguments"] for call in reply["message"]["tool_calls"]]
        case "openai":
            calls = reply["choices"][0]["message"]["tool_calls"]
            return [call["function"]["arguments"] for call in calls]
        case "responses":
            return [item["arguments"] for item in reply["output"] if item["type"] == "function_call"]
        case _:
            return [block["input"] for block in reply["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("way", [way for way in DIALECTS if not way.stream], ids=way_id)
def test_a_bad_call_in_the_history_does_not_poison_later_turns(
    client: httpx.Client, scripted: ScriptedDaemon, way: Way
) -> None:
    """What a client got is what it sends back; the engine gets an object, which every template can write."""
    first = body(way, question("bad"))
    reply = client.post(way.path, json=first).json()
    again = client.post(way.path, json=went_on(way, first, reply))
    assert again.status_code == 200, again.text
    turns = scripted.events("request", "bad")[-1]["body"]["messages"]
    [call] = [call for turn in turns for call in turn.get("tool_calls", ())]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"raw": BAD}
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]


def went_on(way: Way, request: dict[str, Any], reply: Any) -> dict[str, Any]:
    """The next request of a client that called the tool."""
    result = "no such city"
    match way.name:
        case "chat":
            turns = [reply["message"], {"role": "tool", "tool_name": "weather", "content": result}]
        case "openai":
            message = reply["choices"][0]["message"]
            call_id = message["tool_calls"][0]["id"]
            turns = [message, {"role": "tool", "tool_call_id": call_id, "content": result}]
        case "responses":
            [call_id] = [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
            output = {"type": "function_call_output", "call_id": call_id, "output": result}
            return {**request, "input": [*request["input"], *reply["output"], output]}
        case _:
            [call_id] = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
            answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
            turns = [
                {"role": "assistant", "content": reply["content"]},
                {"role": "user", "content": [answer]},
            ]
    return {**request, "messages": [*request["messages"], *turns]}


# ---- forced calls


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
@pytest.mark.parametrize("name", FORCED)
def test_forced_calls_have_indices_in_order(
    client: httpx.Client, scripted: ScriptedDaemon, way: Way, name: str
) -> None:
    """Each reader of a stream checks the indices itself: 0, and 1 of a parallel call."""
    parallel = {"parallel_tool_calls": True} if way.name in ("openai", "responses") else {}
    answer = asked(client, way, question(name, choice="required"), **parallel)
    assert answer.calls == FORCED[name][1]
    assert answer.told.finish == finished(way, "tool_calls")
    assert (answer.told.text, answer.warnings) == ("", ())
    ids(answer)
    sent = scripted.events("request", name)[-1]["body"]
    assert sent["response_format"]["type"] == "json_schema"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather", "add"]


# ---- structured output

# An answer that is valid for each schema, and one that is not.
ANSWERS: dict[str, tuple[Any, Any]] = {
    "plain_object": ({"name": "Grüße", "age": 3}, {"name": "a", "age": "3"}),
    "nested": ({"person": {"name": "a", "home": {"city": "b"}}}, {"person": {"name": "a", "home": {}}}),
    "array_bounds": ([1, 2, 3], [1]),
    "array_of_objects": ([{"x": 1, "y": 2}], [{"x": 1}]),
    "enum": ({"colour": "red"}, {"colour": "rot"}),
    "typed_enum": ("on", 7),
    "const": ({"kind": "answer", "ok": True}, {"kind": "answer", "ok": False}),
    "any_of": ("short", 10),
    "one_of_types": ({"value": True}, {"value": None}),
    "discriminated": ({"kind": "circle", "radius": 2}, {"kind": "circle", "side": 2}),
    "integer_bounds": ({"age": 120, "level": 4}, {"age": 120, "level": 5}),
    "integer_steps": ({"percent": 75}, {"percent": 76}),
    "number": ({"weight": 1.5}, {"weight": "1.5"}),
    "string_lengths": ({"code": "abc"}, {"code": "ab"}),
    "pattern": ({"plate": "ABC-1234"}, {"plate": "ABC-123"}),
    "pattern_classes": ({"phone": "+41 12345"}, {"phone": "none"}),
    "pattern_open": ({"path": "/home"}, {"path": "home"}),
    "date": ({"day": "2024-02-29"}, {"day": "2024-2-29"}),
    "time": (
        {"at": "10:00:00Z", "when": "2024-02-29T10:00:00Z"},
        {"at": "10:00:00Z"},
    ),
    "uuid": ({"id": "123e4567-e89b-12d3-a456-426614174000"}, {"id": "123"}),
    "email": ({"mail": "a@example.org", "host": "127.0.0.1"}, {"mail": "a@example.org", "host": "300.0.0.1"}),
    "closed": ({"a": True, "b": None}, {"a": True, "b": None, "c": 1}),
    "required_without_property": ({"a": True, "b": 99}, {"a": True, "b": 100}),
    "definitions": ({"start": {"x": 0, "y": 0}, "end": {"x": 1, "y": 1}}, {"start": {"x": 0, "y": 0}}),
    "recursive": ({"value": 1, "next": {"value": 2, "next": None}}, {"value": 1, "next": {"value": 2}}),
    "nullable": ({"note": None}, {"note": 1}),
    "tuple": (["a", 1, True], ["a", 1, True, 2]),
    "all_of": ({"x": 1, "y": 2, "label": "a"}, {"x": 1, "y": 2}),
}


def schema_ask(model: str, name: str, answer: str) -> Ask:
    return Ask(turns=(user(answer),), model=model, limit=4000, format=ENFORCED[name])


def test_there_are_enough_schemas() -> None:
    assert len(ENFORCED) + len(REFUSED) == 30
    assert len(ENFORCED) >= 24
    assert {*ANSWERS} == {*ENFORCED}
    for name, (good, bad) in ANSWERS.items():
        validator = jsonschema.Draft202012Validator(
            ENFORCED[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        assert (validator.is_valid(good), validator.is_valid(bad)) == (True, False), name


@pytest.mark.parametrize("name", ENFORCED)
def test_a_valid_answer_comes_as_it_is(client: httpx.Client, scripted: ScriptedDaemon, name: str) -> None:
    text = json.dumps(ANSWERS[name][0], ensure_ascii=False)
    for way in DIALECTS:
        answer = asked(client, way, schema_ask("parrot", name, text))
        assert (answer.told.text, answer.told.finish, answer.warnings) == (text, "stop", ()), way_id(way)
    sent = [event["body"]["response_format"] for event in scripted.events("request", "parrot")[-8:]]
    assert sent[0]["type"] == "json_schema"
    assert all(each == sent[0] for each in sent)


@pytest.mark.parametrize("name", ENFORCED)
def test_an_answer_that_is_not_valid_says_so(client: httpx.Client, name: str) -> None:
    """No engine that works sends it."""
    text = json.dumps(ANSWERS[name][1], ensure_ascii=False)
    for way in DIALECTS:
        answer = asked(client, way, schema_ask("parrot", name, text))
        assert (answer.told.text, answer.told.finish) == (text, "stop"), way_id(way)
        [warning] = answer.warnings
        assert warning.startswith("the answer is not valid for the format: ")


@pytest.mark.parametrize("name", ENFORCED)
def test_an_answer_that_was_cut_says_so(client: httpx.Client, name: str) -> None:
    text = json.dumps(ANSWERS[name][0], ensure_ascii=False)[:-1]
    for way in DIALECTS:
        answer = asked(client, way, schema_ask("cut", name, text))
        assert (answer.told.text, answer.told.finish) == (text, "length"), way_id(way)
        [warning] = answer.warnings
        assert "cut by the token limit" in warning


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_keyword(
    client: httpx.Client, scripted: ScriptedDaemon, way: Way, name: str
) -> None:
    schema, keyword = REFUSED[name]
    before = len(scripted.events("request"))
    ask = Ask(turns=(user("hi"),), model="parrot", format=schema)
    reply = client.post(way.path, json=body(way, ask))
    assert reply.status_code == 400
    assert f"'{keyword}'" in way.error(reply.json())
    assert len(scripted.events("request")) == before
