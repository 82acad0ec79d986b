"""Schedules with a known right course, on the fake clock."""

import math

import pytest

from daemon.scheduler.queue import Action, Grant, Start, Stop
from tests.unit.scheduler.simulator import invariants
from tests.unit.scheduler.simulator.script import Ask, Engine, Schedule
from tests.unit.scheduler.simulator.world import World


class Recorder(World):
    """Keeps what was done, and when."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.done: list[tuple[float, Action]] = []
        self.run()
        invariants.drained(self)

    def _perform(self, action: Action) -> None:
        self.done.append((self.now, action))
        super()._perform(action)

    def started(self) -> list[str]:
        return [action.demand.key for _, action in self.done if isinstance(action, Start)]

    def grants(self) -> list[tuple[float, int, str]]:
        return [(now, action.ticket, action.key) for now, action in self.done if isinstance(action, Grant)]


def alternating(count: int, service: float) -> tuple[Ask, ...]:
    return tuple(Ask(0.0, "ab"[number % 2], service=service) for number in range(count))


def test_a_batch_of_two_models_in_turn_needs_one_load_each() -> None:
    world = Recorder(Schedule(alternating(40, 1.0), patience=100.0))
    assert world.started() == ["a", "b"]
    assert all(request.end == "answered" for request in world.requests.values())


def test_with_a_short_cap_no_model_waits_longer_for_its_turn() -> None:
    patience, service, engine = 3.0, 1.0, Engine(load=2.0, stop=0.5)
    world = Recorder(Schedule(alternating(40, service), (engine,), patience=patience, slots=1))
    assert all(request.end == "answered" for request in world.requests.values())
    assert len(world.started()) > 2
    # From when a model went (or was asked for) to its next grant: the other's load and the cap, which began with it,
    # then the answer that runs, the stop, the load.
    bound = max(patience, engine.load + service) + service + engine.stop + engine.load
    for model in "ab":
        turns = [(now, key) for now, _, key in world.grants() if key == model]
        gone = [
            now + engine.stop
            for now, action in world.done
            if isinstance(action, Stop) and action.key == model
        ]
        for since in [0.0, *gone]:
            following = min((now for now, _ in turns if now >= since), default=math.inf)
            assert following - since <= bound or following == math.inf


def test_one_window_after_another_is_one_start() -> None:
    windows = (1024, 512, None)
    asks = tuple(Ask(float(number), "a", windows[number % 3]) for number in range(20))
    world = Recorder(Schedule(asks))
    assert world.started() == ["a"]
    assert all(request.end == "answered" for request in world.requests.values())


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("loaded", [True, False])
def test_one_client_with_many_jobs_does_not_keep_another_waiting(loaded: bool, slots: int) -> None:
    start = 10.0 if loaded else 0.0
    first = (Ask(0.0, "a", service=0.0),) if loaded else ()
    jobs = tuple(Ask(start, "a", client="one", service=2.0) for _ in range(30))
    other = Ask(start + 0.1, "a", client="two", service=2.0)
    world = Recorder(Schedule((*first, *jobs, other), slots=slots))
    since = [ticket for now, ticket, _ in world.grants() if now >= other.at]
    assert since.index(len(world.requests)) <= 1


def test_a_model_that_streams_is_not_stopped_for_another() -> None:
    world = Recorder(Schedule((Ask(0.0, "a", service=60.0), Ask(1.0, "b")), patience=5.0))
    [(granted, _, _), (other, _, _)] = world.grants()
    assert granted == 2.0  # the load
    assert other == granted + 60.0 + 0.5 + 2.0  # its stream, its stop, the load


def test_a_failed_load_makes_room_at_once() -> None:
    world = Recorder(Schedule((Ask(0.0, "a"), Ask(0.0, "b")), (Engine(fails=True), Engine())))
    assert [(now, key) for now, _, key in world.grants()] == [(4.0, "b")]
