"""What is seen of the scheduler from outside: models, who waits for what, and whether all is well. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from daemon.runner.launch import Offload
from daemon.scheduler.breaker import Wait
from daemon.scheduler.fairness import expected_wait
from daemon.scheduler.state import Line, Phase, State, Weights

# Seconds. A decision takes far less than a millisecond; a busy engine tells its progress all the time.
_LATE = 5.0
_SILENT = 60.0
_STALE = 60.0  # beyond the longest wait


class Reason(StrEnum):
    """What a line waits for."""

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


@dataclass(frozen=True, slots=True)
class LoadedView:
    """One model. `expires_in` is in seconds, infinity for ever, None while busy; `window` in tokens. `stage` is how far
    the end of its engine has come; `silent` the seconds for which a busy engine has sent nothing."""

    weights: Weights
    phase: Phase
    window: int
    slots: int
    leases: int
    keep_alive: float
    expires_in: float | None
    pid: int | None
    engine: str
    stage: str | None
    silent: float | None
    offload: Offload | None = None

    @property
    def share(self) -> float:
        """How much of it lies on GPUs, by its layers, as far as it is known."""
        return 0.0 if self.offload is None else self.offload.layers / self.offload.of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`late` are the seconds by which a decision is overdue."""

    loaded: tuple[LoadedView, ...]
    lines: tuple[LineView, ...]
    late: float
    closing: bool

    @property
    def waiting(self) -> int:
        return sum(line.requests for line in self.lines)

    def troubles(self, wait_timeout: float) -> list[str]:
        """Why no more work should be sent here; empty when all is well. `wait_timeout` is the longest wait of a
        request, in seconds."""
        found = ["mgr is shutting down"] if self.closing else []
        if self.late > _LATE:
            found.append(f"the scheduler is {self.late:.0f} s late")
        found += [
            f"{line.requests} requests for {line.name} wait, the first for {line.longest:.0f} s"
            for line in self.lines
            if line.reason is not Reason.LOADING and line.longest > wait_timeout + _STALE
        ]
        found += [
            f"{model.weights.name} is busy and has sent nothing for {model.silent:.0f} s"
            for model in self.loaded
            if model.silent is not None and model.silent > _SILENT
        ]
        return found


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
