"""Who waits, for what and for how long: what `ps` shows of the lines. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from daemon.scheduler.breaker import Wait
from daemon.scheduler.fairness import expected_wait
from daemon.scheduler.state import Line, Phase, State


class Reason(StrEnum):
    LOADING = "loading"
    SLOT = "slot"  # all slots of the model are taken
    PLACE = "place"  # other models have the memory
    BACK_OFF = "back-off"  # its last starts failed


@dataclass(frozen=True, slots=True)
class LineView:
    """One line. `longest` are the seconds for which its first has waited; `expected` those until its last is served,
    None where nobody knows."""

    name: str
    reason: Reason
    requests: int
    longest: float
    expected: float | None


def lines(state: State, now: float) -> tuple[LineView, ...]:
    """The line first that has waited the longest."""
    found = [_view(state, line, now) for line in state.lines.values()]
    return tuple(sorted(found, key=lambda line: line.longest, reverse=True))


def _view(state: State, line: Line, now: float) -> LineView:
    reason, expected = _reason(state, line, now), None
    entry = state.loaded.get(line.key)
    if reason is Reason.SLOT and entry is not None and entry.service is not None:
        expected = expected_wait(len(line), entry.slots, entry.service)
    first = next(iter(line))
    return LineView(line.demand.weights.name, reason, len(line), now - first.since, expected)


def _reason(state: State, line: Line, now: float) -> Reason:
    entry = state.loaded.get(line.key)
    if entry is not None and entry.serves(line.wish):
        if entry.phase is Phase.READY:
            return Reason.SLOT
        if entry.phase is Phase.LOADING:
            return Reason.LOADING
    if isinstance(state.breakers.verdict(line.demand.start, now), Wait):
        return Reason.BACK_OFF
    return Reason.PLACE
