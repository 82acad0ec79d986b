"""The scheduler with engines that become ready when a test says so, and a clock that stands still."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.chat import LoadOptions, Request
from daemon.errors import EngineFailed
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit
from daemon.scheduler.fairness import Caller
from daemon.scheduler.lease import Lease
from daemon.scheduler.placement import Defaults, plans
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.state import ENGINES, NOBODY, RAM, Amounts, Limits, Phase, Plan, Weights


class FakeRunner:
    """Becomes ready, or fails, when the test says so."""

    def __init__(self, launch: Launch, on_exit: OnExit) -> None:
        self.launch = launch
        self.on_exit = on_exit
        self.pid = 1
        self.engine: str | None = "b1"
        self.stage: str | None = None
        self.last_progress: float | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.aborted = False
        self.stuck = False
        self.stopped: list[str] = []

    async def ensure_ready(self) -> None:
        try:
            await self.ready
        except asyncio.CancelledError:
            self.aborted = True
            raise

    async def stop(self, reason: str) -> None:
        self.stopped.append(reason)
        if self.stuck:
            raise EngineFailed("process 1 does not end")


def weights(name: str) -> Weights:
    return Weights(name, Path(name), name, trained_window=8192)


class FakeAccounts:
    """So many models, of any size."""

    defaults = Defaults(window=4096, slots=2, keep_alive=300)

    def __init__(self, capacity: Amounts) -> None:
        self._capacity = capacity
        self.measured: list[int] = []
        self.read: list[str] = []
        self.endless = False
        self.prepared = 0

    def plans(self, weights: Weights, window: int | None, options: LoadOptions) -> tuple[Plan, ...]:
        [plan] = plans(weights, window, replace(self.defaults, slots=2), [])
        return (replace(plan, takes={ENGINES: 1, RAM: 100}),)

    def capacity(self, engines: Iterable[int]) -> Amounts:
        return self._capacity

    async def measure(
        self, weights: Weights, launch: Launch, options: LoadOptions, pid: int, others: Amounts
    ) -> None:
        self.measured.append(launch.window)

    async def prepare(self, taken: Amounts, *, settled: bool) -> None:
        self.prepared += 1

    async def read_ahead(self, weights: Weights) -> None:
        self.read.append(weights.name)
        if self.endless:
            await asyncio.Event().wait()


class World:
    def __init__(
        self, *, loaded: int = 1, queue: int = 10, waiting: int = 10, wait_timeout: float = 600
    ) -> None:
        self.now = 0.0
        self.capacity = {ENGINES: loaded}
        self.accounts = FakeAccounts(self.capacity)
        self.runners: list[FakeRunner] = []
        self.scheduler = Scheduler(
            self._make,  # type: ignore[arg-type]
            Limits(queue, waiting, residence=0.0),
            self.accounts,
            wait_timeout,
            clock=lambda: self.now,
        )

    def _make(self, launch: Launch, on_exit: OnExit) -> FakeRunner:
        self.runners.append(FakeRunner(launch, on_exit))
        return self.runners[-1]

    async def ask(
        self,
        name: str,
        keep_alive: float | None = None,
        caller: Caller = NOBODY,
        request: Request | None = None,
        **options: Any,
    ) -> Lease:
        """A lease that is held until it is released by hand."""
        wanted, given = weights(name), LoadOptions(**options)
        return await self.scheduler._acquire(wanted, given, keep_alive, caller, request)

    def asking(self, name: str, **more: Any) -> "asyncio.Task[Lease]":
        return asyncio.create_task(self.ask(name, **more))

    async def loaded(self, name: str) -> Lease:
        task = self.asking(name)
        await settle()
        self.runners[-1].ready.set_result(None)
        return await task

    def phases(self) -> dict[str, Phase]:
        return {view.weights.name: view.phase for view in self.scheduler.snapshot().loaded}


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
