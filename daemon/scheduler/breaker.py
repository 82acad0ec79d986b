"""The crash-loop breaker: when may an engine be started again that failed to start, or died soon after? Pure.

After a failure the next start waits half a second, then twice as long each time (the wait holds requests, which cost
nothing). Five failures within five minutes open the breaker: for ten minutes requests are refused at once, with the
reason. Then one start is tried: if that fails, too, the ten minutes begin again; once an engine has been ready for a
minute, all is forgotten. A failure that would repeat itself (`LoadFailed.permanent`) opens the breaker at once.

What is judged is one start: a model together with all that it is started with. So a client that asks for what can
never work (a window that does not fit) is refused, and others go on using the model; and another engine, or other
files, are another start, which nothing is held against.

Times are monotonic seconds. The rule is that of Kubernetes' CrashLoopBackOff and systemd's StartLimitBurst; the
waits are shorter, as somebody is waiting.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from daemon.errors import Busy, LoadFailed, MgrError

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
JITTER = 0.2  # each way, as a share of the wait
MAX_FAILURES = 5  # within WINDOW
WINDOW = 300.0
OPEN_SECONDS = 600.0
PROVEN_SECONDS = 60.0  # of being ready

KEPT_FAILURES = 16
MAX_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Go:
    """It may be started now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may be started at `until`, or once a try that is running has ended; requests wait for that."""

    until: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is not started before `until`, and requests for it end with `error`."""

    error: MgrError
    until: float


Verdict: TypeAlias = Go | Wait | Refuse


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"  # one start is tried, or was, and has not proven itself


@dataclass(frozen=True, slots=True)
class Record:
    """What is held against one start. `failures` are the moments of the last ones in a row, at most KEPT_FAILURES;
    `error` is the last; no start before `until`; `ready_since` is set while its engine is ready."""

    circuit: Circuit = Circuit.CLOSED
    failures: tuple[float, ...] = ()
    error: MgrError | None = None
    until: float = -math.inf
    ready_since: float | None = None

    def verdict(self, now: float) -> Verdict:
        if now >= self.until:
            return Go()
        if self.circuit is Circuit.OPEN and self.error is not None:
            return Refuse(_refusal(self.error, len(self.failures), self.until - now), self.until)
        return Wait(self.until)

    def started(self, now: float) -> "Record":
        """A start begins. After a time of refusal only this one: should its end never be told, another one may be
        tried as late as if it had failed."""
        if self.circuit is Circuit.CLOSED:
            return self
        return replace(self, circuit=Circuit.HALF_OPEN, until=now + OPEN_SECONDS)

    def ready(self, now: float) -> "Record":
        return replace(self, until=-math.inf, ready_since=now)

    def failed(self, now: float, error: MgrError, chance: float) -> "Record":
        """The start failed. `chance` in [0, 1) spreads the starts of several models that failed together."""
        failures = (*self.failures, now)[-KEPT_FAILURES:]
        if (
            self.circuit is Circuit.HALF_OPEN
            or _is_permanent(error)
            or _recent(failures, now) >= MAX_FAILURES
        ):
            return Record(Circuit.OPEN, failures, error, now + OPEN_SECONDS)
        return Record(Circuit.CLOSED, failures, error, now + _wait(len(failures), chance))

    def died(self, now: float, error: MgrError, chance: float) -> "Record":
        """The engine ended by itself. Not a failure of the start, once that has proven itself."""
        return Record() if self._has_proven_itself(now) else self.failed(now, error, chance)

    def stopped(self, now: float) -> "Record":
        """The engine was ended on purpose, while it loaded or later. A try that came to nothing is given back."""
        if self._has_proven_itself(now):
            return Record()
        until = now if self.circuit is Circuit.HALF_OPEN else self.until
        return replace(self, until=until, ready_since=None)

    def pardoned(self, now: float, moments: Collection[float]) -> "Record":
        """Failures at these moments turned out to be something else's fault."""
        failures = tuple(at for at in self.failures if at not in moments)
        if failures == self.failures:
            return self
        if not failures:
            return Record(ready_since=self.ready_since)
        left = replace(self, failures=failures)
        if self.error is not None and _is_permanent(self.error):
            return left
        return replace(left, circuit=Circuit.CLOSED, until=min(self.until, now))

    def is_over(self, now: float) -> bool:
        """Nothing runs, and the last failure is too long ago to say anything about the next start."""
        return self.ready_since is None and now >= max(self.until, *self.failures, -math.inf) + OPEN_SECONDS

    def _has_proven_itself(self, now: float) -> bool:
        return self.ready_since is not None and now - self.ready_since >= PROVEN_SECONDS


def _is_permanent(error: MgrError) -> bool:
    return isinstance(error, LoadFailed) and error.permanent


def _recent(failures: Collection[float], now: float) -> int:
    return sum(at > now - WINDOW for at in failures)


def _wait(failures: int, chance: float) -> float:
    wait = min(FIRST_WAIT * 2.0 ** (failures - 1), LONGEST_WAIT)
    return wait * (1 + JITTER * (2 * chance - 1))


def _refusal(error: MgrError, failures: int, left: float) -> MgrError:
    """Busy, with the time to come back, unless the same start would only fail again."""
    seconds = max(math.ceil(left), 1)
    told = f"the model is not started for another {seconds} s, as "
    if _is_permanent(error):
        return LoadFailed(f"{told}it would fail again: {error.message}", permanent=True)
    times = "start" if failures == 1 else f"{failures} starts"
    return Busy(f"{told}its last {times} failed: {error.message}", seconds, "back_off")


# ---- many starts


@dataclass(frozen=True, slots=True)
class Key:
    """A model (`Weights.key`), and what tells its starts apart: the engine, the window, the options, the files."""

    model: str
    start: Hashable = None


class Breakers:
    """The records of all starts. One that nothing is held against has none; the number is bounded."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` gives random numbers in [0, 1)."""
        self._chance = chance
        self._records: dict[Key, Record] = {}  # the one that changed last comes last

    def __len__(self) -> int:
        return len(self._records)

    def verdict(self, key: Key, now: float) -> Verdict:
        return self._of(key).verdict(now)

    def started(self, key: Key, now: float) -> None:
        self._put(key, self._of(key).started(now), now)

    def ready(self, key: Key, now: float) -> None:
        self._put(key, self._of(key).ready(now), now)

    def failed(self, key: Key, now: float, error: MgrError) -> None:
        self._put(key, self._of(key).failed(now, error, self._chance()), now)

    def died(self, key: Key, now: float, error: MgrError) -> None:
        self._put(key, self._of(key).died(now, error, self._chance()), now)

    def stopped(self, key: Key, now: float) -> None:
        self._put(key, self._of(key).stopped(now), now)

    def pardon(self, model: str, now: float, moments: Collection[float]) -> None:
        """Failures of any start of the model at these moments were something else's fault."""
        for key in [key for key in self._records if key.model == model]:
            self._put(key, self._of(key).pardoned(now, moments), now)

    def reset(self, model: str | None = None) -> None:
        """By hand, or because something changed: nothing is held against the model, or against any."""
        for key in [key for key in self._records if model in (None, key.model)]:
            del self._records[key]

    def troubled(self, model: str) -> Iterator[Record]:
        """The records of the model's starts that failed, for whoever looks at it."""
        return (record for key, record in self._records.items() if key.model == model and record.failures)

    def _of(self, key: Key) -> Record:
        return self._records.get(key, _CLEAN)

    def _put(self, key: Key, record: Record, now: float) -> None:
        self._records.pop(key, None)
        self._records = {k: r for k, r in self._records.items() if not r.is_over(now)}
        if record != _CLEAN:
            self._records[key] = record
        if len(self._records) > MAX_RECORDS:
            idle = (k for k, r in self._records.items() if r.ready_since is None)
            del self._records[next(idle, key)]


_CLEAN = Record()
