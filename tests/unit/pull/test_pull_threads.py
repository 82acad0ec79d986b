"""Blocking work in threads, cancelled between its pieces."""

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.pull.threads import chunks_of, in_thread, pour
from daemon.store.blobs import Blobs, Digest, WrongSize
from daemon.store.ledger import Ledger

DATA = b"x" * 3_000_000


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    (tmp_path / "blobs").mkdir()
    return Blobs(tmp_path, Ledger(tmp_path))


async def test_a_cancelled_call_is_waited_for() -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        leave.wait(60)
        left.set()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.to_thread(entered.wait, 60)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()


async def test_results_and_errors_come_back() -> None:
    assert await in_thread(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread(int, "x")


async def test_a_stream_becomes_a_blob(blobs: Blobs) -> None:
    seen: list[int] = []
    digest = await pour(chunks_of(io.BytesIO(DATA)), blobs, len(DATA), None, seen.append)
    assert digest == Digest.of(DATA)
    assert blobs.read(digest, len(DATA)) == DATA
    assert seen == [2**20, 2 * 2**20, 3_000_000]


async def test_nothing_remains_of_what_is_wrong(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(WrongSize):
        await pour(chunks_of(io.BytesIO(DATA)), blobs, len(DATA) + 1, None, lambda _: None)
    assert os.listdir(tmp_path / "blobs") == []


async def test_nothing_remains_when_cancelled(blobs: Blobs, tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x"
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(pour(endless(), blobs, 10, None, lambda _: None))
    await waiting.wait()
    assert len(os.listdir(tmp_path / "blobs")) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path / "blobs") == []
