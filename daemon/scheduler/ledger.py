"""What models need of this machine, and what there is: estimates that measuring corrects, and free memory.

The only module of the scheduler that knows both; `placement.py` and `queue.py` decide on what it says.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psutil

from daemon.chat import LoadOptions
from daemon.errors import LoadFailed
from daemon.runner import usage
from daemon.runner.engine import Engine
from daemon.runner.launch import CPU_BATCH, GPU_BATCH, Launch
from daemon.scheduler.gpus import Gpus
from daemon.scheduler.learned import Learned, Measurement, corrected
from daemon.scheduler.machine import Machine
from daemon.scheduler.memory import Division, Need, divide, occupied
from daemon.scheduler.offload import Divide, Site, sites
from daemon.scheduler.placement import AUTO_LOADED, Defaults, plans
from daemon.scheduler.readahead import read_ahead
from daemon.scheduler.shape import Shape
from daemon.scheduler.state import ENGINES, RAM, Amounts, Plan, Purpose, Weights

log = logging.getLogger("mgr.memory")

# Of the memory that there is, what stays free whatever models want: for this process and what else comes and goes.
_RESERVE = 1 / 20
_KEPT = 256  # of what was worked out already
_FRESH_SECONDS = 1.0  # what was seen of GPUs


class Engines(Protocol):
    """Which engine is used; see `EngineFinder`."""

    found: Engine | None

    async def find(self) -> Engine: ...


class Ledger:
    """`loaded` is the limit of models, 0 for as many as there is memory for.

    Where an engine may have a GPU and does not say how large that is, it places the layers itself, and no more is known
    than how many models there are.
    """

    def __init__(
        self,
        machine: Machine,
        learned: Learned,
        defaults: Defaults,
        loaded: int,
        engines: Engines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.defaults = defaults
        self._engines = engines
        self._machine = machine
        self._learned = learned
        self._loaded = loaded
        self._clock = clock
        self._gpus = Gpus()
        self._shapes: dict[str, Shape] = {}
        self._plans: dict[tuple[object, ...], tuple[Plan, ...]] = {}

    async def prepare(self, taken: Amounts, *, settled: bool) -> None:
        """To be awaited before a load is thought of: which engine there is, and what others have of its GPUs' memory.

        `taken` is what loaded models take by their plans; unless `settled`, some come or go just now, and what is seen
        of the GPUs would be taken for others'.
        """
        if self._engines.found is None:
            with suppress(LoadFailed):  # the load will say so
                await self._engines.find()
        lines = (self._engines.found and self._engines.found.devices) or ()
        now = self._clock()
        if lines == self._gpus.lines and (not settled or now < self._gpus.seen_at + _FRESH_SECONDS):
            return
        devices = (await self._machine.memory(lines)).devices if lines else ()
        self._gpus = Gpus.seen(lines, devices, taken, now)

    def plans(self, weights: Weights, window: int | None, options: LoadOptions) -> tuple[Plan, ...]:
        """The ways to load a model. Raises BadModel where the header says what cannot be, InvalidRequest where the
        options do."""
        asked = (weights, window, options, self._counts, self._gpus.sizes)
        if asked not in self._plans:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            self._plans[asked] = plans(weights, window, self.defaults, self._sites(weights, options))
        return self._plans[asked]

    def capacity(self, engines: Iterable[int]) -> Amounts:
        """What models may take in all: of the RAM, what is free and what these processes, which are engines, have of
        it; of a GPU, what others have not."""
        ram = self._machine.ram() if self._counts else None
        if ram is None:
            return {ENGINES: self._loaded or AUTO_LOADED}
        there = ram.free + sum(_resident(pid) for pid in engines) - int(ram.total * _RESERVE)
        memory = {RAM: max(min(there, ram.total), 0), **self._gpus.capacity()}
        return memory | {ENGINES: self._loaded} if self._loaded else memory

    async def measure(
        self, weights: Weights, launch: Launch, options: LoadOptions, pid: int, others: Amounts
    ) -> None:
        """Remembers what an engine uses now that it has answered: of the RAM, or of the one GPU that it lies on, unless
        `others`, what other models take, has a part of that. What lies on several is not told apart."""
        shape = self._shape(weights)
        if shape is None:
            return
        layers = launch.offload.layers if launch.offload is not None else 0
        need = self._divide(shape, weights, options)(layers, launch.window, launch.slots)
        if layers:
            used, needed = await self._used_of_gpu(launch, others), need.device
        else:
            used, needed = await self._used_of_ram(shape, need.host, pid), need.host
        if used is None or used <= 0:
            return
        log.debug("%s: %d bytes are used, %d were estimated", launch.alias, used, needed.total)
        measured = Measurement(launch.window, launch.slots, used)
        await asyncio.to_thread(self._learned.remember, _key(weights, options, layers), measured)
        self._plans.clear()

    async def _used_of_ram(self, shape: Shape, need: Need, pid: int) -> int | None:
        used = await asyncio.to_thread(usage.of, pid)
        need = replace(need, correction=0)
        return None if used is None else occupied(shape, need, used.anonymous, used.mapped)

    async def _used_of_gpu(self, launch: Launch, others: Amounts) -> int | None:
        devices = launch.offload.devices if launch.offload is not None else ()
        if len(devices) != 1 or others.get(devices[0]):
            return None
        memory = await self._machine.memory(self._gpus.lines)
        return self._gpus.used(next((one for one in memory.devices if one.id == devices[0]), None))

    async def read_ahead(self, weights: Weights) -> None:
        """Brings a model's file into the page cache, as much as lies free."""
        ram = self._machine.ram()
        if ram is not None:
            await read_ahead(weights.path, ram.free // 2)

    @property
    def _counts(self) -> bool:
        """Whether it is known where models can lie."""
        engine = self._engines.found
        return engine is not None and (engine.cpu_only or bool(self._gpus.devices))

    def _sites(self, weights: Weights, options: LoadOptions) -> list[Site]:
        ram, shape = self._machine.ram() if self._counts else None, self._shape(weights)
        if ram is None or shape is None:
            return []
        divide = self._divide(shape, weights, options)
        return sites(divide, len(shape.layers), ram.total, self._gpus.devices, options)

    def _divide(self, shape: Shape, weights: Weights, options: LoadOptions) -> Divide:
        """Estimates, with what was measured against them. Without GPUs nothing needs to be told apart."""
        batch = options.batch or (GPU_BATCH if self._gpus.devices else CPU_BATCH)
        embedding = weights.purpose is not Purpose.GENERATE

        def estimated(layers: int, window: int, slots: int) -> Division:
            return divide(shape, layers, window=window, slots=slots, batch=batch, embedding=embedding)

        def needed(layers: int, window: int, slots: int) -> Division:
            measured = self._learned.measurements(_key(weights, options, layers))
            if layers == 0:
                host = corrected(lambda *size: estimated(0, *size).host, window, slots, measured)
                return Division(host, Need())
            device = corrected(lambda *size: estimated(layers, *size).device, window, slots, measured)
            return Division(estimated(layers, window, slots).host, device)

        return needed

    def _shape(self, weights: Weights) -> Shape | None:
        if weights.summary is None:
            return None
        if weights.model not in self._shapes:
            if len(self._shapes) >= _KEPT:
                self._shapes.clear()
            try:
                size = weights.path.stat().st_size
                adapters = sum(adapter.stat().st_size for adapter in weights.adapters)
            except FileNotFoundError:
                raise LoadFailed(f"the model '{weights.name}' was deleted before it was loaded") from None
            self._shapes[weights.model] = Shape.of(weights.summary, size, weights.projectors, adapters)
        return self._shapes[weights.model]


def _key(weights: Weights, options: LoadOptions, layers: int) -> str:
    return f"{weights.key} {options}" + (f" {layers} on a GPU" if layers else "")


def _resident(pid: int) -> int:
    """Bytes; what the process shares with others counts, too."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
