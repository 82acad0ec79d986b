"""Must hold: /v1/messages/count_tokens says as many tokens as the same request has when it is really run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.conftest import RealEngine, copy_store
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess
from tests.fakes.dialects import Way

PLAIN, TOOLED = "smollm2", "with-tools"
TEMPLATE = Path(__file__).with_name("matrix") / "tools.jinja"

WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
}
ADD = {
    "name": "add",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich 🌉"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=AAAAA;"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def texts(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


def plain(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": PLAIN, "messages": [*messages], **more}


def tooled(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": TOOLED, "messages": [*messages], "tools": [WEATHER], **more}


HI = user("Hi!")
LOOP = (user("What is the weather in Zürich?"), assistant([*texts("I look."), CALL]), user([RESULT]))
REQUESTS: dict[str, dict[str, Any]] = {
    "one_word": plain(HI),
    "system": plain(HI, system="You are brief."),
    "system_blocks": plain(HI, system=texts("You are brief.", " You are kind.")),
    "billing": plain(HI, system=[BILLING, *texts("You are brief.")]),
    "multi_turn": plain(HI, assistant("Hello!"), user("And what is your name?")),
    "multi_part": plain(user(texts("Hi", " there", ", you."))),
    "two_users": plain(HI, user("Are you there?")),
    "system_within": plain(
        HI, {"role": "system", "content": "<reminder>"}, assistant("Yes?"), user("Go on.")
    ),
    "prefilled": plain(user("Count to five."), assistant("One, two,")),
    "special_text": plain(user("Say <|im_start|>user\nagain<|im_end|> and <|endoftext|>.")),
    "unicode": plain(user("Grüße, 世界 🌍 \u202e \t\n")),
    "long": plain(user("alpha beta gamma " * 100), system="Read it all."),
    "thinking_off": plain(HI, thinking={"type": "disabled"}),
    "schema": plain(
        HI,
        output_config={
            "format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {}}}}
        },
    ),
    "tool": tooled(user("What is the weather?")),
    "tools": tooled(user("What is the weather?"), tools=[WEATHER, ADD], system="You are brief."),
    "tool_loop": tooled(*LOOP),
    "tool_none": tooled(HI, tool_choice={"type": "none"}),
    "tool_any": tooled(HI, tools=[WEATHER, ADD], tool_choice={"type": "any"}),
    "tool_named": tooled(
        HI,
        tools=[WEATHER, ADD],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    ),
    "no_tools_with_a_template": {"model": TOOLED, "messages": [HI]},
}


@pytest.fixture(scope="module")
def client(
    engine: RealEngine, pulled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("counts")
    copy_store(pulled, folder / "models")
    daemon = DaemonProcess(folder, {"ENGINE": engine.setting, "CONTEXT_LENGTH": 2048}).start()
    try:
        with httpx.Client(base_url=daemon.url, timeout=GUARD_SECONDS, trust_env=False) as client:
            made = {"model": TOOLED, "from": PLAIN, "template": TEMPLATE.read_text(), "stream": False}
            assert client.post("/api/create", json=made).json() == {"status": "success"}
            yield client
    finally:
        daemon.stop()


def counted(client: httpx.Client, request: dict[str, Any]) -> int:
    reply = client.post("/v1/messages/count_tokens", json=request)
    assert reply.status_code == 200, reply.text
    assert set(reply.json()) == {"input_tokens"}
    return int(reply.json()["input_tokens"])


def used(client: httpx.Client, request: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt when it is run, and how many of them came from the cache."""
    reply = client.post("/v1/messages", json={**request, "max_tokens": 1})
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    cached = int(usage["cache_read_input_tokens"])
    return int(usage["input_tokens"]) + cached + int(usage["cache_creation_input_tokens"]), cached


@pytest.mark.parametrize("name", REQUESTS)
def test_a_count_is_what_a_run_uses(client: httpx.Client, name: str) -> None:
    """Twice: what is in the engine's cache is counted like the rest."""
    request = REQUESTS[name]
    before = counted(client, request)
    first, _ = used(client, request)
    second, cached = used(client, request)
    assert (first, second, counted(client, request)) == (before, before, before)
    assert before > 2
    assert cached > 0


def test_what_is_left_out_of_a_prompt_is_not_counted(client: httpx.Client) -> None:
    """Tools that may not be used, what a client bills with, and a switch that says what is so anyway."""
    count = {name: counted(client, request) for name, request in REQUESTS.items()}
    assert count["tool_none"] == count["no_tools_with_a_template"] < count["tool_any"]
    assert count["billing"] == count["system"]
    assert count["thinking_off"] == count["one_word"]
    assert count["tool"] < count["tools"]


def test_the_counts_of_a_stream_are_the_same(client: httpx.Client) -> None:
    request = REQUESTS["tool_loop"]
    reply = client.post("/v1/messages", json={**request, "max_tokens": 2, "stream": True})
    way = Way("anthropic", "/v1/messages", stream=True)
    [usage] = [event["usage"] for event in way.events(reply.content) if event["type"] == "message_delta"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[part] for part in parts) == counted(client, request)


def test_a_prompt_that_does_not_fit_is_counted_all_the_same(client: httpx.Client) -> None:
    """A client counts to know how much it has to leave out."""
    request = plain(user("alpha beta gamma " * 1000))
    assert counted(client, request) > 3000
    refused = client.post("/v1/messages", json={**request, "max_tokens": 1}).json()["error"]["message"]
    assert refused == f"prompt is too long: {counted(client, request)} tokens > 2048 maximum"
