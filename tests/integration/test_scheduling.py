"""Queue, shared loads, eviction, keep-alive: seen from outside, with the scripted engine."""

import asyncio
import signal
from typing import Any

import httpx
import pytest

from tests.fakes.daemon import ScriptedDaemon, eventually
from tests.fakes.dialects import WAYS, Way
from tests.integration.conftest import MakeDaemon

CHAT = WAYS[1]  # /api/chat, whole


async def ask(client: httpx.AsyncClient, model: str, way: Way = CHAT, **more: Any) -> httpx.Response:
    return await client.post(way.path, json=way.body(model, **more))


async def test_a_loaded_model_is_served_while_another_loads(make_daemon: MakeDaemon) -> None:
    """Must hold: a second request for a loaded model starts no second child, and is served while another loads."""
    daemon = make_daemon()
    daemon.model("a", "b")
    hold = daemon.hold("load")
    daemon.script(b={"hold_load": str(hold)})
    daemon.start()
    async with daemon.client() as client:
        assert (await ask(client, "a")).status_code == 200
        loading = asyncio.create_task(ask(client, "b"))
        await daemon.until("start", "b")
        for _ in range(3):
            assert CHAT.text((await ask(client, "a")).content) == "Hello, world!"
        assert not loading.done()
        hold.release()
        assert (await loading).status_code == 200
    assert len(daemon.events("start", "a")) == 1


async def test_one_start_is_shared_by_all_who_wait_for_it(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(NUM_PARALLEL=2)
    daemon.model("a")
    hold = daemon.hold("load")
    daemon.script({"hold_load": str(hold)})
    daemon.start()
    async with daemon.client() as client:
        asked = [asyncio.create_task(ask(client, "a", way)) for way in WAYS]
        await daemon.until("start")
        hold.release()
        answers = await asyncio.gather(*asked)
    assert [way.text(answer.content) for way, answer in zip(WAYS, answers, strict=True)] == [
        "Hello, world!"
    ] * 8
    assert len(daemon.events("start")) == 1


async def test_six_requests_with_room_for_one_and_a_queue_of_one(make_daemon: MakeDaemon) -> None:
    """Must hold: of six requests for different models one loads, one waits, four get 503 at once with Retry-After,
    and all six connections end."""
    daemon = make_daemon(MAX_LOADED_MODELS=1, MAX_QUEUE=1)
    names = "abcdef"
    daemon.model(*names)
    hold = daemon.hold("load")
    daemon.script({"hold_load": str(hold)})
    daemon.start()
    async with daemon.client() as client:
        asked = {asyncio.create_task(ask(client, name)) for name in names}
        refused: set[asyncio.Task[httpx.Response]] = set()
        while len(refused) < 4:
            done, _ = await asyncio.wait(asked - refused, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        assert hold.path.exists()  # at once: the load has not even ended
        hold.release()
        answered = await asyncio.gather(*(asked - refused))
    for task in refused:
        response = task.result()
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "busy" in response.json()["error"]
    assert [response.status_code for response in answered] == [200, 200]
    assert len(daemon.events("start")) == 2


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
async def test_six_requests_for_one_model_with_one_slot_and_one_that_may_wait(
    make_daemon: MakeDaemon, cold: bool
) -> None:
    """The same bound holds for a loaded model: one runs, one waits, four get 503 at once."""
    daemon = make_daemon(NUM_PARALLEL=1, MAX_QUEUE=1, MAX_WAITING=1)
    daemon.model("a")
    hold = daemon.hold("anything")
    daemon.script({"hold_load" if cold else "hold_prefill": str(hold)})
    daemon.start()
    async with daemon.client() as client:
        if not cold:
            await client.post("/api/generate", json={"model": "a"})
        asked = {asyncio.create_task(ask(client, "a")) for _ in range(6)}
        refused: set[asyncio.Task[httpx.Response]] = set()
        while len(refused) < 4:
            done, _ = await asyncio.wait(asked - refused, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        assert hold.path.exists()
        hold.release()
        answered = await asyncio.gather(*(asked - refused))
    assert {task.result().status_code for task in refused} == {503}
    assert all("retry-after" in task.result().headers for task in refused)
    assert [response.status_code for response in answered] == [200, 200]


async def test_a_busy_model_is_not_evicted_under_its_stream(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(MAX_LOADED_MODELS=1)
    daemon.model("a", "b")
    hold = daemon.hold("tokens")
    daemon.script(a={"hold_tokens": str(hold), "hold_after": 2, "repeat": 10})
    daemon.start()
    way = WAYS[0]
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as stream:
        await daemon.until("held")
        other = asyncio.create_task(ask(client, "b"))
        await eventually(lambda: "waiting" in daemon.log_text() or not other.done(), "b is asked")
        assert daemon.events("start", "b") == []
        hold.release()
        assert way.text(await stream.aread()) == "Hello, world!" * 10
        assert (await other).status_code == 200
    kinds = [(event["event"], event["alias"]) for event in daemon.events()]
    assert kinds.index(("answered", "a:latest")) < kinds.index(("start", "b:latest"))


async def test_the_least_recently_used_model_makes_room(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(MAX_LOADED_MODELS=2)
    daemon.model("a", "b", "c")
    daemon.start()
    async with daemon.client() as client:
        for name in ("a", "b", "a", "c"):
            assert (await ask(client, name)).status_code == 200
    assert {model["name"] for model in daemon.loaded()} == {"a:latest", "c:latest"}


async def test_a_larger_window_reloads_once_and_a_smaller_one_never(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(NUM_PARALLEL=2)
    daemon.model("a")
    daemon.start()
    async with daemon.client() as client:
        for window in (1024, 512, None, 2048, 1024, 2048):
            options = {} if window is None else {"num_ctx": window}
            assert (await ask(client, "a", options=options)).status_code == 200
    assert [event["window"] for event in daemon.events("start")] == [1024 * 2, 2048 * 2]
    assert daemon.loaded()[0]["context_length"] == 2048


async def test_a_window_beyond_the_trained_one_is_clamped_to_it(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        for _ in range(2):
            await ask(client, "a", options={"num_ctx": 100_000})
    assert daemon.loaded()[0]["context_length"] == 8192
    assert len(daemon.events("start")) == 1


@pytest.mark.parametrize("keep_alive", [0, "0s"])
async def test_keep_alive_zero_unloads_after_the_answer(daemon: ScriptedDaemon, keep_alive: object) -> None:
    async with daemon.client() as client:
        for way in WAYS:
            response = await ask(client, "a", way, keep_alive=keep_alive)
            assert way.text(response.content) == "Hello, world!"
            await eventually(lambda: daemon.loaded() == [], "unloaded")


async def test_keep_alive_counts_from_the_last_byte(make_daemon: MakeDaemon) -> None:
    """An answer that takes longer than the keep-alive does not use it up."""
    daemon = make_daemon()
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script({"hold_tokens": str(hold)})
    daemon.start()
    way = WAYS[0]
    async with (
        daemon.client() as client,
        client.stream("POST", way.path, json=way.body("a", keep_alive=0.3)) as stream,
    ):
        await daemon.until("held")
        await asyncio.sleep(0.6)
        [model] = daemon.loaded()
        assert model["in_use"] == 1
        hold.release()
        assert way.text(await stream.aread()) == "Hello, world!"
    await eventually(lambda: daemon.loaded() == [], "gone after its keep-alive")


@pytest.mark.parametrize(
    ("keep_alive", "forever"), [(-1, True), ("-1m", True), ("24h", False), (3600, False)]
)
async def test_keep_alive_in_every_form(daemon: ScriptedDaemon, keep_alive: object, forever: bool) -> None:
    async with daemon.client() as client:
        await ask(client, "a", keep_alive=keep_alive)
    [model] = daemon.loaded()
    assert (model["expires_at"] > "2200") is forever


async def test_a_deleted_model_is_unloaded_and_gone(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        await ask(client, "a")
        deleted = await client.request("DELETE", "/api/delete", json={"model": "a"})
        assert deleted.status_code == 200
        await eventually(lambda: daemon.loaded() == [], "unloaded")
        assert (await ask(client, "a")).status_code == 404
        assert {model["name"] for model in (await client.get("/api/tags")).json()["models"]} == {
            "b:latest",
            "c:latest",
        }


async def test_a_stop_of_the_daemon_refuses_those_who_wait(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a")
    hold = daemon.hold("load")
    daemon.script({"hold_load": str(hold)})
    daemon.start()
    async with daemon.client() as client:
        waiting = asyncio.create_task(ask(client, "a"))
        await daemon.until("start")
        daemon.signal(signal.SIGTERM)
        response = await waiting
    assert response.status_code == 503
    assert "shutting down" in response.json()["error"]
    assert daemon.wait() == 0
