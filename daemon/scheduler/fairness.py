"""Whose turn is it? The order in which requests that wait for one model are served. Pure.

1. Interactive requests come before batch requests. One of a batch that has waited for `batch_patience` counts as
   interactive from then on, so it is not kept waiting for ever.
2. Clients come in the order of how much each has already: the one with the fewest running requests first.
3. Clients with equally many take turns: each gives up its turn when it is served and goes to the end, where
   newcomers start, too. So whoever waits is served after at most one request of each client before it.
4. Requests of one client come in the order of their arrival.

A client that has something running may be passed by others that have not, for as long as it runs; it is served then.

A `Turns` is the order, kept up to date: adding, granting, removing one and asking who is first cost microseconds with
thousands in it (lists are searched by halves; what is moved in them is memory of a few kilobytes).
"""

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

BATCH_PATIENCE = 60.0  # seconds

_NEWEST = 1 / 8  # the weight of the newest service time in the mean, as TCP's for round trips (RFC 6298)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name` is equal for requests of one client; `batch`: nobody sits and waits for the answer."""

    name: str
    batch: bool = False


class _Turn(NamedTuple):
    """A client's place among others. `served` is how many of its requests are thought to be served already."""

    running: int
    served: int
    number: int
    client: str


class _Lane:
    """Clients in the order of their turns, and each one's tickets in the order of arrival."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []  # sorted
        self.tickets: dict[str, list[int]] = {}  # sorted, none is empty
        self._turn_of: dict[str, _Turn] = {}

    def add(self, ticket: int, client: str, running: int, number: int) -> None:
        """`number` is the turn of a client that is not in line yet."""
        if client in self.tickets:
            insort(self.tickets[client], ticket)
        else:
            self.tickets[client] = [ticket]
            self._enter(_Turn(running, 0, number, client))

    def remove(self, ticket: int, client: str) -> None:
        tickets = self.tickets[client]
        del tickets[bisect_left(tickets, ticket)]
        if not tickets:
            del self.tickets[client]
            self._leave(client)

    def move(self, client: str, running: int, number: int | None = None) -> None:
        """The client has so many running now, and the turn `number`, or the one it had. One that is not in line is
        nobody's concern."""
        if client in self.tickets:
            before = self._leave(client)
            self._enter(_Turn(running, 0, before.number if number is None else number, client))

    def _enter(self, turn: _Turn) -> None:
        insort(self.turns, turn)
        self._turn_of[turn.client] = turn

    def _leave(self, client: str) -> _Turn:
        turn = self._turn_of.pop(client)
        del self.turns[bisect_left(self.turns, turn)]
        return turn

    def in_order(self, turns: list[_Turn], may: Callable[[int], bool]) -> Iterator[int]:
        """All tickets as they would be granted one after the other. `turns` is a heap of the lane's, and used up."""
        while turns:
            running, served, number, client = turns[0]
            tickets = self.tickets[client]
            is_next = may(tickets[served])
            if served + 1 < len(tickets):
                heapq.heapreplace(turns, _Turn(running + is_next, served + 1, number, client))
            else:
                heapq.heappop(turns)
            if is_next:
                yield tickets[served]


class _Waiting(NamedTuple):
    client: str
    since: float
    lane: _Lane


class Turns:
    """Who waits for one model, and how many of its requests each client has running. Tickets are numbers that grow
    with arrival; times are monotonic seconds."""

    def __init__(self, batch_patience: float = BATCH_PATIENCE) -> None:
        self._batch_patience = batch_patience
        self._interactive = _Lane()
        self._batch = _Lane()
        self._batch_since: list[tuple[float, int]] = []  # sorted
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[str, int] = {}
        self._turns = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._waiting

    def add(self, ticket: int, caller: Caller, since: float) -> None:
        lane = self._batch if caller.batch else self._interactive
        if caller.batch:
            insort(self._batch_since, (since, ticket))
        self._enter(ticket, _Waiting(caller.name, since, lane))

    def remove(self, ticket: int) -> None:
        """It left without having been served. Raises KeyError for one that does not wait."""
        self._leave(ticket)

    def grant(self, ticket: int) -> None:
        """It is served, first in line or not. `release` must follow. Raises KeyError for one that does not wait."""
        client, _, lane = self._waiting[ticket]
        self._leave(ticket)
        self._set_running(client, 1)
        lane.move(client, self._running[client], next(self._turns))

    def release(self, client: str) -> None:
        """A request of this client that was granted has ended."""
        self._set_running(client, -1)

    @property
    def running(self) -> Mapping[str, int]:
        """How many requests each client has running, of those that have any."""
        return self._running

    def first(self, now: float) -> int | None:
        return next(self.in_order(now), None)

    def position(self, ticket: int, now: float) -> int:
        """1 for the first. Raises KeyError for one that does not wait."""
        if ticket not in self._waiting:
            raise KeyError(ticket)
        return next(place for place, other in enumerate(self.in_order(now), 1) if other == ticket)

    def in_order(self, now: float, may: Callable[[int], bool] = lambda ticket: True) -> Iterator[int]:
        """The tickets as they would be granted if nobody came, left or ended. Each costs little, so stop at will;
        the line must not be changed until then."""
        self._promote(now)
        yield from self._interactive.in_order(self._interactive.turns.copy(), may)
        yield from self._batch.in_order(self._later(), may)

    def _later(self) -> list[_Turn]:
        """The turns of the batch lane, as a heap, once all that is interactive runs."""
        later = self._batch.turns.copy()
        if before := self._interactive.tickets:
            later = [t._replace(running=t.running + len(before.get(t.client, ()))) for t in later]
            heapq.heapify(later)
        return later

    def _promote(self, now: float) -> None:
        """Batch requests that have waited long enough change the lane."""
        while self._batch_since and now - self._batch_since[0][0] >= self._batch_patience:
            ticket = self._batch_since[0][1]
            waiting = self._leave(ticket)
            self._enter(ticket, waiting._replace(lane=self._interactive))

    def _enter(self, ticket: int, waiting: _Waiting) -> None:
        self._waiting[ticket] = waiting
        waiting.lane.add(ticket, waiting.client, self._running.get(waiting.client, 0), next(self._turns))

    def _leave(self, ticket: int) -> _Waiting:
        waiting = self._waiting.pop(ticket)
        waiting.lane.remove(ticket, waiting.client)
        if waiting.lane is self._batch:
            del self._batch_since[bisect_left(self._batch_since, (waiting.since, ticket))]
        return waiting

    def _set_running(self, client: str, change: int) -> None:
        running = self._running[client] = self._running.get(client, 0) + change
        if running == 0:
            del self._running[client]
        for lane in (self._interactive, self._batch):
            lane.move(client, running)


def expected_wait(position: int, slots: int, mean_seconds: float) -> float:
    """Seconds until the one at `position` (1 is the first) is served, while all `slots` are taken by requests that
    take `mean_seconds`: one of them ends every mean_seconds / slots."""
    return position * mean_seconds / max(slots, 1)


def smoothed(mean: float | None, seconds: float) -> float:
    """The mean service time after one more request, the latest ones counting most. None: there was none yet."""
    return seconds if mean is None else mean + _NEWEST * (seconds - mean)
