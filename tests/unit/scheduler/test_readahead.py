import asyncio
import os
import threading
from pathlib import Path

import pytest

from daemon.scheduler.readahead import STEP, read_ahead

GUARD_SECONDS = 60.0
WILLNEED = 3


class Kernel:
    """What was asked for; `gate` holds up every answer after the first while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.first = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        monkeypatch.setattr(os, "posix_fadvise", self.advise, raising=False)
        monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", WILLNEED, raising=False)

    def advise(self, fd: int, offset: int, length: int, advice: int) -> None:
        os.fstat(fd)  # it is open
        self.asked.append((offset, length, advice))
        self.first.set()
        self.gate.wait(GUARD_SECONDS)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(2 * STEP + 10))
    return path


async def test_a_whole_file_in_steps(kernel: Kernel, model: Path) -> None:
    assert await read_ahead(model, 10 * STEP) == 2 * STEP + 10
    assert kernel.asked == [(0, STEP, WILLNEED), (STEP, STEP, WILLNEED), (2 * STEP, 10, WILLNEED)]


async def test_no_more_than_there_is_room_for(kernel: Kernel, model: Path) -> None:
    assert await read_ahead(model, STEP + 1) == STEP + 1
    assert kernel.asked == [(0, STEP, WILLNEED), (STEP, 1, WILLNEED)]


@pytest.mark.parametrize("room", [0, -1])
async def test_no_room_at_all(kernel: Kernel, model: Path, room: int) -> None:
    assert await read_ahead(model, room) == 0
    assert kernel.asked == []


async def test_a_file_that_is_gone(kernel: Kernel, tmp_path: Path) -> None:
    assert await read_ahead(tmp_path / "none", STEP) == 0


async def test_a_system_that_cannot(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert await read_ahead(model, STEP) == 0


async def test_cancelled_it_asks_for_nothing_more(kernel: Kernel, model: Path) -> None:
    kernel.gate.clear()
    reading = asyncio.create_task(read_ahead(model, 10 * STEP))
    assert await asyncio.to_thread(kernel.first.wait, GUARD_SECONDS)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    kernel.gate.set()
    await asyncio.get_running_loop().shutdown_default_executor()  # waits for the thread
    assert kernel.asked == [(0, STEP, WILLNEED)]
