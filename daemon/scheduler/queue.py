"""Who runs, who waits, who is refused: the one function that decides. Pure.

`decide` reads the state and the time and returns actions; the shell (`scheduler.py`) carries them out and reports
what came of it, which calls `decide` again. Nothing here awaits, reads a clock or touches the system, so a test
can run a year of schedules in a second.

The queue has the meaning of `asyncio.Queue(maxsize)`: what does not fit is refused at once. Those who wait stand in
lines, one for each wish that a load can fulfil, so that a decision looks at lines and not at everyone in them.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from daemon.errors import Busy, LoadFailed, MgrError
from daemon.scheduler import eviction
from daemon.scheduler.breaker import Go, Refuse
from daemon.scheduler.fairness import expected_wait
from daemon.scheduler.state import ENGINES, Amounts, Demand, Line, Loaded, Phase, Plan, State, Wish


@dataclass(frozen=True, slots=True)
class Start:
    demand: Demand
    plan: Plan


@dataclass(frozen=True, slots=True)
class Stop:
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a failed load from the state."""

    key: str


@dataclass(frozen=True, slots=True)
class Grant:
    ticket: int
    key: str


@dataclass(frozen=True, slots=True)
class Reject:
    ticket: int
    error: MgrError


Action: TypeAlias = Start | Stop | Forget | Grant | Reject


def decide(state: State, now: float) -> list[Action]:
    """All that is to be done now.

    1. mgr is closing, or the load that a line waited for has failed: Reject all of it.
    2. The lines that no engine serves, the one first that has waited for its turn the longest (a batch is patient):
       starts like this one have failed: Reject all of it for a while, or wait for a moment (`breaker.py`);
       a compatible load of its model runs: it waits, however long that takes (others get Reject at their deadline);
       its model runs or loads with other options: Stop it once it is idle;
       each of its plans takes more than there is in all: Reject;
       there is room for one that is as good as the best that there could be room for, but for its slots: Start;
       engines that stop make room enough: that room is this line's; or idle models can go: Stop them, likewise;
       only busy models could go: wait; after `patience` they take no newcomers, and the room is this line's.
    3. The lines whose model runs: Grant to as many as there are free slots, in fair turns (`fairness.py`), but to one
       suspect of a crash at a time. Others wait.
    4. Whoever has just come and is too many in the line it would have to wait in: Reject.
    5. A failed load is forgotten; a load that nobody wants is stopped, and so is an idle one whose keep-alive ran out,
       or that has served for long, and one that was asked to go: when it is idle, or its time is up.

    Otherwise only idle models are stopped. One that somebody waits for is stopped only for a line that has been
    patient, and never before it served anybody.
    """
    return list(_Decision(state, now).actions())


def grants_at_once(state: State, demand: Demand, now: float, *, suspect: bool = False) -> bool:
    """Whether `decide` would do nothing for one who comes now but grant it its model: a short way past all lines."""
    entry = state.loaded.get(demand.key)
    return (
        entry is not None
        and entry.phase is Phase.READY
        and entry.leases < entry.slots
        and not (suspect and entry.suspects)
        and entry.gone_by is None
        and not state.closing
        and entry.serves(demand.wish)
        and not state.turns.get(demand.key)
        and all(now < line.overdue_at(state.limits.patience) for line in state.lines.values())
    )


class _Decision:
    """Scratch for one call: the state as it will be once the actions so far are carried out."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        taken = state.taken()
        self._free = {pool: amount - taken.get(pool, 0) for pool, amount in state.capacity.items()}
        self._leases = {key: entry.leases for key, entry in state.loaded.items()}
        stuck = [entry for entry in state.loaded.values() if entry.stuck]
        # What there is in all, but for what engines have that cannot be ended.
        self._usable = {pool: amount - _sum(stuck, pool) for pool, amount in state.capacity.items()}
        self._starting: dict[str, Wish] = {}
        self._claimed: set[str] = set()  # models whose next load is another line's
        # Engines that are stopping and whose room is not yet promised to a line; all that stop or will.
        self._leaving = [
            entry for entry in state.loaded.values() if entry.phase is Phase.STOPPING and not entry.stuck
        ]
        self._stopped = {entry.key for entry in state.loaded.values() if entry.phase is Phase.STOPPING}
        # Busy ones that take no newcomers.
        self._closed = {entry.key for entry in state.loaded.values() if entry.gone_by is not None}
        self._room_is_kept = False  # for a line that has been patient: nobody else may start
        # Models that somebody waits for and that can serve them.
        self._wanted = {line.key for line in state.lines.values() if self._serves(line)}
        self._done: set[int] = set()  # tickets that were granted or refused

    def actions(self) -> Iterator[Action]:
        if self._state.closing:
            closing = Busy("mgr is shutting down", 5, "closing")
            yield from (self._reject(ticket, closing) for ticket in self._state.waiting)
        else:
            pending = [line for line in self._state.lines.values() if not self._is_running(line)]
            for line in sorted(pending, key=lambda line: line.overdue_at(self._state.limits.patience)):
                yield from self._pend(line)
            for entry in self._state.loaded.values():
                if entry.phase is Phase.READY and entry.key in self._wanted:
                    yield from self._grant(entry)
            yield from self._turn_away()
        for entry in self._state.loaded.values():
            yield from self._tidy(entry)

    # ---- lines without an engine that serves them

    def _pend(self, line: Line) -> Iterator[Action]:
        entry = self._state.loaded.get(line.key)
        if entry is not None and entry.phase is Phase.FAILED and entry.serves(line.wish) and entry.error:
            yield from self._reject_all(line, entry.error)
            return
        if entry is not None and entry.phase is Phase.LOADING and entry.serves(line.wish):
            return
        yield from self._expire(line)
        if self._left(line) == 0 or line.key in self._starting or line.key in self._claimed:
            return
        if entry is None:
            yield from self._load(line)
        else:
            yield from self._replace(line, entry)

    def _replace(self, line: Line, entry: Loaded) -> Iterator[Action]:
        self._claimed.add(line.key)
        if entry.phase is Phase.STOPPING:
            if entry in self._leaving:
                self._leaving.remove(entry)
        elif self._can_go(entry, line):
            self._stopped.add(entry.key)
            yield Stop(entry.key, "another window or other options are asked for")
        elif self._is_overdue(line) and entry.served:
            self._closed.add(entry.key)

    def _load(self, line: Line) -> Iterator[Action]:
        verdict = self._state.breakers.verdict(line.demand.start, self._now)
        if isinstance(verdict, Refuse):
            yield from self._reject_all(line, verdict.error)
        elif isinstance(verdict, Go):
            self._claimed.add(line.key)
            yield from self._place(line)

    def _place(self, line: Line) -> Iterator[Action]:
        plans = self._feasible(line)
        if not plans:
            yield from self._reject_all(line, _does_not_fit(line.demand, self._usable))
        elif not self._room_is_kept:
            plan = next((plan for plan in plans if not self._lacks(self._wants(line, plan))), None)
            if plan is not None:
                self._take(plan.takes)
                self._starting[line.key] = line.wish
                yield Start(line.demand, plan)
            else:
                smallest = {plan.offload: plan for plan in plans}  # the last of each site
                yield from self._make_room(line, [self._wants(line, plan) for plan in smallest.values()])

    def _feasible(self, line: Line) -> list[Plan]:
        """The plans with the window, and the layers on GPUs, of the best that there is memory for once all others have
        gone: an idle model goes rather than that a request gets a smaller window or fewer layers there."""
        plans = [plan for plan in line.demand.plans if not _beyond(self._usable, plan.takes)]
        plans = [plan for plan in plans if (plan.window, plan.layers) == (plans[0].window, plans[0].layers)]
        return plans if line.key not in self._state.alone else plans[-1:]

    def _wants(self, line: Line, plan: Plan) -> Amounts:
        """All of the memory, where the estimate turned out to be too small: then everybody else goes first."""
        if line.key not in self._state.alone:
            return plan.takes
        return {pool: n if pool == ENGINES else self._usable.get(pool, n) for pool, n in plan.takes.items()}

    def _make_room(self, line: Line, ways: list[Amounts]) -> Iterator[Action]:
        """For one of the ways: room that comes by itself, else that of idle models; for a patient line also that of
        busy ones, later."""
        leaving = self._fewest(ways, self._leaving)
        if leaving is not None:
            self._promise(*leaving)
            return
        entries = self._state.loaded.values()
        idle = eviction.order((entry for entry in entries if self._can_go(entry, line)), self._now)
        victims = self._fewest(ways, [*self._leaving, *idle])
        if victims is not None:
            self._promise(*victims)
            for entry in victims[1]:
                if entry.key not in self._stopped:
                    self._stopped.add(entry.key)
                    yield Stop(entry.key, "its place is needed")
        elif self._is_overdue(line):
            self._room_is_kept = True
            busy = (e for e in entries if e.phase is Phase.READY and e.served and e.key not in self._stopped)
            # In an order that use does not change: what is closed stays closed until it is idle.
            others = sorted((e for e in busy if e not in idle), key=lambda e: (e.load_seconds, e.ready_at))
            enough = self._fewest(ways, [*self._leaving, *idle, *others])
            self._closed.update(entry.key for entry in (enough[1] if enough else others))

    def _fewest(self, ways: list[Amounts], entries: list[Loaded]) -> tuple[Amounts, list[Loaded]] | None:
        """The way for which the fewest of the entries have to go, and of those alike the first; and who has to go."""
        found = [(takes, some) for takes in ways if (some := self._enough(takes, entries)) is not None]

        def cost(each: tuple[Amounts, list[Loaded]]) -> tuple[int, int]:
            return len(each[1]), max((entries.index(entry) for entry in each[1]), default=-1)

        return min(found, key=cost, default=None)

    def _enough(self, takes: Amounts, entries: list[Loaded]) -> list[Loaded] | None:
        """The first of the entries whose room, with what is free, is what is lacked. None where all of it is not."""
        lacks = self._lacks(takes)
        chosen: list[Loaded] = []
        for entry in entries:
            if not lacks:
                break
            if any(entry.plan.takes.get(pool, 0) for pool in lacks):
                chosen.append(entry)
                lacks = {pool: n - entry.plan.takes.get(pool, 0) for pool, n in lacks.items()}
                lacks = {pool: n for pool, n in lacks.items() if n > 0}
        return None if lacks else chosen

    def _lacks(self, takes: Amounts) -> dict[str, int]:
        """What is not free of it, by pool."""
        return {pool: n - self._free[pool] for pool, n in takes.items() if n > self._free.get(pool, n)}

    def _promise(self, takes: Amounts, leaving: list[Loaded]) -> None:
        """The room of those that leave is for this; what else they leave is free, though only then."""
        for entry in leaving:
            if entry in self._leaving:
                self._leaving.remove(entry)
        freed = {pool: sum(entry.plan.takes.get(pool, 0) for entry in leaving) for pool in takes}
        self._take({pool: max(amount - freed[pool], 0) for pool, amount in takes.items()})

    def _take(self, takes: Amounts) -> None:
        for pool, amount in takes.items():
            if pool in self._free:
                self._free[pool] -= amount

    def _expire(self, line: Line) -> Iterator[Action]:
        """Deadlines are in the order of arrival."""
        for waiter in line:
            if waiter.deadline > self._now:
                break
            if waiter.ticket not in self._done:
                waited = round(self._now - waiter.since)
                text = f"the server is busy: the request waited {waited} s for its model"
                error = Busy(text, reason="timed_out")
                yield self._reject(waiter.ticket, error)

    # ---- lines whose model runs

    def _grant(self, entry: Loaded) -> Iterator[Action]:
        served = {
            line.wish for line in self._state.lines.values() if line.key == entry.key and self._serves(line)
        }
        free = entry.slots - self._leases[entry.key]
        if free > 0 and entry.key not in self._closed | self._stopped:
            waiting = self._state.waiting
            turns = self._state.turns[entry.key]
            suspects = entry.suspects

            def may(ticket: int) -> bool:
                waiter = waiting[ticket]
                return waiter.demand.wish in served and not (waiter.suspect and suspects)

            for ticket in islice(turns.in_order(self._now, may), free):
                suspects += waiting[ticket].suspect
                self._leases[entry.key] += 1
                self._done.add(ticket)
                yield Grant(ticket, entry.key)
        for wish in served:
            yield from self._expire(self._state.lines[wish])

    # ---- who is too many

    def _turn_away(self) -> Iterator[Action]:
        arrivals = [ticket for ticket in self._state.arrivals if ticket in self._state.waiting]
        if not arrivals:
            return
        lines = self._state.lines.values()
        queued = sum(self._left(line) for line in lines if not self._is_running(line))
        loads = {key for key, entry in self._state.loaded.items() if entry.phase is Phase.LOADING}
        # The request whose load runs is not in the queue; those that share the load are.
        queued -= len(loads & self._wanted) + len(self._starting)
        for ticket in reversed(arrivals):
            if ticket in self._done:
                continue
            line = self._state.lines[self._state.waiting[ticket].demand.wish]
            if self._is_running(line):
                waiting = sum(self._left(each) for each in lines if each.key == line.key)
                if waiting > self._state.limits.waiting:
                    yield self._reject(ticket, self._too_many_for(self._state.loaded[line.key]))
            elif queued > self._state.limits.queue:
                queued -= 1
                yield self._reject(ticket, self._too_many())

    def _too_many_for(self, entry: Loaded) -> Busy:
        bound = self._state.limits.waiting
        seconds = math.ceil(expected_wait(bound + 1, entry.slots, entry.service or 0.0))
        wait = f", and the wait would be about {seconds} s" if entry.service is not None else ""
        return Busy(
            f"the model is busy: {bound} requests wait for it already{wait}", _bounded(seconds), "model_full"
        )

    def _too_many(self) -> Busy:
        bound = self._state.limits.queue
        longest = max((self._now - line.since for line in self._state.lines.values()), default=0.0)
        text = f"the server is busy: {bound} requests wait for a model to be loaded already"
        if longest >= 1:
            text += f", the first of them for {longest:.0f} s"
        return Busy(text, _bounded(longest), "queue_full")

    # ---- models

    def _tidy(self, entry: Loaded) -> Iterator[Action]:
        if entry.phase is Phase.FAILED:
            yield Forget(entry.key)
        elif entry.phase is Phase.LOADING and entry.key not in self._wanted:
            yield Stop(entry.key, "nobody waits for it any more")
        elif entry.gone_by is not None and self._is_to_go(entry, entry.gone_by):
            yield Stop(entry.key, "it was asked to go")
        elif entry.expires_at is not None and entry.expires_at <= self._now and self._is_idle(entry):
            yield Stop(entry.key, "its keep-alive has run out")
        elif self._now >= entry.ready_at + self._state.limits.recycle and self._is_idle(entry):
            yield Stop(entry.key, "it has served for long")

    # ---- what is so

    def _reject(self, ticket: int, error: MgrError) -> Reject:
        self._done.add(ticket)
        return Reject(ticket, error)

    def _reject_all(self, line: Line, error: MgrError) -> Iterator[Reject]:
        yield from (self._reject(waiter.ticket, error) for waiter in line if waiter.ticket not in self._done)

    def _left(self, line: Line) -> int:
        return len(line) - sum(ticket in line.waiters for ticket in self._done)

    def _serves(self, line: Line) -> bool:
        entry = self._state.loaded.get(line.key)
        return entry is not None and entry.phase in (Phase.LOADING, Phase.READY) and entry.serves(line.wish)

    def _is_running(self, line: Line) -> bool:
        entry = self._state.loaded.get(line.key)
        return entry is not None and entry.phase is Phase.READY and entry.serves(line.wish)

    def _can_go(self, entry: Loaded, line: Line) -> bool:
        """An idle model can that was there for a while. For a line that was patient enough any that is idle now, if it
        served somebody or nobody waits for it."""
        if not self._is_unused(entry):
            return False
        if self._is_overdue(line):
            return entry.served or entry.key not in self._wanted
        return entry.key not in self._wanted and self._now >= entry.settled_at(self._state.limits.residence)

    def _is_idle(self, entry: Loaded) -> bool:
        return self._is_unused(entry) and entry.key not in self._wanted

    def _is_to_go(self, entry: Loaded, gone_by: float) -> bool:
        is_over = self._leases[entry.key] == 0 or self._now >= gone_by
        return is_over and entry.phase is Phase.READY and entry.key not in self._stopped

    def _is_unused(self, entry: Loaded) -> bool:
        return entry.phase is Phase.READY and self._leases[entry.key] == 0 and entry.key not in self._stopped

    def _is_overdue(self, line: Line) -> bool:
        return self._now >= line.overdue_at(self._state.limits.patience)


def _bounded(seconds: float) -> int:
    """Seconds after which it is worth to ask again."""
    return min(max(math.ceil(seconds), 1), 60)


def _sum(entries: Iterable[Loaded], pool: str) -> int:
    return sum(entry.plan.takes.get(pool, 0) for entry in entries)


def _beyond(capacity: Amounts, takes: Amounts) -> tuple[str, int, int] | None:
    """The first pool of which more is needed than there is in all, with both numbers."""
    for pool, amount in takes.items():
        if pool in capacity and amount > capacity[pool]:
            return pool, amount, capacity[pool]
    return None


def _does_not_fit(demand: Demand, capacity: Amounts) -> MgrError:
    """With the numbers of the plan that comes nearest."""
    beyond = [(plan, *too_much) for plan in demand.plans if (too_much := _beyond(capacity, plan.takes))]
    plan, pool, needed, there = min(beyond, key=lambda each: each[2] - each[3])
    if pool == ENGINES:
        return LoadFailed("no model may be loaded here: the limit of loaded models is 0")
    gib = 1024**3
    return LoadFailed(
        f"the model '{demand.weights.name}' needs about {needed / gib:.1f} GiB of {pool} memory with a window of "
        f"{plan.window} tokens, and {there / gib:.1f} GiB are there for models; use a smaller window or a smaller model"
    )


def next_moment(state: State, now: float) -> float | None:
    """When `decide` must look again although nothing happens: the next deadline, patience, start after a failure,
    settling or keep-alive."""
    moments = [line.overdue_at(state.limits.patience) for line in state.lines.values()]
    moments += [next(iter(line)).deadline for line in state.lines.values()]
    verdicts = [state.breakers.verdict(line.demand.start, now) for line in state.lines.values()]
    moments += [verdict.until for verdict in verdicts if not isinstance(verdict, Go)]
    if state.lines:
        moments += [entry.settled_at(state.limits.residence) for entry in state.loaded.values()]
    moments += [entry.gone_by for entry in state.loaded.values() if entry.gone_by is not None]
    moments += [
        entry.ready_at + state.limits.recycle
        for entry in state.loaded.values()
        if entry.expires_at is not None
    ]
    moments += [entry.expires_at for entry in state.loaded.values() if entry.expires_at is not None]
    return min((moment for moment in moments if moment > now), default=None)
