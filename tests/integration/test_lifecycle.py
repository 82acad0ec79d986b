"""Processes: what is left after each way to end the daemon or an engine."""

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


async def test_twenty_starts_and_stops_leave_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(MAX_LOADED_MODELS=1)
    daemon.model("a", "b")
    daemon.start()
    process = psutil.Process(daemon.pid)
    await load(daemon, "a", "b", "a", "b")
    before = process.num_fds()
    for _ in range(8):
        await load(daemon, "a", "b")
    # The pool of threads grows to its size when it likes; a thread for each load would be more.
    pool = (os.cpu_count() or 1) + 4
    await eventually(
        lambda: process.num_fds() <= before and process.num_threads() < pool + 8, "nothing has grown"
    )
    assert len(daemon.engines()) == 1
    assert daemon.zombies() == []
