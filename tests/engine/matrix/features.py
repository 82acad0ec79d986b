"""The rows of the matrix: what is asked, and what has to come of it in every cell."""

import json
import math
import time
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.engine.conftest import releases
from tests.engine.matrix.anthropic_api import Messages
from tests.engine.matrix.asks import (
    IMAGE,
    LIMIT,
    MODEL,
    Ask,
    Call,
    Logprob,
    Told,
    Tool,
    Turn,
    assistant,
    user,
)
from tests.engine.matrix.cells import APIS, Cell, Feature
from tests.fakes.daemon import GUARD_SECONDS

# Models that the matrix makes of SmolLM2: one whose template carries tools, one with a small window.
TOOLS_MODEL, SMALL_MODEL = "smollm2-tools", "smollm2-small"
SMALL_WINDOW = 256

# What is asked is what SmolLM2 is sure of: with two tokens as likely, a greedy answer depends on what is cached.
QUESTION = "List the months of the year."
BEGUN = "2, 4, 6, 8, 10,"
CONVERSATION = (
    user("My cat is called Tom."),
    assistant("Tom is a nice name."),
    user("What is my cat called?"),
)
# Its answer ends before the limit.
ENDING = Ask(turns=CONVERSATION)
# Greedy, SmolLM2 goes on for thousands of tokens.
ENDLESS = Ask(turns=(user("Write a very long story."),), limit=4000)

SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["color", "count"],
    "additionalProperties": False,
}
# In the words and the order that Ollama's client for Python knows; it leaves out all others.
WEATHER = Tool(
    "get_weather",
    "Tells the weather of a city",
    {
        "type": "object",
        "required": ["city", "days"],
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "enum": [1, 2, 3]},
        },
    },
)
ADD = Tool(
    "add",
    "Adds two digits",
    {
        "type": "object",
        "required": ["a", "b"],
        "properties": {name: {"type": "integer", "enum": [1, 2, 3, 4, 5]} for name in ("a", "b")},
    },
)
TOOLS = (WEATHER, ADD)
TOOL_ASK = Ask(model=TOOLS_MODEL, turns=(user("What is the weather in Rome?"),), tools=TOOLS)
TEXTS = (
    BEGUN,
    "The months of the year are January, February,",
    "The planets of the solar system are Mercury, Venus,",
)


def question(cell: Cell, **more: Any) -> Ask:
    """One that any API can ask; where there are no turns it is a text to go on with."""
    return Ask(turns=(user(BEGUN if cell.api == "completions" else QUESTION),), **more)


# ---- text


def plain(cell: Cell) -> None:
    told, engine = cell.told(question(cell)), cell.engine(question(cell))
    assert (told.text, told.finish) == (engine.text, "length")
    assert len(told.text) > 10
    if cell.stream:
        assert told.pieces > LIMIT / 2


def system(cell: Cell) -> None:
    ask = question(cell, system="You speak French.")
    told = cell.told(ask)
    assert told.text == cell.engine(ask).text
    assert told.text != cell.engine(question(cell)).text


def multi_part(cell: Cell) -> None:
    ask = Ask(turns=(user("My cat is called Tom.", "What is my cat called?"),), limit=5)
    told = cell.told(ask)
    assert told.text == cell.engine(ask).text
    assert told.prompt_tokens == cell.engine(ask).prompt_tokens
    assert "Tom" in told.text


def multi_turn(cell: Cell) -> None:
    told, engine = cell.told(ENDING), cell.engine(ENDING)
    assert (told.text, told.finish) == (engine.text, "stop")
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, engine.tokens)
    assert "Tom" in told.text


def prefilled(cell: Cell) -> None:
    """The beginning of an answer is continued, and not repeated."""
    ask = Ask(turns=(user(QUESTION), assistant("The months of the year are: January,")), limit=6)
    told = cell.told(ask)
    assert told.text == cell.agreed(told.text)
    assert told.text.lstrip().startswith("February")
    assert told.tokens == ask.limit
    assert told.prompt_tokens > cell.engine(question(cell)).prompt_tokens


def stop(cell: Cell) -> None:
    whole = cell.engine(question(cell)).text
    word = whole.split()[2]
    told = cell.told(question(cell, stop=("never-said", word)))
    assert (told.text, told.finish) == (whole[: whole.index(word)], "stop")
    if cell.api == "anthropic":
        assert (told.extra["stop_reason"], told.extra["stop_sequence"]) == ("stop_sequence", word)


def limit(cell: Cell) -> None:
    told = cell.told(question(cell, limit=5))
    assert (told.tokens, told.finish) == (5, "length")
    assert told.text
    assert cell.engine(question(cell)).text.startswith(told.text)


def seed(cell: Cell) -> None:
    """One seed gives one text, however it is asked for; another seed gives another text."""
    ask = Ask(turns=(user(QUESTION),), limit=6, temperature=1.5)
    seven, eight = (cell.told(replace(ask, seed=number)).text for number in (7, 8))
    assert seven == cell.agreed(seven, cell.api)
    assert eight != seven


def logprobs(cell: Cell) -> None:
    ask = question(cell, top_logprobs=2)
    told = cell.told(ask)
    assert told.text == cell.engine(question(cell)).text
    assert "".join(entry.token for entry in told.logprobs) == told.text
    assert len(told.logprobs) == told.tokens
    for entry in told.logprobs:
        (best, number), (_, other) = entry.best
        assert best == entry.token, "greedy takes the likeliest"
        assert number == pytest.approx(entry.value)
        assert other <= number
    kind = "continuation" if cell.api == "completions" else "chat"
    assert _numbers(told.logprobs) == pytest.approx(cell.agreed(_numbers(told.logprobs), kind), abs=0.02)


def _numbers(logprobs: tuple[Logprob, ...]) -> list[float]:
    numbers = [entry.value for entry in logprobs]
    assert all(number <= 0 for number in numbers)
    return numbers


def usage(cell: Cell) -> None:
    told, engine = cell.told(question(cell)), cell.engine(question(cell))
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, LIMIT)
    if cell.api in ("ollama", "generate"):
        durations = [told.extra[f"{name}_duration"] for name in ("total", "prompt_eval", "eval")]
        assert 0 < sum(durations[1:]) <= durations[0]


def thinking_off(cell: Cell) -> None:
    told = cell.told(question(cell, think=False))
    assert (told.text, told.thinking) == (cell.engine(question(cell)).text, "")


def thinking_on(cell: Cell) -> None:
    """SmolLM2 does not think: Ollama's API says so, the others go on without."""
    whole = cell.engine(question(cell)).text
    word = whole.split()[2]
    ask = question(cell, think=True, stop=() if cell.api == "responses" else (word,))
    if cell.api in ("ollama", "generate"):
        failure = cell.failure(ask)
        assert failure.status == 400
        assert "does not support thinking" in failure.message
        return
    told = cell.told(ask)
    assert (told.text, told.thinking) == (whole if not ask.stop else whole[: whole.index(word)], "")


def choices(cell: Cell) -> None:
    ask = question(cell, choices=2)
    told, engine = cell.told(ask), cell.engine(question(cell))
    assert told.texts == (engine.text, engine.text)
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, 2 * ask.limit)


# ---- structure


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


# ---- Responses


def previous_response(cell: Cell) -> None:
    first = cell.told(Ask(turns=CONVERSATION[:1]))
    second = cell.told(Ask(turns=CONVERSATION[2:], previous=first.extra["id"]))
    assert second.extra["previous_response_id"] == first.extra["id"]
    turns = (CONVERSATION[0], assistant(first.text), CONVERSATION[2])
    assert second.text == cell.engine(Ask(turns=turns)).text
    assert second.prompt_tokens == cell.engine(Ask(turns=turns)).prompt_tokens


_HELPERS = {
    "openai": "chat.completions.stream",
    "responses": "responses.stream",
    "anthropic": "messages.stream",
}


def stream_helper(cell: Cell) -> None:
    """What the client's own helper makes of a stream is the whole answer."""
    api, engine = APIS[cell.api], cell.engine(ENDING)
    params = {name: value for name, value in api.params(ENDING, stream=True).items() if name != "stream"}
    reply = cell.call(_HELPERS[cell.api], "helper", **params)
    assert "error" not in reply, reply
    told = api.whole(reply["whole"])
    assert (told.text, told.finish) == (engine.text, "stop")
    assert (told.prompt_tokens, told.tokens) == (engine.prompt_tokens, engine.tokens)
    assert len(reply["pieces"]) > engine.tokens


# ---- vectors, counts, models


def embedding(cell: Cell) -> None:
    [vector] = _vectors(cell, TEXTS[0])
    assert len(vector) == 576
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-3)
    assert vector == pytest.approx(cell.bench.agreed(TEXTS[0], vector), abs=1e-4)


def embedding_old(cell: Cell) -> None:
    [new] = _vectors(cell, TEXTS[0])
    old = cell.value("embeddings", "whole", model=MODEL, prompt=TEXTS[0])["embedding"]
    assert old == pytest.approx(new, abs=1e-4)


def batch(cell: Cell) -> None:
    """Each item of a batch gets what it gets alone, in their order."""
    if cell.api == "completions":
        ask = Ask(turns=tuple(user(text) for text in TEXTS), limit=8)
        assert cell.told(ask).texts == tuple(
            cell.engine(replace(ask, turns=(turn,))).text for turn in ask.turns
        )
        return
    vectors = _vectors(cell, list(TEXTS))
    assert len(vectors) == len(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        [alone] = _vectors(cell, text)
        assert vector == pytest.approx(alone, abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)


def _vectors(cell: Cell, texts: str | list[str]) -> list[list[float]]:
    if cell.api == "ollama":
        vectors = cell.value("embed", "whole", model=MODEL, input=texts)["embeddings"]
    else:
        reply = cell.value("embeddings.create", "whole", model=MODEL, input=texts)
        assert [item["index"] for item in reply["data"]] == list(range(len(reply["data"])))
        vectors = [item["embedding"] for item in reply["data"]]
    assert isinstance(vectors, list)
    return vectors


def token_count(cell: Cell) -> None:
    """The count of a prompt is what the same prompt costs."""
    for ask in (Ask(turns=CONVERSATION, system="Be short.", limit=1), replace(TOOL_ASK, limit=1)):
        count = cell.value("messages.count_tokens", "whole", **Messages().prompt(ask))
        assert count["input_tokens"] == cell.told(ask).prompt_tokens


def models_listed(cell: Cell) -> None:
    expected = {f"{name}:latest" for name in (TOOLS_MODEL, SMALL_MODEL)} | {"smollm2:135m"}
    if cell.api == "ollama":
        models = cell.value("list", "whole")["models"]
        names = {model["model"] for model in models}
        assert all(model["size"] > 90_000_000 for model in models)
        assert {model["details"]["family"] for model in models} == {"llama"}
    else:
        names = {model["id"] for model in cell.value("models.list", "items")}
    assert names >= expected


def model_shown(cell: Cell) -> None:
    if cell.api == "ollama":
        # The client for Python takes the name, the one for Node an object.
        shown = (
            cell.value("show", "whole", TOOLS_MODEL)
            if cell.language == "python"
            else cell.value("show", "whole", model=TOOLS_MODEL)
        )
        assert sorted(shown["capabilities"]) == ["completion", "tools"]
        assert "tools" in shown["template"]
        info = shown.get("model_info") or shown["modelinfo"]
        assert info["llama.context_length"] == 8192
        return
    for name in (MODEL, "smollm2:135m"):
        assert cell.value("models.retrieve", "whole", name)["id"] == name
    failure = cell.call("models.retrieve", "whole", "nothing/such")["error"]
    assert (failure["name"], failure["status"]) == ("NotFoundError", 404)


# ---- errors


def image_refused(cell: Cell) -> None:
    failure = cell.failure(Ask(turns=(user("What is this?", image=IMAGE),)))
    assert failure.status == 400
    assert "projector" in failure.message


def unknown_model(cell: Cell) -> None:
    failure = cell.failure(question(cell, model="nothing-such"))
    assert failure.name == ("ResponseError" if cell.api in ("ollama", "generate") else "NotFoundError")
    assert failure.status == 404
    assert "nothing-such" in failure.message
    if cell.api == "anthropic":
        assert failure.detail["type"] == "not_found_error"
    elif cell.api not in ("ollama", "generate"):
        assert failure.detail["code"] == "model_not_found"


def too_long(cell: Cell) -> None:
    """The error tells both numbers; Ollama's chat gives up the oldest turns, and says so."""
    words = "one two three four five six seven eight nine ten " * 30
    ask = Ask(turns=(user(words),), limit=1)
    needed = cell.engine(ask).prompt_tokens
    if cell.api == "ollama":
        _check_truncated(cell, words)
        return
    failure = cell.failure(Ask(turns=ask.turns, model=SMALL_MODEL))
    assert failure.status == 400
    assert str(needed) in failure.message
    assert str(SMALL_WINDOW) in failure.message
    if cell.api == "anthropic":
        assert failure.message.startswith(f"prompt is too long: {needed} tokens > {SMALL_WINDOW} maximum")
    elif cell.api != "generate":
        assert failure.detail["code"] == "context_length_exceeded"


def _check_truncated(cell: Cell, words: str) -> None:
    told = cell.told(Ask(turns=(user(words), assistant(words), *CONVERSATION), model=SMALL_MODEL))
    kept = cell.engine(Ask(turns=CONVERSATION))
    assert (told.text, told.prompt_tokens) == (kept.text, kept.prompt_tokens)
    if cell.language == "node":  # the client for Python drops the field
        assert told.extra["truncated"] is True


def abort(cell: Cell) -> None:
    """A client that leaves frees the engine's slot long before the answer is through."""
    daemon, api = cell.bench.daemon, APIS[cell.api]
    cell.told(question(cell, limit=1))
    before = len(releases(daemon))
    reply = cell.call(
        api.method, "abort-stream" if cell.stream else "abort-whole", **api.params(ENDLESS, cell.stream)
    )
    assert reply == {"aborted": True}
    _until(lambda: len(releases(daemon)) > before and not any(m["in_use"] for m in daemon.loaded()))
    assert releases(daemon)[before] < ENDLESS.limit / 2


def _until(condition: Any) -> None:
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


CHATS = ("ollama", "openai", "responses", "anthropic")
FROM_TEXT = ("ollama", "generate", "openai", "completions", "responses", "anthropic")
QUESTIONS = tuple(api for api in FROM_TEXT if api != "completions")
OPENAI = ("openai", "responses", "anthropic")
# Ollama has no tool_choice; mgr's own is for clients that pass on what they do not know.
FORCING = (*OPENAI, "node ollama")

FEATURES = (
    Feature("plain", FROM_TEXT, plain),
    Feature("system", QUESTIONS, system),
    Feature("multi-part", OPENAI, multi_part),
    Feature("multi-turn", CHATS, multi_turn),
    Feature("prefilled", CHATS, prefilled),
    Feature("stop", tuple(api for api in FROM_TEXT if api != "responses"), stop),
    Feature("limit", FROM_TEXT, limit),
    Feature("seed", ("ollama", "generate", "openai", "completions"), seed),
    Feature("logprobs", tuple(api for api in FROM_TEXT if api != "anthropic"), logprobs),
    Feature("usage", FROM_TEXT, usage),
    Feature("choices", ("openai", "completions"), choices),
    Feature("JSON", ("ollama", "generate", "openai", "responses"), json_object),
    Feature("schema", QUESTIONS, schema),
    Feature("tools defined", CHATS, tools_defined),
    Feature("tools called", FORCING, tools_called),
    Feature("tool named", FORCING, tool_named),
    Feature("tool result", CHATS, tool_result),
    Feature("thinking off", QUESTIONS, thinking_off),
    Feature("thinking on", QUESTIONS, thinking_on),
    Feature("image", QUESTIONS, image_refused),
    Feature("previous", ("responses",), previous_response),
    Feature("helper", OPENAI, stream_helper, (True,)),
    Feature("embedding", ("ollama", "openai"), embedding, (False,)),
    Feature("embeddings", ("ollama",), embedding_old, (False,)),
    Feature("batch", ("ollama", "openai"), batch, (False,)),
    Feature("prompts", ("completions",), batch),
    Feature("token count", ("anthropic",), token_count, (False,)),
    Feature("list", ("ollama", "openai", "anthropic"), models_listed, (False,)),
    Feature("show", ("ollama", "openai", "anthropic"), model_shown, (False,)),
    Feature("no model", FROM_TEXT, unknown_model),
    Feature("too long", FROM_TEXT, too_long),
    Feature("abort", FROM_TEXT, abort),
)
