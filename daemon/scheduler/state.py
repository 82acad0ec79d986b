"""What the scheduler knows: models that have an engine, requests that wait, and how much room there is.

Values and their bookkeeping only. `queue.py` decides on them, and `scheduler.py` changes them.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from daemon.chat import LoadOptions, Request
from daemon.errors import MgrError
from daemon.runner.launch import Offload
from daemon.scheduler.breaker import Breakers, Key
from daemon.scheduler.fairness import BATCH_PATIENCE, Caller, Turns
from daemon.store.summary import Summary

# How much of each pool of this machine: bytes of a memory; in the pool ENGINES their number.
Amounts: TypeAlias = Mapping[str, int]
ENGINES = "engines"
RAM = "RAM"


class Purpose(StrEnum):
    """What an engine is started for: it cannot do two of these at once."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class Weights:
    """What must be known of a model to run it. `model` stands for its files, so that two names of the same files
    share an engine; `trained_window` is in tokens, 0 when the file does not say. `template` is a chat template that
    is used instead of the file's own; `pooling` makes one vector of a model that was not made for embeddings. The
    summaries of its file and of its projectors say what memory it needs; None where nothing is known."""

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
    summary: Summary | None = field(default=None, compare=False, repr=False)
    projectors: tuple[Summary, ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> str:
        return self.model if self.purpose is Purpose.GENERATE else f"{self.model}:{self.purpose}"

    def clamp(self, window: int) -> int:
        """A window that the model was trained for."""
        return min(window, self.trained_window) if self.trained_window > 0 else window


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to load a model: `window` in tokens for each of `slots` requests at once, MiB in which it may keep
    earlier conversations, and what that takes; and where it lies, None for where the engine likes."""

    window: int
    slots: int
    cache: int
    takes: Amounts
    offload: Offload | None = None

    @property
    def layers(self) -> int:
        """How many of them lie on GPUs, as far as it is known."""
        return 0 if self.offload is None else self.offload.layers


# Requests with the same wish are served by the same load.
Wish: TypeAlias = tuple[str, int | None, LoadOptions]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs: which weights, and what they must be loaded with. `window` None: any. `plans` are the
    ways to load it, the best first and the one that takes the least last."""

    weights: Weights
    window: int | None
    options: LoadOptions
    plans: tuple[Plan, ...]
    key: str = field(init=False, compare=False)
    wish: Wish = field(init=False, compare=False)
    start: Key = field(init=False, compare=False)  # what a failure of its start is held against

    def __post_init__(self) -> None:
        key = self.weights.key
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "wish", (key, self.window, self.options))
        object.__setattr__(self, "start", Key(key, (self.window, self.options)))


_OPTIONS = tuple(option.name for option in fields(LoadOptions))


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


@dataclass(slots=True)
class Loaded:
    """One model that has an engine, or is about to. Times are monotonic seconds."""

    key: str
    phase: Phase
    plan: Plan
    options: LoadOptions
    last_used: float
    leases: int = 0
    served: bool = False  # it was granted to somebody
    ready_at: float = 0.0
    load_seconds: float = 0.0
    service: float | None = None  # seconds that a request takes, lately
    keep_alive: float = 0.0
    expires_at: float | None = None  # set while idle
    gone_by: float | None = (
        None  # set when it was asked to go: takes no newcomers, and is not waited for beyond that
    )
    error: MgrError | None = None  # set when failed
    stuck: bool = False  # it could not be ended
    suspects: int = 0  # of the leases: never more than one, so that it is known who is to blame

    @property
    def window(self) -> int:
        return self.plan.window

    @property
    def slots(self) -> int:
        return self.plan.slots

    def settled_at(self, residence: float) -> float:
        """Until when it should stay: what took as long to load, or longer, is not given up before."""
        return self.ready_at + (residence if self.load_seconds >= residence else 0.0)

    def serves(self, wish: Wish) -> bool:
        """A smaller window is served by a larger one; of the load-time options only those given must agree."""
        _, window, options = wish
        if window is not None and window > self.window:
            return False
        return options == self.options or all(
            getattr(options, name) in (None, getattr(self.options, name)) for name in _OPTIONS
        )


NOBODY = Caller("")


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request without an engine yet. `keep_alive` in seconds, None without a wish. `suspect`: an engine crashed while
    it worked on this, and perhaps because of it (`poison.py`)."""

    ticket: int
    demand: Demand
    since: float
    deadline: float
    keep_alive: float | None = None
    caller: Caller = NOBODY
    request: Request | None = field(default=None, compare=False, repr=False)
    suspect: bool = False


class Line:
    """Those who wait with the same wish, in the order of arrival, and how long they have waited for their turn."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.wish = demand.wish
        self.waiters: dict[int, Waiter] = {}
        self._turn_ended = -math.inf
        self._interactive = 0
        self.read_ahead = False  # its file is on the way into memory

    @property
    def key(self) -> str:
        return self.wish[0]

    @property
    def since(self) -> float:
        """When the wait for a turn began: with the first of them, or when the engine that served them went."""
        return max(next(iter(self.waiters.values())).since, self._turn_ended)

    def turn_ended(self, now: float) -> None:
        self._turn_ended = now

    def add(self, waiter: Waiter) -> None:
        self.waiters[waiter.ticket] = waiter
        self.demand = waiter.demand  # its plans are the newest
        self._interactive += not waiter.caller.batch

    def remove(self, ticket: int) -> None:
        self._interactive -= not self.waiters.pop(ticket).caller.batch

    def overdue_at(self, patience: float) -> float:
        """When it has been patient: later where nobody sits and waits for the answers."""
        return self.since + (patience if self._interactive else max(patience, BATCH_PATIENCE))

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self.waiters.values())

    def __len__(self) -> int:
        return len(self.waiters)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many may wait for loads in all, and for a slot of one loaded model. `patience`: seconds after which those
    who wait for a load close a busy model to newcomers, so that it becomes idle. `residence`: for so many seconds
    an idle model that took as long to load stays for others than the patient. `recycle`: seconds of service after which
    an engine is ended when it is idle."""

    queue: int
    waiting: int
    patience: float = 10.0
    residence: float = 5.0
    recycle: float = math.inf


@dataclass(slots=True)
class State:
    limits: Limits
    capacity: Amounts  # what models may take; a pool that is not in it has no bound
    breakers: Breakers = field(default_factory=lambda: Breakers(random.random))
    loaded: dict[str, Loaded] = field(default_factory=dict)
    lines: dict[Wish, Line] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)  # in the order of arrival
    arrivals: list[int] = field(default_factory=list)  # who joined since the last decision
    alone: set[str] = field(default_factory=set)  # models that ran out of memory beside others
    turns: dict[str, Turns] = field(default_factory=dict)  # of those who wait for a model, or have it
    closing: bool = False

    def taken(self) -> Amounts:
        """What all models that have an engine, or are about to, take by their plans."""
        taken: Counter[str] = Counter()
        for entry in self.loaded.values():
            if entry.phase is not Phase.FAILED:
                taken.update(entry.plan.takes)
        return taken

    def join(self, waiter: Waiter) -> None:
        wish = waiter.demand.wish
        if wish not in self.lines:
            self.lines[wish] = Line(waiter.demand)
        self.lines[wish].add(waiter)
        self.turns.setdefault(waiter.demand.key, Turns()).add(waiter.ticket, waiter.caller, waiter.since)
        self.waiting[waiter.ticket] = waiter
        self.arrivals.append(waiter.ticket)

    def leave(self, ticket: int) -> Waiter | None:
        """The waiter that had this ticket and goes unserved, None when it had left already."""
        waiter = self._take_out(ticket)
        if waiter is not None:
            self.turns[waiter.demand.key].remove(ticket)
            self._tidy_turns(waiter.demand.key)
        return waiter

    def grant(self, ticket: int) -> Waiter | None:
        """The waiter that had this ticket and is served from now on, None when it had left already."""
        waiter = self._take_out(ticket)
        if waiter is not None:
            self.turns[waiter.demand.key].grant(ticket)
            entry = self.loaded[waiter.demand.key]
            entry.leases += 1
            entry.suspects += waiter.suspect
        return waiter

    def release(self, entry: Loaded, waiter: Waiter) -> None:
        """It is no longer served. The entry may have gone."""
        entry.leases -= 1
        entry.suspects -= waiter.suspect
        self.turns[entry.key].release(waiter.caller.name)
        self._tidy_turns(entry.key)

    def _take_out(self, ticket: int) -> Waiter | None:
        waiter = self.waiting.pop(ticket, None)
        if waiter is not None:
            line = self.lines[waiter.demand.wish]
            line.remove(ticket)
            if not line:
                del self.lines[line.wish]
        return waiter

    def _tidy_turns(self, key: str) -> None:
        if not self.turns[key] and not self.turns[key].running:
            del self.turns[key]

    def remove(self, key: str, now: float) -> None:
        """The engine is gone, or never came."""
        entry = self.loaded.pop(key)
        for line in self.lines.values():
            if line.key == key and entry.serves(line.wish):
                line.turn_ended(now)
