"""The scheduler's decision, rule by rule: no processes, no clock."""

import math
from pathlib import Path
from typing import Any

import pytest

from daemon.chat import LoadOptions
from daemon.errors import Busy, LoadFailed
from daemon.scheduler.queue import Action, Forget, Grant, Reject, Start, Stop, decide, next_moment
from daemon.scheduler.state import ENGINES, Demand, Limits, Loaded, Phase, Plan, State, Waiter, Weights

NOW = 1000.0


def demand(name: str, window: int | None = None, **options: Any) -> Demand:
    """Its one plan takes one place, and two requests at once."""
    plan = Plan(window or 4096, 2, {ENGINES: 1})
    return Demand(Weights(name, Path(name), name), window, LoadOptions(**options), (plan,))


def start(wanted: Demand) -> Start:
    return Start(wanted, wanted.plans[0])


class World:
    """A state to be decided on, built in a few words."""

    def __init__(self, *, loaded: int = 1, queue: int = 10, waiting: int = 10) -> None:
        self.state = State(Limits(queue, waiting, patience=10.0), {ENGINES: loaded})

    def model(
        self,
        name: str,
        phase: Phase = Phase.READY,
        *,
        leases: int = 0,
        slots: int = 2,
        window: int = 4096,
        last_used: float = 0.0,
        expires_at: float | None = None,
        served: bool = True,
        options: LoadOptions | None = None,
    ) -> Loaded:
        if expires_at is None and phase is Phase.READY and leases == 0:
            expires_at = math.inf
        plan = Plan(window, slots, {ENGINES: 1})
        entry = Loaded(
            name, phase, plan, options or LoadOptions(), last_used, leases, served, expires_at=expires_at
        )
        self.state.loaded[name] = entry
        return entry

    def waiter(
        self, wanted: Demand, *, since: float = NOW, deadline: float = NOW + 600, admitted: bool = False
    ) -> int:
        ticket = len(self.state.waiting) + 1
        self.state.join(Waiter(ticket, wanted, since, deadline))
        if admitted:
            self.state.arrivals.remove(ticket)
        return ticket

    def decide(self, now: float = NOW) -> list[Action]:
        return decide(self.state, now)


def rejected(actions: list[Action]) -> dict[int, str]:
    return {action.ticket: str(action.error) for action in actions if isinstance(action, Reject)}


def test_nothing_to_do() -> None:
    world = World()
    world.model("a")
    assert world.decide() == []


# ---- rule 1


def test_a_failed_load_rejects_all_that_waited_for_it_and_is_forgotten() -> None:
    world = World()
    world.model("a", Phase.FAILED).error = LoadFailed("no memory")
    world.waiter(demand("a"))
    world.waiter(demand("a"))
    actions = world.decide()
    assert rejected(actions) == {1: "no memory", 2: "no memory"}
    assert actions[-1] == Forget("a")


def test_a_waiter_beyond_its_deadline_is_refused_with_what_it_waited() -> None:
    world = World()
    world.model("a", leases=1)
    world.waiter(demand("b"), since=NOW - 600, deadline=NOW, admitted=True)
    [action] = world.decide()
    assert isinstance(action, Reject)
    assert isinstance(action.error, Busy)
    assert "600 s" in action.error.message


def test_a_deadline_does_not_end_a_load_that_runs() -> None:
    world = World()
    world.model("a", Phase.LOADING)
    world.waiter(demand("a"), since=NOW - 700, deadline=NOW - 100, admitted=True)
    assert world.decide() == []


def test_a_load_that_took_longer_than_the_deadline_still_serves_its_waiters() -> None:
    world = World()
    world.model("a", slots=2)
    late = world.waiter(demand("a"), since=NOW - 700, deadline=NOW - 100, admitted=True)
    assert world.decide() == [Grant(late, "a")]


def test_a_waiter_whose_time_is_up_evicts_nobody() -> None:
    world = World()
    world.model("a")
    world.waiter(demand("b"), since=NOW - 700, deadline=NOW - 100, admitted=True)
    assert [type(action) for action in world.decide()] == [Reject]


def test_closing_refuses_everyone() -> None:
    world = World()
    world.model("a")
    world.state.closing = True
    world.waiter(demand("a"))
    world.waiter(demand("b"))
    assert rejected(world.decide()) == dict.fromkeys((1, 2), "mgr is shutting down")


# ---- rule 2


def test_a_loaded_model_is_granted_past_a_queue_of_others() -> None:
    world = World(queue=0)
    world.model("a", leases=1)
    world.waiter(demand("b"), admitted=True)
    ticket = world.waiter(demand("a"))
    assert world.decide() == [Grant(ticket, "a")]


def test_grants_end_at_the_slots_and_waiting_at_its_bound() -> None:
    world = World(waiting=1)
    world.model("a", slots=1)
    tickets = [world.waiter(demand("a")) for _ in range(6)]
    actions = world.decide()
    assert actions[0] == Grant(tickets[0], "a")
    assert set(rejected(actions)) == set(tickets[2:])


def test_slot_waiters_are_granted_in_the_order_of_arrival() -> None:
    world = World()
    world.model("a", slots=2, leases=1)
    first = world.waiter(demand("a"), admitted=True)
    world.waiter(demand("a"), admitted=True)
    assert world.decide() == [Grant(first, "a")]


def test_a_waiter_once_admitted_is_never_refused_for_a_full_queue() -> None:
    world = World(queue=0, waiting=0)
    world.model("a", leases=2)
    world.waiter(demand("a"), admitted=True)
    world.waiter(demand("b"), admitted=True)
    assert world.decide() == []


# ---- rule 3


def test_one_start_serves_all_who_wait_for_it() -> None:
    world = World()
    world.waiter(demand("a"))
    world.waiter(demand("a"))
    assert world.decide() == [start(demand("a"))]


def test_the_request_whose_load_runs_is_not_in_the_queue_and_those_that_share_it_are() -> None:
    world = World(queue=1)
    world.model("a", Phase.LOADING)
    world.waiter(demand("a"), admitted=True)
    shares = world.waiter(demand("a"))
    too_many = world.waiter(demand("a"))
    assert shares not in rejected(world.decide())
    assert set(rejected(world.decide())) == {too_many}


# ---- rule 4


def test_a_smaller_window_is_served_and_a_larger_one_reloads_an_idle_model() -> None:
    world = World(loaded=2)
    world.model("a", window=2048)
    small = world.waiter(demand("a", window=512))
    assert world.decide() == [Grant(small, "a")]
    world.state.leave(small)
    world.waiter(demand("a", window=4096))
    [action] = world.decide()
    assert isinstance(action, Stop)
    assert action.key == "a"


def test_a_larger_window_waits_for_a_busy_model_even_if_there_is_room() -> None:
    world = World(loaded=3)
    world.model("a", window=2048, leases=1)
    world.waiter(demand("a", window=4096))
    assert world.decide() == []


def test_load_time_options_must_agree_only_where_they_are_given() -> None:
    entry = World().model("a", options=LoadOptions(gpu_layers=0))
    assert entry.serves(demand("a").wish)
    assert entry.serves(demand("a", gpu_layers=0).wish)
    assert not entry.serves(demand("a", gpu_layers=5).wish)
    assert not entry.serves(demand("a", threads=2).wish)


# ---- rules 5 and 6


def test_there_is_room_for_as_many_as_the_limit() -> None:
    world = World(loaded=2)
    for name in "abc":
        world.waiter(demand(name))
    assert [action for action in world.decide() if isinstance(action, Start)] == [
        start(demand("a")),
        start(demand("b")),
    ]


def test_the_longest_unused_idle_model_makes_room() -> None:
    world = World(loaded=3)
    world.model("a", last_used=5)
    world.model("b", last_used=3)
    world.model("c", last_used=1, leases=1)
    world.waiter(demand("d"))
    assert world.decide() == [Stop("b", "its place is needed")]


def test_a_place_that_is_being_freed_is_kept_for_the_one_it_is_freed_for() -> None:
    world = World(loaded=2)
    world.model("a", Phase.STOPPING)
    world.model("b")
    world.waiter(demand("c"), admitted=True)
    world.waiter(demand("d"))
    assert world.decide() == [Stop("b", "its place is needed")]


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.STOPPING])
def test_a_model_that_loads_or_stops_is_no_victim(phase: Phase) -> None:
    world = World(loaded=1)
    world.model("a", phase)
    world.waiter(demand("a"), admitted=True)
    world.waiter(demand("b"))
    assert world.decide() == []


def test_a_model_with_a_waiter_of_its_own_is_no_victim() -> None:
    world = World(loaded=1)
    world.model("a", slots=1, leases=0)
    world.waiter(demand("b"))
    own = world.waiter(demand("a"))
    assert world.decide() == [Grant(own, "a")]


# ---- rule 7


def test_a_busy_model_is_never_stopped() -> None:
    world = World(loaded=1)
    world.model("a", leases=1)
    world.waiter(demand("b"))
    assert world.decide() == []


def test_after_its_patience_a_waiter_closes_a_busy_model_to_newcomers() -> None:
    world = World(loaded=1)
    entry = world.model("a", leases=1)
    patient = world.waiter(demand("b"), since=NOW - 10, admitted=True)
    newcomer = world.waiter(demand("a"), since=NOW)
    assert world.decide(NOW - 0.1) == [Grant(newcomer, "a")]
    assert world.decide(NOW) == []
    entry.leases = 0
    entry.expires_at = math.inf
    assert world.decide(NOW) == [Stop("a", "its place is needed")]
    del world.state.loaded["a"]
    assert world.decide(NOW) == [start(demand("b"))]
    assert patient in world.state.waiting


def test_after_its_patience_a_larger_window_closes_its_own_model() -> None:
    world = World(loaded=1)
    entry = world.model("a", window=1024, leases=1)
    world.waiter(demand("a", window=4096), since=NOW - 10, admitted=True)
    world.waiter(demand("a", window=512), since=NOW)
    assert world.decide() == []
    entry.leases = 0
    assert [type(action) for action in world.decide()] == [Stop]


# ---- rule 8


def test_six_requests_for_six_models_with_room_for_one_and_a_queue_of_one() -> None:
    world = World(loaded=1, queue=1)
    tickets = [world.waiter(demand(name)) for name in "abcdef"]
    actions = world.decide()
    assert actions[0] == start(demand("a"))
    assert set(rejected(actions)) == set(tickets[2:])
    assert all(
        isinstance(a.error, Busy) and a.error.retry_after > 0 for a in actions if isinstance(a, Reject)
    )


# ---- tidying up


def test_a_load_that_nobody_wants_any_more_is_stopped() -> None:
    world = World()
    world.model("a", Phase.LOADING)
    assert world.decide() == [Stop("a", "nobody waits for it any more")]


def test_an_idle_model_goes_when_its_keep_alive_runs_out_and_a_busy_one_stays() -> None:
    world = World(loaded=2)
    world.model("a", expires_at=NOW)
    world.model("b", expires_at=NOW + 1)
    busy = world.model("c", leases=1)
    busy.expires_at = None
    assert world.decide() == [Stop("a", "its keep-alive has run out")]


def test_an_expired_model_that_is_asked_for_again_is_granted_and_stays() -> None:
    world = World()
    world.model("a", expires_at=NOW)
    ticket = world.waiter(demand("a"))
    assert world.decide() == [Grant(ticket, "a")]


def test_the_next_moment_is_the_earliest_deadline_patience_or_expiry() -> None:
    world = World()
    assert next_moment(world.state, NOW) is None
    world.model("a", expires_at=NOW + 300)
    assert next_moment(world.state, NOW) == NOW + 300
    world.waiter(demand("b"), since=NOW, deadline=NOW + 600)
    assert next_moment(world.state, NOW) == NOW + 10
    assert next_moment(world.state, NOW + 10) == NOW + 300
