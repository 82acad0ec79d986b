"""Must hold: cancel works in each phase (queued, loading, prefill, streaming; stream and not). The engine notices,
the queue is empty, no lease is left."""

import asyncio
import contextlib
from collections.abc import Awaitable

import pytest

from tests.fakes.daemon import ScriptedDaemon, eventually
from tests.fakes.dialects import STREAMS, WAYS, Way, way_id
from tests.integration.conftest import MakeDaemon


async def leave(daemon: ScriptedDaemon, way: Way, model: str, once: Awaitable[object]) -> None:
    """Asks, and closes the connection when `once` has happened."""
    async with daemon.client() as client:
        asking = asyncio.create_task(client.post(way.path, json=way.body(model)))
        await once
        assert not asking.done()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


def in_use(daemon: ScriptedDaemon) -> dict[str, int]:
    return {model["name"]: model["in_use"] for model in daemon.loaded()}


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_in_prefill(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"hold_prefill": str(daemon.hold("prefill"))})
    daemon.start()
    await leave(daemon, way, "a", daemon.until("prefill"))
    await daemon.until("cancelled")
    await eventually(lambda: in_use(daemon) == {"a:latest": 0}, "no lease is left")


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_while_tokens_come(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"hold_tokens": str(daemon.hold("tokens")), "hold_after": 2})
    daemon.start()
    await leave(daemon, way, "a", daemon.until("held"))
    await daemon.until("cancelled")
    await eventually(lambda: in_use(daemon) == {"a:latest": 0}, "no lease is left")


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_while_it_loads_the_load_is_aborted(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"hold_load": str(daemon.hold("load"))})
    daemon.start()
    await leave(daemon, way, "a", daemon.until("start"))
    await eventually(lambda: daemon.loaded() == [] and daemon.engines() == [], "the load is aborted")
    assert daemon.events("ready") == []


async def test_a_load_that_another_still_wants_goes_on(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a")
    hold = daemon.hold("load")
    daemon.script({"hold_load": str(hold)})
    daemon.start()
    way = WAYS[1]
    async with daemon.client() as client:
        staying = asyncio.create_task(client.post(way.path, json=way.body("a")))
        await daemon.until("start")
        await leave(daemon, way, "a", asyncio.sleep(0.1))
        hold.release()
        assert way.text((await staying).content) == "Hello, world!"
    assert len(daemon.events("start")) == 1


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_while_queued_nothing_is_loaded_for_nobody(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon(MAX_LOADED_MODELS=1, MAX_QUEUE=1)
    daemon.model("a", "b", "c")
    hold = daemon.hold("tokens")
    daemon.script(a={"hold_tokens": str(hold)})
    daemon.start()
    stream = STREAMS[0]
    async with daemon.client() as client, client.stream("POST", stream.path, json=stream.body("a")) as busy:
        await daemon.until("held")
        await leave(daemon, way, "b", asyncio.sleep(0.2))
        # The queue has one place, and it is free again.
        queued = asyncio.create_task(client.post(way.path, json=way.body("c")))
        await asyncio.sleep(0.2)
        assert not queued.done()
        hold.release()
        assert stream.text(await busy.aread()) == "Hello, world!"
        assert way.text((await queued).content) == "Hello, world!"
    assert daemon.events("start", "b") == []


async def test_a_client_that_never_reads_does_not_hold_up_the_others(make_daemon: MakeDaemon) -> None:
    """Back-pressure: the engine's stream waits for the slow client; another request is answered meanwhile."""
    daemon = make_daemon(NUM_PARALLEL=2)
    daemon.model("a")
    daemon.script({"tokens": ["x" * 5000], "repeat": 5000})
    daemon.start()
    way = STREAMS[0]
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")):
        await daemon.until("prefill")
        short = await client.post(way.path, json=way.body("a", options={"num_predict": 2}))
        assert way.text(short.content) == "x" * 10_000
    await daemon.until("released", count=2)
    assert [event["number"] for event in daemon.events("answered")] == [2]
