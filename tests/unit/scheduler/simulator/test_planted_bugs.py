"""Would the simulator notice? Bugs of the kinds that such schedulers had, planted in the decision or in the shell."""

from itertools import islice

import pytest

from daemon.scheduler.queue import Action, Start, Stop
from daemon.scheduler.state import Phase, State
from tests.unit.scheduler.simulator.schedules import make
from tests.unit.scheduler.simulator.simulate import shrink, tell, violation
from tests.unit.scheduler.simulator.world import Child, Request, World

WITHIN = 100  # schedules


class VictimInUse(World):
    """Somebody waits, and so a busy model goes."""

    def decide(self, state: State, now: float) -> list[Action]:
        actions = super().decide(state, now)
        if actions or not state.waiting:
            return actions
        busy = (entry for entry in state.loaded.values() if entry.phase is Phase.READY and entry.leases)
        return [*islice((Stop(entry.key, "its place is needed") for entry in busy), 1)]


class LoadingVictim(World):
    """Somebody waits for another model, and so one that just loads goes."""

    def decide(self, state: State, now: float) -> list[Action]:
        actions = super().decide(state, now)
        wanted = {waiter.demand.key for waiter in state.waiting.values()}
        if actions or not wanted - state.loaded.keys():
            return actions
        loading = (entry for entry in state.loaded.values() if entry.phase is Phase.LOADING)
        return [*islice((Stop(entry.key, "its place is needed") for entry in loading), 1)]


class LostOnCancel(World):
    """One leaves the middle of the list, and the one behind it is lost."""

    def _leave(self, request: Request) -> None:
        behind = [ticket for ticket in self.state.waiting if ticket > request.ticket]
        super()._leave(request)
        if behind:
            self.state.leave(behind[0])


class StaysOnCancel(World):
    """A client that left is still waited for."""

    def _leave(self, request: Request) -> None:
        return


class SilentCancel(World):
    """One leaves, and nobody looks what that changes."""

    def _leave(self, request: Request) -> None:
        self.state.leave(request.ticket)


class LeaseLostOnCancel(World):
    """A client leaves in the middle of its stream, and its place is not given back."""

    def _cancel(self, request: Request) -> None:
        if request.entry is None:
            super()._cancel(request)
        elif request.end is None:
            self._end(request, "cancelled")


class DoubleStart(World):
    """Each of those that share a load starts it."""

    def decide(self, state: State, now: float) -> list[Action]:
        actions = super().decide(state, now)
        return [same for action in actions for same in [action] * (1 + isinstance(action, Start))]


class StartBesideTheOld(World):
    """Another window is asked for, and its engine starts before the old one has gone."""

    def decide(self, state: State, now: float) -> list[Action]:
        actions = super().decide(state, now)
        for waiter in state.waiting.values():
            entry = state.loaded.get(waiter.demand.key)
            if not actions and entry is not None and entry.phase is Phase.STOPPING:
                return [Start(waiter.demand, waiter.demand.plans[-1])]
        return actions


class KeepAliveFromTheStart(World):
    """The time counts from the start of a request, and a long answer is cut."""

    def decide(self, state: State, now: float) -> list[Action]:
        actions = super().decide(state, now)
        if actions:
            return actions
        ready = (entry for entry in state.loaded.values() if entry.phase is Phase.READY)
        return [Stop(e.key, "its keep-alive has run out") for e in ready if now >= e.last_used + e.keep_alive]


class KeepAliveRunsOn(World):
    """A grant does not stop the clock."""

    def _grant(self, request: Request, key: str) -> None:
        before = self.state.loaded[key].expires_at
        super()._grant(request, key)
        self.state.loaded[key].expires_at = before


class ForgottenFailure(World):
    """A load fails, and those that wait are not looked at."""

    def _fail(self, child: Child) -> None:
        decide, self._decide = self._decide, _nothing  # type: ignore[method-assign]
        super()._fail(child)
        self._decide = decide  # type: ignore[method-assign]


class FailureOfOne(World):
    """A load fails, and only those that waited for it are looked at: the place stays empty."""

    def _decide(self, newcomer: Request | None = None) -> None:
        failed = any(entry.phase is Phase.FAILED for entry in self.state.loaded.values())
        if not failed:
            super()._decide(newcomer)
            return
        for action in self.decide(self.state, self.now):
            if not isinstance(action, Start):
                self._perform(action)


class SilentGoodbye(World):
    """An engine dies, and those that wait are not looked at."""

    def _die(self, child: Child) -> None:
        decide, self._decide = self._decide, _nothing  # type: ignore[method-assign]
        super()._die(child)
        self._decide = decide  # type: ignore[method-assign]


class Overbooked(World):
    """A free slot is given away twice."""

    def _grant(self, request: Request, key: str) -> None:
        super()._grant(request, key)
        self.state.loaded[key].leases -= request.ticket % 2


class NoTimer(World):
    """Nothing happens by itself."""

    def next_moment(self, state: State, now: float) -> float | None:
        return None


def _nothing(newcomer: Request | None = None) -> None:
    return


@pytest.mark.parametrize(
    ("bug", "rules"),
    [
        (VictimInUse, {"no victim in use"}),
        (LoadingVictim, {"no load in vain"}),
        (LostOnCancel, {"nobody is lost"}),
        (StaysOnCancel, {"nobody stays"}),
        (SilentCancel, {"timer", "deadline"}),
        (LeaseLostOnCancel, {"leases"}),
        (DoubleStart, {"one child per model"}),
        (StartBesideTheOld, {"one child per model"}),
        (KeepAliveFromTheStart, {"no victim in use", "keep-alive"}),
        (KeepAliveRunsOn, {"keep-alive"}),
        (ForgottenFailure, {"timer", "deadline", "all end"}),
        (FailureOfOne, {"timer", "deadline", "all end"}),
        (SilentGoodbye, {"timer", "deadline", "all end"}),
        (Overbooked, {"leases", "slots"}),
        (NoTimer, {"timer", "deadline", "all end"}),
    ],
)
def test_a_planted_bug_is_caught(bug: type[World], rules: set[str]) -> None:
    found = next((seed, broken) for seed in range(WITHIN) if (broken := violation(make(seed), bug)))
    seed, broken = found
    assert broken.rule in rules, tell(make(seed), bug)


def test_what_is_told_of_a_bug_is_short() -> None:
    seed = next(seed for seed in range(WITHIN) if violation(make(seed), VictimInUse))
    small = shrink(make(seed), "no victim in use", VictimInUse)
    assert 1 <= len(small.inputs) <= 3
    assert tell(small, VictimInUse).splitlines()[-1].startswith("broken: no victim in use: stop ")
