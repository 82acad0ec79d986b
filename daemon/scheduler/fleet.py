"""The engines behind the loaded models: started, stopped, and what it means when they end by themselves.

It writes what came of them into the scheduler's state, then tells it that something changed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from daemon import metrics
from daemon.errors import EngineDied, EngineFailed, EngineHung, LoadFailed, MgrError, OutOfMemory
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit, Runner
from daemon.runner.state import Stage
from daemon.scheduler import keepalive
from daemon.scheduler.alternation import Alternation
from daemon.scheduler.breaker import Key
from daemon.scheduler.lease import Lease
from daemon.scheduler.placement import launch
from daemon.scheduler.poison import Poison, fingerprint
from daemon.scheduler.state import ENGINES, Demand, Loaded, Phase, Plan, State
from daemon.scheduler.tasks import Tasks
from daemon.scheduler.view import LoadedView

log = logging.getLogger("mgr.scheduler")

MakeRunner = Callable[[Launch, OnExit], Runner]


@dataclass(slots=True)
class Handle:
    """The processes behind one `Loaded`: its runner, and the task that loads it."""

    demand: Demand
    runner: Runner
    load: "asyncio.Task[None]"
    leases: set[Lease] = field(default_factory=set)
    measured: bool = False


class Fleet:
    """Owns every runner; `handles` has one for each key of `state.loaded`."""

    def __init__(
        self,
        make_runner: MakeRunner,
        state: State,
        poison: Poison,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.handles: dict[str, Handle] = {}
        self.tasks = Tasks()  # loads and stops
        self._make_runner = make_runner
        self._state = state
        self._poison = poison
        self._clock = clock
        self._changed = changed
        self._alternation = Alternation()

    def start(self, demand: Demand, plan: Plan, keep_alive: float, now: float) -> None:
        """Begins to load a model. Its `Loaded` is there at once."""
        key = demand.key
        entry = Loaded(key, Phase.LOADING, plan, demand.options, last_used=now)
        entry.keep_alive = keep_alive
        how = launch(demand.weights, plan, demand.options)
        if both := self._alternation.loaded(key, plan.window, demand.options, now):
            log.warning(
                "%s: requests make it be loaded in turn with %s; let them ask for the same", how.alias, both
            )
        runner = self._make_runner(how, lambda error: self._exited(entry, error))
        self._state.loaded[key] = entry
        load = self.tasks.start(self._load(entry, runner), f"load {how.alias}")
        self.handles[key] = Handle(demand, runner, load)
        self._state.breakers.started(demand.start, now)
        metrics.LOADS_STARTED.add()

    def stop(self, key: str, reason: str) -> None:
        """Begins to stop an engine, also one that is still loading. It holds its memory until it has ended."""
        metrics.UNLOADS.add(reason)
        self._state.loaded[key].phase = Phase.STOPPING
        self.handles[key].load.cancel()
        self.tasks.start(self._stop(key, reason), f"stop {key}")

    def forget(self, key: str) -> None:
        """Drops a model whose engine has ended."""
        self._state.remove(key, self._clock())
        del self.handles[key]

    def pids(self) -> list[int]:
        """The processes of its engines."""
        return [handle.runner.pid for handle in self.handles.values() if handle.runner.pid is not None]

    def views(self, now: float) -> tuple[LoadedView, ...]:
        """What is seen of it from outside."""
        return tuple(_view(entry, self.handles[key], now) for key, entry in self._state.loaded.items())

    # ---- what comes of them

    async def _load(self, entry: Loaded, runner: Runner) -> None:
        started, start = self._clock(), self.handles[entry.key].demand.start
        try:
            await runner.ensure_ready()
        except MgrError as error:
            entry.phase = Phase.FAILED
            if not (isinstance(error, OutOfMemory) and self._makes_room_for(entry.key)):
                entry.error = self._with_numbers(entry, error)
                self._count_failure(start, runner, error)
        except Exception:
            log.exception("%s: the load failed in an unforeseen way", runner.launch.alias)
            entry.phase = Phase.FAILED
            entry.error = LoadFailed("the model could not be loaded; see mgr's log")
            self._state.breakers.stopped(start, self._clock())
        else:
            entry.phase = Phase.READY
            self._state.alone.discard(entry.key)
            entry.ready_at = entry.last_used = self._clock()
            entry.load_seconds = entry.ready_at - started
            entry.expires_at = keepalive.expires_at(entry.ready_at, entry.keep_alive)
            self._state.breakers.ready(start, entry.ready_at)
        if entry.phase is Phase.FAILED:
            metrics.LOADS_FAILED.add()
        if entry.error is not None:
            log.error("%s", entry.error)
        self._changed()

    def _makes_room_for(self, key: str) -> bool:
        """It ran out of memory: once, it is tried again when all others have gone that can."""
        if key in self._state.alone or len(self._state.loaded) == 1:
            self._state.alone.discard(key)
            return False
        log.warning("%s: there was not enough memory; it is tried again without others", key)
        self._state.alone.add(key)
        return True

    def _with_numbers(self, entry: Loaded, error: MgrError) -> MgrError:
        if isinstance(error, OutOfMemory):
            gib, there = 1024**3, self._state.capacity
            error.message += "".join(
                f"\nAbout {needed / gib:.1f} GiB of {pool} were expected to be needed; "
                f"{there[pool] / gib:.1f} GiB are there for models."
                for pool, needed in entry.plan.takes.items()
                if pool != ENGINES and pool in there
            )
        return error

    def _count_failure(self, start: Key, runner: Runner, error: MgrError) -> None:
        """Without any engine it is not the model's fault."""
        if runner.engine is None:
            self._state.breakers.stopped(start, self._clock())
        else:
            self._state.breakers.failed(start, self._clock(), error)

    async def _stop(self, key: str, reason: str) -> None:
        handle = self.handles[key]
        await asyncio.wait({handle.load})
        try:
            await handle.runner.stop(reason)
        except EngineFailed as error:
            log.error("%s; its place stays taken", error)
            self._state.loaded[key].stuck = True
            self._changed()
            return
        except Exception:
            log.exception("%s: the stop failed in an unforeseen way", handle.demand.weights.name)
        self._state.breakers.stopped(handle.demand.start, self._clock())
        self.forget(key)
        self._changed()

    def _exited(self, entry: Loaded, error: MgrError) -> None:
        if entry.phase is not Phase.READY:
            return
        metrics.ENGINE_DEATHS.add("hung" if isinstance(error, EngineHung) else "died")
        now, breakers, handle = self._clock(), self._state.breakers, self.handles[entry.key]
        if guilty := self._blamed(handle, error, now):
            breakers.pardon(entry.key, now, guilty)
            breakers.stopped(handle.demand.start, now)
        elif isinstance(error, EngineDied) and not error.crashed and entry.service is not None:
            breakers.stopped(handle.demand.start, now)  # it worked, and somebody killed it
        else:
            breakers.died(handle.demand.start, now, error)
        self.forget(entry.key)
        self._changed()

    def _blamed(self, handle: Handle, error: MgrError, now: float) -> tuple[float, ...]:
        """The moments of the crashes that requests are to blame for, this one included; see `poison.py`."""
        if isinstance(error, EngineDied) and not error.crashed:
            return ()
        asked = [lease.request for lease in handle.leases if lease.request is not None]
        return self._poison.crashed([fingerprint(handle.demand.key, request) for request in asked], now)


def _view(entry: Loaded, handle: Handle, now: float) -> LoadedView:
    runner = handle.runner
    return LoadedView(
        handle.demand.weights,
        entry.phase,
        entry.window,
        entry.slots,
        entry.leases,
        entry.keep_alive,
        None if entry.expires_at is None else max(entry.expires_at - now, 0.0),
        runner.pid,
        str(runner.engine or ""),
        runner.stage or (None if entry.gone_by is None else Stage.DRAINING),
        None if runner.last_progress is None else max(now - runner.last_progress, 0.0),
        entry.plan.offload,
    )
