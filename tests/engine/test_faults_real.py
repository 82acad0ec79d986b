"""The faults that a scripted engine cannot stand for, with the real one. The names are those of the list of faults;
what must be true after each is checked as with the scripted engine."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.store.models import Store
from tests.engine.conftest import RealEngine, copy_store
from tests.fakes.dialects import STREAMS, WAYS, Way
from tests.integration.faults.invariants import CHAT, Watch, invariants
from tests.integration.faults.requests import Ending
from tests.integration.faults.rig import MarkedDaemon, ended, gone, until

MODEL = "smollm2:135m"
ENDLESS = "Write a very long story."
SETTINGS = {"CONTEXT_LENGTH": 512, "NUM_PARALLEL": 1}
FOUR_STREAMS = {"CONTEXT_LENGTH": 2048, "NUM_PARALLEL": 4}
_STARTS = re.compile(rf"{MODEL}: engine .* has pid (\d+)")


class RealFaultDaemon(MarkedDaemon):
    """With the real engine; the other model is the same one in another file."""

    bystander = "other:latest"
    warm = MODEL

    def briefly(self, way: Way) -> dict[str, Any]:
        return way.greedy(2)

    def starts(self) -> list[int]:
        """The engines of the model that were started, the one that the invariants take for warming included."""
        return [int(pid) for pid in _STARTS.findall(self.log_text())]


MakeRealFaultDaemon = Callable[..., RealFaultDaemon]


@pytest.fixture
def make(engine: RealEngine, pulled: Path, tmp_path: Path) -> Iterator[MakeRealFaultDaemon]:
    """Makes daemons that are not started yet; afterwards ends them and looks for leftovers."""
    made: list[RealFaultDaemon] = []

    def new(**settings: object) -> RealFaultDaemon:
        folder = tmp_path / f"daemon-{len(made)}"
        copy_store(pulled, folder / "models")
        made.append(RealFaultDaemon(folder, {"ENGINE": engine.setting, **SETTINGS, **settings}))
        return made[-1]

    with ended(made):
        yield new


async def streams(watch: Watch, ways: Sequence[Way], tokens: int) -> list[asyncio.Task[Ending]]:
    """Streams of the model, one in each way, each of which has brought five tokens."""
    begun = [asyncio.Event() for _ in ways]
    asked = [
        watch.start(MODEL, way, prompt=ENDLESS, begun=event, **way.greedy(tokens))
        for way, event in zip(ways, begun, strict=True)
    ]
    await until(
        lambda: all(event.is_set() or task.done() for event, task in zip(begun, asked, strict=True)),
        "tokens come",
    )
    return asked


def memory_map(pid: int) -> str:
    """With the paths of the files that a process has in its memory."""
    return Path(f"/proc/{pid}/maps").read_text()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Meanwhile a process does not run, so that what it is at does not end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("state", ["loading", "answering", "idle"])
async def test_f15_a_model_is_deleted(make: MakeRealFaultDaemon, pulled: Path, state: str) -> None:
    """Whoever has it gets the whole answer; then it is unloaded, and nothing has its file any more."""
    daemon = make()
    blob = Store(daemon.models).open().resolve(MODEL).path
    same = (pulled / "blobs" / blob.name).stat().st_ino  # another link to the file
    assert blob.stat().st_ino == same
    daemon.start()
    async with invariants(daemon) as watch:
        if state == "idle":
            await watch.load(MODEL)
        elif state == "answering":
            [asked] = await streams(watch, STREAMS[:1], 150)
        else:
            asked = watch.start(MODEL)
            await until(lambda: len(daemon.starts()) == 2, "it is started")
            await until(lambda: blob.name in memory_map(daemon.starts()[-1]), "it loads")
        engine = daemon.starts()[-1]
        with stopped(engine):
            deleted = await watch.requests.client.request("DELETE", "/api/delete", json={"model": MODEL})
            assert deleted.status_code == 200, deleted.text
            assert not blob.exists()
        if state != "idle":
            assert len((await asked).text) > (100 if state == "answering" else 0), asked
        await until(lambda: gone(engine), "unloaded")
        assert same not in [each.lstat().st_ino for each in daemon.models.rglob("*")]
        assert (await watch.ask(MODEL)).status == 404
    assert len(daemon.starts()) == 2


async def test_f15_a_model_is_deleted_before_its_engine_has_the_file(
    make: MakeRealFaultDaemon, tmp_path: Path
) -> None:
    """The load fails, and says why, if the engine was not faster; nothing is held against the same model when it comes
    back."""
    daemon = make()
    file = tmp_path / "again.gguf"
    file.write_bytes(Store(daemon.models).open().resolve(MODEL).path.read_bytes() + bytes(64))
    again = {"model": file.as_uri(), "as": MODEL, "replace": True, "stream": False}
    daemon.start()
    async with invariants(daemon) as watch:
        client = watch.requests.client
        assert (await client.post("/api/pull", json=again)).json()["status"] == "success"
        asked = watch.start(MODEL)
        await until(lambda: len(daemon.starts()) == 2, "it is started")
        with stopped(daemon.starts()[-1]):
            deleted = await client.request("DELETE", "/api/delete", json={"model": MODEL})
            assert deleted.status_code == 200, deleted.text
        ending = await asked
        assert ending.text or ending.error == f"the model '{MODEL}' was deleted before it was loaded", ending
        assert (await client.post("/api/pull", json=again)).json()["status"] == "success"
        await watch.load(MODEL)


async def test_f17_all_who_share_an_engine_that_is_killed(make: MakeRealFaultDaemon) -> None:
    """Those in its slots are told, after five tokens, in each dialect; who waits for a slot has the next engine."""
    daemon = make(**FOUR_STREAMS)
    daemon.start()
    async with invariants(daemon) as watch:
        asked = await streams(watch, STREAMS, 2000)
        waiting = watch.start(MODEL, CHAT)
        os.kill(daemon.engine_of(MODEL), signal.SIGKILL)
        endings = await asyncio.gather(*asked)
        assert ["engine stopped" in ending.error for ending in endings] == [True] * len(STREAMS), endings
        assert (await waiting).text
        await watch.bystander_answers()
    assert len(daemon.starts()) == 3


async def test_f19_told_to_stop_while_streams_end_by_themselves(make: MakeRealFaultDaemon) -> None:
    """They are whole; a new request is refused, to be made again later."""
    daemon = make(**FOUR_STREAMS, DRAIN_TIMEOUT="8s")
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load(MODEL)
        await watch.leave_bystander()
        with stopped(daemon.engine_of(MODEL)):
            asked = [watch.start(MODEL, way) for way in STREAMS]
            await until(
                lambda: 4 in [entry["in_use"] for entry in daemon.loaded()], "the engine has all four"
            )
            daemon.signal(signal.SIGTERM)
            await until(lambda: "mgr.server: stopping" in daemon.log_text(), "the stop has begun")
            refused = await watch.ask(daemon.bystander)
            assert refused.status == 503
            assert int(refused.retry_after or 0) > 0
        assert all([(await each).text for each in asked]), asked
        assert await asyncio.to_thread(daemon.wait) == 0


async def test_f19_told_to_stop_with_streams_that_do_not_end(make: MakeRealFaultDaemon) -> None:
    daemon = make(**FOUR_STREAMS, DRAIN_TIMEOUT="0.5s")
    daemon.start()
    async with invariants(daemon) as watch:
        asked = await streams(watch, STREAMS, 2000)
        await watch.leave_bystander()
        daemon.signal(signal.SIGTERM)
        endings = await asyncio.gather(*asked)
        assert ["shutting down" in ending.error for ending in endings] == [True] * len(STREAMS), endings
        assert await asyncio.to_thread(daemon.wait) == 0


# The daemon takes no grammar from a client. This one gives the engine one that it cannot read, for a certain word.
_UNGUARDED = """
import sys
from daemon.__main__ import main
from daemon.runner import wire

guarded = wire.conversation

def conversation(request):
    poison = {"grammar": "root ::= " + "(" * 60000 + '"a"' + ")" * 60000}
    return guarded(request) | (poison if request.messages[-1].text == "poison" else {})

wire.conversation = conversation
sys.exit(main())
"""


async def test_f26_a_request_that_crashes_the_engine(make: MakeRealFaultDaemon) -> None:
    """It is tried again, as that may be chance, and then refused; the model stays for all others."""
    daemon = make()
    daemon.command = [sys.executable, "-c", _UNGUARDED]
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load(MODEL)
        crashed = await watch.ask(MODEL, prompt="poison")
        assert (crashed.status, "engine stopped" in crashed.error) == (502, True), crashed
        assert daemon.log_text().count("ended with signal 11") == 2
        for _ in range(3):
            refused = await watch.ask(MODEL, prompt="poison")
            assert (refused.status, "crashed on it" in refused.error) == (422, True), refused
        for way in WAYS:
            assert (await watch.ask(MODEL, way)).text
    assert len(daemon.starts()) == 4  # warm, crashed, crashed again, for the others


async def test_f30_what_a_killed_daemon_left_in_its_run_directory(make: MakeRealFaultDaemon) -> None:
    """Over a socket that is there the engine does not start."""
    daemon = make()
    run = daemon.mark / "run"
    daemon.settings["RUN_DIR"] = run
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load(MODEL)
        await watch.leave_bystander()
        daemon.signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.wait)
    left = {*run.glob("*.sock")}
    assert len(left) == 2
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run / "x.sock"))
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load(MODEL)
        assert not left & {*run.glob("*.sock")}


async def test_f31_twenty_starts_and_stops(make: MakeRealFaultDaemon) -> None:
    daemon = make()
    run = daemon.mark / "run"
    daemon.settings["RUN_DIR"] = run
    daemon.start()
    async with invariants(daemon) as watch:
        for _ in range(20):
            await watch.load(MODEL)
            await watch.unload(MODEL)
    assert len(daemon.starts()) == 21
    assert len([*run.iterdir()]) == 1, "the bystander's socket"
