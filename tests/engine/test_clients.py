"""Must hold: unmodified `ollama`, `openai` and `anthropic` clients chat with SmolLM2, stream and not, with a system
prompt, a limit, stop sequences and usage; at temperature 0 all six ways give the text that the engine itself gives."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.engine.conftest import DirectEngine
from tests.fakes.daemon import DaemonProcess

MODEL = "smollm2"
SYSTEM = "You answer in plain English."
QUESTION = "Why is the sky blue? One sentence."
LIMIT = 48


@dataclass(frozen=True)
class Told:
    """What a client got."""

    text: str
    reason: str | None
    prompt_tokens: int
    tokens: int
    pieces: int


Ask = Callable[[str, int, list[str]], Told]


@pytest.fixture(params=["ollama", "openai", "anthropic"])
def client(request: pytest.FixtureRequest, daemon: DaemonProcess) -> Iterator[tuple[str, Any]]:
    makers: dict[str, Callable[[], Any]] = {
        "ollama": lambda: ollama.Client(daemon.url),
        "openai": lambda: openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0),
        "anthropic": lambda: anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0),
    }
    with closing(makers[request.param]()) as made:
        yield request.param, made


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def ask(request: pytest.FixtureRequest, client: tuple[str, Any]) -> Ask:
    name, made = client
    ways: dict[str, Callable[[Any, bool, str, int, list[str]], Told]] = {
        "ollama": ask_ollama,
        "openai": ask_openai,
        "anthropic": ask_anthropic,
    }
    return lambda question, limit, stop: ways[name](made, request.param, question, limit, stop)


def ask_ollama(client: ollama.Client, stream: bool, question: str, limit: int, stop: list[str]) -> Told:
    options = {"temperature": 0, "seed": 1, "num_predict": limit, "stop": stop}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    if stream:
        parts = list(client.chat(MODEL, messages, stream=True, options=options))
    else:
        parts = [client.chat(MODEL, messages, stream=False, options=options)]
    last = parts[-1]
    assert last.done
    text = "".join(part.message.content or "" for part in parts)
    return Told(text, last.done_reason, last.prompt_eval_count or 0, last.eval_count or 0, len(parts))


def ask_openai(client: openai.OpenAI, stream: bool, question: str, limit: int, stop: list[str]) -> Told:
    arguments: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "temperature": 0,
        "seed": 1,
        "max_tokens": limit,
        "stop": stop or None,
    }
    if not stream:
        whole = client.chat.completions.create(**arguments)
        choice, usage = whole.choices[0], whole.usage
        assert usage is not None
        text = choice.message.content or ""
        return Told(text, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens, 1)
    chunks = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **arguments)
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    [reason] = [choice.finish_reason for choice in choices if choice.finish_reason]
    usage = chunks[-1].usage
    assert usage is not None
    text = "".join(choice.delta.content or "" for choice in choices)
    return Told(text, reason, usage.prompt_tokens, usage.completion_tokens, len(chunks))


def ask_anthropic(
    client: anthropic.Anthropic, stream: bool, question: str, limit: int, stop: list[str]
) -> Told:
    arguments: dict[str, Any] = {
        "model": MODEL,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": limit,
        "stop_sequences": stop,
        "extra_body": {"temperature": 0},
    }
    pieces = 1
    if stream:
        with client.messages.stream(**arguments) as events:
            pieces = len(list(events.text_stream))
            message = events.get_final_message()
    else:
        message = client.messages.create(**arguments)
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    text = "".join(block.text for block in message.content if block.type == "text")
    return Told(text, message.stop_reason, prompt, usage.output_tokens, pieces)


def direct_answer(direct: DirectEngine, question: str, limit: int, stop: list[str]) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return direct.chat(messages=messages, temperature=0, seed=1, max_tokens=limit, stop=stop)


def test_all_ways_give_the_text_of_the_engine(
    ask: Ask, direct: DirectEngine, request: pytest.FixtureRequest
) -> None:
    told = ask(QUESTION, LIMIT, [])
    assert told.text == direct_answer(direct, QUESTION, LIMIT, [])
    assert len(told.text) > 40
    assert told.tokens == LIMIT
    assert told.prompt_tokens > 20
    assert told.reason in {"length", "max_tokens"}
    if "stream" in request.node.name:
        assert told.pieces > LIMIT / 2


def test_a_stop_sequence_ends_the_answer(ask: Ask, direct: DirectEngine) -> None:
    whole = direct_answer(direct, QUESTION, LIMIT, [])
    word = whole.split()[6]
    told = ask(QUESTION, LIMIT, [word])
    assert told.text == whole[: whole.index(word)]
    assert told.reason in {"stop", "stop_sequence"}
    assert 0 < told.tokens < LIMIT


def test_a_limit_is_kept(ask: Ask) -> None:
    told = ask("Count to one hundred.", 7, [])
    assert told.tokens == 7
    assert told.reason in {"length", "max_tokens"}


def test_which_stop_sequence_hit_is_told(daemon: DaemonProcess) -> None:
    with anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model=MODEL,
            max_tokens=60,
            messages=[{"role": "user", "content": "Say: one, two, three."}],
            stop_sequences=["never-said", ","],
            extra_body={"temperature": 0},
        )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ",")


def test_a_conversation_of_several_turns(daemon: DaemonProcess, direct: DirectEngine) -> None:
    messages = [
        {"role": "user", "content": "My cat is called Tom."},
        {"role": "assistant", "content": "Tom is a nice name."},
        {"role": "user", "content": "What is my cat called?"},
    ]
    with ollama.Client(daemon.url) as client:
        told = client.chat(MODEL, messages, options={"temperature": 0, "num_predict": 20}).message.content
    assert told == direct.chat(messages=messages, temperature=0, max_tokens=20)
    assert told is not None
    assert "Tom" in told
