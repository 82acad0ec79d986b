"""What must hold after each step, whatever the schedule. Each rule looks at what really happened in the world.

The bound on a wait. A turn is the time in which a place changes hands at the latest: those who need it are patient
for a while, a load that runs ends, its waiters and all streams of the model that has to go are served, it stops, and
the new one loads. For each turn that passes another engine must have started, and a waiter that has nobody of its own
model ahead of it sees at most one turn of each other line that waits; each one ahead of it, and each engine that is
lost meanwhile, may cost that again.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from daemon.errors import LoadFailed
from daemon.scheduler import breaker
from daemon.scheduler.fairness import BATCH_PATIENCE
from daemon.scheduler.queue import Action, Forget, Grant, Reject, Start, Stop
from daemon.scheduler.state import Demand, Loaded, Phase, Plan, Waiter

if TYPE_CHECKING:
    from daemon.chat import LoadOptions
    from tests.unit.scheduler.simulator.world import Child, Request, World

EPSILON = 1e-6  # seconds: sums of floats


class Violation(AssertionError):
    """`rule` names the invariant that does not hold."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


# ---- before an action is carried out


def before(world: World, action: Action) -> None:
    """Whether an action that the decision asks for is legal in the world as it is."""
    match action:
        case Start(demand, plan):
            _may_start(world, demand, plan)
        case Stop(key):
            _may_stop(world, key, action.reason)
        case Forget(key):
            entry = world.state.loaded.get(key)
            if entry is None or entry.phase is not Phase.FAILED:
                raise Violation("legal transition", f"forget {key}, which has not failed")
        case Grant(ticket, key):
            _may_grant(world, ticket, key)
        case Reject(ticket):
            _may_reject(world, ticket, action)


def _may_start(world: World, demand: Demand, plan: Plan) -> None:
    key, takes = demand.key, plan.takes
    if key in world.children:
        raise Violation("one child per model", f"start {key}, which has a process")
    if key in world.state.loaded:
        raise Violation("legal transition", f"start {key}, which is there")
    for pool, there in world.state.capacity.items():
        used = sum(child.entry.plan.takes.get(pool, 0) for child in world.children.values())
        if used + takes.get(pool, 0) > there:
            raise Violation(
                "limit", f"start {key}, which takes {takes[pool]} of {pool}: {used} of {there} are used"
            )
    if world.state.closing:
        raise Violation("closing", f"start {key} while closing")
    if not any(waiter.demand.key == key for waiter in world.state.waiting.values()):
        raise Violation("no load in vain", f"start {key}, which nobody waits for")
    _serves_who_was_passed_over(world, demand, plan)


def _serves_who_was_passed_over(world: World, demand: Demand, plan: Plan) -> None:
    """After an engine went that could not serve all who waited for its model, the next one serves one of them."""
    tickets = world.passed_over.get(demand.key, set()) & world.state.waiting.keys()
    waiters = [world.state.waiting[ticket] for ticket in tickets]
    if any(world.failures[waiter.demand.start] for waiter in waiters):
        return  # it has to wait before it is tried again
    if any(
        waiter.demand.key == demand.key and waiter.caller.batch for waiter in world.state.waiting.values()
    ):
        return  # others come first, and what they share with a batch is as old as that
    if waiters and not any(fits(plan.window, demand.options, waiter) for waiter in waiters):
        raise Violation("no load in vain", f"start {demand.key}, again not for {sorted(tickets)}")


def _may_stop(world: World, key: str, reason: str) -> None:
    child = world.children.get(key)
    if child is None or child.stopping:
        raise Violation("legal transition", f"stop {key}, which does not run")
    users = [request.ticket for request in world.open.values() if request.entry is child.entry]
    if users:
        raise Violation("no victim in use", f"stop {key} ({reason}), which serves {users}")
    waiting = world.state.waiting.values()
    unserved = [waiter.ticket for waiter in waiting if not child.served and serves(child.entry, waiter)]
    if unserved and not world.state.closing:
        raise Violation(
            "no load in vain", f"stop {key} ({reason}), which {unserved} wait for, before it served"
        )
    if not waiting and child.entry.phase is Phase.READY:
        _keep_alive_is_over(world, child)


def _keep_alive_is_over(world: World, child: Child) -> None:
    idle = -math.inf if child.idle_since is None else world.now - child.idle_since
    if idle < child.entry.keep_alive - EPSILON:
        raise Violation("keep-alive", f"stop {child.entry.key}, idle {idle} s of {child.entry.keep_alive}")


def _may_grant(world: World, ticket: int, key: str) -> None:
    waiter, child = world.state.waiting.get(ticket), world.children.get(key)
    if waiter is None:
        raise Violation("ends once", f"grant to request {ticket}, which does not wait")
    if child is None or child.stopping or child.entry.phase is not Phase.READY:
        raise Violation("grant", f"{key}, which is not ready, to request {ticket}")
    if not serves(child.entry, waiter):
        raise Violation("grant", f"{key} with other options to request {ticket}")
    _may_be_next(world, child.entry, world.requests[ticket])
    users = sum(request.entry is child.entry for request in world.open.values())
    if users >= child.entry.slots:
        raise Violation("slots", f"grant {key}, which serves {users}, to request {ticket}")
    _in_time(world, world.requests[ticket])


def _may_be_next(world: World, entry: Loaded, request: Request) -> None:
    """Of those that wait for the same engine, nobody has a better right to it."""
    ask = request.ask
    running = Counter(
        r.ask.client for r in world.open.values() if r.entry is not None and r.entry.key == entry.key
    )
    was_patient = not ask.batch or world.now >= request.since + BATCH_PATIENCE
    for waiter in world.state.waiting.values():
        if waiter.ticket == request.ticket or waiter.caller.batch or not serves(entry, waiter):
            continue
        client = waiter.caller.name
        if not was_patient:
            raise Violation("fairness", f"grant to batch request {request.ticket} before {waiter.ticket}")
        if client == ask.client and waiter.ticket < request.ticket:
            raise Violation(
                "order", f"grant to request {request.ticket} before {waiter.ticket} of its client"
            )
        if running[client] < running[ask.client] and world.vain_grant < world.now:
            raise Violation(
                "fairness", f"grant to request {request.ticket} before {waiter.ticket}: {running} run"
            )


def _may_reject(world: World, ticket: int, action: Reject) -> None:
    waiter = world.state.waiting.get(ticket)
    if waiter is None:
        raise Violation("ends once", f"reject request {ticket}, which does not wait")
    if world.state.closing:
        return
    if isinstance(action.error, LoadFailed):
        _has_no_engine(world, waiter)
    elif "failed" in action.error.message:
        if world.failures[waiter.demand.start] < breaker.MAX_FAILURES:
            raise Violation("refusal", f"reject request {ticket} ({action.error}), which failed less often")
    elif world.now >= waiter.deadline:
        _in_time(world, world.requests[ticket])
    else:
        limits = world.state.limits
        full = len(world.state.waiting) > min(limits.queue, limits.waiting)
        if ticket not in world.state.arrivals or not full:
            raise Violation(
                "queue", f"reject request {ticket} ({action.error}), which was in time and had room"
            )


def _has_no_engine(world: World, waiter: Waiter) -> None:
    entry = world.state.loaded.get(waiter.demand.key)
    failed = entry is not None and entry.phase is Phase.FAILED and serves(entry, waiter)
    if not failed and not _is_shut_out(world, world.requests[waiter.ticket]):
        raise Violation(
            "refusal", f"reject request {waiter.ticket}, whose model neither failed nor is too large"
        )


def _in_time(world: World, request: Request) -> None:
    if request.end is not None or _is_shut_out(world, request):
        return
    lost = world.mishaps - request.mishaps
    started = world.starts - request.starts
    waited = world.now - request.since
    # Each one ahead of it, and for each of its client's one of the other client; long streams let others pass once.
    batch = request.ask.batch
    ahead = 2 * (world.most_waiting if batch else request.ahead + 1)
    turn = world.turn + (BATCH_PATIENCE if batch else 0.0)
    progress = (started + 1) * turn + ahead * world.longest_service
    bound = min(progress, ahead * world.most_lines * turn) + lost * turn + EPSILON
    if world.failures[request.demand.start]:
        bound += (started + 1) * breaker.LONGEST_WAIT * (1 + breaker.JITTER)
    if waited > bound:
        raise Violation(
            "no starvation",
            f"request {request.ticket} waited {waited:g} s, at most {bound:g} s are right: {request.ahead} were ahead, "
            f"{started} engines started, {lost} were lost",
        )


def _is_shut_out(world: World, request: Request) -> bool:
    """There is not as much as it needs, beside the engines that cannot be ended."""
    leaked = [child.entry for child in world.children.values() if child.leaked]
    left = {
        pool: there - sum(entry.plan.takes.get(pool, 0) for entry in leaked)
        for pool, there in world.state.capacity.items()
    }
    return any(entry.key == request.ask.model for entry in leaked) or all(
        any(amount > left[pool] for pool, amount in plan.takes.items()) for plan in request.demand.plans
    )


# ---- after a step


def settled(world: World) -> None:
    """Holds whenever nothing is being carried out."""
    state = world.state
    loaded = state.loaded
    if not world.children.keys() <= loaded.keys():
        raise Violation("child", f"{sorted(world.children)} run, {sorted(loaded)} are known")
    leases = dict.fromkeys(loaded, 0)
    for ticket, request in world.open.items():
        entry = request.entry
        if entry is None:
            if ticket not in state.waiting:
                raise Violation("nobody is lost", f"request {ticket} waits nowhere")
        elif loaded.get(entry.key) is entry:
            leases[entry.key] += 1
    for key, entry in loaded.items():
        _entry_is_sound(world, entry, leases[key])
    now = world.now
    for waiter in state.waiting.values():
        if waiter.deadline < now:
            _may_wait_beyond_its_time(world, waiter)


def _entry_is_sound(world: World, entry: Loaded, leases: int) -> None:
    child = world.children.get(entry.key)
    if entry.phase is not Phase.FAILED and (child is None or child.entry is not entry):
        raise Violation("child", f"{entry.key} is {entry.phase} and has no process")
    if entry.leases != leases:
        raise Violation("leases", f"{entry.key} counts {entry.leases}, {leases} are held")
    if entry.phase is Phase.READY and (entry.expires_at is None) != (leases > 0):
        raise Violation("keep-alive", f"{entry.key} with {leases} leases ends at {entry.expires_at}")


def _may_wait_beyond_its_time(world: World, waiter: Waiter) -> None:
    """Only the end of a load is waited for without a limit; who has left is about to be taken out."""
    child = world.children.get(waiter.demand.key)
    loads = child is not None and child.entry.phase is Phase.LOADING and serves(child.entry, waiter)
    if not loads and waiter.ticket in world.open:
        raise Violation("deadline", f"request {waiter.ticket} waits on, {waiter.deadline} was its end")


def before_time_passes(world: World, moment: float) -> None:
    """Up to the next event there is nothing to do that the timer was not set for, and who has left is not waited for.

    Asked at every fourth event only, as it costs as much as a decision.
    """
    if not world.state.waiting.keys() <= world.open.keys():
        raise Violation("nobody stays", f"{sorted(world.state.waiting)} wait, of {sorted(world.open)}")
    if (world.timer is None or moment < world.timer) and world.events % 4 == 0:
        actions = world.decide(world.state, moment)
        if actions:
            raise Violation("timer", f"set to {world.timer}; but until {moment} there was to do: {actions}")


def admitted(world: World, newcomer: Request) -> None:
    """A request that came and still waits found room in its line."""
    state = world.state
    if newcomer.ticket not in state.waiting:
        return
    lines: dict[str, int] = {}
    has_first: set[str] = set()
    for waiter in state.waiting.values():
        entry = state.loaded.get(waiter.demand.key)
        line = ""  # the queue for a load
        if entry is not None and serves(entry, waiter):
            if entry.phase is Phase.READY:
                line = entry.key
            elif entry.phase is Phase.LOADING and entry.key not in has_first:
                has_first.add(entry.key)
                continue
        lines[line] = lines.get(line, 0) + 1
        limit = state.limits.waiting if line else state.limits.queue
        if waiter.ticket == newcomer.ticket and lines[line] > limit:
            raise Violation(
                "queue", f"request {waiter.ticket} is number {lines[line]} of {limit} that may wait"
            )


# ---- at the end


def drained(world: World) -> None:
    """When nothing more will happen, nothing is left but idle engines that may stay for ever."""
    if world.open or world.state.waiting:
        raise Violation(
            "all end", f"requests {sorted(world.open)} did not, {sorted(world.state.waiting)} wait"
        )
    for key, child in world.children.items():
        entry = child.entry
        stays = entry.phase is Phase.READY and entry.keep_alive == math.inf and not world.state.closing
        if not (stays or child.leaked) or entry.leases:
            raise Violation("all end", f"{key} is {entry.phase} with {entry.leases} leases")
    if world.starts > len(world.requests) + world.mishaps:
        raise Violation("no load in vain", f"{world.starts} starts for {len(world.requests)} requests")


def serves(entry: Loaded, waiter: Waiter) -> bool:
    """Whether a waiter's model, window and options are this engine's."""
    return entry.key == waiter.demand.key and fits(entry.window, entry.options, waiter)


def fits(window: int, options: LoadOptions, waiter: Waiter) -> bool:
    """Whether an engine of its model with this window and these options is what a waiter asks for."""
    demand = waiter.demand
    return (demand.window or 0) <= window and demand.options.threads in (None, options.threads)
