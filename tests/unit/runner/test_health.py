"""A start may take any time as long as something moves."""

import pytest

from daemon.errors import LoadFailed
from daemon.runner.health import Sample, StallWatch, pause_after, wait_until_ready

STILL = Sample(output=0, read=0, resident=0, health=503)


def test_anything_that_moves_renews_the_limit() -> None:
    watch = StallWatch(limit=5, now=0)
    assert not watch.stalled(STILL, 1)
    moves = [
        Sample(1, 0, 0, 503),
        Sample(1, 1, 0, 503),
        Sample(1, 1, 1, 503),
        Sample(1, 1, 1, None),
    ]
    for now, sample in zip(range(5, 30, 5), moves, strict=False):
        assert not watch.stalled(sample, now)
    assert not watch.stalled(moves[-1], 22)
    assert not watch.stalled(moves[-1], 24.4)
    assert watch.stalled(moves[-1], 25)


def test_a_time_in_which_nobody_looked_does_not_fail_a_start() -> None:
    """A daemon that was stopped by a signal for an hour looks again."""
    watch = StallWatch(limit=5, now=0)
    assert not watch.stalled(STILL, 0)
    assert not watch.stalled(STILL, 3600)
    assert not watch.stalled(STILL, 3602)
    assert watch.stalled(STILL, 3602.5)


@pytest.mark.parametrize(("elapsed", "pause"), [(0, 0.005), (0.3, 0.009), (5, 0.15), (600, 0.25)])
def test_readiness_is_seen_soon_by_the_measure_of_the_load(elapsed: float, pause: float) -> None:
    assert pause_after(elapsed) == pytest.approx(pause)


async def test_ready_when_the_probe_says_200() -> None:
    answers = [None, 503, 503, 200]

    async def probe() -> int | None:
        return answers.pop(0)

    await wait_until_ready(probe, lambda status: STILL, stall_limit=60)
    assert answers == []


async def test_a_start_without_progress_fails_and_says_how_long_it_waited() -> None:
    async def probe() -> int | None:
        return 503

    with pytest.raises(LoadFailed, match="no progress for 0 s"):
        await wait_until_ready(probe, lambda status: STILL, stall_limit=0)
