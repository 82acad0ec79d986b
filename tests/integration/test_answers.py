"""What a client sees of an answer, of a failure, and of a model that is unknown: in every dialect, stream and not."""

import os
import signal

import pytest

from tests.fakes.daemon import ScriptedDaemon, eventually
from tests.fakes.dialects import STREAMS, WAYS, Way, way_id
from tests.integration.conftest import MakeDaemon


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_an_answer(daemon: ScriptedDaemon, way: Way) -> None:
    async with daemon.client() as client:
        response = await client.post(way.path, json=way.body("a"))
    assert response.status_code == 200
    assert way.text(response.content) == "Hello, world!"
    assert response.headers["server"].startswith("mgr/")


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_an_unknown_model_is_404_in_each_dialect(daemon: ScriptedDaemon, way: Way) -> None:
    """Must hold: a request for an unknown model is 404 in each dialect."""
    async with daemon.client() as client:
        response = await client.post(way.path, json=way.body("nobody"))
    assert response.status_code == 404
    assert "not found" in way.error(response.json())
    assert daemon.events("start") == []


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_a_load_that_fails_ends_with_the_engines_last_lines(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"say": ["loading", "E the frobnicator is missing"], "exit_code": 3})
    daemon.start()
    async with daemon.client() as client:
        response = await client.post(way.path, json=way.body("a"))
    assert response.status_code == 500
    message = way.error(response.json())
    assert "ended with status 3" in message
    assert message.endswith("E the frobnicator is missing")
    assert str(daemon.folder) not in response.text
    assert daemon.loaded() == []


@pytest.mark.parametrize("way", STREAMS, ids=way_id)
@pytest.mark.parametrize("by", ["kill", "exit"])
async def test_an_engine_that_dies_in_the_middle_gives_a_terminal_error(
    make_daemon: MakeDaemon, way: Way, by: str
) -> None:
    """Must hold: kill -9 of an engine mid-stream gives the dialect's terminal error, the next request works, and
    there is no zombie."""
    daemon = make_daemon()
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script({"hold_tokens": str(hold), "hold_after": 2, "die_after": 2 if by == "exit" else None})
    daemon.start()
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as response:
        assert response.status_code == 200
        [held] = await daemon.until("held")
        daemon.script()
        if by == "kill":
            os.kill(held["pid"], signal.SIGKILL)
        hold.release()
        raw = await response.aread()  # raises if the chunked body did not end properly
        assert "engine stopped" in way.terminal_error(raw)
        again = await client.post(way.path, json=way.body("a"))
    assert way.text(again.content) == "Hello, world!"
    assert daemon.zombies() == []
    assert len(daemon.events("start")) == 2


@pytest.mark.parametrize("way", [way for way in WAYS if not way.stream], ids=way_id)
async def test_an_engine_that_dies_gives_502_where_nothing_was_sent(
    make_daemon: MakeDaemon, way: Way
) -> None:
    daemon = make_daemon()
    daemon.model("a")
    daemon.script({"die_after": 2})
    daemon.start()
    async with daemon.client() as client:
        response = await client.post(way.path, json=way.body("a"))
    assert response.status_code == 502
    assert "engine stopped" in way.error(response.json())


@pytest.mark.parametrize("way", WAYS, ids=way_id)
async def test_a_prompt_beyond_the_window_is_400_with_both_counts(make_daemon: MakeDaemon, way: Way) -> None:
    daemon = make_daemon()
    daemon.model("a")
    refusal = {"code": 400, "type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9001}
    daemon.script({"refuse": {**refusal, "n_ctx": 4096}})
    daemon.start()
    async with daemon.client() as client:
        response = await client.post(way.path, json=way.body("a"))
    assert response.status_code == 400
    message = way.error(response.json())
    assert "9001" in message
    assert "4096" in message


@pytest.mark.parametrize("way", STREAMS, ids=way_id)
async def test_a_silent_engine_is_bridged_by_keep_alives(make_daemon: MakeDaemon, way: Way) -> None:
    """The status and something to ignore come while the prefill lasts; the answer is whole all the same."""
    daemon = make_daemon()
    daemon.model("a")
    hold = daemon.hold("prefill")
    daemon.script({"hold_prefill": str(hold)})
    daemon.start()
    async with daemon.client() as client, client.stream("POST", way.path, json=way.body("a")) as response:
        assert response.status_code == 200  # sent before any token was there
        assert hold.path.exists()
        hold.release()
        raw = await response.aread()
    assert way.text(raw) == "Hello, world!"


@pytest.mark.parametrize(("path", "status"), [("/api/push", 501), ("/v1/audio/transcriptions", 501)])
async def test_a_route_that_is_not_built_says_so(daemon: ScriptedDaemon, path: str, status: int) -> None:
    async with daemon.client() as client:
        reply = await client.post(path, json={"model": "a"})
    assert reply.status_code == status
    assert "not supported" in reply.text


async def test_load_and_unload_by_an_empty_prompt(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        loaded = await client.post("/api/generate", json={"model": "a"})
        assert loaded.json()["done_reason"] == "load"
        assert [model["name"] for model in daemon.loaded()] == ["a:latest"]
        unloaded = await client.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": 0})
        assert unloaded.json()["done_reason"] == "unload"
        await eventually(lambda: daemon.loaded() == [], "unloaded")
    assert daemon.engines() == []
