"""Whose turn it is: each law by itself, and all of them against a model that is too simple to be wrong."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.scheduler.fairness import BATCH_PATIENCE, Caller, Turns, expected_wait, smoothed


def line_of(*names: str, batch: bool = False) -> Turns:
    """One request of each name, in this order; the tickets are 0, 1, ..."""
    line = Turns()
    for ticket, name in enumerate(names):
        line.add(ticket, Caller(name, batch), 0.0)
    return line


def served(line: Turns, callers: dict[int, str], slots: int = 1, now: float = 0.0) -> list[int]:
    """The order in which all in line are granted while each of the slots is given back as late as possible."""
    order: list[int] = []
    busy: list[str] = []
    while (ticket := line.first(now)) is not None:
        if len(busy) == slots:
            line.release(busy.pop(0))
            continue
        line.grant(ticket)
        order.append(ticket)
        busy.append(callers[ticket])
    return order


def test_an_empty_line() -> None:
    line = Turns()
    assert line.first(0.0) is None
    assert len(line) == 0
    assert list(line.in_order(0.0)) == []


def test_one_client_is_served_in_the_order_of_arrival() -> None:
    assert list(line_of(*"aaaa").in_order(0.0)) == [0, 1, 2, 3]


def test_a_ticket_that_comes_late_has_the_place_of_its_arrival() -> None:
    line = Turns()
    for ticket in (5, 3, 9, 4):
        line.add(ticket, Caller("a"), 0.0)
    assert list(line.in_order(0.0)) == [3, 4, 5, 9]


def test_two_clients_with_many_requests_alternate() -> None:
    line = line_of(*"aaaabbbb")
    assert list(line.in_order(0.0)) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert served(line, dict(enumerate("aaaabbbb"))) == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("already", [0, 1, 13, 29])
def test_thirty_requests_of_one_client_keep_another_waiting_for_at_most_one(already: int, slots: int) -> None:
    line = line_of(*"a" * 30)
    running = 0
    for _ in range(already):
        if running == slots:
            line.release("a")
            running -= 1
        line.grant(line.first(0.0) or 0)
        running += 1
    line.add(30, Caller("b"), 0.0)
    assert line.position(30, 0.0) <= 2


def test_who_has_something_running_comes_later() -> None:
    line = line_of(*"abab")
    line.grant(0)
    assert list(line.in_order(0.0)) == [1, 2, 3]
    assert line.running == {"a": 1}
    line.release("a")
    assert line.running == {}
    assert line.first(0.0) == 1


def test_who_was_served_gives_up_the_turn() -> None:
    line = line_of(*"abcabc")
    for ticket, name in enumerate("abc"):
        assert line.first(0.0) == ticket
        line.grant(ticket)
        line.release(name)
    assert list(line.in_order(0.0)) == [3, 4, 5]


def test_interactive_comes_before_batch() -> None:
    line = line_of("a", "b", batch=True)
    line.add(2, Caller("a"), 1.0)
    line.add(3, Caller("c"), 1.0)
    assert list(line.in_order(1.0)) == [2, 3, 1, 0], (
        "a is served as interactive first, so its batch comes last"
    )


def test_a_batch_request_that_waited_long_takes_turns_with_the_interactive_ones() -> None:
    line = line_of("patient", "patient", batch=True)
    for ticket in range(2, 6):
        line.add(ticket, Caller("eager"), 1.0)
    assert line.position(0, BATCH_PATIENCE - 0.1) == 5
    assert list(line.in_order(BATCH_PATIENCE)) == [2, 0, 3, 1, 4, 5]
    assert len(line) == 6


def test_a_batch_request_that_waited_long_comes_before_later_ones_of_its_client() -> None:
    line = line_of("a", batch=True)
    line.add(1, Caller("a"), 1.0)
    assert list(line.in_order(1.0)) == [1, 0]
    assert list(line.in_order(BATCH_PATIENCE)) == [0, 1]


@pytest.mark.parametrize("batch", [False, True])
def test_who_leaves_is_gone_and_keeps_the_place_of_others(batch: bool) -> None:
    line = line_of(*"aabbc", batch=batch)
    line.remove(0)
    line.remove(4)
    assert [ticket in line for ticket in range(5)] == [False, True, True, True, False]
    assert list(line.in_order(0.0)) == [1, 2, 3]
    assert list(line.in_order(BATCH_PATIENCE)) == [1, 2, 3]


def test_a_grant_out_of_turn_counts_like_any_other() -> None:
    line = line_of(*"aabb")
    line.grant(3)
    assert list(line.in_order(0.0)) == [0, 2, 1]


def test_a_position_is_the_place_in_the_order() -> None:
    line = line_of(*"aab")
    assert [line.position(ticket, 0.0) for ticket in (0, 2, 1)] == [1, 2, 3]


def test_one_who_does_not_wait_has_no_place() -> None:
    line = line_of("a")
    line.grant(0)
    for ask in (line.remove, line.grant, lambda ticket: line.position(ticket, 0.0)):
        with pytest.raises(KeyError):
            ask(0)


def test_nobody_starves_behind_clients_that_are_always_new() -> None:
    """One comes for each that is served. Whoever waited before they came is served before them."""
    line = line_of("a", "b", "victim")
    callers = dict(enumerate(("a", "b", "victim")))
    order = []
    for ticket in range(3, 20):
        callers[ticket] = f"new {ticket}"
        line.add(ticket, Caller(callers[ticket]), 0.0)
        first = line.first(0.0)
        assert first is not None
        line.grant(first)
        line.release(callers[first])
        order.append(first)
    assert order[:3] == [0, 1, 2]


def test_a_batch_does_not_starve_behind_interactive_requests_that_never_end() -> None:
    line = line_of("batch", batch=True)
    for ticket in range(1, 200):
        now = float(ticket)
        line.add(ticket, Caller(f"new {ticket}"), now)
        first = line.first(now)
        assert first is not None
        line.grant(first)
        if first == 0:
            break
    assert now == BATCH_PATIENCE + 1, "its patience ended while one was before it"


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 4))
def test_whoever_waits_is_served_after_at_most_one_request_of_each_other_client_for_each_of_its_own(
    names: list[str], slots: int
) -> None:
    callers = dict(enumerate(names))
    order = served(line_of(*names), callers, slots)
    assert sorted(order) == list(callers)
    for name in set(names):
        own = [at for at, ticket in enumerate(order) if callers[ticket] == name]
        assert [order[at] for at in own] == sorted(order[at] for at in own)
        for earlier, later in zip([-1, *own], own, strict=False):
            between = [callers[ticket] for ticket in order[earlier + 1 : later]]
            assert len(between) <= (len(set(names)) - 1) * slots


# ---- against a model


@dataclass
class Asking:
    name: str
    tickets: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})
    turn: dict[bool, float] = field(default_factory=lambda: {False: math.inf, True: math.inf})
    running: int = 0


class Rules(RuleBasedStateMachine):
    """Clients in a table, of which all are looked at each time."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Turns()
        self.now = 0.0
        self.clients = {name: Asking(name) for name in "abcd"}
        self.since: dict[int, float] = {}
        self.tickets = self.turns = 0

    def enter(self, name: str, batch: bool, ticket: int) -> None:
        client = self.clients[name]
        if not client.tickets[batch]:
            self.turns += 1
            client.turn[batch] = self.turns
        client.tickets[batch] = sorted([*client.tickets[batch], ticket])

    def place(self, ticket: int) -> tuple[Asking, bool]:
        return next((c, b) for c in self.clients.values() for b in (False, True) if ticket in c.tickets[b])

    def promote(self) -> None:
        waiting = sorted(t for client in self.clients.values() for t in client.tickets[True])
        for ticket in waiting:
            if self.now - self.since[ticket] >= BATCH_PATIENCE:
                client, _ = self.place(ticket)
                client.tickets[True].remove(ticket)
                self.enter(client.name, False, ticket)

    def order(self) -> list[int]:
        """Serve one, count it, look at all again."""
        running = {client.name: client.running for client in self.clients.values()}
        order: list[int] = []
        for batch in (False, True):
            left = {
                c.name: (c.turn[batch], [*c.tickets[batch]])
                for c in self.clients.values()
                if c.tickets[batch]
            }
            turn = {name: (0.0, number) for name, (number, _) in left.items()}
            again = 0
            while left:
                name = min(left, key=lambda name: (running[name], turn[name]))
                order.append(left[name][1].pop(0))
                running[name] += 1
                again += 1
                turn[name] = (1.0, again)
                if not left[name][1]:
                    del left[name]
        return order

    @rule(name=st.sampled_from("abcd"), batch=st.booleans())
    def add(self, name: str, batch: bool) -> None:
        self.tickets += 1
        self.since[self.tickets] = self.now
        self.enter(name, batch, self.tickets)
        self.line.add(self.tickets, Caller(name, batch), self.now)

    @rule(seconds=st.sampled_from([1.0, 20.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.line) > 0)
    @rule(which=st.integers(0, 100), served=st.booleans())
    def leave(self, which: int, served: bool) -> None:
        self.promote()
        order = self.order()
        ticket = order[which % len(order)] if which > 50 else order[0]
        client, batch = self.place(ticket)
        client.tickets[batch].remove(ticket)
        if served:
            client.running += 1
            self.turns += 1
            client.turn[batch] = self.turns
            self.line.grant(ticket)
        else:
            self.line.remove(ticket)

    @precondition(lambda self: any(client.running for client in self.clients.values()))
    @rule(which=st.integers(0, 3))
    def release(self, which: int) -> None:
        running = [client for client in self.clients.values() if client.running]
        client = running[which % len(running)]
        client.running -= 1
        self.line.release(client.name)

    @invariant()
    def agrees(self) -> None:
        self.promote()
        expected = self.order()
        assert list(self.line.in_order(self.now)) == expected
        assert self.line.first(self.now) == (expected[0] if expected else None)
        assert len(self.line) == len(expected)
        assert self.line.running == {c.name: c.running for c in self.clients.values() if c.running}


TestRules = Rules.TestCase


# ---- how long


@pytest.mark.parametrize(
    ("position", "slots", "mean", "seconds"),
    [(1, 1, 8.0, 8.0), (1, 4, 8.0, 2.0), (6, 2, 3.0, 9.0), (1, 0, 5.0, 5.0)],
)
def test_expected_wait(position: int, slots: int, mean: float, seconds: float) -> None:
    assert expected_wait(position, slots, mean) == seconds


def test_the_mean_follows_the_latest_service_times() -> None:
    assert smoothed(None, 4.0) == 4.0
    assert smoothed(4.0, 12.0) == 5.0
    mean: float | None = 100.0
    for _ in range(50):
        mean = smoothed(mean, 1.0)
    assert mean == pytest.approx(1.0, abs=0.2)
