"""The real engine behind a real daemon: cancels, evictions, deaths, limits, and what the first user types."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import httpx
import psutil
import pytest

from tests.engine.conftest import NO_HUB, DirectEngine, MakeEngineDaemon, RealEngine, releases
from tests.fakes.daemon import DaemonProcess, eventually
from tests.fakes.dialects import STREAMS, WAYS, Way, way_id

MODEL, OTHER = "smollm2", "other"
PREFILL = "processing task"  # what the engine logs when it begins with a prompt
# Greedy, SmolLM2 was seen to go on for more than 3,000 tokens.
ENDLESS = "Write a very long story."
LONG_PROMPT = "Please read this list of words and then tell me the last one: " + "alpha beta gamma " * 1200


def in_use(daemon: DaemonProcess) -> list[int]:
    return [model["in_use"] for model in daemon.loaded()]


async def preload(client: httpx.AsyncClient, *models: str) -> None:
    for model in models:
        reply = await client.post("/api/generate", json={"model": model})
        assert reply.status_code == 200, reply.text


async def test_the_daemon_runs_the_engine_that_is_tested(engine: RealEngine, daemon: DaemonProcess) -> None:
    async with daemon.client() as client:
        await preload(client, MODEL)
    [shown] = {model["engine"] for model in daemon.loaded()}
    if engine.setting == "wheel":
        assert shown == f"wheel {version('xllamacpp')}"
    else:
        said = subprocess.run([*engine.command, "--version"], capture_output=True, text=True, check=True)
        [(number, commit)] = re.findall(r"build (\d+), commit (\w+)", said.stdout + said.stderr)
        assert shown == f"configured b{number} ({commit})"


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_cancel_while_tokens_come(daemon: DaemonProcess, way: Way) -> None:
    """Must hold: the engine's own log shows the slot released; no lease is left."""
    async with daemon.client() as client:
        await preload(client, MODEL)
        asking = asyncio.create_task(client.post(way.path, json=way.body(MODEL, ENDLESS, **way.greedy(4000))))
        await eventually(lambda: in_use(daemon) == [1], "it is at work")
        await asyncio.sleep(0.5)
        before = releases(daemon)
        assert not asking.done()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await eventually(lambda: len(releases(daemon)) > len(before), "the slot is released")
        await eventually(lambda: in_use(daemon) == [0], "no lease is left")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-a-stream"])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[5]], ids=way_id)
async def test_cancel_in_prefill(
    daemon: DaemonProcess, way: Way, beside: bool, request: pytest.FixtureRequest
) -> None:
    """Must hold: a cancel in prefill releases the slot before the prefill is through, also beside another stream."""
    prompt = f"{request.node.name} {LONG_PROMPT}"  # nothing of it is in the engine's cache
    prompt_tokens = len(prompt.split())  # at least one token a word
    async with daemon.client() as client:
        await preload(client, MODEL)
        begun = asyncio.Event()
        other = asyncio.create_task(_stream_for_long(client, begun)) if beside else None
        if beside:
            await begun.wait()
        before, prefills = releases(daemon), daemon.log_text().count(PREFILL)
        asking = asyncio.create_task(client.post(way.path, json=way.body(MODEL, prompt)))
        await eventually(
            lambda: daemon.log_text().count(PREFILL) > prefills or asking.done(), "prefill has begun"
        )
        assert not asking.done()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await eventually(lambda: len(releases(daemon)) > len(before), "the slot is released")
        assert releases(daemon)[len(before)] < prompt_tokens
        if other is not None:
            assert not other.done()
            other.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await other
            await eventually(lambda: len(releases(daemon)) > len(before) + 1, "the other slot is released")
        await eventually(lambda: in_use(daemon) == [0], "no lease is left")


async def _stream_for_long(client: httpx.AsyncClient, begun: asyncio.Event) -> None:
    body = WAYS[0].body(MODEL, ENDLESS, **WAYS[0].greedy(4000))
    async with client.stream("POST", WAYS[0].path, json=body) as response:
        async for _ in response.aiter_bytes():
            begun.set()


async def test_a_busy_model_ends_its_answer_before_another_takes_its_place(
    make_engine_daemon: MakeEngineDaemon,
) -> None:
    """Must hold: with a limit of one, A streams 200 tokens, B is asked meanwhile: A's answer is complete and equal to
    one given alone, then B answers."""
    daemon = make_engine_daemon(MAX_LOADED_MODELS=1)
    way = STREAMS[0]
    options = {"temperature": 0, "num_predict": 200}
    body = way.body(MODEL, "Tell me about the sea.", options=options)
    async with daemon.client() as client:
        alone = way.text((await client.post(way.path, json=body)).content)
        async with client.stream("POST", way.path, json=body) as response:
            chunks = response.aiter_bytes()
            raw = await anext(chunks)
            other = asyncio.create_task(
                client.post(way.path, json=way.body(OTHER, options={"num_predict": 5}))
            )
            raw += b"".join([chunk async for chunk in chunks])
        assert way.text(raw) == alone
        assert way.events(raw)[-1]["eval_count"] == 200
        assert way.text((await other).content)
    assert [model["name"] for model in daemon.loaded()] == ["other:latest"]


async def test_of_six_requests_at_once_each_ends_with_200_or_503(
    make_engine_daemon: MakeEngineDaemon,
) -> None:
    daemon = make_engine_daemon(MAX_LOADED_MODELS=1, MAX_QUEUE=1)
    options = {"num_predict": 3}
    async with daemon.client() as client:
        replies = await asyncio.gather(
            *(
                client.post(WAYS[1].path, json=WAYS[1].body(model, options=options))
                for model in (MODEL, OTHER) * 3
            )
        )
    statuses = [reply.status_code for reply in replies]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 1
    assert all("retry-after" in reply.headers for reply in replies if reply.status_code == 503)


@pytest.mark.parametrize("way", STREAMS, ids=way_id)
async def test_kill_9_of_the_engine_in_the_middle(daemon: DaemonProcess, way: Way) -> None:
    """Must hold: the client gets the terminal error of its dialect, the next request works, no zombie."""
    async with daemon.client() as client:
        await preload(client, MODEL)
        [engine] = daemon.engines()
        async with client.stream(
            "POST", way.path, json=way.body(MODEL, ENDLESS, **way.greedy(4000))
        ) as response:
            chunks = response.aiter_bytes()
            raw = await anext(chunks)
            os.kill(engine.pid, signal.SIGKILL)
            raw += b"".join([chunk async for chunk in chunks])
        assert "engine stopped" in way.terminal_error(raw)
        again = await client.post(way.path, json=way.body(MODEL, "Say hi.", **way.greedy(20)))
        assert way.text(again.content)
    assert daemon.zombies() == []


async def test_kill_9_of_the_daemon_leaves_no_engine(make_engine_daemon: MakeEngineDaemon) -> None:
    daemon = make_engine_daemon()
    async with daemon.client() as client:
        await preload(client, MODEL, OTHER)
    engines = daemon.engines()
    assert len(engines) == 2
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    await eventually(lambda: not any(engine.is_running() for engine in engines), "no engine is left")
    daemon.start()
    async with daemon.client() as client:
        await preload(client, MODEL)


async def test_sigterm_with_an_open_stream(make_engine_daemon: MakeEngineDaemon) -> None:
    """Must hold: exit 0, no engine left, and the stream ends with an error its client can see."""
    daemon = make_engine_daemon(DRAIN_TIMEOUT="0.2s")
    way = STREAMS[0]
    async with daemon.client() as client:
        await preload(client, MODEL)
        engines = daemon.engines()
        body = way.body(MODEL, ENDLESS, **way.greedy(4000))
        async with client.stream("POST", way.path, json=body) as response:
            chunks = response.aiter_bytes()
            raw = await anext(chunks)
            daemon.signal(signal.SIGTERM)
            raw += b"".join([chunk async for chunk in chunks])
        assert way.terminal_error(raw)
    assert daemon.wait() == 0
    assert not any(engine.is_running() for engine in engines)


async def test_a_prompt_beyond_the_window_is_refused_with_the_counts(
    make_engine_daemon: MakeEngineDaemon,
) -> None:
    daemon = make_engine_daemon(CONTEXT_LENGTH=512)
    async with daemon.client() as client:
        await preload(client, MODEL)
        for way in WAYS:
            reply = await client.post(way.path, json=way.body(MODEL, LONG_PROMPT))
            assert reply.status_code == 400
            message = way.error(reply.json())
            assert "512" in message
            assert int(re.findall(r"\d{4,}", message)[0]) > 1200


async def test_each_request_has_the_whole_window_whatever_the_slots(
    make_engine_daemon: MakeEngineDaemon,
) -> None:
    daemon = make_engine_daemon(CONTEXT_LENGTH=512, NUM_PARALLEL=2)
    prompt = "word " * 450
    async with daemon.client() as client:
        replies = await asyncio.gather(
            *(
                client.post(WAYS[1].path, json=WAYS[1].body(MODEL, prompt, options={"num_predict": 2}))
                for _ in range(2)
            )
        )
    assert [reply.status_code for reply in replies] == [200, 200]
    assert daemon.loaded()[0]["context_length"] == 512


async def test_raw_generate_continues_the_text_as_it_stands(daemon: DaemonProcess) -> None:
    body = {"model": MODEL, "prompt": "The capital of France is", "raw": True, "stream": False}
    async with daemon.client() as client:
        reply = await client.post(
            "/api/generate", json={**body, "options": {"temperature": 0, "num_predict": 8}}
        )
    answer = reply.json()
    assert "Paris" in answer["response"]
    assert answer["prompt_eval_count"] < 12  # no template around it


def run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The command line as a program, its output read to the end."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_mgr_run_prints_what_the_engine_says(daemon: DaemonProcess, direct: DirectEngine) -> None:
    """Must hold: with temperature 0 the same text as the engine asked directly, also when stdout is a pipe."""
    question = "Why is the sky blue? One sentence."
    environment = {**daemon.environment(), "MGR_HOST": daemon.url}
    told = run(["run", MODEL, question, "--temperature", "0", "--max-tokens", "40"], environment)
    assert told.returncode == 0
    messages = [{"role": "user", "content": question}]
    assert told.stdout == direct.chat(messages=messages, temperature=0, max_tokens=40).strip() + "\n"
    assert told.stderr == ""


def test_the_first_line_a_user_types(engine: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Must hold: `mgr run smollm2 "..."` with a new HOME pulls, starts a daemon and prints a sentence; a caller that
    reads the pipe to its end is not kept waiting by the daemon; `mgr stop --daemon` ends it."""
    folder = tmp_path_factory.mktemp("first")
    settings = {"ENGINE": engine.setting, "HUB_ENDPOINT": NO_HUB, "HOST": folder / "m.sock"}
    daemon = DaemonProcess(folder, settings)
    environment = daemon.environment()
    told = run(["run", MODEL, "Why is the sky blue? One sentence.", "--temperature", "0"], environment)
    try:
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("The sky")
        assert "\x1b" not in told.stdout + told.stderr
        assert "starting mgr" in told.stderr
    finally:
        stopped = run(["stop", "--daemon"], environment)
    assert stopped.returncode == 0
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])
    ]
