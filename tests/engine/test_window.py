"""A truthful window, and turns that go on, with a real engine: nothing is left out unless it is asked for, and then it
is said."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.conftest import RealEngine, copy_store
from tests.engine.matrix.asks import Ask, Told, Turn, assistant, user
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess
from tests.fakes.dialects import WAYS, Way, way_id
from tests.fakes.exchange import DIALECTS, body, heard

MODEL = "smollm2"
WINDOW = 512
LONG = "The code word is heron. " + "alpha beta gamma " * 400 + "What is the code word?"
WHOLE = [way for way in DIALECTS if not way.stream]
# Turns that together do not fit, each of them does.
TURNS = tuple(
    turn
    for number in range(8)
    for turn in (user(f"Question {number}: " + "alpha beta " * 30), assistant(f"Answer {number}."))
)


@pytest.fixture(scope="module")
def client(
    engine: RealEngine, pulled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("window")
    copy_store(pulled, folder / "models")
    daemon = DaemonProcess(folder, {"ENGINE": engine.setting, "CONTEXT_LENGTH": WINDOW}).start()
    try:
        with httpx.Client(base_url=daemon.url, timeout=GUARD_SECONDS, trust_env=False) as client:
            posted(client, "/api/generate")  # who waits for a load may get an error after a status of 200
            yield client
    finally:
        daemon.stop()


def asked(client: httpx.Client, way: Way, ask: Ask, **more: Any) -> Told:
    reply = client.post(way.path, json={**body(way, ask), **more})
    assert reply.status_code == 200, reply.text
    return heard(way, reply.content).told


def posted(client: httpx.Client, path: str, **request: Any) -> Any:
    reply = client.post(path, json={"model": MODEL, "stream": False, **request})
    assert reply.status_code == 200, reply.text
    return reply.json()


def counted(client: httpx.Client, ask: Ask) -> int:
    """The tokens of its prompt."""
    way = Way("anthropic", "/v1/messages/count_tokens", stream=False)
    return int(posted(client, way.path, **body(way, ask))["input_tokens"])


def greedy(tokens: int, **options: Any) -> dict[str, Any]:
    return {"temperature": 0, "num_predict": tokens, **options}


# ---- too long


@pytest.mark.parametrize("way", [*WAYS, *(way for way in DIALECTS if way.name == "responses")], ids=way_id)
def test_c11_a_prompt_that_is_too_long_is_refused_with_its_counts(client: httpx.Client, way: Way) -> None:
    """Even where a prompt may be cut: its only turn is the one that has to stay."""
    responses = {"model": MODEL, "input": LONG, "stream": way.stream}
    sent = responses if way.name == "responses" else way.body(MODEL, LONG)
    reply = client.post(way.path, json=sent)
    assert reply.status_code == 400
    said = reply.json()["error"]
    message = said if way.name in ("chat", "generate") else said["message"]
    numbers = {int(number) for number in re.findall(r"\d+", message)}
    assert WINDOW in numbers
    needed = max(numbers)
    assert needed > 1200
    match way.name:
        case "anthropic":
            assert message == f"prompt is too long: {needed} tokens > {WINDOW} maximum"
            assert said["type"] == "invalid_request_error"
        case "openai" | "responses":
            assert (said["code"], said["type"]) == ("context_length_exceeded", "invalid_request_error")
        case _:
            assert set(reply.json()) == {"error"}


@pytest.mark.parametrize("way", [way for way in DIALECTS if way.name == "chat"], ids=way_id)
def test_the_oldest_turns_of_a_chat_go_and_it_says_so(client: httpx.Client, way: Way) -> None:
    """Ollama's API cuts unless it is told not to; the answer is the one to the rest alone."""
    ask = Ask(turns=(*TURNS, user("Say hi.")), system="You are brief.", limit=6)
    reply = client.post(way.path, json=body(way, ask))
    assert reply.status_code == 200, reply.text
    ends = [piece for piece in map(json.loads, reply.text.splitlines()) if piece["done"]]
    assert [end["truncated"] for end in ends] == [True]
    told = heard(way, reply.content).told
    rests = [replace(ask, turns=ask.turns[gone:]) for gone in range(len(ask.turns))]
    fits = next(rest for rest in rests if counted(client, rest) < WINDOW)
    assert fits.turns != ask.turns
    assert told.prompt_tokens == ends[0]["prompt_eval_count"] == counted(client, fits)
    assert told.text == asked(client, way, fits).text
    refused = client.post(way.path, json={**body(way, ask), "truncate": False})
    assert refused.status_code == 400
    assert str(WINDOW) in refused.json()["error"]


def test_a_chat_that_fits_says_nothing_of_a_cut(client: httpx.Client) -> None:
    reply = posted(client, "/api/chat", messages=[{"role": "user", "content": "Hi"}], options=greedy(2))
    assert "truncated" not in reply


@pytest.mark.parametrize("way", [way for way in DIALECTS if way.name != "chat"], ids=way_id)
def test_elsewhere_nothing_is_cut_unless_it_is_asked_for(client: httpx.Client, way: Way) -> None:
    ask = Ask(turns=(*TURNS, user("Say hi.")), limit=4)
    refused = client.post(way.path, json=body(way, ask))
    assert refused.status_code == 400
    assert str(WINDOW) in way.error(refused.json())
    wishes: dict[str, dict[str, Any]] = {"openai": {"truncate": True}, "responses": {"truncation": "auto"}}
    wish = wishes.get(way.name)
    if wish is None:
        return
    reply = client.post(way.path, json={**body(way, ask), **wish})
    assert reply.status_code == 200, reply.text
    assert 0 < heard(way, reply.content).told.prompt_tokens < WINDOW
    assert '"truncated":true' in reply.text


def test_raw_text_that_is_too_long_keeps_its_end(client: httpx.Client) -> None:
    prompt = "".join(f"{number}, " for number in range(100, 700)) + "700,"
    reply = posted(client, "/api/generate", prompt=prompt, raw=True, options=greedy(4))
    assert reply["truncated"] is True
    assert "701" in reply["response"]
    assert WINDOW // 4 < reply["prompt_eval_count"] < WINDOW
    refused = client.post(
        "/api/generate", json={"model": MODEL, "prompt": prompt, "raw": True, "truncate": False}
    )
    assert refused.status_code == 400


# ---- going on


def test_a_context_goes_on_with_a_conversation(client: httpx.Client) -> None:
    """Each context is all tokens so far, and the second answer is what follows after them."""
    first = posted(client, "/api/generate", prompt="What is the capital of France?", options=greedy(8))
    before = first["context"]
    # The token that ends a turn is counted, and is no part of its text.
    assert first["prompt_eval_count"] + first["eval_count"] - len(before) in (0, 1)
    second = posted(client, "/api/generate", prompt="And of Italy?", context=before, options=greedy(8))
    prompt = second["context"][: second["prompt_eval_count"]]
    assert prompt[: len(before)] == before
    assert len(prompt) > len(before) + 4
    plain = posted(client, "/v1/completions", prompt=prompt, max_tokens=8, temperature=0)
    assert plain["choices"][0]["text"] == second["response"]
    assert plain["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("way", DIALECTS, ids=way_id)
def test_a_begun_turn_is_continued_and_not_repeated(client: httpx.Client, way: Way) -> None:
    begun = "The capital of France is the city of"
    turns: tuple[Turn, ...] = (user("What is the capital of France?"), assistant(begun))
    told = asked(client, way, Ask(turns=turns, limit=6))
    assert "Paris" in told.text
    assert begun not in told.text
    assert told.prompt_tokens > 0


@pytest.mark.parametrize("way", [way for way in DIALECTS if way.name != "responses"], ids=way_id)
def test_a_stop_sequence_that_hit_is_left_out_and_told(client: httpx.Client, way: Way) -> None:
    ask = Ask(turns=(user("Count: 1, 2, 3, 4,"), assistant("1, 2, 3,")), limit=30, stop=("6",))
    reply = client.post(way.path, json=body(way, ask))
    told = heard(way, reply.content).told
    assert "5" in told.text
    assert "6" not in told.text
    if way.name == "anthropic":
        assert '"stop_sequence":"6"' in reply.text.replace(" ", "")


@pytest.mark.parametrize("way", WHOLE, ids=way_id)
def test_a_seed_decides(client: httpx.Client, way: Way) -> None:
    if way.name in ("responses", "anthropic"):
        more: dict[int, dict[str, Any]] = {seed: {"seed": seed} for seed in (1, 2)}
    else:
        more = {seed: {} for seed in (1, 2)}

    def said(seed: int) -> str:
        ask = Ask(turns=(user("Tell me a story."),), limit=6, temperature=1.5, seed=seed)
        return asked(client, way, ask, **more[seed]).text

    assert said(1) == said(1) != said(2)


def test_several_choices(client: httpx.Client) -> None:
    """Each is its own, and the prompt is counted once."""
    request = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 8,
        "temperature": 1.5,
    }
    one = posted(client, "/v1/chat/completions", **request, seed=3)
    two = posted(client, "/v1/chat/completions", **request, seed=3, n=2)
    texts = [choice["message"]["content"] for choice in two["choices"]]
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert texts[0] == one["choices"][0]["message"]["content"]
    assert texts[0] != texts[1]
    assert two["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert two["usage"]["completion_tokens"] == 16


def test_a_completion_with_its_prompt(client: httpx.Client) -> None:
    prompt = "The capital of France is"
    request = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    plain = posted(client, "/v1/completions", **request)["choices"][0]["text"]
    assert "Paris" in plain
    assert posted(client, "/v1/completions", **request, echo=True)["choices"][0]["text"] == prompt + plain
