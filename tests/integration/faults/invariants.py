"""What holds after every fault, whatever it was. The names are those of the list of faults.

I3 no process is left but the daemon and the engines that it shows · I4 no zombie · I5 each request ended once, with a
documented status or a final event · I6 no secret in logs, answers, arguments or an engine's environment · I7 memory,
descriptors and threads are back where they were · I8 one process holds the store · I9 only legal transitions are in
the log · I12 another model answered all the while

    async with invariants(daemon) as watch:
        await watch.ask("a")            # counts for I5
        ...                             # the fault
        await watch.bystander_answers() # during it
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from daemon.runner.launch import KEY_VARIABLE
from daemon.runner.state import TRANSITIONS, State
from tests.fakes.dialects import WAYS, Way
from tests.integration.faults.requests import Ending, Requests
from tests.integration.faults.rig import SECRETS, MarkedDaemon, until

CHAT = WAYS[1]  # /api/chat, whole
STREAM = WAYS[0]
SAID = "Hello, world!"

_MOVE = re.compile(r"mgr\.runner: (\S+): (\w+) -> (\w+)$", re.MULTILINE)
_GROWTH_SHARE, _GROWTH_BYTES = 0.10, 8_000_000
# The threads of asyncio's own pool are made when they are first needed, and stay.
POOL = min(32, (os.cpu_count() or 1) + 4)
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Use:
    """What a process uses now; `memory` in bytes."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Use":
        process = psutil.Process(pid)
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads())

    def back_at(self, before: "Use") -> bool:
        return (
            self.memory <= before.memory + max(before.memory * _GROWTH_SHARE, _GROWTH_BYTES)
            and self.descriptors <= before.descriptors
            and self.threads <= before.threads + POOL
        )


class Watch:
    """Made by `invariants`. Requests of the test go through `ask` and `start`."""

    def __init__(self, daemon: MarkedDaemon, requests: Requests) -> None:
        self.daemon = daemon
        self.requests = requests
        self._said = ""
        self._answers = 0
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, model: str, way: Way = CHAT, **more: Any) -> Ending:
        return await self.requests.ask(model, way, **self.daemon.briefly(way) | more)

    def start(self, model: str, way: Way = STREAM, **more: Any) -> "asyncio.Task[Ending]":
        return self.requests.start(model, way, **self.daemon.briefly(way) | more)

    async def load(self, *models: str) -> None:
        for model in models:
            ending = await self.ask(model)
            assert ending.status == 200, ending

    async def unload(self, model: str) -> None:
        await self.requests.client.post("/api/generate", json={"model": model, "keep_alive": 0})

    # ---- I12

    async def load_bystander(self) -> None:
        """What it says now, it has to say ever after."""
        ending = await self.ask(self.daemon.bystander)
        assert ending.status == 200, ending
        assert ending.text
        self._said = ending.text

    def watch_bystander(self) -> None:
        self._answering = asyncio.create_task(self._ask_bystander(), name="requests to the bystander")

    async def _ask_bystander(self) -> None:
        while True:
            ending = await self.ask(self.daemon.bystander)
            assert ending == Ending(200, self._said), ending
            self._answers += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def bystander_answers(self) -> None:
        """Waits until it has answered a request that came after this call."""
        assert self._answering is not None
        wanted = self._answers + 2
        answering = self._answering
        await until(lambda: self._answers >= wanted or answering.done(), "the bystander answers")
        assert not answering.done(), answering.exception()

    async def leave_bystander(self) -> None:
        """Asks it nothing more, in a test that stops it with all the others."""
        if self._answering is not None and not self._answering.done():
            self._answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._answering


@asynccontextmanager
async def invariants(daemon: MarkedDaemon) -> AsyncIterator[Watch]:
    """Takes the baseline of a running daemon, and after the test checks it and everything else.

    If the test ended the daemon, only what must hold then is checked.
    """
    async with daemon.client() as client:
        requests = await Requests.open(client)
        watch = Watch(daemon, requests)
        await watch.load_bystander()
        await watch.load(daemon.warm)
        await watch.unload(daemon.warm)
        await _only_bystander(daemon)
    before = Use.of(daemon.pid)
    async with daemon.client() as requests.client:
        watch.watch_bystander()
        try:
            yield watch
            if daemon.running:
                await watch.bystander_answers()
        finally:
            await watch.leave_bystander()
        _no_secret(daemon, requests)
        if daemon.running:
            for entry in daemon.loaded():
                if entry["name"] != daemon.bystander:
                    await watch.unload(entry["name"])
    ended = daemon.process.poll() if daemon.process else None
    assert ended in (None, 0, -signal.SIGKILL), f"the daemon ended with {ended}"
    await requests.check(may_break=ended == -signal.SIGKILL)
    _legal_transitions(daemon.log_text())
    if ended is not None:
        await until(lambda: [*daemon.marked()] == [], "I3: no process is left")
        return
    await _only_bystander(daemon)
    await until(
        lambda: Use.of(daemon.pid).back_at(before), lambda: f"I7: {before} became {Use.of(daemon.pid)}"
    )
    assert _holders(daemon) == {daemon.pid}, "I8"


async def _only_bystander(daemon: MarkedDaemon) -> None:
    """I3 and I4."""

    def settled() -> bool:
        names = [entry["name"] for entry in daemon.loaded()]
        return names == [daemon.bystander] and daemon.strangers() == [] and daemon.zombies() == []

    await until(settled, lambda: f"I3, I4: {daemon.loaded()}, {daemon.strangers()}, {daemon.zombies()}")


def _no_secret(daemon: MarkedDaemon, requests: Requests) -> None:
    """I6. The key that the daemon and one engine share is a secret too; only that engine's environment has it."""
    told = [daemon.log_text(), *(body.decode("utf-8", "replace") for body in requests.bodies)]
    keys = []
    for engine in daemon.marked():
        with contextlib.suppress(psutil.Error):
            environment = engine.environ()
            if KEY_VARIABLE not in environment:  # it is the daemon
                continue
            keys.append(environment.pop(KEY_VARIABLE))
            told += [*engine.cmdline(), *environment.values()]
    for secret in (*SECRETS, *keys):
        assert not any(secret in text for text in told), "I6: a secret was told"


def _legal_transitions(log: str) -> None:
    """I9: each is in the table, and starts where the one before it ended."""
    assert _MOVE.search(log), "I9: the log has no transitions"
    for run in log.split("listens on"):  # each start of the daemon begins anew
        _legal_run(run)


def _legal_run(log: str) -> None:
    states: dict[str, str] = {}
    for alias, before, after in _MOVE.findall(log):
        assert after in TRANSITIONS[State(before)].values(), f"I9: {alias}: {before} -> {after}"
        assert states.get(alias, State.STOPPED) == before, (
            f"I9: {alias} was {states.get(alias)}, not {before}"
        )
        states[alias] = after


def _holders(daemon: MarkedDaemon) -> set[int]:
    """The processes that have the lock of the store open: a child that inherited it would hold the store."""
    lock = str(daemon.models / "mgr" / "lock")
    holders = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) == lock for link in folder.iterdir()):
                holders.add(int(folder.parent.name))
    return holders
