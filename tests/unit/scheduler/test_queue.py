"""The scheduler's decision, rule by rule: no processes, no clock."""

import math
from dataclasses import replace
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
    plan = Plan(window or 4096, 2, 0, {ENGINES: 1})
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
        plan = Plan(window, slots, 0, {ENGINES: 1})
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


# ---- room in several pools


def sized(name: str, *plans: tuple[int, int]) -> Demand:
    """A model that can be loaded in several ways: slots, and bytes of RAM."""
    ways = tuple(Plan(4096, slots, 0, {ENGINES: 1, "RAM": size}) for slots, size in plans)
    return Demand(Weights(name, Path(name), name), None, LoadOptions(), ways)


def memory(size: int, **loaded: int) -> World:
    """So much RAM, and idle models of some sizes; those that are named first were used last."""
    world = World(loaded=9)
    world.state.capacity = {ENGINES: 9, "RAM": size}
    for age, (name, takes) in enumerate(loaded.items()):
        entry = world.model(name, last_used=NOW - 10 * (age + 1))
        entry.plan = Plan(4096, 1, 0, {ENGINES: 1, "RAM": takes})
    return world


def stopped(actions: list[Action]) -> list[str]:
    return [action.key for action in actions if isinstance(action, Stop)]


def test_the_best_plan_that_there_is_room_for() -> None:
    for free, slots in ((400, 4), (250, 2), (100, 1)):
        world = memory(1000, old=1000 - free)
        wanted = sized("a", (4, 400), (2, 200), (1, 100))
        world.waiter(wanted)
        [action] = world.decide()
        assert isinstance(action, Start)
        assert action.plan.slots == slots


def test_room_is_made_for_the_least_plan_by_as_few_as_needed() -> None:
    world = memory(1000, a=300, b=300, c=300)
    world.waiter(sized("d", (4, 900), (1, 400)))
    assert stopped(world.decide()) == ["c"]
    world.state.loaded["c"].phase = Phase.STOPPING
    assert world.decide() == []


def test_what_never_fits_is_refused_with_the_numbers() -> None:
    world = memory(2 * 1024**3, a=1024)
    ticket = world.waiter(sized("big", (1, 5 * 1024**3)))
    text = rejected(world.decide())[ticket]
    assert (
        "'big' needs about 5.0 GiB of RAM memory with a window of 4096 tokens, and 2.0 GiB are there" in text
    )


def test_a_small_model_starts_beside_a_large_one_that_waits_until_that_was_patient() -> None:
    world = memory(1000, busy=600)
    world.state.loaded["busy"].leases = 1
    large = sized("large", (1, 900))
    world.waiter(large, since=NOW)
    small = sized("small", (1, 100))
    world.waiter(small, since=NOW)
    assert world.decide(NOW + 1) == [start(small)]
    assert world.decide(NOW + 10) == []
    # The busy model takes no newcomers, so that the room comes.
    world.waiter(sized("busy", (1, 600)), since=NOW + 10)
    assert world.decide(NOW + 10) == []


def test_room_that_is_promised_is_not_given_to_another() -> None:
    world = memory(1000, a=600)
    world.waiter(sized("b", (1, 900)), since=NOW - 1)
    world.waiter(sized("c", (1, 200)))
    assert stopped(world.decide()) == ["a"]
    world.state.loaded["a"].phase = Phase.STOPPING
    assert world.decide() == []
    del world.state.loaded["a"]
    assert [action.demand.key for action in world.decide() if isinstance(action, Start)] == ["b"]


def test_what_is_left_beside_a_promise_is_given() -> None:
    world = memory(1000, a=600)
    world.waiter(sized("b", (1, 700)), since=NOW - 1)
    c = sized("c", (1, 200))
    world.waiter(c)
    actions = world.decide()
    assert (stopped(actions), actions[-1]) == (["a"], start(c))


def test_a_failed_load_takes_no_room() -> None:
    world = memory(1000, a=600)
    world.model("b", Phase.FAILED).plan = Plan(4096, 1, 0, {"RAM": 900})
    c = sized("c", (1, 400))
    world.waiter(c)
    assert start(c) in world.decide()


# ---- turns


def test_the_victim_is_the_one_that_is_cheap_to_have_back() -> None:
    world = World(loaded=2)
    world.model("slow", last_used=NOW - 100).load_seconds = 50.0
    world.model("quick", last_used=NOW - 20).load_seconds = 2.0
    world.waiter(demand("c"))
    assert stopped(world.decide()) == ["quick"]


def test_of_models_that_are_all_cheap_to_have_back_the_one_goes_that_was_not_used_for_the_longest() -> None:
    world = World(loaded=2)
    world.model("older", last_used=NOW - 1).load_seconds = 4.0
    world.model("newer", last_used=NOW - 0.9).load_seconds = 0.1
    world.waiter(demand("c"))
    assert stopped(world.decide()) == ["older"]


def test_a_model_stays_for_a_while_if_it_took_long_to_load_but_not_for_the_patient() -> None:
    world = World()
    entry = world.model("a", last_used=NOW)
    entry.ready_at, entry.load_seconds = NOW, 30.0
    world.waiter(demand("b"), since=NOW - 1)
    assert world.decide(NOW + 4) == []
    assert next_moment(world.state, NOW + 4) == NOW + 5
    assert stopped(world.decide(NOW + 5)) == ["a"]
    entry.ready_at = NOW + 8
    assert stopped(world.decide(NOW + 9)) == ["a"]


def test_a_model_that_served_nobody_yet_is_no_victim_of_the_patient() -> None:
    world = World()
    world.model("a", served=False)
    ticket = world.waiter(demand("a"), since=NOW)
    world.waiter(demand("b"), since=NOW - 100)
    assert world.decide() == [Grant(ticket, "a")]


def test_a_line_waits_for_its_turn_since_its_engine_went() -> None:
    world = World()
    world.model("b")
    old = world.waiter(demand("a"), since=NOW - 500)
    world.state.lines[world.state.waiting[old].demand.wish].turn_ended(NOW - 5)
    mine = world.waiter(demand("b"))
    assert world.decide() == [Grant(mine, "b")]
    world.state.leave(mine)
    world.waiter(demand("b"), since=NOW)
    assert stopped(world.decide(NOW + 5)) == ["b"]


# ---- rule 5


def test_a_model_that_was_asked_to_go_takes_no_newcomers_and_goes_when_it_is_idle() -> None:
    world = World()
    entry = world.model("a", leases=1)
    entry.gone_by = NOW + 5
    world.waiter(demand("a"))
    assert world.decide() == []
    assert next_moment(world.state, NOW) == NOW + 5
    entry.leases = 0
    assert world.decide() == [Stop("a", "it was asked to go")]


def test_a_model_that_was_asked_to_go_is_waited_for_only_so_long() -> None:
    world = World()
    world.model("a", leases=1).gone_by = NOW + 5
    assert world.decide(NOW + 4.9) == []
    assert world.decide(NOW + 5) == [Stop("a", "it was asked to go")]


def test_an_engine_that_has_served_for_long_is_ended_when_it_is_idle() -> None:
    world = World()
    world.state.limits = replace(world.state.limits, recycle=3600.0)
    entry = world.model("a", leases=1)
    entry.ready_at = NOW - 3600
    assert world.decide() == []
    entry.leases, entry.expires_at = 0, math.inf
    assert world.decide(NOW - 1) == []
    assert next_moment(world.state, NOW - 1) == NOW
    assert world.decide() == [Stop("a", "it has served for long")]


def windowed(name: str, *plans: tuple[int, int]) -> Demand:
    """A model that can be loaded with several windows: tokens, and bytes of RAM."""
    ways = tuple(Plan(window, 1, 0, {ENGINES: 1, "RAM": size}) for window, size in plans)
    return Demand(Weights(name, Path(name), name), None, LoadOptions(), ways)


def test_an_idle_model_goes_rather_than_that_a_request_gets_a_smaller_window() -> None:
    world = memory(1000, a=600)
    world.waiter(windowed("b", (4096, 500), (2048, 300)))
    assert stopped(world.decide()) == ["a"]


def test_a_window_that_there_can_never_be_room_for_is_not_waited_for() -> None:
    world = memory(1000, a=600)
    wanted = windowed("b", (8192, 2000), (4096, 300), (2048, 200))
    world.waiter(wanted)
    assert world.decide() == [Start(wanted, wanted.plans[1])]
