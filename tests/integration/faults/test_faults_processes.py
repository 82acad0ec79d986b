"""Two hundred starts and stops, and starts from another thread: runners in the test's own process."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daemon.runner.endpoint import RunDirectory
from daemon.runner.process import Child
from tests.integration.faults.in_process import Runners, said
from tests.integration.faults.invariants import POOL, SAID, Use
from tests.integration.faults.rig import until

CYCLES, AT_ONCE = 200, 4


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[Runners]:
    directory = RunDirectory.open(None)
    yield Runners(tmp_path, directory)
    directory.close()


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_f31_two_hundred_starts_and_stops(runners: Runners) -> None:
    """Each engine answers once. No descriptor, thread, process, zombie or file is left, and memory does not grow."""

    async def cycles(count: int) -> None:
        for _ in range(count):
            runner = runners.new()
            await runner.ensure_ready()
            assert await said(runner) == SAID
            await runner.stop("test")

    others = children()
    await cycles(2)
    before = Use.of(psutil.Process().pid)
    await asyncio.gather(*(cycles(CYCLES // AT_ONCE) for _ in range(AT_ONCE)))
    assert [child for child in children() if child not in others] == []
    assert [*runners.directory.path.iterdir()] == []
    assert runners.exits == []
    after = Use.of(psutil.Process().pid)
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads + POOL
    assert after.memory < before.memory + CYCLES * 20_000


async def test_f33_asked_for_from_another_thread(runners: Runners) -> None:
    """The kernel ends a child when the *thread* that forked it ends: it is the main one, whoever asks."""
    loop = asyncio.get_running_loop()
    runner = runners.new()
    started = threading.Event()

    def ask() -> None:
        asyncio.run_coroutine_threadsafe(runner.ensure_ready(), loop).result()
        started.set()

    thread = threading.Thread(target=ask)
    thread.start()
    await until(lambda: not thread.is_alive(), "the thread has ended")
    assert started.is_set()
    for _ in range(3):
        assert await said(runner) == SAID
    assert runners.exits == []
    await runner.stop("test")


async def test_f33_another_thread_may_not_fork(runners: Runners) -> None:
    def fork() -> None:
        asyncio.run(Child.spawn(["/bin/true"], {}, runners.folder, "x"))

    before = children()
    with pytest.raises(RuntimeError, match="main thread only"):
        await asyncio.to_thread(fork)
    assert children() == before
