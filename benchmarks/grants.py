"""What a request for a loaded model costs the scheduler while a thousand others wait for other models."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from benchmarks.figures import Bar, Row
from benchmarks.options import Options
from daemon.chat import LoadOptions
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit, Runner
from daemon.scheduler.fairness import Caller
from daemon.scheduler.placement import Defaults, plans
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.state import ENGINES, Amounts, Limits, Plan, Weights

GROUP = "scheduler"

_OTHERS = 1000
_MODELS = 20
_CLIENTS = 50
_LOADED = Weights("loaded", Path("loaded"), "loaded")
_ANY = LoadOptions()


class _Engine:
    """Ready at once."""

    engine, pid, stage, last_progress = "none", None, None, None

    def __init__(self, launch: Launch, on_exit: OnExit) -> None:
        self.launch = launch

    async def ensure_ready(self) -> None:
        pass

    async def stop(self, reason: str) -> None:
        pass


class _OneModel:
    """There is room for one model."""

    defaults = Defaults(window=4096, slots=4)

    def plans(self, weights: Weights, window: int | None, options: LoadOptions) -> tuple[Plan, ...]:
        return plans(weights, window, self.defaults, [])

    def capacity(self, engines: Iterable[int]) -> Amounts:
        return {ENGINES: 1}

    async def measure(
        self, weights: Weights, launch: Launch, options: LoadOptions, pid: int, others: Amounts
    ) -> None:
        pass

    async def read_ahead(self, weights: Weights) -> None:
        pass

    async def prepare(self, taken: Amounts, *, settled: bool) -> None:
        pass


async def measure(options: Options) -> list[Row]:
    """CPU time of a grant, and of giving it back, with nothing in between."""
    limits = Limits(queue=2 * _OTHERS, waiting=2 * _OTHERS, patience=1e9)
    scheduler = Scheduler(
        lambda launch, on_exit: cast(Runner, _Engine(launch, on_exit)), limits, _OneModel(), 1e9
    )
    granted, given_back = [], []
    async with scheduler.lease(_LOADED, _ANY, None):
        others = [asyncio.create_task(_wait(scheduler, number)) for number in range(_OTHERS)]
        await asyncio.sleep(0)
        if scheduler.snapshot().waiting != _OTHERS:
            raise RuntimeError("the others do not wait")
        for _ in range(options.count(500)):
            start = time.thread_time_ns()
            async with scheduler.lease(_LOADED, _ANY, None, Caller("me")):
                held = time.thread_time_ns()
            granted.append((held - start) / 1000)
            given_back.append((time.thread_time_ns() - held) / 1000)
        for other in others:
            other.cancel()
        await asyncio.wait(others)
    await scheduler.close(0.0)
    queued = f"{_OTHERS} others of {_CLIENTS} clients wait for {_MODELS} models"
    return [
        Row(GROUP, "CPU of a grant of a loaded model", "us", tuple(granted), Bar(100.0), queued),
        Row(GROUP, "CPU of giving it back", "us", tuple(given_back), None, queued),
    ]


async def _wait(scheduler: Scheduler, number: int) -> None:
    name = f"other-{number % _MODELS}"
    async with scheduler.lease(
        Weights(name, Path(name), name), _ANY, None, Caller(f"client {number % _CLIENTS}")
    ):
        raise RuntimeError("there is no room for it")
