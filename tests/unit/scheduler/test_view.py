"""What is seen of the scheduler: why requests wait, and what is told to whoever asks whether all is well."""

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.chat import LoadOptions
from daemon.errors import EngineFailed
from daemon.scheduler.state import ENGINES, Demand, Limits, Loaded, Phase, Plan, State, Waiter, Weights
from daemon.scheduler.view import LineView, LoadedView, Reason, Snapshot, lines

NOW = 1000.0
PLAN = Plan(4096, 2, 0, {ENGINES: 1})
WEIGHTS = Weights("a", Path("a"), "a:latest")


def waiting(phase: Phase | None, *, service: float | None = None, failed: bool = False) -> LineView:
    """Three requests for a model in this phase, None for one that is not there."""
    state = State(Limits(10, 10), {ENGINES: 1})
    demand = Demand(WEIGHTS, None, LoadOptions(), (PLAN,))
    if phase is not None:
        state.loaded["a"] = Loaded("a", phase, PLAN, LoadOptions(), NOW, 2, service=service)
    if failed:
        state.breakers.failed(demand.start, NOW, EngineFailed("x"))
    for ticket in range(3):
        state.join(Waiter(ticket, demand, NOW - 30 + ticket, NOW + 600))
    [line] = lines(state, NOW)
    return line


@pytest.mark.parametrize(
    ("phase", "failed", "reason"),
    [
        (Phase.READY, False, Reason.SLOT),
        (Phase.LOADING, False, Reason.LOADING),
        (Phase.STOPPING, False, Reason.PLACE),
        (None, False, Reason.PLACE),
        (None, True, Reason.BACK_OFF),
    ],
)
def test_why_requests_wait(phase: Phase | None, failed: bool, reason: Reason) -> None:
    line = waiting(phase, failed=failed)
    assert line == LineView("a:latest", reason, 3, 30.0, None)


def test_the_expected_wait_for_a_slot() -> None:
    # Three are before the last one's end, two at once, each for four seconds.
    assert waiting(Phase.READY, service=4.0).expected == 6.0
    assert waiting(Phase.LOADING, service=4.0).expected is None


MODEL = LoadedView(WEIGHTS, Phase.READY, 4096, 2, 1, 300.0, None, 1, "b1", None, None)
WELL = Snapshot((MODEL,), (LineView("b", Reason.SLOT, 2, 500.0, None),), 0.0, closing=False)


def test_all_is_well() -> None:
    assert WELL.troubles(600.0) == []
    assert replace(WELL, lines=(LineView("b", Reason.LOADING, 1, 9999.0, None),)).troubles(600.0) == []
    assert replace(WELL, late=1.0, loaded=(replace(MODEL, silent=59.0),)).troubles(600.0) == []


def test_troubles_are_named() -> None:
    line = LineView("b", Reason.PLACE, 2, 661.0, None)
    bad = Snapshot((replace(MODEL, silent=61.0),), (line,), 6.0, closing=True)
    assert bad.troubles(600.0) == [
        "mgr is shutting down",
        "the scheduler is 6 s late",
        "2 requests for b wait, the first for 661 s",
        "a:latest is busy and has sent nothing for 61 s",
    ]
