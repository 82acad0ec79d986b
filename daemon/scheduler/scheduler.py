"""The async shell around `queue.decide`: carries its actions out, tells it what came of them.

All state changes happen between two awaits of one event loop, so there is no lock and nothing to deadlock on.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from daemon import metrics
from daemon.chat import LoadOptions, Request
from daemon.errors import Busy, EngineDied, EngineFailed, EngineHung, LoadFailed, MgrError, OutOfMemory
from daemon.runner.launch import Launch
from daemon.runner.runner import OnExit, Runner
from daemon.runner.state import Stage
from daemon.scheduler import keepalive
from daemon.scheduler.alternation import Alternation
from daemon.scheduler.breaker import Key
from daemon.scheduler.fairness import Caller, smoothed
from daemon.scheduler.placement import Defaults, grown, launch
from daemon.scheduler.poison import Poison, fingerprint
from daemon.scheduler.queue import (
    Action,
    Forget,
    Grant,
    Reject,
    Start,
    Stop,
    decide,
    grants_at_once,
    next_moment,
)
from daemon.scheduler.state import (
    ENGINES,
    NOBODY,
    RAM,
    Amounts,
    Demand,
    Limits,
    Loaded,
    Phase,
    Plan,
    State,
    Waiter,
    Weights,
    Wish,
)
from daemon.scheduler.view import LoadedView, Snapshot, lines

log = logging.getLogger("mgr.scheduler")

# While a load waits for memory: nobody tells when another program gives some back.
_LOOK_SECONDS = 5.0

MakeRunner = Callable[[Launch, OnExit], Runner]


class Accounts(Protocol):
    """What models need and what there is; see `ledger.py`."""

    @property
    def defaults(self) -> Defaults: ...

    def plans(self, weights: Weights, window: int | None, options: LoadOptions) -> tuple[Plan, ...]: ...

    def capacity(self, engines: Iterable[int]) -> Amounts: ...

    async def measure(
        self, weights: Weights, launch: Launch, options: LoadOptions, pid: int, others: Amounts
    ) -> None: ...

    async def read_ahead(self, weights: Weights) -> None: ...

    async def prepare(self, taken: Amounts, *, settled: bool) -> None: ...


class Lease:
    """The right to ask one loaded model one thing. The model stays for as long as it is held."""

    def __init__(
        self, runner: Runner, request: Request | None, waited: float, release: "Callable[[Lease], None]"
    ) -> None:
        self.runner = runner
        self.request = request  # what the engine is asked
        self.waited = waited  # seconds until it was granted
        self._release: Callable[[Lease], None] | None = release

    def release(self) -> None:
        """Gives it back; more than once does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release(self)


@dataclass(slots=True)
class _Handle:
    """The processes behind one `Loaded`: its runner, and the task that loads it."""

    demand: Demand
    runner: Runner
    load: "asyncio.Task[None]"
    leases: set[Lease] = field(default_factory=set)
    measured: bool = False


class Scheduler:
    """Owns every runner. Use inside a running event loop; end with `close`."""

    def __init__(
        self,
        make_runner: MakeRunner,
        limits: Limits,
        accounts: Accounts,
        wait_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_runner = make_runner
        self._accounts = accounts
        self._wait_timeout = wait_timeout
        self._clock = clock
        self._state = State(limits, {})
        self._poison = Poison()
        self._alternation = Alternation()
        self._grown: dict[str, int] = {}  # windows that a loaded model turned out to be too small for
        self._handles: dict[str, _Handle] = {}
        self._grants: dict[int, asyncio.Future[Lease]] = {}
        self._tickets = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._aids: set[asyncio.Task[None]] = set()  # what nobody waits for: measuring, reading ahead
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._released = asyncio.Event()

    # ---- for callers

    @asynccontextmanager
    async def lease(
        self,
        weights: Weights,
        options: LoadOptions,
        keep_alive: float | None,
        caller: Caller = NOBODY,
        request: Request | None = None,
    ) -> AsyncIterator[Lease]:
        """A loaded model for one request, waited for if need be. Cancelling the wait leaves no trace.

        Raises Busy when the queue is full or the wait too long, LoadFailed when the model cannot be loaded, Poisonous
        when engines crashed on this request.
        """
        suspect = request is not None and bool(self._poison) and self._is_suspect(weights, request)
        if weights.key not in self._state.loaded:
            await self._prepare()
        lease = await self._acquire(weights, options, keep_alive, caller, request, suspect=suspect)
        try:
            yield lease
            if request is not None and self._poison:
                self._poison.answered(fingerprint(weights.key, request))
        finally:
            lease.release()

    def unload(self, model: str, drain: float = math.inf) -> None:
        """The engines of a model (`Weights.model`) go: now if they are idle, else when their last request has ended,
        and in `drain` seconds whatever runs. Failures of its starts are forgotten."""
        now = self._clock()
        self._state.breakers.reset(model)
        for key, entry in self._state.loaded.items():
            if self._handles[key].demand.weights.model == model:
                entry.keep_alive = 0.0
                if entry.phase is Phase.READY:
                    entry.gone_by = now + drain
        self._decide()

    def snapshot(self) -> Snapshot:
        """What `ps`, metrics and tests see."""
        now = self._clock()
        views = []
        for key, entry in self._state.loaded.items():
            handle = self._handles[key]
            expires_in = None if entry.expires_at is None else max(entry.expires_at - now, 0.0)
            views.append(
                LoadedView(
                    handle.demand.weights,
                    entry.phase,
                    entry.window,
                    entry.slots,
                    entry.leases,
                    entry.keep_alive,
                    expires_in,
                    handle.runner.pid,
                    str(handle.runner.engine or ""),
                    handle.runner.stage or (None if entry.gone_by is None else Stage.DRAINING),
                    None
                    if handle.runner.last_progress is None
                    else max(now - handle.runner.last_progress, 0.0),
                    entry.plan.offload,
                )
            )
        late = 0.0 if self._due is None else max(now - self._due, 0.0)
        return Snapshot(tuple(views), lines(self._state, now), late, self._state.closing)

    def troubles(self) -> list[str]:
        """Why no more work should be sent here; empty when all is well."""
        return self.snapshot().troubles(self._wait_timeout)

    async def close(self, drain: float) -> None:
        """Refuses new requests, waits up to `drain` seconds for the leases, then stops every engine."""
        self._state.closing = True
        self._decide()
        deadline = self._clock() + drain
        while self._busy() and (left := deadline - self._clock()) > 0:
            self._released.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._released.wait()
        for key, entry in self._state.loaded.items():
            if entry.phase is not Phase.STOPPING:
                self._perform(Stop(key, "mgr is shutting down"), self._clock())
        for aid in self._aids:
            aid.cancel()
        while tasks := self._tasks | self._aids:
            await asyncio.wait(tasks)
        if self._timer is not None:
            self._timer.cancel()

    # ---- requests

    async def _acquire(
        self,
        weights: Weights,
        options: LoadOptions,
        keep_alive: float | None,
        caller: Caller,
        request: Request | None = None,
        *,
        suspect: bool = False,
    ) -> Lease:
        now = self._clock()
        ticket = next(self._tickets)
        window = None if options.window is None else weights.clamp(options.window)
        demand = Demand(weights, window, replace(options, window=None), ())
        at_once = grants_at_once(self._state, demand, now, suspect=suspect)
        if not at_once:
            demand = replace(demand, plans=self._plans(demand))
        grant: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._grants[ticket] = grant
        deadline = now + self._wait_timeout
        self._state.join(Waiter(ticket, demand, now, deadline, keep_alive, caller, request, suspect))
        try:
            if at_once:
                self._state.arrivals.remove(ticket)
                self._grant(ticket, self._state.loaded[demand.key], now)
            else:
                self._decide()
            return await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled() and grant.exception() is None:
                grant.result().release()
            raise
        finally:
            del self._grants[ticket]
            if self._state.leave(ticket) is not None:
                self._decide()

    def _is_suspect(self, weights: Weights, request: Request) -> bool:
        """Raises Poisonous where that is proven."""
        mark, now = fingerprint(weights.key, request), self._clock()
        refusal = self._poison.refusal(mark, now)
        if refusal is not None:
            metrics.REFUSED.add(refusal.kind)
            raise refusal
        return self._poison.is_suspect(mark, now)

    def _plans(self, demand: Demand) -> tuple[Plan, ...]:
        """How it can be loaded. A window that the loaded model is too small for is rounded up, and remembered."""
        key, window = demand.key, demand.window
        entry = self._state.loaded.get(key)
        if window is not None and entry is not None and window > entry.window:
            self._grown[key] = max(self._grown.get(key, 0), demand.weights.clamp(grown(window)))
        least = max(window or 0, self._grown.get(key, 0)) or None
        ways = self._accounts.plans(demand.weights, least, demand.options)
        if least != window:  # should the larger one not fit
            ways += self._accounts.plans(demand.weights, window, demand.options)
        return ways

    def _give_back(self, entry: Loaded, waiter: Waiter, since: float) -> None:
        now = self._clock()
        self._state.release(entry, waiter)
        entry.service = smoothed(entry.service, now - since)
        entry.last_used = now
        if entry.leases == 0:
            entry.expires_at = keepalive.expires_at(now, entry.keep_alive)
            self._measure(entry)
        self._released.set()
        self._decide()

    def _measure(self, entry: Loaded) -> None:
        """Once for each engine, when it has answered for the first time."""
        handle = self._handles.get(entry.key) if self._state.loaded.get(entry.key) is entry else None
        if handle is not None and not handle.measured and handle.runner.pid is not None:
            handle.measured = True
            demand, runner = handle.demand, handle.runner
            own = entry.plan.takes
            others = {pool: taken - own.get(pool, 0) for pool, taken in self._state.taken().items()}
            measuring = self._accounts.measure(
                demand.weights, runner.launch, demand.options, handle.runner.pid, others
            )
            self._spawn(measuring, f"measure {runner.launch.alias}", self._aids)

    def _busy(self) -> bool:
        return any(entry.leases for entry in self._state.loaded.values())

    async def _prepare(self) -> None:
        phases = {entry.phase for entry in self._state.loaded.values()}
        await self._accounts.prepare(self._state.taken(), settled=phases <= {Phase.READY})

    # ---- decisions

    def _decide(self) -> None:
        now = self._clock()
        if self._state.lines.keys() - self._running():
            pids = [handle.runner.pid for handle in self._handles.values()]
            self._state.capacity = self._accounts.capacity(pid for pid in pids if pid is not None)
        while actions := decide(self._state, now):
            for action in actions:
                self._perform(action, now)
        self._state.arrivals.clear()
        self._read_ahead()
        self._arm(now)

    def _read_ahead(self) -> None:
        """While a load waits for room, its file is read: of the line that is next."""
        waiting = [line for line in self._state.lines.values() if line.key not in self._state.loaded]
        if waiting:
            line = min(waiting, key=lambda line: line.since)
            if not line.read_ahead:
                line.read_ahead = True
                reading = self._accounts.read_ahead(line.demand.weights)
                self._spawn(reading, f"read ahead {line.key}", self._aids)

    def _running(self) -> set[Wish]:
        """The wishes that a running engine serves."""
        loaded = self._state.loaded
        return {
            wish
            for wish in self._state.lines
            if (entry := loaded.get(wish[0])) is not None
            and entry.phase is Phase.READY
            and entry.serves(wish)
        }

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = next_moment(self._state, now)
        then = self._decide
        if RAM in self._state.capacity and any(
            line.key not in self._state.loaded for line in self._state.lines.values()
        ):
            look = now + _LOOK_SECONDS
            if self._due is None or look < self._due:
                self._due, then = look, self._look
        if self._due is not None and math.isfinite(self._due):
            self._timer = asyncio.get_running_loop().call_later(self._due - now, then)

    def _look(self) -> None:
        async def look() -> None:
            await self._prepare()
            self._decide()

        self._spawn(look(), "look for memory", self._aids)

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Start(demand, plan):
                self._start(demand, plan, now)
            case Stop(key, reason):
                metrics.UNLOADS.add(reason)
                self._state.loaded[key].phase = Phase.STOPPING
                self._handles[key].load.cancel()
                self._spawn(self._stop(key, reason), f"stop {key}")
            case Forget(key):
                self._remove(key)
            case Grant(ticket, key):
                self._grant(ticket, self._state.loaded[key], now)
            case Reject(ticket, error):
                self._state.leave(ticket)
                if not self._grants[ticket].done():
                    self._grants[ticket].set_exception(error)
                    metrics.REFUSED.add(error.reason if isinstance(error, Busy) else error.kind)

    def _grant(self, ticket: int, entry: Loaded, now: float) -> None:
        if self._grants[ticket].done():  # it has just left; the next pass serves another
            self._state.leave(ticket)
            return
        waiter = self._state.grant(ticket)
        if waiter is None:
            return
        entry.served = True
        entry.last_used = now
        entry.expires_at = None
        entry.keep_alive = keepalive.after_use(entry.keep_alive, waiter.keep_alive)
        handle = self._handles[entry.key]

        def release(lease: Lease) -> None:
            handle.leases.discard(lease)
            self._give_back(entry, waiter, now)

        lease = Lease(handle.runner, waiter.request, now - waiter.since, release)
        handle.leases.add(lease)
        self._grants[ticket].set_result(lease)

    def _start(self, demand: Demand, plan: Plan, now: float) -> None:
        key = demand.key
        entry = Loaded(key, Phase.LOADING, plan, demand.options, last_used=now)
        entry.keep_alive = self._accounts.defaults.keep_alive
        how = launch(demand.weights, plan, demand.options)
        if both := self._alternation.loaded(key, plan.window, demand.options, now):
            log.warning(
                "%s: requests make it be loaded in turn with %s; let them ask for the same", how.alias, both
            )
        runner = self._make_runner(how, lambda error: self._exited(entry, error))
        self._state.loaded[key] = entry
        load = self._spawn(self._load(entry, runner), f"load {how.alias}")
        self._handles[key] = _Handle(demand, runner, load)
        self._state.breakers.started(demand.start, now)
        metrics.LOADS_STARTED.add()

    def _remove(self, key: str) -> None:
        self._state.remove(key, self._clock())
        del self._handles[key]

    # ---- what comes of them

    async def _load(self, entry: Loaded, runner: Runner) -> None:
        started, start = self._clock(), self._handles[entry.key].demand.start
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
        self._decide()

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
        handle = self._handles[key]
        await asyncio.wait({handle.load})
        try:
            await handle.runner.stop(reason)
        except EngineFailed as error:
            log.error("%s; its place stays taken", error)
            self._state.loaded[key].stuck = True
            self._decide()
            return
        except Exception:
            log.exception("%s: the stop failed in an unforeseen way", handle.demand.weights.name)
        self._state.breakers.stopped(handle.demand.start, self._clock())
        self._remove(key)
        self._decide()

    def _exited(self, entry: Loaded, error: MgrError) -> None:
        if entry.phase is not Phase.READY:
            return
        metrics.ENGINE_DEATHS.add("hung" if isinstance(error, EngineHung) else "died")
        now, breakers, handle = self._clock(), self._state.breakers, self._handles[entry.key]
        if guilty := self._blamed(handle, error, now):
            breakers.pardon(entry.key, now, guilty)
            breakers.stopped(handle.demand.start, now)
        elif isinstance(error, EngineDied) and not error.crashed and entry.service is not None:
            breakers.stopped(handle.demand.start, now)  # it worked, and somebody killed it
        else:
            breakers.died(handle.demand.start, now, error)
        self._remove(entry.key)
        self._decide()

    def _blamed(self, handle: _Handle, error: MgrError, now: float) -> tuple[float, ...]:
        """The moments of the crashes that requests are to blame for, this one included; see `poison.py`."""
        if isinstance(error, EngineDied) and not error.crashed:
            return ()
        asked = [lease.request for lease in handle.leases if lease.request is not None]
        return self._poison.crashed([fingerprint(handle.demand.key, request) for request in asked], now)

    def _spawn(
        self, work: Coroutine[Any, Any, None], name: str, kept: "set[asyncio.Task[None]] | None" = None
    ) -> "asyncio.Task[None]":
        tasks = self._tasks if kept is None else kept
        task = asyncio.create_task(work, name=name)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task
