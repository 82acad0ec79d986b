"""What users of such programs have met, as requests: each case is one that others answered wrongly.

The cases of scheduling, of the command line and of pulls are in the tests of those.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.engine.matrix.asks import Ask, Tool, user
from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon
from tests.fakes.dialects import Way, way_id
from tests.fakes.exchange import DIALECTS, body, finished, heard

TEMPLATE = (
    "{% if tools %}{{ tools }}{% endif %}{{ messages }}{% if enable_thinking %}<think></think>{% endif %}"
)
ECHO = Tool("echo", "Says it again.", {"type": "object", "properties": {"text": {"type": "string"}}})
LS = Tool("ls", "Lists.", {"type": "object", "properties": {"p": {"type": "string"}}})
LONG = "The code word is heron. " + "alpha " * 9000 + "What is the code word?"


def call(index: int, name: str, *fragments: str) -> list[dict[str, Any]]:
    first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name}}
    rest = [{"index": index, "function": {"arguments": fragment}} for fragment in fragments]
    return [{"tool_calls": [fragment]} for fragment in (first, *rest)]


SCRIPTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two": {
        "tokens": [""],
        "deltas": [*call(0, "echo", '{"te', 'xt": "a"}'), *call(1, "ls", '{"p": ', '"/"}')],
        "reason": "tool_calls",
    },
    "text_then_call": {
        "tokens": ["I ", "look."],
        "deltas": call(0, "ls", '{"p": "/"}'),
        "reason": "tool_calls",
    },
    "thinks": {"thinking": ["Hm."], "tokens": ["Yes."]},
    "counts": {"count_words": True},
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(
        tmp_path_factory.mktemp("cases"), {"MAX_LOADED_MODELS": 8, "CONTEXT_LENGTH": 2048}
    )
    daemon.model(*SCRIPTS, **{"tokenizer.chat_template": TEMPLATE})
    daemon.script(**SCRIPTS)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def client(scripted: ScriptedDaemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted.url, timeout=GUARD_SECONDS, trust_env=False) as client:
        yield client


def posted(client: httpx.Client, path: str, **request: Any) -> Any:
    reply = client.post(path, json={"model": "plain", "stream": False, **request})
    assert reply.status_code == 200, reply.text
    return reply.json()


def sent(scripted: ScriptedDaemon, model: str = "plain") -> list[dict[str, Any]]:
    """The turns of the last request that an engine got."""
    turns = scripted.events("request", model)[-1]["body"]["messages"]
    assert isinstance(turns, list)
    return turns


def question(model: str, *tools: Tool, **more: Any) -> Ask:
    return Ask(turns=(user("What is there?"),), model=model, tools=tools, limit=1000, **more)


def openai_call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_c01_a_broken_call_in_the_history(client: httpx.Client, scripted: ScriptedDaemon) -> None:
    """Now and in each later turn; the engine gets JSON, which every template can write."""
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [openai_call("echo", "{")]},
        {"role": "tool", "tool_call_id": "c1", "content": "bad"},
        {"role": "user", "content": "go"},
    ]
    later = [*history, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "on"}]
    for messages in (history, later):
        reply = posted(client, "/v1/chat/completions", messages=messages)
        assert reply["choices"][0]["message"]["content"] == "Hello, world!"
        turns = sent(scripted)
        assert [turn["role"] for turn in turns] == [turn["role"] for turn in messages]
        assert json.loads(turns[1]["tool_calls"][0]["function"]["arguments"]) == {"raw": "{"}


@pytest.mark.parametrize("arguments", ['{"p":"/"}', {"p": "/"}], ids=["text", "object"])
def test_c02_arguments_as_text_or_as_an_object(
    client: httpx.Client, scripted: ScriptedDaemon, arguments: Any
) -> None:
    messages = [
        {"role": "user", "content": "list"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "ls", "arguments": arguments}}],
        },
        {"role": "tool", "tool_name": "ls", "content": "bin etc"},
    ]
    assert posted(client, "/api/chat", messages=messages)["message"]["content"] == "Hello, world!"
    [made] = sent(scripted)[1]["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("ls", {"p": "/"})


def test_c02_a_reply_has_an_object(client: httpx.Client) -> None:
    request = body(Way("chat", "/api/chat", stream=False), question("text_then_call", LS))
    [made] = posted(client, "/api/chat", **request)["message"]["tool_calls"]
    assert made["function"]["arguments"] == {"p": "/"}


def test_c03_the_developer_and_turns_without_content(client: httpx.Client, scripted: ScriptedDaemon) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [openai_call("ls", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "bin"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "go"},
    ]
    posted(client, "/v1/chat/completions", messages=messages)
    turns = sent(scripted)
    assert (turns[0]["role"], turns[0]["content"]) == ("system", "be brief")
    assert [turn["role"] for turn in turns if turn["content"]] == ["system", "user", "tool", "user"]


def test_c05_two_calls_in_a_stream(client: httpx.Client) -> None:
    way = Way("openai", "/v1/chat/completions", stream=True)
    events = way.events(client.post(way.path, json=body(way, question("two", ECHO, LS))).content)
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in event["choices"]]
    fragments = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    for index, name, arguments in ((0, "echo", {"text": "a"}), (1, "ls", {"p": "/"})):
        own = [part for part in fragments if part["index"] == index]
        assert (own[0]["id"], own[0]["type"], own[0]["function"]["name"]) == (f"c{index}", "function", name)
        assert not any("id" in part for part in own[1:])
        assert json.loads("".join(part["function"].get("arguments", "") for part in own)) == arguments
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


def test_c07_a_system_turn_within_the_messages(client: httpx.Client, scripted: ScriptedDaemon) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "<reminder>"},
        {"role": "user", "content": "b"},
    ]
    posted(client, "/v1/messages?beta=true", messages=messages, max_tokens=10)
    turns = sent(scripted)
    assert [turn["content"] for turn in turns] == ["a", "<reminder>", "b"]
    assert turns[1]["role"] == "system"


def test_c08_blocks_of_a_text_and_a_call(client: httpx.Client) -> None:
    way = Way("anthropic", "/v1/messages", stream=True)
    for model, kinds in (("text_then_call", ["text", "tool_use"]), ("two", ["tool_use", "tool_use"])):
        events = way.events(client.post(way.path, json=body(way, question(model, LS, ECHO))).content)
        starts = [event for event in events if event["type"] == "content_block_start"]
        assert [event["content_block"]["type"] for event in starts] == kinds
        assert [event["index"] for event in starts] == [0, 1]
        [end] = [event for event in events if event["type"] == "message_delta"]
        assert end["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_c09_thinking_only_where_it_is_asked_for(
    client: httpx.Client, scripted: ScriptedDaemon, stream: bool
) -> None:
    way = Way("anthropic", "/v1/messages", stream=stream)
    quiet = client.post(way.path, json=way.body("thinks"))
    assert quiet.status_code == 200, quiet.text
    asked = scripted.events("request", "thinks")[-1]["body"]
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    assert "thinking_budget_tokens" not in asked
    wish = {"type": "enabled", "budget_tokens": 1024}
    loud = client.post(way.path, json=way.body("thinks", thinking=wish, max_tokens=4000))
    asked = scripted.events("request", "thinks")[-1]["body"]
    assert asked["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked["thinking_budget_tokens"] == 1024
    told = heard(way, loud.content).told
    assert (told.thinking, told.text) == ("Hm.", "Yes.")


def test_c10_what_changes_with_each_request_is_no_part_of_the_prompt(
    client: httpx.Client, scripted: ScriptedDaemon
) -> None:
    """So the engine finds the long prompt in its cache."""
    turns = []
    for hashed in ("AAAAA", "BBBBB"):
        billing = f"x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch={hashed};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": "You are an agent. " * 50}]
        messages = [{"role": "user", "content": "x"}]
        posted(client, "/v1/messages", system=system, messages=messages, max_tokens=10)
        turns.append(sent(scripted))
        assert scripted.events("request", "plain")[-1]["body"]["cache_prompt"] is True
    assert turns[0] == turns[1]
    assert turns[0][0] == {"role": "system", "content": "You are an agent. " * 50}


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
def test_c11_a_prompt_beyond_the_window(client: httpx.Client, way: Way) -> None:
    """Nothing is thrown away in silence: the only turn there is has to stay."""
    reply = client.post(way.path, json=body(way, Ask(turns=(user(LONG),), model="counts")))
    assert reply.status_code == 400
    message = way.error(reply.json())
    assert "2048" in message
    assert "90" in message
    if way.name == "anthropic":
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert message.startswith("prompt is too long: 90")


@pytest.mark.parametrize("way", DIALECTS[:2], ids=way_id)
def test_c11_what_was_cut_is_said(client: httpx.Client, scripted: ScriptedDaemon, way: Way) -> None:
    turns = (user(LONG), user("What is the code word?"))
    ask = Ask(turns=turns, model="counts", system="You are brief.", tools=(LS,))
    reply = client.post(way.path, json=body(way, ask))
    assert reply.status_code == 200, reply.text
    assert '"truncated":true' in reply.text
    assert [turn["content"] for turn in sent(scripted, "counts")] == [
        "You are brief.",
        "What is the code word?",
    ]
    assert len(scripted.events("request", "counts")[-1]["body"]["tools"]) == 1
    assert heard(way, reply.content).told.finish == finished(way, "stop")


def test_c20_a_text_that_is_too_long_for_a_vector(client: httpx.Client) -> None:
    """Cut, with two vectors and a note; or refused with its place."""
    asked = {"model": "counts", "input": ["ok", "word " * 9000]}
    cut = client.post("/api/embed", json={**asked, "truncate": True})
    assert cut.status_code == 200, cut.text
    assert len(cut.json()["embeddings"]) == 2
    assert cut.json()["truncated"] == [1]
    refused = client.post("/api/embed", json={**asked, "truncate": False})
    assert refused.status_code == 400
    assert "input 1 has 9001 tokens and the context window has 2048" in refused.json()["error"]
