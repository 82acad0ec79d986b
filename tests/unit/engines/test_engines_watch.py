import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon.engines.gpus import Gpu
from daemon.engines.watch import EngineWatch, hint
from daemon.errors import LoadFailed
from daemon.runner.engine import Engine, EngineFinder

H200 = Gpu("NVIDIA H200", "nvidia", "9.0")
WHEEL = Engine("wheel", ("/w",), "2026.10", frozenset(), ())
CUDA = Engine("built", ("/b",), "b1", frozenset(), ("CUDA0: NVIDIA H200",))
SENTENCE = (
    "this machine has a GPU (NVIDIA H200), but the engine (wheel 2026.10) uses only the CPU; "
    "`mgr engine build` compiles one for it"
)
AMD_SENTENCE = (
    "this machine has a GPU (RX 7900), but the engine (wheel 2026.10) uses only the CPU; "
    "`mgr engine build --backend hip` (or vulkan) compiles one for it"
)


class Finder(EngineFinder):
    """Finds what it is told, without a process."""

    def __init__(self, engine: Engine | None) -> None:
        super().__init__("auto", (), "", Path("/"))
        self.engine = engine

    async def find(self) -> Engine:
        if self.engine is None:
            raise LoadFailed("no engine was found; tried x: not there")
        self.found = self.engine
        return self.engine


@pytest.mark.parametrize(
    ("gpus", "engine", "told"),
    [
        ([H200], WHEEL, SENTENCE),
        ([Gpu("RX 7900", "amd")], WHEEL, AMD_SENTENCE),
        ([], WHEEL, ""),
        ([H200], CUDA, ""),
        ([H200], Engine("path", ("/p",), "b1", frozenset(), None), ""),
    ],
)
def test_a_gpu_that_idles_is_told_and_nothing_else(gpus: Sequence[Gpu], engine: Engine, told: str) -> None:
    assert hint(gpus, engine) == told


async def test_what_it_looked_at_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    finder = Finder(WHEEL)
    watch = EngineWatch(finder, lambda: [H200])
    assert watch.details() is None
    with caplog.at_level(logging.WARNING, "mgr.engine"):
        await watch.look()
    assert watch.details() == {"kind": "wheel", "version": "2026.10", "devices": (), "hint": SENTENCE}
    assert caplog.messages == [SENTENCE]


async def test_the_details_are_those_of_the_engine_that_was_found_last() -> None:
    finder = Finder(WHEEL)
    watch = EngineWatch(finder, lambda: [H200])
    await watch.look()
    finder.found = CUDA
    assert watch.details() == {"kind": "built", "version": "b1", "devices": CUDA.devices, "hint": ""}


async def test_without_a_gpu_there_is_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    watch = EngineWatch(Finder(WHEEL), lambda: ())
    with caplog.at_level(logging.WARNING, "mgr.engine"):
        await watch.look()
    assert caplog.messages == []
    assert (watch.details() or {})["hint"] == ""


async def test_no_engine_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    watch = EngineWatch(Finder(None), lambda: [H200])
    with caplog.at_level(logging.ERROR, "mgr.engine"):
        await watch.look()
    assert caplog.messages == ["no engine was found; tried x: not there; no model can be loaded"]
    assert watch.details() is None


async def test_a_driver_that_hangs_holds_up_neither_the_loop_nor_the_end() -> None:
    asked, release = threading.Event(), threading.Event()

    def hangs() -> Sequence[Gpu]:
        asked.set()
        release.wait()
        return [H200]

    looking = asyncio.create_task(EngineWatch(Finder(WHEEL), hangs).look())
    while not asked.is_set():
        await asyncio.sleep(0)
    [thread] = [thread for thread in threading.enumerate() if thread.name == "gpus"]
    assert thread.daemon
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    release.set()
    thread.join(60)
    await asyncio.sleep(0)  # what it tells now is for nobody
