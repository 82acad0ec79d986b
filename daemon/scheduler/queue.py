"""Who runs, who waits, who is refused: the scheduler's state, and the one function that decides. Pure.

`decide` reads the state and the time and returns actions; the shell (`scheduler.py`) carries them out and reports
what came of it, which calls `decide` again. Nothing here awaits, reads a clock or touches the system, so a test
can run a year of schedules in a second.

The queue has the meaning of `asyncio.Queue(maxsize)`: what does not fit is refused at once. It is a list in the
state because a waiter that is cancelled must be able to leave from the middle of it, and because the decision looks
at all of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from daemon.chat import LoadOptions
from daemon.errors import Busy, MgrError
from daemon.scheduler import eviction


class Purpose(StrEnum):
    """What an engine is started for: it cannot do two of these at once."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class Weights:
    """What must be known of a model to run it. `model` stands for its files, so that two names of the same files
    share an engine; `trained_window` is in tokens, 0 when the file does not say. `template` is a chat template that
    is used instead of the file's own; `pooling` makes one vector of a model that was not made for embeddings."""

    model: str
    path: Path
    name: str
    trained_window: int = 0
    size: int = 0
    template: Path | None = None
    projector: Path | None = None
    adapters: tuple[Path, ...] = ()
    purpose: Purpose = Purpose.GENERATE
    pooling: str | None = None

    @property
    def key(self) -> str:
        return self.model if self.purpose is Purpose.GENERATE else f"{self.model}:{self.purpose}"

    def clamp(self, window: int) -> int:
        """A window that the model was trained for."""
        return min(window, self.trained_window) if self.trained_window > 0 else window


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs: which weights, and what they must be loaded with. `window` None: any."""

    weights: Weights
    window: int | None = None
    options: LoadOptions = field(default_factory=LoadOptions)

    @property
    def key(self) -> str:
        return self.weights.key


_OPTIONS = tuple(option.name for option in fields(LoadOptions))


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


@dataclass(slots=True)
class Loaded:
    """One model that has an engine, or is about to. `window` is tokens per request; times are monotonic seconds."""

    key: str
    phase: Phase
    window: int
    options: LoadOptions
    slots: int
    last_used: float
    leases: int = 0
    keep_alive: float = 0.0
    expires_at: float | None = None  # set while idle
    error: MgrError | None = None  # set when failed

    def serves(self, demand: Demand) -> bool:
        """A smaller window is served by a larger one; of the load-time options only those given must agree."""
        if demand.window is not None and demand.window > self.window:
            return False
        return demand.options == self.options or all(
            getattr(demand.options, name) in (None, getattr(self.options, name)) for name in _OPTIONS
        )


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request without an engine yet. `admitted`: it was accepted, so a full queue no longer concerns it;
    `keep_alive` in seconds, None without a wish."""

    ticket: int
    demand: Demand
    since: float
    deadline: float
    admitted: bool = False
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """`patience`: seconds after which a waiter closes a busy model to newcomers, so that it becomes idle."""

    loaded: int
    queue: int
    waiting: int
    patience: float = 10.0


@dataclass(slots=True)
class State:
    limits: Limits
    loaded: dict[str, Loaded] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)  # in the order of arrival
    closing: bool = False


# ---- what is to be done


@dataclass(frozen=True, slots=True)
class Start:
    demand: Demand


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
    """All that is to be done now. For each waiter, in the order of arrival, the first rule that fits:

    1. its load failed, or mgr is closing: Reject
    2. its model runs, is compatible and has a free slot: Grant
    3. a compatible load of its model runs: it waits with the others, however long that takes
       (from here on a waiter whose time is up gets Reject; one whose model runs waits for a slot)
    4. its model runs or loads with other options: Stop it once it is idle, and wait
    5. there is room: Start
    6. an engine is stopping: its room is this waiter's; or an idle model can go: Stop it, the place is kept
    7. only a busy model could go: wait; after `patience` that model takes no newcomers
    8. the line it would have to wait in is full: Reject

    Then, for each model: a failed one is forgotten, a load that nobody wants is stopped, and so is an idle model
    whose keep-alive ran out. Only idle models are stopped. One that has a waiter of its own is stopped only for
    an older waiter that has been patient.
    """
    return list(_Decision(state, now).actions())


class _Decision:
    """Scratch for one call: the state as it will be once the actions so far are carried out."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        self._room = state.limits.loaded - len(state.loaded)
        self._leases = {key: entry.leases for key, entry in state.loaded.items()}
        self._starting: dict[str, Demand] = {}
        # Engines that are stopping and whose room is not yet promised to a waiter; all that stop or will.
        self._leaving = [key for key, entry in state.loaded.items() if entry.phase is Phase.STOPPING]
        self._stopped = set(self._leaving)
        self._closed: set[str] = set()  # busy ones that take no newcomers
        # Models that somebody waits for and that can serve them: never victims.
        self._wanted = {
            waiter.demand.key
            for waiter in state.waiting.values()
            if (entry := state.loaded.get(waiter.demand.key)) is not None and entry.serves(waiter.demand)
        }
        self._queued = 0
        self._slot_waiters: dict[str, int] = {}
        self._load_has_first: set[str] = set()

    def actions(self) -> Iterator[Action]:
        for waiter in self._state.waiting.values():
            yield from self._serve(waiter)
        for key, entry in self._state.loaded.items():
            yield from self._tidy(key, entry)

    def _serve(self, waiter: Waiter) -> Iterator[Action]:
        entry = self._state.loaded.get(waiter.demand.key)
        runs = entry is not None and entry.phase is Phase.READY and entry.serves(waiter.demand)
        error = self._refusal(waiter, entry)
        if error is not None:
            yield Reject(waiter.ticket, error)
        elif entry is not None and runs and self._has_slot(entry):
            self._leases[entry.key] += 1
            yield Grant(waiter.ticket, entry.key)
        elif self._load_serves(waiter.demand, entry):
            yield from self._share_load(waiter)
        elif self._now >= waiter.deadline:
            waited = round(self._now - waiter.since)
            yield Reject(
                waiter.ticket, Busy(f"the server is busy: the request waited {waited} s for its model")
            )
        elif entry is not None and runs:
            yield from self._wait_for_slot(waiter, entry.key)
        elif entry is not None:
            yield from self._replace(waiter, entry)
        else:
            yield from self._load(waiter)

    def _refusal(self, waiter: Waiter, entry: Loaded | None) -> MgrError | None:
        """Rule 1."""
        if self._state.closing:
            return Busy("mgr is shutting down", retry_after=5)
        if entry is not None and entry.phase is Phase.FAILED and entry.serves(waiter.demand):
            return entry.error
        return None

    def _has_slot(self, entry: Loaded) -> bool:
        """Rule 2."""
        return entry.key not in self._closed | self._stopped and self._leases[entry.key] < entry.slots

    def _wait_for_slot(self, waiter: Waiter, key: str) -> Iterator[Action]:
        waiting = self._slot_waiters.get(key, 0)
        if not waiter.admitted and waiting >= self._state.limits.waiting:
            yield Reject(waiter.ticket, Busy(f"the model is busy and {waiting} requests wait for it already"))
        else:
            self._slot_waiters[key] = waiting + 1

    def _load_serves(self, demand: Demand, entry: Loaded | None) -> bool:
        if demand.key in self._starting:
            return self._starting[demand.key] == demand
        return entry is not None and entry.phase is Phase.LOADING and entry.serves(demand)

    def _share_load(self, waiter: Waiter) -> Iterator[Action]:
        """Rule 3. The request whose load runs is not in the queue; those that share the load are."""
        key = waiter.demand.key
        if key in self._load_has_first:
            yield from self._enqueue(waiter)
        self._load_has_first.add(key)

    def _replace(self, waiter: Waiter, entry: Loaded) -> Iterator[Action]:
        """Rule 4."""
        if entry.phase is Phase.STOPPING and entry.key in self._leaving:
            self._leaving.remove(entry.key)
        elif self._can_go(entry, waiter):
            self._stopped.add(entry.key)
            yield Stop(entry.key, "another window or other options are asked for")
        elif self._is_overdue(waiter):
            self._closed.add(entry.key)
        yield from self._enqueue(waiter)

    def _load(self, waiter: Waiter) -> Iterator[Action]:
        """Rules 5 to 7."""
        if waiter.demand.key in self._starting:
            yield from self._enqueue(waiter)
            return
        if self._room > 0:
            self._room -= 1
            self._starting[waiter.demand.key] = waiter.demand
            self._load_has_first.add(waiter.demand.key)
            yield Start(waiter.demand)
            return
        if self._leaving:
            self._leaving.pop(0)
        elif (victim := self._victim(waiter)) is not None:
            self._stopped.add(victim.key)
            yield Stop(victim.key, "its place is needed")
        elif self._is_overdue(waiter):
            self._close_one()
        yield from self._enqueue(waiter)

    def _victim(self, waiter: Waiter) -> Loaded | None:
        return eviction.victim(e for e in self._state.loaded.values() if self._can_go(e, waiter))

    def _close_one(self) -> None:
        ready = (e for e in self._state.loaded.values() if e.phase is Phase.READY)
        busiest = eviction.victim(e for e in ready if e.key not in self._closed | self._stopped)
        if busiest is not None:
            self._closed.add(busiest.key)

    def _enqueue(self, waiter: Waiter) -> Iterator[Action]:
        """Rule 8."""
        if not waiter.admitted and self._queued >= self._state.limits.queue:
            yield Reject(
                waiter.ticket, Busy(f"the server is busy: {self._queued} requests wait for a model already")
            )
        else:
            self._queued += 1

    def _tidy(self, key: str, entry: Loaded) -> Iterator[Action]:
        if entry.phase is Phase.FAILED:
            yield Forget(key)
        elif entry.phase is Phase.LOADING and key not in self._wanted:
            yield Stop(key, "nobody waits for it any more")
        elif entry.expires_at is not None and entry.expires_at <= self._now and self._is_idle(entry):
            yield Stop(key, "its keep-alive has run out")

    def _can_go(self, entry: Loaded, waiter: Waiter) -> bool:
        """An idle model can; for a waiter that was patient enough, also one that only later ones wait for."""
        return self._is_unused(entry) and (entry.key not in self._wanted or self._is_overdue(waiter))

    def _is_idle(self, entry: Loaded) -> bool:
        return self._is_unused(entry) and entry.key not in self._wanted

    def _is_unused(self, entry: Loaded) -> bool:
        return entry.phase is Phase.READY and self._leases[entry.key] == 0 and entry.key not in self._stopped

    def _is_overdue(self, waiter: Waiter) -> bool:
        return self._now - waiter.since >= self._state.limits.patience


def next_moment(state: State, now: float) -> float | None:
    """When `decide` must look again although nothing happens: the next deadline, patience or keep-alive."""
    moments = [waiter.deadline for waiter in state.waiting.values()]
    moments += [waiter.since + state.limits.patience for waiter in state.waiting.values()]
    moments += [entry.expires_at for entry in state.loaded.values() if entry.expires_at is not None]
    return min((moment for moment in moments if moment > now), default=None)
