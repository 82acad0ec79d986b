"""A hung engine is told from a slow one, and from a machine that slept."""

import os
from collections.abc import Callable

import pytest

from daemon.runner.progress import HangWatch, Work, hangs_while_busy, measure

LIMIT = 120.0
HOUR = 3600.0
# What it takes to see a hang: the limit, and a few looks.
SOON = LIMIT + 40


class Scene:
    """An engine, and the clock that the watch's sleeps move on; `step` says at each look what the engine did.

    It always owes an answer. Unless `step` changes it, it sends nothing, does nothing and says nothing of its slots.
    """

    def __init__(self, step: Callable[["Scene"], None] = lambda scene: None, until: float = 2 * HOUR) -> None:
        self.begin = self.now = 1_000_000.0
        self.busy = True
        self.last_byte = 0.0
        self.cpu, self.read = 1.0, 100
        self.says = b""
        self.asked = 0
        self._step = step
        self._until = until

    @property
    def seconds(self) -> float:
        return self.now - self.begin

    def stays_until(self, seconds: float) -> None:
        """A client comes a minute before that, and leaves then."""
        self._until = seconds
        self.now = self.begin + seconds - 60

    async def slots(self) -> bytes:
        self.asked += 1
        self.now += 0.1 if self.says else 3
        return self.says

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy = self.seconds < self._until
        self._step(self)

    async def hangs(self, watch: HangWatch | None = None) -> bool:
        return await hangs_while_busy(
            self,
            lambda: Work(self.cpu, self.read),
            watch or HangWatch(LIMIT, streams=True),
            lambda: self.now,
            self._sleep,
        )


@pytest.mark.parametrize("says", [b"", b'[{"n_decoded": 2}]'], ids=["nothing", "the same"])
async def test_an_engine_that_does_nothing_hangs(says: bytes) -> None:
    scene = Scene()
    scene.says = says
    assert await scene.hangs()
    assert LIMIT < scene.seconds < SOON
    assert scene.asked == 2


async def test_a_thread_that_wakes_up_now_and_then_is_no_work() -> None:
    """HTTP threads look after their clients while the loop stands still."""

    def step(scene: Scene) -> None:
        scene.cpu += 0.02

    scene = Scene(step)
    assert await scene.hangs()
    assert scene.seconds < SOON


def slow_tokens(scene: Scene) -> None:
    if scene.seconds % 100 < 5:
        scene.last_byte = scene.now


def works(scene: Scene) -> None:
    """One of many on a loaded machine: a twentieth of a processor."""
    scene.cpu += 0.25


def reads(scene: Scene) -> None:
    """Its weights, from a disk."""
    scene.read += 4096


def counts(scene: Scene) -> None:
    """On a GPU that is waited for in sleep."""
    scene.says = b'[{"n_decoded": %d}]' % scene.now


@pytest.mark.parametrize(
    ("does", "asked"), [(slow_tokens, False), (works, False), (reads, False), (counts, True)]
)
async def test_one_sign_of_life_is_enough(does: Callable[[Scene], None], asked: bool) -> None:
    """It is not even asked while it works, beyond the first look: that would delay its view of clients that left."""
    scene = Scene(does, until=LIMIT * 9)
    assert not await scene.hangs()
    assert scene.seconds >= LIMIT * 9
    assert (scene.asked > 1) is asked


async def test_work_that_leads_to_nothing_in_ten_times_the_limit_is_a_hang() -> None:
    scene = Scene(works)
    assert await scene.hangs()
    assert LIMIT * 10 < scene.seconds < LIMIT * 10 + 40


async def test_vectors_take_as_long_as_they_take() -> None:
    scene = Scene(works)
    assert not await scene.hangs(HangWatch(LIMIT, streams=False))
    idle = Scene()
    assert await idle.hangs(HangWatch(LIMIT, streams=False))
    assert idle.seconds < SOON


async def test_what_comes_while_it_is_asked_counts() -> None:
    class Late(Scene):
        async def slots(self) -> bytes:
            self.last_byte = self.now
            return await super().slots()

    assert not await Late(until=HOUR).hangs()


@pytest.mark.parametrize("sleeps_at", [50, 118, 123, 128, 131, 136])
@pytest.mark.parametrize("seconds", [60.0, HOUR, 9 * HOUR])
async def test_one_late_look_kills_nothing(sleeps_at: float, seconds: float) -> None:
    """The machine slept, or mgr was stopped: all at once much time has passed, in which nothing was done or sent."""
    slept: list[float] = []

    def step(scene: Scene) -> None:
        if scene.seconds >= sleeps_at and not slept:
            slept.append(scene.now)
            scene.now += seconds
        elif slept:
            scene.last_byte = scene.now

    scene = Scene(step, until=seconds + HOUR)
    assert not await scene.hangs()


async def test_a_machine_that_sleeps_while_the_engine_is_asked() -> None:
    class Slept(Scene):
        async def slots(self) -> bytes:
            """The limit of the question passes while all stand still; from then on it works again."""
            if not self.asked:
                self.now += HOUR
                self.asked += 1
                return b""
            counts(self)
            return await super().slots()

    scene = Slept(until=HOUR + 5 * LIMIT)
    assert not await scene.hangs()
    assert scene.asked > 1


async def test_a_hang_is_found_also_after_a_sleep() -> None:
    slept: list[float] = []

    def step(scene: Scene) -> None:
        if scene.seconds > 60 and not slept:
            slept.append(scene.now)
            scene.now += HOUR

    scene = Scene(step, until=2 * HOUR)
    assert await scene.hangs()
    assert HOUR + LIMIT - 5 < scene.seconds < HOUR + SOON


async def test_clients_that_leave_before_the_limit_do_not_hide_it() -> None:
    """Each gives up after a minute, and the next comes an hour later: only the minutes count, and they add up."""
    watch = HangWatch(LIMIT, streams=True)
    scene = Scene(until=60)
    assert not await scene.hangs(watch)
    scene.stays_until(scene.seconds + HOUR + 60)
    assert not await scene.hangs(watch)
    scene.stays_until(scene.seconds + HOUR + 60)
    assert await scene.hangs(watch)


async def test_an_engine_that_is_idle_is_not_watched() -> None:
    scene = Scene(until=0)
    assert not await scene.hangs()
    assert scene.seconds == 5
    assert scene.asked == 0


@pytest.mark.parametrize(("limit", "pause"), [(120, 5), (20, 5), (1, 0.25)])
def test_how_often_it_looks(limit: float, pause: float) -> None:
    assert HangWatch(limit, streams=True).pause == pause


def test_the_work_of_a_process() -> None:
    before = measure(os.getpid())
    while (after := measure(os.getpid())).cpu == before.cpu:
        pass
    assert after.cpu > before.cpu > 0


def test_a_process_that_is_gone_does_nothing() -> None:
    assert measure(2**30) == Work(0, 0)
