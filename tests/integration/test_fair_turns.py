"""Whose turn it is, and how a model is made to go, seen from outside, with the scripted engine."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping

import httpx
import pytest

from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon, eventually
from tests.fakes.dialects import STREAMS, WAYS, Way, way_id
from tests.integration.conftest import MakeDaemon

CHAT = WAYS[1]  # /api/chat, whole


def client_of(
    daemon: ScriptedDaemon, address: str = "127.0.0.1", headers: Mapping[str, str] = {}
) -> httpx.AsyncClient:
    """A client with an address of this machine of its own."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(
        transport=transport, base_url=daemon.url, headers=headers, timeout=GUARD_SECONDS, trust_env=False
    )


@pytest.mark.parametrize("apart_by", ["addresses", "keys"])
async def test_another_client_waits_for_at_most_one_job_of_thirty(
    make_daemon: MakeDaemon, apart_by: str
) -> None:
    """Must hold: 30 queued jobs of one client, then one of another, which starts after at most one of them."""
    daemon = make_daemon(NUM_PARALLEL=1)
    daemon.model("a")
    hold = daemon.hold("first")
    daemon.script({"hold_tokens": str(hold)})
    keys = ("", "")
    if apart_by == "keys":
        keys = ("key-one", "key-two")
        (daemon.folder / "keys").write_text("\n".join(keys))
        daemon.settings["API_KEYS_FILE"] = daemon.folder / "keys"
        daemon.headers = {"Authorization": f"Bearer {keys[0]}"}
    daemon.start()
    addresses = ("127.0.0.1", "127.0.0.2" if apart_by == "addresses" else "127.0.0.1")
    ended: list[str] = []

    async def job(client: httpx.AsyncClient, name: str) -> None:
        reply = await client.post(CHAT.path, json=CHAT.body("a"))
        assert reply.status_code == 200, reply.text
        ended.append(name)

    one, other = (
        client_of(daemon, address, {"Authorization": f"Bearer {key}"} if key else {})
        for address, key in zip(addresses, keys, strict=True)
    )
    async with one, other, asyncio.TaskGroup() as group:
        group.create_task(job(one, "running"))
        await daemon.until("held")
        for _ in range(30):
            group.create_task(job(one, "one"))
        await eventually(lambda: waiting(daemon) == 30, "thirty are queued")
        group.create_task(job(other, "other"))
        await eventually(lambda: waiting(daemon) == 31, "the other is queued, too")
        hold.release()
    assert ended[0] == "running"
    assert ended.index("other") <= 2
    assert ended.count("one") == 30


def waiting(daemon: ScriptedDaemon) -> int:
    reply = httpx.get(f"{daemon.url}/api/ps", headers=daemon.headers, trust_env=False, timeout=GUARD_SECONDS)
    return sum(line["requests"] for line in reply.json()["waiting"])


@pytest.mark.parametrize("way", STREAMS, ids=way_id)
async def test_a_model_that_generates_without_end_is_gone_within_the_drain_bound(
    make_daemon: MakeDaemon, way: Way
) -> None:
    """Must hold: the client sees an error event, `ps` shows the stage, and the next request starts a new engine."""
    daemon = make_daemon(DRAIN_TIMEOUT="1s")
    daemon.model("a")
    daemon.script(a={"hold_tokens": str(daemon.hold("for ever"))})
    daemon.start()
    async with daemon.client() as client:
        async with client.stream("POST", way.path, json=way.body("a")) as stream:
            chunks = stream.aiter_bytes()
            begun = await anext(chunks)
            assert (
                await client.post("/api/generate", json={"model": "a", "keep_alive": 0})
            ).status_code == 200
            assert daemon.loaded()[0]["stage"] == "draining"
            said = b"".join([chunk async for chunk in chunks])
        assert "it was asked to go" in way.terminal_error(begun + said)
        await eventually(lambda: daemon.loaded() == [], "it is gone")
        daemon.script()
        assert (await client.post(CHAT.path, json=CHAT.body("a"))).status_code == 200


async def test_mgr_stop_returns_when_the_model_is_gone(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(DRAIN_TIMEOUT="1s")
    daemon.model("a")
    daemon.script(a={"hold_tokens": str(daemon.hold("for ever"))})
    daemon.start()
    async with daemon.client() as client:
        asked = asyncio.create_task(client.post(CHAT.path, json=CHAT.body("a")))
        await daemon.until("held")
        command = [sys.executable, "-m", "cli.main", "stop", "a"]
        environment = {**daemon.environment(), "MGR_HOST": daemon.url.removeprefix("http://")}
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=GUARD_SECONDS
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert daemon.loaded() == []
        assert (await asked).status_code == 502


@pytest.mark.parametrize("said_by", ["header", "key"])
async def test_a_batch_lets_others_go_first(make_daemon: MakeDaemon, said_by: str) -> None:
    daemon = make_daemon(NUM_PARALLEL=1)
    daemon.model("a")
    hold = daemon.hold("first")
    daemon.script({"hold_tokens": str(hold)})
    (daemon.folder / "keys").write_text("person\nmachine batch\n")
    daemon.settings["API_KEYS_FILE"] = daemon.folder / "keys"
    daemon.headers = {"Authorization": "Bearer person"}
    daemon.start()
    key, more = ("machine", {}) if said_by == "key" else ("person", {"X-Priority": "batch"})
    ended: list[str] = []

    async def job(client: httpx.AsyncClient, name: str) -> None:
        assert (await client.post(CHAT.path, json=CHAT.body("a"))).status_code == 200
        ended.append(name)

    batch = client_of(daemon, headers={"Authorization": f"Bearer {key}", **more})
    person = client_of(daemon, headers=daemon.headers)
    async with batch, person, asyncio.TaskGroup() as group:
        group.create_task(job(person, "running"))
        await daemon.until("held")
        for number in range(1, 4):
            group.create_task(job(batch, "batch"))
            await eventually(lambda number=number: waiting(daemon) == number, "it is queued")
        group.create_task(job(person, "person"))
        await eventually(lambda: waiting(daemon) == 4, "the person is queued, too")
        hold.release()
    assert ended == ["running", "person", "batch", "batch", "batch"]
