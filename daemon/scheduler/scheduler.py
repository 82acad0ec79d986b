"""The async shell around `queue.decide`: carries its actions out, tells it what came of them.

All state changes happen between two awaits of one event loop, so there is no lock and nothing to deadlock on.
"""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol

from daemon import metrics
from daemon.chat import LoadOptions, Request
from daemon.errors import Busy
from daemon.runner.launch import Launch
from daemon.scheduler import keepalive
from daemon.scheduler.fairness import Caller, smoothed
from daemon.scheduler.fleet import Fleet, MakeRunner
from daemon.scheduler.lease import Lease
from daemon.scheduler.placement import Defaults, grown
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
from daemon.scheduler.tasks import Tasks
from daemon.scheduler.view import Snapshot, lines

# While a load waits for memory: nobody tells when another program gives some back.
_LOOK_SECONDS = 5.0


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


class Scheduler:
    """Owns the lines, the leases and the fleet. Use inside a running event loop; end with `close`."""

    def __init__(
        self,
        make_runner: MakeRunner,
        limits: Limits,
        accounts: Accounts,
        wait_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._wait_timeout = wait_timeout
        self._clock = clock
        self._state = State(limits, {})
        self._poison = Poison()
        self._fleet = Fleet(make_runner, self._state, self._poison, clock, self._decide)
        self._grown: dict[str, int] = {}  # windows that a loaded model turned out to be too small for
        self._grants: dict[int, asyncio.Future[Lease]] = {}
        self._tickets = itertools.count(1)
        self._aids = Tasks()  # what nobody waits for: measuring, reading ahead
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
            if self._fleet.handles[key].demand.weights.model == model:
                entry.keep_alive = 0.0
                if entry.phase is Phase.READY:
                    entry.gone_by = now + drain
        self._decide()

    def snapshot(self) -> Snapshot:
        """What `ps`, metrics and tests see."""
        now = self._clock()
        late = 0.0 if self._due is None else max(now - self._due, 0.0)
        return Snapshot(self._fleet.views(now), lines(self._state, now), late, self._state.closing)

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
                self._fleet.stop(key, "mgr is shutting down")
        for aid in self._aids:
            aid.cancel()
        while tasks := {*self._fleet.tasks, *self._aids}:
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
        handle = self._fleet.handles.get(entry.key) if self._state.loaded.get(entry.key) is entry else None
        if handle is not None and not handle.measured and handle.runner.pid is not None:
            handle.measured = True
            demand, runner = handle.demand, handle.runner
            own = entry.plan.takes
            others = {pool: taken - own.get(pool, 0) for pool, taken in self._state.taken().items()}
            measuring = self._accounts.measure(
                demand.weights, runner.launch, demand.options, handle.runner.pid, others
            )
            self._aids.start(measuring, f"measure {runner.launch.alias}")

    def _busy(self) -> bool:
        return any(entry.leases for entry in self._state.loaded.values())

    async def _prepare(self) -> None:
        phases = {entry.phase for entry in self._state.loaded.values()}
        await self._accounts.prepare(self._state.taken(), settled=phases <= {Phase.READY})

    # ---- decisions

    def _decide(self) -> None:
        now = self._clock()
        if self._state.lines.keys() - self._running():
            self._state.capacity = self._accounts.capacity(self._fleet.pids())
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
                self._aids.start(reading, f"read ahead {line.key}")

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

        self._aids.start(look(), "look for memory")

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Start(demand, plan):
                self._fleet.start(demand, plan, self._accounts.defaults.keep_alive, now)
            case Stop(key, reason):
                self._fleet.stop(key, reason)
            case Forget(key):
                self._fleet.forget(key)
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
        handle = self._fleet.handles[entry.key]

        def release(lease: Lease) -> None:
            handle.leases.discard(lease)
            self._give_back(entry, waiter, now)

        lease = Lease(handle.runner, waiter.request, now - waiter.since, release)
        handle.leases.add(lease)
        self._grants[ticket].set_result(lease)
