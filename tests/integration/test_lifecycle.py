"""Processes: what is left after each way to end the daemon or an engine."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.fakes.daemon import ScriptedDaemon, eventually
from tests.fakes.dialects import STREAMS, Way, way_id
from tests.integration.conftest import MakeDaemon


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def load(daemon: ScriptedDaemon, *names: str) -> None:
    async with daemon.client() as client:
        for name in names:
            response = await client.post("/api/generate", json={"model": name})
            assert response.status_code == 200, response.text


async def test_kill_9_of_the_daemon_leaves_no_engine(make_daemon: MakeDaemon) -> None:
    """Must hold: kill -9 of the daemon leaves no engine, loaded or still loading, and the next start works."""
    daemon = make_daemon()
    daemon.model("a", "b", "c")
    daemon.script(c={"hold_load": str(daemon.hold("load"))})
    daemon.start()
    await load(daemon, "a", "b")
    async with daemon.client() as client:
        loading = asyncio.create_task(client.post("/api/generate", json={"model": "c"}))
        await daemon.until("start", "c")
        engines = [event["pid"] for event in daemon.events("start")]
        assert len(engines) == 3
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await loading
    await eventually(lambda: all(map(gone, engines)), "no engine is left")
    daemon.script()
    daemon.start()
    await load(daemon, "a")


@pytest.mark.parametrize("way", STREAMS, ids=way_id)
async def test_sigterm_with_an_open_stream_drains_then_ends_it(make_daemon: MakeDaemon, way: Way) -> None:
    """Must hold: SIGTERM of the daemon with an open stream gives exit 0 and leaves no engine; the client is told."""
    daemon = make_daemon(DRAIN_TIMEOUT="0.5s")
    daemon.model("a")
    daemon.script({"hold_tokens": str(daemon.hold("tokens")), "ignore_term": True})
    daemon.start()
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as stream:
        [held] = await daemon.until("held")
        daemon.signal(signal.SIGTERM)
        raw = await stream.aread()
        assert "engine stopped" in way.terminal_error(raw)
    assert daemon.wait() == 0
    assert gone(held["pid"])


async def test_sigterm_lets_an_answer_end_that_can(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(DRAIN_TIMEOUT="8s")
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script({"hold_tokens": str(hold)})
    daemon.start()
    way = STREAMS[0]
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as stream:
        await daemon.until("held")
        daemon.signal(signal.SIGTERM)
        await eventually(lambda: "stopping" in daemon.log_text(), "the stop has begun")
        refused = await client.post(way.path, json=way.body("a"))
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        hold.release()
        assert way.text(await stream.aread()) == "Hello, world!"
    assert daemon.wait() == 0


async def test_an_engine_that_ignores_term_is_killed(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"ignore_term": True})
    daemon.start()
    await load(daemon, "a")
    [start] = daemon.events("start")
    async with daemon.client() as client:
        await client.post("/api/generate", json={"model": "a", "keep_alive": 0})
    await eventually(lambda: daemon.loaded() == [] and gone(start["pid"]), "killed")
    assert daemon.zombies() == []


async def test_a_grandchild_that_holds_the_output_goes_with_its_engine(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"fork": True})
    daemon.start()
    await load(daemon, "a")
    [forked] = daemon.events("forked")
    os.kill(forked["pid"], signal.SIGKILL)
    await eventually(lambda: daemon.loaded() == [] and gone(forked["grandchild"]), "both are gone")
    await load(daemon, "a")


async def test_a_flood_of_output_blocks_nobody_and_is_bounded(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(LOG_LEVEL="info")
    daemon.model("a", "b")
    daemon.script(a={"spam_bytes": 50_000_000})
    daemon.start()
    await load(daemon, "b")
    before = psutil.Process(daemon.pid).memory_info().rss
    await load(daemon, "a")
    assert psutil.Process(daemon.pid).memory_info().rss - before < 30_000_000
    assert daemon.stderr.stat().st_size < 1_000_000
    assert "\x1b" not in daemon.log_text()


async def test_a_dead_idle_engine_is_noticed_and_replaced(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.start()
    await load(daemon, "a")
    [start] = daemon.events("start")
    os.kill(start["pid"], signal.SIGKILL)
    await eventually(lambda: daemon.loaded() == [], "its death is noticed")
    await load(daemon, "a")
    assert len(daemon.events("start")) == 2
    assert daemon.zombies() == []


async def test_an_engine_that_has_lost_its_socket_is_replaced_before_anyone_notices(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    """The same as an engine that has just died, with its exit not yet seen: the request is given to a new one."""
    run = tmp_path / "run"
    daemon = make_daemon(RUN_DIR=run)
    daemon.model("a")
    daemon.start()
    await load(daemon, "a")
    for socket in run.glob("*.sock"):
        socket.unlink()
    async with daemon.client() as client:
        for way in STREAMS:
            answer = await client.post(way.path, json=way.body("a"))
            assert way.text(answer.content) == "Hello, world!"
    assert len(daemon.events("start")) == 2
    assert len(daemon.engines()) == 1


async def test_a_silent_load_fails_at_the_stall_limit_and_a_chatty_one_does_not(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon(LOAD_TIMEOUT="1s")
    daemon.model("a", "b")
    silent, chatty = daemon.hold("silent"), daemon.hold("chatty")
    daemon.script(
        a={"hold_load": str(silent), "say": ["waiting for godot"]},
        b={"hold_load": str(chatty), "chatty_load": True},
    )
    daemon.start()
    async with daemon.client() as client:
        talking = asyncio.create_task(client.post("/api/generate", json={"model": "b"}))
        await daemon.until("start", "b")
        failed = await client.post("/api/generate", json={"model": "a"})
        assert failed.status_code == 500
        assert "no progress for 1 s" in failed.json()["error"]
        assert failed.json()["error"].endswith("waiting for godot")
        chatty.release()
        assert (await talking).status_code == 200
    assert len(daemon.engines()) == 1


async def test_an_engine_inherits_no_secret_and_no_descriptor(
    make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("LLAMA_ARG_ALIAS", "x")
    monkeypatch.setenv("SECRET_TOKEN", "s")
    daemon = make_daemon(API_KEY="s")
    daemon.model("a")
    daemon.start()
    await load(daemon, "a")
    [start] = daemon.events("start")
    names = set(start["environment"])
    assert "LLAMA_API_KEY" in names
    assert not {name for name in names if name.startswith(("MGR_", "HF_", "HTTP_", "LLAMA_ARG_", "SECRET"))}
    descriptors = {os.readlink(link) for link in Path(f"/proc/{start['pid']}/fd").iterdir()}
    assert not {target for target in descriptors if str(daemon.folder) in target and "lock" in target}


async def test_twenty_starts_and_stops_leave_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(MAX_LOADED_MODELS=1)
    daemon.model("a", "b")
    daemon.start()
    process = psutil.Process(daemon.pid)
    await load(daemon, "a", "b", "a", "b")
    before = process.num_fds(), process.num_threads()
    for _ in range(8):
        await load(daemon, "a", "b")
    await eventually(
        lambda: process.num_fds() <= before[0] and process.num_threads() <= before[1], "nothing has grown"
    )
    assert len(daemon.engines()) == 1
    assert daemon.zombies() == []
