"""One pull, many watchers."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from daemon.errors import PullFailed
from daemon.pull import job
from daemon.pull.job import Job, PullProgress, Report


class Scripted:
    """A pull that reports what it is told, and waits to be told more."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.started = 0
        self.cancellations = 0
        self.ended = 0
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.job = Job(self.run, self.on_end)

    def on_end(self) -> None:
        self.ended += 1

    async def run(self, report: Report) -> None:
        self.started += 1
        self.report = report
        try:
            await self.end
        except asyncio.CancelledError:
            self.cancellations += 1
            raise

    def say(self, status: str, completed: int | None = None, total: int | None = None) -> None:
        assert self.report is not None
        self.report(PullProgress(status, None, total, completed))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


Seen = list[tuple[str, int | None]]


def collect(stream: AsyncGenerator[PullProgress, None], seen: Seen) -> asyncio.Task[None]:
    async def run() -> None:
        try:
            async for line in stream:
                seen.append((line.status, line.completed))
        finally:
            await stream.aclose()

    return asyncio.ensure_future(run())


async def test_all_watchers_see_the_same_pull() -> None:
    script = Scripted()
    first: Seen = []
    late: Seen = []
    one = collect(script.job.watch(), first)
    await settle()
    script.say("a")
    script.say("b", 1, 10)
    await settle()
    two = collect(script.job.watch(), late)
    await settle()
    script.say("b", 10, 10)
    script.say("c")
    script.end.set_result(None)
    await asyncio.gather(one, two)
    assert first == [("a", None), ("b", 1), ("b", 10), ("c", None)]
    assert late == first
    assert (script.started, script.cancellations) == (1, 0)


async def test_counters_never_go_back_nor_beyond_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TICK", 0)
    script = Scripted()
    seen: Seen = []
    watching = collect(script.job.watch(), seen)
    await settle()
    for completed in (5, 3, 7, 12):
        script.say("b", completed, 10)
        await settle()
    script.say("other")
    script.say("b", 2, 10)
    await settle()
    script.end.set_result(None)
    await watching
    assert seen == [("b", 5), ("b", 7), ("b", 10), ("other", None), ("b", 10)]


async def test_a_slow_watcher_skips_counters_but_no_status() -> None:
    script = Scripted()
    stream = script.job.watch()
    asking = asyncio.ensure_future(anext(stream))
    await settle()
    script.say("a")
    assert (await asking).status == "a"
    for completed in range(11):
        script.say("b", completed, 10)
    script.say("c")
    script.end.set_result(None)
    assert [(line.status, line.completed) async for line in stream] == [("b", 10), ("c", None)]


async def test_an_error_reaches_every_watcher() -> None:
    script = Scripted()
    tasks = [collect(script.job.watch(), []) for _ in range(3)]
    await settle()
    script.end.set_exception(PullFailed("broken"))
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, PullFailed)
        assert result.message == "broken"
    assert script.ended >= 1


async def test_the_last_watcher_that_leaves_stops_it() -> None:
    script = Scripted()
    tasks = [collect(script.job.watch(), []) for _ in range(3)]
    await settle()
    for task in tasks[:2]:
        task.cancel()
    await settle()
    assert script.cancellations == 0
    assert script.ended == 0
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert script.cancellations == 1
    assert script.ended >= 1


async def test_stopping_it_tells_the_watchers() -> None:
    script = Scripted()
    watching = collect(script.job.watch(), [])
    await settle()
    await script.job.cancel()
    with pytest.raises(PullFailed, match="stopped"):
        await watching
