"""Plays the part of the async shell, of the engines and of the clients, with a fake clock.

A discrete-event simulation: the next event in time is applied, `decide` is run to its fixed point, the invariants are
checked. Only this module knows how the shell (`daemon/scheduler/scheduler.py`) carries actions out.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.chat import LoadOptions
from daemon.errors import EngineFailed, LoadFailed
from daemon.runner.launch import Offload
from daemon.scheduler import keepalive
from daemon.scheduler.breaker import Breakers, Key
from daemon.scheduler.fairness import Caller
from daemon.scheduler.placement import grown
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
    Amounts,
    Demand,
    Limits,
    Loaded,
    Phase,
    Plan,
    State,
    Waiter,
    Weights,
)
from tests.unit.scheduler.simulator import invariants
from tests.unit.scheduler.simulator.script import (
    Ask,
    Close,
    Engine,
    Input,
    Kill,
    Schedule,
    Squeeze,
    Unload,
    weight,
)

MEMORY = "memory"
PASSES = 20  # that `decide` may take until it has nothing more to say


@dataclass(slots=True, eq=False)
class Request:
    """`ahead` counts those that waited for its model when it came; `starts` and `mishaps` are the world's until then;
    `end` is how it ended."""

    ticket: int
    ask: Ask
    demand: Demand
    since: float
    ahead: int
    starts: int
    mishaps: int
    waiter: Waiter | None = None
    entry: Loaded | None = None  # what it was granted
    end: str | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.ask.client, self.ask.batch)


@dataclass(slots=True, eq=False)
class Child:
    """A process. `served`: it was granted to somebody; `idle_since` None while busy."""

    entry: Loaded
    demand: Demand
    engine: Engine
    since: float
    stopping: bool = False
    leaked: bool = False
    served: bool = False
    idle_since: float | None = None


class World:
    def __init__(self, schedule: Schedule, log: list[str] | None = None) -> None:
        self.schedule = schedule
        self.log = log
        self.now = 0.0
        self.events = 0
        self.starts = 0
        self.mishaps = 0  # engines that died or could not be ended
        self.failures: Counter[Key] = Counter()  # of starts, and deaths
        self.vain_grant = -math.inf  # when one was given to a request that had just left
        self.passed_over: dict[
            str, set[int]
        ] = {}  # who waited for a model when an engine of other options went
        self.most_lines = self.most_waiting = 1  # at once
        self.state = State(
            Limits(schedule.queue, schedule.waiting, schedule.patience, schedule.residence),
            {},
            Breakers(lambda: 0.5),
        )
        self.requests: dict[int, Request] = {}
        self.open: dict[int, Request] = {}  # those that have not ended
        self.children: dict[str, Child] = {}
        self.timer: float | None = None
        self._agenda: list[tuple[float, int, Callable[..., None], object]] = []
        self._order = itertools.count()
        self._demands: dict[tuple[str, int | None, int | None, int], Demand] = {}
        self._grown: dict[str, int] = {}
        self._closed = False
        self._memory = schedule.memory
        self.longest_service = 0.0
        self._longest_load = max(engine.load for engine in schedule.engines)
        self._longest_stop = max(engine.stop for engine in schedule.engines)
        for item in schedule.inputs:
            self.add(item)

    def add(self, item: Input) -> None:
        """Something that will happen."""
        if isinstance(item, Ask):
            self.longest_service = max(self.longest_service, item.service)
        self._at(item.at, self._apply, item)

    @property
    def turn(self) -> float:
        """Seconds in which a place changes hands at the latest."""
        limits = self.state.limits
        return (
            limits.patience
            + min(limits.residence, self._longest_load)
            + 2 * self._longest_load
            + 2 * self.longest_service
            + self._longest_stop
        )

    # ---- what the planted bugs replace

    def decide(self, state: State, now: float) -> list[Action]:
        return decide(state, now)

    def next_moment(self, state: State, now: float) -> float | None:
        return next_moment(state, now)

    # ---- time

    def run(self, until: float = math.inf) -> None:
        """Lets everything happen up to `until`; without it, all that will ever happen."""
        while (moment := self._next()) is not None and moment <= until:
            self.events += 1
            if self.timer == moment and (self.schedule.timer_first or not self._has_event(moment)):
                self.now, self.timer = moment, None
                self._decide()
            else:
                self._advance(moment)
                _, _, happen, what = heapq.heappop(self._agenda)
                happen(what)
            invariants.settled(self)
        if until < math.inf:
            self._advance(until)

    def _next(self) -> float | None:
        if self._agenda:
            event = self._agenda[0][0]
            return event if self.timer is None else min(event, self.timer)
        return self.timer

    def _has_event(self, moment: float) -> bool:
        return bool(self._agenda) and self._agenda[0][0] == moment

    def _advance(self, moment: float) -> None:
        if moment > self.now:
            invariants.before_time_passes(self, moment)
            self.now = moment

    def _at(self, moment: float, happen: Callable[..., None], what: object) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), happen, what))

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now:8.2f}  {text}")

    # ---- what comes from outside

    def _apply(self, item: Input) -> None:
        if self.log is not None:
            self.note(f"{item}")
        match item:
            case Ask():
                self._ask(item)
            case Kill():
                child = self.children.get(item.model)
                if child is not None:
                    self._die(child)
            case Unload():
                self._unload(item.model)
            case Squeeze():
                self._memory = item.memory
            case Close():
                self._close(item.drain)

    def _ask(self, ask: Ask) -> None:
        ticket = len(self.requests) + 1
        demand = self._demand(ask)
        ahead = sum(waiter.demand.key == demand.key for waiter in self.state.waiting.values())
        request = Request(ticket, ask, demand, self.now, ahead, self.starts, self.mishaps)
        self.requests[ticket] = self.open[ticket] = request
        deadline = self.now + self.schedule.wait_timeout
        leases = self.state.loaded[demand.key].leases if demand.key in self.state.loaded else 0
        at_once = grants_at_once(self.state, demand, self.now)
        request.waiter = Waiter(ticket, demand, self.now, deadline, ask.keep_alive, request.caller)
        self.state.join(request.waiter)
        self.most_lines = max(self.most_lines, len(self.state.lines))
        self.most_waiting = max(self.most_waiting, len(self.state.waiting))
        if ask.cancel_after is not None:
            self._at(self.now + ask.cancel_after, self._cancel, request)
        self._decide(newcomer=request)
        if at_once and self.state.loaded[demand.key].leases == leases:
            raise invariants.Violation(
                "at once", f"request {ticket} was not granted, which it is by the short way"
            )

    def _demand(self, ask: Ask) -> Demand:
        """What is wanted more comes first: the largest window that a loaded model was too small for, and many slots."""
        loaded = self.state.loaded.get(ask.model)
        if ask.window is not None and loaded is not None and ask.window > loaded.window:
            self._grown[ask.model] = max(self._grown.get(ask.model, 0), grown(ask.window))
        least = ask.window or self.schedule.window
        wanted = max(least, self._grown.get(ask.model, 0))
        wish = (ask.model, ask.window, ask.threads, wanted)
        if wish not in self._demands:
            ways = [(wanted, slots) for slots in range(self.schedule.slots, 0, -1)]
            ways += [
                (window, 1)
                for window in (least, least // 2)
                if window < wanted and window >= (ask.window or 0)
            ]
            plans = tuple(
                Plan(window, slots, 0, {ENGINES: 1, **taken}, offload)
                for sites in (self.schedule.gpus, None)
                for window, slots in ways
                for taken, offload in self._sites(sites, weight(ask.model, window, slots))
            )
            weights = Weights(ask.model, Path(ask.model), ask.model)
            self._demands[wish] = Demand(weights, ask.window, LoadOptions(threads=ask.threads), plans)
        return self._demands[wish]

    def _sites(self, gpus: tuple[int, ...] | None, units: int) -> list[tuple[Amounts, Offload | None]]:
        """On one of the GPUs, or on all of them; None is the machine's memory."""
        if gpus is None:
            return [({MEMORY: units}, Offload(0, 1, ()) if self.schedule.gpus else None)]
        names = tuple(f"gpu{number}" for number in range(len(gpus)))
        sites = [(name,) for name in names] + ([names] if len(names) > 1 else [])
        return [
            ({MEMORY: 1, **dict.fromkeys(site, -(-units // len(site)))}, Offload(1, 1, site))
            for site in sites
        ]

    def _cancel(self, request: Request) -> None:
        """A wait that is cancelled leaves the list one step of the event loop later."""
        if request.end is not None:
            return
        self._end(request, "cancelled")
        if request.entry is not None:
            self._give_back(request.entry, request)
        else:
            self._at(self.now, self._leave, request)

    def _leave(self, request: Request) -> None:
        if self.state.leave(request.ticket) is not None:
            self._decide()

    def _unload(self, model: str) -> None:
        entry = self.state.loaded.get(model)
        if entry is not None:
            entry.keep_alive = 0.0
            if entry.expires_at is not None:
                entry.expires_at = self.now
            self._decide()

    def _close(self, drain: float) -> None:
        self.state.closing = True
        self._decide()
        self._at(self.now + drain, self._stop_all, None)
        self._at(self.now, self._stop_when_drained, None)

    def _stop_when_drained(self, _: object) -> None:
        if not any(entry.leases for entry in self.state.loaded.values()):
            self._stop_all(None)

    def _stop_all(self, _: object) -> None:
        if self._closed:
            return
        self._closed = True
        for key, entry in self.state.loaded.items():
            if entry.phase is not Phase.STOPPING:
                self._cut(entry)
                self._stop(key, "mgr is shutting down")

    # ---- requests

    def _end(self, request: Request, how: str) -> None:
        if request.end is not None:
            raise invariants.Violation("ends once", f"request {request.ticket} was {request.end}, then {how}")
        request.end = how
        del self.open[request.ticket]
        self.note(f"    request {request.ticket} ({request.ask.model}) {how}")

    def _finish(self, request: Request) -> None:
        if request.end is None and request.entry is not None:
            self._end(request, "answered")
            self._give_back(request.entry, request)

    def _break(self, request: Request) -> None:
        if request.end is None and request.entry is not None:
            self._end(request, "cut")
            self._give_back(request.entry, request)

    def _cut(self, entry: Loaded) -> None:
        """The streams of an engine end with an error, a moment later."""
        for request in self.open.values():
            if request.entry is entry:
                self._at(self.now, self._break, request)

    def _give_back(self, entry: Loaded, request: Request) -> None:
        assert request.waiter is not None
        self.state.release(entry, request.waiter)
        entry.last_used = self.now
        if entry.leases == 0:
            entry.expires_at = keepalive.expires_at(self.now, entry.keep_alive)
            child = self.children.get(entry.key)
            if child is not None and child.entry is entry:
                child.idle_since = self.now
        if self.state.closing:
            self._at(self.now, self._stop_when_drained, None)
        self._decide()

    # ---- decisions

    def _decide(self, newcomer: Request | None = None) -> None:
        gpus = {f"gpu{number}": memory for number, memory in enumerate(self.schedule.gpus)}
        self.state.capacity = {ENGINES: self.schedule.loaded, MEMORY: self._memory, **gpus}
        for _ in range(PASSES):
            actions = self.decide(self.state, self.now)
            if not actions:
                break
            for action in actions:
                invariants.before(self, action)
                self._perform(action)
        else:
            raise invariants.Violation("fixed point", f"none after {PASSES} passes")
        if newcomer is not None:
            invariants.admitted(self, newcomer)
        self.state.arrivals.clear()
        self.timer = self.next_moment(self.state, self.now)
        if self.timer is not None and self.timer <= self.now:
            raise invariants.Violation("timer", f"set to {self.timer}, which is past")
        if self.timer == math.inf:
            self.timer = None

    def _perform(self, action: Action) -> None:
        match action:
            case Start(demand, plan):
                self._start(demand, plan)
            case Stop(key, reason):
                self._stop(key, reason)
            case Forget(key):
                self.note(f"    forget {key}")
                self.state.remove(key, self.now)
            case Grant(ticket, key):
                self._grant(self.requests[ticket], key)
            case Reject(ticket, error):
                self.state.leave(ticket)
                request = self.requests[ticket]
                self.passed_over.pop(request.ask.model, None)  # now it may be another line's turn
                if request.end is None:
                    self._end(request, f"refused: {error}")

    def _grant(self, request: Request, key: str) -> None:
        if request.end is not None:  # it left a moment ago
            self.state.leave(request.ticket)
            self.vain_grant = self.now
            return
        waiter = self.state.grant(request.ticket)
        if waiter is None:
            return
        entry = self.state.loaded[key]
        entry.last_used = self.now
        entry.expires_at = None
        entry.served = True
        entry.keep_alive = keepalive.after_use(entry.keep_alive, waiter.keep_alive)
        request.entry = entry
        child = self.children[key]
        child.served, child.idle_since = True, None
        self.note(f"    grant {key} to request {request.ticket}")
        self._at(self.now + request.ask.service, self._finish, request)

    def _start(self, demand: Demand, plan: Plan) -> None:
        schedule = self.schedule
        engine = schedule.engines[self.starts % len(schedule.engines)]
        entry = Loaded(
            demand.key,
            Phase.LOADING,
            plan,
            demand.options,
            last_used=self.now,
            keep_alive=schedule.keep_alive,
        )
        self.starts += 1
        child = Child(entry, demand, engine, self.now)
        self.state.loaded[demand.key] = entry
        self.passed_over.pop(demand.key, None)
        self.children[demand.key] = child
        if self.log is not None:
            self.note(f"    start {demand.key}: {plan}, threads {demand.options.threads}; {engine}")
        self.state.breakers.started(demand.start, self.now)
        self._at(self.now + engine.load, self._load_ends, child)

    def _stop(self, key: str, reason: str) -> None:
        child = self.children[key]
        waiters = (waiter for waiter in self.state.waiting.values() if waiter.demand.key == key)
        self.passed_over[key] = {w.ticket for w in waiters if not invariants.serves(child.entry, w)}
        child.stopping = True
        child.entry.phase = Phase.STOPPING
        self.note(f"    stop {key}: {reason}")
        self._at(self.now + child.engine.stop, self._stopped, child)

    # ---- what comes of them

    def _load_ends(self, child: Child) -> None:
        if child.entry.phase is not Phase.LOADING:
            return
        if child.engine.fails:
            self._fail(child)
            return
        self.note(f"{child.entry.key} is ready")
        child.entry.phase = Phase.READY
        child.entry.ready_at = child.entry.last_used = self.now
        child.entry.load_seconds = self.now - child.since
        child.entry.expires_at = keepalive.expires_at(self.now, child.entry.keep_alive)
        child.idle_since = self.now
        self.state.breakers.ready(child.demand.start, self.now)
        if child.engine.dies_after is not None:
            self._at(self.now + child.engine.dies_after, self._die, child)
        self._decide()

    def _fail(self, child: Child) -> None:
        self.note(f"{child.entry.key} fails to load")
        child.entry.phase = Phase.FAILED
        child.entry.error = LoadFailed("it does not load")
        self.failures[child.demand.start] += 1
        self.state.breakers.failed(child.demand.start, self.now, child.entry.error)
        del self.children[child.entry.key]
        self._decide()

    def _die(self, child: Child) -> None:
        if child.entry.phase is Phase.LOADING:
            self._fail(child)
        elif child.entry.phase is Phase.READY and self.children.get(child.entry.key) is child:
            self.note(f"{child.entry.key} dies")
            self.mishaps += 1
            self.failures[child.demand.start] += 1
            self.state.breakers.died(child.demand.start, self.now, EngineFailed("it died"))
            del self.children[child.entry.key]
            self.state.remove(child.entry.key, self.now)
            self._cut(child.entry)
            self._decide()

    def _stopped(self, child: Child) -> None:
        key = child.entry.key
        if child.engine.leaks:
            self.note(f"{key} cannot be ended")
            self.mishaps += 1
            child.leaked = True
            child.entry.stuck = True
            self._decide()
            return
        self.note(f"{key} has stopped")
        self.state.breakers.stopped(child.demand.start, self.now)
        del self.children[key]
        self.state.remove(key, self.now)
        self._decide()
