"""Models that are deleted or pulled while something else happens, and what a dead daemon left behind."""

import asyncio
import signal
import socket
import subprocess
import sys

import pytest

from tests.fakes.gguf_files import gguf
from tests.fakes.hub import FakeHub, Pause
from tests.integration.faults.conftest import MakeFaultDaemon
from tests.integration.faults.invariants import SAID, invariants
from tests.integration.faults.rig import FaultDaemon, gone, until

REPO, SMALL, FILE = "user/repo", "user/small", "model-Q4_K_M.gguf"


async def test_f14_twenty_clients_pull_and_leave(make: MakeFaultDaemon) -> None:
    """One download for all of them, which goes on until the last one has left."""
    async with FakeHub() as hub:
        hub.add(REPO, FILE, gguf({"tokenizer.ggml.tokens": [f"token{n}" for n in range(200_000)]}))
        hub.add(SMALL, FILE, gguf({"general.name": "small"}))
        daemon = make(HUB_ENDPOINT=hub.endpoint)
        daemon.start()
        await pull(daemon, SMALL)  # what a pull needs is imported now
        pause = Pause()
        hub.script(pause)
        async with invariants(daemon):
            async with asyncio.TaskGroup() as group:
                pulls = [group.create_task(pull(daemon, REPO)) for _ in range(20)]
                await pause.reached.wait()
                await until(lambda: partial(daemon) != [], "the first half is being written")
                *leaving, last = pulls
                for task in leaving:
                    task.cancel()
                await asyncio.wait(leaving)
                assert len(hub.downloads) == 2  # with the small one
                assert partial(daemon) != [], "it goes on for the one who stays"
                last.cancel()
            await until(lambda: partial(daemon) == [], "the last one has left: nothing is kept")
            assert len(hub.downloads) == 2
            await pull(daemon, REPO)
            assert len(hub.downloads) == 3


async def pull(daemon: FaultDaemon, repo: str) -> None:
    async with daemon.client() as client:
        reply = await client.post("/api/pull", json={"model": f"hf.co/{repo}"})
        assert '"success"' in reply.text, reply.text


def partial(daemon: FaultDaemon) -> list[str]:
    """The blobs that are being written."""
    return [path.name for path in (daemon.models / "blobs").iterdir() if not path.name.startswith("sha256-")]


@pytest.mark.parametrize("state", ["loading", "answering", "idle"])
async def test_f15_a_model_is_deleted(make: MakeFaultDaemon, state: str) -> None:
    """Whoever has it gets the answer; then it is unloaded, and its space is free at once."""
    daemon = make()
    daemon.model("a")
    hold = daemon.hold(state)
    daemon.script(
        a={{"loading": "hold_load", "answering": "hold_tokens", "idle": "hang_slots"}[state]: str(hold)}
    )
    daemon.start()
    async with invariants(daemon) as watch:
        asked = watch.start("a")
        await daemon.until({"loading": "loading", "answering": "held", "idle": "answered"}[state], "a")
        [start] = daemon.events("start", "a")
        blob = start["argv"][start["argv"].index("--model") + 1]
        deleted = await watch.requests.client.request("DELETE", "/api/delete", json={"model": "a"})
        assert deleted.status_code == 200
        assert blob not in [str(path) for path in (daemon.models / "blobs").iterdir()]
        hold.release()
        assert (await asked).text == SAID
        await until(lambda: gone(start["pid"]), "unloaded, with the file that it had open")
        assert (await watch.ask("a")).status == 404
    assert len(daemon.events("start", "a")) == 1


async def test_f30_what_a_killed_daemon_left_in_its_run_directory(make: MakeFaultDaemon) -> None:
    daemon = make()
    run = daemon.mark / "run"
    daemon.settings["RUN_DIR"] = run
    daemon.model("a")
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")
        await watch.leave_bystander()
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    assert len([*run.glob("*.sock")]) == 2
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run / "x.sock"))
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")


async def test_f34_processes_of_others_are_left_alone(make: MakeFaultDaemon) -> None:
    """A daemon is killed, and its engines' numbers may be anybody's. Another daemon shares its run directory."""
    first, second = make(), make()
    for daemon in (first, second):
        daemon.settings["RUN_DIR"] = first.mark / "run"
        daemon.model("a")
        daemon.start()
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeper) as stranger:
        try:
            async with invariants(second) as watch:
                await watch.load("a")
                first.signal(signal.SIGKILL)
                first.wait()
                first.start()
                async with invariants(first) as other:
                    await other.load("a")
                await watch.bystander_answers()
                assert first.stop() == 0
                await watch.load("a")
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert len(second.events("start")) == 3
