"""What models need of this machine, and what there is: estimates that measuring corrects, and free memory.

The only module of the scheduler that knows both; `placement.py` and `queue.py` decide on what it says.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

import psutil

from daemon.chat import LoadOptions
from daemon.errors import LoadFailed
from daemon.runner import usage
from daemon.runner.engine import Engine
from daemon.runner.launch import CPU_BATCH, Launch
from daemon.scheduler.learned import Learned, Measurement, corrected
from daemon.scheduler.machine import Machine
from daemon.scheduler.memory import Need, estimate, occupied
from daemon.scheduler.placement import AUTO_LOADED, Defaults, Needs, plans
from daemon.scheduler.readahead import read_ahead
from daemon.scheduler.shape import Shape
from daemon.scheduler.state import ENGINES, RAM, Amounts, Plan, Purpose, Weights

log = logging.getLogger("mgr.memory")

# Of the memory that there is, what stays free whatever models want: for this process and what else comes and goes.
_RESERVE = 1 / 20
_KEPT = 256  # of what was worked out already


class Engines(Protocol):
    """Which engine is used; see `EngineFinder`."""

    found: Engine | None

    async def find(self) -> Engine: ...


class Ledger:
    """`loaded` is the limit of models, 0 for as many as there is memory for.

    Only what lies in RAM is counted. Where the engine may have a GPU, it places the layers itself, and no more is known
    than how many models there are.
    """

    def __init__(
        self, machine: Machine, learned: Learned, defaults: Defaults, loaded: int, engines: Engines
    ) -> None:
        self.defaults = defaults
        self._engines = engines
        self._machine = machine
        self._learned = learned
        self._loaded = loaded
        self._shapes: dict[str, Shape] = {}
        self._plans: dict[tuple[Weights, int | None, LoadOptions, bool], tuple[Plan, ...]] = {}

    async def prepare(self) -> None:
        """To be awaited before the first plan: what the engine has decides on it."""
        if self._engines.found is None:
            with suppress(LoadFailed):  # the load will say so
                await self._engines.find()

    def plans(self, weights: Weights, window: int | None, options: LoadOptions) -> tuple[Plan, ...]:
        """The ways to load a model. Raises BadModel where the header says what cannot be."""
        asked = (weights, window, options, self._counts)
        if asked not in self._plans:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            ram = self._machine.ram() if self._counts else None
            needs = self._needs(weights, options)
            self._plans[asked] = plans(
                weights, window, self.defaults, needs, None if ram is None else ram.total
            )
        return self._plans[asked]

    def capacity(self, engines: Iterable[int]) -> Amounts:
        """What models may take in all: what is free, and what these processes, which are engines, have of it."""
        ram = self._machine.ram() if self._counts else None
        if ram is None:
            return {ENGINES: self._loaded or AUTO_LOADED}
        there = ram.free + sum(_resident(pid) for pid in engines) - int(ram.total * _RESERVE)
        memory = {RAM: max(min(there, ram.total), 0)}
        return memory | {ENGINES: self._loaded} if self._loaded else memory

    async def measure(self, weights: Weights, launch: Launch, options: LoadOptions, pid: int) -> None:
        """Remembers what an engine uses now that it has answered."""
        shape = self._shape(weights)
        used = await asyncio.to_thread(usage.of, pid)
        if shape is None or used is None:
            return
        need = self._estimate(shape, weights, options, launch.window, launch.slots)
        occupies = occupied(shape, need, used.anonymous, used.mapped)
        log.debug("%s: %d bytes are used, %d were estimated", launch.alias, occupies, need.total)
        measured = Measurement(launch.window, launch.slots, occupies)
        await asyncio.to_thread(self._learned.remember, _key(weights, options), measured)
        self._plans.clear()

    async def read_ahead(self, weights: Weights) -> None:
        """Brings a model's file into the page cache, as much as lies free."""
        ram = self._machine.ram()
        if ram is not None:
            await read_ahead(weights.path, ram.free // 2)

    @property
    def _counts(self) -> bool:
        """Whether models lie in RAM."""
        return self._engines.found is not None and self._engines.found.cpu_only

    def _needs(self, weights: Weights, options: LoadOptions) -> Needs | None:
        shape = self._shape(weights)
        if shape is None:
            return None
        needs = partial(self._estimate, shape, weights, options)
        measured = self._learned.measurements(_key(weights, options))
        return lambda window, slots: corrected(needs, window, slots, measured)

    @staticmethod
    def _estimate(shape: Shape, weights: Weights, options: LoadOptions, window: int, slots: int) -> Need:
        return estimate(
            shape,
            window=window,
            slots=slots,
            batch=options.batch or CPU_BATCH,
            embedding=weights.purpose is not Purpose.GENERATE,
        )

    def _shape(self, weights: Weights) -> Shape | None:
        if weights.summary is None:
            return None
        if weights.model not in self._shapes:
            if len(self._shapes) >= _KEPT:
                self._shapes.clear()
            adapters = sum(adapter.stat().st_size for adapter in weights.adapters)
            self._shapes[weights.model] = Shape.of(
                weights.summary, weights.path.stat().st_size, weights.projectors, adapters
            )
        return self._shapes[weights.model]


def _key(weights: Weights, options: LoadOptions) -> str:
    return f"{weights.key} {options}"


def _resident(pid: int) -> int:
    """Bytes; what the process shares with others counts, too."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
