"""What happens to the daemon itself: it is killed, stopped, suspended, starved of descriptors, in odd surroundings."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from daemon.runner.launch import KEY_VARIABLE
from tests.fakes.dialects import STREAMS, WAYS
from tests.integration.faults.conftest import MakeFaultDaemon
from tests.integration.faults.invariants import CHAT, SAID, invariants
from tests.integration.faults.requests import BROKEN
from tests.integration.faults.rig import BYSTANDER, FaultDaemon, gone, until

SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}  # what the shell of the scripted engine adds


async def test_f18_the_daemon_is_killed(make: MakeFaultDaemon) -> None:
    """With three engines: one answers, one loads, one has a grandchild in a session of its own.

    Engines go with the daemon. The grandchild is what only a service manager can end (its cgroup), and it must not
    hold anything that the next start needs.
    """
    daemon = make(NUM_PARALLEL=1)
    daemon.model("a", "b", "c")
    holds = {"hold_tokens": str(daemon.hold("tokens")), "hold_load": str(daemon.hold("load"))}
    daemon.script(
        a={"hold_tokens": holds["hold_tokens"]}, b={"setsid": True}, c={"hold_load": holds["hold_load"]}
    )
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("b")
        asked = [watch.start("a"), watch.start("c"), watch.start("a")]
        await daemon.until("held", "a")
        await daemon.until("start", "c")
        engines = [event["pid"] for event in daemon.events("start")]
        [forked] = daemon.events("forked")
        await watch.leave_bystander()
        daemon.signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.wait)
        assert await asyncio.gather(*asked) == [BROKEN] * 3
        await until(lambda: all(map(gone, engines)), "the engines go with the daemon")
        os.kill(forked["grandchild"], signal.SIGKILL)
    daemon.script()
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("a")


async def test_f19_told_to_stop_with_four_streams(make: MakeFaultDaemon) -> None:
    """Two can end and do, two cannot and are told why; a new request is refused, to be made again later."""
    daemon = make(NUM_PARALLEL=2, DRAIN_TIMEOUT="5s")
    daemon.model("a", "b")
    ends, never = daemon.hold("ends"), daemon.hold("never")
    daemon.script(a={"hold_tokens": str(ends)}, b={"hold_tokens": str(never)})
    daemon.start()
    async with invariants(daemon) as watch:
        can = [watch.start("a", way) for way in STREAMS[:2]]
        cannot = [watch.start("b", way) for way in STREAMS[2:]]
        for model in ("a", "b"):
            await daemon.until("held", model, count=2)
        await watch.leave_bystander()
        daemon.signal(signal.SIGTERM)
        await until(lambda: "mgr.server: stopping" in daemon.log_text(), "the stop has begun")
        refused = await watch.ask(BYSTANDER)
        assert refused.status == 503
        assert int(refused.retry_after or 0) > 0
        ends.release()
        assert [ending.text for ending in await asyncio.gather(*can)] == [SAID, SAID]
        assert ["shutting down" in ending.error for ending in await asyncio.gather(*cannot)] == [True, True]
        assert await asyncio.to_thread(daemon.wait) == 0


class FirstProcess(FaultDaemon):
    """A daemon that is process 1 of a container."""

    @property
    def pid(self) -> int:
        [inner] = psutil.Process(super().pid).children()
        return inner.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def _unshare() -> list[str] | None:
    """The command that starts another as process 1, if this machine lets us."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, "--fork", "--pid", "--mount-proc", "--kill-child"]
        if shutil.which("unshare"):
            tried = subprocess.run([*command, "true"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    return None


async def test_f32_the_daemon_is_process_1(make: MakeFaultDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines live although their parent is 1, and what they leave behind is reaped: nobody else would."""
    command = _unshare()
    if command is None:
        pytest.skip("no namespaces for processes here")
    monkeypatch.setattr("tests.integration.faults.conftest.FaultDaemon", FirstProcess)
    daemon = make()
    daemon.command = [*command, *daemon.command]
    daemon.model("a")
    daemon.script(a={"fork": True})
    daemon.start()
    async with invariants(daemon) as watch:
        for _ in range(2):
            await watch.load("a")
            await watch.unload("a")
            await until(lambda: len(daemon.loaded()) == 1, "unloaded")


async def test_f36_the_daemon_is_suspended(make: MakeFaultDaemon) -> None:
    """Longer than a load may stand still: whoever was idle, answering or loading goes on as if nothing had been."""
    daemon = make(LOAD_TIMEOUT="5s")
    daemon.model("idle", "answers", "loads")
    tokens, load = daemon.hold("tokens"), daemon.hold("load")
    daemon.script(answers={"hold_tokens": str(tokens)}, loads={"hold_load": str(load)})
    daemon.start()
    async with invariants(daemon) as watch:
        await watch.load("idle")
        asked = [watch.start("answers"), watch.start("loads")]
        await daemon.until("held", "answers")
        await daemon.until("loading", "loads")
        await asyncio.sleep(0.5)  # its health has been looked at, so that nothing is new afterwards
        daemon.signal(signal.SIGSTOP)
        await asyncio.sleep(5.5)
        daemon.signal(signal.SIGCONT)
        await watch.bystander_answers()
        tokens.release()
        load.release()
        assert [ending.text for ending in await asyncio.gather(*asked)] == [SAID, SAID]
        await watch.load("idle")
    assert len(daemon.events("start")) == 5  # each once, with the two of the invariants


@contextmanager
def connections(url: str, count: int) -> Iterator[None]:
    """So many connections that say nothing; those that are refused count too."""
    address = urlsplit(url)
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((address.hostname, address.port))
        yield


async def test_f37_no_descriptor_is_left(make: MakeFaultDaemon) -> None:
    """200 connections with 80 descriptors: an answer that runs goes on, a request that needs one ends, the processor
    is left alone, and everything works when they have gone."""
    daemon = make()
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script(a={"hold_tokens": str(hold)})
    daemon.start()
    process = psutil.Process(daemon.pid)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (80, 80))
    async with invariants(daemon) as watch, daemon.client() as connected:
        await connected.get("/health/live")
        asked = watch.start("a")
        await daemon.until("held", "a")
        await watch.leave_bystander()  # it needs descriptors too, and may be refused
        with connections(daemon.url, 200):
            await until(lambda: process.num_fds() >= 78, lambda: f"{process.num_fds()} descriptors are used")
            before = process.cpu_times()
            await asyncio.sleep(2)
            after = process.cpu_times()
            assert after.user + after.system - before.user - before.system < 0.2 * 2
            refused = await connected.post(CHAT.path, json=CHAT.body(BYSTANDER))
            assert refused.status_code in (502, 503, 507), refused.text
            hold.release()
            assert (await asked).text == SAID
        watch.watch_bystander()
        await watch.load("a")
    assert len(daemon.events("start")) == 3  # no engine was taken for dead


async def test_f39_hostile_surroundings(make: MakeFaultDaemon) -> None:
    daemon = make()
    daemon.model("a")
    nowhere = "http://127.0.0.1:1"
    daemon.extra = {
        "HTTP_PROXY": nowhere,
        "http_proxy": nowhere,
        "ALL_PROXY": nowhere,
        "LLAMA_ARG_ALIAS": "x",
        "LLAMA_ARG_CTX_SIZE": "1",
        "GGML_BACKEND_PATH": "/x.so",
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": f"{daemon.folder}:{os.environ.get('PYTHONPATH', '')}",
        "OPENAI_API_KEY": "s",
    }
    daemon.start()
    async with invariants(daemon) as watch:
        for way in WAYS:
            assert (await watch.ask("a", way)).text == SAID
        engine = daemon.engine_of("a")
        environment = psutil.Process(engine).environ()
        assert {*environment} - SHELL <= {
            "PATH",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "TZ",
            "TMPDIR",
            "HOME",
            KEY_VARIABLE,
        }
        assert environment["HOME"].startswith(str(daemon.mark))
        open_files = [os.readlink(each) for each in Path(f"/proc/{engine}/fd").iterdir()]
        assert not [each for each in open_files if each.startswith(str(daemon.models))]
        [start] = daemon.events("start", "a")
        assert start["argv"][start["argv"].index("--alias") + 1] == "a:latest"
        reply = await watch.requests.client.post(CHAT.path, json=CHAT.body("a"))
        assert reply.json()["model"] == "a"
