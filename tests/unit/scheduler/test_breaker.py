"""When a start that failed may be tried again: the rule, on moments that are passed in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import Busy, EngineFailed, LoadFailed, MgrError
from daemon.scheduler import breaker
from daemon.scheduler.breaker import Breakers, Circuit, Go, Key, Record, Refuse, Wait

MIDDLE = 0.5  # of the jitter: none
DAMAGED = LoadFailed("the model file is damaged", permanent=True)
STALLED = LoadFailed("the engine made no progress")
CRASHED = EngineFailed("the engine ended with signal 11")

A = Key("a")


def failing(*moments: float, error: MgrError = STALLED) -> Record:
    """The record after starts that failed at these moments."""
    record = Record()
    for at in moments:
        record = record.started(at).failed(at, error, MIDDLE)
    return record


def starts(seconds: float, record: Record, duration: float) -> list[float]:
    """When an impatient client's starts begin that all fail after `duration`."""
    now, begun = 0.0, []
    while now < seconds:
        match record.verdict(now):
            case Go():
                begun.append(now)
                record = record.started(now).failed(now + duration, STALLED, MIDDLE)
                now += duration
            case Wait(until) | Refuse(_, until):
                now = until
    return begun


def test_nothing_is_held_against_a_first_start() -> None:
    assert Record().verdict(0.0) == Go()


def test_the_wait_doubles_then_five_failures_are_refused_for_ten_minutes_then_one_try_each() -> None:
    assert starts(1300.0, Record(), duration=0.0) == [0.0, 0.5, 1.5, 3.5, 7.5, 607.5, 1207.5]


def test_slow_failures_are_never_five_in_five_minutes_and_wait_up_to_a_minute() -> None:
    begun = starts(3600.0, Record(), duration=100.0)
    waits = [later - earlier - 100.0 for earlier, later in itertools.pairwise(begun)]
    assert waits[:9] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert set(waits[7:]) == {60.0}


@pytest.mark.parametrize(("chance", "until"), [(0.0, 100.4), (0.5, 100.5), (1.0, 100.6)])
def test_jitter_is_a_fifth_each_way(chance: float, until: float) -> None:
    assert Record().failed(100.0, STALLED, chance).until == pytest.approx(until)


def test_a_refusal_says_the_reason_how_often_and_when() -> None:
    record = failing(0, 1, 2, 3, 4)
    verdict = record.verdict(10.5)
    assert isinstance(verdict, Refuse)
    assert verdict.until == 604.0
    assert isinstance(verdict.error, Busy)
    assert verdict.error.retry_after == 594
    assert verdict.error.message == (
        "the model is not started for another 594 s, as its last 5 starts failed: the engine made no progress"
    )


def test_five_failures_that_are_far_apart_do_not_open_it() -> None:
    assert failing(0, 100, 200, 250, 300).circuit is Circuit.CLOSED
    assert failing(0, 100, 200, 250, 299).circuit is Circuit.OPEN


def test_what_would_fail_again_is_refused_at_once_and_must_not_be_repeated_by_clients() -> None:
    verdict = failing(0, error=DAMAGED).verdict(0.0)
    assert isinstance(verdict, Refuse)
    assert verdict.until == 600.0
    assert isinstance(verdict.error, LoadFailed)
    assert verdict.error.permanent
    assert verdict.error.message == (
        "the model is not started for another 600 s, as it would fail again: the model file is damaged"
    )
    assert failing(0, error=DAMAGED).verdict(600.0) == Go()


def test_only_one_start_is_tried_after_the_refusal() -> None:
    trying = failing(0, 1, 2, 3, 4).started(700.0)
    assert trying.circuit is Circuit.HALF_OPEN
    assert isinstance(trying.verdict(701.0), Wait)
    assert trying.verdict(1300.0) == Go(), "a try whose end nobody tells must not close the model for ever"


def test_a_try_that_fails_is_refused_for_ten_minutes_again() -> None:
    failed = failing(0, 1, 2, 3, 4).started(700.0).failed(710.0, CRASHED, MIDDLE)
    verdict = failed.verdict(711.0)
    assert isinstance(verdict, Refuse)
    assert verdict.until == 1310.0
    assert "its last 6 starts failed: the engine ended with signal 11" in verdict.error.message


def test_a_try_that_was_ended_on_purpose_is_given_back() -> None:
    given_back = failing(0, 1, 2, 3, 4).started(700.0).stopped(705.0)
    assert given_back.verdict(705.0) == Go()
    assert given_back.started(706.0).failed(707.0, STALLED, MIDDLE).circuit is Circuit.OPEN


@pytest.mark.parametrize(("lived", "circuit"), [(59.9, Circuit.OPEN), (60.0, Circuit.CLOSED)])
def test_a_try_has_proven_itself_after_a_minute(lived: float, circuit: Circuit) -> None:
    ready = failing(0, 1, 2, 3, 4).started(700.0).ready(710.0)
    assert ready.verdict(711.0) == Go()
    assert ready.died(710.0 + lived, CRASHED, MIDDLE).circuit is circuit


def test_an_engine_that_dies_soon_counts_like_a_start_that_failed() -> None:
    record = Record()
    for at in range(5):
        record = record.started(at).ready(at).died(at + 0.5, CRASHED, MIDDLE)
    assert isinstance(record.verdict(5.0), Refuse)


def test_an_engine_that_was_ready_for_a_minute_leaves_no_record_however_it_ends() -> None:
    ready = failing(0, 1, 2).ready(10.0)
    assert ready.died(70.0, CRASHED, MIDDLE) == Record()
    assert ready.stopped(70.0) == Record()


def test_an_engine_that_is_stopped_soon_forgets_nothing() -> None:
    record = failing(0, 1, 2, 3).ready(10.0).stopped(20.0)
    assert record.verdict(20.0) == Go()
    assert record.failed(21.0, STALLED, MIDDLE).circuit is Circuit.OPEN


def test_pardoned_failures_do_not_count() -> None:
    record = failing(0, 1, 2, 3, 4)
    assert record.pardoned(5.0, [1.0]).verdict(5.0) == Go()
    assert record.pardoned(5.0, [1.0]).failures == (0, 2, 3, 4)
    assert record.pardoned(5.0, [0.0, 1.0, 2.0, 3.0, 4.0]) == Record()
    assert record.pardoned(5.0, [9.0]) == record


def test_a_pardon_does_not_mend_a_damaged_file() -> None:
    record = failing(0.0).failed(1.0, DAMAGED, MIDDLE)
    assert isinstance(record.pardoned(2.0, [0.0]).verdict(2.0), Refuse)


events = st.lists(
    st.tuples(
        st.floats(0, 400), st.sampled_from(["started", "ready", "failed", "died", "stopped", "damaged"])
    ),
    max_size=40,
)


@given(events, st.floats(0, 1))
def test_no_history_refuses_longer_than_ten_minutes_and_none_is_for_ever(
    history: list[tuple[float, str]], chance: float
) -> None:
    record, now = Record(), 0.0
    for seconds, event in history:
        now += seconds
        match event:
            case "failed" | "died":
                record = getattr(record, event)(now, CRASHED, chance)
            case "damaged":
                record = record.failed(now, DAMAGED, chance)
            case _:
                record = getattr(record, event)(now)
        assert record.until <= now + breaker.OPEN_SECONDS
        assert len(record.failures) <= breaker.KEPT_FAILURES
        verdict = record.verdict(now)
        assert isinstance(verdict, Go) or verdict.until > now
        assert record.verdict(now + breaker.OPEN_SECONDS) == Go()
        assert record.ready(now).stopped(now + breaker.PROVEN_SECONDS + 1) == Record()


@given(st.lists(st.floats(0.001, 200), min_size=40, max_size=40))
def test_starts_that_fail_are_few_whatever_they_take(durations: list[float]) -> None:
    """At most five in five minutes, and at most one between two refusals."""
    record, now, begun = Record(), 0.0, []
    for duration in durations:
        verdict = record.verdict(now)
        now = now if isinstance(verdict, Go) else verdict.until
        begun.append(now)
        now += duration
        record = record.started(begun[-1]).failed(now, STALLED, MIDDLE)
    for first, sixth in zip(begun, begun[5:], strict=False):
        assert sixth - first > breaker.WINDOW


# ---- many starts


def breakers() -> Breakers:
    return Breakers(lambda: MIDDLE)


def test_one_start_that_fails_holds_nothing_against_another_model_or_other_settings() -> None:
    table = breakers()
    table.failed(Key("a", "window 999999"), 0.0, DAMAGED)
    assert isinstance(table.verdict(Key("a", "window 999999"), 1.0), Refuse)
    assert table.verdict(Key("a", "window 4096"), 1.0) == Go()
    assert table.verdict(Key("b", "window 999999"), 1.0) == Go()


def test_a_crash_loop_through_the_table() -> None:
    table = breakers()
    for at in range(5):
        table.started(A, at * 10.0)
        table.ready(A, at * 10.0)
        table.died(A, at * 10.0 + 1.0, CRASHED)
    verdict = table.verdict(A, 42.0)
    assert isinstance(verdict, Refuse)
    assert [len(record.failures) for record in table.troubled("a")] == [5]
    assert list(table.troubled("b")) == []


def test_a_reset_by_hand_is_of_one_model_or_of_all() -> None:
    table = breakers()
    for key in (Key("a", 1), Key("a", 2), Key("b")):
        table.failed(key, 0.0, DAMAGED)
    table.reset("a")
    assert table.verdict(Key("a", 1), 1.0) == table.verdict(Key("a", 2), 1.0) == Go()
    assert isinstance(table.verdict(Key("b"), 1.0), Refuse)
    table.reset()
    assert len(table) == 0


def test_a_pardon_finds_the_failures_of_any_start_of_the_model() -> None:
    table = breakers()
    table.failed(Key("a", 1), 1.0, CRASHED)
    table.failed(Key("a", 2), 2.0, CRASHED)
    table.failed(Key("b"), 1.0, CRASHED)
    table.pardon("a", 3.0, [1.0, 2.0])
    assert list(table.troubled("a")) == []
    assert len(list(table.troubled("b"))) == 1


def test_models_that_work_leave_nothing_behind() -> None:
    table = breakers()
    for number in range(100):
        key = Key(str(number))
        table.started(key, number)
        table.ready(key, number)
        table.stopped(key, number + 1.0)
    assert len(table) == 0


def test_old_failures_go_by_themselves_and_a_running_engine_is_no_obstacle() -> None:
    table = breakers()
    table.ready(Key("runs"), 0.0)
    table.failed(A, 0.0, DAMAGED)
    table.failed(Key("b"), 1199.0, STALLED)
    assert len(table) == 3
    table.failed(Key("b"), 1200.0, STALLED)
    assert len(table) == 2
    assert table.verdict(A, 1200.0) == Go()


def test_the_table_is_bounded_and_drops_the_oldest_that_does_not_run() -> None:
    table = breakers()
    table.ready(Key("runs"), 0.0)
    for number in range(breaker.MAX_RECORDS + 5):
        table.failed(Key("a", number), 1.0, DAMAGED)
    assert len(table) == breaker.MAX_RECORDS
    assert table.verdict(Key("a", 5), 2.0) == Go()
    assert isinstance(table.verdict(Key("a", 6), 2.0), Refuse)
    table.died(Key("runs"), 60.0, CRASHED)
    assert table.verdict(Key("runs"), 60.0) == Go()
