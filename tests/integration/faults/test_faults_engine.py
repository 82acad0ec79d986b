"""Engines that die, hang on, fork, flood or dawdle: what a client sees, and that nothing is left."""

import asyncio
import os
import signal

import pytest

from tests.fakes.dialects import STREAMS, WAYS
from tests.integration.faults.conftest import MakeFaultDaemon
from tests.integration.faults.invariants import SAID, invariants
from tests.integration.faults.rig import gone, until

TOKENS = [f" {number}" for number in range(40)]


async def test_f17_an_engine_killed_in_the_middle(make: MakeFaultDaemon) -> None:
    """After five tokens: the dialect's error as the last event; the next request loads it again."""
    daemon = make()
    daemon.model(*(way.name for way in STREAMS))
    killed = {"hold_tokens": str(daemon.hold("tokens")), "hold_after": 5, "tokens": TOKENS}
    daemon.script(**{way.name: killed for way in STREAMS})
    daemon.start()
    async with invariants(daemon) as watch:
        asked = {way: watch.start(way.name, way) for way in STREAMS}
        for way, asking in asked.items():
            [held] = await daemon.until("held", way.name)
            os.kill(held["pid"], signal.SIGKILL)
            assert "engine stopped" in (await asking).error
            await watch.bystander_answers()
        daemon.script()
        for way in STREAMS:
            assert (await watch.ask(way.name, way)).text == SAID
            assert len(daemon.events("start", way.name)) == 2


async def test_f17_all_who_share_the_engine_are_told(make: MakeFaultDaemon) -> None:
    """Those in its slots and those that wait for one: the former are told, the latter get the next engine."""
    daemon = make(NUM_PARALLEL=2)
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script(a={"hold_tokens": str(hold)})
    daemon.start()
    async with invariants(daemon) as watch:
        asked = [watch.start("a") for _ in range(2)]
        held = await daemon.until("held", "a", count=2)
        waiting = watch.start("a")
        daemon.script()
        os.kill(held[0]["pid"], signal.SIGKILL)
        assert all("engine stopped" in ending.error for ending in await asyncio.gather(*asked))
        assert (await waiting).text == SAID


async def test_f20_an_engine_that_ignores_term(make: MakeFaultDaemon) -> None:
    daemon = make()
    daemon.model("a")
    daemon.script(a={"ignore_term": True})
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")
        pid = daemon.engine_of("a")
        await watch.unload("a")
        await watch.bystander_answers()  # while the ladder is gone down
        await until(lambda: gone(pid) and len(daemon.loaded()) == 1, "killed")
    assert "a:latest: stopping -> stopped" in daemon.log_text()


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_f21_a_grandchild_that_holds_the_output(make: MakeFaultDaemon, end: str) -> None:
    daemon = make()
    daemon.model("a")
    daemon.script(a={"fork": True})
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")
        [forked] = daemon.events("forked", "a")
        if end == "stop":
            await watch.unload("a")
        else:
            os.kill(forked["pid"], signal.SIGKILL)
        await until(lambda: gone(forked["pid"]) and gone(forked["grandchild"]), "both are gone")
        await watch.load("a")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_f21_a_grandchild_in_a_session_of_its_own(make: MakeFaultDaemon, end: str) -> None:
    """It holds the output too, and no signal to the engine's group reaches it."""
    daemon = make()
    daemon.model("a")
    daemon.script(a={"setsid": True})
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")
        [forked] = daemon.events("forked", "a")
        if end == "stop":
            await watch.unload("a")
        else:
            os.kill(forked["pid"], signal.SIGKILL)
        await until(lambda: gone(forked["pid"]) and gone(forked["grandchild"]), "both are gone")


@pytest.mark.parametrize(("level", "size"), [("info", 30_000_000), ("debug", 500_000)])
async def test_f22_a_flood_of_output(make: MakeFaultDaemon, level: str, size: int) -> None:
    """Without a line end, with control sequences, NUL and no UTF-8; also while it answers."""
    daemon = make(LOG_LEVEL=level)
    daemon.model("a")
    daemon.script(a={"spam_bytes": size, "spam_between": size // 100, "tokens": TOKENS})
    daemon.start()
    async with invariants(daemon) as watch:
        for way in WAYS[:2]:
            assert (await watch.ask("a", way)).text == "".join(TOKENS)
        assert not {"\x1b", "\x00", "\x9b"} & {*daemon.log_text()}
        assert daemon.stderr.stat().st_size < (1_000_000 if level == "info" else 10 * size)


async def test_f23_a_silent_load_is_given_up_and_a_chatty_one_is_not(make: MakeFaultDaemon) -> None:
    daemon = make(LOAD_TIMEOUT="1s")
    daemon.model("a", "b")
    silent, chatty = daemon.hold("silent"), daemon.hold("chatty")
    daemon.script(
        a={"hold_load": str(silent), "say": ["waiting for godot"]},
        b={"hold_load": str(chatty), "chatty_load": True},
    )
    daemon.start()
    async with invariants(daemon) as watch:
        talking = watch.start("b")
        await daemon.until("start", "b")
        failed = await watch.ask("a")
        assert failed.status == 500
        assert "no progress for 1 s" in failed.error
        assert failed.error.endswith("waiting for godot")
        chatty.release()
        assert (await talking).text == SAID


@pytest.mark.parametrize("how", ["stopped", "stuck"])
async def test_f27_an_engine_that_hangs(make: MakeFaultDaemon, how: str) -> None:
    """All of it is stopped, or its health is green and no token comes: it is replaced. The request that it had begun
    is told why, the one that waits for its slot has the next engine."""
    daemon = make(NUM_PARALLEL=1, HANG_TIMEOUT="2s")
    daemon.model("a")
    tokens, slots = daemon.hold("tokens"), daemon.hold("slots")
    daemon.script(a={"hold_tokens": str(tokens), "hang_slots": str(slots)})
    daemon.start()
    async with invariants(daemon) as watch:
        begun = watch.start("a", STREAMS[0])
        [held] = await daemon.until("held", "a")
        waits = watch.start("a", WAYS[1])
        daemon.script()
        if how == "stopped":
            os.kill(held["pid"], signal.SIGSTOP)
        assert "sent nothing for 2 s" in (await begun).error
        assert (await waits).text == SAID
        await until(lambda: gone(held["pid"]), "it is killed, stopped or not")
    assert len(daemon.events("start", "a")) == 2
