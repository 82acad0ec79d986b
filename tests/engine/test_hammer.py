"""The hammer: two models, room for one, clients that cancel and engines that are killed; nothing is lost or left."""

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import psutil

from tests.engine.conftest import MakeEngineDaemon
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess, eventually

MODEL, OTHER = "smollm2", "other"
SECONDS = float(os.environ.get("MGR_HAMMER_SECONDS", "40"))
SEED = int(os.environ.get("MGR_HAMMER_SEED", "1"))
# An answer; or: refused, the engine stopped (before or in the answer), it could not be loaded.
DOCUMENTED = {200, 500, 502, 503}
_STARTS = re.compile(r"engine .* has pid (\d+)")


@dataclass
class Seen:
    """`served` are the models of the answers in the order in which they ended."""

    served: list[str] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    cancelled: int = 0
    kills: int = 0
    slowest: float = 0.0


class Hammer:
    def __init__(self, daemon: DaemonProcess, client: httpx.AsyncClient) -> None:
        self.daemon = daemon
        self.client = client
        self.seen = Seen()
        self._end = time.monotonic() + SECONDS

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._end

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(self.ask_often(random.Random(f"{SEED}-a{number}"), MODEL, {}))
            group.create_task(self.ask_often(random.Random(f"{SEED}-b"), OTHER, {}, pause=3.0))
            group.create_task(self.ask_often(random.Random(f"{SEED}-w"), MODEL, {"num_ctx": 6000}, pause=5.0))
            group.create_task(self.kill(random.Random(f"{SEED}-k")))

    async def ask_often(
        self, chance: random.Random, model: str, options: dict[str, Any], pause: float = 0.0
    ) -> None:
        while self.goes_on:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": f"Say {chance.randrange(1000)}."}],
                "options": {"num_predict": chance.randrange(1, 24), **options},
                "stream": chance.random() < 0.5,
            }
            patience = chance.uniform(0.01, 4.0) if chance.random() < 0.15 else None
            await self.ask(model, body, patience)
            await asyncio.sleep(chance.uniform(0, pause))

    async def ask(self, model: str, body: dict[str, Any], patience: float | None) -> None:
        """A request that nobody answers within the guard is what this is about, and raises."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(patience or GUARD_SECONDS):
                reply = await self.client.post("/api/chat", json=body)
        except TimeoutError:
            assert patience is not None, f"{model} was not answered within {GUARD_SECONDS} s"
            self.seen.cancelled += 1
            return
        self.seen.slowest = max(self.seen.slowest, time.monotonic() - started)
        self.seen.statuses[reply.status_code] = self.seen.statuses.get(reply.status_code, 0) + 1
        assert reply.status_code in DOCUMENTED, reply.text
        last = (
            reply.json()
            if not body["stream"]
            else httpx.Response(200, text=reply.text.splitlines()[-1]).json()
        )
        assert last.get("done") is True or last["error"], reply.text
        if last.get("done"):
            self.seen.served.append(model)

    async def kill(self, chance: random.Random) -> None:
        while self.goes_on:
            await asyncio.sleep(chance.uniform(3.0, 12.0))
            for engine in self.daemon.engines()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.send_signal(signal.SIGKILL)
                    self.seen.kills += 1


async def test_the_hammer(make_engine_daemon: MakeEngineDaemon) -> None:
    """Must hold: every request ends with an answer or a documented status, nothing is left, and the loads are few."""
    daemon = make_engine_daemon(MAX_LOADED_MODELS=1, CONTEXT_LENGTH=2048)
    async with daemon.client() as client:
        hammer = Hammer(daemon, client)
        await hammer.run()
    seen = hammer.seen
    await eventually(
        lambda: all(model["in_use"] == 0 and model["state"] == "ready" for model in daemon.loaded()),
        "all leases are back",
    )
    switches = sum(before != after for before, after in pairwise(["", *seen.served]))
    loads = len(_STARTS.findall(daemon.log_text()))
    told = f"{seen}, {switches} switches, {loads} loads, seed {SEED}"
    assert seen.served.count(MODEL) > 10, told
    assert seen.served.count(OTHER) > 2, told
    assert loads <= 2 * (switches + seen.kills), told
    assert len(daemon.engines()) <= 1, told
    assert daemon.zombies() == []
    assert daemon.stop() == 0
    print(told)
