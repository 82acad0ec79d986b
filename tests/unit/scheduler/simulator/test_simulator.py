"""The decision in thousands of random lives of a daemon, with a fake clock.

MGR_SIMULATOR_SCHEDULES is how many schedules are run, 10,000 without it. A failure names the seed, and tells a short
schedule that breaks the same rule step by step.
"""

import math
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.unit.scheduler.simulator import invariants
from tests.unit.scheduler.simulator.schedules import MODELS, make
from tests.unit.scheduler.simulator.script import Ask, Close, Engine, Kill, Schedule, Unload
from tests.unit.scheduler.simulator.simulate import check, simulate
from tests.unit.scheduler.simulator.world import World

SCHEDULES = int(os.environ.get("MGR_SIMULATOR_SCHEDULES", "10000"))
CHUNK = 1000


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_no_schedule_breaks_a_rule(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SCHEDULES)):
        assert check(seed).events >= 50


def test_a_seed_is_the_same_schedule_each_time() -> None:
    assert make(7) == make(7) != make(8)
    assert [request.end for request in simulate(make(7)).requests.values()] == [
        request.end for request in simulate(make(7)).requests.values()
    ]


def test_the_schedules_meet_every_corner() -> None:
    """Without these the rules would hold for want of anything that could break them."""
    log: list[str] = []
    ends: Counter[str] = Counter()
    for seed in range(300):
        world = simulate(make(seed), log=log)
        ends.update(request.end.partition(":")[0] for request in world.requests.values() if request.end)
    assert ends["answered"] > sum(ends.values()) / 4
    assert ends.keys() == {"answered", "refused", "cancelled", "cut"}
    text = "\n".join(log)
    corners = (
        "its place is needed",
        "another window or other options",
        "its keep-alive has run out",
        "nobody waits for it any more",
        "requests wait for a model to be loaded already",
        "requests wait for it already",
        "the request waited",
        "shutting down",
        "are there for models",
        "is not started for another",
        "fails to load",
        "dies",
        "cannot be ended",
        "cut",
    )
    assert [corner for corner in corners if text.count(corner) < 20] == []


# ---- the same world, led by hypothesis

_models = st.sampled_from(MODELS[:3])
_seconds = st.sampled_from((0.0, 0.1, 1.0, 3.0, 10.0))


class Life(RuleBasedStateMachine):
    """One world, to which things happen in any order."""

    world: World

    @initialize(
        engines=st.lists(
            st.builds(
                Engine, load=_seconds, fails=st.booleans(), dies_after=st.none() | _seconds, stop=_seconds
            ),
            min_size=1,
            max_size=4,
        ),
        loaded=st.integers(1, 2),
        slots=st.integers(1, 2),
        queue=st.sampled_from((0, 1, 100)),
        patience=_seconds,
        keep_alive=st.sampled_from((0.0, 3.0, math.inf)),
    )
    def begin(
        self, engines: list[Engine], loaded: int, slots: int, queue: int, patience: float, keep_alive: float
    ) -> None:
        self.world = World(
            Schedule(
                (),
                tuple(engines),
                loaded=loaded,
                slots=slots,
                queue=queue,
                patience=patience,
                keep_alive=keep_alive,
                wait_timeout=30.0,
            )
        )

    @rule(
        model=_models,
        window=st.sampled_from((None, 1024, 8192)),
        threads=st.sampled_from((None, 2)),
        keep_alive=st.sampled_from((None, 0.0, 3.0)),
        service=_seconds,
        cancel_after=st.none() | _seconds,
    )
    def ask(
        self,
        model: str,
        window: int | None,
        threads: int | None,
        keep_alive: float | None,
        service: float,
        cancel_after: float | None,
    ) -> None:
        now = self.world.now
        self._happens(
            Ask(
                now,
                model,
                window,
                threads,
                keep_alive=keep_alive,
                service=service,
                cancel_after=cancel_after,
            )
        )

    @rule(model=_models)
    def kill(self, model: str) -> None:
        self._happens(Kill(self.world.now, model))

    @rule(model=_models)
    def unload(self, model: str) -> None:
        self._happens(Unload(self.world.now, model))

    @rule(drain=_seconds)
    def close(self, drain: float) -> None:
        self._happens(Close(self.world.now, drain))

    @rule(seconds=_seconds)
    def wait(self, seconds: float) -> None:
        self.world.run(until=self.world.now + seconds)

    def _happens(self, item: Ask | Kill | Unload | Close) -> None:
        self.world.add(item)
        self.world.run(until=self.world.now)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()
            invariants.drained(self.world)


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
